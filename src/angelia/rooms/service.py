"""Rooms: made, found, changed, and written to."""

from __future__ import annotations

import os
import time
import uuid
from datetime import datetime
from uuid import UUID

from angelia import metrics
from angelia.agents.service import Agents
from angelia.api import AgentRow, AuthorProof, kept_proof
from angelia.audit import service as audit
from angelia.envelope.times import unix_ms
from angelia.errors import AlreadyExists, Denied, NotFound, Unprocessable
from angelia.rooms import store
from angelia.rooms.api import NewRoom, PostBody, RoomChange
from angelia.rooms.hot_store import HotRooms
from angelia.rooms.model import (
    MOST_BODY,
    NOISE_BYTES,
    MessageId,
    NewMessage,
    Room,
    RoomDetails,
    RoomEntry,
    message_body,
    no_room,
    room_name,
)
from angelia.rooms.recent_counts import RecentCount
from angelia.rooms.room_keys import RoomKeys
from angelia.rooms.store import PublicRoom
from angelia.rooms.words import found_by
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger
from angelia.stores.wake import Wake, wake_topic

_RESERVED = "global"
_KEPT_SECONDS, _MOST_KEPT = 60.0, 10_000


def room_topic(room_id: UUID) -> str:
    """The topic that is rung for each new entry of a room."""
    return wake_topic("room", room_id.hex)


class Rooms:
    """The rooms of this ledger."""

    def __init__(self, ledger: Ledger, hot: HotRooms, wake: Wake, agents: Agents, moderator: UUID | None) -> None:
        """`moderator` is the one agent that may delete messages of others."""
        self._ledger = ledger
        self._agents = agents
        self._wake = wake
        self._moderator = moderator
        self._keys = RoomKeys(hot.wrong_keys)
        self._bytes = hot.bytes
        self._posts: GroupCommit[NewMessage, int] = GroupCommit(ledger.statement, store.post)
        self._public: RecentCount[int] = RecentCount()
        self._made_since = 0  # public rooms that this process made since they were counted
        self._known: dict[UUID, tuple[float, Room]] = {}

    async def close(self) -> None:
        await self._posts.close()

    async def create(self, agent: AgentRow, wanted: NewRoom, now: datetime) -> Room:
        name = room_name(wanted.name or "")
        if name.lower() == _RESERVED:
            raise AlreadyExists("room name is reserved", hint="choose another one")
        salt, key_hash = await self._keys.make(wanted.key or "") if wanted.is_private else (None, None)
        async with self._ledger.transaction() as tx:
            room = await store.create(tx, uuid.uuid4(), name, agent.id, now, salt, key_hash)
            detail = {"private": room.is_private}
            event = audit.event("room_created", now, actor=agent.handle, object=str(room.room_id), detail=detail)
            await audit.record(tx, [event])
        metrics.ROOMS_CREATED.labels(_kind(room)).inc()
        self._made_since += not room.is_private
        return room

    async def public_rooms(self, limit: int, offset: int) -> tuple[list[PublicRoom], int]:
        """A page of the public rooms, the most recently active first, and how many there are, counted a moment ago."""
        total = await self._public.get(self._count_public) + self._made_since
        if offset >= total:
            return [], total
        async with self._ledger.reading() as tx:
            return await store.public_rooms(tx, limit, offset), total

    async def listed(self, name: str | None, after: tuple[datetime, UUID] | None, limit: int) -> list[RoomDetails]:
        async with self._ledger.reading() as tx:
            return await store.listed(tx, name, after, limit)

    async def details(self, room_id: UUID, key: str | None, guesser: str, now: datetime) -> RoomDetails:
        await self.opened(room_id, key, guesser, now)
        async with self._ledger.reading() as tx:
            found = await store.details(tx, room_id)
        assert found is not None, "rooms are never deleted"
        return found

    async def change(self, agent: AgentRow, room_id: UUID, change: RoomChange, now: datetime) -> RoomDetails:
        """Changes how long a room keeps its messages, and whether they are archived; by its creator alone."""
        room = await self._room(room_id)
        if room.created_by != agent.id:
            raise Denied("only the creator of a room changes it")
        async with self._ledger.transaction() as tx:
            changed = await store.change(tx, room_id, change.retention_seconds, change.archive)
            detail = {"retention_seconds": changed.retention_seconds, "archive": changed.archive}
            event = audit.event("room_changed", now, actor=agent.handle, object=str(room_id), detail=detail)
            await audit.record(tx, [event])
        return changed

    async def opened(self, room_id: UUID, key: str | None, guesser: str, now: datetime) -> Room:
        """The room, for a caller that may read and write it: every caller in a public one, else those with its key."""
        room = await self._room(room_id)
        await self._keys.check(room, key, guesser, now)
        return room

    async def post(
        self, agent: AgentRow, room: Room, offered: PostBody, proof: AuthorProof | None, now: datetime
    ) -> MessageId:
        """Posts a message. It is durable when this returns, and readers that wait are told."""
        body, now_ms = message_body(offered.body or "", MOST_BODY), unix_ms(now)
        reserved = await self._bytes.reserve(str(agent.id), len(body.encode()), now)
        try:
            parent = await self._parent(room, offered.pid, now_ms) if offered.pid else None
            new = NewMessage(
                room_id=room.room_id,
                at_ms=now_ms,
                noise=os.urandom(NOISE_BYTES),
                author=agent.id,
                body=body,
                parent=None if parent is None else parent.id.packed,
                depth=0 if parent is None else parent.depth + 1,
                words=[] if room.is_private else found_by(body, room.room_id),
                proof=kept_proof(proof, body),
            )
            ts = await self._posts.submit(new)
        except Exception:
            await self._bytes.release(str(agent.id), reserved)
            raise
        metrics.ROOM_MESSAGES.labels(_kind(room)).inc()
        await self._wake.tell(room_topic(room.room_id), b"")
        return MessageId(ts, new.noise)

    async def delete(self, agent: AgentRow, room_id: UUID, text: str, now: datetime) -> None:
        """Deletes a message of the agent's own; the moderator may delete any."""
        room, id_, now_ms = await self._room(room_id), MessageId.parse(text), unix_ms(now)
        async with self._ledger.lookups() as tx:
            found = await store.message(tx, room_id, now_ms, id_) if id_ is not None else None
        if found is None or id_ is None:
            raise NotFound("message not found")
        own = found.author == agent.id
        if not own and agent.id != self._moderator:
            raise Denied("can only delete your own messages")
        author = agent if own else await self._agents.by_id(found.author)
        async with self._ledger.transaction() as tx:
            if await store.delete(tx, room, id_, os.urandom(NOISE_BYTES), agent.id, now_ms) is None:
                raise NotFound("message not found")
            if not own:
                detail = {"message": str(id_), "author": author.handle}
                event = audit.event("room_message_deleted", now, actor=agent.handle, object=str(room_id), detail=detail)
                await audit.record(tx, [event])
        await self._wake.tell(room_topic(room_id), b"")

    async def _count_public(self) -> int:
        async with self._ledger.reading() as tx:
            count = await store.count_public(tx)
        self._made_since = 0
        return count

    async def _room(self, room_id: UUID) -> Room:
        """The room. What never changes about it is remembered."""
        until, known = self._known.get(room_id, (0.0, None))
        if known is not None and until > time.monotonic():
            return known
        async with self._ledger.lookups() as tx:
            found = await store.room(tx, room_id)
        if found is None:
            raise no_room()
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[room_id] = (time.monotonic() + _KEPT_SECONDS, found)
        return found

    async def _parent(self, room: Room, text: str, now_ms: int) -> RoomEntry:
        id_ = MessageId.parse(text)
        async with self._ledger.lookups() as tx:
            found = await store.message(tx, room.room_id, now_ms, id_) if id_ is not None else None
        if found is None:
            raise Unprocessable("parent message not found in this room")
        return found


def _kind(room: Room) -> str:
    return "private" if room.is_private else "public"
