"""The SQL statements of maintenance: its modes, and the messages that wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.stores.ledger import Tx
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__, "maintenance.sql")


@dataclass(frozen=True, slots=True)
class Modes:
    """Whether pushes are buffered, whether that is about to end, and whether pops are answered with nothing."""

    push_paused: bool
    push_resuming: bool
    pop_paused: bool


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A message that was pushed while pushes were paused. The payload is encrypted if there is a key id."""

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
    """How many messages wait, and how many of others could not be stored when that was tried."""

    pending: int
    failed: int


async def modes(tx: Tx) -> Modes:
    row = await tx.fetchrow(SQL["modes"])
    assert row is not None, "the migration made it"
    return record_of(Modes, row)


async def hold_mode(tx: Tx) -> Modes:
    """The modes; whether pushes are buffered stays as it is until the transaction ends."""
    await tx.execute(SQL["hold_mode"])
    return await modes(tx)


async def lock_mode(tx: Tx) -> Modes:
    """The same for a transaction that changes it."""
    await tx.execute(SQL["lock_mode"])
    return await modes(tx)


async def set_push(tx: Tx, *, paused: bool, resuming: bool) -> None:
    await tx.execute(SQL["set_push"], paused, resuming)


async def set_pop(tx: Tx, *, paused: bool) -> bool:
    """Returns whether that is a change."""
    return await tx.execute(SQL["set_pop"], paused) != "UPDATE 0"


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


async def due(tx: Tx, now: datetime, most: int, most_bytes: int) -> list[BufferedMessage]:
    """Messages that may be stored, in order."""
    return [record_of(BufferedMessage, row) for row in await tx.fetch(SQL["due"], now, most, most_bytes)]


async def present(tx: Tx, numbers: Sequence[int]) -> set[int]:
    """Those of the messages that are still buffered; they stay until the transaction ends."""
    return {row["message_no"] for row in await tx.fetch(SQL["present"], numbers)}


async def any_due(tx: Tx, now: datetime) -> bool:
    return bool(await tx.fetchval(SQL["any_due"], now))


async def done(tx: Tx, numbers: Sequence[int]) -> None:
    await tx.execute(SQL["done"], numbers)


async def hold_back(tx: Tx, refused: Sequence[tuple[str, str, str | None]], until: datetime) -> None:
    """Lets partitions, by the names of queue and partition, wait until a time, and notes the error, if there is one."""
    await tx.execute(SQL["hold_back"], *columns(refused, 3), until)


async def forget_queue(tx: Tx, name: str) -> None:
    await tx.execute(SQL["forget_queue"], name)
