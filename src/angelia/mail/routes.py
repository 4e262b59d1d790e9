"""Mail over HTTP: send, receive, acknowledge, give back, withdraw, receipts and dead letters."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec

from angelia.api import (
    EVENT_STREAM,
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    JSON,
    Access,
    Answer,
    Call,
    ItemProblem,
    Per,
    Route,
    Rule,
    clock,
    item_problem,
    sse,
)
from angelia.api.route import declared
from angelia.envelope import json_form, media_type, wire
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import ReceiptDocument
from angelia.envelope.wire import MAX_ENVELOPE, Envelope
from angelia.errors import AngeliaError, InvalidArgument, TooLarge
from angelia.mail.acknowledgement import Settling, new_ack, new_nack
from angelia.mail.delivery import Batch, Delivery, Handed, Wanted
from angelia.mail.model import LONGEST_BACK_OFF, MOST_AT_ONCE, MOST_REASON, Accepted, State, Status, parse_replay_key
from angelia.mail.receipts import Receipts
from angelia.mail.service import Mail, Sent
from angelia.mail.withdrawal import UnderWay

SEND = Rule("send", 6_000, 60_000, Per.AGENT)
SEND_BATCH = Rule("send_batch", 60, 60_000, Per.AGENT)  # of a hundred each
RECEIVE = Rule("receive", 6_000, 60_000, Per.AGENT)
MOST_BATCH_BYTES = 16 << 20
MOST_WAIT = 30
HAS_MORE = "angelia-has-more"
_Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Reason = Annotated[str, msgspec.Meta(max_length=MOST_REASON)]
_record = struct.Struct(">I32sI")
_encoder = msgspec.json.Encoder()


class EnvelopeDocument(msgspec.Struct):
    """An envelope in its JSON form; what is in it is for `envelope.jsonform` to read, strictly."""


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to a hundred envelopes, each in its JSON form."""

    messages: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]


class BatchDocument(msgspec.Struct, frozen=True):
    """Up to a hundred envelopes, each in its JSON form."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]


class SendOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one of several: taken (and whether for the first time), or why not."""

    message: Accepted | None = None
    new: bool = False
    problem: ItemProblem | None = None


class SendOutcomes(msgspec.Struct, frozen=True):
    """One outcome for each message, in their order."""

    results: list[SendOutcome]


class ReceiveQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many, for how long to wait and to lease, and of which conversation, channel or priority."""

    max_messages: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = 10
    wait_timeout_seconds: Annotated[int, msgspec.Meta(ge=0, le=MOST_WAIT)] = 0
    min_priority: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    channel_id: UUID | None = None
    correlation_id: UUID | None = None
    lease_seconds: Annotated[int, msgspec.Meta(ge=5, le=300)] = 30


class StreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lease_seconds: Annotated[int, msgspec.Meta(ge=5, le=300)] = 30


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message in its recipient's hands, until the lease runs out."""

    envelope: dict[str, Any]
    replay_key: str
    lease_token: str
    attempt: int


class ReceivedPage(msgspec.Struct, frozen=True):
    """Messages by priority and arrival, and whether more wait."""

    messages: list[Received]
    has_more: bool


class _EncodedPage(msgspec.Struct, frozen=True):
    """The same, of messages that are JSON already."""

    messages: list[msgspec.Raw]
    has_more: bool


class AckItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replay_key: _Key
    lease_token: _Key
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


class NackItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One that is not `counted` is left alone for a while, and is no attempt."""

    replay_key: _Key
    lease_token: _Key
    reason: _Reason = ""
    retry_after: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_BACK_OFF)] | None = None
    counted: bool = True


class NackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nacks: Annotated[list[NackItem], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]


class NackOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message that was given back: queued again at a time, dead, or a problem."""

    replay_key: str
    state: State | None = None
    retry_at: datetime | None = None
    problem: ItemProblem | None = None


class NackOutcomes(msgspec.Struct, frozen=True):
    """One outcome for each message, in their order."""

    results: list[NackOutcome]


class MessageStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    envelope: dict[str, Any] | None = None


def routes(
    mail: Mail,
    under_way: UnderWay,
    delivery: Delivery,
    settling: Settling,
    receipts: Receipts,
    *,
    ttl_max: int,
) -> list[Route]:
    return [
        *_sender_routes(mail, under_way, ttl_max),
        *_recipient_routes(delivery, settling, receipts),
    ]


def _sender_routes(mail: Mail, under_way: UnderWay, ttl_max: int) -> list[Route]:
    async def send(call: Call) -> Answer:
        content_type = call.headers.get("content-type", "")
        if media_type.is_binary(content_type) and len(call.body) > MAX_ENVELOPE:
            raise TooLarge(f"an envelope has at most {MAX_ENVELOPE:,} bytes")
        sent = await mail.send(call.agent, media_type.read(content_type, call.body, ttl_max), call.now)
        return Answer(201 if sent.new else 200, sent.answer)

    async def send_batch(call: Call) -> Answer:
        parsed = [_parsed(bytes(one), ttl_max) for one in call.json(BatchBody).messages]
        envelopes = [one for one in parsed if isinstance(one, Envelope)]
        outcomes = iter(await mail.send_many(call.agent, envelopes, call.now))
        return Answer(body=SendOutcomes([_outcome(next(outcomes) if isinstance(p, Envelope) else p) for p in parsed]))

    async def status(call: Call) -> Answer:
        known, row = await under_way.status(call.agent, parse_replay_key(call.path("replay_key")), call.now)
        found = MessageStatus(
            replay_key=known.replay_key.hex(),
            message_id=known.message_id,
            sender=known.sender,
            recipient=known.recipient,
            status=known.status,
            enqueued_at=known.accepted_at,
            expires_at=known.expires_at,
            state=None if row is None else row.state,
            failure_reason=known.failure_reason,
            envelope=_document(row.wire) if row is not None and row.wire is not None else None,
        )
        return Answer(body=found)

    async def withdraw(call: Call) -> Answer:
        await under_way.withdraw(call.agent, parse_replay_key(call.path("replay_key")), call.now)
        return Answer(204)

    return [
        declared(
            "POST", "/v1/messages", send, Access.AGENT, "Send a sealed message",
            {201: Accepted, 200: Accepted}, takes=EnvelopeDocument, rule=SEND, body_limit=json_form.MAX_JSON,
            reads=(JSON, MEDIA_TYPE),
        ),
        declared(
            "POST", "/v1/messages/batch", send_batch, Access.AGENT, "Send up to a hundred, each for itself",
            {200: SendOutcomes}, takes=BatchDocument, rule=SEND_BATCH, body_limit=MOST_BATCH_BYTES,
        ),
        declared(
            "GET", "/v1/messages/{replay_key}", status, Access.AGENT, "How a message stands",
            {200: MessageStatus}, rule=RECEIVE,
        ),
        declared(
            "DELETE", "/v1/messages/{replay_key}", withdraw, Access.AGENT, "Withdraw an undelivered message",
            {204: None}, rule=SEND,
        ),
    ]  # fmt: skip


def _recipient_routes(delivery: Delivery, settling: Settling, receipts: Receipts) -> list[Route]:
    async def receive(call: Call) -> Answer:
        query = call.query(ReceiveQuery)
        if query.channel_id is not None and query.correlation_id is not None:
            raise InvalidArgument("one of channel_id and correlation_id", hint="ask twice, once with each")
        wanted = Wanted(
            most=query.max_messages,
            min_priority=query.min_priority,
            channel_id=query.channel_id,
            correlation_id=query.correlation_id,
            lease=timedelta(seconds=query.lease_seconds),
        )
        got = await delivery.receive(call.agent, wanted, query.wait_timeout_seconds, call.now)
        headers = {"cache-control": "no-store"}
        if media_type.is_binary(call.headers.get("accept", "")):
            headers[HAS_MORE] = str(int(got.has_more))
            return Answer(body=b"".join(_in_time(got, _record_of)), headers=headers, content_type=MEDIA_TYPE)
        messages = [msgspec.Raw(one) for one in _in_time(got, _json_of)]
        return Answer(body=_encoder.encode(_EncodedPage(messages, got.has_more)), headers=headers)

    async def stream(call: Call) -> Answer:
        agent, lease = call.agent, timedelta(seconds=call.query(StreamQuery).lease_seconds)

        async def lines() -> AsyncIterator[bytes]:
            yield HEARTBEAT  # so that the caller knows at once that it is heard
            async with aclosing(delivery.stream(agent, lease, HEARTBEAT_SECONDS, call.now)) as coming:
                async for one in coming:
                    if one is None:
                        yield HEARTBEAT
                    elif isinstance(one, Handed):
                        line = sse("message", _json_of(one), one.token)
                        if one.row.expires_at > clock():
                            yield line
                    else:
                        yield sse(*one)

        return Answer(stream=lines(), content_type=EVENT_STREAM)

    async def acknowledge(call: Call) -> Answer:
        items = call.json(AckBody).acks
        checked = await receipts.checked(call.agent, [item.receipt for item in items], call.now)
        acks, places, outcomes = [], [], list[AckOutcome | None]([None] * len(items))
        for at, (item, receipt) in enumerate(zip(items, checked, strict=True)):
            if receipt is not None and not isinstance(receipt, AngeliaError) and receipt.replay_key != item.replay_key:
                receipt = InvalidArgument("the receipt is of another message")
            if isinstance(receipt, AngeliaError):
                outcomes[at] = _ack_outcome(item, receipt)
                continue
            acks.append(new_ack(parse_replay_key(item.replay_key), item.lease_token, receipt))
            places.append(at)
        done = await settling.acknowledge(call.agent, acks, call.now) if acks else []
        for at, one in zip(places, done, strict=True):
            outcomes[at] = _ack_outcome(items[at], one if isinstance(one, AngeliaError) else None)
        return Answer(body=AckOutcomes([one for one in outcomes if one is not None]))

    async def nack(call: Call) -> Answer:
        items = call.json(NackBody).nacks
        nacks = [
            new_nack(
                parse_replay_key(item.replay_key),
                item.lease_token,
                item.reason,
                None if item.retry_after is None else timedelta(seconds=item.retry_after),
                counted=item.counted,
            )
            for item in items
        ]
        results = []
        for item, one in zip(items, await settling.put_back(call.agent, nacks, call.now), strict=True):
            if isinstance(one, AngeliaError):
                results.append(NackOutcome(replay_key=item.replay_key, problem=item_problem(one)))
            else:
                state = State.DEAD if one.retry_at is None else State.QUEUED
                results.append(NackOutcome(replay_key=item.replay_key, state=state, retry_at=one.retry_at))
        return Answer(body=NackOutcomes(results))

    return [
        declared(
            "GET", "/v1/messages", receive, Access.WRITE, "Receive mail: poll, or wait for it",
            {200: (ReceivedPage, MEDIA_TYPE)}, query=ReceiveQuery, rule=RECEIVE, waits=True,
        ),
        declared(
            "GET", "/v1/messages/stream", stream, Access.WRITE, "Mail as it comes, as server-sent events",
            {200: EVENT_STREAM}, query=StreamQuery, rule=RECEIVE, waits=True,
        ),
        declared(
            "POST", "/v1/messages/acknowledge", acknowledge, Access.AGENT, "Acknowledge messages",
            {200: AckOutcomes}, takes=AckBody, rule=RECEIVE, body_limit=json_form.MAX_JSON,
        ),
        declared(
            "POST", "/v1/messages/nack", nack, Access.AGENT, "Give messages back",
            {200: NackOutcomes}, takes=NackBody, rule=RECEIVE, body_limit=json_form.MAX_JSON,
        ),
    ]  # fmt: skip


def _parsed(content: bytes, ttl_max: int) -> Envelope | AngeliaError:
    try:
        return json_form.decode(content, ttl_max)
    except AngeliaError as error:
        return error


def _outcome(one: Sent | AngeliaError) -> SendOutcome:
    if isinstance(one, AngeliaError):
        return SendOutcome(problem=item_problem(one))
    return SendOutcome(message=one.answer, new=one.new)


def _ack_outcome(item: AckItem, error: AngeliaError | None) -> AckOutcome:
    problem = None if error is None else item_problem(error)
    return AckOutcome(replay_key=item.replay_key, acknowledged=error is None, problem=problem)


def _document(content: bytes) -> dict[str, Any]:
    return dict(json_form.to_fields(wire.decode(content)))


def _received(one: Handed) -> Received:
    return Received(
        envelope=_document(one.wire), replay_key=one.row.replay_key.hex(), lease_token=one.token, attempt=one.attempt
    )


def _in_time(got: Batch, form: Callable[[Handed], bytes]) -> list[bytes]:
    """What still lives, in its form. Time is asked again, and last: a process that was stopped since it looked would
    hand out what has ended meanwhile."""
    formed = [(one.row.expires_at, form(one)) for one in got.messages]
    now = clock()
    return [content for expires_at, content in formed if expires_at > now]


def _json_of(one: Handed) -> bytes:
    return _encoder.encode(_received(one))


def _record_of(one: Handed) -> bytes:
    """The binary form: attempt, lease token and length before the envelope."""
    return _record.pack(one.attempt, bytes.fromhex(one.token), len(one.wire)) + one.wire
