"""Keys of other agents: what is asked of a server, what of it is believed, and what is sealed and opened with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from angelia.client import BadAnswer, Client, own_key_renewal, peer_keys, transport
from angelia.envelope.bundles import Bundle, Link, UntrustedBundle, anchor_of, sign_bundle
from angelia.envelope.refusals import NotAllowed, SignatureFailed, UnknownSigner
from angelia.envelope.signing import SigningPair
from angelia.errors import KeyRevoked, KeyStale, Unavailable
from angelia.keys.model import link_document, one_time_document
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.retry_rules import SealStands
from angelia.mailbox.time_window import DeliveryProfile
from client.letters import answer, later, newest, now, rotated, serve
from client.recorder import Recorder

HOUR = timedelta(hours=1)
BATCH = 21  # a hundred one-time keys take their time, and show no more


@pytest.fixture(autouse=True)
def short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_BATCH", BATCH)
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_LOW", BATCH - 1)


@pytest.fixture
def alice(boxes: Callable[[str], Mailbox]) -> Mailbox:
    return boxes("alice")


@pytest.fixture
def bob(boxes: Callable[[str], Mailbox]) -> Mailbox:
    return boxes("bob")


@pytest.fixture
def client(recorder: Recorder, alice: Mailbox) -> Iterator[Client]:
    """Alice's way to a server that says what a test tells it to."""
    with Client(recorder.url, identity=alice) as client:
        yield client


def since(*links: Link, has_more: bool = False) -> dict[str, Any]:
    bundles = [msgspec.to_builtins(link_document(link)) for link in links]
    return {"bundles": bundles, "has_more": has_more, "revoked": []}


def asked(recorder: Recorder) -> list[str]:
    """The queries that were asked since the last time."""
    seen = [one.query for one in recorder.seen]
    recorder.seen.clear()
    return seen


def forked(box: Mailbox, place: Path, **how: bool) -> Link:
    """The bundle that a copy of an agent's whole home would make."""
    shutil.copytree(place / box.identity.name, place / "copies" / box.identity.name)
    loaded = identity.load(place / "copies", box.identity.name, lambda: "")
    with Mailbox(place / "copies", loaded, now()) as copy:
        return rotated(copy, **how)


def test_the_first_message_pins_and_every_message_takes_a_one_time_key_while_there_are_any(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox
) -> None:
    (key,) = bob.own_keys.make_one_time_keys(1, now())
    serve(recorder, "bob", answer(newest(bob), key), answer(newest(bob), one_time=False))
    first = client.mail.seal(alice, "bob", b"first")
    assert asked(recorder) == ["one_time=true"]
    assert first.header.key_id == key.key.key_id
    pin = alice.pinned_keys.pin("bob")
    assert pin is not None
    assert (pin.trusted_by.value, pin.fingerprint) == ("first_use", bob.identity.pair.public.fingerprint)
    second = client.mail.seal(alice, "bob", b"second")
    assert asked(recorder) == ["one_time=true"]
    client.mail.seal(alice, "bob", b"third")
    assert asked(recorder) == [], "there were none a moment ago"
    assert second.header.key_id == newest(bob).bundle.kem_keys[0].key.key_id

    bob.pinned_keys.pin_first(newest(alice), now())
    bob.allowlist.allow("alice", now())
    assert [client.mail.open(bob, one.wire).body for one in (first, second)] == [b"first", b"second"]


def test_an_older_copy_is_refreshed_by_what_came_since(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(recorder, "bob", answer(newest(bob)))
    client.keys.find(alice, "bob")
    assert asked(recorder) == [""]
    later(monkeypatch, HOUR - timedelta(seconds=5))
    client.keys.find(alice, "bob")
    assert asked(recorder) == []

    later(monkeypatch, HOUR)
    serve(recorder, "bob", since())
    assert client.keys.find(alice, "bob")[0].bundle.bundle_version == 1
    assert client.keys.find(alice, "bob")[0].bundle.bundle_version == 1
    assert asked(recorder) == ["since=1"]

    chain = [rotated(bob), rotated(bob, signer=True), rotated(bob)]
    later(monkeypatch, 3 * HOUR)
    serve(recorder, "bob", since(*chain[:2], has_more=True), since(chain[2]))
    assert client.keys.find(alice, "bob")[0].bundle.bundle_version == 4
    assert asked(recorder) == ["since=1", "since=3"]
    pin = alice.pinned_keys.pin("bob")
    assert pin is not None
    assert (pin.bundle_version, pin.trusted_by.value) == (4, "rotation")


def test_a_server_that_always_promises_more_is_not_asked_for_ever(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.pinned_keys.pin_first(newest(bob), now() - 2 * HOUR)
    serve(recorder, "bob", since(has_more=True))
    client.keys.find(alice, "bob")
    assert asked(recorder) == ["since=1"]


@pytest.mark.parametrize("again", ["what is known", "each time the same"])
def test_a_server_that_promises_more_and_repeats_itself_is_not_asked_for_ever(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, again: str
) -> None:
    alice.pinned_keys.pin_first(newest(bob), now() - 2 * HOUR)
    link = newest(bob) if again == "what is known" else rotated(bob)
    serve(recorder, "bob", since(link, has_more=True))
    with pytest.raises(BadAnswer):
        client.keys.find(alice, "bob")
    assert len(recorder.seen) <= 2


def test_a_chain_that_its_agent_makes_without_end_is_followed_from_where_one_stopped(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_keys, "MOST_PAGES", 2)
    alice.pinned_keys.pin_first(newest(bob), now() - 2 * HOUR)
    chain = [rotated(bob) for _ in range(3)]
    serve(recorder, "bob", *(since(link, has_more=True) for link in chain[:2]), since(chain[2]))
    with pytest.raises(BadAnswer, match="did not end"):
        client.keys.find(alice, "bob")
    alice.pinned_keys.drop_bundle("bob")
    assert client.keys.find(alice, "bob")[0].bundle.bundle_version == 4
    assert asked(recorder) == ["since=1", "since=2", "since=3"]


def lies(alice: Mailbox, bob: Mailbox, fork: Link) -> dict[str, dict[str, Any]]:
    """What a server may say of Bob, whose second bundle Alice has seen."""
    old, second = (link.bundle for link in bob.own_keys.chain())
    thief = SigningPair.generate()

    def stolen(after: Bundle) -> dict[str, Any]:
        at = after.issued_at
        bundle = sign_bundle(thief, agent_nhi="bob", issued_at=at, kem_keys=after.kem_keys, after=anchor_of(after))
        return answer(Link(bundle))

    changed = answer(Link(second))
    changed["bundle"]["expires_at"] += 1
    return {
        "an older bundle": answer(Link(old)),
        "another bundle of the same version": answer(fork),
        "the same version by another pair": stolen(old),
        "a new pair without a statement": stolen(second),
        "another agent's bundle": answer(newest(alice)),
        "a changed bundle": changed,
    }


def test_whatever_a_server_lies_about_keys_the_pin_stays_and_nothing_is_sealed(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, tmp_path: Path
) -> None:
    fork = forked(bob, tmp_path)
    alice.pinned_keys.pin_first(rotated(bob), now() - 2 * HOUR)
    before = alice.pinned_keys.pin("bob")
    for name, lie in lies(alice, bob, fork).items():
        serve(recorder, "bob", lie)
        with pytest.raises((UntrustedBundle, SignatureFailed)):
            client.mail.seal(alice, "bob", b"secret")
        with pytest.raises((UntrustedBundle, SignatureFailed)):
            client.keys.find(alice, "bob", one_time=True)
        assert alice.pinned_keys.pin("bob") == before, name
    for page in (since(fork), since(bob.own_keys.chain()[0]), since(newest(alice))):
        serve(recorder, "bob", page)
        with pytest.raises(UntrustedBundle):
            client.keys.find(alice, "bob")
    assert alice.pinned_keys.pin("bob") == before
    assert alice.outbox.page() == []


def test_the_keys_of_somebody_else_are_not_taken_at_first_sight_either(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox
) -> None:
    serve(recorder, "carol", answer(newest(bob)))
    with pytest.raises(UntrustedBundle, match="asked for the keys of carol, the server gave those of bob"):
        client.mail.seal(alice, "carol", b"secret")
    assert alice.pinned_keys.pins() == []
    # By its id only the server could tell whose keys they are.
    id_ = "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10"
    serve(recorder, id_, answer(newest(bob)))
    with pytest.raises(peer_keys.Renamed):
        client.mail.seal(alice, id_, b"secret")
    assert alice.pinned_keys.pins() == []


def test_a_one_time_key_that_the_agents_pair_did_not_sign_is_refused(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, boxes: Callable[[str], Mailbox]
) -> None:
    (mallorys,) = boxes("mallory").own_keys.make_one_time_keys(1, now())
    (bobs,) = bob.own_keys.make_one_time_keys(1, now())
    claimed = msgspec.structs.replace(one_time_document(mallorys), agent_nhi="bob", signer_id=_signer(bob))
    said = answer(newest(bob), bobs)
    moved = {**said["one_time_key"], "created_at": said["one_time_key"]["created_at"] + 1}
    for key in (msgspec.to_builtins(one_time_document(mallorys)), msgspec.to_builtins(claimed), moved):
        serve(recorder, "bob", {**said, "one_time_key": key})
        with pytest.raises((SignatureFailed, UntrustedBundle)):
            client.mail.seal(alice, "bob", b"secret", one_time=True)
    assert alice.outbox.page() == []


def _signer(box: Mailbox) -> Any:
    return box.identity.pair.public.signer_id


def test_a_one_time_key_is_asked_for_once_for_one_message(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox
) -> None:
    problem = {"title": "away", "code": "unavailable", "status": 503}
    recorder.tell("GET", "/v1/keys/bundle/bob", problem, status=503)
    with pytest.raises(Unavailable):
        client.mail.seal(alice, "bob", b"hello")
    assert asked(recorder) == ["one_time=true"]
    serve(recorder, "bob", answer(newest(bob), one_time=False))
    with pytest.raises(peer_keys.NoOneTimeKey):
        client.mail.seal(alice, "bob", b"hello", one_time=True)
    assert asked(recorder) == ["one_time=true"]
    assert client.mail.seal(alice, "bob", b"hello").header.key_id == _kem(newest(bob))
    assert asked(recorder) == ["one_time=true"]
    client.mail.seal(alice, "bob", b"hello", one_time=False)
    assert asked(recorder) == []


def _kem(link: Link) -> Any:
    return link.bundle.kem_keys[0].key.key_id


def test_a_stale_key_means_sealing_again_to_the_bundle_of_the_answer_under_the_same_id(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox
) -> None:
    serve(recorder, "bob", answer(newest(bob)))
    first = client.mail.seal(alice, "bob", b"hello", priority=3, padme=True)  # type: ignore[arg-type]
    asked(recorder)
    refusal = KeyStale()
    refusal.members = answer(rotated(bob, signer=True, emergency=True))
    again = client.mail.reseal(alice, first.replay_key, refusal)
    assert asked(recorder) == []
    assert again.header.message_id == first.header.message_id
    assert (again.header.key_id, again.header.priority) == (_kem(newest(bob)), 3)
    assert [row.status.value for row in alice.outbox.page()].count("resealed") == 1

    # Several bundles later the chain in between is fetched.
    rotated(bob)
    last = rotated(bob, emergency=True)
    refusal.members = answer(last)
    serve(recorder, "bob", since(*bob.own_keys.chain()[2:]))
    assert client.mail.reseal(alice, again.replay_key, refusal).header.key_id == _kem(last)
    assert asked(recorder) == ["since=2"]


def test_a_refusal_cannot_smuggle_in_other_keys(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, boxes: Callable[[str], Mailbox]
) -> None:
    serve(recorder, "bob", answer(newest(bob)))
    first = client.mail.seal(alice, "bob", b"hello")
    refusal = KeyStale()
    for members, error in (
        (answer(newest(boxes("mallory"))), UntrustedBundle),
        ({"bundle": {"hello": 1}}, BadAnswer),
        ({"bundle": answer(newest(bob))["bundle"], "bundle_id": 7}, BadAnswer),
    ):
        refusal.members = members
        with pytest.raises(error):
            client.mail.reseal(alice, first.replay_key, refusal)
    assert [pin.nhi for pin in alice.pinned_keys.pins()] == ["bob"]
    assert len(alice.outbox.page()) == 1


def test_after_a_revocation_the_message_waits_for_another_key(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox
) -> None:
    serve(recorder, "bob", answer(newest(bob)))
    first = client.mail.seal(alice, "bob", b"hello")
    serve(recorder, "bob", since(), answer(newest(bob), revoked=[str(_kem(newest(bob)))]))
    with pytest.raises(SealStands):  # bob has signed nothing of the kind
        client.mail.reseal(alice, first.replay_key, KeyRevoked())
    with pytest.raises(KeyRevoked):
        client.mail.seal(alice, "bob", b"another")
    link = rotated(bob, emergency=True, signer=True)
    serve(recorder, "bob", since(link))
    again = client.mail.reseal(alice, first.replay_key, KeyRevoked())
    assert (again.header.key_id, again.header.message_id) == (_kem(link), first.header.message_id)


def test_what_another_process_rotated_signs_the_next_message(
    recorder: Recorder, client: Client, alice: Mailbox, bob: Mailbox, tmp_path: Path
) -> None:
    serve(recorder, "bob", answer(newest(bob)))
    client.mail.seal(alice, "bob", b"before")
    with Mailbox(tmp_path, identity.load(tmp_path, "alice", lambda: ""), now()) as elsewhere:
        pair = rotated(elsewhere, signer=True).bundle.signer
    assert client.mail.seal(alice, "bob", b"after").header.sender_key_id == pair.signer_id


def test_a_sender_who_rotated_its_pair_is_followed_and_a_stranger_is_not_looked_up(
    recorder: Recorder, alice: Mailbox, bob: Mailbox
) -> None:
    bob.pinned_keys.pin_first(newest(alice), now())
    alice.pinned_keys.pin_first(newest(bob), now())
    with Client(recorder.url, identity=bob) as client:
        with pytest.raises(NotAllowed):
            client.mail.open(bob, alice.outbox.seal(newest(bob).bundle, b"x", now=now()).wire)
        bob.allowlist.allow("alice", now())
        link = rotated(alice, signer=True)
        wire = alice.outbox.seal(newest(bob).bundle, b"by another pair", now=now()).wire
        assert asked(recorder) == []
        serve(recorder, "alice", since())
        with pytest.raises(UnknownSigner):
            client.mail.open(bob, wire)
        serve(recorder, "alice", since(link))
        assert client.mail.open(bob, wire, profile=DeliveryProfile.DIRECT).body == b"by another pair"
        assert asked(recorder) == ["since=1", "since=1"]


def test_what_a_stolen_pair_signs_is_refused_once_its_revocation_can_be_known(
    recorder: Recorder, alice: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob.pinned_keys.pin_first(newest(alice), now())
    bob.allowlist.allow("alice", now())
    alice.pinned_keys.pin_first(newest(bob), now())
    stolen = alice.identity.pair.public.signer_id
    forged = alice.outbox.seal(newest(bob).bundle, b"dated back", now=now()).wire
    link = rotated(alice, signer=True, emergency=True)
    serve(recorder, "alice", {**since(link), "revoked": [str(stolen)]})
    with Client(recorder.url, identity=bob) as client:
        later(monkeypatch, HOUR)
        with pytest.raises(UnknownSigner):
            client.mail.open(bob, forged)
    assert asked(recorder)[0] == "since=1"


def test_mail_is_read_though_the_server_is_away_or_does_not_know_its_sender(
    recorder: Recorder, alice: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob.pinned_keys.pin_first(newest(alice), now(), None)
    bob.allowlist.allow("alice", now())
    alice.pinned_keys.pin_first(newest(bob), now())
    first, second = (alice.outbox.seal(newest(bob).bundle, body, now=now()).wire for body in (b"one", b"two"))
    with Client("http://127.0.0.1:9", identity=bob) as client:
        assert client.mail.open(bob, first).body == b"one"
    recorder.told["GET", "/v1/keys/bundle/alice"] = []
    recorder.tell("GET", "/v1/keys/bundle/alice", {"code": "not_found", "title": "there is no agent alice"}, status=404)
    with Client(recorder.url, identity=bob) as client:
        assert client.mail.open(bob, second).body == b"two"
