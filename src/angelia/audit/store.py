"""Every SQL statement of the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from angelia.audit.model import ChainEntry, Checkpoint, Event, EventQuery, Floor, StoredEvent
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, statements

SQL = statements(__file__)


@dataclass(frozen=True, slots=True)
class SealerState:
    """The last entry of the chain, and the transaction from which the sealer goes on."""

    next_xid: int
    position: int
    entry_hash: bytes


@dataclass(frozen=True, slots=True)
class Sealable:
    """An event as the sealer needs it."""

    event_id: UUID
    occurred_at: datetime
    event_hash: bytes
    xid: int


async def record(tx: Tx, events: Sequence[Event]) -> None:
    rows = [(*msgspec.structs.astuple(event), event.hash()) for event in events]
    await tx.execute(SQL["record"], *columns(rows, 9))


async def sealer(tx: Tx) -> SealerState:
    """The sealer's state, locked until the transaction ends."""
    row = await tx.fetchrow(SQL["sealer"])
    assert row is not None, "migration 0002 inserts the row"
    return SealerState(int(row["next_xid"]), row["position"], row["entry_hash"])


async def horizon(tx: Tx) -> tuple[int, int]:
    """The transaction below which all have ended, and the one that begins next."""
    row = await tx.fetchrow(SQL["horizon"])
    assert row is not None
    return int(row["ended_below"]), int(row["next_xid"])


async def sealable(tx: Tx, from_xid: int, below_xid: int, limit: int) -> list[Sealable]:
    rows = await tx.fetch(SQL["sealable"], str(from_xid), str(below_xid), limit)
    return [Sealable(r["event_id"], r["occurred_at"], r["event_hash"], int(r["xid"])) for r in rows]


async def append_chain(tx: Tx, entries: Sequence[tuple[int, UUID, datetime, bytes]]) -> None:
    await tx.execute(SQL["append_chain"], *columns(entries, 4))


async def advance(tx: Tx, to: SealerState) -> None:
    await tx.execute(SQL["advance"], str(to.next_xid), to.position, to.entry_hash)


async def add_checkpoint(tx: Tx, made: Checkpoint) -> None:
    head, signature = bytes.fromhex(made.entry_hash), bytes.fromhex(made.signature)
    await tx.execute(SQL["add_checkpoint"], made.position, head, made.node_key_id, made.signed_at, signature)


async def thin_checkpoints(tx: Tx, position: int, node_key_id: UUID, entries: int, age: timedelta) -> None:
    await tx.execute(SQL["thin_checkpoints"], position, node_key_id, entries, age)


async def first_broken(tx: Tx, after: int, head: bytes, upto: int) -> int | None:
    """The first entry behind `after`, up to `upto`, that is missing or does not follow from the one before it."""
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
    return [Checkpoint(**row) for row in await tx.fetch(SQL["checkpoints"], after, limit)]


async def checkpoint(tx: Tx, position: int) -> Checkpoint | None:
    row = await tx.fetchrow(SQL["checkpoint"], position)
    return None if row is None else Checkpoint(**row)


async def strays(tx: Tx, since: datetime | None, until: datetime | None, limit: int) -> list[StoredEvent]:
    return [_event(row) for row in await tx.fetch(SQL["strays"], limit, since, until)]


async def tail(tx: Tx, limit: int) -> list[StoredEvent]:
    return [_event(row) for row in await tx.fetch(SQL["tail"], limit)]


async def progress(tx: Tx, signed_to: int) -> dict[str, Any]:
    # Two statements: with the transaction as a parameter the planner uses the index, with a subquery it reads all rows.
    last_sealed = await tx.fetchval(SQL["last_sealed"])
    row = await tx.fetchrow(SQL["progress"], signed_to, last_sealed or "0")
    assert row is not None
    return dict(row)


async def events(tx: Tx, query: EventQuery, before: tuple[datetime, UUID] | None) -> list[StoredEvent]:
    by = (query.type, query.actor, query.message_id, query.since, query.until)
    rows = await tx.fetch(SQL["events"], *by, *(before or (None, None)), query.and_one_more)
    return [_event(row) for row in rows]


async def entries_before(tx: Tx, at: datetime, most: int) -> int:
    return int(await tx.fetchval(SQL["entries_before"], at, most))


def _event(row: Row) -> StoredEvent:
    ahead = int(row["xid"]) > _written_by(int(row["written"]), int(row["next_xid"]))
    return msgspec.convert({**row, "ahead": ahead}, StoredEvent)


def _written_by(xmin: int, next_xid: int) -> int:
    """The full id of the transaction that wrote a row: `xmin` has its last 32 bits, and it is below the next one."""
    written = next_xid >> 32 << 32 | xmin
    return written if written < next_xid else written - (1 << 32)
