"""What the server answers, as records. Members that a newer server adds are ignored."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from angelia.audit.model import ChainEntry, Checkpoint, Floor, SignedEntry, StoredEvent
from angelia.guard.model import Block, Token
from angelia.keys.model import GraceKey, LinkDocument, Rotation, RotationPolicy
from angelia.policy.model import PolicyRule
from angelia.runs.model import Run

__all__ = [
    "Agent",
    "Agents",
    "Block",
    "BlockedAgent",
    "BlockedAgents",
    "Blocks",
    "Chain",
    "ChainEntry",
    "Check",
    "Checkpoint",
    "Checkpoints",
    "Decision",
    "Events",
    "Health",
    "History",
    "Key",
    "Links",
    "NewToken",
    "Node",
    "OneTimeKeysAdded",
    "OneTimeKeysLeft",
    "Policies",
    "PolicyRule",
    "Profile",
    "Published",
    "Registered",
    "Run",
    "Runs",
    "Schedule",
    "Schedules",
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


class BlockedAgent(Answer, frozen=True, kw_only=True):
    """An agent whose mail and direct messages are refused."""

    agent: str
    blocked_at: datetime


class BlockedAgents(Answer, frozen=True, kw_only=True):
    """A page of an agent's block list, in the order in which it was made."""

    blocks: list[BlockedAgent]
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


class Policies(Answer, frozen=True, kw_only=True):
    """A page of rules, in the order in which they were made."""

    policies: list[PolicyRule]
    next: str | None
    total: int


class Decision(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """What the rules say. Operators learn which rule it was; without one, no rule allows it."""

    allowed: bool
    rule_id: UUID | None = None


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
    signed: SignedEntry | None = None


class Events(Answer, frozen=True, kw_only=True):
    """A page of audit events."""

    events: list[StoredEvent]
    next: str | None


class Chain(Answer, frozen=True, kw_only=True):
    """A page of the audit chain."""

    entries: list[ChainEntry]
    sealed_to: int
    floor: Floor = Floor()


class Checkpoints(Answer, frozen=True, kw_only=True):
    checkpoints: list[Checkpoint]


class Unsealed(Answer, frozen=True, kw_only=True):
    """Events outside the chain: those that no seal explains, and those that wait for the sealer."""

    strays: list[StoredEvent]
    tail: list[StoredEvent]


class Runs(Answer, frozen=True, kw_only=True):
    """A page of the pipeline's runs."""

    runs: list[Run]
    next: str | None


class Published(Answer, frozen=True, kw_only=True):
    """A bundle that the server took; `prekeys_uploaded` counts the unused one-time keys that it has."""

    bundle_id: str
    bundle_version: int
    prekeys_uploaded: int


class Links(Answer, frozen=True, kw_only=True):
    """A page of the chain of bundles, oldest first; `revoked` is about the newest bundle of all."""

    bundles: list[LinkDocument]
    has_more: bool
    revoked: list[UUID] = []


class OneTimeKeysAdded(Answer, frozen=True, kw_only=True):
    added: int
    count: int


class OneTimeKeysLeft(Answer, frozen=True, kw_only=True):
    count: int


class Key(Answer, frozen=True, kw_only=True):
    """One public key and how it stands."""

    key_id: UUID
    key_type: str
    status: str
    created_at: datetime
    expires_at: datetime | None = None
    rotated_at: datetime | None = None
    revoked_at: datetime | None = None
    compromised_since: datetime | None = None


class History(Answer, frozen=True, kw_only=True):
    """A page of rotations, newest first."""

    rotations: list[Rotation]
    next: str | None


class Schedule(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """How often the agent wants new keys for a peer; `due_since` says that a rotation is asked for."""

    session_id: UUID
    peer: str
    policy: RotationPolicy
    current_key_id: UUID
    current_key_version: int
    last_rotated_at: datetime
    next_rotation_at: datetime | None = None
    due_since: datetime | None = None
    grace_period_keys: list[GraceKey] = []


class Schedules(Answer, frozen=True, kw_only=True):
    schedules: list[Schedule]
    next: str | None = None


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
