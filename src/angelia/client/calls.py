"""Every verb of the HTTP API, once: a generator that yields requests and returns the answer.

The blocking and the asynchronous client both run these; neither knows anything about a verb.
"""

from __future__ import annotations

import base64
from datetime import datetime

from angelia.client.answers import (
    Agent,
    Agents,
    Block,
    BlockedAgents,
    Blocks,
    Chain,
    Checkpoint,
    Checkpoints,
    Events,
    Health,
    NewToken,
    Node,
    Profile,
    Registered,
    Runs,
    SettingLine,
    SettingLines,
    Tokens,
    Unsealed,
)
from angelia.client.exchange import Credential, Exchange, Request, document, path, query


def register(public_key: bytes, *, name: str | None = None, email: str | None = None) -> Exchange[Registered]:
    """Register an Ed25519 key. Repeating it gives the same agent; signed, it may change name and e-mail."""
    body = document(public_key=base64.b64encode(public_key).decode(), name=name, email=email)
    answer = yield Request("POST", "/register", body=body)
    return answer.read(Registered)


def who(agent_id: str) -> Exchange[Profile]:
    """The public profile of an agent."""
    answer = yield Request("GET", path("who", agent_id), credential=Credential.NONE)
    return answer.read(Profile)


def me() -> Exchange[Agent]:
    """The agent that signs."""
    answer = yield Request("GET", "/v1/agents/me")
    return answer.read(Agent)


def claim_handle(handle: str) -> Exchange[Agent]:
    """Claim the handle of the agent that signs: once, and for ever."""
    answer = yield Request("PUT", "/v1/agents/me/handle", body=document(handle=handle))
    return answer.read(Agent)


def update_me(
    *, name: str | None = None, email: str | None = None, aicq_signatures: bool | None = None
) -> Exchange[Agent]:
    """Change what the agent that signs says about itself; what is not given stays."""
    body = document(name=name, email=email, aicq_signatures=aicq_signatures)
    answer = yield Request("PATCH", "/v1/agents/me", body=body)
    return answer.read(Agent)


def agents(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Exchange[Agents]:
    """A page of all agents, by date of registration. For operators."""
    filters = query(since=_rfc3339(since), until=_rfc3339(until), cursor=cursor, limit=limit)
    answer = yield _operator("GET", "/v1/agents", query=filters)
    return answer.read(Agents)


def agent(handle_or_id: str) -> Exchange[Agent]:
    """One agent. For operators."""
    answer = yield _operator("GET", path("v1", "agents", handle_or_id))
    return answer.read(Agent)


def block_agent(handle_or_id: str) -> Exchange[None]:
    """Take no mail and no direct messages from an agent."""
    answer = yield Request("PUT", path("v1", "blocks", handle_or_id))
    answer.nothing()


def unblock_agent(handle_or_id: str) -> Exchange[None]:
    """Hear from an agent again."""
    answer = yield Request("DELETE", path("v1", "blocks", handle_or_id))
    answer.nothing()


def blocked_agents(*, cursor: str | None = None, limit: int | None = None) -> Exchange[BlockedAgents]:
    """A page of the agents that the one that signs has blocked."""
    answer = yield Request("GET", "/v1/blocks", query(cursor=cursor, limit=limit))
    return answer.read(BlockedAgents)


def tokens(*, cursor: str | None = None, limit: int | None = None) -> Exchange[Tokens]:
    """A page of bearer tokens. For operators."""
    answer = yield _operator("GET", "/v1/tokens", query=query(cursor=cursor, limit=limit))
    return answer.read(Tokens)


def create_token(
    role: str, *, agent: str | None = None, label: str | None = None, expires_in: int | None = None
) -> Exchange[NewToken]:
    """Make a bearer token, for `expires_in` seconds or until it is revoked. For operators."""
    body = document(role=role, agent=agent, label=label, expires_in=expires_in)
    answer = yield _operator("POST", "/v1/tokens", body=body, idempotent=False)
    return answer.read(NewToken)


def revoke_token(token_id: str) -> Exchange[None]:
    """Withdraw a bearer token. For operators."""
    answer = yield _operator("DELETE", path("v1", "tokens", token_id), idempotent=False)
    answer.nothing()


def blocks(*, cursor: str | None = None, limit: int | None = None) -> Exchange[Blocks]:
    """A page of blocked addresses. For operators."""
    answer = yield _operator("GET", "/v1/guard/blocks", query=query(cursor=cursor, limit=limit))
    return answer.read(Blocks)


def block(address: str, *, reason: str | None = None, expires_in: int | None = None) -> Exchange[Block]:
    """Refuse every request from an address. For operators."""
    body = document(address=address, reason=reason, expires_in=expires_in)
    answer = yield _operator("POST", "/v1/guard/blocks", body=body, idempotent=False)
    return answer.read(Block)


def unblock(address: str) -> Exchange[None]:
    """Let an address in again. For operators."""
    answer = yield _operator("DELETE", path("v1", "guard", "blocks", address), idempotent=False)
    answer.nothing()


def settings() -> Exchange[list[SettingLine]]:
    """The server's settings and where each came from. For operators."""
    answer = yield _operator("GET", "/v1/settings")
    return answer.read(SettingLines).settings


def node() -> Exchange[Node]:
    """The public key with which the server signs checkpoints."""
    answer = yield Request("GET", "/v1/node", credential=Credential.NONE)
    return answer.read(Node)


def audit_events(
    *,
    type: str | None = None,
    actor: str | None = None,
    message_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Exchange[Events]:
    """A page of audit events. For operators."""
    filters = query(
        type=type,
        actor=actor,
        message_id=message_id,
        from_=_rfc3339(since),
        to=_rfc3339(until),
        cursor=cursor,
        limit=limit,
    )
    answer = yield _operator("GET", "/v1/audit/events", query=filters)
    return answer.read(Events)


def audit_chain(*, after: int = 0, limit: int | None = None) -> Exchange[Chain]:
    """The entries of the audit chain after a position. For operators."""
    answer = yield _operator("GET", "/v1/audit/chain", query=query(after=after, limit=limit))
    return answer.read(Chain)


def audit_checkpoints(*, after: int = 0, limit: int | None = None) -> Exchange[list[Checkpoint]]:
    """The node's signatures under the chain, after a position. For operators."""
    answer = yield _operator("GET", "/v1/audit/checkpoints", query=query(after=after, limit=limit))
    return answer.read(Checkpoints).checkpoints


def audit_checkpoint(position: int) -> Exchange[Checkpoint]:
    """The node's signature under the chain up to a position. For operators."""
    answer = yield _operator("GET", f"/v1/audit/checkpoints/{position}")
    return answer.read(Checkpoint)


def audit_unsealed(
    *, since: datetime | None = None, until: datetime | None = None, limit: int | None = None
) -> Exchange[Unsealed]:
    """Events of that time that the chain should have and has not, and the unsealed tail. For operators."""
    span = query(from_=_rfc3339(since), to=_rfc3339(until), limit=limit)
    answer = yield _operator("GET", "/v1/audit/unsealed", query=span)
    return answer.read(Unsealed)


def runs(
    *, job: str | None = None, state: str | None = None, cursor: str | None = None, limit: int | None = None
) -> Exchange[Runs]:
    """A page of the pipeline's runs, newest first. For operators."""
    answer = yield _operator("GET", "/v1/runs", query=query(job=job, state=state, cursor=cursor, limit=limit))
    return answer.read(Runs)


def health() -> Exchange[Health]:
    """How the server and its stores are; a degraded server is an answer, not an error."""
    answer = yield Request("GET", "/health", credential=Credential.NONE, accepts=(503,))
    return answer.read(Health)


def alive() -> Exchange[bool]:
    """Whether the server's process lives."""
    yield Request("GET", "/healthz", credential=Credential.NONE)
    return True


def _operator(method: str, path: str, *, query: str = "", body: bytes = b"", idempotent: bool = True) -> Request:
    return Request(method, path, query, body, idempotent, Credential.OPERATOR)


def _rfc3339(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
