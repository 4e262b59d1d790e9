"""What a sender's stream says when the status of one of its messages changes."""

from __future__ import annotations

from datetime import datetime

import msgspec

from angelia.mail.hot_store import events
from angelia.mail.model import DeliveryEvent, DeliveryStatus, EnvelopeRow, ReceiptRecord
from angelia.stores.wake import encode_event


def delivery_event(
    message: EnvelopeRow | ReceiptRecord, status: DeliveryStatus, at: datetime, reason: str | None = None
) -> tuple[str, bytes]:
    """The topic of the sender's stream, and the event to publish there."""
    event = DeliveryEvent(
        replay_key=message.replay_key.hex() if isinstance(message, EnvelopeRow) else message.replay_key,
        message_id=message.message_id,
        recipient=message.recipient,
        status=status,
        at=at,
        reason=reason,
    )
    return events(message.sender), encode_event("receipt", msgspec.json.encode(event))
