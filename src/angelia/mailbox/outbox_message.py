"""What is known of a message that was sent: what its recipient signed, and beside it what the server says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from angelia.envelope.times import SKEW
from angelia.mailbox.database import stamp, unstamp

WITHDRAWN = "withdrawn"  # the reason of a message that its sender took back


class OutboxStatus(StrEnum):
    """How far a message has come. DELIVERED, READ and FAILED are the recipient's signed word, or FAILED is the sender's
    own, who took it back; what the server says by itself is in `OutboxMessage.reported`."""

    STORED = "stored"
    QUEUED = "queued"
    DELIVERED = "delivered"
    READ = "read"
    EXPIRED = "expired"
    FAILED = "failed"
    RESEALED = "resealed"


SIGNED = {OutboxStatus.DELIVERED, OutboxStatus.READ, OutboxStatus.FAILED}
# There is no way back: what is not named here is ignored, so that news may come twice or out of order.
_ONWARD = {
    OutboxStatus.STORED: {OutboxStatus.QUEUED, *SIGNED},
    OutboxStatus.QUEUED: SIGNED,
    OutboxStatus.EXPIRED: SIGNED,
    OutboxStatus.DELIVERED: {OutboxStatus.READ},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """A row of the outbox, without its content."""

    replay_key: str
    message_id: UUID
    recipient: str
    channel_id: UUID | None
    correlation_id: UUID | None
    created_at: datetime
    expires_at: datetime
    status: OutboxStatus
    attempts: int
    next_try_at: datetime | None
    resealable: bool  # its content is kept
    reported: OutboxStatus | None  # what the server says, which the recipient has not signed
    reported_reason: str
    reported_at: datetime | None
    withdraw_asked_at: datetime | None
    reseals: int
    bundle_version: int
    one_time: bool  # sealed to a key for this message alone
    last_error: str

    @property
    def withdrawn(self) -> bool:
        """Whether its sender took it back."""
        return self.status is OutboxStatus.FAILED and self.withdraw_asked_at is not None

    @property
    def withdrawable(self) -> bool:
        """Whether its sender may still take it back: nothing that its recipient signed is left for a server's word."""
        return self.status in (OutboxStatus.STORED, OutboxStatus.QUEUED, OutboxStatus.EXPIRED)

    @property
    def carried(self) -> bool:
        """Whether a person carries it, so that no server was ever offered it."""
        waits = self.next_try_at is not None or self.attempts or self.last_error or self.reported is not None
        return self.status is OutboxStatus.STORED and not waits

    @property
    def onward(self) -> set[OutboxStatus]:
        """What may become of it. That its sender took it back is no end: the recipient may have it all the same."""
        return SIGNED if self.withdrawn else _ONWARD.get(self.status, set())

    def contradiction(self, said: OutboxStatus, reason: str, at: datetime) -> str | None:
        """Why a server's word cannot be true, by what the sender itself knows."""
        if said is OutboxStatus.EXPIRED and at < self.expires_at - SKEW:
            return f"the server says that it has expired, which it does not before {stamp(self.expires_at)[:19]}Z"
        if said is OutboxStatus.FAILED and reason == WITHDRAWN and self.withdraw_asked_at is None:
            return "the server says that it was withdrawn, and this agent never asked for that"
        return None


def outbox_message(row: tuple[Any, ...]) -> OutboxMessage:
    """A row as the statements on the outbox select it."""
    (
        key,
        msg_id,
        recipient,
        channel,
        correlation,
        created,
        expires,
        status,
        attempts,
        next_try,
        resealable,
        said,
        said_reason,
        said_at,
        withdraw_asked_at,
        reseals,
        bundle_version,
        one_time,
        waits_for,
    ) = row
    return OutboxMessage(
        replay_key=key,
        message_id=UUID(msg_id),
        recipient=recipient,
        channel_id=UUID(channel) if channel else None,
        correlation_id=UUID(correlation) if correlation else None,
        created_at=unstamp(created),
        expires_at=unstamp(expires),
        status=OutboxStatus(status),
        attempts=attempts,
        next_try_at=unstamp(next_try) if next_try else None,
        resealable=bool(resealable),
        reported=OutboxStatus(said) if said else None,
        reported_reason=said_reason or "",
        reported_at=unstamp(said_at) if said_at else None,
        withdraw_asked_at=unstamp(withdraw_asked_at) if withdraw_asked_at else None,
        reseals=reseals,
        bundle_version=bundle_version,
        one_time=bool(one_time),
        last_error=waits_for or "",
    )
