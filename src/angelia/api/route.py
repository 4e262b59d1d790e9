"""A route: an operation with its handler, and the request and answer of a handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from angelia.api.author_proof import AuthorProof
from angelia.api.caller import AgentRow, Caller
from angelia.api.operation import JSON, Operation, Surface
from angelia.errors import Denied, InvalidArgument

T = TypeVar("T")
Prove = Callable[[bytes], Awaitable[bool]]


class Call(msgspec.Struct):
    """An admitted request: its caller, its time and its content."""

    caller: Caller
    now: datetime
    request_id: str
    surface: Surface
    raw_path: Sequence[str]
    raw_query: str
    body: bytes
    headers: Mapping[str, str]
    prove: Prove
    author_proof: Callable[[], AuthorProof | None]  # the verified signature of this request; None for a token
    path_names: Sequence[str] = ()

    @property
    def agent(self) -> AgentRow:
        """The calling agent. Routes of access READ and WRITE also admit tokens without an agent; for those, Denied."""
        if self.caller.agent is None:
            raise Denied(
                "this needs an agent; the token is bound to none",
                hint="angelia token create --role read-write --agent HANDLE",
            )
        return self.caller.agent

    def own_or_operator(self, named: str | None, refusal: str, hint: str) -> str | None:
        """Which agent a request is about: None for the caller itself, else the named one, which only operators may
        name."""
        if named is None or (self.caller.agent is not None and self.caller.agent.is_named(named)):
            return None
        if not self.caller.is_operator:
            raise Denied(refusal, hint=hint)
        return named

    def path(self, name: str) -> str:
        """Returns a path parameter, percent-decoded."""
        raw = self.raw_path[self.path_names.index(name)]
        try:
            return unquote_to_bytes(raw.encode("latin-1")).decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{name} is not UTF-8 text") from error

    def query(self, kind: type[T]) -> T:
        """Returns the query as a record; InvalidArgument if it does not fit."""
        pairs = dict(parse_qsl(self.raw_query, keep_blank_values=True))
        try:
            return msgspec.convert(pairs, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"query: {error}") from error

    def json(self, kind: type[T]) -> T:
        """Returns the body as a record; InvalidArgument if it does not fit. Old clients get one text for all faults."""
        body = self.body or (b"{}" if self.surface is Surface.QUEUES else b"")  # Queen's clients send no empty object
        try:
            if not body.isascii():
                body.decode()  # parts that are kept as they came are not looked at by the parser
            return msgspec.json.decode(body, type=kind)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if self.surface is not Surface.ROOT:
                raise InvalidArgument(f"the body does not fit: {error}") from error
            raise InvalidArgument("invalid JSON body") from error


class Answer(msgspec.Struct):
    """What a handler returns: a record for JSON, bytes with their media type, or a stream."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = {}  # a new one for each answer
    content_type: str = JSON
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """An operation, and the handler that carries it out."""

    operation: Operation[Any]
    handler: Handler
