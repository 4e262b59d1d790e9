"""Rooms over HTTP: binds the operations to the services, and shapes the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec

from angelia.api import (
    EVENT_STREAM,
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    Answer,
    Call,
    Route,
    cursor_after,
    parse_cursor,
    sse,
    uuid_of,
)
from angelia.errors import InvalidArgument
from angelia.rooms import api
from angelia.rooms.dms import DirectMessages
from angelia.rooms.model import NOISE_BYTES, MessageId, Room, RoomDetails, RoomEntry
from angelia.rooms.reading import RoomReaders
from angelia.rooms.search import Search
from angelia.rooms.service import Rooms
from angelia.rooms.stats import RoomStats

_LONGEST_QUERY = 100
_UNKNOWN_ROOM = "invalid room ID format"


def routes(rooms: Rooms, readers: RoomReaders, search: Search, dms: DirectMessages, stats: RoomStats) -> list[Route]:
    return [
        *_room_routes(rooms, stats),
        *_message_routes(rooms, readers),
        *_dm_routes(dms),
        *_search_routes(search),
    ]


def _room_routes(rooms: Rooms, stats: RoomStats) -> list[Route]:
    async def channels(call: Call) -> Answer:
        found, total = await rooms.public_rooms(_number(call, "limit", 20, 100), _number(call, "offset", 0))
        records = [api.PublicRoomRecord(one.room_id, one.name, one.message_count, one.last_active) for one in found]
        return Answer(body=api.ChannelsAnswer(records, total))

    async def create(call: Call) -> Answer:
        room = await rooms.create(call.agent, call.json(api.NewRoom), call.now)
        return Answer(201, api.CreatedRoom(room.room_id, room.name, room.is_private))

    async def list_rooms(call: Call) -> Answer:
        query = call.query(api.RoomQuery)
        found = await rooms.listed(query.name, parse_cursor(query.cursor), query.and_one_more)
        shown, following = query.cut(found, lambda one: cursor_after(one.created_at, one.room_id))
        return Answer(body=api.RoomList([_room_record(one) for one in shown], following))

    async def show(call: Call) -> Answer:
        room = await rooms.details(_room_id(call), _key(call), call.caller.subject, call.now)
        return Answer(body=_room_record(room), headers=_kept_private(room))

    async def change(call: Call) -> Answer:
        changed = await rooms.change(call.agent, _room_id(call), call.json(api.RoomChange), call.now)
        return Answer(body=_room_record(changed))

    async def show_stats(call: Call) -> Answer:
        return Answer(body=await stats.stats(call.now))

    return [
        Route(api.CHANNELS, channels),
        Route(api.CREATE, create),
        Route(api.LIST, list_rooms),
        Route(api.SHOW, show),
        Route(api.CHANGE, change),
        Route(api.STATS, show_stats),
    ]


def _message_routes(rooms: Rooms, readers: RoomReaders) -> list[Route]:
    async def opened(call: Call) -> Room:
        return await rooms.opened(_room_id(call), _key(call), call.caller.subject, call.now)

    async def read(call: Call) -> Answer:
        room, limit = await opened(call), _number(call, "limit", 50, 200)
        found, more = await readers.page(room, _number(call, "before", 0) or None, limit, call.now)
        named = api.NamedRoom(room.room_id, room.name)
        return Answer(
            body=api.MessagesAnswer(named, [_message(one) for one in found], more), headers=_kept_private(room)
        )

    async def post(call: Call) -> Answer:
        room = await opened(call)
        id_ = await rooms.post(call.agent, room, call.json(api.PostBody), call.author_proof(), call.now)
        return Answer(201, api.Posted(str(id_), id_.ts))

    async def delete(call: Call) -> Answer:
        await rooms.delete(call.agent, _room_id(call), call.path("message"), call.now)
        return Answer(204)

    async def thread(call: Call) -> Answer:
        room = await opened(call)
        found, more = await readers.thread(room, call.path("message"), call.now)
        messages = [_message(one, one.depth - found[0].depth) for one in found]
        return Answer(body=api.Thread(messages, more), headers=_kept_private(room))

    async def stream(call: Call) -> Answer:
        room = await opened(call)
        last = call.headers.get("last-event-id") or call.query(api.RoomStreamQuery).after
        begins = MessageId.parse(last) if last else MessageId(await readers.newest(room), bytes(NOISE_BYTES))
        if begins is None:
            raise InvalidArgument("the last event is no message id", hint="send the id of an event of this stream")
        coming = readers.follow(room, begins.ts, call.now, HEARTBEAT_SECONDS)
        return Answer(content_type=EVENT_STREAM, stream=_events(begins, coming))

    return [
        Route(api.READ, read),
        Route(api.POST, post),
        Route(api.DELETE, delete),
        Route(api.THREAD, thread),
        Route(api.STREAM, stream),
    ]


def _dm_routes(dms: DirectMessages) -> list[Route]:
    async def send(call: Call) -> Answer:
        recipient = uuid_of(call.path("id"), "invalid recipient ID format")
        await dms.check_recipient(call.agent, recipient)
        text = call.json(api.DmBody).body or ""
        id_ = await dms.send(call.agent, recipient, text, call.author_proof(), call.now)
        return Answer(201, api.Posted(str(id_), id_.ts))

    async def read(call: Call) -> Answer:
        limit, before = _number(call, "limit", 100, 100), _number(call, "before", 0) or None
        found = await dms.inbox(call.agent, before, limit, call.now)
        records = [
            api.DmRecord(id=str(one.id), from_=one.sender, body=one.body, ts=one.ts, proof=one.proof) for one in found
        ]
        return Answer(body=api.DmsAnswer(records), headers={"cache-control": "no-store"})

    async def delete(call: Call) -> Answer:
        await dms.remove(call.agent, call.path("id"), call.now)
        return Answer(204)

    return [Route(api.SEND_DM, send), Route(api.READ_DMS, read), Route(api.DELETE_DM, delete)]


def _search_routes(search: Search) -> list[Route]:
    async def find(call: Call) -> Answer:
        asked = _asked(call)
        text = asked.get("q", "")
        if not text:
            raise InvalidArgument("query parameter 'q' is required")
        if len(text.encode()) > _LONGEST_QUERY:
            raise InvalidArgument("query too long (max 100 chars)")
        room = uuid_of(asked["room"], _UNKNOWN_ROOM) if asked.get("room") else None
        found = await search.find(text, room, _number(call, "after", 0), _number(call, "limit", 20, 100), call.now)
        records = [
            api.FoundRecord(
                id=str(one.id), room_id=one.room_id, room_name=one.room_name, from_=one.author, body=one.body, ts=one.ts
            )
            for one in found
        ]
        return Answer(body=api.FindAnswer(text, records, len(records)))

    return [Route(api.FIND, find)]


async def _events(begins: MessageId, coming: AsyncGenerator[list[RoomEntry], None]) -> AsyncIterator[bytes]:
    """First an id without an event: a stream that breaks off before its first event goes on from where it began."""
    yield f"id: {begins}\n\n".encode()
    async with aclosing(coming):
        async for found in coming:
            yield b"".join(_event(one) for one in found) or HEARTBEAT


def _event(one: RoomEntry) -> bytes:
    if one.body is None:
        assert one.about is not None, "it tells of a message"
        gone = api.DeletedMessage(str(MessageId.unpack(one.about)), one.ts)
        return sse("deleted", msgspec.json.encode(gone), str(one.id))
    return sse("message", msgspec.json.encode(_message(one)), str(one.id))


def _message(one: RoomEntry, depth: int | None = None) -> api.MessageRecord:
    assert one.body is not None, "a message, and not a note"
    return api.MessageRecord(
        id=str(one.id),
        from_=one.author,
        body=one.body,
        pid=None if one.parent is None else str(one.parent),
        ts=one.ts,
        proof=one.proof,
        depth=depth,
    )


def _room_record(room: RoomDetails) -> api.RoomRecord:
    return api.RoomRecord(
        id=room.room_id,
        name=room.name,
        is_private=room.is_private,
        created_by=room.created_by,
        created_at=room.created_at,
        retention_seconds=room.retention_seconds,
        archive=room.archive,
        last_active=room.last_active,
        message_count=room.message_count,
        deletions=room.deletions,
    )


def _kept_private(room: Room) -> dict[str, str]:
    """What a private room shows is for the caller alone."""
    return {"cache-control": "no-store"} if room.is_private else {}


def _room_id(call: Call) -> UUID:
    return uuid_of(call.path("id"), _UNKNOWN_ROOM)


def _key(call: Call) -> str | None:
    return call.headers.get("x-aicq-room-key")


def _asked(call: Call) -> dict[str, str]:
    """The query as AICQ reads it: of a parameter that is repeated the first counts. Some clients do not escape it."""
    raw = call.raw_query.encode("latin-1").decode("utf-8", "replace")
    return dict(reversed(parse_qsl(raw, keep_blank_values=True)))


def _number(call: Call, name: str, default: int, most: int = (1 << 62)) -> int:
    """A number of the query as AICQ reads it: what is no number, or less than 1, counts as the default."""
    text = _asked(call).get(name, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0
    return min(number, most) if number > 0 else default
