"""Every SQL statement about rooms and their messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.rooms.model import ARCHIVE_WAIT, MessageId, NewMessage, Room, RoomDetails, RoomEntry
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__)
_ARCHIVE_SECONDS = int(ARCHIVE_WAIT.total_seconds())
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class PublicRoom:
    """A room in the list of public ones."""

    room_id: UUID
    name: str
    message_count: int
    last_active: datetime


async def create(
    tx: Tx, room_id: UUID, name: str, creator: UUID, now: datetime, salt: bytes | None, key_hash: bytes | None
) -> Room:
    row = await tx.fetchrow(SQL["create"], room_id, name, key_hash is not None, salt, key_hash, creator, now)
    assert row is not None, "RETURNING gives the new row"
    return record_of(Room, row)


async def room(tx: Tx, room_id: UUID) -> Room | None:
    row = await tx.fetchrow(SQL["room"], room_id)
    return None if row is None else record_of(Room, row)


async def public_rooms(tx: Tx, limit: int, offset: int) -> list[PublicRoom]:
    """The public rooms, the most recently active first."""
    return [record_of(PublicRoom, row) for row in await tx.fetch(SQL["public_rooms"], limit, offset)]


async def count_public(tx: Tx) -> int:
    return int(await tx.fetchval(SQL["count_public"]))


async def details(tx: Tx, room_id: UUID) -> RoomDetails | None:
    row = await tx.fetchrow(SQL["details"], room_id)
    return None if row is None else record_of(RoomDetails, row)


async def listed(tx: Tx, name: str | None, after: tuple[datetime, UUID] | None, limit: int) -> list[RoomDetails]:
    at, room_id = after or (None, None)
    return [record_of(RoomDetails, row) for row in await tx.fetch(SQL["listed"], name, at, room_id, limit)]


async def change(tx: Tx, room_id: UUID, retention_seconds: int | None, archive: bool | None) -> RoomDetails:
    row = await tx.fetchrow(SQL["change"], room_id, retention_seconds, archive)
    assert row is not None, "rooms are never deleted"
    return record_of(RoomDetails, row)


async def post(tx: Tx, messages: Sequence[NewMessage]) -> list[int]:
    """Stores messages of any rooms, and returns the time of each."""
    values = [
        (one.room_id, one.at_ms, one.noise, one.author, one.body, one.parent, one.depth, one.proof) for one in messages
    ]
    words = [(n, word) for n, one in enumerate(messages, 1) for word in one.words]
    rows = await tx.fetch(SQL["post"], *columns(values, 8), *columns(words, 2))
    return [row["ts"] for row in rows]


async def page(tx: Tx, room_id: UUID, now_ms: int, before: int, limit: int) -> list[RoomEntry]:
    """The messages before a time that have not expired, the newest first."""
    return _entries(await tx.fetch(SQL["page"], room_id, now_ms, before, limit))


async def after(tx: Tx, room_id: UUID, now_ms: int, ts: int, limit: int) -> list[RoomEntry]:
    """The entries after a time that have not expired, the oldest first."""
    return _entries(await tx.fetch(SQL["after"], room_id, now_ms, ts, limit))


async def newest(tx: Tx, room_id: UUID) -> int:
    return int(await tx.fetchval(SQL["newest"], room_id))


async def message(tx: Tx, room_id: UUID, now_ms: int, id: MessageId) -> RoomEntry | None:
    row = await tx.fetchrow(SQL["message"], room_id, now_ms, *id)
    return None if row is None else record_of(RoomEntry, row)


async def thread(tx: Tx, room_id: UUID, now_ms: int, id: MessageId, limit: int) -> list[RoomEntry]:
    """A message and the replies under it in the order of a tree."""
    return _entries(await tx.fetch(SQL["thread"], room_id, now_ms, *id, limit))


async def delete(tx: Tx, room: Room, id: MessageId, noise: bytes, by: UUID, now_ms: int) -> MessageId | None:
    """Deletes a message. Returns the id of the note about it; None if there was no such message."""
    row = await tx.fetchrow(SQL["delete"], room.room_id, *id, now_ms, noise, by, id.packed)
    if row is None:
        return None
    await _forget_unpacked(tx, [row["place"]])
    return MessageId(row["ts"], noise)


@dataclass(frozen=True, slots=True)
class DueRoom:
    """A room whose oldest entry may be removed."""

    room_id: UUID
    retention_seconds: int
    archive: bool

    @property
    def _kept_ms(self) -> int:
        return (self.retention_seconds + (_ARCHIVE_SECONDS if self.archive else 0)) * 1000

    @property
    def _whole_days(self) -> bool:
        """Whether a day is removed when all of it has expired: a run of the pipeline on the next day then sees it
        whole. Where less than a day is kept, entries go as they expire."""
        return self.retention_seconds * 1000 >= _DAY_MS and not self.archive

    def until(self, now_ms: int) -> int:
        """Entries of this time and before may be removed."""
        last = now_ms - self._kept_ms
        return last - last % _DAY_MS - 1 if self._whole_days else last

    def removable_at(self, ts: int) -> int:
        """When an entry may be removed."""
        return (ts - ts % _DAY_MS + _DAY_MS if self._whole_days else ts) + self._kept_ms


async def due_rooms(tx: Tx, now_ms: int, limit: int) -> list[DueRoom]:
    return [record_of(DueRoom, row) for row in await tx.fetch(SQL["due_rooms"], now_ms, limit)]


async def sweep(tx: Tx, room: DueRoom, now_ms: int, limit: int) -> tuple[int, int]:
    """Removes the oldest expired entries of a room. Returns how many entries, and how many of them were messages."""
    gone = await tx.fetch(SQL["sweep"], room.room_id, room.until(now_ms), limit)
    await _forget_unpacked(tx, [row["place"] for row in gone])
    oldest = await tx.fetchval(SQL["oldest"], room.room_id)
    await tx.execute(SQL["swept"], room.room_id, None if oldest is None else room.removable_at(oldest))
    return len(gone), sum(row["message"] for row in gone)


async def totals(tx: Tx) -> Row:
    row = await tx.fetchrow(SQL["totals"])
    assert row is not None, "an aggregate has one row"
    return row


async def top(tx: Tx, limit: int) -> Sequence[Row]:
    return await tx.fetch(SQL["top"], limit)


async def _forget_unpacked(tx: Tx, places: Iterable[int | None]) -> None:
    """Takes messages out of the index. Where they are in a part of it, their place is empty from now on."""
    if gone := [place for place in places if place is not None]:
        await tx.execute(SQL["forget_unpacked"], gone)


def _entries(rows: Sequence[Row]) -> list[RoomEntry]:
    return [record_of(RoomEntry, row) for row in rows]
