"""An operation with its handler, and the request and answer that the handler sees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from angelia.api.caller import AgentRow, Caller
from angelia.api.operation import JSON, Operation, Surface
from angelia.errors import Denied, InvalidArgument

T = TypeVar("T")
Prove = Callable[[bytes], Awaitable[bool]]


@dataclass(slots=True)
class Call:
    """One request, admitted: who calls, when, and with what."""

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
    def agent(self) -> AgentRow:
        """The agent that calls. Routes of access READ and WRITE also admit tokens that are bound to none."""
        if self.caller.agent is None:
            raise Denied(
                "this needs an agent; the token is bound to none",
                hint="angelia token create --role read-write --agent HANDLE",
            )
        return self.caller.agent

    def own_or_operator(self, named: str | None, refusal: str, hint: str) -> str | None:
        """Whose things the caller asks about: None for its own, else the name that only an operator may give."""
        if named is None or (self.caller.agent is not None and self.caller.agent.is_named(named)):
            return None
        if not self.caller.is_operator:
            raise Denied(refusal, hint=hint)
        return named

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
    """What a handler returns: a record for JSON, ready bytes with their type, or a stream that goes on."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = JSON
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """An operation, and what carries it out."""

    operation: Operation[Any]
    handler: Handler
