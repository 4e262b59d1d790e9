"""The verbs of rules: who may send, publish, subscribe and read keys."""

from __future__ import annotations

from angelia.client.answers import Decision, Policies, PolicyRule
from angelia.client.exchange import Credential, Exchange, Request, document, path, query
from angelia.policy.model import Action, Effect


def policies(*, cursor: str | None = None, limit: int | None = None) -> Exchange[Policies]:
    """A page of the rules, in the order in which they were made. For operators."""
    page = query(cursor=cursor, limit=limit)
    answer = yield Request("GET", "/v1/policies", page, credential=Credential.OPERATOR)
    return answer.read(Policies)


def add_policy(
    effect: Effect,
    action: Action,
    *,
    subject: str,
    object: str,
    priority: int = 0,
    expires_in: int | None = None,
    rate: str | None = None,
) -> Exchange[PolicyRule]:
    """Make a rule, for `expires_in` seconds or until it is removed; it counts at once. For operators."""
    body = document(
        effect=effect,
        action=action,
        subject=subject,
        object=object,
        priority=priority,
        expires_in=expires_in,
        rate=rate,
    )
    answer = yield Request("POST", "/v1/policies", body=body, idempotent=False, credential=Credential.OPERATOR)
    return answer.read(PolicyRule)


def remove_policy(rule_id: str) -> Exchange[None]:
    """Remove a rule; what only it allowed is denied from then on. For operators."""
    answer = yield Request("DELETE", path("v1", "policies", rule_id), idempotent=False, credential=Credential.OPERATOR)
    answer.nothing()


def check_policy(action: Action, object: str, *, subject: str | None = None) -> Exchange[Decision]:
    """What the rules say about the agent that signs; operators ask about any `subject`, and learn the rule."""
    credential = Credential.AGENT if subject is None else Credential.OPERATOR
    body = document(subject=subject, action=action, object=object)
    answer = yield Request("POST", "/v1/authz/check", body=body, credential=credential)
    return answer.read(Decision)
