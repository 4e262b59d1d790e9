"""The verbs of mail: sealed envelopes out and in, what is said about them, receipts and dead letters."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from uuid import UUID

import msgspec

from angelia.client.exchange import BadAnswer, Credential, Exchange, Request, Response, document, path, query
from angelia.client.mail_answers import (
    Accepted,
    AckOutcome,
    AckOutcomes,
    DeadLetter,
    DeadLetters,
    Handed,
    HandedPage,
    MessageStatus,
    NackOutcome,
    NackOutcomes,
    ReceiptAnswer,
    Receipts,
    SendOutcome,
    SendOutcomes,
)
from angelia.envelope import json_form
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import Receipt, receipt_document
from angelia.envelope.wire import Envelope
from angelia.mail.model import Side, Status

HAS_MORE = "angelia-has-more"
MOST_WAIT = 30
_record = struct.Struct(">I32sI")  # attempt, lease token, length of the envelope that follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """That a message is safe with its recipient; a receipt is its signed word for the sender."""

    replay_key: str
    lease_token: str
    receipt: Receipt | None = None


class Nack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a message could not be taken now, and after how many seconds it may come again. One that is not `counted`
    is no attempt: the message never becomes a dead letter by it."""

    replay_key: str
    lease_token: str
    reason: str = ""
    retry_after: int | None = None
    counted: bool = True


def send_envelope(wire: bytes) -> Exchange[Accepted]:
    """Hand a sealed message to the relay. The same bytes again are answered as the first time."""
    answer = yield Request("POST", "/v1/messages", body=wire, content_type=MEDIA_TYPE)
    return answer.read(Accepted)


def send_envelopes(envelopes: Sequence[Envelope]) -> Exchange[list[SendOutcome]]:
    """Hand over up to a hundred, 16 MiB of JSON in all; each has its own outcome, in their order."""
    messages = [msgspec.Raw(json_form.encode(one)) for one in envelopes]
    answer = yield Request("POST", "/v1/messages/batch", body=document(messages=messages))
    results = answer.read(SendOutcomes).results
    _check_count(answer, results, envelopes)
    return results


def poll(
    *,
    max_messages: int = 10,
    wait: float = 0.0,
    min_priority: int = 0,
    channel_id: UUID | None = None,
    correlation_id: UUID | None = None,
    lease_seconds: int = 30,
    after: float = 0.0,
) -> Exchange[HandedPage]:
    """Lease mail, after a pause if one is named; the relay waits up to `wait` seconds (30 at most) for some to come.

    Sent again when an answer was lost, as any caller would do: what that answer held comes back when its lease ends."""
    seconds = min(MOST_WAIT, math.ceil(max(0.0, wait)))
    wishes = query(
        max_messages=max_messages,
        wait_timeout_seconds=seconds or None,
        min_priority=min_priority or None,
        channel_id=None if channel_id is None else str(channel_id),
        correlation_id=None if correlation_id is None else str(correlation_id),
        lease_seconds=lease_seconds,
    )
    answer = yield Request("GET", "/v1/messages", wishes, accept=MEDIA_TYPE, waits=seconds, after=after)
    messages = list(islice(_records(answer), max_messages + 1))
    if len(messages) > max_messages:
        raise BadAnswer(f"{answer.method} {answer.path} was asked for {max_messages} messages and gave more")
    return HandedPage(messages=messages, has_more=answer.headers.get(HAS_MORE) == "1")


def acknowledge(acks: Sequence[Ack]) -> Exchange[list[AckOutcome]]:
    """Say that messages are safe here, up to a hundred: the relay has them no more. Saying it twice does no harm."""
    said = [
        {"replay_key": one.replay_key, "lease_token": one.lease_token}
        | ({} if one.receipt is None else {"receipt": receipt_document(one.receipt)})
        for one in acks
    ]
    answer = yield Request("POST", "/v1/messages/acknowledge", body=document(acks=said))
    results = answer.read(AckOutcomes).results
    _check_count(answer, results, acks)
    return results


def nack(nacks: Sequence[Nack]) -> Exchange[list[NackOutcome]]:
    """Give messages back, up to a hundred; each comes again after a while, and after five times that count it is
    dead."""
    answer = yield Request("POST", "/v1/messages/nack", body=document(nacks=list(nacks)))
    results = answer.read(NackOutcomes).results
    _check_count(answer, results, nacks)
    return results


def message_status(replay_key: str) -> Exchange[MessageStatus]:
    """How a message stands, for its sender and its recipient."""
    answer = yield Request("GET", path("v1", "messages", replay_key))
    return answer.read(MessageStatus)


def withdraw_message(replay_key: str) -> Exchange[None]:
    """Take back a message that its recipient has not been given."""
    answer = yield Request("DELETE", path("v1", "messages", replay_key))
    answer.nothing()


def receipts(
    *,
    status: Status | None = None,
    since: datetime | None = None,
    side: Side | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Exchange[Receipts]:
    """A page of receipts of what the agent that signs sent and received, or of one side, newest first. No signature is
    checked yet."""
    at = None if since is None else since.isoformat().replace("+00:00", "Z")
    wishes = query(
        status=None if status is None else status.value,
        since=at,
        side=None if side is None else side.value,
        cursor=cursor,
        limit=limit,
    )
    answer = yield Request("GET", "/v1/receipts", wishes)
    return answer.read(Receipts)


def receipt(replay_key: str) -> Exchange[ReceiptAnswer]:
    """What became of one message. No signature is checked yet."""
    answer = yield Request("GET", path("v1", "receipts", replay_key))
    return answer.read(ReceiptAnswer)


def hand_in_receipt(signed: Receipt) -> Exchange[ReceiptAnswer]:
    """Give the relay a signed receipt for a message that was received, such as that it was read."""
    answer = yield Request("POST", "/v1/receipts", body=msgspec.json.encode(receipt_document(signed)))
    return answer.read(ReceiptAnswer)


def dead_letters(
    *, agent: str | None = None, cursor: str | None = None, limit: int | None = None
) -> Exchange[DeadLetters]:
    """A page of messages that could not be delivered to the agent that signs; operators name any `agent`."""
    credential = Credential.AGENT if agent is None else Credential.OPERATOR
    wishes = query(agent=agent, cursor=cursor, limit=limit)
    answer = yield Request("GET", "/v1/dead-letters", wishes, credential=credential)
    return answer.read(DeadLetters)


def requeue_dead_letter(replay_key: str) -> Exchange[DeadLetter]:
    """Put a dead letter back at the end of its queue."""
    answer = yield Request("POST", path("v1", "dead-letters", replay_key, "requeue"), idempotent=False)
    return answer.read(DeadLetter)


def _records(answer: Response) -> Iterator[Handed]:
    body, at = answer.body, 0
    while at < len(body):
        start = at + _record.size
        if start > len(body):
            raise _cut(answer)
        attempt, token, length = _record.unpack_from(body, at)
        at = start + length
        if at > len(body):
            raise _cut(answer)
        wire = body[start:at]
        yield Handed(wire=wire, replay_key=hashlib.sha256(wire).hexdigest(), lease_token=token.hex(), attempt=attempt)


def _cut(answer: Response) -> BadAnswer:
    return BadAnswer(f"the answer to {answer.method} {answer.path} ends in the middle of a message")


def _check_count(answer: Response, results: Sequence[object], asked: Sequence[object]) -> None:
    if len(results) != len(asked):
        raise BadAnswer(f"{answer.method} {answer.path} was asked about {len(asked)} and told of {len(results)}")
