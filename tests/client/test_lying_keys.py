"""A relay that lies about keys: nothing is sealed to a name that was not said, or to keys that ended."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from angelia.client import AsyncClient, Client, Unreachable, clock, own_key_renewal, peer_keys, transport
from angelia.client.peer_keys import NoOneTimeKey, Renamed
from angelia.envelope.bundles import UntrustedBundle
from angelia.envelope.refusals import SignatureFailed
from angelia.errors import AngeliaError, KeyStale, Unauthenticated, Unavailable
from angelia.keys.model import one_time_document
from angelia.mailbox import identity, own_keys, private_files
from angelia.mailbox.agent_names import KEY
from angelia.mailbox.keyfile import LOCAL
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.outbox_message import OutboxStatus
from client.letters import bodies, later, now
from live_agents import Person
from lying_proxy import Answer, Asked, Liar, problem

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
BUNDLE = "/v1/keys/bundle/"


@pytest.fixture
def alice(deceived: tuple[Person, Person]) -> Person:
    return deceived[0]


@pytest.fixture
def bob(deceived: tuple[Person, Person]) -> Person:
    return deceived[1]


@pytest.fixture
def nameless(short_work: None, liar: Liar, tmp_path: Path) -> Iterator[Callable[[str], Person]]:
    """Makes an agent whose handle is its UUID, as it is by default."""
    made: list[Person] = []

    def make(local: str) -> Person:
        person = Person(liar.url, tmp_path / "nameless", local)
        keys = person.mailbox.identity
        with Client(liar.url, identity=keys) as client:
            id_ = client.agents.register(keys.public_key).id
        identity.record_registration(person.home, keys, id=id_, handle=str(id_), server=liar.url)
        person.reopen()
        person.client.keys.publish(person.mailbox)
        made.append(person)
        return person

    yield make
    for person in made:
        person.close()


def handle(person: Person) -> str:
    return person.mailbox.identity.handle


def published(person: Person, age: timedelta) -> None:
    """Publish the first bundle as it was signed some time ago."""
    link = person.mailbox.own_keys.first_bundle(now() - age)
    person.client.keys.publish_bundle(link)
    person.mailbox.key_rotation.finish(now(), link)


def told(person: Person, kind: NoticeKind) -> list[str]:
    return [notice.text for notice in person.mailbox.notices.take() if notice.kind is kind]


def swapped(liar: Liar, name: str, other: Person) -> None:
    """From now on the relay answers questions about one agent's keys with those of another."""
    theirs = Answer(200, {"content-type": "application/json"}).saying(_bundle(other))
    liar.instead("GET", BUNDLE + name, lambda asked: theirs)


def _bundle(person: Person) -> Any:
    with Client(person.url, identity=person.mailbox) as client:
        return msgspec.to_builtins(client.keys.bundle(handle(person)))


# Names.


@pytest.mark.parametrize("pinned", [False, True], ids=["unpinned", "pinned"])
@pytest.mark.parametrize("named", [False, True], ids=["by an agent of a UUID", "by an agent of a handle"])
def test_a_relay_that_answers_a_uuid_with_its_own_agents_bundle_gets_nothing(
    alice: Person, bob: Person, liar: Liar, nameless: Callable[[str], Person], pinned: bool, named: bool
) -> None:
    carol, mallory = nameless("carol"), bob if named else nameless("mallory")
    before = {pin.nhi for pin in alice.mailbox.pinned_keys.pins()}
    if pinned:
        alice.client.keys.find(alice.mailbox, handle(carol))
        before.add(handle(carol))
    swapped(liar, handle(carol), mallory)
    for ask in (
        lambda: alice.client.mail.send(alice.mailbox, handle(carol), b"the payment order"),
        lambda: alice.client.mail.seal(alice.mailbox, handle(carol), b"the payment order", one_time=True),
        lambda: alice.client.keys.find(alice.mailbox, handle(carol), one_time=True),
    ):
        with pytest.raises(Renamed if named else UntrustedBundle) as refused:
            ask()
    if named:
        assert refused.value.code == "renamed"
        assert mallory.name in refused.value.hint
    assert alice.mailbox.outbox.page() == []
    assert {pin.nhi for pin in alice.mailbox.pinned_keys.pins()} == before


def test_a_uuid_handle_is_a_name_like_any_other(alice: Person, nameless: Callable[[str], Person]) -> None:
    carol = nameless("carol")
    carol.allow(alice)
    sent = alice.client.mail.send(alice.mailbox, handle(carol), b"hello")
    assert sent.envelope.header.recipient_nhi == handle(carol)
    assert bodies(carol) == [b"hello"]


def test_asked_by_uuid_for_an_agent_with_a_handle_the_sdk_names_the_handle_and_seals_nothing(
    alice: Person, bob: Person
) -> None:
    id_ = str(bob.mailbox.identity.id)
    with pytest.raises(Renamed) as refused:
        alice.client.mail.send(alice.mailbox, id_, b"hello")
    assert bob.name in refused.value.hint
    assert alice.mailbox.outbox.page() == []


def test_a_refusal_that_brings_another_agents_bundle_changes_no_recipient(
    alice: Person, bob: Person, liar: Liar, nameless: Callable[[str], Person]
) -> None:
    carol = nameless("carol")
    liar.instead("POST", "/v1/messages", problem(409, "key_stale", **_bundle(bob)))
    with pytest.raises(AngeliaError):
        alice.client.mail.send(alice.mailbox, handle(carol), b"hello")
    assert {row.recipient for row in alice.mailbox.outbox.page()} == {handle(carol)}


def test_a_one_time_key_of_another_agent_is_not_sealed_to(alice: Person, bob: Person, liar: Liar) -> None:
    with Client(liar.url, identity=alice.mailbox) as client:
        own = client.keys.bundle(alice.name)  # what a relay can give out of its own agent's
        mallorys = alice.mailbox.own_keys.make_one_time_keys(1, now())[0]
    assert own.bundle.agent_nhi == alice.name
    for lie in (
        one_time_document(mallorys),
        msgspec.structs.replace(one_time_document(mallorys), agent_nhi=bob.name),
    ):
        document = msgspec.to_builtins(lie)

        def give(asked: Asked, answer: Answer, document: object = document) -> Answer:
            return answer.changed(one_time=True, one_time_key=document)

        liar.lie("GET", BUNDLE + bob.name, give)
        with pytest.raises((SignatureFailed, UntrustedBundle)):
            alice.client.mail.send(alice.mailbox, bob.name, b"secret")
    assert alice.mailbox.outbox.page() == []


# Freshness.


def test_a_frozen_view_after_an_emergency_is_warned_of_and_ends_by_itself(
    alice: Person, bob: Person, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    stolen = bob.newest
    frozen = Answer(200, {"content-type": "application/json"}).saying(_bundle(bob))
    nothing_new = frozen.saying({"bundles": [], "has_more": False, "revoked": []})
    liar.instead("GET", BUNDLE + bob.name, lambda asked: nothing_new if "since" in asked.query else frozen)
    with Client(liar._server, identity=bob.mailbox) as honest:
        honest.keys.emergency_rotate(bob.mailbox, why="stolen")
    told(alice, NoticeKind.WARNING)
    for days, warned in ((1, 0), (6, 0), (8, 1), (29, 1)):
        later(monkeypatch, days * DAY)
        envelope = alice.client.mail.seal(alice.mailbox, bob.name, b"hello", one_time=False)
        assert envelope.header.key_id == stolen.kem_keys[0].key.key_id
        assert len(told(alice, NoticeKind.WARNING)) == warned
    count = len(alice.mailbox.outbox.page())
    later(monkeypatch, 30 * DAY)
    for one_time in (False, "prefer"):
        with pytest.raises(KeyStale, match="expired"):
            alice.client.mail.send(alice.mailbox, bob.name, b"hello", one_time=one_time)  # type: ignore[arg-type]
    assert len(alice.mailbox.outbox.page()) == count


def test_a_bundle_that_goes_back_is_refused(alice: Person, bob: Person, liar: Liar) -> None:
    old = Answer(200, {"content-type": "application/json"}).saying(_bundle(bob))
    bob.client.keys.rotate(bob.mailbox)
    alice.client.keys.find(alice.mailbox, bob.name, one_time=True)
    liar.instead("GET", BUNDLE + bob.name, old)
    with pytest.raises(UntrustedBundle):
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    assert alice.mailbox.outbox.page() == []


@pytest.mark.parametrize("use", ["send", "receive"])
def test_an_agent_in_use_signs_its_bundle_again_after_three_days(
    alice: Person, join: Callable[..., Person], use: str
) -> None:
    carol = join("carol", publishes=False)
    published(carol, 3 * DAY + HOUR)
    before = carol.newest
    if use == "send":
        carol.client.mail.send(carol.mailbox, alice.name, b"hello")
    else:
        carol.client.mail.receive(carol.mailbox)
    after = carol.newest
    assert (after.bundle_version, after.kem_keys, after.signer) == (2, before.kem_keys, before.signer)
    assert carol.in_step()
    carol.client.mail.receive(carol.mailbox)
    assert carol.version == 2


def test_a_bundle_of_two_days_is_left_as_it_is(join: Callable[..., Person]) -> None:
    carol = join("carol", publishes=False)
    published(carol, 2 * DAY)
    carol.client.mail.receive(carol.mailbox)
    assert carol.version == 1


def test_a_kem_key_of_a_week_is_replaced_by_an_agent_in_use(join: Callable[..., Person]) -> None:
    carol = join("carol", publishes=False)
    published(carol, 7 * DAY + HOUR)
    before = carol.newest
    carol.client.mail.receive(carol.mailbox)
    assert carol.newest.kem_keys[0].key != before.kem_keys[0].key
    assert carol.newest.signer == before.signer
    assert {one.reason for one in carol.client.keys.history(carol.name).rotations} == {"scheduled"}
    assert carol.in_step()


def test_keys_that_cannot_be_renewed_now_keep_no_mail_back_and_are_tried_again_later(
    liar: Liar, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar.instead("POST", "/v1/keys/.*", problem(503, "unavailable"))
    later(monkeypatch, 4 * DAY)
    liar.asked.clear()
    for _ in range(3):
        alice.client.mail.receive(alice.mailbox)
    assert liar.count("GET", "/v1/messages") == 3
    assert 1 <= liar.count("POST", "/v1/keys/.*") <= transport.TRIES, "it is left alone for a while"
    assert any("could not be renewed" in line for line in told(alice, NoticeKind.WARNING))
    liar.honest()
    monkeypatch.setattr(clock, "now", now)
    alice.reopen()
    alice.client.keys.publish(alice.mailbox)
    assert alice.in_step()


def test_a_full_disk_while_keys_are_renewed_costs_neither_what_was_sent_nor_what_came(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = private_files.place

    def full(directory: int, name: str, content: bytes) -> None:
        if name == KEY:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        place(directory, name, content)

    bob.client.mail.send(bob.mailbox, alice.name, b"hello")
    monkeypatch.setattr(private_files, "place", full)
    monkeypatch.setattr(own_keys, "SIGNED_EVERY", timedelta(0))
    alice.reopen()
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    assert alice.mailbox.outbox.message(sent.replay_key).status is OutboxStatus.QUEUED
    assert any("could not be renewed" in line for line in told(alice, NoticeKind.WARNING))
    alice.reopen()
    assert bodies(alice) == [b"hello"]
    assert any("No space left" in line for line in told(alice, NoticeKind.WARNING))


# Rotations that the server did not take at once.


def test_an_emergency_replaces_the_local_key_and_is_not_forgotten_though_a_rotation_waits_for_the_server(
    liar: Liar, alice: Person, bob: Person
) -> None:
    stolen, since = alice.mailbox.identity.unlocked.seeds, now() - DAY
    liar.instead("POST", "/v1/keys/.*", problem(503, "unavailable"))
    with pytest.raises(Unavailable):
        alice.client.keys.rotate(alice.mailbox)
    with pytest.raises(Unavailable):
        alice.client.keys.emergency_rotate(alice.mailbox, why="laptop lost", compromised_since=since)
    assert identity.present_seeds(alice.home, alice.mailbox.identity)[LOCAL] != stolen[LOCAL]
    assert any("the emergency is written down" in line for line in told(alice, NoticeKind.WARNING))

    liar.honest()
    alice.reopen()
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    assert told(alice, NoticeKind.KEYS_SETTLED) == [
        "an emergency rotation of this agent's keys was cut short, and is finished now"
    ]
    assert (alice.version, alice.in_step()) == (3, True)
    assert set(stolen.values()).isdisjoint(alice.mailbox.identity.unlocked.seeds.values())
    (asked,) = [one.json() for one in liar.asked if one.path == "/v1/keys/emergency-rotate"]
    assert asked["reason"] == "laptop lost"
    assert datetime.fromisoformat(asked["compromised_since"]) == since


@pytest.mark.parametrize("kind", ["rotate", "signer", "emergency"])
def test_a_rotation_that_was_cut_short_is_told_and_finished_by_whatever_uses_the_mailbox_next(
    liar: Liar, alice: Person, bob: Person, kind: str
) -> None:
    liar.instead("POST", "/v1/keys/.*", problem(503, "unavailable"))
    acts: dict[str, Callable[[], object]] = {
        "rotate": lambda: alice.client.keys.rotate(alice.mailbox),
        "signer": lambda: alice.client.keys.rotate(alice.mailbox, signer=True),
        "emergency": lambda: alice.client.keys.emergency_rotate(alice.mailbox, why="laptop lost"),
    }
    with pytest.raises(Unavailable):
        acts[kind]()
    told(alice, NoticeKind.WARNING)
    liar.asked.clear()
    for _ in range(3):
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    (line,) = told(alice, NoticeKind.WARNING)
    assert "rotation of this agent's keys is not published yet" in line
    assert ("an emergency" in line) is (kind == "emergency")
    assert 1 <= liar.count("POST", "/v1/keys/.*") <= transport.TRIES, "it is left alone for a while"

    liar.honest()
    alice.reopen()
    alice.client.mail.receive(alice.mailbox)
    (line,) = told(alice, NoticeKind.KEYS_SETTLED)
    assert "was cut short, and is finished now" in line
    assert (alice.version, alice.in_step()) == (2, True)
    alice.client.mail.receive(alice.mailbox)
    assert (alice.version, told(alice, NoticeKind.KEYS_SETTLED)) == (2, [])


def test_an_emergency_that_another_process_published_meanwhile_has_not_failed(alice: Person) -> None:
    def publish() -> None:
        with (
            Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now()) as other,
            Client(alice.url, identity=other) as client,
        ):
            client.keys.publish(other)

    alice.client.before = ("/v1/keys/emergency-rotate", publish)
    assert alice.client.keys.emergency_rotate(alice.mailbox, why="laptop lost").bundle_version == 2
    assert alice.in_step()
    assert told(alice, NoticeKind.WARNING) == []


async def test_who_cannot_sign_because_an_answer_was_lost_is_told_what_settles_it(alice: Person, bob: Person) -> None:
    alice.client.loses, alice.client.times = "/v1/keys/emergency-rotate", transport.TRIES
    with pytest.raises(Unreachable):
        alice.client.keys.emergency_rotate(alice.mailbox, why="laptop lost")
    alice.reopen()
    hints = []
    for verb in (
        lambda: alice.client.mail.receive(alice.mailbox),
        lambda: alice.client.mail.send(alice.mailbox, bob.name, b"hello"),
        lambda: alice.client.agents.me(),
    ):
        with pytest.raises(Unauthenticated) as refused:
            verb()
        hints.append(refused.value.hint)
    async with AsyncClient(alice.url, identity=alice.mailbox) as client:
        with pytest.raises(Unauthenticated) as refused:
            await anext(client.mail.stream())
        hints.append(refused.value.hint)
    assert all(f"angelia key publish --as {alice.name}" in hint for hint in hints), hints
    alice.client.keys.publish(alice.mailbox)
    assert alice.in_step()
    with Client(alice.url, identity=identity.create(alice.home, "stranger")) as stranger:
        with pytest.raises(Unauthenticated) as refused:
            stranger.agents.me()
        assert "angelia agent register" in refused.value.hint


# One-time keys.


def test_each_message_has_a_one_time_key_while_there_are_any_and_what_comes_then_is_said(
    alice: Person, bob: Person
) -> None:
    static = bob.newest.kem_keys[0].key.key_id
    first = [alice.client.mail.send(alice.mailbox, bob.name, b"x").envelope.header.key_id for _ in range(10)]
    assert len({static, *first}) == 11
    assert told(alice, NoticeKind.FALLBACK) == []
    for _ in range(3):
        assert alice.client.mail.send(alice.mailbox, bob.name, b"x").envelope.header.key_id == static
        assert len(told(alice, NoticeKind.FALLBACK)) == 1, "of every message"
    with pytest.raises(NoOneTimeKey):
        alice.client.mail.send(alice.mailbox, bob.name, b"x", one_time=True)
    assert len(bodies(bob, most=20)) == 13


def test_a_sender_who_had_enough_one_time_keys_asks_again_only_after_a_while(
    alice: Person, bob: Person, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar.lie("GET", BUNDLE + bob.name, lambda asked, answer: answer.changed(one_time=False, one_time_key=None))
    liar.asked.clear()
    for _ in range(3):
        alice.client.mail.seal(alice.mailbox, bob.name, b"x")
    assert liar.count("GET", BUNDLE + bob.name) == 1
    later(monkeypatch, peer_keys.ONE_TIME_PAUSE)
    alice.client.mail.seal(alice.mailbox, bob.name, b"x")
    assert liar.count("GET", BUNDLE + bob.name) == 2


def test_without_the_server_a_known_recipients_copy_serves(alice: Person, bob: Person, liar: Liar) -> None:
    liar.instead("GET", BUNDLE + bob.name, problem(503, "unavailable"))
    envelope = alice.client.mail.seal(alice.mailbox, bob.name, b"x")
    assert envelope.header.key_id == bob.newest.kem_keys[0].key.key_id
    assert len(told(alice, NoticeKind.FALLBACK)) == 1


@pytest.mark.parametrize("used", [True, False], ids=["used", "handed out and never used"])
def test_an_agent_in_use_makes_one_time_keys_again_when_half_are_gone(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_LOW", 19)
    for _ in range(2):
        if used:
            alice.client.mail.send(alice.mailbox, bob.name, b"hello")
        else:
            alice.client.keys.bundle(bob.name, one_time=True)
    assert len(bodies(bob)) == 2 * used
    assert bob.client.keys.count_one_time_keys().count == 19, "they were counted within the hour"
    bob.mailbox.own_keys.one_time_counted(now() - (HOUR if used else DAY))
    bob.mailbox.own_keys.one_time_made(now() - HOUR)
    bob.client.mail.receive(bob.mailbox)
    assert bob.client.keys.count_one_time_keys().count == 21
