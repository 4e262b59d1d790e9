"""Eviction: marks messages that waited longer than `maxWaitTimeSeconds` and that no consumer group consumed.

Pops pass over them by their age already; the mark is what listings and counts show. Each message is marked once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import structlog

from angelia import metrics
from angelia.queues import eviction_store as store
from angelia.queues import walks_store
from angelia.queues.activity import WAITED_SECONDS, Activity
from angelia.queues.eviction_store import Evicted, WaitingPartition
from angelia.queues.walks_store import Walk
from angelia.stores.ledger import Ledger

AT_ONCE = 100  # partitions in one transaction
MOST_MESSAGES = 200_000  # of a partition at once: as many entries of an index may be read
_QUIET = timedelta(days=10)  # partitions that were caught up with are noted as quiet every eight days
_WALK = "eviction"
log = structlog.get_logger(__name__)


class QueueEviction:
    """Evicts from all queues. A round takes at most `batch` partitions."""

    def __init__(
        self, ledger: Ledger, activity: Activity, batch: int = 1000, *, most_messages: int = MOST_MESSAGES
    ) -> None:
        self._ledger = ledger
        self._activity = activity
        self._batch = batch
        self._most_messages = most_messages

    async def run(self, now: datetime) -> bool:
        """Does a bounded piece of work. Returns whether partitions are left in this run through all of them."""
        began = time.monotonic()
        async with self._ledger.lookups() as tx:
            done = (await walks_store.walk(tx, _WALK)).partition_no
            partitions, last = await store.page(tx, done, self._batch, now - _QUIET)
        evicted: list[Evicted] = []
        for at in range(0, len(partitions), AT_ONCE):
            some = partitions[at : at + AT_ONCE]
            found = await self._evict(some, now)
            evicted += found
            if any(one.most > self._most_messages // 2 for one in found):
                last = done  # these partitions may have more
                break
            done = some[-1].partition_no
        async with self._ledger.statement() as tx:
            await walks_store.set_walk(tx, _WALK, Walk(last or 0))
        self._tell(evicted, time.monotonic() - began)
        return last is not None

    async def _evict(self, partitions: Sequence[WaitingPartition], now: datetime) -> list[Evicted]:
        young_since = now - timedelta(seconds=max(one.seconds for one in partitions))
        found: list[Evicted] = []
        # Those that were quiet a few days ago need no look into the tables of the days before.
        for quiet, quiet_since in ((True, now - _QUIET), (False, None)):
            numbers = [one.partition_no for one in partitions if one.quiet is quiet]
            if numbers:
                async with self._ledger.statement() as tx:
                    found += await store.evict(
                        tx, numbers, now, self._most_messages, WAITED_SECONDS, young_since, quiet_since
                    )
        return found

    def _tell(self, evicted: Iterable[Evicted], seconds: float) -> None:
        metrics.QUEUE_EVICTION_SECONDS.set(seconds)
        queues: dict[int, list[Evicted]] = {}
        for one in evicted:
            queues.setdefault(one.queue_no, []).append(one)
        for queue_no, parts in queues.items():
            count = sum(part.count for part in parts)
            metrics.QUEUE_EVICTED.inc(count)
            self._activity.evicted(queue_no, count)
            log.info(
                "eviction.performed",
                queue=parts[0].queue_name,
                count=count,
                oldest_seconds=round(max(part.oldest_seconds for part in parts), 3),
                ms=round(seconds * 1000, 1),
            )
