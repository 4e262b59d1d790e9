"""Agents over HTTP: the AICQ pair `/register` and `/who`, the agent's own record, and the operator's list."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from angelia.agents.model import Agent, parse_public_key
from angelia.agents.service import Agents
from angelia.errors import InvalidArgument
from angelia.guard.declarations import (
    Access,
    Answer,
    Call,
    Moment,
    PageSize,
    Route,
    cursor_after,
    parse_cursor,
    uuid_of,
)
from angelia.guard.model import Per, Rule

REGISTER = Rule("register", 10, 3_600_000, Per.ADDRESS)
WHO = Rule("who", 100, 60_000, Per.ADDRESS)
IDENTITY = Rule("identity", 60, 60_000, Per.AGENT)

Meet: TypeAlias = Callable[[str, Agent, datetime], Awaitable[None]]


class RegisterBody(msgspec.Struct, frozen=True):
    """A key that wants to be an agent."""

    public_key: str = ""
    name: str = ""
    email: str = ""


class RegisterAnswer(msgspec.Struct, frozen=True):
    id: str
    profile_url: str


class Who(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A public profile; name and e-mail are left out when empty."""

    id: str
    name: str = ""
    email: str = ""
    public_key: str
    joined_at: str


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as itself and its operators see it."""

    id: str
    handle: str
    key_id: str
    public_key: str
    name: str
    email: str
    registered_at: datetime
    aicq_signatures: bool


class HandleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    handle: str


class AgentChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent may change about itself; what is left out stays."""

    name: str | UnsetType = UNSET
    email: str | UnsetType = UNSET
    aicq_signatures: bool | UnsetType = UNSET


class AgentQuery(msgspec.Struct, frozen=True):
    """Agents by date of registration."""

    since: Moment | None = None
    until: Moment | None = None
    cursor: str | None = None
    limit: PageSize = 50


class AgentList(msgspec.Struct, frozen=True):
    agents: list[AgentRecord]
    next: str | None
    total: int


class BlockedQuery(msgspec.Struct, frozen=True):
    cursor: str | None = None
    limit: PageSize = 50


class BlockedRecord(msgspec.Struct, frozen=True):
    """An agent that the caller does not want to hear from."""

    agent: str
    blocked_at: datetime


class BlockedRecords(msgspec.Struct, frozen=True):
    """A page of a block list, in the order in which it was made."""

    blocks: list[BlockedRecord]
    next: str | None
    total: int


def routes(agents: Agents, *, show_email: bool, meet: Meet | None = None) -> list[Route]:
    """`meet` refuses, in the same words, names that the caller may not know of and names that no agent has."""
    return [*_identity_routes(agents, show_email=show_email), *_block_routes(agents, meet)]


def _identity_routes(agents: Agents, *, show_email: bool) -> list[Route]:
    async def register(call: Call) -> Answer:
        body = call.json(RegisterBody)
        if not body.public_key:
            raise InvalidArgument("public_key is required")
        proven = await call.prove(parse_public_key(body.public_key))
        registered = await agents.register(body.public_key, body.name, body.email, call.now)
        if proven and not registered.new and (body.name or body.email):
            holder = await agents.by_id(registered.id)
            await agents.update(
                holder, call.now, name=body.name or None, email=body.email or None, aicq_signatures=None
            )
        answer = RegisterAnswer(str(registered.id), f"/who/{registered.id}")
        return Answer(201 if registered.new else 200, answer)

    async def who(call: Call) -> Answer:
        agent = await agents.by_id(uuid_of(call.path("id"), "invalid agent ID format"))
        joined = agent.registered_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        profile = Who(
            id=str(agent.id),
            name=agent.name,
            email=agent.email if show_email else "",
            public_key=_base64(agent.public_key),
            joined_at=joined,
        )
        return Answer(body=profile)

    async def me(call: Call) -> Answer:
        # Read anew: what the guard remembers of an agent may be a second old, and this is asked after a change.
        return Answer(body=_record(await agents.by_id(_proven(call).id)))

    async def claim_handle(call: Call) -> Answer:
        return Answer(body=_record(await agents.claim_handle(_proven(call), call.json(HandleBody).handle, call.now)))

    async def change(call: Call) -> Answer:
        wanted = msgspec.structs.asdict(call.json(AgentChange))
        values = {name: None if value is UNSET else value for name, value in wanted.items()}
        return Answer(body=_record(await agents.update(_proven(call), call.now, **values)))

    async def list_agents(call: Call) -> Answer:
        query = call.query(AgentQuery)
        found, total = await agents.list_agents(
            since=query.since, until=query.until, after=parse_cursor(query.cursor), limit=query.limit + 1
        )
        shown = found[: query.limit]
        more = len(found) > query.limit
        following = cursor_after(shown[-1].registered_at, shown[-1].id) if more else None
        return Answer(body=AgentList([_record(agent) for agent in shown], following, total))

    async def one_agent(call: Call) -> Answer:
        return Answer(body=_record(await agents.named(call.path("agent"))))

    return [
        Route(
            "POST", "/register", register, Access.ANYONE, "Register a key as an agent",
            {201: RegisterAnswer, 200: RegisterAnswer}, takes=RegisterBody, rule=REGISTER,
        ),
        Route("GET", "/who/{id}", who, Access.ANYONE, "Public profile of an agent", {200: Who}, rule=WHO),
        Route("GET", "/v1/agents/me", me, Access.AGENT, "The calling agent", {200: AgentRecord}),
        Route(
            "PATCH", "/v1/agents/me", change, Access.SIGNED, "Change name, e-mail or the use of old signatures",
            {200: AgentRecord}, takes=AgentChange, rule=IDENTITY,
        ),
        Route(
            "PUT", "/v1/agents/me/handle", claim_handle, Access.SIGNED, "Claim a handle, once and for ever",
            {200: AgentRecord}, takes=HandleBody, rule=IDENTITY,
        ),
        Route(
            "GET", "/v1/agents", list_agents, Access.ADMIN, "Agents in order of registration",
            {200: AgentList}, query=AgentQuery,
        ),
        Route("GET", "/v1/agents/{agent}", one_agent, Access.ADMIN, "One agent, by handle or id", {200: AgentRecord}),
    ]  # fmt: skip


def _block_routes(agents: Agents, meet: Meet | None) -> list[Route]:
    async def block(call: Call) -> Answer:
        if meet is not None:
            await meet(call.path("agent"), call.agent, call.now)
        await agents.block(call.agent, call.path("agent"), call.now)
        return Answer(204)

    async def unblock(call: Call) -> Answer:
        await agents.unblock(call.agent, call.path("agent"), call.now)
        return Answer(204)

    async def list_blocked(call: Call) -> Answer:
        query = call.query(BlockedQuery)
        found, total = await agents.block_list(call.agent, parse_cursor(query.cursor), query.limit + 1)
        shown = found[: query.limit]
        more = len(found) > query.limit
        following = cursor_after(shown[-1].blocked_at, shown[-1].id) if more else None
        records = [BlockedRecord(one.handle, one.blocked_at) for one in shown]
        return Answer(body=BlockedRecords(records, following, total))

    return [
        Route(
            "GET", "/v1/blocks", list_blocked, Access.AGENT, "Whom the caller has blocked",
            {200: BlockedRecords}, query=BlockedQuery,
        ),
        Route(
            "PUT", "/v1/blocks/{agent}", block, Access.AGENT, "Take no mail and no direct messages from an agent",
            {204: None}, rule=IDENTITY,
        ),
        Route(
            "DELETE", "/v1/blocks/{agent}", unblock, Access.AGENT, "Hear from an agent again",
            {204: None}, rule=IDENTITY,
        ),
    ]  # fmt: skip


def _proven(call: Call) -> Agent:
    assert call.caller.agent is not None, "Access.AGENT and SIGNED admit nobody else"
    return call.caller.agent


def _record(agent: Agent) -> AgentRecord:
    return AgentRecord(
        id=str(agent.id),
        handle=agent.handle,
        key_id=str(agent.key_id),
        public_key=_base64(agent.public_key),
        name=agent.name,
        email=agent.email,
        registered_at=agent.registered_at,
        aicq_signatures=agent.aicq_signatures,
    )


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
