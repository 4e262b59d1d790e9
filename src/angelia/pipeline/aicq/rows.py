"""Rows of AICQ as Angelia takes them: what is wrong with one is said in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from angelia.agents.model import Registration, check_email, clean_name, parse_public_key
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import InvalidArgument, Unprocessable
from angelia.rooms.model import GLOBAL, MessageId, message_body, room_name

# AICQ took any of these spellings, and kept the messages of a room under the one that a request had used.
_UUID = re.compile(
    r"(?:urn:uuid:)?\{?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\}?", re.IGNORECASE
)
# The last letter of the salt has spare bits, which bcrypt wants to be zero. A higher cost would take seconds a look.
_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|1[0-4])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
_RESERVED = "global"
_NEAR_MS = 1_000


@dataclass(frozen=True, slots=True)
class ImportedRoom:
    """A room of AICQ."""

    room_id: UUID
    name: str
    key_hash: str | None
    creator: UUID | None  # its id in AICQ
    created_at: datetime
    last_active: datetime
    message_count: int


@dataclass(frozen=True, slots=True)
class ImportedMessage:
    """A message, or a direct message, of AICQ."""

    id: MessageId
    at_ms: int  # the time that it gets here, if that is free
    author: UUID  # its id in AICQ
    body: str
    parent: MessageId | None


def uuid_of(text: object) -> UUID:
    """The id in a text, however it is spelt."""
    found = _UUID.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidArgument("its id is no UUID")
    return UUID("".join(found.groups()))


def agent_of(row: Mapping[str, Any]) -> Registration:
    """An agent, by the rules of registration. An e-mail address that is none is left out."""
    public_key = parse_public_key(_text(row["public_key"]))
    try:
        email = check_email(_text(row["email"]))
    except InvalidArgument:
        email = ""
    return Registration(
        id=uuid_of(row["id"]),
        public_key=public_key,
        key_id=key_id(KeyType.ED25519, public_key),
        name=clean_name(_text(row["name"])),
        email=email,
        at=_time(row["created_at"]),
    )


def room_of(row: Mapping[str, Any]) -> ImportedRoom:
    """A room. One that imitates the global one gets another name, since that name is reserved here."""
    room_id, name = uuid_of(row["id"]), room_name(_text(row["name"]))
    if name.lower() == _RESERVED and room_id != GLOBAL:
        name = f"{name}-{room_id.hex[:8]}"
    key_hash = _text(row["key_hash"]) if row["is_private"] else None
    if key_hash is not None and _BCRYPT.fullmatch(key_hash) is None:
        raise InvalidArgument("it is private, and the hash of its key is none of bcrypt")
    count = row["message_count"]
    if not isinstance(count, int) or count < 0:
        raise InvalidArgument("its message_count is no count")
    return ImportedRoom(
        room_id=room_id,
        name=name,
        key_hash=key_hash,
        creator=None if row["created_by"] is None else uuid_of(row["created_by"]),
        created_at=_time(row["created_at"]),
        last_active=_time(row["last_active_at"]),
        message_count=count,
    )


class _Member(msgspec.Struct):
    """A member of the sorted set of a room or an inbox."""

    id: str
    sender: str = msgspec.field(name="from")
    body: str
    ts: int
    pid: str = ""


def message_of(member: bytes, most: int) -> ImportedMessage:
    """A message with at most so many bytes.

    Its time here is that of its id, so that ids stay as they are: AICQ makes the id just before it reads the clock for
    `ts`. If they are far apart, the id says nothing about the time."""
    try:
        found = msgspec.json.decode(member, type=_Member)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument("it is no message in JSON") from error
    id_ = MessageId.parse(found.id)
    if id_ is None:
        raise InvalidArgument("its id is no ULID")
    if "\0" in found.body:
        raise Unprocessable("its body is no text")
    return ImportedMessage(
        id=id_,
        at_ms=id_.ts if abs(id_.ts - found.ts) <= _NEAR_MS else found.ts,
        author=uuid_of(found.sender),
        body=message_body(found.body, most),
        parent=MessageId.parse(found.pid),
    )


def free_times(wished: Sequence[int], taken: Callable[[Sequence[int]], Mapping[int, int]]) -> list[int]:
    """The times that messages get: for each the first free one at or after the wished one, in rising order.

    `taken` tells which of some times are not free, and the first free one after each."""
    ends: dict[int, int] = {}
    while True:
        times, last = list[int](), -1
        for at in wished:
            last = max(at, last + 1)
            while last in ends:
                last = ends[last]
            times.append(last)
        found = taken(times)
        if not found:
            return times
        ends |= found


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _time(value: object) -> datetime:
    """A time as PostgreSQL gives it, or as AICQ's driver wrote it into SQLite; without an offset it is UTC."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))
    except ValueError as error:
        raise InvalidArgument("one of its times is none") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
