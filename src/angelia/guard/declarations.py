"""What a slice declares about its routes, and the request and answer that its handlers see."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes
from uuid import UUID

import msgspec

from angelia.agents.model import Agent
from angelia.errors import Denied, InvalidArgument
from angelia.guard.model import Caller, Role, Rule

T = TypeVar("T")
Prove = Callable[[bytes], Awaitable[bool]]

# Query parameters that many lists share.
PageSize = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
HEARTBEAT = b": still here\n\n"
HEARTBEAT_SECONDS = 15.0
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Access(Enum):
    """Who may call a route. The guard decides; a handler that runs may trust `call.caller`."""

    ANYONE = "anyone"  # no credential is looked at
    SIGNED = "signed"  # an agent that signed this very request
    AGENT = "agent"  # an agent: a signed request, or a token bound to one
    READ = "read"  # a credential of at least that role
    WRITE = "write"
    ADMIN = "admin"

    @property
    def role(self) -> Role:
        return _ROLES.get(self, Role.NONE)


_ROLES = {Access.READ: Role.READ_ONLY, Access.WRITE: Role.READ_WRITE, Access.ADMIN: Role.ADMIN}


class Surface(Enum):
    """Which family a path belongs to; it decides the shape of errors and the default body limit."""

    ROOT = "root"
    QUEUES = "queues"
    V1 = "v1"

    @classmethod
    def of(cls, path: str) -> Surface:
        if path.startswith("/v1/"):
            return cls.V1
        if path.startswith(("/api/v1/", "/streams/v1/")):
            return cls.QUEUES
        return cls.ROOT

    @property
    def body_limit(self) -> int:
        return {Surface.ROOT: 32 << 10, Surface.QUEUES: 32 << 20, Surface.V1: 64 << 10}[self]


@dataclass(slots=True)
class Call:
    """One request, admitted: who calls, when, and what was said."""

    caller: Caller
    now: datetime
    request_id: str
    surface: Surface
    raw_path: Sequence[str]
    raw_query: str
    body: bytes
    headers: Mapping[str, str]
    prove: Prove
    path_names: Sequence[str] = ()

    @property
    def agent(self) -> Agent:
        """The agent that calls. Routes of access READ and WRITE also admit tokens that are bound to none."""
        if self.caller.agent is None:
            raise Denied(
                "this needs an agent; the token is bound to none",
                hint="angelia token create --role read-write --agent HANDLE",
            )
        return self.caller.agent

    def path(self, name: str) -> str:
        """A path parameter, percent-decoded once."""
        raw = self.raw_path[self.path_names.index(name)]
        try:
            return unquote_to_bytes(raw.encode("latin-1")).decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{name} is not UTF-8 text") from error

    def query(self, kind: type[T]) -> T:
        """The query as a record; on /v1 a parameter that does not fit is the caller's error."""
        pairs = dict(parse_qsl(self.raw_query, keep_blank_values=True))
        try:
            return msgspec.convert(pairs, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"query: {error}") from error

    def json(self, kind: type[T]) -> T:
        """The body as a record. Old clients know one text for everything that can be wrong with it."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if self.surface is Surface.V1:
                raise InvalidArgument(f"the body does not fit: {error}") from error
            raise InvalidArgument("invalid JSON body") from error


@dataclass(slots=True)
class Answer:
    """What a handler gives back: a record for JSON, ready bytes with their type, or a stream that goes on."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path, who may call it, how often, and what goes in and out (the OpenAPI document is made from this)."""

    method: str
    path: str
    handler: Handler
    access: Access
    about: str
    gives: Mapping[int, Any]
    takes: Any = None
    query: Any = None
    rule: Rule | None = None
    body_limit: int | None = None
    reads: tuple[str, ...] = (JSON,)  # the media types that a body may have
    waits: bool = False  # it may take as long as the caller likes, and ends when the caller goes
    page: bool = False  # a document that people reach by a link from elsewhere
    open_locally: bool = False  # served without a credential in open mode

    @property
    def limit(self) -> int:
        return self.body_limit or Surface.of(self.path).body_limit


def uuid_of(text: str, otherwise: str) -> UUID:
    """An id in its one spelling: lower case, dashed. Any other spelling is refused with the given words."""
    if _UUID.fullmatch(text) is None:
        raise InvalidArgument(otherwise)
    return UUID(text)


def cursor_after(at: datetime, id: UUID) -> str:
    """Where a list ordered by time and id goes on; opaque to callers."""
    return base64.urlsafe_b64encode(f"{at.isoformat()} {id}".encode()).decode()


def parse_cursor(text: str | None) -> tuple[datetime, UUID] | None:
    if text is None:
        return None
    try:
        at, id = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")  # noqa: A001 - it is an id
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError
        return moment, UUID(id)
    except ValueError as error:
        raise InvalidArgument("the cursor is not one that this list gave out") from error


def sse(event: str, data: bytes, id: str | None = None) -> bytes:
    """One server-sent event. JSON has no line breaks of its own, so one line of data is enough."""
    name = f"id: {id}\n" if id is not None else ""
    return f"{name}event: {event}\ndata: ".encode() + data + b"\n\n"


def clock() -> datetime:
    """The time of a request, taken once at the edge."""
    return datetime.now(UTC)
