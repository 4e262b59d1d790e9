"""The verbs of rules: each says the request that the API wants, and reads the answer that it gives. No network."""

from __future__ import annotations

import inspect
import json
from typing import Any
from uuid import UUID

import pytest

from angelia.client import AsyncClient, Client, policy_calls
from angelia.client.exchange import Credential, Exchange
from angelia.policy.model import Action, Effect
from client.test_calls import held

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


@pytest.mark.parametrize(
    ("call", "answer", "asked", "body"),
    [
        (policy_calls.policies(cursor="c", limit=2), {"policies": [RULE], "next": None, "total": 1},
         "GET /v1/policies?cursor=c&limit=2", None),
        (policy_calls.add_policy(Effect.ALLOW, Action.SEND, subject="team-*", object="bob", priority=5, expires_in=60,
                                 rate="100/1m"), RULE, "POST /v1/policies",
         {"effect": "allow", "action": "send", "subject": "team-*", "object": "bob", "priority": 5, "expires_in": 60,
          "rate": "100/1m"}),
        (policy_calls.remove_policy("../x"), None, "DELETE /v1/policies/..%2Fx", None),
        (policy_calls.check_policy(Action.READ_KEYS, "bob", subject="alice"), ALLOWED,
         "POST /v1/authz/check", {"subject": "alice", "action": "keys.read", "object": "bob"}),
        (policy_calls.check_policy(Action.SEND, "bob"), {"allowed": False, "rule_id": None},
         "POST /v1/authz/check", {"action": "send", "object": "bob"}),
    ],
)  # fmt: skip
def test_a_verb_asks_what_the_api_wants(call: Exchange[Any], answer: object, asked: str, body: object) -> None:
    request, _ = held(call, answer)
    query = f"?{request.query}" if request.query else ""
    assert f"{request.method} {request.path}{query}" == asked
    assert (json.loads(request.body) if request.body else None) == body


def test_rules_and_decisions_are_read_with_their_types() -> None:
    _, page = held(policy_calls.policies(), {"policies": [RULE], "next": "n", "total": 9})
    [rule] = page.policies
    assert (rule.rule_id, rule.effect, rule.action) == (UUID(RULE["rule_id"]), Effect.ALLOW, Action.SEND)
    _, decision = held(policy_calls.check_policy(Action.SEND, "bob", subject="alice"), ALLOWED)
    assert (decision.allowed, decision.rule_id) == (True, rule.rule_id)


def test_an_agent_asks_about_itself_with_its_own_credential_and_changes_are_not_repeated_blindly() -> None:
    assert next(policy_calls.check_policy(Action.SEND, "bob")).credential is Credential.AGENT
    assert next(policy_calls.check_policy(Action.SEND, "bob", subject="alice")).credential is Credential.OPERATOR
    adding = next(policy_calls.add_policy(Effect.DENY, Action.SEND, subject="*", object="bob"))
    for request in (adding, next(policy_calls.remove_policy("x"))):
        assert (request.idempotent, request.credential) == (False, Credential.OPERATOR)


def test_both_clients_have_every_verb_of_rules_with_its_own_signature_and_words() -> None:
    verbs = {name: call for name, call in vars(policy_calls).items() if inspect.isgeneratorfunction(call)}
    assert len(verbs) == 4
    for name, call in verbs.items():
        for client in (AsyncClient, Client):
            method = getattr(client, name)
            assert method.__doc__ == call.__doc__
            assert inspect.signature(method).parameters.keys() == inspect.signature(call).parameters.keys()
