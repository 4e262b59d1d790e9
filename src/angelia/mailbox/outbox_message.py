"""A sent message: the status that its recipient signed and, apart from it, the status that the server reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from angelia.envelope.times import SKEW
from angelia.mailbox.database import SQL, MailboxTx, stamp, unstamp

WITHDRAWN = "withdrawn"  # the reason that a server gives for a withdrawn message


class OutboxStatus(StrEnum):
    """The status of a sent message. DELIVERED, READ and FAILED are signed by the recipient, except that a withdrawn
    message is FAILED too; what the server reports without a signature is in `OutboxMessage.reported`."""

    STORED = "stored"
    QUEUED = "queued"
    DELIVERED = "delivered"
    READ = "read"
    EXPIRED = "expired"
    FAILED = "failed"
    RESEALED = "resealed"


SIGNED = {OutboxStatus.DELIVERED, OutboxStatus.READ, OutboxStatus.FAILED}
# All other transitions are ignored, so that reports may arrive twice or out of order.
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
    reported: OutboxStatus | None  # by the server, without the recipient's signature
    reported_reason: str
    reported_at: datetime | None
    withdraw_asked_at: datetime | None
    reseals: int
    bundle_version: int
    one_time: bool  # sealed to a one-time key
    last_error: str

    @property
    def withdrawn(self) -> bool:
        """Whether its sender withdrew it."""
        return self.status is OutboxStatus.FAILED and self.withdraw_asked_at is not None

    @property
    def withdrawable(self) -> bool:
        """Whether its sender can still withdraw it: not once its recipient signed a status."""
        return self.status in (OutboxStatus.STORED, OutboxStatus.QUEUED, OutboxStatus.EXPIRED)

    @property
    def carried(self) -> bool:
        """Whether a person carries it: it was never sent to a server and never will be."""
        sent = self.next_try_at is not None or self.attempts or self.last_error or self.reported is not None
        return self.status is OutboxStatus.STORED and not sent

    @property
    def onward(self) -> set[OutboxStatus]:
        """The statuses that may follow. A withdrawn message may still get one: its recipient may have received it."""
        return SIGNED if self.withdrawn else _ONWARD.get(self.status, set())

    def contradiction(self, reported: OutboxStatus, reason: str, at: datetime) -> str | None:
        """Returns why a status that the server reports cannot be true, by what the sender itself knows; else None."""
        if reported is OutboxStatus.EXPIRED and at < self.expires_at - SKEW:
            return f"the server says that it has expired, which it does not before {stamp(self.expires_at)[:19]}Z"
        if reported is OutboxStatus.FAILED and reason == WITHDRAWN and self.withdraw_asked_at is None:
            return "the server says that it was withdrawn, and this agent never asked for that"
        return None


def read_row(tx: MailboxTx, replay_key: str) -> OutboxMessage | None:
    """Returns the row of an envelope."""
    found = tx.execute(SQL["outbox_one"], (replay_key,)).fetchone()
    return None if found is None else outbox_message(found)


def current_row(tx: MailboxTx, replay_key: str) -> OutboxMessage | None:
    """Returns the row of an envelope's message; of a resealed message that of its newest envelope."""
    row = read_row(tx, replay_key)
    if row is None or row.status is not OutboxStatus.RESEALED:
        return row
    found = tx.execute(SQL["outbox_successor"], (str(row.message_id), row.recipient)).fetchone()
    return None if found is None else outbox_message(found)


def outbox_message(row: tuple[Any, ...]) -> OutboxMessage:
    """Returns the message of a row with the `outbox_columns`."""
    key, msg_id, recipient, channel, correlation, created, expires, status = row[:8]
    attempts, next_try, resealable, said, said_reason, said_at = row[8:14]
    withdraw_asked_at, reseals, bundle_version, one_time, waits_for = row[14:]
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
