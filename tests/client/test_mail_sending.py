"""Mail through the SDK and a real relay: nothing is lost, nothing is shown twice, nobody is believed for nothing."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from angelia.client import Client, Unreachable, clock, mail_sending, transport
from angelia.client.ack_plan import AckVerdict
from angelia.client.mail_calls import LeasedMessage
from angelia.envelope import wire
from angelia.envelope.receipts import ReceiptStatus
from angelia.envelope.refusals import IdConflict, NotAllowed, OpenFailed, Replayed
from angelia.envelope.sealing import Control
from angelia.envelope.wire import Priority
from angelia.errors import Conflict, DeadlineExceeded, Denied, InvalidArgument, KeyRevoked, Unavailable
from angelia.mail.api import NackItem
from angelia.mail.model import ATTEMPTS, Attested
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox import Outbox
from angelia.mailbox.outbox_message import OutboxStatus
from client.letters import bodies, now, outgoing
from client.recorder import closed_port
from forged_envelopes import forged
from live_agents import Person
from lying_proxy import Answer, Liar, problem

Join = Callable[..., Person]
_VERB_OF = {"EMFILE": "open", "EIO": "fdopen"}


pytestmark = pytest.mark.usefixtures("short_work")


# There and back.


def test_a_message_opens_once_and_its_sender_gets_a_signed_receipt(alice: Person, bob: Person) -> None:
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"the server cannot read this", priority=Priority.HIGH)
    assert outgoing(alice).status is OutboxStatus.QUEUED
    assert sent.accepted.replay_key == sent.replay_key == outgoing(alice).replay_key
    received = bob.client.mail.receive(bob.mailbox)
    (opened,) = received.messages
    assert (opened.body, opened.message.sender) == (b"the server cannot read this", alice.name)
    assert opened.message.priority is Priority.HIGH
    assert (received.not_opened, received.unacknowledged, received.has_more) == ((), None, False)
    assert bob.mailbox.inbox.message(sent.replay_key).acked_at is not None
    assert bodies(bob) == []

    news = alice.client.mail.update_outbox(alice.mailbox)
    assert [(one.replay_key, one.status, one.by) for one in news.changes] == [
        (sent.replay_key, OutboxStatus.DELIVERED, Attested.RECIPIENT)
    ]
    assert not outgoing(alice).resealable
    assert alice.client.mail.update_outbox(alice.mailbox).changes == []

    bob.client.mail.hand_in_receipt(bob.mailbox.inbox.receipt(sent.replay_key, ReceiptStatus.READ, now()))
    assert [one.status for one in alice.client.mail.update_outbox(alice.mailbox).changes] == [OutboxStatus.READ]


def test_a_receipt_of_a_recipient_who_rotated_its_pair_is_followed(alice: Person, bob: Person) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    bob.client.keys.rotate(bob.mailbox, signer=True)
    assert bodies(bob) == [b"hello"]
    news = alice.client.mail.update_outbox(alice.mailbox)
    assert [(one.status, one.by) for one in news.changes] == [(OutboxStatus.DELIVERED, Attested.RECIPIENT)]
    pin = alice.mailbox.pinned_keys.pin(bob.name)
    assert pin is not None
    assert pin.bundle_version == 2


def test_a_wait_ends_when_mail_comes(alice: Person, bob: Person) -> None:
    later = threading.Timer(0.5, lambda: alice.client.mail.send(alice.mailbox, bob.name, b"at last"))
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
        alice.client.mail.send(alice.mailbox, bob.name, bytes([number]), priority=priority)
    first = bob.client.mail.receive(bob.mailbox, most=2)
    assert ([one.body for one in first.messages], first.has_more) == ([b"\x01", b"\x02"], True)
    assert bodies(bob, min_priority=1) == []
    assert bodies(bob) == [b"\x00"]


def test_control_messages_are_stored_and_acknowledged_and_not_shown(alice: Person, bob: Person) -> None:
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"\x02secret", control=True)
    received = bob.client.mail.receive(bob.mailbox)
    assert (received.messages, received.not_opened, received.controls) == ((), (), 1)
    assert [one.body for one in bob.mailbox.inbox.controls(Control.GROUP_KEY)] == [b"\x02secret"]
    assert bob.mailbox.inbox.message(sent.replay_key).acked_at is not None


def test_several_sealed_messages_go_together_and_each_has_its_outcome(alice: Person, bob: Person) -> None:
    found, _ = alice.client.keys.find(alice.mailbox, bob.name)
    envelopes = [alice.mailbox.outbox.seal(found.bundle, bytes([n]), now=now()) for n in range(3)]
    assert alice.client.mail.send_sealed(alice.mailbox, envelopes) == [None] * 3
    stolen = forged(wire.decode(envelopes[0].wire), alice.mailbox, priority=Priority.HIGH)
    again = alice.client.mail.send_sealed(alice.mailbox, [envelopes[1], wire.decode(stolen)])
    assert [None if one is None else one.code for one in again] == [None, "message_id_conflict"]
    assert {row.status for row in alice.mailbox.outbox.page()} == {OutboxStatus.QUEUED}
    assert sorted(bodies(bob)) == [b"\x00", b"\x01", b"\x02"]


def test_a_message_may_be_taken_back_until_it_was_given(alice: Person, bob: Person) -> None:
    first = alice.client.mail.send(alice.mailbox, bob.name, b"oh no")
    alice.client.mail.withdraw(alice.mailbox, first.replay_key)
    assert (outgoing(alice).status, outgoing(alice).resealable) == (OutboxStatus.FAILED, False)
    assert bodies(bob) == []
    stored = alice.client.mail.seal(alice.mailbox, bob.name, b"never sent")
    alice.client.mail.withdraw(alice.mailbox, stored.replay_key)
    assert alice.client.mail.deliver_outbox(alice.mailbox).sent == ()


def test_a_message_that_was_sealed_again_is_taken_back_by_the_id_that_it_had(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: now() - timedelta(minutes=10))
        first = alice.client.mail.seal(alice.mailbox, bob.name, b"never mind")
    (sent,) = alice.client.mail.deliver_outbox(alice.mailbox).sent
    assert sent.replay_key != first.replay_key
    alice.client.mail.withdraw(alice.mailbox, first.replay_key)
    assert outgoing(alice).withdrawn
    assert bodies(bob) == []


def test_what_was_read_is_not_said_to_be_taken_back(alice: Person, bob: Person, liar: Liar) -> None:
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"too late")
    alice.mailbox.outbox.mark(sent.replay_key, OutboxStatus.READ)
    liar.instead("DELETE", f"/v1/messages/{sent.replay_key}", Answer(204))
    with Client(liar.url, identity=alice.mailbox) as client, pytest.raises(Conflict, match="not taken back"):
        client.mail.withdraw(alice.mailbox, sent.replay_key)


@pytest.mark.parametrize("answer", ["lost", "never heard, since a crash came before"])
def test_a_message_that_the_relay_has_unknown_to_its_sender_is_taken_back_too(
    alice: Person, bob: Person, answer: str
) -> None:
    if answer == "lost":
        alice.client.loses = "/v1/messages"
        with pytest.raises(Unreachable):
            alice.client.mail.send(alice.mailbox, bob.name, b"oh no")
    else:
        alice.client.mail.send_envelope(alice.client.mail.seal(alice.mailbox, bob.name, b"oh no").wire)
    assert outgoing(alice).status is OutboxStatus.STORED
    alice.client.mail.withdraw(alice.mailbox, outgoing(alice).replay_key)
    assert (outgoing(alice).status, outgoing(alice).resealable) == (OutboxStatus.FAILED, False)
    assert bodies(bob) == []


def test_what_the_recipient_was_given_is_not_taken_back_whatever_its_sender_has_heard(
    alice: Person, bob: Person
) -> None:
    alice.client.mail.send_envelope(alice.client.mail.seal(alice.mailbox, bob.name, b"too late").wire)
    assert bodies(bob) == [b"too late"]
    with pytest.raises(Conflict, match="delivered already"):
        alice.client.mail.withdraw(alice.mailbox, outgoing(alice).replay_key)
    assert outgoing(alice).status is OutboxStatus.STORED


def test_what_a_person_carries_is_taken_back_without_a_relay(alice: Person, bob: Person) -> None:
    letter = alice.client.mail.seal(alice.mailbox, bob.name, b"by hand")
    alice.mailbox.outbox.hand_over(letter.replay_key)
    with closed_port() as nowhere, Client(nowhere, identity=alice.mailbox) as client:
        client.mail.withdraw(alice.mailbox, letter.replay_key)
        other = alice.client.mail.seal(alice.mailbox, bob.name, b"by the relay")
        with pytest.raises(Unreachable):
            client.mail.withdraw(alice.mailbox, other.replay_key)
    assert alice.mailbox.outbox.message(letter.replay_key).status is OutboxStatus.FAILED
    assert alice.mailbox.outbox.message(other.replay_key).status is OutboxStatus.STORED


def test_what_the_recipient_signed_is_not_withdrawn_whatever_the_server_says(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"pay 100")
    assert bodies(bob) == [b"pay 100"]
    alice.client.mail.update_outbox(alice.mailbox)
    liar.instead("DELETE", r"/v1/messages/.*", Answer(204))
    with pytest.raises(Conflict, match="delivered and not taken back"):
        alice.client.mail.withdraw(alice.mailbox, sent.replay_key)
    assert (outgoing(alice).status, outgoing(alice).withdraw_asked_at) == (OutboxStatus.DELIVERED, None)


def test_a_withdrawal_that_was_refused_is_no_ground_for_a_server_to_call_a_message_withdrawn(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"pay 100")
    assert bodies(bob) == [b"pay 100"]
    with pytest.raises(Conflict):
        alice.client.mail.withdraw(alice.mailbox, sent.replay_key)
    withdrawn = {"status": "failed", "failure_reason": "withdrawn", "attested_by": "relay", "receipt": None}
    liar.lie("GET", r"/v1/receipts/.*", lambda _, answer: answer.changed(**withdrawn))
    (doubt,) = alice.client.mail.update_outbox(alice.mailbox).doubts
    assert doubt.error.code == "untrue"
    assert (outgoing(alice).status, outgoing(alice).resealable) == (OutboxStatus.QUEUED, True)
    liar.honest()
    alice.client.mail.update_outbox(alice.mailbox)
    assert (outgoing(alice).status, outgoing(alice).withdrawn) == (OutboxStatus.DELIVERED, False)


def test_a_message_that_another_process_withdraws_is_not_sent(alice: Person, bob: Person) -> None:
    for body in (b"one", b"two"):
        alice.client.mail.seal(alice.mailbox, bob.name, body)
    other = Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now())
    with other, Client(alice.url, identity=other) as second:
        alice.mailbox.outbox.retry_now(now())
        one, two = alice.mailbox.outbox.due(now())
        alice.client.before = ("/v1/messages", lambda: second.mail.withdraw(other, two.replay_key))
        done = alice.client.mail.deliver_outbox(alice.mailbox)
    assert ([sent.replay_key for sent in done.sent], done.unsent) == ([one.replay_key], ())
    assert alice.mailbox.outbox.message(two.replay_key).withdrawn
    assert len(bodies(bob)) == 1


@pytest.mark.parametrize("how", ["alone", "in a batch"])
def test_a_message_that_another_process_withdraws_while_it_is_sent_is_taken_back(
    alice: Person, bob: Person, how: str
) -> None:
    letter = alice.client.mail.seal(alice.mailbox, bob.name, b"oh no")
    other = Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now())
    with other, Client(alice.url, identity=other) as second:
        path = "/v1/messages" if how == "alone" else "/v1/messages/batch"
        alice.client.before = (path, lambda: second.mail.withdraw(other, letter.replay_key))
        if how == "alone":
            alice.mailbox.outbox.retry_now(now())
            assert alice.client.mail.deliver_outbox(alice.mailbox) == mail_sending.OutboxDelivery((), ())
        else:
            (error,) = alice.client.mail.send_sealed(alice.mailbox, [letter])
            assert isinstance(error, mail_sending.AlreadyWithdrawn)
    assert outgoing(alice).withdrawn
    assert bodies(bob) == []


def test_a_message_that_was_given_before_it_could_be_taken_back_is_followed_and_was_delivered(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = alice.client.mail.seal(alice.mailbox, bob.name, b"too late")
    key = letter.replay_key

    def withdrawn_and_received() -> None:
        alice.mailbox.withdrawals.complete(key, now())
        alice.client.mail.send_envelope(letter.wire)
        assert bodies(bob) == [b"too late"]

    alice.client.before = ("/v1/messages", withdrawn_and_received)
    alice.mailbox.outbox.retry_now(now())
    alice.client.mail.deliver_outbox(alice.mailbox)
    assert (outgoing(alice).status, outgoing(alice).withdraw_asked_at) == (OutboxStatus.QUEUED, None)
    alice.client.mail.update_outbox(alice.mailbox)
    assert outgoing(alice).status is OutboxStatus.DELIVERED


def test_what_could_not_be_withdrawn_is_not_sent_and_the_next_delivery_withdraws_it(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    liar.instead("POST", "/v1/messages", problem(503, "unavailable"))
    with pytest.raises(Unavailable):
        alice.client.mail.send(alice.mailbox, bob.name, b"pay 100")
    liar.instead("DELETE", r"/v1/messages/.*", problem(503, "unavailable"))
    key = outgoing(alice).replay_key
    with pytest.raises(Unavailable):
        alice.client.mail.withdraw(alice.mailbox, key)
    with pytest.raises(Conflict, match="being withdrawn"):
        alice.client.mail.reseal(alice.mailbox, key)
    (unsent,) = alice.client.mail.retry_outbox(alice.mailbox).unsent
    assert (unsent.message.replay_key, unsent.error.code) == (key, "unavailable")
    liar.honest()
    assert alice.client.mail.retry_outbox(alice.mailbox) == mail_sending.OutboxDelivery((), ())
    assert outgoing(alice).withdrawn
    assert bodies(bob) == []


def test_a_message_that_was_given_before_the_next_delivery_is_not_withdrawn_and_its_sender_is_told(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"pay 100")
    liar.instead("DELETE", r"/v1/messages/.*", problem(503, "unavailable"))
    with pytest.raises(Unavailable):
        alice.client.mail.withdraw(alice.mailbox, sent.replay_key)
    assert bodies(bob) == [b"pay 100"]
    liar.honest()
    alice.mailbox.notices.take()
    assert alice.client.mail.deliver_outbox(alice.mailbox) == mail_sending.OutboxDelivery((), ())
    (notice,) = alice.mailbox.notices.take()
    assert f"to {bob.name} could not be withdrawn" in notice.text
    assert (outgoing(alice).status, outgoing(alice).withdraw_asked_at) == (OutboxStatus.QUEUED, None)


def _send_what_is_taken_and_called_refused(alice: Person, bob: Person, liar: Liar) -> None:
    liar.lie("POST", "/v1/messages", lambda *_: problem(403, "authorization_denied"))
    with pytest.raises(Denied):
        alice.client.mail.send(alice.mailbox, bob.name, b"pay 100")
    liar.honest()


def test_a_server_that_says_it_refused_a_message_is_asked_to_withdraw_it_too(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    _send_what_is_taken_and_called_refused(alice, bob, liar)
    alice.client.mail.withdraw(alice.mailbox, outgoing(alice).replay_key)
    assert outgoing(alice).withdrawn
    assert bodies(bob) == []


def test_a_message_that_the_server_said_it_refused_is_settled_by_its_recipients_receipt(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    _send_what_is_taken_and_called_refused(alice, bob, liar)
    assert bodies(bob) == [b"pay 100"]
    assert [one.status for one in alice.client.mail.update_outbox(alice.mailbox).changes] == [OutboxStatus.DELIVERED]


# A relay that is away, full, or changes its mind about keys.


def test_what_cannot_be_sent_waits_in_the_outbox_and_is_sent_byte_for_byte(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_port() as nowhere, Client(nowhere, identity=alice.mailbox) as client:
        with pytest.raises(Unreachable) as away:
            client.mail.send(alice.mailbox, bob.name, b"later")
        row = outgoing(alice)
        assert away.value.members == {mail_sending.WAITING: row.replay_key}
        assert (row.status, row.attempts) == (OutboxStatus.STORED, 1)
        monkeypatch.setattr(clock, "now", lambda: now() + timedelta(seconds=2))
        (unsent,) = client.mail.deliver_outbox(alice.mailbox).unsent
        assert isinstance(unsent.error, Unreachable)
    assert outgoing(alice).attempts == 2
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(seconds=5))
    stored = alice.mailbox.outbox.wire(row.replay_key)
    (sent,) = alice.client.mail.deliver_outbox(alice.mailbox).sent
    assert sent.envelope.wire == stored
    assert alice.client.mail.deliver_outbox(alice.mailbox).sent == ()
    assert bodies(bob) == [b"later"]


def test_all_that_waits_is_sent_however_much_it_is_and_what_was_not_tried_is_counted(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = Outbox.due
    monkeypatch.setattr(Outbox, "due", lambda self, now, limit=2: due(self, now, limit))
    found, _ = alice.client.keys.find(alice.mailbox, bob.name)
    for number in range(5):
        alice.mailbox.outbox.seal(found.bundle, bytes([number]), now=now())
    with closed_port() as url, Client(url, identity=alice.mailbox) as nowhere:
        done = nowhere.mail.retry_outbox(alice.mailbox)
        assert (done.sent, len(done.unsent), done.left) == ((), 1, 4)
    done = alice.client.mail.retry_outbox(alice.mailbox)
    assert (len(done.sent), done.unsent, done.left) == (5, (), 0)


def test_a_lost_answer_costs_nothing_and_the_message_comes_once(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.client.loses = "/v1/messages"
    with pytest.raises(Unreachable):
        alice.client.mail.send(alice.mailbox, bob.name, b"once")
    assert outgoing(alice).status is OutboxStatus.STORED
    # Ten minutes later its bytes are too old to be taken for the first time, but not to be recognised.
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(minutes=10))
    (sent,) = alice.client.mail.deliver_outbox(alice.mailbox).sent
    assert sent.replay_key == outgoing(alice).replay_key
    monkeypatch.undo()
    assert bodies(bob) == [b"once"]
    assert bodies(bob) == []


def test_a_message_that_waited_too_long_is_sealed_again_under_its_id(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: now() - timedelta(minutes=10))
        old = alice.client.mail.seal(alice.mailbox, bob.name, b"overdue")
    (sent,) = alice.client.mail.deliver_outbox(alice.mailbox).sent
    assert sent.replay_key != old.replay_key
    assert sent.envelope.header.message_id == old.header.message_id
    assert sent.envelope.header.expires_at <= old.header.expires_at
    assert bodies(bob) == [b"overdue"]


def test_a_message_of_a_clock_that_ran_ahead_goes_out_once_the_clock_is_right(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: now() + timedelta(hours=6))
        alice.client.mail.seal(alice.mailbox, bob.name, b"from tonight", one_time=False)
    assert len(alice.client.mail.deliver_outbox(alice.mailbox).sent) == 1
    assert bodies(bob) == [b"from tonight"]


def test_however_often_a_message_is_tried_its_few_envelopes_last_for_a_day(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = deceived
    liar.instead("POST", "/v1/messages", problem(400, "clock_skew"))
    began = at = now()
    monkeypatch.setattr(clock, "now", lambda: at)
    with pytest.raises(transport.ApiError):
        alice.client.mail.send(alice.mailbox, bob.name, b"hello", one_time=False)
    while at < began + timedelta(hours=8):
        at += timedelta(minutes=3 if at < began + timedelta(hours=1) else 20)
        alice.client.mail.deliver_outbox(alice.mailbox)
    (row,) = (row for row in alice.mailbox.outbox.page() if row.status is not OutboxStatus.RESEALED)
    assert row.reseals == 4
    at = now()
    liar.honest()
    assert len(alice.client.mail.retry_outbox(alice.mailbox).sent) == 1  # whoever says so does not wait for the next
    assert bodies(bob) == [b"hello"]


def test_a_clock_that_is_wrong_is_named_and_the_message_waits(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(minutes=10))
    with pytest.raises(transport.ApiError) as refused:
        alice.client.mail.send(alice.mailbox, bob.name, b"from tomorrow")
    assert refused.value.code == "clock_skew"
    assert outgoing(alice).status is OutboxStatus.STORED


def test_keys_that_were_revoked_meanwhile_mean_sealing_again(alice: Person, bob: Person) -> None:
    bob.client.keys.emergency_rotate(bob.mailbox, why="stolen")
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"to the new key", one_time=False)
    assert sent.envelope.header.key_id == bob.newest.kem_keys[0].key.key_id
    assert [row.status for row in alice.mailbox.outbox.page()] == [OutboxStatus.QUEUED, OutboxStatus.RESEALED]
    assert bodies(bob) == [b"to the new key"]


def test_mail_whose_key_was_revoked_while_it_waited_is_sent_again_under_its_id(alice: Person, bob: Person) -> None:
    first = alice.client.mail.send(alice.mailbox, bob.name, b"in the queue", one_time=False)
    bob.client.keys.emergency_rotate(bob.mailbox, why="stolen", signer=False)
    deadline = time.monotonic() + 20
    while not (news := alice.client.mail.update_outbox(alice.mailbox)).resent and time.monotonic() < deadline:
        assert bodies(bob, wait=1) == []
    (again,) = news.resent
    assert again.envelope.header.message_id == first.envelope.header.message_id
    assert bodies(bob, wait=5) == [b"in the queue"]
    assert alice.mailbox.outbox.message(first.replay_key).status is OutboxStatus.RESEALED
    assert [one.status for one in alice.client.mail.update_outbox(alice.mailbox).changes] == [OutboxStatus.DELIVERED]


def test_what_is_refused_has_failed_on_the_servers_word_and_goes_out_when_it_is_asked_again(
    alice: Person, bob: Person
) -> None:
    bob.client.agents.block(alice.name)
    with pytest.raises(Denied):
        alice.client.mail.send(alice.mailbox, bob.name, b"please")
    row = outgoing(alice)
    assert (row.status, row.reported, row.reported_reason) == (
        OutboxStatus.STORED,
        OutboxStatus.FAILED,
        "authorization_denied",
    )
    assert row.resealable
    assert alice.client.mail.deliver_outbox(alice.mailbox).sent == ()
    bob.client.agents.unblock(alice.name)
    (sent,) = alice.client.mail.retry_outbox(alice.mailbox).sent
    assert sent.replay_key == row.replay_key
    assert (outgoing(alice).status, outgoing(alice).reported) == (OutboxStatus.QUEUED, None)
    assert bodies(bob) == [b"please"]


def test_a_message_without_its_bytes_is_given_up_and_the_others_are_sent(alice: Person, bob: Person) -> None:
    broken, good = (alice.client.mail.seal(alice.mailbox, bob.name, body) for body in (b"broken", b"good"))
    path = alice.mailbox.directory / "outbox" / f"{broken.replay_key}.agl"
    path.write_bytes(b"changed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: now() + timedelta(seconds=2))
        done = alice.client.mail.deliver_outbox(alice.mailbox)
    assert [one.message.replay_key for one in done.unsent] == [broken.replay_key]
    assert [one.replay_key for one in done.sent] == [good.replay_key]
    assert bodies(bob) == [b"good"]
    row = alice.mailbox.outbox.message(broken.replay_key)
    assert (row.status, row.next_try_at, row.resealable) == (OutboxStatus.STORED, None, True)
    assert row.last_error.endswith("its hash is not its name")
    path.write_bytes(broken.wire)
    assert [one.replay_key for one in alice.client.mail.retry_outbox(alice.mailbox).sent] == [broken.replay_key]


@pytest.mark.parametrize("fault", ["a hard link", "EMFILE", "EIO"])
def test_a_message_whose_file_cannot_be_read_now_is_sent_when_it_can(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    letter = alice.client.mail.seal(alice.mailbox, bob.name, b"precious")
    path = alice.mailbox.directory / "outbox" / f"{letter.replay_key}.agl"
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: now() + timedelta(seconds=2))
        if fault == "a hard link":
            path.with_name("backup").hardlink_to(path)
        else:
            real, verb = getattr(os, _VERB_OF[fault]), _VERB_OF[fault]

            def fail(what: object, *args: Any, **options: Any) -> Any:
                if verb == "open" and not str(what).endswith(".agl"):
                    return real(what, *args, **options)
                raise OSError(getattr(errno, fault), fault)

            patch.setattr(os, verb, fail)
        (unsent,) = alice.client.mail.deliver_outbox(alice.mailbox).unsent
    assert unsent.error.members[mail_sending.WAITING] == letter.replay_key
    row = outgoing(alice)
    assert (row.status, row.attempts, row.last_error) == (OutboxStatus.STORED, 1, unsent.error.message)
    path.with_name("backup").unlink(missing_ok=True)
    assert len(alice.client.mail.retry_outbox(alice.mailbox).sent) == 1
    assert bodies(bob) == [b"precious"]


# Crashes and copies on the recipient's side.


def test_killed_between_opening_and_acknowledging_it_is_recognised_acknowledged_and_in_the_inbox(
    alice: Person, bob: Person
) -> None:
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"once")

    def killed() -> None:
        raise KeyboardInterrupt

    bob.client.before = ("/v1/messages/acknowledge", killed)
    with pytest.raises(KeyboardInterrupt):
        bob.client.mail.receive(bob.mailbox, lease_seconds=5)
    bob.reopen()
    assert bob.mailbox.inbox.message(sent.replay_key).acked_at is None
    received = bob.client.mail.receive(bob.mailbox, wait=8)
    assert received.messages == ()
    assert [one.replay_key for one in received.recovered] == [sent.replay_key]
    assert [(type(one.error), one.verdict) for one in received.not_opened] == [(Replayed, AckVerdict.ACKNOWLEDGED)]
    assert bob.mailbox.inbox.message(sent.replay_key).acked_at is not None
    assert bob.mailbox.inbox.read(sent.replay_key, now()).body == b"once"
    told = alice.client.mail.update_outbox(alice.mailbox).changes
    assert [(one.status, one.by) for one in told] == [(OutboxStatus.DELIVERED, Attested.RECIPIENT)]
    assert bob.client.mail.status(sent.replay_key).envelope is None


def test_a_relay_that_goes_away_before_the_acknowledgment_keeps_nobody_from_reading(alice: Person, bob: Person) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"read me")
    bob.client.loses = "/v1/messages/acknowledge"
    received = bob.client.mail.receive(bob.mailbox)
    assert [one.body for one in received.messages] == [b"read me"]
    assert isinstance(received.unacknowledged, Unreachable)
    assert bodies(bob) == []


def test_what_was_handed_over_by_hand_as_well_is_acknowledged_and_not_shown_again(alice: Person, bob: Person) -> None:
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"twice on its way")
    assert bob.client.mail.open(bob.mailbox, sent.envelope.wire).body == b"twice on its way"
    bob.mailbox.inbox.read(sent.replay_key, now())
    received = bob.client.mail.receive(bob.mailbox)
    assert (received.messages, received.unacknowledged) == ((), None)
    assert [one.status for one in alice.client.mail.update_outbox(alice.mailbox).changes] == [OutboxStatus.READ]


# Mail that is not opened.


def test_mail_of_a_stranger_waits_at_the_relay_and_is_there_once_it_is_allowed(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"may I?")
    received = bob.client.mail.receive(bob.mailbox)
    assert received.messages == ()
    (refused,) = received.not_opened
    assert (type(refused.error), refused.verdict, refused.sender) == (NotAllowed, AckVerdict.HELD, alice.name)
    assert bob.client.mail.receive(bob.mailbox) == type(received)()
    assert bob.client.mail.status(sent.replay_key).status == "pending"
    alice.client.mail.send(alice.mailbox, bob.name, b"please")
    assert [one.verdict for one in bob.client.mail.receive(bob.mailbox).not_opened] == [AckVerdict.HELD]

    bob.allow(alice)
    assert bodies(bob) == [b"may I?", b"please"]
    assert bodies(bob) == []
    assert bob.mailbox.held_mail.admitted(now()) == []
    told = alice.client.mail.update_outbox(alice.mailbox).changes
    assert {(one.status, one.by) for one in told} == {(OutboxStatus.DELIVERED, Attested.RECIPIENT)}


def test_however_often_a_stranger_is_kept_out_its_mail_does_not_die(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"patience")
    for attempt in range(1, ATTEMPTS + 3):
        handed = LeasedMessage.of(sent.envelope, "ab" * 32, attempt)
        if attempt <= 2:
            (handed,) = bob.client.mail.poll(wait=5).messages
            bob.client.mail.nack([at_once(handed)])
        received = bob.client.mail.take_in(bob.mailbox, [handed])
        assert [one.verdict for one in received.not_opened] == [AckVerdict.HELD]
    assert bob.client.mail.dead_letters().dead_letters == []
    assert bob.client.mail.status(sent.replay_key).state == "queued"


def at_once(handed: LeasedMessage) -> NackItem:
    return NackItem(replay_key=handed.replay_key, lease_token=handed.lease_token, retry_after=0)


def test_strangers_do_not_hide_the_mail_behind_them(join: Join, alice: Person, bob: Person) -> None:
    mallory = join("mallory")
    for number in range(3):
        mallory.client.mail.send(mallory.mailbox, bob.name, bytes([number]), priority=Priority.CRITICAL)
    alice.client.mail.send(alice.mailbox, bob.name, b"behind them")
    assert bodies(bob, most=1) == [b"behind them"]


def test_what_cannot_be_opened_comes_to_an_end_with_a_signed_receipt(alice: Person, bob: Person) -> None:
    envelope = alice.client.mail.seal(alice.mailbox, bob.name, b"garbled")
    bad = forged(dataclasses.replace(envelope, tag=bytes(16)), alice.mailbox)
    alice.client.mail.send_envelope(bad)
    received = bob.client.mail.receive(bob.mailbox)
    assert [(type(one.error), one.verdict) for one in received.not_opened] == [(OpenFailed, AckVerdict.FAILED)]
    receipt = alice.client.mail.receipt(wire.decode(bad).replay_key)
    assert (receipt.status, receipt.attested_by, receipt.failure_reason) == ("failed", "recipient", "open_failed")
    signed = alice.client.mail.check_attested(alice.mailbox, receipt)
    assert signed is not None
    assert (signed.status, signed.reason) == (ReceiptStatus.FAILED, "open_failed")
    assert bodies(bob) == []


def test_a_message_that_was_opened_and_sealed_again_is_not_opened_twice_and_was_delivered(
    alice: Person, bob: Person
) -> None:
    first = alice.client.mail.seal(alice.mailbox, bob.name, b"by hand")
    bob.client.mail.open(bob.mailbox, first.wire)
    bob.client.keys.emergency_rotate(bob.mailbox, why="stolen", signer=False)
    again = alice.client.mail.reseal(alice.mailbox, first.replay_key, KeyRevoked())
    assert alice.client.mail.send_sealed(alice.mailbox, [again]) == [None]
    received = bob.client.mail.receive(bob.mailbox)
    assert [(type(one.error), one.verdict) for one in received.not_opened] == [(IdConflict, AckVerdict.FAILED)]
    (told,) = alice.client.mail.update_outbox(alice.mailbox).changes
    assert (told.status, told.by, told.reason) == (OutboxStatus.DELIVERED, Attested.RECIPIENT, "message_id_conflict")


# Questions and answers.


def test_a_question_is_answered_and_nobody_elses_mail_is_touched(join: Join, alice: Person, bob: Person) -> None:
    carol = join("carol")
    alice.allow(carol)
    carol.client.mail.send(carol.mailbox, alice.name, b"something else")

    def answer() -> None:
        (question,) = bob.client.mail.receive(bob.mailbox, wait=20).messages
        bob.client.mail.reply(bob.mailbox, question, question.body.upper())
        bob.client.mail.reply(bob.mailbox, question, b"and again")

    thread = threading.Thread(target=answer)
    thread.start()
    answered = alice.client.mail.ask(alice.mailbox, bob.name, b"are you there?", timeout=20)
    thread.join()
    assert (answered.body, answered.message.sender) == (b"ARE YOU THERE?", bob.name)
    assert sorted(bodies(alice)) == [b"and again", b"something else"]


def test_a_question_without_an_answer_ends_and_a_late_one_is_ordinary_mail(alice: Person, bob: Person) -> None:
    with pytest.raises(DeadlineExceeded, match="did not answer within 1 s"):
        alice.client.mail.ask(alice.mailbox, bob.name, b"hello?", timeout=1)
    (question,) = bob.client.mail.receive(bob.mailbox).messages
    bob.client.mail.reply(bob.mailbox, question, b"sorry, late")
    (late,) = alice.client.mail.receive(alice.mailbox).messages
    assert late.message.correlation_id == question.message.correlation_id


def test_nobody_waits_for_an_answer_that_would_not_be_opened(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    with pytest.raises(NotAllowed):
        alice.client.mail.ask(alice.mailbox, bob.name, b"hello?")
    assert alice.mailbox.outbox.page() == []


def test_an_answer_counts_whichever_process_received_it(alice: Person, bob: Person) -> None:
    def answer() -> None:
        (question,) = bob.client.mail.receive(bob.mailbox, wait=20).messages
        bob.client.mail.reply(bob.mailbox, question, b"here")
        with Mailbox(alice.home, alice.mailbox.identity, now()) as other, Client(alice.url, identity=other) as client:
            while not other.inbox.page().messages:
                client.mail.receive(other)

    thread = threading.Thread(target=answer)
    thread.start()
    assert alice.client.mail.ask(alice.mailbox, bob.name, b"hello?", timeout=20).body == b"here"
    thread.join()


@pytest.mark.parametrize(
    ("body", "wishes", "hint"),
    [
        (7, {}, 'encode text first: "hello".encode()'),
        (b"x", {"priority": "high"}, "Priority.HIGH"),
        (b"x", {"priority": 9}, "Priority.HIGH"),
        (b"x", {"compression": "zstd"}, "Compression.ZSTD"),
        (b"x", {"correlation_id": "abc"}, "uuid.UUID"),
        (b"x", {"ttl_seconds": "1h"}, "3600"),
    ],
)
def test_what_is_of_the_wrong_type_is_refused_before_anything_is_stored(
    alice: Person, bob: Person, body: Any, wishes: dict[str, Any], hint: str
) -> None:
    before = alice.mailbox.outbox.page()
    with pytest.raises(InvalidArgument) as refused:
        alice.client.mail.send(alice.mailbox, bob.name, body, **wishes)
    assert hint in refused.value.hint
    assert alice.mailbox.outbox.page() == before
