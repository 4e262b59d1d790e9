"""Agents over HTTP: binds the operations to the service, and shapes the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from angelia.agents import api
from angelia.agents.api import AgentList, AgentProfile, AgentRecord, BlockedAgentList, BlockedAgentRecord
from angelia.agents.model import parse_public_key
from angelia.agents.service import Agents
from angelia.api import AgentRow, Answer, Call, PageQuery, Route, cursor_after, parse_cursor, uuid_of
from angelia.errors import InvalidArgument

Meet: TypeAlias = Callable[[str, AgentRow, datetime], Awaitable[None]]


def routes(agents: Agents, *, show_email: bool, meet: Meet | None = None) -> list[Route]:
    """`meet` raises the same error for agents that the caller may not know of as for those that do not exist."""

    async def register(call: Call) -> Answer:
        body = call.json(api.RegisterBody)
        if not body.public_key:
            raise InvalidArgument("public_key is required")
        proven = await call.prove(parse_public_key(body.public_key))
        registered = await agents.register(body.public_key, body.name, body.email, call.now)
        if proven and not registered.new and (body.name or body.email):
            holder = await agents.by_id(registered.id)
            await agents.update(
                holder, call.now, name=body.name or None, email=body.email or None, aicq_signatures=None
            )
        answer = api.RegisterAnswer(registered.id, f"/who/{registered.id}")
        return Answer(201 if registered.new else 200, answer)

    def shown(agent: AgentRow) -> AgentProfile:
        return AgentProfile(
            id=agent.id,
            handle="" if agent.handle == str(agent.id) else agent.handle,
            name=agent.name,
            email=agent.email if show_email else "",
            public_key=agent.public_key,
            joined_at=agent.registered_at.replace(microsecond=0),
        )

    async def who(call: Call) -> Answer:
        return Answer(body=shown(await agents.by_id(uuid_of(call.path("id"), "invalid agent ID format"))))

    async def profile(call: Call) -> Answer:
        if meet is not None:
            await meet(call.path("agent"), call.agent, call.now)
        return Answer(body=shown(await agents.named(call.path("agent"))))

    async def me(call: Call) -> Answer:
        # Read anew: the guard's agent may be some seconds old, and clients ask this after a change.
        return Answer(body=_record(await agents.by_id(call.agent.id)))

    async def claim_handle(call: Call) -> Answer:
        wanted = call.json(api.HandleBody).handle
        return Answer(body=_record(await agents.claim_handle(call.agent, wanted, call.now)))

    async def update(call: Call) -> Answer:
        wanted = msgspec.structs.asdict(call.json(api.AgentChange))
        values = {name: None if value is UNSET else value for name, value in wanted.items()}
        return Answer(body=_record(await agents.update(call.agent, call.now, **values)))

    async def list_agents(call: Call) -> Answer:
        query = call.query(api.AgentQuery)
        found, total = await agents.list_agents(
            name=query.name,
            since=query.since,
            until=query.until,
            after=parse_cursor(query.cursor),
            limit=query.and_one_more,
        )
        shown, following = query.cut(found, lambda agent: cursor_after(agent.registered_at, agent.id))
        return Answer(body=AgentList([_record(agent) for agent in shown], following, total))

    async def show(call: Call) -> Answer:
        return Answer(body=_record(await agents.named(call.path("agent"))))

    async def block(call: Call) -> Answer:
        if meet is not None:
            await meet(call.path("agent"), call.agent, call.now)
        await agents.block(call.agent, call.path("agent"), call.now)
        return Answer(204)

    async def unblock(call: Call) -> Answer:
        await agents.unblock(call.agent, call.path("agent"), call.now)
        return Answer(204)

    async def list_blocked(call: Call) -> Answer:
        query = call.query(PageQuery)
        found, total = await agents.block_list(call.agent, parse_cursor(query.cursor), query.and_one_more)
        shown, following = query.cut(found, lambda one: cursor_after(one.blocked_at, one.id))
        records = [BlockedAgentRecord(one.handle, one.blocked_at) for one in shown]
        return Answer(body=BlockedAgentList(records, following, total))

    return [
        Route(api.REGISTER, register),
        Route(api.WHO, who),
        Route(api.PROFILE, profile),
        Route(api.ME, me),
        Route(api.UPDATE, update),
        Route(api.CLAIM_HANDLE, claim_handle),
        Route(api.LIST, list_agents),
        Route(api.SHOW, show),
        Route(api.LIST_BLOCKED, list_blocked),
        Route(api.BLOCK, block),
        Route(api.UNBLOCK, unblock),
    ]


def _record(agent: AgentRow) -> AgentRecord:
    return msgspec.convert(agent, AgentRecord, from_attributes=True)
