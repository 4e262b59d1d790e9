"""What became of sent mail: asked with little work, written down as it is heard, and believed only with a signature."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from angelia.client import Client, delivery_status
from angelia.client.delivery_status import FEW
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document, sign_receipt
from angelia.envelope.refusals import SignatureFailed
from angelia.errors import Unavailable
from angelia.mail.model import Attested
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus
from client.letters import bodies, now, outgoing
from client.recorder import Recorder
from client.test_mail_calls import RECEIPT
from live_agents import Person

Join = Callable[..., Person]


pytestmark = pytest.mark.usefixtures("short_work")


# A relay that lies.


@pytest.fixture
def sent(alice: Person, bob: Person) -> OutboxMessage:
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    return outgoing(alice)


def said(row: OutboxMessage, alice: Person, bob: Person, **more: object) -> dict[str, object]:
    named = {
        "replay_key": row.replay_key,
        "message_id": str(row.message_id),
        "sender": alice.name,
        "recipient": bob.name,
    }
    return {**RECEIPT, **named, **more, "asked": row.replay_key}


def signed(row: OutboxMessage, sender: str, by: Person, **more: Any) -> dict[str, object]:
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


def told_by(recorder: Recorder, alice: Person, *answers: dict[str, object]) -> Any:
    recorder.told.clear()
    for answer in answers:
        recorder.tell("GET", f"/v1/receipts/{answer['asked']}", answer)
    with Client(recorder.url, identity=alice.mailbox) as client:
        return client.mail.update_outbox(alice.mailbox)


def test_what_a_relay_invents_is_reported_and_never_believed(
    recorder: Recorder, alice: Person, bob: Person, sent: OutboxMessage, join: Join
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
        assert news.changes == [], lie
        assert len(news.doubts) == 1, lie
        assert outgoing(alice).status is OutboxStatus.QUEUED
    # The signed word counts, not what the relay makes of it.
    news = told_by(recorder, alice, said(sent, alice, bob, status="read", attested_by="recipient", receipt=true))
    assert [one.status for one in news.changes] == [OutboxStatus.DELIVERED]


def test_a_relays_own_word_is_taken_as_its_word(
    recorder: Recorder, alice: Person, bob: Person, sent: OutboxMessage
) -> None:
    news = told_by(recorder, alice, said(sent, alice, bob, status="failed", failure_reason="too many attempts"))
    assert [(one.status, one.by) for one in news.changes] == [(OutboxStatus.FAILED, Attested.RELAY)]
    row = outgoing(alice)
    assert (row.status, row.reported, row.reported_reason) == (
        OutboxStatus.QUEUED,
        OutboxStatus.FAILED,
        "too many attempts",
    )
    assert row.resealable
    assert (
        told_by(recorder, alice, said(sent, alice, bob, status="failed", failure_reason="too many attempts")).changes
        == []
    )


def test_one_bad_receipt_keeps_nobody_from_the_others(
    recorder: Recorder, alice: Person, bob: Person, sent: OutboxMessage
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"second")
    good, bad = said(outgoing(alice), alice, bob, status="failed"), said(sent, alice, bob, status="read")
    news = told_by(recorder, alice, bad, good)
    assert [type(one.error) for one in news.doubts] == [SignatureFailed]
    assert [one.replay_key for one in news.changes] == [good["replay_key"]]


def test_a_few_messages_are_asked_about_by_name_and_many_among_what_was_sent(
    recorder: Recorder, alice: Person, bob: Person, sent: OutboxMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_by(recorder, alice, said(sent, alice, bob, status="pending"))
    assert [seen.path for seen in recorder.seen] == [f"/v1/receipts/{sent.replay_key}"]

    alice.client.mail.send(alice.mailbox, bob.name, b"second")
    monkeypatch.setattr(delivery_status, "FEW", 1)
    recorder.told.clear()
    recorder.seen.clear()
    for row, following in ((outgoing(alice), "c"), (sent, None)):
        page = {"receipts": [said(row, alice, bob, status="failed")], "next": following}
        recorder.tell("GET", "/v1/receipts", page)
    with Client(recorder.url, identity=alice.mailbox) as client:
        assert len(client.mail.update_outbox(alice.mailbox).changes) == 2
    asked = [parse_qs(seen.query) for seen in recorder.asked("GET", "/v1/receipts")]
    assert [(one["side"], one.get("cursor")) for one in asked] == [(["sent"], None), (["sent"], ["c"])]
    assert len(recorder.seen) == 2


def test_many_messages_are_followed_through_a_real_relay(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_status, "FEW", 2)
    monkeypatch.setattr(delivery_status, "_PAGE", 2)
    for number in range(5):
        alice.client.mail.send(alice.mailbox, bob.name, bytes([number]))
        bob.client.mail.send(bob.mailbox, alice.name, b"something else")
    assert len(bodies(bob)) == 5
    news = alice.client.mail.update_outbox(alice.mailbox)
    assert [(one.status, one.by) for one in news.changes] == [(OutboxStatus.DELIVERED, Attested.RECIPIENT)] * 5
    assert FEW > 2


def test_a_receipt_that_was_checked_is_not_checked_again(
    alice: Person, bob: Person, sent: OutboxMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bodies(bob) == [b"hello"]
    assert len(alice.client.mail.update_outbox(alice.mailbox).changes) == 1

    def never(*_: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(delivery_status, "check_attested", never)
        assert alice.client.mail.update_outbox(alice.mailbox) == delivery_status.OutboxUpdate()
    bob.client.mail.hand_in_receipt(bob.mailbox.inbox.receipt(sent.replay_key, ReceiptStatus.READ, now()))
    assert [one.status for one in alice.client.mail.update_outbox(alice.mailbox).changes] == [OutboxStatus.READ]


def test_what_was_heard_before_the_relay_went_away_is_told_and_written_down(
    recorder: Recorder, alice: Person, bob: Person, sent: OutboxMessage
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"second")
    second = outgoing(alice)
    recorder.tell("GET", f"/v1/receipts/{second.replay_key}", {"code": "unavailable"}, status=503)
    recorder.tell("GET", f"/v1/receipts/{sent.replay_key}", said(sent, alice, bob, status="failed"))
    with Client(recorder.url, identity=alice.mailbox) as client:
        news = client.mail.update_outbox(alice.mailbox)
        assert [one.replay_key for one in news.changes] == [sent.replay_key]
        assert isinstance(news.interrupted, Unavailable)
        assert alice.mailbox.outbox.message(sent.replay_key).reported is OutboxStatus.FAILED
        with pytest.raises(Unavailable):  # and nothing new was heard before it
            client.mail.update_outbox(alice.mailbox)


def test_a_message_that_the_relay_has_forgotten_keeps_nobody_from_the_others(
    recorder: Recorder, alice: Person, bob: Person, sent: OutboxMessage
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"second")
    recorder.tell("GET", f"/v1/receipts/{sent.replay_key}", {"code": "not_found"}, status=404)
    second = outgoing(alice)
    recorder.tell("GET", f"/v1/receipts/{second.replay_key}", said(second, alice, bob, status="failed"))
    with Client(recorder.url, identity=alice.mailbox) as client:
        news = client.mail.update_outbox(alice.mailbox)
    assert ([one.replay_key for one in news.changes], news.interrupted) == ([second.replay_key], None)
    assert alice.mailbox.outbox.message(sent.replay_key).status is OutboxStatus.QUEUED
