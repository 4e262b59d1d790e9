"""The verbs of mail: each says the request that the API wants, and reads the answer that it gives. No network."""

from __future__ import annotations

import hashlib
import json
import struct
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from angelia.client import BadAnswer, mail_calls
from angelia.client.exchange import Credential, Exchange, Request, Response
from angelia.client.mail_verbs import MailVerbs
from angelia.client.transport import Line, Send
from angelia.envelope import media_type
from angelia.envelope.ids import KeyType
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document, sign_receipt
from angelia.envelope.wire import Envelope
from angelia.errors import MessageIdConflict, QueueFull
from angelia.mail.api import AckItem, NackItem
from angelia.mail.model import DeliveryStatus
from client.test_verbs import held
from mail_agents import Correspondent

MAIL = MailVerbs[Any](lambda exchange: exchange)  # its verbs give their exchanges
KEY, TOKEN = "ab" * 32, "cd" * 32
ID = UUID("3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10")
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
ACCEPTED = {
    "message_id": str(ID),
    "replay_key": KEY,
    "status": "queued",
    "enqueued_at": "2026-11-15T12:00:00Z",
    "expires_at": "2026-11-22T12:00:00Z",
}
STATUS = {
    "replay_key": KEY,
    "message_id": str(ID),
    "sender": "alice",
    "recipient": "bob",
    "status": "pending",
    "enqueued_at": "2026-11-15T12:00:00Z",
    "expires_at": "2026-11-22T12:00:00Z",
    "state": "queued",
}
DEAD = {
    "replay_key": KEY,
    "message_id": str(ID),
    "sender": "alice",
    "recipient": "bob",
    "priority": 1,
    "wire_bytes": 4643,
    "dead_at": "2026-11-15T12:00:00Z",
    "reason": "given back too often",
    "expires_at": "2026-11-22T12:00:00Z",
}
RECEIPT = {
    "receipt_id": str(ID),
    "message_id": str(ID),
    "replay_key": KEY,
    "sender": "alice",
    "recipient": "bob",
    "channel_id": None,
    "priority": 1,
    "wire_bytes": 4643,
    "status": "pending",
    "attested_by": "relay",
    "delivery_attempts": 0,
    "last_attempt_at": None,
    "sent_at": "2026-11-15T12:00:00Z",
    "accepted_at": "2026-11-15T12:00:00Z",
    "expires_at": "2026-11-22T12:00:00Z",
    "delivered_at": None,
    "acknowledged_at": None,
    "read_at": None,
    "failure_reason": None,
    "receipt": None,
}


@pytest.mark.parametrize(
    ("call", "answer", "asked"),
    [
        (MAIL.status(KEY), STATUS, f"GET /v1/messages/{KEY}"),
        (MAIL.withdraw_message(KEY), None, f"DELETE /v1/messages/{KEY}"),
        (MAIL.receipts(status=DeliveryStatus.READ, since=NOON, cursor="c", limit=2),
         {"receipts": [RECEIPT], "next": None},
         "GET /v1/receipts?cursor=c&limit=2&status=read&since=2026-11-15T12%3A00%3A00Z"),
        (MAIL.receipt(KEY), RECEIPT, f"GET /v1/receipts/{KEY}"),
        (MAIL.dead_letters(), {"dead_letters": [DEAD], "next": None}, "GET /v1/dead-letters"),
        (MAIL.requeue(KEY), DEAD, f"POST /v1/dead-letters/{KEY}/requeue"),
    ],
)  # fmt: skip
def test_a_verb_asks_what_the_api_wants(call: Exchange[Any], answer: object, asked: str) -> None:
    request, _ = held(call, answer)
    query = f"?{request.query}" if request.query else ""
    assert f"{request.method} {request.path}{query}" == asked
    assert request.credential is Credential.AGENT


def test_dead_letters_of_others_are_the_operators() -> None:
    request, _ = held(mail_calls.dead_letters(agent="bob"), {"dead_letters": [], "next": None})
    assert (request.query, request.credential) == ("agent=bob", Credential.OPERATOR)


def test_only_what_may_be_said_twice_is_said_twice() -> None:
    calls: dict[bool, list[Exchange[Any]]] = {
        True: [mail_calls.send_envelope(b"x"), mail_calls.poll(), mail_calls.acknowledge([])],
        False: [MAIL.requeue(KEY)],
    }
    for expected, some in calls.items():
        assert {next(call).idempotent for call in some} == {expected}


def test_an_envelope_goes_out_as_its_own_bytes() -> None:
    request, accepted = held(mail_calls.send_envelope(b"\x00wire\xff"), ACCEPTED)
    assert (request.method, request.path, request.body) == ("POST", "/v1/messages", b"\x00wire\xff")
    assert (request.content_type, request.accept) == (MEDIA_TYPE, "application/json")
    assert accepted.replay_key == KEY
    step = Line("http://x").prepared(request, timeout=1)
    assert step.headers["content-type"] == MEDIA_TYPE


def test_several_go_out_as_their_own_bytes_and_each_has_its_outcome(envelope: Envelope) -> None:
    problem = {"code": "queue_full", "title": "the queue of bob is full", "hint": "later", "retry_after": 60}
    answer = {"results": [{"message": ACCEPTED, "new": True}, {"problem": problem}]}
    request, outcomes = held(mail_calls.send_envelopes([envelope, envelope]), answer)
    assert request.content_type == MEDIA_TYPE
    assert list(media_type.split_batch(request.body)) == [envelope.wire] * 2
    assert outcomes[0].new
    assert outcomes[1].problem.retry_after == 60
    with pytest.raises(BadAnswer, match="asked about 1 and told of 2"):
        held_open(mail_calls.send_envelopes([envelope]), answer)


def held_open(call: Exchange[Any], answer: object) -> None:
    request = next(call)
    call.send(Response(request.method, request.path, 200, {}, json.dumps(answer).encode()))


def test_the_error_of_one_of_several_is_of_the_family() -> None:
    from angelia.api import ItemProblem
    from angelia.client.api_errors import ApiError, item_fault

    error = item_fault(ItemProblem(code="queue_full", title="full", hint="later", retry_after=60, members={"a": 1}))
    assert isinstance(error, QueueFull)
    assert isinstance(error, ApiError)
    assert (error.message, error.hint, error.retry_after, error.members) == ("full", "later", 60, {"a": 1})
    assert not isinstance(item_fault(ItemProblem(code="new_code", title="x")), QueueFull)
    assert issubclass(type(item_fault(ItemProblem(code="message_id_conflict", title="x"))), MessageIdConflict)


def polled(body: bytes, headers: dict[str, str] | None = None, **wishes: Any) -> tuple[Request, Any]:
    call = mail_calls.poll(**wishes)
    request = next(call)
    with pytest.raises(StopIteration) as end:
        call.send(Response(request.method, request.path, 200, headers or {}, body))
    return request, end.value.value


def record(wire: bytes, attempt: int = 1, token: str = TOKEN) -> bytes:
    return struct.pack(">I32sI", attempt, bytes.fromhex(token), len(wire)) + wire


def test_a_poll_reads_the_framing_byte_for_byte() -> None:
    request, page = polled(record(b"one") + record(b"", 7, KEY), {"angelia-has-more": "1"}, max_messages=3)
    assert (request.query, request.accept, request.waits) == ("max_messages=3", MEDIA_TYPE, 0)
    assert page.has_more
    first, second = page.messages
    assert (first.wire, first.lease_token, first.attempt) == (b"one", TOKEN, 1)
    assert first.replay_key == hashlib.sha256(b"one").hexdigest()
    assert (second.wire, second.lease_token, second.attempt) == (b"", KEY, 7)
    assert polled(b"")[1].messages == []
    assert not polled(b"", {"angelia-has-more": "0"})[1].has_more


@pytest.mark.parametrize("cut", [1, 39, 40, 42])
def test_a_poll_that_was_cut_is_not_half_believed(cut: int) -> None:
    call = mail_calls.poll()
    request = next(call)
    with pytest.raises(BadAnswer, match="ends in the middle"):
        call.send(Response(request.method, request.path, 200, {}, record(b"one")[:cut]))


def test_a_long_poll_has_its_wait_on_top_of_the_time_for_an_answer() -> None:
    request, _ = polled(b"", wait=12.2, correlation_id=ID, min_priority=2, lease_seconds=300)
    query = f"wait_timeout_seconds=13&min_priority=2&correlation_id={ID}&lease_seconds=300"
    assert (request.query, request.waits) == (query, 13)
    assert polled(b"", wait=1000)[0].waits == 30
    step = Line("http://x", timeout=5, stopwatch=lambda: 0.0).run(mail_calls.poll(wait=20)).send(None)
    assert isinstance(step, Send)
    assert (step.timeout, step.allowed) == (25, 25)


def test_what_is_said_of_messages_goes_out_as_the_api_wants(correspondent: Correspondent) -> None:
    receipt = sign_receipt(
        Receipt(
            status=ReceiptStatus.DELIVERED,
            replay_key=KEY,
            message_id=ID,
            sender_nhi="alice",
            recipient_nhi="bob",
            time_ms=1,
            signer_id=ID,
        ),
        correspondent.pair,
    )
    acks = [
        AckItem(replay_key=KEY, lease_token=TOKEN, receipt=receipt_document(receipt)),
        AckItem(replay_key=KEY, lease_token=TOKEN),
    ]
    done = {"results": [{"replay_key": KEY, "acknowledged": True}, {"replay_key": KEY, "acknowledged": False}]}
    request, outcomes = held(mail_calls.acknowledge(acks), done)
    first, second = json.loads(request.body)["acks"]
    assert (first["receipt"]["status"], second) == ("delivered", {"replay_key": KEY, "lease_token": TOKEN})
    assert [one.acknowledged for one in outcomes] == [True, False]
    nacks = [NackItem(replay_key=KEY, lease_token=TOKEN, reason="busy", retry_after=0)]
    back = {"results": [{"replay_key": KEY, "state": "queued", "retry_at": "2026-11-15T12:00:00Z"}]}
    request, outcomes = held(mail_calls.nack(nacks), back)
    assert json.loads(request.body)["nacks"] == [
        {"replay_key": KEY, "lease_token": TOKEN, "reason": "busy", "retry_after": 0}
    ]
    assert outcomes[0].retry_at == NOON
    request, _ = held(mail_calls.hand_in_receipt(receipt), RECEIPT)
    assert (request.path, json.loads(request.body)["signer_id"]) == ("/v1/receipts", str(receipt.signer_id))


@pytest.fixture
def correspondent() -> Correspondent:
    made = Correspondent(KeyType.XWING)
    made.handle = "bob"
    return made


@pytest.fixture
def envelope(correspondent: Correspondent) -> Envelope:
    return correspondent.seal(correspondent)
