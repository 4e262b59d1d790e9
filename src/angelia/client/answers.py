"""What the server answers, as records. Members that a newer server adds are ignored."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from angelia.audit.model import ChainEntry, Checkpoint, Signed, StoredEvent
from angelia.guard.model import Block, Token

__all__ = [
    "Agent",
    "Agents",
    "Block",
    "Blocks",
    "Chain",
    "ChainEntry",
    "Check",
    "Checkpoint",
    "Checkpoints",
    "Events",
    "Health",
    "NewToken",
    "Node",
    "Profile",
    "Registered",
    "SettingLine",
    "SettingLines",
    "StoredEvent",
    "Token",
    "Tokens",
    "Unsealed",
]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Members without a default are always there; the others may be left out by the server."""


class Registered(Answer, frozen=True, kw_only=True):
    """Where a registration led: the agent's id, for ever."""

    id: UUID
    profile_url: str


class Profile(Answer, frozen=True, kw_only=True):
    """What anybody may know of an agent."""

    id: UUID
    name: str = ""
    email: str = ""
    public_key: bytes
    joined_at: datetime


class Agent(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """An agent as it sees itself, and as an operator sees it."""

    id: UUID
    handle: str
    key_id: UUID
    public_key: bytes
    name: str
    email: str = ""
    registered_at: datetime
    aicq_signatures: bool


class Agents(Answer, frozen=True, kw_only=True):
    """A page of agents, by date of registration."""

    agents: list[Agent]
    next: str | None
    total: int


class NewToken(Token, frozen=True, kw_only=True):
    """A token just made: the only time that its secret is said."""

    token: str


class Tokens(Answer, frozen=True, kw_only=True):
    """A page of bearer tokens, never with their secrets."""

    tokens: list[Token]
    next: str | None
    total: int


class Blocks(Answer, frozen=True, kw_only=True):
    """A page of blocked addresses."""

    blocks: list[Block]
    total: int
    next: str | None = None


class SettingLine(Answer, frozen=True, kw_only=True):
    """One setting of the server and where its value came from; secrets are masked there."""

    name: str
    value: str
    origin: str
    about: str


class SettingLines(Answer, frozen=True, kw_only=True):
    settings: list[SettingLine]


class Node(Answer, frozen=True, kw_only=True):
    """The key with which the server signs."""

    key_id: UUID
    public_key: bytes
    signed: Signed | None = None


class Events(Answer, frozen=True, kw_only=True):
    """A page of audit events."""

    events: list[StoredEvent]
    next: str | None


class Chain(Answer, frozen=True, kw_only=True):
    """A page of the audit chain."""

    entries: list[ChainEntry]
    sealed_to: int


class Checkpoints(Answer, frozen=True, kw_only=True):
    checkpoints: list[Checkpoint]


class Unsealed(Answer, frozen=True, kw_only=True):
    """Events outside the chain: those that no seal explains, and those that wait for the sealer."""

    strays: list[StoredEvent]
    tail: list[StoredEvent]


class Check(Answer, frozen=True, kw_only=True):
    """One store's state: pass or fail."""

    status: str
    latency: str = ""
    message: str = ""


class Health(Answer, frozen=True, kw_only=True):
    """Whether the server and its stores work; `status` is healthy or degraded."""

    status: str
    version: str
    timestamp: datetime
    checks: dict[str, Check]
    database: str = ""
    server: str = ""
    worker_id: int = 0
