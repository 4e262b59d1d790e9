"""The keys of a channel that a mailbox holds, without their secrets, as its database has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.mailbox.mailbox import Mailbox

_KEYS = """
SELECT key_id, epoch, sender_nhi, received_at FROM channel_keys WHERE channel_id = ?
ORDER BY epoch DESC, received_at DESC
"""


@dataclass(frozen=True)
class HeldKey:
    key_id: UUID
    epoch: int
    sender: str
    received_at: datetime


def held_keys(mailbox: Mailbox, channel_id: UUID) -> list[HeldKey]:
    """Newest epoch first."""
    with mailbox.database.transaction() as tx:
        rows = tx.execute(_KEYS, (channel_id,)).fetchall()
    return [HeldKey(UUID(key_id), epoch, sender, datetime.fromisoformat(at)) for key_id, epoch, sender, at in rows]
