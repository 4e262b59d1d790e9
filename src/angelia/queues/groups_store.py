"""The SQL statements that move and delete consumer groups, and empty and delete queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "groups.sql")
Cursor = tuple[int, int]  # numbers of the partition and of the consumer group
LetterPlace = tuple[datetime, int]  # when a dead letter failed, and its number
NEWEST_LETTER: LetterPlace = (datetime.max.replace(tzinfo=UTC), 0)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group of a queue, and where it began."""

    queue: str
    group_no: int
    mode: str
    from_at: datetime | None


@dataclass(frozen=True, slots=True)
class CursorMove:
    """What a move of cursors changes: partitions, messages that are delivered again, and messages that are skipped."""

    partitions: int = 0
    again: int = 0
    skipped: int = 0
    position: int | None = None

    def __add__(self, other: CursorMove) -> CursorMove:
        return CursorMove(
            self.partitions + other.partitions, self.again + other.again, self.skipped + other.skipped, other.position
        )


async def groups(tx: Tx, name: str, queue: str | None) -> list[GroupRow]:
    """The consumer groups of a name, of all queues or of one."""
    return [record_of(GroupRow, row) for row in await tx.fetch(SQL["groups"], name, queue)]


async def group_nos(tx: Tx, queue_no: int) -> list[int]:
    return [row["group_no"] for row in await tx.fetch(SQL["group_nos"], queue_no)]


async def partition_page(tx: Tx, queue_no: int, after: str, limit: int) -> list[tuple[int, str]]:
    """Numbers and names of the partitions of a queue that come next by name."""
    return [(row["partition_no"], row["name"]) for row in await tx.fetch(SQL["partition_page"], queue_no, after, limit)]


async def partition_named(tx: Tx, queue_no: int, name: str) -> list[tuple[int, str]]:
    """The one partition of a name, if there is one."""
    return [(row["partition_no"], row["name"]) for row in await tx.fetch(SQL["partition_named"], queue_no, name)]


async def lock_cursors(tx: Tx, cursors: Sequence[Cursor]) -> None:
    """Keeps pops and acknowledgments from these cursors until the transaction ends."""
    await tx.fetchval(SQL["lock_cursors"], *_columns(cursors))


async def lock_partitions(tx: Tx, partition_nos: Sequence[int]) -> None:
    """Keeps pushes from these partitions until the transaction ends. Cursors are locked before."""
    await tx.fetchval(SQL["lock_partitions"], partition_nos)


async def count_moves(tx: Tx, partition_nos: Sequence[int], group_no: int, to: datetime | None) -> CursorMove:
    """What a move of a consumer group to a time, or to the end, would change."""
    row = await tx.fetchrow(SQL["count_moves"], partition_nos, group_no, to, False)
    assert row is not None, "counts without groups are one row"
    return record_of(CursorMove, row)


async def move_cursors(
    tx: Tx,
    partition_nos: Sequence[int],
    group_no: int,
    to: datetime | None,
    now: datetime,
    *,
    only_unread: bool = False,
) -> CursorMove:
    """Moves a consumer group to the first message after a time, or to the end, and ends its leases. The cursors are
    locked."""
    row = await tx.fetchrow(SQL["move_cursors"], partition_nos, group_no, to, only_unread, now)
    assert row is not None, "counts without groups are one row"
    return record_of(CursorMove, row)


async def set_subscription(tx: Tx, group_no: int, mode: str, from_at: datetime | None) -> None:
    await tx.execute(SQL["set_subscription"], group_no, mode, from_at)


async def delete_letters(
    tx: Tx, queue_no: int, group_no: int, before: LetterPlace, most: int
) -> tuple[int, LetterPlace | None]:
    """Looks at so many dead letters of a queue, newest first, and deletes those of a consumer group. Returns how many
    these were, and where to go on, if there may be more."""
    row = await tx.fetchrow(SQL["delete_letters"], queue_no, group_no, *before, most)
    assert row is not None, "counts without groups are one row"
    return row["deleted"], None if row["letter_no"] is None else (row["failed_at"], row["letter_no"])


async def delete_group(tx: Tx, group_no: int) -> None:
    """Deletes a consumer group. Its cursors are left."""
    await tx.execute(SQL["delete_group"], group_no)


async def forget_cursors(tx: Tx, partition_nos: Sequence[int], group_no: int) -> int:
    """Deletes cursors, which are locked. Returns in how many of the partitions there were any."""
    return int(await tx.fetchval(SQL["forget_cursors"], partition_nos, group_no))


async def clear(tx: Tx, partition_nos: Sequence[int]) -> int:
    """Hides all messages of partitions that are locked, and returns how many."""
    return int(await tx.fetchval(SQL["clear"], partition_nos))


async def behind_floor(tx: Tx, partition_nos: Sequence[int], after: Cursor, most: int) -> list[Cursor]:
    """Cursors in partitions that lie before the floor, the next so many after one."""
    rows = await tx.fetch(SQL["behind_floor"], partition_nos, *after, most)
    return [(row["partition_no"], row["group_no"]) for row in rows]


async def move_to_floor(tx: Tx, cursors: Sequence[Cursor], now: datetime) -> None:
    """Moves cursors, which are locked, to the floor, if they lie before it, and ends their leases."""
    await tx.execute(SQL["move_to_floor"], *_columns(cursors), now)


async def delete_queue(tx: Tx, queue_no: int) -> bool:
    """Deletes a queue with its partitions and consumer groups. Returns whether it was there."""
    await tx.execute(SQL["lock_queue"], queue_no)
    return await tx.execute(SQL["delete_queue"], queue_no) != "DELETE 0"


def _columns(cursors: Sequence[Cursor]) -> tuple[list[int], list[int]]:
    return [partition_no for partition_no, _ in cursors], [group_no for _, group_no in cursors]
