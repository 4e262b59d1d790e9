"""The operations on mail: send, receive, acknowledge, give back, withdraw, receipts and dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from angelia.api import EVENT_STREAM, JSON, NOTHING, Access, ItemProblem, Moment, Operation, PageQuery, Per, Rule
from angelia.envelope.json_form import MAX_JSON
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import ReceiptDocument
from angelia.mail.model import (
    LONGEST_BACK_OFF,
    MOST_AT_ONCE,
    MOST_REASON,
    Accepted,
    DeliveryStatus,
    EnvelopeState,
    LeaseToken,
    ReceiptRecord,
    Side,
    parse_replay_key,
)

TAG = "mail"
SEND_RULE = Rule("send", 6_000, 60_000, Per.AGENT)
SEND_BATCH_RULE = Rule("send_batch", 60, 60_000, Per.AGENT)  # of a hundred each
RECEIVE_RULE = Rule("receive", 6_000, 60_000, Per.AGENT)
MOST_BATCH_BYTES = 16 << 20
MOST_WAIT = 30
HAS_MORE = "angelia-has-more"  # the header of a binary answer that says whether more waits
# The binary answer has a record for each message: attempt, lease token and length, then the envelope itself.
RECORD_HEAD = ">I32sI"

# An envelope in its JSON form, whose members `envelope.json_form` reads and writes.
EnvelopeJson = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
_Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_LeaseSeconds = Annotated[int, msgspec.Meta(ge=5, le=300, description="How long the recipient may take to acknowledge")]


class EnvelopeDocument(msgspec.Struct):
    """An envelope in its JSON form; its members are those of the envelope format."""


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to a hundred envelopes, each in its JSON form."""

    messages: Annotated[list[EnvelopeJson], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]


class SendOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message of a batch: accepted (and whether for the first time), or why not."""

    message: Accepted | None = None
    new: bool = False
    problem: ItemProblem | None = None


class SendOutcomes(msgspec.Struct, frozen=True):
    """One outcome for each message, in their order."""

    results: list[SendOutcome]


class ReceiveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many messages, for how long to wait and to lease, and of which conversation, channel or priority."""

    max_messages: Annotated[
        int, msgspec.Meta(ge=1, le=MOST_AT_ONCE, description="How many messages the answer has at the most")
    ] = 10
    wait_timeout_seconds: Annotated[
        int, msgspec.Meta(ge=0, le=MOST_WAIT, description="How long to wait for mail when there is none")
    ] = 0
    min_priority: Annotated[
        int, msgspec.Meta(ge=0, le=3, description="Only messages of this priority or a higher one")
    ] = 0
    channel_id: Annotated[UUID, msgspec.Meta(description="Only messages that concern this channel")] | None = None
    correlation_id: Annotated[UUID, msgspec.Meta(description="Only messages of this conversation")] | None = None
    lease_seconds: _LeaseSeconds = 30


class MailStreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long each message is leased."""

    lease_seconds: _LeaseSeconds = 30


class LeasedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A message that its recipient holds until the lease runs out."""

    envelope: EnvelopeJson
    replay_key: str
    lease_token: str
    attempt: int


class LeasedPage(msgspec.Struct, frozen=True):
    """Messages by priority and arrival, and whether more wait."""

    messages: list[LeasedDocument]
    has_more: bool


class LeasedItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Names a message that the caller holds a lease of."""

    replay_key: _Hex
    lease_token: _Hex

    @property
    def key(self) -> bytes:
        return parse_replay_key(self.replay_key)

    @property
    def token(self) -> LeaseToken:
        return LeaseToken.parse(self.lease_token)


class AckItem(LeasedItem, frozen=True, kw_only=True):
    """The acknowledgment of one message: it is safe with its recipient, whose signed receipt may come along."""

    receipt: ReceiptDocument | None = None


class AckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    acks: Annotated[list[AckItem], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]


class AckOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one acknowledgment."""

    replay_key: str
    acknowledged: bool
    problem: ItemProblem | None = None


class AckOutcomes(msgspec.Struct, frozen=True):
    """One outcome for each acknowledgment, in their order."""

    results: list[AckOutcome]


class NackItem(LeasedItem, frozen=True, kw_only=True):
    """That a message could not be taken, and after how many seconds it may come again. One that is not `counted` is no
    attempt: the message never becomes a dead letter by it."""

    reason: Annotated[str, msgspec.Meta(max_length=MOST_REASON)] = ""
    retry_after: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_BACK_OFF)] | None = None
    counted: bool = True


class NackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nacks: Annotated[list[NackItem], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]


class NackOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message that was given back: queued again at a time, a dead letter, or a problem."""

    replay_key: str
    state: EnvelopeState | None = None
    retry_at: datetime | None = None
    problem: ItemProblem | None = None


class NackOutcomes(msgspec.Struct, frozen=True):
    """One outcome for each message, in their order."""

    results: list[NackOutcome]


class MessageStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a message has come; `envelope` is for its recipient, while it waits."""

    replay_key: str
    message_id: UUID
    sender: str
    recipient: str
    status: DeliveryStatus
    enqueued_at: datetime
    expires_at: datetime
    state: EnvelopeState | None = None
    failure_reason: str | None = None
    envelope: dict[str, Any] | None = None


class ReceiptQuery(PageQuery, frozen=True, kw_only=True):
    """Receipts of what the caller sent and received, by status, time and side."""

    status: Annotated[DeliveryStatus, msgspec.Meta(description="Only messages of this status")] | None = None
    since: Annotated[Moment, msgspec.Meta(description="Only messages that were sent at this time or later")] | None = (
        None
    )
    side: Annotated[Side, msgspec.Meta(description="Only what the caller sent, or only what it received")] | None = None


class ReceiptPage(msgspec.Struct, frozen=True):
    """Receipts of what the caller sent and received, newest first."""

    receipts: list[ReceiptRecord]
    next: str | None


class DeadLetterQuery(PageQuery, frozen=True, kw_only=True):
    """The dead letters of one recipient."""

    agent: Annotated[str, msgspec.Meta(description="Whose dead letters, for operators; else one's own")] | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
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


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Dead letters, newest first."""

    dead_letters: list[DeadLetter]
    next: str | None


_REPLAY_KEY = {"replay_key": "The message's replay key: the SHA-256 of its envelope, in hexadecimal"}

SEND = Operation(
    TAG, "POST", "/v1/messages", Access.AGENT, "Send a sealed message", Accepted,
    statuses=(201, 200), body=EnvelopeDocument, reads=(JSON, MEDIA_TYPE), rule=SEND_RULE, body_limit=MAX_JSON,
)  # fmt: skip
SEND_BATCH = Operation(
    TAG, "POST", "/v1/messages/batch", Access.AGENT, "Send up to a hundred, each for itself", SendOutcomes,
    body=BatchBody, reads=(JSON, MEDIA_TYPE), rule=SEND_BATCH_RULE, body_limit=MOST_BATCH_BYTES,
)  # fmt: skip
STATUS = Operation(
    TAG, "GET", "/v1/messages/{replay_key}", Access.AGENT, "How a message stands", MessageStatus,
    parameters=_REPLAY_KEY, rule=RECEIVE_RULE,
)  # fmt: skip
WITHDRAW = Operation(
    TAG, "DELETE", "/v1/messages/{replay_key}", Access.AGENT, "Withdraw an undelivered message", NOTHING,
    statuses=(204,), parameters=_REPLAY_KEY, rule=SEND_RULE,
)  # fmt: skip
RECEIVE = Operation(
    TAG, "GET", "/v1/messages", Access.WRITE, "Receive mail: poll, or wait for it", LeasedPage,
    or_else=(MEDIA_TYPE,), query=ReceiveQuery, rule=RECEIVE_RULE, waits=True,
)  # fmt: skip
STREAM = Operation(
    TAG, "GET", "/v1/messages/stream", Access.WRITE, "Mail as it comes, as server-sent events", NOTHING,
    media=EVENT_STREAM, query=MailStreamQuery, rule=RECEIVE_RULE, waits=True,
)  # fmt: skip
ACKNOWLEDGE = Operation(
    TAG, "POST", "/v1/messages/acknowledge", Access.AGENT, "Acknowledge messages", AckOutcomes,
    body=AckBody, rule=RECEIVE_RULE, body_limit=MAX_JSON,
)  # fmt: skip
NACK = Operation(
    TAG, "POST", "/v1/messages/nack", Access.AGENT, "Give messages back", NackOutcomes,
    body=NackBody, rule=RECEIVE_RULE, body_limit=MAX_JSON,
)  # fmt: skip
LIST_RECEIPTS = Operation(
    TAG, "GET", "/v1/receipts", Access.AGENT, "Receipts of what the caller sent and received", ReceiptPage,
    query=ReceiptQuery, rule=RECEIVE_RULE,
)  # fmt: skip
HAND_IN_RECEIPT = Operation(
    TAG, "POST", "/v1/receipts", Access.AGENT, "Hand in a signed receipt", ReceiptRecord,
    body=ReceiptDocument, rule=RECEIVE_RULE,
)  # fmt: skip
SHOW_RECEIPT = Operation(
    TAG, "GET", "/v1/receipts/{replay_key}", Access.AGENT, "The receipt of one message", ReceiptRecord,
    parameters=_REPLAY_KEY, rule=RECEIVE_RULE,
)  # fmt: skip
LIST_DEAD_LETTERS = Operation(
    TAG, "GET", "/v1/dead-letters", Access.READ, "Messages that could not be delivered", DeadLetterPage,
    query=DeadLetterQuery, rule=RECEIVE_RULE,
)  # fmt: skip
REQUEUE = Operation(
    TAG, "POST", "/v1/dead-letters/{replay_key}/requeue", Access.WRITE, "Try a dead letter again", DeadLetter,
    parameters=_REPLAY_KEY, rule=RECEIVE_RULE, repeatable=False,
)  # fmt: skip
