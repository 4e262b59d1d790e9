"""Mail envelope by envelope: the verbs that do more than carry one record each way."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from angelia.api import Operation
from angelia.client.exchange import BadAnswer, Exchange, Response
from angelia.client.operation_requests import answer_of, ask, credential_for, request_for
from angelia.envelope import media_type
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.refusals import Refused
from angelia.envelope.wire import Envelope, decode
from angelia.mail import api
from angelia.mail.api import (
    HAS_MORE,
    MOST_WAIT,
    AckItem,
    AckOutcome,
    DeadLetterPage,
    NackItem,
    NackOutcome,
    SendOutcome,
)
from angelia.mail.model import MOST_AT_ONCE, Accepted, ReceiptRecord

if TYPE_CHECKING:
    from angelia.envelope.receipts import Receipt

T = TypeVar("T")
_record_head = struct.Struct(api.RECORD_HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedMessage:
    """A message that the agent holds until the lease runs out. `envelope` is what its bytes say, or why they cannot be
    read."""

    wire: bytes = field(repr=False)
    envelope: Envelope | Refused
    replay_key: str
    lease_token: str = field(repr=False)
    attempt: int

    @classmethod
    def decoded(cls, wire: bytes, lease_token: str, attempt: int) -> LeasedMessage:
        try:
            envelope: Envelope | Refused = decode(wire)
        except Refused as refusal:
            envelope = refusal
        replay_key = hashlib.sha256(wire).hexdigest()
        return cls(wire=wire, envelope=envelope, replay_key=replay_key, lease_token=lease_token, attempt=attempt)

    @classmethod
    def of(cls, envelope: Envelope, lease_token: str, attempt: int) -> LeasedMessage:
        return cls(
            wire=envelope.wire,
            envelope=envelope,
            replay_key=envelope.replay_key,
            lease_token=lease_token,
            attempt=attempt,
        )


@dataclass(frozen=True, slots=True)
class LeasedMessages:
    """Messages by priority and arrival, and whether more wait."""

    messages: list[LeasedMessage]
    has_more: bool


def send_envelope(wire: bytes) -> Exchange[Accepted]:
    """Sends a sealed message. Idempotent: the same bytes again are answered as the first time."""
    return ask(api.SEND, body=wire, content_type=MEDIA_TYPE)


def send_envelopes(envelopes: Sequence[Envelope]) -> Exchange[list[SendOutcome]]:
    """Sends up to a hundred, 16 MiB in all; returns one outcome each, in their order."""
    return _results(api.SEND_BATCH, media_type.write_batch(envelopes), envelopes, content_type=MEDIA_TYPE)


def poll(
    *,
    max_messages: int = 10,
    wait: float = 0.0,
    min_priority: int = 0,
    channel_id: UUID | None = None,
    correlation_id: UUID | None = None,
    lease_seconds: int = 30,
    after: float = 0.0,
) -> Exchange[LeasedMessages]:
    """Leases mail, after a pause of `after` seconds; the server waits up to `wait` seconds, 30 at most, for some.

    It is retried when an answer was lost: what that answer held comes again when its lease runs out."""
    seconds = min(MOST_WAIT, math.ceil(max(0.0, wait)))
    query = api.ReceiveQuery(
        max_messages=max_messages,
        wait_timeout_seconds=seconds,
        min_priority=min_priority,
        channel_id=channel_id,
        correlation_id=correlation_id,
        lease_seconds=lease_seconds,
    )
    answer = yield request_for(api.RECEIVE, query=query, accept=MEDIA_TYPE, waits=seconds, after=after)
    messages = list(islice(_records(answer), max_messages + 1))
    if len(messages) > max_messages:
        raise BadAnswer(f"{answer.method} {answer.path} was asked for {max_messages} messages and gave more")
    return LeasedMessages(messages, answer.headers.get(HAS_MORE) == "1")


def acknowledge(acks: Sequence[AckItem]) -> Exchange[list[AckOutcome]]:
    """Acknowledges up to a hundred messages: the server deletes them. Idempotent. Returns one outcome each."""
    return _results(api.ACKNOWLEDGE, api.AckBody(list(acks)), acks)


def nack(nacks: Sequence[NackItem]) -> Exchange[list[NackOutcome]]:
    """Gives up to a hundred messages back: each comes again after a while, and after five attempts that count it is a
    dead letter. Returns one outcome each."""
    return _results(api.NACK, api.NackBody(list(nacks)), nacks)


def hand_in_receipt(signed: Receipt) -> Exchange[ReceiptRecord]:
    """Gives the server a signed receipt for a message that was received, such as that it was read."""
    from angelia.envelope.receipts import receipt_document

    return ask(api.HAND_IN_RECEIPT, body=msgspec.json.encode(receipt_document(signed)))


def dead_letters(*, agent: str | None = None, cursor: str | None = None, limit: int = 50) -> Exchange[DeadLetterPage]:
    """Returns a page of dead letters of the agent that signs, or of an `agent` that an operator names."""
    query = api.DeadLetterQuery(agent=agent, cursor=cursor, limit=limit)
    return ask(api.LIST_DEAD_LETTERS, query=query, credential=credential_for(agent))


def in_hundreds(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Returns the items in parts, as many in each as one request takes."""
    return (items[at : at + MOST_AT_ONCE] for at in range(0, len(items), MOST_AT_ONCE))


def _records(answer: Response) -> Iterator[LeasedMessage]:
    body, at = answer.body, 0
    while at < len(body):
        start = at + _record_head.size
        if start > len(body):
            raise _cut(answer)
        attempt, token, length = _record_head.unpack_from(body, at)
        at = start + length
        if at > len(body):
            raise _cut(answer)
        yield LeasedMessage.decoded(body[start:at], token.hex(), attempt)


def _cut(answer: Response) -> BadAnswer:
    return BadAnswer(f"the answer to {answer.method} {answer.path} ends in the middle of a message")


def _results(
    operation: Operation[Any], body: msgspec.Struct | bytes, asked: Sequence[object], **how: Any
) -> Exchange[list[Any]]:
    """Returns the results of an operation on several items; there must be one for each."""
    answer = yield request_for(operation, body=body, **how)
    results: list[Any] = answer_of(operation, answer).results
    if len(results) != len(asked):
        raise BadAnswer(f"{answer.method} {answer.path} was asked about {len(asked)} and told of {len(results)}")
    return results
