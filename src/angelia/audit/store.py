"""Every SQL statement of the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from angelia.audit.model import ChainEntry, Checkpoint, Event, Floor, StoredEvent
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import statements

SQL = statements(__file__)


@dataclass(frozen=True, slots=True)
class Sealer:
    """Where the chain ends and from which transaction it goes on."""

    next_xid: int
    position: int
    entry_hash: bytes


@dataclass(frozen=True, slots=True)
class Sealable:
    """What the sealer needs to know of one event."""

    event_id: UUID
    occurred_at: datetime
    event_hash: bytes
    xid: int


async def record(tx: Tx, events: Sequence[Event]) -> None:
    columns = [
        (
            e.event_id,
            e.occurred_at,
            e.event_type,
            e.actor,
            e.object,
            e.message_id,
            e.replay_key,
            e.detail,
            e.hash(),
        )
        for e in events
    ]
    await tx.execute(SQL["record"], *(list(column) for column in zip(*columns, strict=True)))


async def sealer(tx: Tx) -> Sealer:
    row = await tx.fetchrow(SQL["sealer"])
    assert row is not None, "migration 0002 inserts the row"
    return Sealer(int(row["next_xid"]), row["position"], row["entry_hash"])


async def horizon(tx: Tx) -> tuple[int, int]:
    """The transaction below which all have ended, and the one that is to begin next."""
    row = await tx.fetchrow(SQL["horizon"])
    assert row is not None
    return int(row["ended_below"]), int(row["next_xid"])


async def sealable(tx: Tx, from_xid: int, below_xid: int, limit: int) -> list[Sealable]:
    rows = await tx.fetch(SQL["sealable"], str(from_xid), str(below_xid), limit)
    return [Sealable(r["event_id"], r["occurred_at"], r["event_hash"], int(r["xid"])) for r in rows]


async def append_chain(tx: Tx, entries: Sequence[tuple[int, UUID, datetime, bytes]]) -> None:
    await tx.execute(SQL["append_chain"], *(list(column) for column in zip(*entries, strict=True)))


async def advance(tx: Tx, to: Sealer) -> None:
    await tx.execute(SQL["advance"], str(to.next_xid), to.position, to.entry_hash)


async def add_checkpoint(tx: Tx, made: Checkpoint) -> None:
    head, signature = bytes.fromhex(made.entry_hash), bytes.fromhex(made.signature)
    await tx.execute(SQL["add_checkpoint"], made.position, head, made.node_key_id, made.signed_at, signature)


async def thin_checkpoints(tx: Tx, position: int, node_key_id: UUID, entries: int, age: timedelta) -> None:
    await tx.execute(SQL["thin_checkpoints"], position, node_key_id, entries, age)


async def first_broken(tx: Tx, after: int, head: bytes, upto: int) -> int | None:
    """The first entry behind one, up to another, that is not there or does not follow from the one before it."""
    found: int | None = await tx.fetchval(SQL["first_broken"], after, head, upto)
    return found


async def entry_hash(tx: Tx, position: int) -> bytes | None:
    found: bytes | None = await tx.fetchval(SQL["entry_hash"], position)
    return found


async def sealed_to(tx: Tx) -> int:
    return int(await tx.fetchval(SQL["sealed_to"]))


async def floor(tx: Tx) -> Floor:
    row = await tx.fetchrow(SQL["floor"])
    assert row is not None
    return Floor(row["position"], row["entry_hash"].hex())


async def chain(tx: Tx, after: int, limit: int) -> list[ChainEntry]:
    return [
        ChainEntry(
            position=row["position"],
            event_id=row["chained_id"],
            entry_hash=row["entry_hash"].hex(),
            event=None if row["event_id"] is None else _event(row),
        )
        for row in await tx.fetch(SQL["chain"], after, limit)
    ]


async def checkpoints(tx: Tx, after: int, limit: int) -> list[Checkpoint]:
    return [_checkpoint(row) for row in await tx.fetch(SQL["checkpoints"], after, limit)]


async def checkpoint(tx: Tx, position: int) -> Checkpoint | None:
    row = await tx.fetchrow(SQL["checkpoint"], position)
    return None if row is None else _checkpoint(row)


async def strays(tx: Tx, since: datetime | None, until: datetime | None, limit: int) -> list[StoredEvent]:
    return [_event(row) for row in await tx.fetch(SQL["strays"], limit, since, until)]


async def tail(tx: Tx, limit: int) -> list[StoredEvent]:
    return [_event(row) for row in await tx.fetch(SQL["tail"], limit)]


async def progress(tx: Tx, signed_to: int) -> dict[str, Any]:
    # In two statements: the planner takes the index for a transaction that it knows, and reads all tables for another.
    last_sealed = await tx.fetchval(SQL["last_sealed"])
    row = await tx.fetchrow(SQL["progress"], signed_to, last_sealed or "0")
    assert row is not None
    return dict(row)


async def events(
    tx: Tx,
    *,
    event_type: str | None,
    actor: str | None,
    message_id: UUID | None,
    since: datetime | None,
    until: datetime | None,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> list[StoredEvent]:
    at, event_id = before or (None, None)
    rows = await tx.fetch(SQL["events"], event_type, actor, message_id, since, until, at, event_id, limit)
    return [_event(row) for row in rows]


def _event(row: Row) -> StoredEvent:
    return StoredEvent(
        event_id=row["event_id"],
        occurred_at=row["occurred_at"],
        event_type=row["event_type"],
        actor=row["actor_nhi"],
        object=row["object_nhi"],
        message_id=row["message_id"],
        replay_key=None if row["replay_key"] is None else row["replay_key"].hex(),
        detail=row["detail"],
        event_hash=row["event_hash"].hex(),
        redacted_at=row["redacted_at"],
        position=row["position"],
        ahead=int(row["xid"]) > _written_by(int(row["written"]), int(row["next_xid"])),
    )


def _written_by(xmin: int, next_xid: int) -> int:
    """The transaction that wrote a row: PostgreSQL keeps its last 32 bits, and all that ever ran are below the next."""
    written = next_xid >> 32 << 32 | xmin
    return written if written < next_xid else written - (1 << 32)


def _checkpoint(row: Row) -> Checkpoint:
    return Checkpoint(
        position=row["position"],
        entry_hash=row["entry_hash"].hex(),
        node_key_id=row["node_key_id"],
        signed_at=row["signed_at"],
        signature=row["signature"].hex(),
    )
