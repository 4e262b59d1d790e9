"""Mail over HTTP: binds the operations to the services, and shapes the answers."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from itertools import islice
from uuid import UUID

import msgspec

from angelia.api import (
    EVENT_STREAM,
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    Answer,
    Call,
    Route,
    clock,
    cursor_after,
    item_problem,
    sse,
)
from angelia.envelope import json_form, media_type, wire
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import ReceiptDocument
from angelia.envelope.wire import MAX_ENVELOPE, Envelope
from angelia.errors import AngeliaError, InvalidArgument, TooLarge
from angelia.mail import api
from angelia.mail.acknowledgement import Acknowledged, Acknowledgements, Nacked
from angelia.mail.api import (
    AckOutcome,
    DeadLetter,
    DeadLetterPage,
    LeasedDocument,
    MessageStatus,
    NackOutcome,
    ReceiptPage,
    SendOutcome,
)
from angelia.mail.dead_letters import DeadLetters
from angelia.mail.delivery import Batch, Delivery, LeasedEnvelope
from angelia.mail.model import MOST_AT_ONCE, EnvelopeRow, EnvelopeState, parse_replay_key
from angelia.mail.receipts import Receipts
from angelia.mail.service import Mail, SendResult
from angelia.mail.withdrawal import InTransit

_record_head = struct.Struct(api.RECORD_HEAD)


def routes(
    mail: Mail,
    in_transit: InTransit,
    delivery: Delivery,
    acknowledgements: Acknowledgements,
    receipts: Receipts,
    dead_letters: DeadLetters,
    *,
    ttl_max: int,
) -> list[Route]:
    return [
        *_sender_routes(mail, in_transit, ttl_max),
        *_recipient_routes(delivery, acknowledgements),
        *_receipt_routes(receipts),
        *_dead_letter_routes(dead_letters),
    ]


def _sender_routes(mail: Mail, in_transit: InTransit, ttl_max: int) -> list[Route]:
    async def send(call: Call) -> Answer:
        content_type = call.headers.get("content-type", "")
        if media_type.is_binary(content_type) and len(call.body) > MAX_ENVELOPE:
            raise TooLarge(f"an envelope has at most {MAX_ENVELOPE:,} bytes")
        sent = await mail.send(call.agent, media_type.read(content_type, call.body, ttl_max), call.now)
        return Answer(201 if sent.new else 200, sent.answer)

    async def send_batch(call: Call) -> Answer:
        parsed = _parsed_batch(call, ttl_max)
        envelopes = [one for one in parsed if isinstance(one, Envelope)]
        sent = iter(await mail.send_many(call.agent, envelopes, call.now))
        outcomes = [next(sent) if isinstance(one, Envelope) else one for one in parsed]
        return Answer(body=api.SendOutcomes([_send_outcome(one) for one in outcomes]))

    async def status(call: Call) -> Answer:
        known, row = await in_transit.status(call.agent, _replay_key(call), call.now)
        found = MessageStatus(
            replay_key=known.replay_key,
            message_id=known.message_id,
            sender=known.sender,
            recipient=known.recipient,
            status=known.status,
            enqueued_at=known.accepted_at,
            expires_at=known.expires_at,
            state=None if row is None else row.state,
            failure_reason=known.failure_reason,
            envelope=None if row is None or row.wire is None else json_form.to_fields(wire.decode(row.wire)),
        )
        return Answer(body=found)

    async def withdraw(call: Call) -> Answer:
        await in_transit.withdraw(call.agent, _replay_key(call), call.now)
        return Answer(204)

    return [
        Route(api.SEND, send),
        Route(api.SEND_BATCH, send_batch),
        Route(api.STATUS, status),
        Route(api.WITHDRAW, withdraw),
    ]


def _recipient_routes(delivery: Delivery, acknowledgements: Acknowledgements) -> list[Route]:
    async def receive(call: Call) -> Answer:
        query = call.query(api.ReceiveQuery)
        if query.channel_id is not None and query.correlation_id is not None:
            raise InvalidArgument("one of channel_id and correlation_id", hint="ask twice, once with each")
        got = await delivery.receive(call.agent, query, call.now)
        headers = {"cache-control": "no-store"}
        if media_type.is_binary(call.headers.get("accept", "")):
            headers[api.HAS_MORE] = str(int(got.has_more))
            return Answer(body=b"".join(_in_time(got, _record)), headers=headers, content_type=MEDIA_TYPE)
        messages = [msgspec.Raw(one) for one in _in_time(got, _json)]
        return Answer(body={"messages": messages, "has_more": got.has_more}, headers=headers)

    async def stream(call: Call) -> Answer:
        agent, lease = call.agent, call.query(api.MailStreamQuery).lease_seconds

        async def lines() -> AsyncIterator[bytes]:
            yield HEARTBEAT  # so that the caller knows at once that the stream has begun
            async with aclosing(delivery.stream(agent, lease, HEARTBEAT_SECONDS, call.now)) as coming:
                async for one in coming:
                    if one is None:
                        yield HEARTBEAT
                    elif isinstance(one, LeasedEnvelope):
                        line = sse("message", _json(one), str(one.token))
                        if one.row.expires_at > clock():
                            yield line
                    else:
                        yield sse(*one)

        return Answer(stream=lines(), content_type=EVENT_STREAM)

    async def acknowledge(call: Call) -> Answer:
        acks = call.json(api.AckBody).acks
        outcomes = await acknowledgements.acknowledge(call.agent, acks, call.now)
        results = [_ack_outcome(ack.replay_key, one) for ack, one in zip(acks, outcomes, strict=True)]
        return Answer(body=api.AckOutcomes(results))

    async def nack(call: Call) -> Answer:
        nacks = call.json(api.NackBody).nacks
        outcomes = await acknowledgements.nack(call.agent, nacks, call.now)
        results = [_nack_outcome(nack.replay_key, one) for nack, one in zip(nacks, outcomes, strict=True)]
        return Answer(body=api.NackOutcomes(results))

    return [
        Route(api.RECEIVE, receive),
        Route(api.STREAM, stream),
        Route(api.ACKNOWLEDGE, acknowledge),
        Route(api.NACK, nack),
    ]


def _receipt_routes(receipts: Receipts) -> list[Route]:
    async def page(call: Call) -> Answer:
        query = call.query(api.ReceiptQuery)
        found = await receipts.page(call.agent, query)
        return Answer(body=ReceiptPage(*query.cut(found, lambda row: cursor_after(row.sent_at, row.receipt_id))))

    async def hand_in(call: Call) -> Answer:
        return Answer(body=await receipts.take(call.agent, call.json(ReceiptDocument), call.now))

    async def show(call: Call) -> Answer:
        return Answer(body=await receipts.one(call.agent, _replay_key(call)))

    return [
        Route(api.LIST_RECEIPTS, page),
        Route(api.HAND_IN_RECEIPT, hand_in),
        Route(api.SHOW_RECEIPT, show),
    ]


def _dead_letter_routes(dead_letters: DeadLetters) -> list[Route]:
    async def page(call: Call) -> Answer:
        query = call.query(api.DeadLetterQuery)
        other = call.own_or_operator(
            query.agent, "only an operator sees another agent's dead letters", "leave out `agent` for your own"
        )
        found = await dead_letters.page(call.agent.handle if other is None else other, query)
        shown, following = query.cut(found, _dead_cursor)
        return Answer(body=DeadLetterPage([_dead_letter(row) for row in shown], following))

    async def requeue(call: Call) -> Answer:
        owner = None if call.caller.is_operator else call.agent.handle
        row = await dead_letters.requeue(_replay_key(call), owner, call.caller.known_as, call.now)
        return Answer(body=_dead_letter(row))

    return [Route(api.LIST_DEAD_LETTERS, page), Route(api.REQUEUE, requeue)]


def _replay_key(call: Call) -> bytes:
    return parse_replay_key(call.path("replay_key"))


def _parsed_batch(call: Call, ttl_max: int) -> list[Envelope | AngeliaError]:
    if not media_type.is_binary(call.headers.get("content-type", "")):
        return [_parsed(json_form.decode, bytes(one), ttl_max) for one in call.json(api.BatchBody).messages]
    wires = list(islice(media_type.split_batch(call.body), MOST_AT_ONCE + 1))
    if not 1 <= len(wires) <= MOST_AT_ONCE:
        raise InvalidArgument(f"a batch has 1 to {MOST_AT_ONCE} messages")
    return [_parsed(wire.decode, one, ttl_max) for one in wires]


def _parsed(decode: Callable[[bytes, int], Envelope], content: bytes, ttl_max: int) -> Envelope | AngeliaError:
    try:
        return decode(content, ttl_max)
    except AngeliaError as error:
        return error


def _send_outcome(one: SendResult | AngeliaError) -> SendOutcome:
    if isinstance(one, AngeliaError):
        return SendOutcome(problem=item_problem(one))
    return SendOutcome(message=one.answer, new=one.new)


def _ack_outcome(replay_key: str, one: Acknowledged | AngeliaError | None) -> AckOutcome:
    problem = item_problem(one) if isinstance(one, AngeliaError) else None
    return AckOutcome(replay_key=replay_key, acknowledged=problem is None, problem=problem)


def _nack_outcome(replay_key: str, one: Nacked | AngeliaError) -> NackOutcome:
    if isinstance(one, AngeliaError):
        return NackOutcome(replay_key=replay_key, problem=item_problem(one))
    state = EnvelopeState.DEAD if one.retry_at is None else EnvelopeState.QUEUED
    return NackOutcome(replay_key=replay_key, state=state, retry_at=one.retry_at)


def _in_time(got: Batch, form: Callable[[LeasedEnvelope], bytes]) -> list[bytes]:
    """What has not expired, in its form. The clock is read again, and last: a process that was stopped since it looked
    would deliver what has expired meanwhile."""
    formed = [(one.row.expires_at, form(one)) for one in got.messages]
    now = clock()
    return [content for expires_at, content in formed if expires_at > now]


def _json(one: LeasedEnvelope) -> bytes:
    return msgspec.json.encode(
        LeasedDocument(
            envelope=msgspec.Raw(json_form.encode(wire.decode(one.wire))),
            replay_key=one.row.replay_key.hex(),
            lease_token=str(one.token),
            attempt=one.attempt,
        )
    )


def _record(one: LeasedEnvelope) -> bytes:
    """The binary form: attempt, lease token and length before the envelope."""
    return _record_head.pack(one.attempt, bytes.fromhex(str(one.token)), len(one.wire)) + one.wire


def _dead_letter(row: EnvelopeRow) -> DeadLetter:
    return DeadLetter(
        replay_key=row.replay_key.hex(),
        message_id=row.message_id,
        sender=row.sender,
        recipient=row.recipient,
        priority=int(row.priority),
        wire_bytes=row.wire_bytes,
        dead_at=row.dead_at,
        reason=row.dead_reason,
        expires_at=row.expires_at,
    )


def _dead_cursor(row: EnvelopeRow) -> str:
    assert row.dead_at is not None, "it is dead"
    return cursor_after(row.dead_at, UUID(bytes=row.mref))
