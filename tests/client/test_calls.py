"""Each verb says the request that the API wants, and reads the answer that it gives. No network."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from angelia.channels import api as channels
from angelia.client import BadAnswer, calls, key_calls, policy_calls
from angelia.client.exchange import Credential, Exchange, Request, Response
from angelia.client.operations import ask

AGENT = {
    "id": "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10",
    "handle": "alice",
    "key_id": "470464ba-e91c-849e-83a7-7c19d05949df",
    "public_key": "SMZC6av9sg/2ahINYdm9E8OIDV3kDQaDG5eDjEIKEkU=",
    "name": "Alice",
    "email": "",
    "registered_at": "2026-11-15T20:14:02.123456Z",
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
NODE = {"key_id": AGENT["key_id"], "public_key": AGENT["public_key"]}
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
}
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


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
        (calls.me(), AGENT, "GET /v1/agents/me", None),
        (calls.claim_handle("alice"), AGENT, "PUT /v1/agents/me/handle", {"handle": "alice"}),
        (calls.update_me(aicq_signatures=False), AGENT, "PATCH /v1/agents/me", {"aicq_signatures": False}),
        (calls.agent("alice"), AGENT, "GET /v1/agents/alice", None),
        (
            calls.agents(since=NOON, cursor="c=1", limit=5),
            {"agents": [AGENT], "next": None, "total": 1},
            "GET /v1/agents?since=2026-11-15T12%3A00%3A00Z&cursor=c%3D1&limit=5",
            None,
        ),
        (calls.who(AGENT["id"]), {"id": AGENT["id"], "public_key": "AAAA", "joined_at": "2026-11-15T12:00:00Z"},
         f"GET /who/{AGENT['id']}", None),
        (calls.register(bytes(32), name="A"), {"id": AGENT["id"], "profile_url": "/who/x"},
         "POST /register", {"public_key": "A" * 43 + "=", "name": "A"}),
        (calls.tokens(limit=2), {"tokens": [TOKEN], "next": "n", "total": 9}, "GET /v1/tokens?limit=2", None),
        (calls.create_token("read-only", expires_in=60), {**TOKEN, "token": "agt_x"},
         "POST /v1/tokens", {"role": "read-only", "expires_in": 60}),
        (calls.revoke_token("32a0"), None, "DELETE /v1/tokens/32a0", None),
        (calls.blocks(), {"blocks": [BLOCK], "total": 1}, "GET /v1/guard/blocks", None),
        (calls.block("2001:db8::1", reason="abuse"), BLOCK,
         "POST /v1/guard/blocks", {"address": "2001:db8::1", "reason": "abuse"}),
        (calls.unblock("2001:db8::1"), None, "DELETE /v1/guard/blocks/2001%3Adb8%3A%3A1", None),
        (calls.block_agent("bob"), None, "PUT /v1/blocks/bob", None),
        (calls.unblock_agent("a/b"), None, "DELETE /v1/blocks/a%2Fb", None),
        (calls.blocked_agents(limit=2),
         {"blocks": [{"agent": "bob", "blocked_at": "2026-11-15T20:14:02Z"}], "next": None, "total": 1},
         "GET /v1/blocks?limit=2", None),
        (calls.settings(), {"settings": [{"name": "n", "value": "v", "origin": "o", "about": "a"}]},
         "GET /v1/settings", None),
        (calls.node(), NODE, "GET /v1/node", None),
        (calls.audit_events(type="x y", since=NOON), {"events": [], "next": None},
         "GET /v1/audit/events?type=x%20y&from=2026-11-15T12%3A00%3A00Z", None),
        (calls.audit_chain(after=7, limit=3), {"entries": [], "sealed_to": 7},
         "GET /v1/audit/chain?after=7&limit=3", None),
        (calls.audit_checkpoints(), {"checkpoints": []}, "GET /v1/audit/checkpoints?after=0", None),
        (calls.audit_unsealed(), {"strays": [], "tail": []}, "GET /v1/audit/unsealed", None),
        (calls.runs(job="archive audit", state="failed"), {"runs": [RUN], "next": None},
         "GET /v1/runs?job=archive%20audit&state=failed", None),
        (calls.health(), HEALTH, "GET /health", None),
        (calls.alive(), {"status": "ok"}, "GET /healthz", None),
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
        lambda: calls.block_agent("bob"),
        lambda: calls.unblock_agent("bob"),
        lambda: calls.revoke_token(TOKEN["id"]),
        lambda: calls.unblock("192.0.2.1"),
        lambda: ask(channels.DELETE, UUID(int=1)),
        lambda: key_calls.remove_schedule("bob"),
        lambda: policy_calls.remove_policy("1"),
    ],
)
def test_what_is_only_done_was_done_by_an_angelia_server(call: Callable[[], Exchange[None]]) -> None:
    for status, body in ((200, b"<h1>log in first</h1>"), (200, b""), (204, b"but")):
        calling = call()
        request = next(calling)
        with pytest.raises(BadAnswer):
            calling.send(Response(request.method, request.path, status, {}, body))


def test_an_agent_is_read_with_its_types() -> None:
    _, agent = held(calls.me(), AGENT)
    assert agent.id == UUID(AGENT["id"])
    assert len(agent.public_key) == 32
    assert agent.registered_at == datetime(2026, 11, 15, 20, 14, 2, 123456, tzinfo=UTC)


def test_a_newer_server_may_say_more() -> None:
    _, agent = held(calls.me(), {**AGENT, "fingerprint": "q3Zr"})
    assert agent.handle == "alice"


def test_an_answer_of_another_shape_is_an_error_that_says_where() -> None:
    call = calls.me()
    request = next(call)
    with pytest.raises(BadAnswer, match="GET /v1/agents/me cannot be read"):
        call.send(Response("GET", request.path, 200, {}, b'{"hello": 1}'))


def test_what_makes_something_new_is_not_repeated_blindly() -> None:
    for call in (calls.create_token("admin"), calls.block("10.0.0.1"), calls.revoke_token("x"), calls.unblock("x")):
        assert not next(call).idempotent
    for call in (calls.register(bytes(32)), calls.me(), calls.claim_handle("a"), calls.update_me(name="b")):
        assert next(call).idempotent


def test_operators_verbs_prefer_the_token_and_public_ones_show_nothing() -> None:
    assert next(calls.tokens()).credential is Credential.OPERATOR
    assert next(calls.me()).credential is Credential.AGENT
    assert next(calls.who("x")).credential is Credential.NONE


@pytest.mark.parametrize("evil", ["../admin", "a/b", "a?b=c", "a#b", "ä", "%2e%2e"])
def test_a_name_can_never_leave_its_place_in_the_path(evil: str) -> None:
    path = next(calls.agent(evil)).path
    assert path.startswith("/v1/agents/")
    assert path.count("/") == 3
    assert not set(path) & set("?#")
