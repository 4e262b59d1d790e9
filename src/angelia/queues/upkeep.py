"""Upkeep of the storage of queues: removes what is left of deleted partitions and messages, and old counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from angelia.queues import days_store, walks_store
from angelia.queues import upkeep_store as store
from angelia.queues.walks_store import Walk
from angelia.stores.ledger import Ledger

HISTORY_KEPT = timedelta(days=90)
_RUNS_KEPT = timedelta(days=1)  # then the runs of a day become one row
_LEAVINGS_AT_ONCE = 100
_CHUNKS_AT_ONCE = 200  # each has hundreds of rows of out-of-line payload
_SECOND_LOOK = timedelta(minutes=1)  # a statement ends long before
_IDS_FOR_A_ROW = 10  # entries of an index are looked at for each row that a round may take
_PARTITIONS_AT_ONCE = 200  # whose ids are pruned
_WALK = "ids"


class QueueUpkeep:
    """One method for each tick; each does a bounded piece of work and returns whether more waits."""

    def __init__(self, ledger: Ledger, batch: int = 1000) -> None:
        self._ledger = ledger
        self._batch = batch

    async def clear_leavings(self, now: datetime) -> bool:
        """Removes what is left of deleted partitions."""
        async with self._ledger.reading() as tx:
            numbers = await store.leavings(tx, now - _SECOND_LOOK, _LEAVINGS_AT_ONCE)
        if not numbers:
            return False
        async with self._ledger.transaction() as tx:
            await days_store.lock(tx)
            more = await store.leave_chunks(tx, numbers, _CHUNKS_AT_ONCE) == _CHUNKS_AT_ONCE
        for statement in store.LEFT:
            async with self._ledger.transaction() as tx:
                more = await store.leave(tx, statement, numbers, self._batch) == self._batch or more
        if not more:
            async with self._ledger.transaction() as tx:
                await store.emptied(tx, numbers, now, now - _SECOND_LOOK)
        return more or len(numbers) == _LEAVINGS_AT_ONCE

    async def prune_ids(self, now: datetime) -> bool:
        """Removes ids and traces of messages that retention has removed, from partitions that have many of them."""
        async with self._ledger.reading() as tx:
            walk = await walks_store.walk(tx, _WALK)
            todo, end = [walk], walk.partition_no or None
            if walk.floor is None:
                most = min(self._batch, _PARTITIONS_AT_ONCE)
                outdated = await store.outdated_ids(tx, walk.partition_no, most, now)
                todo, end = [Walk(number, floor=floor) for number, floor in outdated.partitions], outdated.last
        left = self._batch * _IDS_FOR_A_ROW
        for one in todo:
            rest, left = await self._prune_partition(one, left)
            if rest is not None:
                await self._reached(rest)
                return True
        await self._reached(Walk(end or 0))
        return end is not None

    async def prune_history(self, now: datetime) -> bool:
        """Makes the runs of past days one row each, and forgets what is older than 90 days."""
        async with self._ledger.transaction() as tx:
            merged = await store.merge_history(tx, now - _RUNS_KEPT, self._batch)
        async with self._ledger.transaction() as tx:
            forgotten = await store.forget(tx, now - HISTORY_KEPT, self._batch)
        return max(merged, forgotten) == self._batch

    async def _prune_partition(self, walk: Walk, left: int) -> tuple[Walk | None, int]:
        """Prunes the ids and traces of a partition, as long as ids may be looked at. Returns where it stopped (None: at
        the end), and how many more may be looked at."""
        assert walk.floor is not None, "the walk is in a partition"
        while left > 0:
            async with self._ledger.transaction() as tx:
                at = None if walk.hash is None or walk.position is None else (walk.hash, walk.position)
                await store.read_in_order(tx)
                looked, at = await store.prune_ids(tx, walk.partition_no, at, walk.floor, min(left, self._batch))
                traces = await store.prune_traces(tx, walk.partition_no, walk.floor, self._batch)
                done = at is None and traces < self._batch
                if done:
                    await store.pruned(tx, walk.partition_no, walk.floor)
            left -= looked + traces
            if done:
                return None, left
            if at is not None:
                walk = replace(walk, hash=at[0], position=at[1])
        return walk, 0

    async def _reached(self, walk: Walk) -> None:
        async with self._ledger.transaction() as tx:
            await walks_store.set_walk(tx, _WALK, walk)
