"""The SQL statements of maintenance: its modes, and the messages that it buffered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.queues.model import Partition
from angelia.stores.ledger import Tx
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__, "maintenance.sql")
Place = tuple[str, str]  # the names of a queue and of a partition of it


@dataclass(frozen=True, slots=True)
class Modes:
    """Whether all pushes are buffered, or only those to partitions that have buffered messages left; and whether pops
    are answered with nothing."""

    push_paused: bool
    push_resuming: bool
    pop_paused: bool


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A message that was not stored when it was pushed. If there is a key id, the payload is encrypted, and bound to
    the message id."""

    queue_name: str
    partition_name: str
    message_id: UUID
    transaction_id: str
    trace_id: str | None
    producer: str | None
    key_id: UUID | None
    body: bytes
    message_no: int = 0


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """How many messages wait, and how many of partitions whose messages could not be stored when that was tried."""

    pending: int
    failed: int


async def modes(tx: Tx) -> Modes:
    row = await tx.fetchrow(SQL["modes"])
    assert row is not None, "the migration made it"
    return record_of(Modes, row)


async def hold_mode(tx: Tx) -> Modes:
    """The modes. Those of pushes stay as they are until the transaction ends, and no message leaves the buffer."""
    await tx.execute(SQL["hold_mode"])
    return await modes(tx)


async def lock_mode(tx: Tx) -> Modes:
    """The same for a transaction that changes the modes, or takes messages from the buffer."""
    await tx.execute(SQL["lock_mode"])
    return await modes(tx)


async def pause_pushes(tx: Tx) -> None:
    await tx.execute(SQL["pause_pushes"])


async def take_pushes(tx: Tx) -> None:
    """Has pushes taken, except those to partitions with buffered messages."""
    await tx.execute(SQL["take_pushes"])


async def set_pop(tx: Tx, *, paused: bool) -> bool:
    """Returns whether that is a change."""
    return await tx.execute(SQL["set_pop"], paused) != "UPDATE 0"


async def lock_partitions(tx: Tx, partitions: Sequence[Partition]) -> None:
    """Keeps pushes from partitions until the transaction ends, and their queues from being deleted."""
    await tx.execute(SQL["lock_queues"], [one.queue.queue_no for one in partitions])
    await tx.execute(SQL["lock_partitions"], [one.partition_no for one in partitions])


async def lock_sizes(tx: Tx, partitions: Sequence[Partition]) -> None:
    """Keeps pushes from the queues that have a maximal size. The partitions are locked before."""
    await tx.execute(SQL["lock_sizes"], [one.queue.queue_no for one in partitions])


async def unchanged(tx: Tx, partitions: Sequence[Partition]) -> dict[int, bool]:
    """The numbers of those partitions that exist as they are known here, and whether each has buffered messages."""
    numbers, versions = [one.partition_no for one in partitions], [one.queue.options_version for one in partitions]
    return {row["partition_no"]: row["has_buffered"] for row in await tx.fetch(SQL["unchanged"], numbers, versions)}


async def keep(tx: Tx, messages: Sequence[BufferedMessage], now: datetime) -> None:
    rows = [
        (
            one.queue_name,
            one.partition_name,
            one.message_id,
            one.transaction_id,
            one.trace_id,
            one.producer,
            one.key_id,
            one.body,
        )
        for one in messages
    ]
    await tx.execute(SQL["keep"], *columns(rows, 8), now)


async def counts(tx: Tx) -> BufferCounts:
    row = await tx.fetchrow(SQL["counts"])
    assert row is not None, "counts without groups are one row"
    return record_of(BufferCounts, row)


async def any_buffered(tx: Tx) -> bool:
    return bool(await tx.fetchval(SQL["any_buffered"]))


async def due(tx: Tx, now: datetime, most: int) -> list[Place]:
    """Partitions whose buffered messages may be stored, those that waited longest first."""
    return [(row["queue_name"], row["partition_name"]) for row in await tx.fetch(SQL["due"], now, most)]


async def first_messages(tx: Tx, places: Sequence[Place], most: int, most_bytes: int) -> list[BufferedMessage]:
    """The first messages of partitions, in the order of each."""
    rows = await tx.fetch(SQL["first_messages"], *columns(places, 2), most, most_bytes)
    return [record_of(BufferedMessage, row) for row in rows]


async def release(tx: Tx, places: Sequence[Place]) -> None:
    """Lets pushes to partitions be stored: in this transaction, which holds their locks, and after it in others."""
    await tx.execute(SQL["release"], *columns(places, 2))


async def present(tx: Tx, numbers: Sequence[int]) -> set[int]:
    """Those of the messages that are still buffered; they stay until the transaction ends."""
    return {row["message_no"] for row in await tx.fetch(SQL["present"], numbers)}


async def any_due(tx: Tx, now: datetime) -> bool:
    return bool(await tx.fetchval(SQL["any_due"], now))


async def done(tx: Tx, numbers: Sequence[int]) -> None:
    await tx.execute(SQL["done"], numbers)


async def hold_back(tx: Tx, waiting: Sequence[tuple[str, str, datetime, str | None]]) -> None:
    """Has pushes to partitions buffered, if there are messages left of them: by the names of queue and partition, each
    until a time, and with the error, if there is one."""
    await tx.execute(SQL["hold_back"], *columns(waiting, 4))


async def forget_queue(tx: Tx, name: str) -> None:
    await tx.execute(SQL["forget_queue"], name)
