"""Mail through the SDK and a real relay: nothing is lost, nothing is shown twice, nobody is believed for nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from angelia.client import AsyncClient, Client, Unreachable, attempts, mail, sealed, stream
from angelia.client.mail_answers import Handed, MessageNews, PrekeysLow
from angelia.client.mail_calls import Nack
from angelia.client.receiving import Told
from angelia.envelope import wire
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document, sign_receipt
from angelia.envelope.refusals import IdConflict, NotAllowed, OpenFailed, Replayed, SignatureFailed
from angelia.envelope.wire import Priority
from angelia.errors import DeadlineExceeded, Denied
from angelia.keys.model import ONE_TIME_LOW
from angelia.mail.model import ATTEMPTS, Attested
from angelia.mailbox.box import Mailbox
from angelia.mailbox.outbox import Outgoing, Sent
from client.recorder import Recorder, closed_port
from client.test_mail_calls import RECEIPT
from forgery import forged
from people import Person

Join = Callable[..., Person]


@pytest.fixture(autouse=True)
def short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sealed, "ONE_TIME_BATCH", ONE_TIME_LOW + 1)


@pytest.fixture
def alice(join: Join) -> Person:
    return join("alice")


@pytest.fixture
def bob(join: Join, alice: Person) -> Person:
    """Bob opens Alice's mail, and she his."""
    bob = join("bob")
    bob.allow(alice)
    alice.allow(bob)
    return bob


def now() -> datetime:
    return datetime.now(UTC)


def outgoing(person: Person) -> Outgoing:
    """The newest message of an outbox."""
    return person.mailbox.outbox.page(1)[0]


def bodies(person: Person, **wishes: Any) -> list[bytes]:
    return [one.body for one in person.client.receive(person.mailbox, **wishes).messages]


# There and back.


def test_a_message_opens_once_and_its_sender_gets_a_signed_receipt(alice: Person, bob: Person) -> None:
    sent = alice.client.send(alice.mailbox, bob.name, b"the server cannot read this", priority=Priority.HIGH)
    assert outgoing(alice).status is Sent.QUEUED
    assert sent.accepted.replay_key == sent.replay_key == outgoing(alice).replay_key
    received = bob.client.receive(bob.mailbox)
    (opened,) = received.messages
    assert (opened.body, opened.message.sender) == (b"the server cannot read this", alice.name)
    assert opened.message.priority is Priority.HIGH
    assert (received.not_opened, received.unacknowledged, received.has_more) == ((), None, False)
    assert bob.mailbox.inbox.message(sent.replay_key).acked_at is not None
    assert bodies(bob) == []

    news = alice.client.update_outbox(alice.mailbox)
    assert [(one.replay_key, one.status, one.by) for one in news.told] == [
        (sent.replay_key, Sent.DELIVERED, Attested.RECIPIENT)
    ]
    assert not outgoing(alice).resealable
    assert alice.client.update_outbox(alice.mailbox).told == ()

    bob.client.hand_in_receipt(bob.mailbox.inbox.receipt(sent.replay_key, ReceiptStatus.READ, now()))
    assert [one.status for one in alice.client.update_outbox(alice.mailbox).told] == [Sent.READ]


def test_a_receipt_of_a_recipient_who_rotated_its_pair_is_followed(alice: Person, bob: Person) -> None:
    alice.client.send(alice.mailbox, bob.name, b"hello")
    bob.client.rotate_keys(bob.mailbox, signer=True)
    assert bodies(bob) == [b"hello"]
    news = alice.client.update_outbox(alice.mailbox)
    assert [(one.status, one.by) for one in news.told] == [(Sent.DELIVERED, Attested.RECIPIENT)]
    pin = alice.mailbox.trust.pin(bob.name)
    assert pin is not None
    assert pin.bundle_version == 2


def test_a_wait_ends_when_mail_comes(alice: Person, bob: Person) -> None:
    later = threading.Timer(0.5, lambda: alice.client.send(alice.mailbox, bob.name, b"at last"))
    later.start()
    began = time.monotonic()
    assert bodies(bob, wait=20) == [b"at last"]
    assert time.monotonic() - began < 10
    later.join()
    began = time.monotonic()
    assert bodies(bob, wait=1) == []
    assert time.monotonic() - began >= 0.9


def test_mail_comes_by_priority_and_as_much_as_is_wanted(alice: Person, bob: Person) -> None:
    for number, priority in enumerate((Priority.LOW, Priority.CRITICAL, Priority.NORMAL)):
        alice.client.send(alice.mailbox, bob.name, bytes([number]), priority=priority)
    first = bob.client.receive(bob.mailbox, most=2)
    assert ([one.body for one in first.messages], first.has_more) == ([b"\x01", b"\x02"], True)
    assert bodies(bob, min_priority=1) == []
    assert bodies(bob) == [b"\x00"]


def test_control_messages_are_stored_and_acknowledged_and_not_shown(alice: Person, bob: Person) -> None:
    sent = alice.client.send(alice.mailbox, bob.name, b"\x02secret", control=True)
    received = bob.client.receive(bob.mailbox)
    assert (received.messages, received.not_opened, received.controls) == ((), (), 1)
    assert [one.body for one in bob.mailbox.inbox.controls()] == [b"\x02secret"]
    assert bob.mailbox.inbox.message(sent.replay_key).acked_at is not None


def test_several_sealed_messages_go_together_and_each_has_its_outcome(alice: Person, bob: Person) -> None:
    found, _ = alice.client.find_keys(alice.mailbox, bob.name)
    envelopes = [alice.mailbox.outbox.seal(found.link, bytes([n]), now=now()) for n in range(3)]
    assert alice.client.send_sealed(alice.mailbox, envelopes) == [None] * 3
    stolen = forged(wire.decode(envelopes[0].wire), alice.mailbox, priority=Priority.HIGH)
    again = alice.client.send_sealed(alice.mailbox, [envelopes[1], wire.decode(stolen)])
    assert [None if one is None else one.code for one in again] == [None, "message_id_conflict"]
    assert {row.status for row in alice.mailbox.outbox.page()} == {Sent.QUEUED}
    assert sorted(bodies(bob)) == [b"\x00", b"\x01", b"\x02"]


def test_a_message_may_be_taken_back_until_it_was_given(alice: Person, bob: Person) -> None:
    first = alice.client.send(alice.mailbox, bob.name, b"oh no")
    alice.client.withdraw(alice.mailbox, first.replay_key)
    assert (outgoing(alice).status, outgoing(alice).resealable) == (Sent.FAILED, False)
    assert bodies(bob) == []
    stored = alice.client.seal(alice.mailbox, bob.name, b"never sent")
    alice.client.withdraw(alice.mailbox, stored.replay_key)
    assert alice.client.deliver_outbox(alice.mailbox).sent == ()


# A relay that is away, full, or changes its mind about keys.


def test_what_cannot_be_sent_waits_in_the_outbox_and_is_sent_byte_for_byte(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_port() as nowhere, Client(nowhere, identity=alice.mailbox) as client:
        with pytest.raises(Unreachable) as away:
            client.send(alice.mailbox, bob.name, b"later")
        row = outgoing(alice)
        assert away.value.members == {mail.WAITING: row.replay_key}
        assert (row.status, row.attempts) == (Sent.STORED, 1)
        monkeypatch.setattr(sealed, "now", lambda: now() + timedelta(seconds=2))
        (unsent,) = client.deliver_outbox(alice.mailbox).unsent
        assert isinstance(unsent.error, Unreachable)
    assert outgoing(alice).attempts == 2
    monkeypatch.setattr(sealed, "now", lambda: now() + timedelta(seconds=5))
    stored = alice.mailbox.outbox.wire(row.replay_key)
    (sent,) = alice.client.deliver_outbox(alice.mailbox).sent
    assert sent.envelope.wire == stored
    assert alice.client.deliver_outbox(alice.mailbox).sent == ()
    assert bodies(bob) == [b"later"]


def test_a_lost_answer_costs_nothing_and_the_message_comes_once(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.client.loses = "/v1/messages"
    with pytest.raises(Unreachable):
        alice.client.send(alice.mailbox, bob.name, b"once")
    assert outgoing(alice).status is Sent.STORED
    # Ten minutes later its bytes are too old to be taken for the first time, but not to be recognised.
    monkeypatch.setattr(sealed, "now", lambda: now() + timedelta(minutes=10))
    (sent,) = alice.client.deliver_outbox(alice.mailbox).sent
    assert sent.replay_key == outgoing(alice).replay_key
    monkeypatch.undo()
    assert bodies(bob) == [b"once"]
    assert bodies(bob) == []


def test_a_message_that_waited_too_long_is_sealed_again_under_its_id(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sealed, "now", lambda: now() - timedelta(minutes=10))
        old = alice.client.seal(alice.mailbox, bob.name, b"overdue")
    (sent,) = alice.client.deliver_outbox(alice.mailbox).sent
    assert sent.replay_key != old.replay_key
    assert sent.envelope.header.message_id == old.header.message_id
    assert sent.envelope.header.expires_at <= old.header.expires_at
    assert bodies(bob) == [b"overdue"]


def test_a_clock_that_is_wrong_is_named_and_the_message_waits(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "now", lambda: now() + timedelta(minutes=10))
    with pytest.raises(attempts.ApiError) as refused:
        alice.client.send(alice.mailbox, bob.name, b"from tomorrow")
    assert refused.value.code == "clock_skew"
    assert outgoing(alice).status is Sent.STORED


def test_keys_that_were_revoked_meanwhile_mean_sealing_again(alice: Person, bob: Person) -> None:
    bob.client.emergency_rotate_keys(bob.mailbox, why="stolen")
    sent = alice.client.send(alice.mailbox, bob.name, b"to the new key")
    assert sent.envelope.header.key_id == bob.newest.kem_keys[0].key.key_id
    assert [row.status for row in alice.mailbox.outbox.page()] == [Sent.QUEUED, Sent.RESEALED]
    assert bodies(bob) == [b"to the new key"]


def test_mail_whose_key_was_revoked_while_it_waited_is_sent_again_under_a_new_id(alice: Person, bob: Person) -> None:
    first = alice.client.send(alice.mailbox, bob.name, b"in the queue")
    bob.client.emergency_rotate_keys(bob.mailbox, why="stolen", signer=False)
    deadline = time.monotonic() + 20
    while not (news := alice.client.update_outbox(alice.mailbox)).resent and time.monotonic() < deadline:
        assert bodies(bob, wait=1) == []
    (again,) = news.resent
    assert again.envelope.header.message_id != first.envelope.header.message_id
    assert bodies(bob, wait=5) == [b"in the queue"]
    assert alice.mailbox.outbox.outgoing(first.replay_key).status is Sent.RESEALED
    assert [one.status for one in alice.client.update_outbox(alice.mailbox).told] == [Sent.DELIVERED]


def test_what_is_refused_for_good_has_failed(alice: Person, bob: Person) -> None:
    bob.client.block_agent(alice.name)
    with pytest.raises(Denied):
        alice.client.send(alice.mailbox, bob.name, b"please")
    assert outgoing(alice).status is Sent.FAILED
    assert alice.client.deliver_outbox(alice.mailbox).sent == ()


def test_a_message_without_its_bytes_is_given_up_and_the_others_are_sent(alice: Person, bob: Person) -> None:
    broken, good = (alice.client.seal(alice.mailbox, bob.name, body) for body in (b"broken", b"good"))
    path = alice.mailbox.directory / "outbox" / f"{broken.replay_key}.agl"
    path.write_bytes(b"changed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed, "now", lambda: now() + timedelta(seconds=2))
        done = alice.client.deliver_outbox(alice.mailbox)
    assert [one.message.replay_key for one in done.unsent] == [broken.replay_key]
    assert [one.replay_key for one in done.sent] == [good.replay_key]
    assert bodies(bob) == [b"good"]


# Crashes and copies on the recipient's side.


def test_killed_between_opening_and_acknowledging_it_is_recognised_acknowledged_and_in_the_inbox(
    alice: Person, bob: Person
) -> None:
    sent = alice.client.send(alice.mailbox, bob.name, b"once")

    def killed() -> None:
        raise KeyboardInterrupt

    bob.client.before = ("/v1/messages/acknowledge", killed)
    with pytest.raises(KeyboardInterrupt):
        bob.client.receive(bob.mailbox, lease_seconds=5)
    bob.reopen()
    assert [one.replay_key for one in bob.mailbox.inbox.unacked()] == [sent.replay_key]
    received = bob.client.receive(bob.mailbox, wait=8)
    assert received.messages == ()
    assert [one.replay_key for one in received.recovered] == [sent.replay_key]
    assert [(type(one.error), one.told) for one in received.not_opened] == [(Replayed, Told.ACKNOWLEDGED)]
    assert bob.mailbox.inbox.unacked() == []
    assert bob.mailbox.inbox.read(sent.replay_key, now()).body == b"once"
    told = alice.client.update_outbox(alice.mailbox).told
    assert [(one.status, one.by) for one in told] == [(Sent.DELIVERED, Attested.RECIPIENT)]
    assert bob.client.message_status(sent.replay_key).envelope is None


def test_a_relay_that_goes_away_before_the_acknowledgment_keeps_nobody_from_reading(alice: Person, bob: Person) -> None:
    alice.client.send(alice.mailbox, bob.name, b"read me")
    bob.client.loses = "/v1/messages/acknowledge"
    received = bob.client.receive(bob.mailbox)
    assert [one.body for one in received.messages] == [b"read me"]
    assert isinstance(received.unacknowledged, Unreachable)
    assert bodies(bob) == []


def test_what_was_handed_over_by_hand_as_well_is_acknowledged_and_not_shown_again(alice: Person, bob: Person) -> None:
    sent = alice.client.send(alice.mailbox, bob.name, b"twice on its way")
    assert bob.client.open(bob.mailbox, sent.envelope.wire).body == b"twice on its way"
    bob.mailbox.inbox.read(sent.replay_key, now())
    received = bob.client.receive(bob.mailbox)
    assert (received.messages, received.unacknowledged) == ((), None)
    assert [one.status for one in alice.client.update_outbox(alice.mailbox).told] == [Sent.READ]


# Mail that is not opened.


def test_mail_of_a_stranger_waits_at_the_relay_and_is_there_once_it_is_allowed(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.client.send(alice.mailbox, bob.name, b"may I?")
    received = bob.client.receive(bob.mailbox)
    assert received.messages == ()
    (refused,) = received.not_opened
    assert (type(refused.error), refused.told, refused.sender) == (NotAllowed, Told.KEPT_OUT, alice.name)
    assert bob.client.receive(bob.mailbox) == type(received)()
    assert bob.client.message_status(sent.replay_key).status == "pending"
    alice.client.send(alice.mailbox, bob.name, b"please")
    assert [one.told for one in bob.client.receive(bob.mailbox).not_opened] == [Told.KEPT_OUT]

    bob.allow(alice)
    assert bodies(bob) == [b"may I?", b"please"]
    assert bodies(bob) == []
    assert bob.mailbox.kept_out.admitted(now()) == []
    told = alice.client.update_outbox(alice.mailbox).told
    assert {(one.status, one.by) for one in told} == {(Sent.DELIVERED, Attested.RECIPIENT)}


def test_however_often_a_stranger_is_kept_out_its_mail_does_not_die(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.client.send(alice.mailbox, bob.name, b"patience")
    for attempt in range(1, ATTEMPTS + 3):
        handed = Handed(wire=sent.envelope.wire, replay_key=sent.replay_key, lease_token="ab" * 32, attempt=attempt)
        if attempt <= 2:
            (handed,) = bob.client.poll(wait=5).messages
            bob.client.nack([at_once(handed)])
        received = bob.client.take_in(bob.mailbox, [handed])
        assert [one.told for one in received.not_opened] == [Told.KEPT_OUT]
    assert bob.client.dead_letters().dead_letters == []
    assert bob.client.message_status(sent.replay_key).state == "queued"


def at_once(handed: Handed) -> Nack:
    return Nack(replay_key=handed.replay_key, lease_token=handed.lease_token, retry_after=0)


def test_strangers_do_not_hide_the_mail_behind_them(join: Join, alice: Person, bob: Person) -> None:
    mallory = join("mallory")
    for number in range(3):
        mallory.client.send(mallory.mailbox, bob.name, bytes([number]), priority=Priority.CRITICAL)
    alice.client.send(alice.mailbox, bob.name, b"behind them")
    assert bodies(bob, most=1) == [b"behind them"]


def test_what_cannot_be_opened_comes_to_an_end_with_a_signed_receipt(alice: Person, bob: Person) -> None:
    envelope = alice.client.seal(alice.mailbox, bob.name, b"garbled")
    bad = forged(dataclasses.replace(envelope, tag=bytes(16)), alice.mailbox)
    alice.client.send_envelope(bad)
    received = bob.client.receive(bob.mailbox)
    assert [(type(one.error), one.told) for one in received.not_opened] == [(OpenFailed, Told.FAILED)]
    receipt = alice.client.receipt(wire.decode(bad).replay_key)
    assert (receipt.status, receipt.attested_by, receipt.failure_reason) == ("failed", "recipient", "open_failed")
    signed = alice.client.check_attested(alice.mailbox, receipt)
    assert signed is not None
    assert (signed.status, signed.reason) == (ReceiptStatus.FAILED, "open_failed")
    assert bodies(bob) == []


def test_a_second_message_under_one_id_fails_and_its_sender_is_told(alice: Person, bob: Person) -> None:
    first = alice.client.seal(alice.mailbox, bob.name, b"by hand")
    bob.client.open(bob.mailbox, first.wire)
    again = alice.client.reseal(alice.mailbox, first.replay_key)
    assert alice.client.send_sealed(alice.mailbox, [again]) == [None]
    received = bob.client.receive(bob.mailbox)
    assert [(type(one.error), one.told) for one in received.not_opened] == [(IdConflict, Told.FAILED)]
    (told,) = alice.client.update_outbox(alice.mailbox).told
    assert (told.status, told.by, told.reason) == (Sent.FAILED, Attested.RECIPIENT, "message_id_conflict")


# Questions and answers.


def test_a_question_is_answered_and_nobody_elses_mail_is_touched(join: Join, alice: Person, bob: Person) -> None:
    carol = join("carol")
    alice.allow(carol)
    carol.client.send(carol.mailbox, alice.name, b"something else")

    def answer() -> None:
        (question,) = bob.client.receive(bob.mailbox, wait=20).messages
        bob.client.answer(bob.mailbox, question, question.body.upper())
        bob.client.answer(bob.mailbox, question, b"and again")

    thread = threading.Thread(target=answer)
    thread.start()
    answered = alice.client.send_and_wait(alice.mailbox, bob.name, b"are you there?", timeout=20)
    thread.join()
    assert (answered.body, answered.message.sender) == (b"ARE YOU THERE?", bob.name)
    assert sorted(bodies(alice)) == [b"and again", b"something else"]


def test_a_question_without_an_answer_ends_and_a_late_one_is_ordinary_mail(alice: Person, bob: Person) -> None:
    with pytest.raises(DeadlineExceeded, match="did not answer within 1 s"):
        alice.client.send_and_wait(alice.mailbox, bob.name, b"hello?", timeout=1)
    (question,) = bob.client.receive(bob.mailbox).messages
    bob.client.answer(bob.mailbox, question, b"sorry, late")
    (late,) = alice.client.receive(alice.mailbox).messages
    assert late.message.correlation_id == question.message.correlation_id


def test_nobody_waits_for_an_answer_that_would_not_be_opened(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    with pytest.raises(NotAllowed):
        alice.client.send_and_wait(alice.mailbox, bob.name, b"hello?")
    assert alice.mailbox.outbox.page() == []


def test_an_answer_counts_whichever_process_received_it(alice: Person, bob: Person) -> None:
    def answer() -> None:
        (question,) = bob.client.receive(bob.mailbox, wait=20).messages
        bob.client.answer(bob.mailbox, question, b"here")
        with Mailbox(alice.home, alice.mailbox.identity, now()) as other, Client(alice.url, identity=other) as client:
            while not other.inbox.page().messages:
                client.receive(other)

    thread = threading.Thread(target=answer)
    thread.start()
    assert alice.client.send_and_wait(alice.mailbox, bob.name, b"hello?", timeout=20).body == b"here"
    thread.join()


# A relay that lies.


@pytest.fixture
def sent(alice: Person, bob: Person) -> Outgoing:
    alice.client.send(alice.mailbox, bob.name, b"hello")
    return outgoing(alice)


def said(row: Outgoing, alice: Person, bob: Person, **more: object) -> dict[str, object]:
    named = {
        "replay_key": row.replay_key,
        "message_id": str(row.message_id),
        "sender": alice.name,
        "recipient": bob.name,
    }
    return {**RECEIPT, **named, **more}


def signed(row: Outgoing, sender: str, by: Person, **more: Any) -> dict[str, object]:
    values: dict[str, Any] = {
        "status": ReceiptStatus.DELIVERED,
        "replay_key": row.replay_key,
        "message_id": row.message_id,
        "sender_nhi": sender,
        "recipient_nhi": by.name,
        "time_ms": int(time.time() * 1000),
        "signer_id": row.message_id,
        **more,
    }
    document: dict[str, object] = msgspec.to_builtins(
        receipt_document(sign_receipt(Receipt(**values), by.mailbox.identity.pair))
    )
    return document


def told_by(recorder: Recorder, alice: Person, answer: dict[str, object]) -> Any:
    recorder.told.clear()
    recorder.tell("GET", "/v1/receipts", {"receipts": [answer], "next": None})
    with Client(recorder.url, identity=alice.mailbox) as client:
        return client.update_outbox(alice.mailbox)


def test_what_a_relay_invents_is_reported_and_never_believed(
    recorder: Recorder, alice: Person, bob: Person, sent: Outgoing, join: Join
) -> None:
    mallory = join("mallory")
    true = signed(sent, alice.name, bob)
    lies = [
        {"status": "read"},
        {"status": "delivered", "attested_by": "recipient"},
        {"status": "delivered", "attested_by": "recipient", "receipt": {**true, "time_ms": 1}},
        {"status": "read", "attested_by": "recipient", "receipt": {**true, "status": "read"}},
        {"status": "delivered", "attested_by": "recipient", "receipt": signed(sent, alice.name, mallory)},
        {"status": "delivered", "attested_by": "recipient",
         "receipt": signed(sent, alice.name, mallory, recipient_nhi=bob.name)},
        {"status": "delivered", "attested_by": "recipient",
         "receipt": signed(sent, alice.name, bob, message_id=mallory.newest.signer.signer_id)},
        {"status": "failed", "message_id": str(mallory.newest.signer.signer_id)},
    ]  # fmt: skip
    for lie in lies:
        news = told_by(recorder, alice, said(sent, alice, bob, **lie))
        assert news.told == (), lie
        assert len(news.doubts) == 1, lie
        assert outgoing(alice).status is Sent.QUEUED
    # The signed word counts, not what the relay makes of it.
    news = told_by(recorder, alice, said(sent, alice, bob, status="read", attested_by="recipient", receipt=true))
    assert [one.status for one in news.told] == [Sent.DELIVERED]


def test_a_relays_own_word_is_taken_as_its_word(recorder: Recorder, alice: Person, bob: Person, sent: Outgoing) -> None:
    news = told_by(recorder, alice, said(sent, alice, bob, status="expired"))
    assert [(one.status, one.by) for one in news.told] == [(Sent.EXPIRED, Attested.RELAY)]
    assert outgoing(alice).status is Sent.EXPIRED


def test_one_bad_receipt_keeps_nobody_from_the_others(
    recorder: Recorder, alice: Person, bob: Person, sent: Outgoing
) -> None:
    alice.client.send(alice.mailbox, bob.name, b"second")
    good, bad = said(outgoing(alice), alice, bob, status="expired"), said(sent, alice, bob, status="read")
    recorder.tell("GET", "/v1/receipts", {"receipts": [bad], "next": "c"})
    recorder.tell("GET", "/v1/receipts", {"receipts": [good], "next": None})
    with Client(recorder.url, identity=alice.mailbox) as client:
        news = client.update_outbox(alice.mailbox)
    assert [type(one.error) for one in news.doubts] == [SignatureFailed]
    assert [one.replay_key for one in news.told] == [good["replay_key"]]


# The stream.


async def test_a_stream_says_what_comes_and_what_became_of_it(alice: Person, bob: Person) -> None:
    async with (
        AsyncClient(bob.url, identity=bob.mailbox) as bobs,
        AsyncClient(alice.url, identity=alice.mailbox) as alices,
        aclosing(bobs.stream_mail()) as incoming,
        aclosing(alices.stream_mail()) as news,
    ):
        await alices.send(alice.mailbox, bob.name, b"hello")
        handed = await anext(incoming)
        assert isinstance(handed, Handed)
        waiting = asyncio.create_task(anext(news))
        for _ in range(100):  # until the second stream is heard as well
            await asyncio.sleep(0.05)
            if waiting.done():
                break
        received = await bobs.take_in(bob.mailbox, [handed])
        assert [one.body for one in received.messages] == [b"hello"]
        said = await asyncio.wait_for(waiting, 10)
        assert isinstance(said, MessageNews)
        assert (said.replay_key, said.status) == (handed.replay_key, "delivered")


async def test_a_mailbox_that_is_served_answers_questions(alice: Person, bob: Person) -> None:
    async with (
        AsyncClient(bob.url, identity=bob.mailbox) as bobs,
        AsyncClient(alice.url, identity=alice.mailbox) as alices,
    ):

        async def answer(question: Any) -> None:
            await bobs.answer(bob.mailbox, question, question.body.upper())

        serving = asyncio.create_task(bobs.run_mailbox(bob.mailbox, answer))
        answered = await alices.send_and_wait(alice.mailbox, bob.name, b"shout", timeout=20)
        assert answered.body == b"SHOUT"
        for _ in range(100):
            if outgoing(bob).status is Sent.DELIVERED:
                break
            await asyncio.sleep(0.1)
        assert outgoing(bob).status is Sent.DELIVERED
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_a_stream_that_breaks_off_is_taken_up_again(recorder: Recorder, alice: Person) -> None:
    event = 'event: prekeys_low\ndata: {"count":3}\n\n'
    recorder.tell("GET", "/v1/messages/stream", b": still here\n\nevent: unknown\ndata: {}\n\n" + event.encode())
    recorder.tell("GET", "/v1/messages/stream", {"code": "unavailable"}, status=503)
    recorder.tell("GET", "/v1/messages/stream", event.replace("3", "2").encode())
    recorder.tell("GET", "/v1/messages/stream", {"code": "unauthenticated"}, status=401)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "FIRST_PAUSE", 0.01)
        async with AsyncClient(recorder.url, identity=alice.mailbox) as client:
            said = client.stream_mail()
            assert [await anext(said), await anext(said)] == [PrekeysLow(count=3), PrekeysLow(count=2)]
            with pytest.raises(attempts.ApiError):
                await anext(said)
    nonces = {seen.headers["signature-input"] for seen in recorder.seen}
    assert len(nonces) == len(recorder.seen) == 4
