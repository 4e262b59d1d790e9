"""Asks the rules what an agent may do."""

from __future__ import annotations

from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask, credential_for
from angelia.policy.api import CHECK, PolicyCheckBody, PolicyDecision
from angelia.policy.model import Action


def check_policy(action: Action, object: str, *, subject: str | None = None) -> Exchange[PolicyDecision]:
    """What the rules say about the agent that signs. Operators ask about any `subject`, and learn the rule."""
    body = PolicyCheckBody(subject=subject, action=action, object=object)
    return ask(CHECK, body=body, credential=credential_for(subject))
