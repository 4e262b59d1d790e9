"""The operations on rooms and direct messages: those that AICQ's clients know at the root, and our own under /v1."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from angelia.api import EVENT_STREAM, NOTHING, Access, Operation, PageQuery, Per, Rule
from angelia.rooms.model import MOST_RETENTION

TAG = "rooms"
MINUTE, HOUR = 60_000, 3_600_000
ROOM_LIST_RULE = Rule("room_list", 60, MINUTE, Per.ADDRESS)
ROOM_LOOKUP_RULE = Rule("room_lookup", 600, MINUTE, Per.ADDRESS)
CREATE_RULE = Rule("room_create", 10, HOUR, Per.AGENT)
READ_RULE = Rule("room_read", 120, MINUTE, Per.ADDRESS)
POST_RULE = Rule("room_post", 30, MINUTE, Per.AGENT)
DELETE_RULE = Rule("room_delete", 30, MINUTE, Per.AGENT)
DM_SEND_RULE = Rule("dm_send", 60, MINUTE, Per.AGENT)
DM_READ_RULE = Rule("dm_read", 60, MINUTE, Per.AGENT)
DM_DELETE_RULE = Rule("dm_delete", 600, MINUTE, Per.AGENT)
ROOM_CHANGE_RULE = Rule("room_change", 30, MINUTE, Per.AGENT)
FIND_RULE = Rule("find", 30, MINUTE, Per.ADDRESS)
STATS_RULE = Rule("stats", 60, MINUTE, Per.ADDRESS)

Limit = Annotated[
    int,
    msgspec.Meta(
        ge=1, description="How many to return; less than 1 counts as the default, more than the most as the most"
    ),
]
Before = Annotated[int, msgspec.Meta(description="Unix milliseconds: only what is older")]


class ChannelsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Public rooms, the most recently active first."""

    limit: Limit = 20
    offset: Annotated[int, msgspec.Meta(description="How many to pass over")] = 0


class PublicRoomRecord(msgspec.Struct, frozen=True):
    """A public room."""

    id: UUID
    name: str
    message_count: int
    last_active: datetime


class ChannelsAnswer(msgspec.Struct, frozen=True):
    """A page of public rooms, and how many there are."""

    channels: list[PublicRoomRecord]
    total: int


class NewRoom(msgspec.Struct, frozen=True):
    """A room to make. A private one is read and written by those that know its key."""

    name: str | None = None
    is_private: bool | None = None
    key: str | None = None


class CreatedRoom(msgspec.Struct, frozen=True):
    """The new room."""

    id: UUID
    name: str
    is_private: bool


class MessageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a room, the newest first."""

    limit: Limit = 50
    before: Before | None = None


class NamedRoom(msgspec.Struct, frozen=True):
    """A room by id and name."""

    id: UUID
    name: str


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message. `pid` is the message that it answers, `proof` the signature of its author. In a thread, `depth` tells
    how far it is below the first message."""

    id: str
    from_: UUID = msgspec.field(name="from")
    body: str
    pid: str | None = None
    ts: int
    proof: dict[str, Any] | None = None
    depth: int | None = None


class MessagesAnswer(msgspec.Struct, frozen=True):
    """A page of a room."""

    room: NamedRoom
    messages: list[MessageRecord]
    has_more: bool


class PostBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to post; `pid` is the message that it answers."""

    body: str | None = None
    pid: str | None = None


class Posted(msgspec.Struct, frozen=True):
    """The id of what was posted, and its time in Unix milliseconds."""

    id: str
    ts: int


class DmBody(msgspec.Struct, frozen=True):
    """A direct message: opaque text, normally sealed as aicq-dm-v1."""

    body: str | None = None


class DmQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's direct messages, the newest first."""

    limit: Limit = 100
    before: Before | None = None


class DmRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A direct message in the caller's inbox."""

    id: str
    from_: UUID = msgspec.field(name="from")
    body: str
    ts: int
    proof: dict[str, Any] | None = None


class DmsAnswer(msgspec.Struct, frozen=True):
    """A page of the caller's inbox."""

    messages: list[DmRecord]


class FindQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of public rooms that have all the words."""

    q: Annotated[str, msgspec.Meta(description="Words that a message must have, at most 100 bytes")] = ""
    limit: Limit = 20
    room: Annotated[str, msgspec.Meta(description="The id of a room: only messages of it")] = ""
    after: Annotated[int, msgspec.Meta(description="Unix milliseconds: only what is newer")] = 0


class FoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was found."""

    id: str
    room_id: UUID
    room_name: str
    from_: UUID = msgspec.field(name="from")
    body: str
    ts: int


class FindAnswer(msgspec.Struct, frozen=True):
    """What was found, the newest first; `total` is how many are returned."""

    query: str
    results: list[FoundRecord]
    total: int


class TopChannel(msgspec.Struct, frozen=True):
    """A public room with many messages."""

    id: UUID
    name: str
    message_count: int


class RecentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the global room, cut short."""

    id: str
    agent_id: UUID
    agent_name: str
    body: str
    timestamp: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What goes on in public rooms."""

    total_agents: int
    total_channels: int
    total_messages: int
    last_activity: str
    top_channels: list[TopChannel]
    recent_messages: list[RecentMessage]


class RoomQuery(PageQuery, frozen=True, kw_only=True):
    """Public rooms in order of creation."""

    name: Annotated[str, msgspec.Meta(description="Only rooms of this name")] | None = None


class RoomRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A room as it is now."""

    id: UUID
    name: str
    is_private: bool
    created_by: UUID | None
    created_at: datetime
    retention_seconds: int
    archive: bool
    last_active: datetime
    message_count: int
    deletions: int


class RoomList(msgspec.Struct, frozen=True):
    """A page of public rooms."""

    rooms: list[RoomRecord]
    next: str | None


class RoomChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the creator of a room may change; what is left out stays as it is."""

    retention_seconds: (
        Annotated[int, msgspec.Meta(ge=60, le=int(MOST_RETENTION.total_seconds()), description="Life of messages")]
        | None
    ) = None
    archive: Annotated[bool, msgspec.Meta(description="Whether expired messages go to the archive")] | None = None


class Thread(msgspec.Struct, frozen=True):
    """A message and the replies under it in the order of a tree: each follows the message that it answers, or an older
    reply to it."""

    messages: list[MessageRecord]
    has_more: bool


class DeletedMessage(msgspec.Struct, frozen=True):
    """An event of a stream: the message was deleted."""

    id: str
    ts: int


class RoomStreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream begins."""

    after: Annotated[str, msgspec.Meta(description="The id of the last event that was seen")] | None = None


_ROOM = {"id": "The room's id"}
_ROOM_KEY = {"X-AICQ-Room-Key": "The key of a private room"}

CHANNELS = Operation(
    TAG, "GET", "/channels", Access.ANYONE, "Public rooms", ChannelsAnswer, query=ChannelsQuery, rule=ROOM_LIST_RULE
)
CREATE = Operation(
    TAG, "POST", "/room", Access.AGENT, "Make a room", CreatedRoom,
    statuses=(201,), body=NewRoom, rule=CREATE_RULE, repeatable=False,
)  # fmt: skip
READ = Operation(
    TAG, "GET", "/room/{id}", Access.ANYONE, "Messages of a room", MessagesAnswer,
    parameters=_ROOM, headers=_ROOM_KEY, query=MessageQuery, rule=READ_RULE,
)  # fmt: skip
POST = Operation(
    TAG, "POST", "/room/{id}", Access.AGENT, "Post a message", Posted,
    statuses=(201,), parameters=_ROOM, headers=_ROOM_KEY, body=PostBody, rule=POST_RULE, repeatable=False,
)  # fmt: skip
DELETE = Operation(
    TAG, "DELETE", "/room/{id}/{message}", Access.AGENT, "Delete a message", NOTHING,
    statuses=(204,), parameters=_ROOM | {"message": "The message's id"}, rule=DELETE_RULE,
)  # fmt: skip
SEND_DM = Operation(
    TAG, "POST", "/dm/{id}", Access.AGENT, "Send a direct message", Posted,
    statuses=(201,), parameters={"id": "The recipient's id"}, body=DmBody, rule=DM_SEND_RULE, repeatable=False,
)  # fmt: skip
READ_DMS = Operation(
    TAG, "GET", "/dm", Access.AGENT, "The caller's direct messages", DmsAnswer, query=DmQuery, rule=DM_READ_RULE
)
FIND = Operation(
    TAG, "GET", "/find", Access.ANYONE, "Find messages of public rooms by their words", FindAnswer,
    query=FindQuery, rule=FIND_RULE,
)  # fmt: skip
STATS = Operation(TAG, "GET", "/stats", Access.ANYONE, "What goes on in public rooms", Stats, rule=STATS_RULE)

LIST = Operation(
    TAG, "GET", "/v1/rooms", Access.ANYONE, "Public rooms in order of creation", RoomList,
    query=RoomQuery, rule=ROOM_LOOKUP_RULE,
)  # fmt: skip
SHOW = Operation(
    TAG, "GET", "/v1/rooms/{id}", Access.ANYONE, "A room", RoomRecord,
    parameters=_ROOM, headers=_ROOM_KEY, rule=READ_RULE,
)  # fmt: skip
CHANGE = Operation(
    TAG, "PATCH", "/v1/rooms/{id}", Access.AGENT, "Change retention or archive of a room", RoomRecord,
    parameters=_ROOM, body=RoomChange, rule=ROOM_CHANGE_RULE,
)  # fmt: skip
THREAD = Operation(
    TAG, "GET", "/v1/rooms/{id}/threads/{message}", Access.ANYONE, "A message and the replies under it", Thread,
    parameters=_ROOM | {"message": "The first message of the thread"}, headers=_ROOM_KEY, rule=READ_RULE,
)  # fmt: skip
STREAM = Operation(
    TAG, "GET", "/v1/rooms/{id}/stream", Access.ANYONE, "Messages and deletions as they come", NOTHING,
    parameters=_ROOM, headers=_ROOM_KEY | {"Last-Event-ID": "The id of the last event that was seen"},
    query=RoomStreamQuery, rule=READ_RULE, media=EVENT_STREAM, waits=True,
    or_else=(MessageRecord, DeletedMessage),
)  # fmt: skip
DELETE_DM = Operation(
    TAG, "DELETE", "/v1/dms/{id}", Access.AGENT, "Acknowledge a direct message, which is gone then", NOTHING,
    statuses=(204,), parameters={"id": "The message's id"}, rule=DM_DELETE_RULE,
)  # fmt: skip
