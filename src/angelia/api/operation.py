"""The declaration of an operation. Server, SDK and OpenAPI document are all made from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from angelia.api.caller import Role

A = TypeVar("A")

JSON = "application/json"
NOTHING = type(None)  # the answer of an operation that has no body
PARAMETER = re.compile(r"\{(\w+)\}")


class Access(Enum):
    """The callers that an operation admits. The guard enforces this, so a handler may trust `call.caller`."""

    ANYONE = "anyone"  # credentials are ignored
    SIGNED = "signed"  # an agent that signed this request itself
    AGENT = "agent"  # an agent: by its signature, or by a token that is bound to it
    READ = "read"  # a credential of at least that role
    WRITE = "write"
    ADMIN = "admin"

    @property
    def role(self) -> Role:
        return _ROLES.get(self, Role.NONE)


_ROLES = {Access.READ: Role.READ_ONLY, Access.WRITE: Role.READ_WRITE, Access.ADMIN: Role.ADMIN}


class Surface(Enum):
    """The family of a path; it decides the form of errors and the default body limit."""

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


class Per(Enum):
    """What a rate limit counts by."""

    ADDRESS = "address"
    AGENT = "agent"


class Rule(msgspec.Struct, frozen=True):
    """A rate limit: so many requests of one address or agent in any window of that length. 0 means no limit."""

    name: str
    limit: int
    window_ms: int
    per: Per


@dataclass(frozen=True, slots=True)
class Operation(Generic[A]):
    """One operation of the API. `answer` is the record of a success, or `NOTHING` if it has no body."""

    tag: str
    method: str
    path: str
    access: Access
    about: str
    answer: type[A]
    statuses: tuple[int, ...] = (200,)  # of a success
    empty: tuple[int, ...] = ()  # more statuses of a success, without a body
    or_else: tuple[Any, ...] = ()  # other records and media types that a success may have
    body: Any = None
    query: Any = None
    parameters: Mapping[str, str] = field(default_factory=dict)  # descriptions of the path parameters
    spanning: tuple[str, ...] = ()  # path parameters that may contain slashes
    headers: Mapping[str, str] = field(default_factory=dict)  # descriptions of the headers that a caller may send
    rule: Rule | None = None
    body_limit: int | None = None
    reads: tuple[str, ...] = (JSON,)  # the media types that a body may have
    media: str | None = None  # the media type of an answer that is a document or a stream, not a record
    waits: bool = False  # a long poll or a stream: cancelled when the caller hangs up
    repeatable: bool = True  # idempotent, so a client may retry it
    page: bool = False  # a document that browsers may reach by a link from another site
    open_locally: bool = False  # served without a credential in open mode
    with_token: bool = False  # outside open mode it takes a token of role read-write besides the signature
    private_path: bool = False  # the log shows its template only

    def __post_init__(self) -> None:
        if set(self.path_names) != set(self.parameters):
            raise ValueError(f"{self.method} {self.path}: the parameters of the path are not those that are described")
        if not set(self.spanning) <= set(self.path_names):
            raise ValueError(f"{self.method} {self.path}: a spanning parameter is not in the path")

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(PARAMETER.findall(self.path))

    @property
    def limit(self) -> int:
        """The largest body, in bytes."""
        return self.body_limit or Surface.of(self.path).body_limit
