"""The daily tables of chunks: made ahead, and dropped when no partition needs a chunk of them.

What little is needed of an old day is copied to the next one, so that the day can be dropped. Positions stay, and a
chunk is in exactly one table at any time.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import structlog

from angelia import metrics
from angelia.queues import days_store as store
from angelia.queues.days_store import DAILY, OldDay
from angelia.queues.retention import within
from angelia.stores.ledger import Ledger, StatementError
from angelia.stores.partitions import make_ahead

# Pushes of yesterday may still be on their way into its table. Nothing is copied into it, nor into today's: there a
# partition's newest chunk is looked for first.
_CLOSED = timedelta(days=2)
_SMALL_PART = 0.2
_MOST_COUNTED = 1_000_000  # chunks of one partition
_COPIED_PARTITIONS, _COPIED_CHUNKS, _COPIED_BYTES = 20, 500, 16 << 20  # in one transaction
_DEFAULT_ROWS = 1_000
_LOOK_AGAIN = timedelta(hours=6)
_LOCK_NOT_AVAILABLE = "55P03"
log = structlog.get_logger(__name__)


class QueueDays:
    """The tables of days. A round looks at `batch` partitions of one day, or copies some chunks. `window`: the hours
    (UTC) in which it works on old days."""

    def __init__(
        self,
        ledger: Ledger,
        batch: int = 1000,
        window: tuple[int, int] | None = None,
        *,
        copied_chunks: int = _COPIED_CHUNKS,
    ) -> None:
        self._ledger = ledger
        self._batch = batch
        self._window = window
        self._copied_chunks = copied_chunks

    async def make_partitions(self, now: datetime) -> int:
        """Makes the tables from yesterday to a week ahead; returns how many chunks missed theirs."""
        return await make_ahead(self._ledger, DAILY, now)

    async def run(self, now: datetime) -> bool:
        """Makes days ahead, and does a bounded piece of work on an old one. Returns whether more may wait."""
        missed = await self.make_partitions(now)
        metrics.QUEUE_UNPARTITIONED.set(missed)
        if not within(self._window, now):
            return False
        pruned = await self._prune_default(now) if missed else 0
        today = now.astimezone(UTC).date()
        async with self._ledger.transaction() as tx:
            days = await store.days(tx)
            await store.note(tx, [day for day in days if day <= today - _CLOSED], now)
            state = await store.due(tx, now)
        metrics.QUEUE_DAYS.set(len(days))
        if state is None:
            return pruned == _DEFAULT_ROWS
        later = next((day for day in days if state.day < day <= today - _CLOSED), None)
        if state.copying and later is not None:
            await self._copy(state, later, now)
        else:
            await self._look(state, later, now)
        return True

    async def _look(self, state: OldDay, later: date | None, now: datetime) -> None:
        """Counts the chunks of a day that some partitions need, and decides about the day when all were looked at."""
        async with self._ledger.transaction() as tx:
            chunks, _ = await store.size(tx, state.day)
            looked = await store.look(tx, state.day, state.partition_no, self._batch, _MOST_COUNTED)
        survivors = state.survivors + looked.survivors
        if survivors > chunks * _SMALL_PART:
            await self._keep(state, now)
        elif looked.partitions == self._batch and looked.last is not None:
            await self._save(replace(state, partition_no=looked.last, survivors=survivors), now)
        elif survivors == 0:
            await self._drop(state, now)
        elif later is not None:
            await self._save(OldDay(state.day, copying=True), now)
        else:
            await self._keep(state, now)

    async def _copy(self, state: OldDay, later: date, now: datetime) -> None:
        async with self._ledger.transaction() as tx:
            await store.lock(tx)
            _, size = await store.size(tx, state.day)
            copied = await store.copy(
                tx, state.day, later, state.partition_no, _COPIED_PARTITIONS, self._copied_chunks, _COPIED_BYTES
            )
            total = state.copied_bytes + copied.bytes
            if copied.last is not None and total <= size * _SMALL_PART:
                # Partitions whose chunks were not all found, or not all moved, come again.
                done = copied.chunks == copied.found < self._copied_chunks
                after = copied.last if done else state.partition_no
                await store.update(tx, replace(state, partition_no=after, copied_bytes=total), now)
        metrics.QUEUE_BYTES_COPIED.inc(copied.bytes)
        if copied.last is None:
            await self._drop(state, now)
        elif total > size * _SMALL_PART:
            await self._keep(state, now)

    async def _drop(self, state: OldDay, now: datetime) -> None:
        try:
            async with self._ledger.transaction() as tx:
                await store.lock(tx)
                dropped = await store.drop(tx, state.day)
        except StatementError as error:
            if error.sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            log.info("a day of queues is in use and will be dropped later", day=f"{state.day}")
            await self._save(OldDay(state.day), now + timedelta(minutes=1))
            return
        if not dropped:
            await self._keep(state, now)
            return
        metrics.QUEUE_DAYS_DROPPED.inc()
        log.info("a day of queues was dropped", day=f"{state.day}")

    async def _keep(self, state: OldDay, now: datetime) -> None:
        """Looks again after a while."""
        await self._save(OldDay(state.day), now + _LOOK_AGAIN)

    async def _save(self, state: OldDay, look_at: datetime) -> None:
        async with self._ledger.transaction() as tx:
            await store.update(tx, state, look_at)

    async def _prune_default(self, now: datetime) -> int:
        async with self._ledger.transaction() as tx:
            await store.lock(tx)
            return await store.prune_default(tx, now - _CLOSED, _DEFAULT_ROWS)
