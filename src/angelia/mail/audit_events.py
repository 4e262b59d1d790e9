"""Audit events about messages."""

from __future__ import annotations

from datetime import datetime

from angelia.audit import service as audit
from angelia.audit.model import Detail, Event
from angelia.mail.model import EnvelopeRow, ReceiptRow


def audit_event(
    kind: str, message: EnvelopeRow | ReceiptRow, at: datetime, actor: str, object: str, detail: Detail | None = None
) -> Event:
    """An event about a message: `actor` did it, `object` is the agent at the message's other end."""
    message_id, replay_key = message.message_id, message.replay_key
    return audit.event(
        kind, at, actor=actor, object=object, message_id=message_id, replay_key=replay_key, detail=detail
    )
