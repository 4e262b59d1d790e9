"""Registers the key of an agent."""

from __future__ import annotations

import base64

from angelia.agents.api import REGISTER, RegisterAnswer, RegisterBody
from angelia.client.exchange import Credential, Exchange
from angelia.client.operation_requests import ask


def register(public_key: bytes, *, name: str | None = None, email: str | None = None) -> Exchange[RegisterAnswer]:
    """Register an Ed25519 key. Repeating it gives the same agent; signed, it may change name and e-mail."""
    body = RegisterBody(base64.b64encode(public_key).decode(), name or "", email or "")
    return ask(REGISTER, body=body, credential=Credential.AGENT)
