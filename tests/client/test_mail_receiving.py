"""Receiving when something goes wrong beside the message: it is put off and not lost, and what was opened is shown."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from angelia.api import Operation
from angelia.client import Client, Unreachable, clock, key_calls, mail_calls, mail_receiving
from angelia.client.ack_plan import LATER, MUCH_LATER, AckVerdict
from angelia.client.api_errors import _class_of
from angelia.client.mail_calls import LeasedMessage
from angelia.errors import RateLimited
from angelia.mail.api import MessageStatus, NackItem
from angelia.mail.model import ATTEMPTS, LONGEST_BACK_OFF
from angelia.mailbox import identity, inbox, open_failures
from angelia.mailbox.mailbox import Mailbox
from client.letters import bodies, now
from live_agents import NO_LIMITS, Person
from server_process import ServerProcess

Join = Callable[..., Person]


pytestmark = pytest.mark.usefixtures("short_work")


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[NackItem]:
    """Everything that is given back; the relay hears nothing of it."""
    said: list[NackItem] = []

    def nack(nacks: Sequence[NackItem]) -> Iterator[object]:
        said.extend(nacks)
        return iter(())

    monkeypatch.setattr(mail_calls, "nack", nack)
    return said


def refusing(code: str, retry_after: int | None = None) -> Callable[..., Iterator[object]]:
    def refused(*_: object, **__: object) -> Iterator[object]:
        raise _class_of(code)("not now", retry_after=retry_after)
        yield

    return refused


def handed(sent: mail_calls.Accepted, wire: bytes, attempt: int = 1) -> LeasedMessage:
    return LeasedMessage.decoded(wire, "ab" * 32, attempt)


# Keys that cannot be looked up.


@pytest.mark.parametrize(
    ("code", "asks_for", "pause"),
    [
        ("rate_limited", 60, 60),
        ("rate_limited", 99_999, LONGEST_BACK_OFF),
        ("internal", None, LATER),
        ("authorization_denied", None, MUCH_LATER),
    ],
)
def test_a_fault_of_a_key_lookup_says_nothing_about_the_message_and_never_counts(
    alice: Person,
    bob: Person,
    given_back: list[NackItem],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    asks_for: int | None,
    pause: int,
) -> None:
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"precious")
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # looked up more than an hour ago
    monkeypatch.setattr(key_calls, "bundles_since", refusing(code, asks_for))
    for attempt in range(1, ATTEMPTS + 2):
        received = bob.client.mail.take_in(bob.mailbox, [handed(sent.accepted, sent.envelope.wire, attempt)])
        assert [(one.verdict, one.error.code) for one in received.not_opened] == [(AckVerdict.DEFERRED, code)]
    assert {(one.counted, one.retry_after) for one in given_back} == {(False, pause)}


def test_mail_whose_senders_keys_could_not_be_looked_up_comes_when_they_can(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"precious")
    bob.mailbox.pinned_keys.drop_bundle(alice.name)
    with monkeypatch.context() as patch:
        patch.setattr(key_calls, "bundles_since", refusing("rate_limited", 1))
        for _ in range(2):
            assert [one.verdict for one in bob.client.mail.receive(bob.mailbox, wait=3).not_opened][:1] == [
                AckVerdict.DEFERRED
            ]
    assert bodies(bob, wait=5) == [b"precious"]
    assert alice.client.mail.receipt(sent.replay_key).delivery_attempts == 1


# Senders that are kept out, or put off.


def test_a_stranger_is_kept_out_for_an_hour_each_time_and_no_time_counts(
    join: Join, given_back: list[NackItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"may I?")
    for attempt in range(1, ATTEMPTS + 3):
        bob.client.mail.take_in(bob.mailbox, [handed(sent.accepted, sent.envelope.wire, attempt)])
    assert [(one.counted, one.retry_after) for one in given_back] == [(False, LONGEST_BACK_OFF)] * (ATTEMPTS + 2)


def test_that_a_stranger_was_kept_out_is_no_attempt_for_the_relay_either(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"may I?")
    (first,) = bob.client.mail.receive(bob.mailbox).not_opened
    assert first.verdict is AckVerdict.HELD
    bob.allow(alice)
    assert bodies(bob) == [b"may I?"]
    assert alice.client.mail.receipt(sent.replay_key).delivery_attempts == 1


def test_an_allowed_sender_that_failed_too_often_is_put_off_and_not_called_a_stranger(
    alice: Person, bob: Person, given_back: list[NackItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"not now")
    monkeypatch.setattr(open_failures, "MOST", 0)
    received = bob.client.mail.receive(bob.mailbox)
    assert [(type(one.error), one.verdict) for one in received.not_opened] == [(RateLimited, AckVerdict.DEFERRED)]
    assert [(one.counted, one.retry_after) for one in given_back] == [(False, 3600)]
    assert bob.mailbox.held_mail.admitted(now()) == []


def test_controls_beyond_what_one_sender_may_have_here_wait_at_the_relay(
    alice: Person, bob: Person, given_back: list[NackItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_CONTROLS", 1)
    for _ in range(2):
        alice.client.mail.send(alice.mailbox, bob.name, b"\x02key of a group", control=True)
    received = bob.client.mail.receive(bob.mailbox, most=1)
    assert (received.controls, [one.verdict for one in received.not_opened]) == (1, [AckVerdict.DEFERRED])
    assert [one.counted for one in given_back] == [False]


# Errors after something had come.


def test_mail_that_was_opened_is_shown_although_the_next_request_fails(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = join("alice"), join("bob")
    alice.client.mail.send(alice.mailbox, bob.name, b"precious")
    bob.client.mail.receive(bob.mailbox)
    bob.allow(alice)
    with monkeypatch.context() as patch:
        patch.setattr(mail_calls, "poll", refusing("unavailable"))
        received = bob.client.mail.receive(bob.mailbox)
        assert [one.body for one in received.messages] == [b"precious"]
        assert received.interrupted is not None
        assert received.interrupted.code == "unavailable"
        with pytest.raises(type(received.interrupted)):  # and nothing had come before it
            bob.client.mail.receive(bob.mailbox)
    assert bodies(bob) == []


def test_of_several_that_are_admitted_those_before_an_error_are_shown_and_the_others_come_next_time(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = join("alice"), join("bob")
    for body in (b"1", b"2"):
        alice.client.mail.send(alice.mailbox, bob.name, body)
    bob.client.mail.receive(bob.mailbox)
    bob.allow(alice)
    real, asked = mail_receiving.ask, []

    def once(operation: Operation[MessageStatus], replay_key: str) -> mail_calls.Exchange[MessageStatus]:
        asked.append(replay_key)
        if len(asked) > 1:
            raise Unreachable("gone")
        return (yield from real(operation, replay_key))

    with monkeypatch.context() as patch:
        patch.setattr(mail_receiving, "ask", once)
        received = bob.client.mail.receive(bob.mailbox)
    assert [one.body for one in received.messages] == [b"1"]
    assert isinstance(received.interrupted, Unreachable)
    assert bodies(bob) == [b"2"]


def test_what_was_refused_is_told_although_the_next_request_fails(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = join("alice"), join("bob")
    alice.client.mail.send(alice.mailbox, bob.name, b"may I?")
    real, asked = mail_calls.poll, []

    def once(**wishes: int) -> mail_calls.Exchange[mail_calls.LeasedMessages]:
        asked.append(wishes)
        if len(asked) > 1:
            raise Unreachable("gone")
        return (yield from real(**wishes))

    monkeypatch.setattr(mail_calls, "poll", once)
    received = bob.client.mail.receive(bob.mailbox)
    assert [one.verdict for one in received.not_opened] == [AckVerdict.HELD]
    assert isinstance(received.interrupted, Unreachable)


def test_a_disk_that_fails_after_the_acknowledgment_keeps_nothing_from_the_caller(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"read me")

    def full(*_: object) -> None:
        raise _class_of("unavailable")("the disk is full")

    monkeypatch.setattr(bob.mailbox.inbox, "mark_acked", full)
    received = bob.client.mail.receive(bob.mailbox)
    assert [one.body for one in received.messages] == [b"read me"]
    assert received.unacknowledged is not None


# A server on which mail lives long.


def test_mail_of_two_weeks_is_opened_by_a_mailbox_that_makes_none_so_long(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fortnight = 14 * 86_400
    server = ServerProcess(directory / f"long-{secrets.token_hex(4)}", limits=NO_LIMITS, max_ttl_seconds="2592000")
    server.start()
    people = [Person(server.start_url, tmp_path / "homes", name) for name in ("alice", "bob")]
    try:
        for person in people:
            person.register()
            person.client.keys.publish(person.mailbox)
        alice, bob = people
        bob.allow(alice)
        patient = Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now(), ttl_max=fortnight)
        with patient, Client(alice.url, identity=patient) as client:
            client.mail.send(patient, bob.name, b"two weeks", ttl_seconds=fortnight)
        monkeypatch.setattr(clock, "now", now)
        (opened,) = bob.client.mail.receive(bob.mailbox).messages
        assert (opened.body, (opened.message.expires_at - opened.message.created_at).days) == (b"two weeks", 14)
    finally:
        for person in people:
            person.close()
        server.stop()
