"""The SQL statements about the daily tables of chunks, whose names are computed from days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from angelia.stores.ledger import Tx
from angelia.stores.partitions import Daily
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "days.sql")
DAILY = Daily("queue_chunks", "stored_at")


@dataclass(frozen=True, slots=True)
class OldDay:
    """How far the work on an old day is: partitions up to `partition_no` were looked at, or copied."""

    day: date
    copying: bool = False
    partition_no: int = 0
    survivors: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Looked:
    """How many chunks the next partitions of a day need; `last` is the last of them, None if there are no more."""

    partitions: int
    last: int | None
    survivors: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Chunks that were moved, of those that were found; `last` is the last partition that was looked at."""

    chunks: int
    found: int
    bytes: int
    last: int | None


async def lock(tx: Tx) -> None:
    """Holds others off who take chunks out of the tables of days, until the transaction ends."""
    await tx.execute(SQL["lock"])


async def days(tx: Tx) -> list[date]:
    """The days that have a table, oldest first."""
    rows = await tx.fetch(SQL["tables"])
    return [datetime.strptime(row["day"], "%Y%m%d").replace(tzinfo=UTC).date() for row in rows]


async def note(tx: Tx, old: Sequence[date], now: datetime) -> None:
    await tx.execute(SQL["note"], old, now)


async def due(tx: Tx, now: datetime) -> OldDay | None:
    row = await tx.fetchrow(SQL["due"], now)
    return None if row is None else record_of(OldDay, row)


async def update(tx: Tx, state: OldDay, look_at: datetime) -> None:
    await tx.execute(
        SQL["update"],
        state.day,
        look_at,
        state.copying,
        state.partition_no,
        state.survivors,
        state.copied_bytes,
    )


async def size(tx: Tx, day: date) -> tuple[int, int]:
    """How many chunks a day's table has, by its statistics, and its bytes on disk."""
    row = await tx.fetchrow(SQL["size"], DAILY.partition(day))
    if row is not None and row["chunks"] < 0:
        await tx.execute(SQL["count_anew"].format(table=DAILY.partition(day)))
        row = await tx.fetchrow(SQL["size"], DAILY.partition(day))
    assert row is not None, "the table is there"
    return row["chunks"], row["bytes"]


async def look(tx: Tx, day: date, after: int, partitions: int, most: int) -> Looked:
    row = await tx.fetchrow(SQL["look"].format(table=DAILY.partition(day)), after, partitions, most)
    assert row is not None, "the statement returns one row"
    return record_of(Looked, row)


async def copy(tx: Tx, day: date, later: date, after: int, partitions: int, most: int, most_bytes: int) -> Copied:
    """Moves chunks of a day that are needed to a later day."""
    statement = SQL["copy"].format(table=DAILY.partition(day), later=DAILY.partition(later))
    midnight = datetime.combine(later, time(), UTC)
    row = await tx.fetchrow(statement, after, partitions, most, most_bytes, midnight)
    assert row is not None, "the statement returns one row"
    return record_of(Copied, row)


async def drop(tx: Tx, day: date) -> bool:
    """Drops a day's table, unless a partition needs a chunk of it. Returns whether it is gone."""
    table = DAILY.partition(day)
    await tx.execute(SQL["hold"].format(table=table))
    if await tx.fetchval(SQL["is_needed"].format(table=table), 0, (1 << 31) - 1):
        return False
    await tx.execute(SQL["drop"].format(table=table))
    await tx.execute(SQL["forget"], day)
    return True


async def prune_default(tx: Tx, stored_before: datetime, most: int) -> int:
    """Deletes chunks from the default partition that no partition needs. Returns how many."""
    done = await tx.execute(SQL["prune_default"], stored_before, most)
    return int(done.rpartition(" ")[2])
