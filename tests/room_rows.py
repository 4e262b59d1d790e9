"""Fills a ledger with rooms and their messages, and reads the messages of ledger and archive."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
from deltalake import DeltaTable

from angelia.envelope.times import unix_ms
from angelia.pipeline.lake.tables import ROOMS
from angelia.rooms import dms_store, store, word_index_store
from angelia.rooms.model import MessageId, NewDirectMessage, NewMessage, Room
from angelia.rooms.words import found_by
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.objects import Objects
from receipt_rows import NOW

KEPT = timedelta(days=1)
EXPIRED = NOW - KEPT - timedelta(hours=2)
_noise = itertools.count(1)


@dataclass(frozen=True)
class HeldMessages:
    """The messages in the ledger, how many of them wait for the index of words, and the messages in the archive."""

    ledger: list[str]
    unpacked: int
    archive: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def _transaction(database_url: str) -> AsyncIterator[Tx]:
    ledger = await Ledger.open(database_url, 1)
    try:
        async with ledger.transaction() as tx:
            yield tx
    finally:
        await ledger.close()


async def agent(database_url: str, handle: str) -> UUID:
    """Inserts an agent. Returns its id."""
    connection = await asyncpg.connect(database_url)
    made: UUID = await connection.fetchval(
        """INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)
           VALUES (gen_random_uuid(), $1, sha256(convert_to($1::varchar, 'UTF8')), gen_random_uuid(), '', '', false,
             now())
           ON CONFLICT (handle) DO UPDATE SET name = '' RETURNING id""",
        handle,
    )
    await connection.close()
    return made


async def made(
    database_url: str, name: str, *, archive: bool = True, private: bool = False, at: datetime = EXPIRED
) -> Room:
    """Inserts a room."""
    creator = await agent(database_url, "creator")
    key = b"hash" if private else None
    async with _transaction(database_url) as tx:
        room = await store.create(tx, uuid.uuid4(), name, creator, at, key, key)
        await store.change(tx, room.room_id, None, archive)
    return room


async def posted(
    database_url: str,
    room: Room,
    bodies: Sequence[str],
    at: datetime = EXPIRED,
    *,
    author: UUID | None = None,
    parent: MessageId | None = None,
    depth: int = 0,
) -> list[MessageId]:
    """Posts messages at a time, a millisecond apart. Returns their ids."""
    author = author or await agent(database_url, "author")
    new = [
        NewMessage(
            room_id=room.room_id,
            at_ms=unix_ms(at),
            noise=hashlib.sha256(b"%d" % next(_noise)).digest()[:10],
            author=author,
            body=body,
            parent=None if parent is None else parent.packed,
            depth=depth,
            words=[] if room.is_private else found_by(body, room.room_id),
            proof={"scheme": "aicq-v1", "signature": f"proof of {body}"},
        )
        for body in bodies
    ]
    async with _transaction(database_url) as tx:
        times = await store.post(tx, new)
    return [MessageId(ts, one.noise) for ts, one in zip(times, new, strict=True)]


async def deleted(database_url: str, room: Room, message: MessageId, by: UUID, at: datetime) -> None:
    """Deletes a message, which leaves a note."""
    async with _transaction(database_url) as tx:
        assert await store.delete(tx, room, message, b"0123456789", by, unix_ms(at)) is not None


async def packed(database_url: str) -> None:
    """Packs all messages into the index of words."""
    async with _transaction(database_url) as tx:
        for block, _ in await word_index_store.waiting(tx):
            await word_index_store.pack(tx, block)


async def sent(database_url: str, sender: UUID, recipient: UUID, body: str) -> None:
    """Sends a direct message."""
    new = NewDirectMessage(
        recipient=recipient, sender=sender, at_ms=unix_ms(NOW), noise=uuid.uuid4().bytes[:10], body=body,
        proof={"scheme": "aicq-v1", "signature": f"proof of {body}"},
    )  # fmt: skip
    async with _transaction(database_url) as tx:
        await dms_store.make_inbox(tx, recipient)
        assert None not in await dms_store.send(tx, [new])


async def execute(database_url: str, statement: str, *values: object) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(statement, *values)
    finally:
        await connection.close()


async def held_messages(database_url: str, objects: Objects) -> HeldMessages:
    connection = await asyncpg.connect(database_url)
    here = await connection.fetch("SELECT ts, noise FROM room_entries WHERE body IS NOT NULL")
    unpacked = await connection.fetchval("SELECT count(*) FROM room_unpacked")
    await connection.close()
    uri = objects.table(ROOMS.name)
    rows = DeltaTable(uri).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(uri) else []
    ledger = sorted(str(MessageId(row["ts"], row["noise"])) for row in here)
    return HeldMessages(ledger, unpacked, sorted(row["message_id"] for row in rows), rows)
