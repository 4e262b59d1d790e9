"""What a sender's stream is told when something became of a message."""

from __future__ import annotations

from datetime import datetime

import msgspec

from angelia.mail.hot_store import events
from angelia.mail.model import MessageNews, Queued, ReceiptRow, Status
from angelia.stores.wake import news


def word(message: Queued | ReceiptRow, status: Status, at: datetime, reason: str | None = None) -> tuple[str, bytes]:
    """The topic of the sender's stream, and what to say there."""
    said = MessageNews(
        replay_key=message.replay_key.hex(),
        message_id=message.message_id,
        recipient=message.recipient,
        status=status,
        at=at,
        reason=reason,
    )
    return events(message.sender), news("receipt", msgspec.json.encode(said))
