"""The SQL statements that remove what is left of deleted partitions and removed messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from angelia.stores.ledger import Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "upkeep.sql")
LOOKED_AT = 10  # so many partitions are looked at for each one that may be worked on
LEFT = ("leave_ids", "leave_cursors", "leave_letters", "leave_traces", "leave_hidden")
_LOWEST = -(1 << 63)


@dataclass(frozen=True, slots=True)
class OutdatedIds:
    """Partitions with ids of removed messages, and the floor of each; `last`: those up to there were looked at, None if
    there are no more."""

    partitions: list[tuple[int, int]]
    last: int | None


async def leavings(tx: Tx, emptied_before: datetime, most: int) -> list[int]:
    """Deleted partitions of which something may be left."""
    rows = await tx.fetch(SQL["leavings"], emptied_before, most)
    return [row["partition_no"] for row in rows]


async def leave_chunks(tx: Tx, partition_nos: Sequence[int], most: int) -> int:
    """Removes chunks of deleted partitions. Returns how many."""
    return _count(await tx.execute(SQL["leave_chunks"], partition_nos, most))


async def leave(tx: Tx, name: str, partition_nos: Sequence[int], most: int) -> int:
    """Removes rows of deleted partitions from a table, by one of the statements `LEFT`. Returns how many."""
    return _count(await tx.execute(SQL[name], partition_nos, most))


async def emptied(tx: Tx, partition_nos: Sequence[int], now: datetime, before: datetime) -> None:
    """Notes that nothing is left of these; those of which that was noted before then are forgotten."""
    await tx.execute(SQL["emptied"], partition_nos, now, before)


async def outdated_ids(tx: Tx, after: int, most: int, now: datetime) -> OutdatedIds:
    row = await tx.fetchrow(SQL["outdated_ids"], after, most * LOOKED_AT, most, now)
    assert row is not None, "the statement returns one row"
    found = list(zip(row["partition_nos"], row["floors"], strict=True))
    if len(found) == most:
        return OutdatedIds(found, found[-1][0])
    return OutdatedIds(found, row["last"] if row["count"] == most * LOOKED_AT else None)


async def read_in_order(tx: Tx) -> None:
    """Lets `prune_ids` follow the index: with old statistics it would read and sort a whole partition for each call."""
    await tx.execute("SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off")


async def prune_ids(
    tx: Tx, partition_no: int, after: tuple[int, int] | None, floor: int, most: int
) -> tuple[int, tuple[int, int] | None]:
    """Removes ids of messages before the floor from the next ids after a hash and position. Returns how many were
    looked at, and the last of them; None if there are no more."""
    row = await tx.fetchrow(SQL["prune_ids"], partition_no, *(after or (_LOWEST, _LOWEST)), floor, most)
    if row is None:
        return 0, None
    return row["count"], (row["hash"], row["position"]) if row["count"] == most else None


async def prune_traces(tx: Tx, partition_no: int, floor: int, most: int) -> int:
    return _count(await tx.execute(SQL["prune_traces"], partition_no, floor, most))


async def pruned(tx: Tx, partition_no: int, floor: int) -> None:
    await tx.execute(SQL["pruned"], partition_no, floor)


async def merge_history(tx: Tx, before: datetime, most: int) -> int:
    return int(await tx.fetchval(SQL["merge_history"], before, most))


async def forget(tx: Tx, before: datetime, most: int) -> int:
    """Deletes rows of the history of retention, counts of evictions, and consumer groups that waited in vain for a
    queue. Returns how many of the largest of the three."""
    statements = ("forget_history", "forget_evictions", "forget_expected")
    return max([_count(await tx.execute(SQL[name], before, most)) for name in statements])


def _count(done: str) -> int:
    return int(done.rpartition(" ")[2])
