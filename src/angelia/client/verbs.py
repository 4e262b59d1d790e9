"""The verbs of the clients for slices whose operations need nothing around them, made from their declarations.

The verbs of keys, mail, channels and rooms are in `key_verbs`, `mail_verbs`, `channel_verbs` and `room_verbs`."""

from __future__ import annotations

import base64

from angelia.agents import api as agents
from angelia.api import PageQuery
from angelia.audit import api as audit
from angelia.client.agent_profiles import find_agent
from angelia.client.exchange import Credential, Exchange
from angelia.client.namespaces import Mode, Namespace, Verb
from angelia.client.operation_requests import ask, asking, credential_for, naming, plain
from angelia.guard import api as guard
from angelia.keys import api as keys
from angelia.monitoring import api as monitoring
from angelia.policy import api as policy
from angelia.policy.model import Action
from angelia.runs import api as runs


def _register(
    public_key: bytes, *, name: str | None = None, email: str | None = None
) -> Exchange[agents.RegisterAnswer]:
    """Registers an Ed25519 key. Repeating it gives the same agent; signed, it may change name and e-mail."""
    body = agents.RegisterBody(base64.b64encode(public_key).decode(), name or "", email or "")
    return ask(agents.REGISTER, body=body, credential=Credential.AGENT)


def _check_policy(action: Action, object: str, *, subject: str | None = None) -> Exchange[policy.PolicyDecision]:
    """Returns what the rules say about the agent that signs. Operators ask about any `subject`, and learn the rule."""
    body = policy.PolicyCheckBody(subject=subject, action=action, object=object)
    return ask(policy.CHECK, body=body, credential=credential_for(subject))


class AgentVerbs(Namespace[Mode]):
    """Registration, profiles, handles and block lists of agents."""

    register = Verb(_register)
    profile = Verb(naming(agents.WHO))
    find = Verb(find_agent)
    me = Verb(plain(agents.ME))
    claim_handle = Verb(asking(agents.CLAIM_HANDLE, agents.HandleBody))
    update = Verb(asking(agents.UPDATE, agents.AgentChange))
    list = Verb(asking(agents.LIST, agents.AgentQuery))
    show = Verb(naming(agents.SHOW))
    blocked = Verb(asking(agents.LIST_BLOCKED, PageQuery))
    block = Verb(naming(agents.BLOCK))
    unblock = Verb(naming(agents.UNBLOCK))


class TokenVerbs(Namespace[Mode]):
    """Bearer tokens."""

    list = Verb(asking(guard.LIST_TOKENS, PageQuery))
    create = Verb(asking(guard.MAKE_TOKEN, guard.TokenBody))
    revoke = Verb(naming(guard.REVOKE_TOKEN))


class GuardVerbs(Namespace[Mode]):
    """Blocked addresses."""

    blocks = Verb(asking(guard.LIST_BLOCKS, PageQuery))
    block = Verb(asking(guard.BLOCK_ADDRESS, guard.BlockBody))
    unblock = Verb(naming(guard.UNBLOCK_ADDRESS))


class PolicyVerbs(Namespace[Mode]):
    """Rules: which agents may send, publish, subscribe and read keys."""

    list = Verb(asking(policy.LIST, PageQuery))
    add = Verb(asking(policy.ADD, policy.PolicyRuleBody))
    remove = Verb(naming(policy.REMOVE))
    check = Verb(_check_policy)


class AuditVerbs(Namespace[Mode]):
    """What happened, and the chain that proves it."""

    events = Verb(asking(audit.EVENTS, audit.EventQuery))
    chain = Verb(asking(audit.CHAIN, audit.PositionQuery))
    checkpoints = Verb(asking(audit.CHECKPOINTS, audit.PositionQuery))
    checkpoint = Verb(naming(audit.CHECKPOINT))
    unsealed = Verb(asking(audit.UNSEALED, audit.UnsealedQuery))


class RunVerbs(Namespace[Mode]):
    """Runs of the pipeline."""

    list = Verb(asking(runs.LIST, runs.RunQuery))


class ServerVerbs(Namespace[Mode]):
    """The server itself: its state, its settings and its key."""

    health = Verb(plain(monitoring.HEALTH))
    alive = Verb(plain(monitoring.ALIVE))
    settings = Verb(plain(monitoring.SETTINGS))
    node = Verb(plain(keys.NODE))
