"""Rooms, their messages and direct messages: the records, and the rules that need no I/O."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from angelia.errors import InvalidArgument, NotFound, Unprocessable

GLOBAL = UUID("00000000-0000-0000-0000-000000000001")
MOST_BODY, MOST_DM = 4096, 8192  # bytes of UTF-8
MOST_BODIES = 32_768  # bytes of all messages of one agent in a minute
MOST_HELD, MOST_OF_SENDER = 10_000, 1_000  # direct messages in one inbox, and of one sender among them
DM_LIFE = timedelta(days=7)
RETENTION = timedelta(days=1)
MOST_RETENTION = timedelta(days=365)
ARCHIVE_WAIT = timedelta(days=7)  # how long a room's expired messages wait for the archive
KEY_BYTES = range(16, 257)
NOISE_BYTES = 10
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,50}")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID = re.compile(f"[0-7][{_CROCKFORD}]{{25}}")
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]  # a page shows a hundred ids


class MessageId(NamedTuple):
    """The id of a message or direct message, a ULID: its time in Unix milliseconds, and 80 random bits."""

    ts: int
    noise: bytes

    def __str__(self) -> str:
        number = int.from_bytes(self.packed, "big")
        return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])

    @property
    def packed(self) -> bytes:
        return self.ts.to_bytes(6, "big") + self.noise

    @classmethod
    def unpack(cls, raw: bytes) -> MessageId:
        return cls(int.from_bytes(raw[:6], "big"), raw[6:])

    @classmethod
    def parse(cls, text: str) -> MessageId | None:
        """The id in a text; None for a text that is none, and so the id of no message."""
        if _ULID.fullmatch(text) is None:
            return None
        number = 0
        for letter in text:
            number = number << 5 | _CROCKFORD.index(letter)
        return cls.unpack(number.to_bytes(16, "big"))


@dataclass(frozen=True, slots=True)
class Room:
    """What never changes about a conversation. Names are not unique; a private room is read and written with its
    key."""

    room_id: UUID
    name: str
    is_private: bool
    key_salt: bytes | None
    key_hash: bytes | None
    created_by: UUID | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RoomDetails(Room):
    """A conversation as it is now."""

    retention_seconds: int
    archive: bool
    last_active: datetime
    message_count: int
    deletions: int


@dataclass(frozen=True, slots=True)
class RoomEntry:
    """A message; without a body, a note that the message `about` was deleted."""

    ts: int
    noise: bytes
    author: UUID
    body: str | None
    about: bytes | None
    depth: int
    proof: dict[str, Any] | None

    @property
    def id(self) -> MessageId:
        return MessageId(self.ts, self.noise)

    @property
    def parent(self) -> MessageId | None:
        return MessageId.unpack(self.about) if self.about is not None and self.body is not None else None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that has all words of a query, and its place in the index."""

    place: int
    room_id: UUID
    room_name: str
    ts: int
    noise: bytes
    author: UUID
    body: str

    @property
    def id(self) -> MessageId:
        return MessageId(self.ts, self.noise)


@dataclass(frozen=True, slots=True)
class RoomBacklog:
    """Messages of rooms that are due for the archive: how many, and for how long the oldest has been."""

    rows: int
    late: timedelta | None


@dataclass(frozen=True, slots=True)
class DirectMessage:
    """A message in the inbox of an agent; its body is for the recipient to read."""

    ts: int
    noise: bytes
    sender: UUID
    body: str
    proof: dict[str, Any] | None

    @property
    def id(self) -> MessageId:
        return MessageId(self.ts, self.noise)


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is about to be stored."""

    room_id: UUID
    at_ms: int
    noise: bytes
    author: UUID
    body: str
    parent: bytes | None = None
    depth: int = 0
    words: list[int]
    proof: dict[str, Any] | None


def room_name(text: str) -> str:
    """The name of a new room; InvalidArgument, in the words that old clients know, if it is none."""
    name = unicodedata.normalize("NFC", text.strip())
    if not name:
        raise InvalidArgument("name is required")
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument("name must be 1-50 characters, alphanumeric with hyphens and underscores only")
    return name


def message_body(text: str, most: int) -> str:
    """The body of a message; refused if it is empty or has more bytes than that."""
    if not text:
        raise InvalidArgument("body is required")
    if "\0" in text:
        raise InvalidArgument("body must be without NUL characters")
    if len(text.encode()) > most:
        raise Unprocessable(f"body too long (max {most} bytes)")
    return text


def no_room() -> NotFound:
    return NotFound("room not found")


def preview(text: str, most: int = 200) -> str:
    """The text, or its beginning and three dots: at most so many bytes, cut between characters."""
    raw = text.encode()
    return text if len(raw) <= most else raw[: most - 3].decode("utf-8", "ignore") + "..."


def ago(seconds: float) -> str:
    """How long ago something was, as old pages show it."""
    minutes = int(seconds // 60)
    for size, unit in ((1440, "day"), (60, "hour"), (1, "minute")):
        if minutes >= size:
            count = minutes // size
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


class NewDirectMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A direct message that is about to be stored."""

    recipient: UUID
    sender: UUID
    at_ms: int
    noise: bytes
    body: str
    proof: dict[str, Any] | None
