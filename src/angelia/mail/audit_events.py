"""Audit events about messages."""

from __future__ import annotations

from datetime import datetime

from angelia.audit import service as audit
from angelia.audit.model import Detail, Event
from angelia.mail.model import EnvelopeRow, ReceiptRecord


def audit_event(
    kind: str, message: EnvelopeRow | ReceiptRecord, at: datetime, actor: str, object: str, detail: Detail | None = None
) -> Event:
    """An event about a message: `actor` did it, `object` is the agent at the message's other end."""
    key = message.replay_key if isinstance(message, EnvelopeRow) else bytes.fromhex(message.replay_key)
    return audit.event(
        kind, at, actor=actor, object=object, message_id=message.message_id, replay_key=key, detail=detail
    )
