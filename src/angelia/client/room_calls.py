"""Rooms: found by name or id, made, changed, written to and read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.namespaces import Batches
from angelia.client.operation_requests import ask
from angelia.client.rate_limit_wait import Patience, patiently
from angelia.errors import AmbiguousId, InvalidArgument, NotFound
from angelia.rooms import api
from angelia.rooms.api import DeletedMessage, MessageRecord
from angelia.rooms.model import KEY_BYTES, MOST_BODY

RoomEvent: TypeAlias = MessageRecord | DeletedMessage
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# What a header carries unchanged, and so what a key can be that is sent as one.
_KEY = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_PAGE = 200
_SHOWN = 5
_PATIENCE = 3600.0  # seconds in all that a whole history waits for rate limits


def is_room_id(name: str) -> bool:
    return _UUID.fullmatch(name) is not None


def find_room(name: str | UUID) -> Exchange[UUID]:
    """Returns the id of a public room, given by its name or id; a private one is known by its id alone."""
    if isinstance(name, UUID) or is_room_id(name):
        yield from ()
        return UUID(str(name))
    page = yield from ask(api.LIST, query=api.RoomQuery(name=name, limit=_SHOWN))
    if any(one.name != name for one in page.rooms):
        raise BadAnswer(f"asked for rooms called {name}, the server showed {page.rooms[0].name}")
    if not page.rooms:
        raise NotFound(
            f"there is no public room {name}", hint="angelia room list; a private room is named by its whole id"
        )
    if len(page.rooms) > 1:
        ids = ", ".join(str(one.id) for one in page.rooms)
        more = " and more" if page.next else ""
        raise AmbiguousId(f"several rooms are called {name}", hint=f"name one by its id: {ids}{more}")
    return page.rooms[0].id


def check_room_key(key: str) -> str:
    """Returns the key of a private room; raises InvalidArgument for a text that cannot be one."""
    if len(key) not in KEY_BYTES or _KEY.fullmatch(key) is None:
        raise InvalidArgument(
            f"a room key has {KEY_BYTES.start} to {KEY_BYTES.stop - 1} printable ASCII characters, "
            "and no blank at either end",
            hint="a random one: openssl rand -hex 24",
        )
    return key


def create(name: str, *, key: str | None = None) -> Exchange[api.CreatedRoom]:
    """Makes a room; with a key a private one, which is read and written by those that know the key."""
    private = key is not None
    return ask(api.CREATE, body=api.NewRoom(name, private, "" if key is None else check_room_key(key)))


def show(room: str | UUID, *, key: str | None = None) -> Exchange[api.RoomRecord]:
    """Returns a room as it is now."""
    room_id = yield from find_room(room)
    return (yield from ask(api.SHOW, room_id, room_key=sent_key(key)))


def change(
    room: str | UUID, *, retention_seconds: int | None = None, archive: bool | None = None
) -> Exchange[api.RoomRecord]:
    """Changes how long a room of yours keeps its messages, and whether they are archived. Returns the room."""
    room_id = yield from find_room(room)
    change = api.RoomChange(retention_seconds=retention_seconds, archive=archive)
    return (yield from ask(api.CHANGE, room_id, body=change))


def post(room: str | UUID, text: str, *, reply_to: str | None = None, key: str | None = None) -> Exchange[api.Posted]:
    """Posts a message, or a reply to the message of that id. If the network fails, it may have been posted or not."""
    size = len(text.encode())
    if not 0 < size <= MOST_BODY:
        raise InvalidArgument(f"a message has 1 to {MOST_BODY:,} bytes, and this one has {size:,}")
    room_id = yield from find_room(room)
    return (yield from ask(api.POST, room_id, body=api.PostBody(text, reply_to), room_key=sent_key(key)))


def read(
    room: str | UUID, *, before: int | None = None, limit: int = 50, key: str | None = None
) -> Exchange[api.MessagesAnswer]:
    """Returns the newest messages of a room before a time in Unix milliseconds, the newest first."""
    room_id = yield from find_room(room)
    query = api.MessageQuery(limit=limit, before=before)
    return (yield from ask(api.READ, room_id, query=query, room_key=sent_key(key)))


def thread(room: str | UUID, message: str, *, key: str | None = None) -> Exchange[api.Thread]:
    """Returns a message and the replies under it in the order of a tree."""
    room_id = yield from find_room(room)
    return (yield from ask(api.THREAD, room_id, message, room_key=sent_key(key)))


def search(
    words: str, *, room: str | UUID | None = None, after: int = 0, limit: int = 20
) -> Exchange[list[api.FoundRecord]]:
    """Returns the newest messages of public rooms that have all the words; `after` is in Unix milliseconds."""
    within = "" if room is None else str((yield from find_room(room)))
    found = yield from ask(api.FIND, query=api.FindQuery(q=words, room=within, after=after, limit=limit))
    return found.results


def delete(room: str | UUID, message: str) -> Exchange[None]:
    """Deletes a message of yours, for good. It needs no room key."""
    room_id = yield from find_room(room)
    yield from ask(api.DELETE, room_id, message)


class History(Batches[MessageRecord]):
    """All messages of a room, the newest first; rate limits are waited out."""

    def __init__(self, room: str | UUID, key: str | None) -> None:
        self._room, self._key = room, key
        self._patience = Patience(_PATIENCE)
        self._before: int | None = None
        self._ended = False

    def next(self) -> Exchange[Sequence[MessageRecord] | None]:
        if self._ended:
            return None
        self._room = yield from patiently(find_room(self._room), self._patience)  # once: afterwards it is an id
        asked = read(self._room, before=self._before, limit=_PAGE, key=self._key)
        page = yield from patiently(asked, self._patience)
        if page.messages:
            if self._before is not None and page.messages[-1].ts >= self._before:
                raise BadAnswer("asked for earlier messages, the server gave the same ones again")
            self._before = page.messages[-1].ts
        self._ended = not page.has_more or not page.messages
        return page.messages


def sent_key(key: str | None) -> str | None:
    """Returns the key that goes along with a request, if any."""
    return None if key is None else check_room_key(key)
