"""Which agent a handle or an id belongs to, as the server says."""

from __future__ import annotations

from uuid import UUID

from angelia.agents import api as agents
from angelia.agents.api import AgentProfile
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.operation_requests import ask


def is_id(agent: str) -> bool:
    """Whether a name is an id. An agent that claimed no handle has its id as handle; no other handle looks like one."""
    try:
        return str(UUID(agent)) == agent
    except ValueError:
        return False


def find_agent(agent: str | UUID) -> Exchange[AgentProfile]:
    """Returns the profile of an agent, given by its handle or id. Which agent has a handle is the server's word."""
    name = str(agent)
    profile = yield from ask(agents.WHO if is_id(name) else agents.PROFILE, name)
    if name not in (str(profile.id), profile.handle):
        raise BadAnswer(f"asked for {name}, the server answered with {profile.handle or profile.id}")
    return profile
