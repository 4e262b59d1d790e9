"""Each verb says the request that the API wants, and reads the answer that it gives. No network."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import UUID

import pytest

from angelia.channels import api as channels
from angelia.client import (
    AsyncClient,
    BadAnswer,
    Client,
    channel_verbs,
    key_calls,
    key_verbs,
    mail_verbs,
    queue_verbs,
    room_verbs,
    verbs,
)
from angelia.client.exchange import Credential, Exchange, Request, Response
from angelia.client.namespaces import Namespace, Verb
from angelia.client.operation_requests import ask
from angelia.policy.model import Action, Effect
from angelia.runs.model import RunState

AGENT = {
    "id": "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10",
    "handle": "alice",
    "key_id": "470464ba-e91c-849e-83a7-7c19d05949df",
    "public_key": "SMZC6av9sg/2ahINYdm9E8OIDV3kDQaDG5eDjEIKEkU=",
    "name": "Alice",
    "email": "",
    "registered_at": "2026-11-15T20:14:02.123456Z",
    "updated_at": "2026-11-15T20:14:02.123456Z",
    "aicq_signatures": True,
}
TOKEN = {
    "id": "32a040ba-429b-483b-8da8-76d0b634730f",
    "label": "dash",
    "role": "read-only",
    "agent": None,
    "created_at": "2026-11-15T20:14:02Z",
    "expires_at": None,
    "last_used_at": None,
}
BLOCK = {
    "address": "2001:db8::1",
    "reason": "abuse",
    "blocked_at": "2026-11-15T20:14:02Z",
    "expires_at": None,
    "blocked_by": "alice",
}
NODE = {"key_id": AGENT["key_id"], "public_key": AGENT["public_key"], "signed": None}
RUN = {
    "run_id": "9f31c2ab-71e2-4a52-9f4e-2b7c51d0aa10",
    "job": "archive audit",
    "state": "failed",
    "at_work": False,
    "version": 3,
    "from": "2026-11-14T00:00:00Z",
    "to": "2026-11-15T00:00:00Z",
    "cutoff": None,
    "rows": None,
    "report": {"error": "it died"},
    "started_at": "2026-11-15T20:02:11Z",
    "updated_at": "2026-11-15T20:14:02Z",
}
HEALTH = {
    "status": "degraded",
    "version": "1",
    "timestamp": "2026-11-15T20:14:02Z",
    "checks": {"redis": {"status": "fail"}},
    "database": "healthy",
    "server": "angelia",
    "worker_id": 0,
}
RULE = {
    "rule_id": "5b0f3c9a-71e2-4a52-9f4e-2b7c51d0aa10",
    "priority": 5,
    "effect": "allow",
    "action": "send",
    "subject": "team-*",
    "object": "bob",
    "expires_at": None,
    "rate": "100/1m",
    "created_by": "admin",
    "created_at": "2026-11-15T20:14:02Z",
}
ALLOWED = {"allowed": True, "rule_id": RULE["rule_id"]}
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def unrun(namespace: type[Namespace[Any]]) -> Any:
    """A namespace whose verbs return their exchange instead of running it."""
    return namespace(lambda exchange: exchange)


agents, tokens, guard, policy = map(unrun, (verbs.AgentVerbs, verbs.TokenVerbs, verbs.GuardVerbs, verbs.PolicyVerbs))
audit, runs, server = map(unrun, (verbs.AuditVerbs, verbs.RunVerbs, verbs.ServerVerbs))


def held(call: Exchange[Any], answer: object) -> tuple[Request, Any]:
    """Run a call of one request against one answer."""
    request = next(call)
    body = b"" if answer is None else json.dumps(answer).encode()
    with pytest.raises(StopIteration) as end:
        call.send(Response(request.method, request.path, 204 if answer is None else 200, {}, body))
    return request, end.value.value


@pytest.mark.parametrize(
    ("call", "answer", "asked", "body"),
    [
        (agents.me(), AGENT, "GET /v1/agents/me", None),
        (agents.claim_handle("alice"), AGENT, "PUT /v1/agents/me/handle", {"handle": "alice"}),
        (agents.update(aicq_signatures=False), AGENT, "PATCH /v1/agents/me", {"aicq_signatures": False}),
        (agents.show("alice"), AGENT, "GET /v1/agents/alice", None),
        (
            agents.list(since=NOON, cursor="c=1", limit=5),
            {"agents": [AGENT], "next": None, "total": 1},
            "GET /v1/agents?cursor=c%3D1&limit=5&since=2026-11-15T12%3A00%3A00Z",
            None,
        ),
        (agents.profile(AGENT["id"]), {"id": AGENT["id"], "public_key": "AAAA", "joined_at": "2026-11-15T12:00:00Z"},
         f"GET /who/{AGENT['id']}", None),
        (agents.register(bytes(32), name="A"), {"id": AGENT["id"], "profile_url": "/who/x"},
         "POST /register", {"public_key": "A" * 43 + "=", "name": "A"}),
        (tokens.list(limit=2), {"tokens": [TOKEN], "next": "n", "total": 9}, "GET /v1/tokens?limit=2", None),
        (tokens.create("read-only", expires_in=60), {**TOKEN, "token": "agt_x"},
         "POST /v1/tokens", {"role": "read-only", "expires_in": 60}),
        (tokens.revoke("32a0"), None, "DELETE /v1/tokens/32a0", None),
        (guard.blocks(), {"blocks": [BLOCK], "next": None, "total": 1}, "GET /v1/guard/blocks", None),
        (guard.block("2001:db8::1", reason="abuse"), BLOCK,
         "POST /v1/guard/blocks", {"address": "2001:db8::1", "reason": "abuse"}),
        (guard.unblock("2001:db8::1"), None, "DELETE /v1/guard/blocks/2001%3Adb8%3A%3A1", None),
        (agents.block("bob"), None, "PUT /v1/blocks/bob", None),
        (agents.unblock("a/b"), None, "DELETE /v1/blocks/a%2Fb", None),
        (agents.blocked(limit=2),
         {"blocks": [{"agent": "bob", "blocked_at": "2026-11-15T20:14:02Z"}], "next": None, "total": 1},
         "GET /v1/blocks?limit=2", None),
        (server.settings(), {"settings": [{"name": "n", "value": "v", "origin": "o", "about": "a"}]},
         "GET /v1/settings", None),
        (server.node(), NODE, "GET /v1/node", None),
        (audit.events(type="x y", since=NOON), {"events": [], "next": None},
         "GET /v1/audit/events?type=x%20y&from=2026-11-15T12%3A00%3A00Z", None),
        (audit.chain(after=7, limit=3), {"entries": [], "sealed_to": 7, "floor": {"position": 0, "entry_hash": "00"}},
         "GET /v1/audit/chain?after=7&limit=3", None),
        (audit.checkpoints(), {"checkpoints": []}, "GET /v1/audit/checkpoints", None),
        (audit.unsealed(), {"strays": [], "tail": []}, "GET /v1/audit/unsealed", None),
        (runs.list(job="archive audit", state=RunState.FAILED), {"runs": [RUN], "next": None},
         "GET /v1/runs?job=archive%20audit&state=failed", None),
        (policy.list(cursor="c", limit=2), {"policies": [RULE], "next": None, "total": 1},
         "GET /v1/policies?cursor=c&limit=2", None),
        (policy.add(Effect.ALLOW, Action.SEND, subject="team-*", object="bob", priority=5, expires_in=60,
                    rate="100/1m"), RULE, "POST /v1/policies",
         {"effect": "allow", "action": "send", "subject": "team-*", "object": "bob", "priority": 5, "expires_in": 60,
          "rate": "100/1m"}),
        (policy.remove("../x"), None, "DELETE /v1/policies/..%2Fx", None),
        (policy.check(Action.READ_KEYS, "bob", subject="alice"), ALLOWED,
         "POST /v1/authz/check", {"subject": "alice", "action": "keys.read", "object": "bob"}),
        (policy.check(Action.SEND, "bob"), {"allowed": False, "rule_id": None},
         "POST /v1/authz/check", {"action": "send", "object": "bob"}),
        (server.health(), HEALTH, "GET /health", None),
        (server.alive(), {"status": "ok"}, "GET /healthz", None),
    ],
)  # fmt: skip
def test_a_verb_asks_what_the_api_wants(call: Exchange[Any], answer: object, asked: str, body: object) -> None:
    request, _ = held(call, answer)
    query = f"?{request.query}" if request.query else ""
    assert f"{request.method} {request.path}{query}" == asked
    assert (json.loads(request.body) if request.body else None) == body


@pytest.mark.parametrize(
    "call",
    [
        lambda: agents.block("bob"),
        lambda: agents.unblock("bob"),
        lambda: tokens.revoke(TOKEN["id"]),
        lambda: guard.unblock("192.0.2.1"),
        lambda: ask(channels.DELETE, UUID(int=1)),
        lambda: key_calls.remove_schedule("bob"),
        lambda: policy.remove("1"),
    ],
)
def test_what_is_only_done_was_done_by_an_angelia_server(call: Callable[[], Exchange[None]]) -> None:
    for status, body in ((200, b"<h1>log in first</h1>"), (200, b""), (204, b"but")):
        calling = call()
        request = next(calling)
        with pytest.raises(BadAnswer):
            calling.send(Response(request.method, request.path, status, {}, body))


def test_an_agent_is_read_with_its_types() -> None:
    _, agent = held(agents.me(), AGENT)
    assert agent.id == UUID(AGENT["id"])
    assert len(agent.public_key) == 32
    assert agent.registered_at == datetime(2026, 11, 15, 20, 14, 2, 123456, tzinfo=UTC)


def test_rules_and_decisions_are_read_with_their_types() -> None:
    _, page = held(policy.list(), {"policies": [RULE], "next": "n", "total": 9})
    [rule] = page.policies
    assert (rule.rule_id, rule.effect, rule.action) == (UUID(RULE["rule_id"]), Effect.ALLOW, Action.SEND)
    _, decision = held(policy.check(Action.SEND, "bob", subject="alice"), ALLOWED)
    assert (decision.allowed, decision.rule_id) == (True, rule.rule_id)


def test_a_newer_server_may_say_more() -> None:
    _, agent = held(agents.me(), {**AGENT, "fingerprint": "q3Zr"})
    assert agent.handle == "alice"


def test_an_answer_of_another_shape_is_an_error_that_says_where() -> None:
    call = agents.me()
    request = next(call)
    with pytest.raises(BadAnswer, match="GET /v1/agents/me cannot be read"):
        call.send(Response("GET", request.path, 200, {}, b'{"hello": 1}'))


def test_what_makes_something_new_is_not_repeated_blindly() -> None:
    adding = policy.add(Effect.DENY, Action.SEND, subject="*", object="bob")
    blocking = (guard.block("10.0.0.1"), guard.unblock("x"))
    for call in (tokens.create("admin"), tokens.revoke("x"), *blocking, adding, policy.remove("x")):
        assert not next(call).idempotent
    for call in (agents.register(bytes(32)), agents.me(), agents.claim_handle("a"), agents.update(name="b")):
        assert next(call).idempotent


def test_operators_verbs_prefer_the_token_and_public_ones_show_nothing() -> None:
    assert next(tokens.list()).credential is Credential.OPERATOR
    assert next(agents.me()).credential is Credential.AGENT
    assert next(agents.profile("x")).credential is Credential.NONE
    for call in (policy.add(Effect.DENY, Action.SEND, subject="*", object="bob"), policy.remove("x")):
        assert next(call).credential is Credential.OPERATOR


def test_an_agent_asks_the_rules_about_itself_with_its_own_credential() -> None:
    assert next(policy.check(Action.SEND, "bob")).credential is Credential.AGENT
    assert next(policy.check(Action.SEND, "bob", subject="alice")).credential is Credential.OPERATOR


@pytest.mark.parametrize("evil", ["../admin", "a/b", "a?b=c", "a#b", "ä", "%2e%2e"])
def test_a_name_can_never_leave_its_place_in_the_path(evil: str) -> None:
    path = next(agents.show(evil)).path
    assert path.startswith("/v1/agents/")
    assert path.count("/") == 3
    assert not set(path) & set("?#")


def declared() -> Iterator[tuple[type[Namespace[Any]], str, Verb[..., Any]]]:
    """Every verb of every namespace."""
    for module in (verbs, key_verbs, mail_verbs, channel_verbs, room_verbs, queue_verbs):
        for kind in (one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Namespace)):
            yield from ((kind, name, verb) for name, verb in vars(kind).items() if isinstance(verb, Verb))


def namespaces(client: Client | AsyncClient) -> list[object]:
    lazy = [
        name for name in dir(client) if isinstance(inspect.getattr_static(type(client), name, None), cached_property)
    ]
    return [getattr(client, name) for name in lazy]


async def test_both_clients_have_every_verb_with_its_own_signature_and_words() -> None:
    assert len(list(declared())) >= 114
    with Client("http://h") as blocking:
        async with AsyncClient("http://h") as awaited:
            for client in (blocking, awaited):
                for kind, name, verb in declared():
                    [namespace] = [one for one in namespaces(client) if isinstance(one, kind)]
                    method = getattr(namespace, name)
                    assert method.__doc__
                    assert method.__doc__ == verb._exchange.__doc__
                    assert inspect.signature(method) == inspect.signature(verb._exchange)
