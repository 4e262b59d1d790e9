"""The operations on agents: registration, the agent's own record, its block list, and the operator's list."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from angelia.api import NOTHING, Access, Moment, Operation, PageQuery, Per, Rule

TAG = "agents"
REGISTER_RULE = Rule("register", 10, 3_600_000, Per.ADDRESS)
WHO_RULE = Rule("who", 100, 60_000, Per.ADDRESS)
PROFILE_RULE = Rule("profile", 600, 60_000, Per.AGENT)
IDENTITY_RULE = Rule("identity", 60, 60_000, Per.AGENT)


class RegisterBody(msgspec.Struct, frozen=True):
    """The public key to register as an agent."""

    public_key: str = ""
    name: str = ""
    email: str = ""


class RegisterAnswer(msgspec.Struct, frozen=True):
    """The registered agent's id, which never changes."""

    id: UUID
    profile_url: str


class AgentProfile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A public profile; name and e-mail are left out when empty, and so is a handle that was never claimed."""

    id: UUID
    handle: str = ""
    name: str = ""
    email: str = ""
    public_key: bytes
    joined_at: datetime


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as itself and its operators see it."""

    id: UUID
    handle: str
    key_id: UUID
    public_key: bytes
    name: str
    email: str
    registered_at: datetime
    updated_at: datetime
    aicq_signatures: bool


class HandleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The handle to claim."""

    handle: str


class AgentChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent may change about itself; fields that are left out stay as they are."""

    name: str | UnsetType = UNSET
    email: str | UnsetType = UNSET
    aicq_signatures: bool | UnsetType = UNSET


class AgentQuery(PageQuery, frozen=True, kw_only=True):
    """Agents by date of registration."""

    name: (
        Annotated[str, msgspec.Meta(description="Those of this name, then those whose name begins with it")] | None
    ) = None
    since: Annotated[Moment, msgspec.Meta(description="Registered at this time or later")] | None = None
    until: Annotated[Moment, msgspec.Meta(description="Registered before this time")] | None = None


class AgentList(msgspec.Struct, frozen=True):
    """A page of agents, by date of registration."""

    agents: list[AgentRecord]
    next: str | None
    total: int


class BlockedAgentRecord(msgspec.Struct, frozen=True):
    """An agent that the caller has blocked."""

    agent: str
    blocked_at: datetime


class BlockedAgentList(msgspec.Struct, frozen=True):
    """A page of the caller's block list, the oldest entry first."""

    blocks: list[BlockedAgentRecord]
    next: str | None
    total: int


_AGENT = {"agent": "The agent's handle or id"}

REGISTER = Operation(
    TAG, "POST", "/register", Access.ANYONE, "Register a key as an agent", RegisterAnswer,
    statuses=(201, 200), body=RegisterBody, rule=REGISTER_RULE,
)  # fmt: skip
WHO = Operation(
    TAG, "GET", "/who/{id}", Access.ANYONE, "Public profile of an agent", AgentProfile,
    parameters={"id": "The agent's id"}, rule=WHO_RULE,
)  # fmt: skip
PROFILE = Operation(
    TAG, "GET", "/v1/agents/{agent}/profile", Access.AGENT, "Public profile of an agent, by handle or id", AgentProfile,
    parameters=_AGENT, rule=PROFILE_RULE,
)  # fmt: skip
ME = Operation(TAG, "GET", "/v1/agents/me", Access.AGENT, "The calling agent", AgentRecord)
UPDATE = Operation(
    TAG, "PATCH", "/v1/agents/me", Access.SIGNED, "Change name, e-mail or the use of old signatures", AgentRecord,
    body=AgentChange, rule=IDENTITY_RULE,
)  # fmt: skip
CLAIM_HANDLE = Operation(
    TAG, "PUT", "/v1/agents/me/handle", Access.SIGNED, "Claim a handle, once and for ever", AgentRecord,
    body=HandleBody, rule=IDENTITY_RULE,
)  # fmt: skip
LIST = Operation(
    TAG, "GET", "/v1/agents", Access.ADMIN, "Agents in order of registration", AgentList, query=AgentQuery
)  # fmt: skip
SHOW = Operation(
    TAG, "GET", "/v1/agents/{agent}", Access.ADMIN, "One agent, by handle or id", AgentRecord, parameters=_AGENT
)  # fmt: skip
LIST_BLOCKED = Operation(
    TAG, "GET", "/v1/blocks", Access.AGENT, "Whom the caller has blocked", BlockedAgentList, query=PageQuery
)  # fmt: skip
BLOCK = Operation(
    TAG, "PUT", "/v1/blocks/{agent}", Access.AGENT, "Take no mail and no direct messages from an agent", NOTHING,
    statuses=(204,), parameters=_AGENT, rule=IDENTITY_RULE,
)  # fmt: skip
UNBLOCK = Operation(
    TAG, "DELETE", "/v1/blocks/{agent}", Access.AGENT, "Hear from an agent again", NOTHING,
    statuses=(204,), parameters=_AGENT, rule=IDENTITY_RULE,
)  # fmt: skip
