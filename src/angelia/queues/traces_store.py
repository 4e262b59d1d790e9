"""The SQL statements about traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "traces.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """What a consumer noted about a message. Data and the message's body are encrypted if they have a key id."""

    trace_id: UUID
    partition_no: int
    position: int
    transaction_id: str
    group_name: str
    worker: str
    event_type: str
    names: Sequence[str]
    key_id: UUID | None
    data: bytes
    created_at: datetime
    message_id: UUID | None = None
    message_key_id: UUID | None = None
    message_body: bytes | None = None


@dataclass(frozen=True, slots=True)
class TraceNameRow:
    """A name of traces: how many there are, about how many messages, and when the last was noted."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: datetime


async def add(tx: Tx, queue_no: int, one: TraceRow) -> None:
    await tx.execute(
        SQL["add"],
        one.trace_id,
        queue_no,
        one.partition_no,
        one.position,
        one.transaction_id,
        one.group_name,
        one.worker,
        one.event_type,
        one.names,
        one.key_id,
        one.data,
        one.created_at,
    )


async def of_message(tx: Tx, partition_id: UUID, transaction_id: str) -> list[TraceRow]:
    """What was noted about a message, in order."""
    return [record_of(TraceRow, row) for row in await tx.fetch(SQL["of_message"], partition_id, transaction_id)]


async def named(tx: Tx, name: str, limit: int, offset: int) -> list[TraceRow]:
    """Traces of a name, newest first, each with the payload of its message."""
    return [record_of(TraceRow, row) for row in await tx.fetch(SQL["named"], name, limit, offset)]


async def count_named(tx: Tx, name: str) -> int:
    return int(await tx.fetchval(SQL["count_named"], name))


async def names(tx: Tx, limit: int, offset: int) -> list[TraceNameRow]:
    """The names of traces, those that were used last first."""
    return [record_of(TraceNameRow, row) for row in await tx.fetch(SQL["names"], limit, offset)]


async def count_names(tx: Tx) -> int:
    return int(await tx.fetchval(SQL["count_names"]))
