"""Mail as the relay sees it: bounds, ids and order in a queue, and how far a message may go from where it is."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from angelia.envelope.ids import bucket_of
from angelia.envelope.receipts import Receipt, ReceiptDocument, ReceiptStatus
from angelia.envelope.wire import Envelope, Priority
from angelia.errors import Conflict, InvalidArgument

QUEUE_MAX = 10_000
QUEUE_BYTES_MAX = 64 << 20
SENDER_SHARE = 0.5  # of a recipient's queue
HOT_COPY_MAX = 65_536  # larger envelopes have no copy in the hot tier
HOT_COPY_LIFE = timedelta(minutes=10)  # most mail is fetched at once; the ledger has the bytes of the rest
REMEMBER_IDS = timedelta(seconds=300)  # how long after its end a message's id is still known
ATTEMPTS = 5
BACK_OFF = (1, 2, 4, 8, 16)
LONGEST_BACK_OFF = 3600
HOLD = timedelta(seconds=30)  # how long a message that may not be handed over is left alone
MOST_AT_ONCE = 100
MOST_REASON = 1024
RECEIPTS_KEPT = timedelta(days=30)  # in the ledger, at least; then they may leave for the archive
ARCHIVE_MARGIN = timedelta(hours=1)  # between the last change of a receipt and the first run that may take it
LATEST_ACK = timedelta(days=1) - ARCHIVE_MARGIN  # after a message's end
_TOKEN_BYTES = 16


class State(StrEnum):
    """Where an envelope is: in its recipient's queue, or among the dead letters."""

    QUEUED = "queued"
    DEAD = "dead"


class Status(StrEnum):
    """What became of a message. `read` is `delivered` with a time of reading."""

    PENDING = "pending"
    DELIVERED = "delivered"
    READ = "read"
    EXPIRED = "expired"
    FAILED = "failed"


class Attested(StrEnum):
    """Whose word a status is."""

    RELAY = "relay"
    RECIPIENT = "recipient"


class Side(StrEnum):
    """Which of an agent's receipts: of what it sent, or of what it received."""

    SENT = "sent"
    RECEIVED = "received"


# No way back; what is not named here is refused.
_ONWARD = {
    Status.PENDING: {Status.DELIVERED, Status.READ, Status.EXPIRED, Status.FAILED},
    Status.DELIVERED: {Status.READ, Status.FAILED},
}


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What a sender is told, the first time and every time after."""

    message_id: UUID
    replay_key: str
    status: str = "queued"
    enqueued_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class NewEnvelope:
    """An envelope that is taken, with what is computed from it once."""

    envelope: Envelope
    mref: bytes
    replay_key: bytes
    created_at: datetime
    accepted_at: datetime
    expires_at: datetime
    one_time: bool = False  # sealed to a key that serves once


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message stands in its recipient's queue."""

    recipient: str
    mref: bytes
    priority: Priority
    seq: int
    queued_at: datetime


@dataclass(frozen=True, slots=True)
class Match:
    """A message that fits a filter, with what gives its place in the queue."""

    mref: bytes
    priority: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """An envelope's row: everything about it but its bytes."""

    recipient: str
    mref: bytes
    seq: int
    sender: str
    message_id: UUID
    replay_key: bytes
    key_id: UUID
    signer_id: UUID
    priority: Priority
    created_at: datetime
    accepted_at: datetime
    expires_at: datetime
    state: State
    wire_bytes: int
    dead_at: datetime | None = None
    dead_reason: str | None = None
    wire: bytes | None = field(default=None, repr=False)

    @property
    def score(self) -> int:
        return score(self.priority, self.seq)


@dataclass(frozen=True, slots=True)
class Lease:
    """What the hot tier remembers of a message that was handed out, or is left alone for a while."""

    attempts: int
    first_leased: datetime
    until: datetime | None  # when it goes back to the queue; None where it is back already
    secret: str  # empty when it is nobody's

    def held_by(self, secret: str) -> bool:
        """Whether this lease, living or not, is the last one of the message."""
        return bool(self.secret) and secrets.compare_digest(self.secret, secret)

    def held_by_other(self, secret: str, now: datetime) -> bool:
        """Whether another lease than this one is living."""
        living = bool(self.secret) and self.until is not None and self.until > now
        return living and not secrets.compare_digest(self.secret, secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptRow:
    """A message's receipt as the ledger has it."""

    receipt_id: UUID
    message_id: UUID
    replay_key: bytes
    sender: str
    recipient: str
    channel_id: UUID | None
    priority: Priority
    wire_bytes: int
    status: Status
    attested_by: Attested
    delivery_attempts: int
    last_attempt_at: datetime | None
    sent_at: datetime
    accepted_at: datetime
    expires_at: datetime
    delivered_at: datetime | None
    acknowledged_at: datetime | None
    read_at: datetime | None
    failure_reason: str | None
    receipt: Receipt | None

    def check_step(self, to: Status) -> None:
        if to not in _ONWARD.get(self.status, ()):
            raise Conflict(f"the message is {self.status} already, and does not become {to}")


class ReceiptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message; `receipt` is the recipient's signed word, where there is one."""

    receipt_id: UUID
    message_id: UUID
    replay_key: str
    sender: str
    recipient: str
    channel_id: UUID | None
    priority: int
    wire_bytes: int
    status: Status
    attested_by: Attested
    delivery_attempts: int
    last_attempt_at: datetime | None
    sent_at: datetime
    accepted_at: datetime
    expires_at: datetime
    delivered_at: datetime | None
    acknowledged_at: datetime | None
    read_at: datetime | None
    failure_reason: str | None
    receipt: ReceiptDocument | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Receipts that may leave for the archive and have not: how many, and how late the oldest is."""

    rows: int
    late: timedelta | None


class MessageNews(msgspec.Struct, frozen=True, kw_only=True):
    """What a sender's stream says when something became of a message."""

    replay_key: str
    message_id: UUID
    recipient: str
    status: Status
    at: datetime
    reason: str | None = None


def mref_of(sender: str, message_id: UUID) -> bytes:
    """What names a message in its recipient's queue: a message id is unique per sender only."""
    return hashlib.sha256(sender.encode() + b"\0" + message_id.bytes).digest()[:16]


def score(priority: int, seq: int) -> int:
    """The order of a queue: by priority, then by arrival; exact in a double."""
    return (3 - priority) * (1 << 48) + seq


def last_score(min_priority: int) -> int:
    """The last place in a queue that has at least this priority."""
    return (4 - min_priority) * (1 << 48) - 1


def new_secret() -> str:
    return secrets.token_hex(_TOKEN_BYTES)


def lease_token(mref: bytes, secret: str) -> str:
    """What a recipient shows to settle a message: which one, and that it was the one who got it."""
    return mref.hex() + secret


def parse_token(token: str) -> tuple[bytes, str]:
    try:
        raw = bytes.fromhex(token)
    except ValueError:
        raw = b""
    if len(raw) != 2 * _TOKEN_BYTES or raw.hex() != token:
        raise InvalidArgument("a lease token has 64 characters 0-9 a-f", hint="it comes with every message")
    return raw[:_TOKEN_BYTES], token[2 * _TOKEN_BYTES :]


def parse_replay_key(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 32 or raw.hex() != text:
        raise InvalidArgument("a replay key has 64 characters 0-9 a-f")
    return raw


def back_off(attempts: int) -> timedelta:
    return timedelta(seconds=BACK_OFF[min(max(attempts, 1), len(BACK_OFF)) - 1])


def status_of(receipt: Receipt) -> Status:
    return {
        ReceiptStatus.DELIVERED: Status.DELIVERED,
        ReceiptStatus.READ: Status.READ,
        ReceiptStatus.FAILED: Status.FAILED,
    }[receipt.status]


def place_of(envelope: Envelope) -> tuple[int, bytes]:
    """Bucket and mref of an envelope."""
    header = envelope.header
    return bucket_of(header.recipient_nhi), mref_of(header.sender_nhi, header.message_id)


def closed_before(now: datetime, max_ttl_seconds: int) -> datetime:
    """Receipts of messages that were sent before this may leave for the archive: days of which no message lives."""
    kept = max(RECEIPTS_KEPT, timedelta(days=1, seconds=max_ttl_seconds))
    return (now - kept).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def settled_before(now: datetime, max_ttl_seconds: int) -> datetime:
    """Receipts of messages that were sent before this change no more. A change that the archive does not see would be
    lost, so they settle a little earlier than they may leave."""
    return closed_before(now + ARCHIVE_MARGIN, max_ttl_seconds)
