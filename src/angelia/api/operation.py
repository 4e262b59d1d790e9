"""The declaration of one operation: server, SDK and OpenAPI document are made from it, and from nothing else."""

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
_PARAMETER = re.compile(r"\{(\w+)\}")


class Access(Enum):
    """Who may call an operation. The guard decides; a handler that runs may trust `call.caller`."""

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


class Per(Enum):
    """Whose counter a rule uses."""

    ADDRESS = "address"
    AGENT = "agent"


class Rule(msgspec.Struct, frozen=True):
    """One rate limit: so many requests of one subject in any window of that length. A limit of 0 is none."""

    name: str
    limit: int
    window_ms: int
    per: Per


@dataclass(frozen=True, slots=True)
class Operation(Generic[A]):
    """One operation of the API. `answer` is the record of a success, or `NOTHING` where it has no body."""

    tag: str
    method: str
    path: str
    access: Access
    about: str
    answer: type[A]
    statuses: tuple[int, ...] = (200,)  # of a success; a handler may answer with any of them
    empty: tuple[int, ...] = ()  # statuses beside them that have no body
    or_else: tuple[Any, ...] = ()  # other records, and media types, that a success may have
    body: Any = None
    query: Any = None
    parameters: Mapping[str, str] = field(default_factory=dict)  # what each parameter of the path names
    rule: Rule | None = None
    body_limit: int | None = None
    reads: tuple[str, ...] = (JSON,)  # the media types that a body may have
    media: str | None = None  # of an answer that is a document or a stream, and no record
    waits: bool = False  # it may take as long as the caller likes, and ends when the caller goes
    repeatable: bool = True  # sent twice it does no more than sent once, so a client may try again
    page: bool = False  # a document that people reach by a link from elsewhere
    open_locally: bool = False  # served without a credential in open mode

    def __post_init__(self) -> None:
        if set(self.path_names) != set(self.parameters):
            raise ValueError(f"{self.method} {self.path}: the parameters of the path are not those that are described")

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(_PARAMETER.findall(self.path))

    @property
    def limit(self) -> int:
        """How many bytes a body may have."""
        return self.body_limit or Surface.of(self.path).body_limit
