"""A sent message: the status that its recipient signed and, apart from it, the status that the server reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from angelia.envelope.times import SKEW
from angelia.mailbox.database import NamedStatements, stamp

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
        for_server = self.next_try_at is not None or self.attempts or self.last_error or self.reported is not None
        return self.status is OutboxStatus.STORED and not for_server

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


def read_row(database: NamedStatements, replay_key: str) -> OutboxMessage | None:
    """Returns the row of an envelope."""
    return database.record(OutboxMessage, "outbox_one", replay_key)


def current_row(database: NamedStatements, replay_key: str) -> OutboxMessage | None:
    """Returns the row of an envelope's message; of a resealed message that of its newest envelope."""
    row = read_row(database, replay_key)
    if row is None or row.status is not OutboxStatus.RESEALED:
        return row
    return database.record(OutboxMessage, "outbox_successor", row.message_id, row.recipient)
