"""What the server answers about mail, as records. Members that a newer server adds are ignored."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from angelia.api import ItemProblem
from angelia.client.answers import Answer
from angelia.mail.model import Accepted, MessageNews, ReceiptAnswer, State, Status

__all__ = [
    "Accepted",
    "AckOutcome",
    "AckOutcomes",
    "DeadLetter",
    "DeadLetters",
    "Handed",
    "HandedPage",
    "MessageNews",
    "MessageStatus",
    "NackOutcome",
    "NackOutcomes",
    "PrekeysLow",
    "ReceiptAnswer",
    "Receipts",
    "RotationDue",
    "SendOutcome",
    "SendOutcomes",
]


class SendOutcome(Answer, frozen=True, kw_only=True):
    """What became of one of several: taken (and whether for the first time), or why not."""

    message: Accepted | None = None
    new: bool = False
    problem: ItemProblem | None = None


class SendOutcomes(Answer, frozen=True, kw_only=True):
    results: list[SendOutcome]


class Handed(Answer, frozen=True, kw_only=True):
    """A message in its recipient's hands until the lease runs out: its bytes, and what settles it."""

    wire: bytes
    replay_key: str
    lease_token: str
    attempt: int


class HandedPage(Answer, frozen=True, kw_only=True):
    """Messages by priority and arrival, and whether more wait."""

    messages: list[Handed]
    has_more: bool


class AckOutcome(Answer, frozen=True, kw_only=True):
    """What became of one acknowledgment."""

    replay_key: str
    acknowledged: bool
    problem: ItemProblem | None = None


class AckOutcomes(Answer, frozen=True, kw_only=True):
    results: list[AckOutcome]


class NackOutcome(Answer, frozen=True, kw_only=True):
    """What became of one message that was given back: queued again at a time, dead, or a problem."""

    replay_key: str
    state: State | None = None
    retry_at: datetime | None = None
    problem: ItemProblem | None = None


class NackOutcomes(Answer, frozen=True, kw_only=True):
    results: list[NackOutcome]


class MessageStatus(Answer, frozen=True, kw_only=True):
    """How a message stands; `envelope` is for its recipient, while it waits."""

    replay_key: str
    message_id: UUID
    sender: str
    recipient: str
    status: Status
    enqueued_at: datetime
    expires_at: datetime
    state: State | None = None
    failure_reason: str | None = None
    envelope: dict[str, object] | None = None


class Receipts(Answer, frozen=True, kw_only=True):
    """A page of receipts of what was sent and received, newest first."""

    receipts: list[ReceiptAnswer]
    next: str | None


class DeadLetter(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """A message that could not be delivered; its content stays sealed."""

    replay_key: str
    message_id: UUID
    sender: str
    recipient: str
    priority: int
    wire_bytes: int
    dead_at: datetime | None
    reason: str | None
    expires_at: datetime


class DeadLetters(Answer, frozen=True, kw_only=True):
    """A page of dead letters, newest first."""

    dead_letters: list[DeadLetter]
    next: str | None


class RotationDue(Answer, frozen=True, kw_only=True):
    """A stream's word that a schedule asks for new keys."""

    peer: str
    session_id: UUID
    due_since: datetime


class PrekeysLow(Answer, frozen=True, kw_only=True):
    """A stream's word that few one-time keys are left."""

    count: int
