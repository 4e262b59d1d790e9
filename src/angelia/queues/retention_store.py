"""The SQL statements of the retention of queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "retention.sql")
LOOKED_AT = 10  # so many partitions are looked at for each one that may be worked on


@dataclass(frozen=True, slots=True)
class DuePartitions:
    """Partitions to work on, in the order of their numbers. Those up to `last` were looked at; None if there are no
    more."""

    partition_nos: list[int]
    last: int | None


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed: messages (`retention`, `completed`), dead letters (`failed`), or the partition."""

    queue_name: str
    partition_name: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class RetentionEntry:
    """A row of the history of retention. After a day, the runs of a day are one row."""

    entry_no: int
    at: datetime
    queue_name: str
    partition_name: str
    kind: str
    count: int
    runs: int


async def page(tx: Tx, after: int, most: int) -> DuePartitions:
    """The next partitions that retention is about."""
    row = await tx.fetchrow(SQL["page"], after, most * LOOKED_AT, most)
    assert row is not None, "the statement returns one row"
    numbers: list[int] = row["partition_nos"]
    if len(numbers) == most:
        return DuePartitions(numbers, numbers[-1])
    return DuePartitions(numbers, row["last"] if row["count"] == most * LOOKED_AT else None)


async def raise_floors(
    tx: Tx, partition_nos: Sequence[int], now: datetime, most_messages: int
) -> tuple[dict[int, int], list[Removal]]:
    """Raises the floors of partitions. Returns by how many messages each was raised, and what was removed."""
    rows = await tx.fetch(SQL["raise_floors"], partition_nos, now, most_messages)
    removals = [
        Removal(row["queue_name"], row["partition_name"], row["kind"], row["count"])
        for row in rows
        if row["kind"] is not None
    ]
    return {row["partition_no"]: row["passed"] for row in rows}, removals


async def trim_cursors(tx: Tx, partition_nos: Sequence[int], larger_than: int) -> int:
    """Forgets what was settled before the floor in cursors larger than so many bytes. Returns how many they were."""
    rows = await tx.fetch(SQL["large_cursors"], partition_nos, larger_than)
    if rows:
        # A statement of its own: it sees what was committed before the locks were taken.
        await tx.execute(SQL["trim_cursors"], [row["partition_no"] for row in rows], [row["group_no"] for row in rows])
    return len(rows)


async def remove_letters(
    tx: Tx, partition_nos: Sequence[int], now: datetime, most: int
) -> tuple[list[Removal], list[Removal]]:
    """Removes old dead letters. Returns what was removed, and those of it that should have been archived before."""
    rows = await tx.fetch(SQL["remove_letters"], partition_nos, now, most)
    unarchived = [record_of(Removal, row) for row in rows if row["unarchived"]]
    return [record_of(Removal, row) for row in rows], unarchived


async def idle(tx: Tx, partition_nos: Sequence[int], now: datetime) -> list[int]:
    return [row["partition_no"] for row in await tx.fetch(SQL["idle"], partition_nos, now)]


async def delete_idle(tx: Tx, partition_nos: Sequence[int], now: datetime) -> list[Removal]:
    """Deletes those of the partitions that are idle, and that no push is at work on."""
    locked = [row["partition_no"] for row in await tx.fetch(SQL["lock_partitions"], partition_nos)]
    # A statement of its own: it sees every push that was committed before the locks were taken.
    return [record_of(Removal, row) for row in await tx.fetch(SQL["delete_idle"], locked, now)]


async def give_up_archive(tx: Tx, hidden_before: datetime, most: int) -> list[Removal]:
    """Lets messages go that have waited for the archive for too long. Returns them."""
    rows = await tx.fetch(SQL["give_up_archive"], hidden_before, most)
    return [Removal(row["queue_name"], row["partition_name"], "unarchived", row["count"]) for row in rows]


async def due_for_archive(tx: Tx, hidden_before: datetime) -> bool:
    return bool(await tx.fetchval(SQL["due_for_archive"], hidden_before))


async def history(
    tx: Tx, queue: str | None, since: datetime | None, until: datetime | None, limit: int, offset: int
) -> list[RetentionEntry]:
    rows = await tx.fetch(SQL["history"], queue, since, until, limit, offset)
    return [record_of(RetentionEntry, row) for row in rows]
