"""Retention of queues: hides messages whose time is over, and removes dead letters and partitions.

Messages are hidden by the floor of their partition, which costs the same however many they are. Their chunks leave the
disk with their day (`days`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import structlog

from angelia import metrics
from angelia.queues import retention_store as store
from angelia.queues import walks_store
from angelia.queues.retention_store import Removal
from angelia.queues.walks_store import Walk
from angelia.stores.ledger import Ledger

AT_ONCE = 100  # partitions in one transaction
MOST_MESSAGES = 200_000  # by which a floor is raised at once: as many entries of an index may be read
ARCHIVE_WAIT = timedelta(days=7)
_LARGE_CURSOR = 512  # bytes of its settled messages, about thirty ranges
_WALK = "retention"
log = structlog.get_logger(__name__)


class QueueRetention:
    """The rules `retentionSeconds`, `completedRetentionSeconds` and `partitionRetentionSeconds`. A round takes at most
    `batch` partitions, and as many dead letters. `window`: the hours (UTC) in which it works."""

    def __init__(
        self,
        ledger: Ledger,
        batch: int = 1000,
        window: tuple[int, int] | None = None,
        *,
        most_messages: int = MOST_MESSAGES,
    ) -> None:
        self._ledger = ledger
        self._batch = batch
        self._window = window
        self._most_messages = most_messages

    async def run(self, now: datetime) -> bool:
        """Does a bounded piece of work. Returns whether partitions are left in this run through all of them."""
        if not within(self._window, now):
            return False
        overdue = await self._give_up_archive(now)
        async with self._ledger.lookups() as tx:
            done = (await walks_store.walk(tx, _WALK)).partition_no
            page = await store.page(tx, done, self._batch)
        for some in _pieces(page.partition_nos):
            if not await self._apply(some, now):
                await self._reached(done)
                return True
            done = some[-1]
        await self._reached(page.last or 0)
        return overdue or page.last is not None

    async def _apply(self, partition_nos: Sequence[int], now: datetime) -> bool:
        """Applies all rules to some partitions. Returns whether that is all; otherwise they have more than fits."""
        began = time.monotonic()
        # Most of these read tables of many days, so that planning takes longer than all else: they are planned once.
        async with self._ledger.statement() as tx:
            raised, removals = await store.raise_floors(tx, partition_nos, now, self._most_messages)
        if raised:
            async with self._ledger.transaction() as tx:
                await store.trim_cursors(tx, list(raised), _LARGE_CURSOR)
        async with self._ledger.statement() as tx:
            letters, unarchived = await store.remove_letters(tx, partition_nos, now, self._batch)
        async with self._ledger.lookups() as tx:
            idle = await store.idle(tx, partition_nos, now)
        if idle:
            async with self._ledger.transaction() as tx:
                removals += await store.delete_idle(tx, idle, now)
        _tell(removals + letters, began)
        _warn(unarchived)
        return (
            sum(one.count for one in letters) < self._batch
            and max(raised.values(), default=0) <= self._most_messages // 2
        )

    async def _give_up_archive(self, now: datetime) -> bool:
        """Lets messages go that have waited for the archive for a week. Returns whether more have."""
        async with self._ledger.reading() as tx:
            if not await store.due_for_archive(tx, now - ARCHIVE_WAIT):
                return False
        async with self._ledger.transaction() as tx:
            gone = await store.give_up_archive(tx, now - ARCHIVE_WAIT, self._batch)
            more = await store.due_for_archive(tx, now - ARCHIVE_WAIT)
        _warn(gone)
        return more

    async def _reached(self, partition_no: int) -> None:
        async with self._ledger.statement() as tx:
            await walks_store.set_walk(tx, _WALK, Walk(partition_no))


def within(window: tuple[int, int] | None, now: datetime) -> bool:
    """Whether it is between two hours of the day, UTC; `(22, 4)` goes over midnight."""
    if window is None:
        return True
    first, second = window
    hour = now.astimezone(UTC).hour
    return first <= hour < second if first < second else hour >= first or hour < second


def _pieces(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(numbers), AT_ONCE):
        yield numbers[at : at + AT_ONCE]


def _tell(removals: Sequence[Removal], began: float) -> None:
    ms = round((time.monotonic() - began) * 1000, 1)
    for one in removals:
        metrics.QUEUE_REMOVED.labels(one.kind).inc(one.count)
        log.info(
            "retention.performed",
            queue=one.queue_name,
            partition=one.partition_name,
            kind=one.kind,
            count=one.count,
            ms=ms,
        )


def _warn(unarchived: Sequence[Removal]) -> None:
    for one in unarchived:
        metrics.QUEUE_UNARCHIVED.inc(one.count)
        log.warning(
            "messages waited a week for the archive and are gone",
            queue=one.queue_name,
            partition=one.partition_name,
            messages=one.count,
        )
