"""Mail as the relay sees it: bounds, ids, the order of a queue, leases, and which status may follow which."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import NamedTuple, Self, TypeAlias
from uuid import UUID

import msgspec

from angelia.envelope.receipts import Receipt, ReceiptDocument, encode_receipt
from angelia.envelope.times import SKEW, moment
from angelia.envelope.wire import Envelope, Priority
from angelia.errors import AngeliaError, ClockSkew, Conflict, InvalidArgument, MessageExpired, MessageIdConflict

QUEUE_MAX = 10_000
QUEUE_BYTES_MAX = 64 << 20
SENDER_SHARE = 0.5  # of a recipient's queue
HOT_COPY_MAX = 65_536  # larger envelopes have no copy in the hot tier
HOT_COPY_LIFE = timedelta(minutes=10)  # most mail is fetched at once; the ledger has the bytes of the rest
REMEMBER_IDS = timedelta(seconds=300)  # how long a message's id is remembered after the message expired
ATTEMPTS = 5
BACK_OFF = (1, 2, 4, 8, 16)
LONGEST_BACK_OFF = 3600
HOLD = timedelta(seconds=30)  # how long a message that must not be delivered now is held back
MOST_AT_ONCE = 100
MOST_REASON = 1024
NO_REASON = "the recipient said so"  # of a signed receipt `failed` that gives none
RECEIPTS_KEPT = timedelta(days=30)  # in the ledger, at least; then they may leave for the archive
ARCHIVE_MARGIN = timedelta(hours=1)  # between the last change of a receipt and the first run that may take it
LATEST_ACK = timedelta(days=1) - ARCHIVE_MARGIN  # after a message expired
_TOKEN_BYTES = 16


class EnvelopeState(StrEnum):
    """Where an envelope is: in its recipient's queue, or among the dead letters."""

    QUEUED = "queued"
    DEAD = "dead"


class DeliveryStatus(StrEnum):
    """What became of a message. `read` is `delivered` with a time of reading."""

    PENDING = "pending"
    DELIVERED = "delivered"
    READ = "read"
    EXPIRED = "expired"
    FAILED = "failed"


class Attested(StrEnum):
    """Where a status comes from: the relay alone, or a receipt that the recipient signed."""

    RELAY = "relay"
    RECIPIENT = "recipient"


class Side(StrEnum):
    """Which of an agent's receipts: of what it sent, or of what it received."""

    SENT = "sent"
    RECEIVED = "received"


# The steps that a message may take; there is no way back.
_ONWARD = {
    DeliveryStatus.PENDING: {*DeliveryStatus} - {DeliveryStatus.PENDING},
    DeliveryStatus.DELIVERED: {DeliveryStatus.READ, DeliveryStatus.FAILED},
}


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What the server answers to a message that it took; the same bytes again get the same answer."""

    message_id: UUID
    replay_key: str
    status: str = "queued"
    enqueued_at: datetime
    expires_at: datetime


MessageId: TypeAlias = tuple[str, UUID]  # a message id is unique per sender only


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEnvelope:
    """An envelope that a sender offers, with what is computed from it once."""

    envelope: Envelope
    mref: bytes
    replay_key: bytes
    created_at: datetime
    accepted_at: datetime
    expires_at: datetime
    one_time: bool = False  # sealed to a one-time key

    @classmethod
    def offered(cls, envelope: Envelope, now: datetime) -> Self:
        header = envelope.header
        return cls(
            envelope=envelope,
            mref=mref_of(header.sender_nhi, header.message_id),
            replay_key=bytes.fromhex(envelope.replay_key),
            created_at=moment(header.created_at),
            accepted_at=now,
            expires_at=moment(header.expires_at),
        )

    @property
    def sender(self) -> str:
        return self.envelope.header.sender_nhi

    @property
    def recipient(self) -> str:
        return self.envelope.header.recipient_nhi

    @property
    def id(self) -> MessageId:
        return self.sender, self.envelope.header.message_id

    @property
    def answer(self) -> Accepted:
        """What its sender is told once it is stored."""
        return Accepted(
            message_id=self.envelope.header.message_id,
            replay_key=self.replay_key.hex(),
            enqueued_at=self.accepted_at,
            expires_at=self.expires_at,
        )


class QueueLoad(NamedTuple):
    """What waits in a recipient's queue, and how much of it is one sender's; or how much of each may wait."""

    messages: int
    bytes: int
    of_sender: int
    bytes_of_sender: int

    @property
    def bound(self) -> Bound | None:
        """Which bound of a queue this exceeds."""
        if self.messages > QUEUE_MAX or self.bytes > QUEUE_BYTES_MAX:
            return Bound.QUEUE
        if self.of_sender > QUEUE_MAX * SENDER_SHARE or self.bytes_of_sender > QUEUE_BYTES_MAX * SENDER_SHARE:
            return Bound.SHARE
        return None


class Bound(Enum):
    """A bound of a queue: of all that waits in it, or of one sender's share."""

    QUEUE = "queue"
    SHARE = "share"


class QueueLoads:
    """What some messages would add to queues."""

    def __init__(self) -> None:
        self._queues: dict[str, tuple[int, int]] = {}
        self._shares: dict[tuple[str, str], tuple[int, int]] = {}

    def with_one(self, offer: NewEnvelope) -> QueueLoad:
        """What they and one more add to its queue."""
        size = len(offer.envelope.wire)
        messages, bytes_ = self._queues.get(offer.recipient, (0, 0))
        of_sender, bytes_of_sender = self._shares.get((offer.recipient, offer.sender), (0, 0))
        return QueueLoad(messages + 1, bytes_ + size, of_sender + 1, bytes_of_sender + size)

    def add(self, offer: NewEnvelope) -> None:
        load = self.with_one(offer)
        self._queues[offer.recipient] = load[:2]
        self._shares[offer.recipient, offer.sender] = load[2:]


def rooms(offers: Iterable[NewEnvelope]) -> list[QueueLoad]:
    """How much may wait before each of several messages; those before it in the same batch are in its way."""
    loads, most = QueueLoads(), []
    for offer in offers:
        load = loads.with_one(offer)
        loads.add(offer)
        most.append(
            QueueLoad(
                QUEUE_MAX - load.messages,
                QUEUE_BYTES_MAX - load.bytes,
                int(QUEUE_MAX * SENDER_SHARE) - load.of_sender,
                int(QUEUE_BYTES_MAX * SENDER_SHARE) - load.bytes_of_sender,
            )
        )
    return most


def bounds(
    crowded: Iterable[tuple[NewEnvelope, QueueLoad]], placed: Iterable[NewEnvelope]
) -> list[tuple[NewEnvelope, Bound | None]]:
    """For messages that found no room beside others of their batch: which bound keeps each out, or None if it fits.
    Each comes with what its queue held before the batch, of which these were placed; one that does not fit takes no
    room."""
    loads = QueueLoads()
    for offer in placed:
        loads.add(offer)
    found = []
    for offer, held in crowded:
        bound = QueueLoad(*map(sum, zip(held, loads.with_one(offer), strict=True))).bound
        if bound is None:
            loads.add(offer)
        found.append((offer, bound))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """Where a message stands in its recipient's queue."""

    recipient: str
    mref: bytes
    replay_key: bytes
    priority: Priority
    seq: int
    queued_at: datetime

    @property
    def score(self) -> int:
        return score(self.priority, self.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeRow(QueuePlace):
    """An envelope as the ledger has it; its bytes only where they were asked for."""

    sender: str
    message_id: UUID
    key_id: UUID
    signer_id: UUID
    sent_at: datetime
    accepted_at: datetime
    expires_at: datetime
    state: EnvelopeState
    wire_bytes: int
    dead_at: datetime | None = None
    dead_reason: str | None = None
    wire: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class DeliverableRow:
    """An envelope, and what decides whether it may be delivered now, whatever was allowed when it was sent."""

    row: EnvelopeRow
    rules_version: int
    blocked: bool
    revoked: bool


class LeaseToken(NamedTuple):
    """What a recipient shows to ack or nack a message: which message it is, and the secret of its lease."""

    mref: bytes
    secret: str

    @classmethod
    def parse(cls, text: str) -> LeaseToken:
        raw = _parse_hex(text, "a lease token has 64 characters 0-9 a-f", hint="it comes with every message")
        return cls(raw[:_TOKEN_BYTES], text[2 * _TOKEN_BYTES :])

    def __str__(self) -> str:
        return self.mref.hex() + self.secret

    def __repr__(self) -> str:
        return f"LeaseToken({self.mref.hex()})"


@dataclass(frozen=True, slots=True)
class Lease:
    """What the hot tier remembers of a message that was leased, or is held back for a while."""

    attempts: int
    first_leased: datetime
    until: datetime | None  # when it goes back to the queue; None where it is back already
    secret: str  # empty when no recipient holds it

    def held_by(self, secret: str) -> bool:
        """Whether this secret is of the message's last lease, also after that ran out."""
        return bool(self.secret) and secrets.compare_digest(self.secret, secret)

    def held_by_other(self, secret: str, now: datetime) -> bool:
        """Whether the message has a lease now that is not of this secret."""
        living = bool(self.secret) and self.until is not None and self.until > now
        return living and not secrets.compare_digest(self.secret, secret)


class ReceiptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message; `receipt` is what the recipient signed, where it did."""

    receipt_id: UUID
    message_id: UUID
    replay_key: str
    sender: str
    recipient: str
    channel_id: UUID | None
    priority: int
    wire_bytes: int
    status: DeliveryStatus
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

    def check_step(self, to: DeliveryStatus) -> None:
        if to not in _ONWARD.get(self.status, ()):
            raise Conflict(f"the message is {self.status} already, and does not become {to}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptStep:
    """One step of a message's receipt; what is None stays as it is."""

    message: EnvelopeRow | ReceiptRecord
    status: DeliveryStatus
    attested_by: Attested = Attested.RELAY
    delivered_at: datetime | None = None
    acknowledged_at: datetime | None = None
    read_at: datetime | None = None
    attempts: int = 0
    last_attempt_at: datetime | None = None
    reason: str | None = None
    receipt: Receipt | None = None

    def columns(self) -> tuple[object, ...]:
        """As the ledger has them: which receipt, then what becomes of it."""
        return (
            self.message.message_id,
            self.message.sender,
            self.message.recipient,
            self.message.sent_at,
            # `read` is kept as a time, beside the status that the archive knows.
            (DeliveryStatus.DELIVERED if self.status is DeliveryStatus.READ else self.status).value,
            self.attested_by.value,
            self.delivered_at,
            self.acknowledged_at,
            self.read_at,
            self.attempts,
            self.last_attempt_at,
            self.reason,
            None if self.receipt is None else encode_receipt(self.receipt),
        )


class SettledEvents(NamedTuple):
    """The two audit events of a message that was acknowledged: its receipt by the recipient, and its end."""

    received_id: UUID
    received_hash: bytes
    ended_id: UUID
    ended_type: str
    ended_hash: bytes


@dataclass(frozen=True, slots=True)
class ReceiptBacklog:
    """Receipts that are due for the archive: how many, and for how long the oldest has been."""

    rows: int
    late: timedelta | None


class DeliveryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a sender's stream says when the status of one of its messages changes."""

    replay_key: str
    message_id: UUID
    recipient: str
    status: DeliveryStatus
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


def new_secrets(count: int) -> str:
    """The secrets of that many leases, one after the other: independent of each other, and drawn in one call."""
    return secrets.token_hex(_TOKEN_BYTES * count)


def each_secret(drawn: str) -> Iterator[str]:
    return (drawn[at : at + 2 * _TOKEN_BYTES] for at in range(0, len(drawn), 2 * _TOKEN_BYTES))


def parse_replay_key(text: str) -> bytes:
    return _parse_hex(text, "a replay key has 64 characters 0-9 a-f")


def _parse_hex(text: str, otherwise: str, hint: str = "") -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 32 or raw.hex() != text:
        raise InvalidArgument(otherwise, hint=hint)
    return raw


def back_off(attempts: int) -> timedelta:
    """How long a message waits after so many attempts."""
    return timedelta(seconds=BACK_OFF[min(max(attempts, 1), len(BACK_OFF)) - 1])


def status_of(receipt: Receipt) -> DeliveryStatus:
    return DeliveryStatus(receipt.status.name.lower())


def untimely(created_at: datetime, expires_at: datetime, now: datetime) -> AngeliaError | None:
    """Why a message is refused by its times: it is made and sent at one time, as far as two clocks can agree. Exactly
    300 s off is accepted, a millisecond more is not."""
    ahead = created_at - now
    if abs(ahead) > SKEW:
        where = "ahead of" if ahead > timedelta(0) else "behind"
        return ClockSkew(
            f"the envelope was made {abs(ahead).total_seconds():,.0f} s {where} this server's clock",
            hint="run a time service; a message that waited is sealed again",
        )
    return MessageExpired("the message has expired before it came here") if expires_at <= now else None


def id_conflict(replay_key: bytes, first: bytes) -> MessageIdConflict | None:
    """Why an envelope is refused under an id that its sender used before: a repeat has the bytes of the `first`."""
    if replay_key == first:
        return None
    return MessageIdConflict(
        "this message id stands for another envelope",
        hint="send the same bytes again, or seal the message under a new id",
    )


def closed_before(now: datetime, max_ttl_seconds: int) -> datetime:
    """Receipts of messages that were sent before this are due for the archive: all messages of those days expired."""
    kept = max(RECEIPTS_KEPT, timedelta(days=1, seconds=max_ttl_seconds))
    return (now - kept).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def final_before(now: datetime, max_ttl_seconds: int) -> datetime:
    """Receipts of messages that were sent before this change no more. A change that the archive does not see would be
    lost, so they are final a little earlier than they are due for it."""
    return closed_before(now + ARCHIVE_MARGIN, max_ttl_seconds)
