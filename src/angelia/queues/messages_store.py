"""The SQL statements that show single messages, and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "messages.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages a list shows: by names, by status, and by the time of their push."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    status: str | None = None
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Found:
    """Where a message is."""

    partition_no: int
    queue_no: int
    position: int


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """A message that is read without a lease. Its body is encrypted if there is a key id."""

    partition_no: int
    position: int
    id: UUID
    transaction_id: str
    trace_id: str | None
    producer: str | None
    created_at: datetime
    key_id: UUID | None
    body: bytes


async def find(tx: Tx, partition_id: UUID, transaction_id: str) -> Found | None:
    """The newest message of a transaction id: of one that was put back, the copy."""
    row = await tx.fetchrow(SQL["find"], partition_id, transaction_id)
    return None if row is None else record_of(Found, row)


async def page(tx: Tx, chosen: MessageFilter, limit: int, offset: int, now: datetime) -> Sequence[Row]:
    """Messages, newest first, with their status and what consumer groups have done with them."""
    names = (chosen.queue, chosen.partition, chosen.namespace, chosen.task, chosen.status)
    return await tx.fetch(SQL["page"], now, *names, chosen.since, chosen.until, limit, offset)


async def mode(tx: Tx, chosen: MessageFilter) -> tuple[bool, int]:
    """Whether the queues are read by consumers without a group, and by how many named consumer groups."""
    row = await tx.fetchrow(SQL["mode"], chosen.queue, chosen.namespace, chosen.task)
    assert row is not None, "counts without groups are one row"
    return row["has_queue_mode"], row["groups"]


async def detail(tx: Tx, found: Found, now: datetime) -> Row | None:
    return await tx.fetchrow(SQL["detail"], now, found.partition_no, found.position)


async def readers(tx: Tx, found: Found, now: datetime) -> Sequence[Row]:
    """What each consumer group has done with a message."""
    return await tx.fetch(SQL["readers"], now, found.partition_no, found.position)


async def open_for(tx: Tx, found: Found) -> list[tuple[int, str]]:
    """Numbers and names of the consumer groups that have still to consume a message."""
    rows = await tx.fetch(SQL["open_for"], found.partition_no, found.position)
    return [(row["group_no"], row["name"]) for row in rows]


async def remove(tx: Tx, found: Found, transaction_id: str) -> None:
    await tx.execute(SQL["remove"], found.partition_no, found.position, transaction_id)


async def after(
    tx: Tx, queue_no: int, partition: str | None, since: datetime, seen: dict[int, int], limit: int, most_bytes: int
) -> list[ReadMessage]:
    """Messages in the order of their times: from a time on, and in some partitions from a position on."""
    numbers = list(seen), list(seen.values())
    rows = await tx.fetch(SQL["after"], queue_no, partition, since, *numbers, limit, most_bytes)
    return [record_of(ReadMessage, row) for row in rows]


async def any_after(tx: Tx, partition_nos: Sequence[int], since: datetime, seen: dict[int, int]) -> bool:
    """Whether these partitions may have messages that `after` would return."""
    positions = [seen.get(number, 0) for number in partition_nos]
    return bool(await tx.fetchval(SQL["any_after"], partition_nos, positions, since))


async def one_snapshot(tx: Tx) -> None:
    """Lets all statements of a transaction see the same; it only reads."""
    await tx.execute(SQL["one_snapshot"])


async def newest(tx: Tx, queue_no: int, partition: str | None, limit: int, most_bytes: int) -> list[ReadMessage]:
    rows = await tx.fetch(SQL["newest"], queue_no, partition, limit, most_bytes)
    return [record_of(ReadMessage, row) for row in rows]


async def ends(
    tx: Tx, queue_no: int, partition: str | None, since: datetime, most: int
) -> list[tuple[int, int, datetime]]:
    """Numbers, ends and newest times of the partitions that have messages since a time."""
    rows = await tx.fetch(SQL["ends"], queue_no, partition, since, most)
    return [(row["partition_no"], row["end_position"], row["created_at"]) for row in rows]
