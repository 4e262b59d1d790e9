"""An agent's own keys: a chain that others can follow, old keys for as long as mail needs them, and not longer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from angelia.envelope.bundles import (
    DEFAULT_SUITES,
    MOST_KEM_KEYS,
    KemKeyStatus,
    Link,
    UntrustedBundle,
    anchor_of,
    check_bundle,
    check_one_time_key,
    follow,
)
from angelia.envelope.ids import KeyType
from angelia.envelope.refusals import SignatureFailed, UnknownKey
from angelia.envelope.wire import Suite
from angelia.errors import Conflict, DiskFull, InvalidArgument
from angelia.mailbox import identity, keyfile
from angelia.mailbox.database import unstamp
from angelia.mailbox.keyfile import XWING
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
MS, MINUTE, HOUR, DAY = timedelta(milliseconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
DESTROY_AFTER = timedelta(seconds=604_800 + 3_600 + 300)
BOTH = DEFAULT_SUITES | Suite.ML_KEM.bit

Send = Callable[..., bytes]
Agent = Callable[[str], Mailbox]


def nobody() -> str:
    raise AssertionError("asked for a passphrase that the key does not have")


def rotate(box: Mailbox, at: datetime = NOW, **what: bool | int) -> Link:
    link = box.key_rotation.begin(at, **what)  # type: ignore[arg-type]
    box.key_rotation.finish(at)
    return link


def newest(box: Mailbox) -> Link:
    link = box.own_keys.newest()
    assert link is not None
    return link


def stored(box: Mailbox) -> list[tuple[str, str, str, datetime | None]]:
    with box.database.transaction() as tx:
        rows = tx.execute("SELECT key_type, usage, status, destroy_at FROM kem_keys ORDER BY created_at, key_type")
        return [(kind, usage, status, at and unstamp(at)) for kind, usage, status, at in rows.fetchall()]


def seeds(home: Path, name: str) -> dict[str, bytes]:
    return dict(keyfile.unlock((home / name / "key").read_bytes(), nobody).seeds)


def without_private_halves_shown(box: Mailbox) -> str:
    return repr(box.key_rotation.pending()) + repr(box.own_keys.newest()) + repr(box.identity)


# The first bundle.


def test_the_first_bundle_offers_one_xwing_key_and_says_so(alice: Mailbox) -> None:
    bundle = newest(alice).bundle
    check_bundle(bundle)
    assert (bundle.agent_nhi, bundle.bundle_version, bundle.suites) == ("alice", 1, DEFAULT_SUITES)
    assert bundle.signer.ed25519 == alice.identity.public_key
    assert [(entry.key.kind, entry.status) for entry in bundle.kem_keys] == [(KeyType.XWING, KemKeyStatus.ACTIVE)]
    assert alice.own_keys.first_bundle(NOW + DAY).bundle == bundle


def test_a_first_bundle_that_nobody_took_is_signed_anew_over_the_same_keys(home: Path) -> None:
    with Mailbox(home, identity.create(home, "alice"), NOW) as box:
        first = box.own_keys.first_bundle(NOW, BOTH).bundle
        assert box.own_keys.first_bundle(NOW + MINUTE).bundle == first
        again = box.own_keys.first_bundle(NOW + DAY).bundle
        assert again.issued_at > first.issued_at
        assert [entry.key.key_id for entry in again.kem_keys] == [entry.key.key_id for entry in first.kem_keys]
        box.key_rotation.finish(NOW + DAY, Link(first))
        assert newest(box).bundle == first
        assert box.own_keys.first_bundle(NOW + 9 * DAY).bundle == first


def test_a_bundle_that_this_agent_did_not_sign_is_not_taken_for_its_own(home: Path, alice: Mailbox) -> None:
    with Mailbox(home, identity.create(home, "carol"), NOW) as box:
        link = box.own_keys.first_bundle(NOW)
        for foreign in (newest(alice), Link(dataclasses.replace(link.bundle, agent_nhi="alice"))):
            with pytest.raises((UntrustedBundle, SignatureFailed)):
                box.key_rotation.finish(NOW, foreign)
        assert newest(box).bundle == link.bundle


@pytest.mark.parametrize("suites", [0, Suite.ML_KEM.bit, Suite.CHANNEL.bit, DEFAULT_SUITES | Suite.SESSION.bit, 1 << 9])
def test_xwing_is_always_taken_and_nothing_unknown_is(alice: Mailbox, suites: int) -> None:
    with pytest.raises(InvalidArgument):
        alice.key_rotation.begin(NOW, suites=suites)
    assert alice.key_rotation.pending() is None


def test_there_is_nothing_to_rotate_before_the_first_bundle(home: Path) -> None:
    with Mailbox(home, identity.create(home, "alice"), NOW) as box:
        for step in (box.key_rotation.begin, box.key_rotation.finish):
            with pytest.raises(Conflict):
                step(NOW)


# Rotation.


def test_a_chain_of_rotations_can_be_followed_from_its_first_link(alice: Mailbox) -> None:
    links = [rotate(alice, NOW + n * HOUR, signer=n % 3 == 0, kem=n % 2 == 0) for n in range(6)]
    chain = alice.own_keys.chain()
    assert [link.bundle for link in chain[1:]] == [link.bundle for link in links]
    reached = follow(anchor_of(chain[0].bundle), chain[1:])
    assert (reached.bundle_version, reached.signer.signer_id) == (7, alice.identity.pair.public.signer_id)


def test_a_rotation_under_way_gives_the_same_keys_whatever_is_asked_for(alice: Mailbox) -> None:
    link = alice.key_rotation.begin(NOW, signer=True)
    assert alice.key_rotation.begin(NOW + MINUTE, kem=False).bundle == link.bundle
    later = alice.key_rotation.begin(NOW + DAY)
    assert later.bundle.issued_at > link.bundle.issued_at
    assert later.bundle.signer == link.bundle.signer
    assert later.bundle.kem_keys[0].key.key_id == link.bundle.kem_keys[0].key.key_id
    assert later.bundle.kem_keys[1].rotated_at == later.bundle.issued_at
    assert alice.key_rotation.pending() is not None


def test_of_two_signatures_over_one_step_the_one_that_a_server_took_counts(alice: Mailbox) -> None:
    first = alice.key_rotation.begin(NOW, signer=True)
    alice.key_rotation.begin(NOW + HOUR)
    assert alice.key_rotation.finish(NOW + HOUR, first) == first
    assert newest(alice) == first
    rotate(alice, NOW + 2 * HOUR)
    assert follow(anchor_of(first.bundle), alice.own_keys.chain()[2:]).bundle_version == 3


def test_mail_opens_with_the_old_the_next_and_the_new_key(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    old = send(body=b"old")
    link = bob.key_rotation.begin(NOW)
    alice.pinned_keys.advance("bob", [link], NOW)
    published = send(body=b"published before it was finished")
    assert bob.receive(published, now=NOW).body == b"published before it was finished"
    bob.key_rotation.finish(NOW)
    assert bob.receive(old, now=NOW).body == b"old"
    assert bob.receive(send(body=b"new"), now=NOW).body == b"new"


def test_another_process_that_had_the_mailbox_open_learns_of_a_rotation(
    home: Path, alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    with Mailbox(home, identity.load(home, "bob", nobody), NOW) as other:
        link = rotate(bob, signer=True)
        alice.pinned_keys.advance("bob", [link], NOW)
        assert other.receive(send(), now=NOW).body == b"hello"
        assert other.identity.key_id == bob.identity.key_id


def test_an_old_key_opens_mail_to_the_end_and_is_destroyed_in_the_next_two_hours(
    home: Path, bob: Mailbox, send: Send
) -> None:
    sealed = [send(body=bytes([n]), now=NOW + HOUR) for n in range(2)]
    old_seed = seeds(home, "bob")[XWING]
    rotate(bob)
    assert stored(bob) == [("xwing", "signed", "grace", NOW + DESTROY_AFTER)]
    last = NOW + DESTROY_AFTER - 5 * MINUTE - MS  # when the envelopes expire
    assert bob.receive(sealed[0], now=last).body == b"\0"
    rotate(bob, NOW + DESTROY_AFTER - MS)
    assert len(stored(bob)) == 2
    rotate(bob, NOW + DESTROY_AFTER)
    for hours in range(3):
        assert NOW + DESTROY_AFTER in [destroy_at for *_, destroy_at in stored(bob)]
        bob.receive_many([], now=NOW + DESTROY_AFTER + hours * HOUR)
    assert NOW + DESTROY_AFTER not in [destroy_at for *_, destroy_at in stored(bob)]
    with pytest.raises(UnknownKey):
        bob.receive(sealed[1], now=last)
    assert old_seed not in seeds(home, "bob").values()


def test_where_mail_lives_longer_a_replaced_key_is_kept_as_long(home: Path, alice: Mailbox, bob: Mailbox) -> None:
    bob.close()
    month = timedelta(days=30)
    kept = month + timedelta(seconds=3_600 + 300)
    with (
        Mailbox(home, identity.load(home, "alice", nobody), NOW, ttl_max=month // timedelta(seconds=1)) as patient,
        Mailbox(home, identity.load(home, "bob", nobody), NOW, ttl_max=month // timedelta(seconds=1)) as willing,
    ):
        known = patient.pinned_keys.bundle("bob", NOW, max_age=None)
        assert known is not None
        made = NOW + HOUR  # from a copy of the keys that is an hour old
        long = patient.outbox.seal(known.bundle, b"long", now=made, ttl_seconds=month // timedelta(seconds=1))
        rotate(willing)
        assert stored(willing) == [("xwing", "signed", "grace", NOW + kept)]
        assert willing.receive(long.wire, now=made + month - MS).body == b"long"


def test_a_key_past_its_time_opens_nothing_even_before_it_was_deleted(bob: Mailbox, send: Send) -> None:
    key_id = newest(bob).bundle.kem_keys[0].key.key_id
    rotate(bob)
    keyring = bob._receiver.keyring
    assert keyring.find(key_id, NOW + DESTROY_AFTER - MS) is not None
    assert keyring.find(key_id, NOW + DESTROY_AFTER) is None


def test_a_revoked_key_can_be_destroyed_at_once(bob: Mailbox, send: Send) -> None:
    sealed, old = send(), newest(bob).bundle.kem_keys[0].key.key_id
    rotate(bob)
    bob.key_rotation.destroy_replaced(old)
    with pytest.raises(UnknownKey):
        bob.receive(sealed, now=NOW)


def test_a_revoked_key_is_never_listed_again(bob: Mailbox) -> None:
    first, second = (_active(rotate(bob, NOW + n * HOUR)) for n in range(2))
    pending = bob.key_rotation.begin(NOW + 2 * HOUR)
    assert {first, second} <= {entry.key.key_id for entry in pending.bundle.kem_keys}
    bob.key_rotation.destroy_replaced(first)
    again = bob.key_rotation.begin(NOW + 2 * HOUR)
    assert first not in {entry.key.key_id for entry in again.bundle.kem_keys}
    bob.key_rotation.finish(NOW + 2 * HOUR, again)
    bob.key_rotation.destroy_replaced(second)
    listed = {entry.key.key_id for entry in rotate(bob, NOW + 3 * HOUR).bundle.kem_keys}
    assert not listed & {first, second}
    assert _active(again) in listed


def _active(link: Link) -> UUID:
    return link.bundle.kem_keys[0].key.key_id


def test_an_emergency_is_never_mistaken_for_the_lesser_rotation_under_way(bob: Mailbox) -> None:
    link = bob.key_rotation.begin(NOW, signer=True)
    assert bob.key_rotation.begin(NOW, signer=True, emergency=True) == link
    pending = bob.key_rotation.pending()
    assert pending is not None
    assert (pending.link, pending.plan.emergency) == (link, False)


@pytest.mark.parametrize("given_up", [False, True])
def test_an_emergency_waits_for_the_rotation_under_way_and_nothing_begins_before_it(
    home: Path, bob: Mailbox, given_up: bool
) -> None:
    link = bob.key_rotation.begin(NOW)
    bob.key_rotation.begin(NOW, signer=True, emergency=True, why="laptop lost", compromised_since=NOW - DAY)
    with Mailbox(home, identity.load(home, "bob", nobody), NOW) as other:
        if given_up:
            other.key_rotation.abandon()
        else:
            other.key_rotation.finish(NOW)
        begun = other.key_rotation.begin(NOW, kem=False)
        pending = other.key_rotation.pending()
        assert pending is not None
        assert (pending.plan.emergency, pending.plan.signer) == (True, True)
        assert (pending.plan.why, pending.plan.compromised_since) == ("laptop lost", NOW - DAY)
        assert _active(begun) != _active(link)
        assert len(begun.bundle.kem_keys) == 1
        other.key_rotation.finish(NOW)
        assert other.key_rotation.unconfirmed_plan() is None, "one emergency was asked for"


def test_an_emergency_that_waits_and_is_asked_for_again_revokes_all_that_was_said(bob: Mailbox) -> None:
    bob.key_rotation.begin(NOW)
    bob.key_rotation.begin(NOW, signer=True, emergency=True, why="laptop lost", compromised_since=NOW - DAY)
    bob.key_rotation.begin(NOW, emergency=True, why="as I said")
    bob.key_rotation.finish(NOW)
    bob.key_rotation.begin(NOW)
    pending = bob.key_rotation.pending()
    assert pending is not None
    assert (pending.plan.signer, pending.plan.compromised_since) == (True, NOW - DAY)


def test_an_emergency_first_finishes_what_a_server_took(bob: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    link = bob.key_rotation.begin(NOW)
    with monkeypatch.context() as patch:
        patch.setattr(identity.KeyFile, "write", _crash)
        with pytest.raises(KeyboardInterrupt):
            bob.key_rotation.finish(NOW)
    after = bob.key_rotation.begin(NOW, emergency=True).bundle
    assert newest(bob) == link
    assert (after.prev_bundle_hash, len(after.kem_keys)) == (link.bundle.hash, 1)


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_emergency_uses_no_seed_that_an_interrupted_attempt_left(home: Path, bob: Mailbox) -> None:
    made = identity.create(home, "carol").unlocked.seeds
    left = {f"next.{name}": made[name] for name in ("ed25519", "ml_dsa_65", "xwing")}
    with identity.key_file(home, bob.identity) as file:
        file.write(file.seeds | left)
    link = bob.key_rotation.begin(NOW, signer=True, emergency=True)
    present = seeds(home, "bob")
    assert all(present[name] != seed for name, seed in left.items())
    assert link.bundle.signer.ed25519 != identity.load(home, "carol", nobody).public_key


def test_an_emergency_under_way_remembers_why_and_since_when(home: Path, bob: Mailbox) -> None:
    bob.key_rotation.begin(NOW, emergency=True, why="laptop lost", compromised_since=NOW - DAY)
    with Mailbox(home, identity.load(home, "bob", nobody), NOW) as other:
        pending = other.key_rotation.pending()
        assert pending is not None
        assert (pending.plan.why, pending.plan.compromised_since) == ("laptop lost", NOW - DAY)


def test_a_second_emergency_uses_no_seed_of_the_first_which_has_to_be_settled_before(home: Path, bob: Mailbox) -> None:
    bob.key_rotation.begin(NOW, signer=True, emergency=True)
    stolen = set(seeds(home, "bob").values())
    bob.key_rotation.begin(NOW + HOUR, signer=True, emergency=True)
    bob.key_rotation.finish(NOW + HOUR)
    rotate(bob, NOW + HOUR, signer=True, emergency=True)
    assert stolen.isdisjoint(seeds(home, "bob").values())


def test_only_who_acts_as_the_next_pair_signs_with_it(alice: Mailbox, bob: Mailbox) -> None:
    present = bob.key_id
    bob.key_rotation.begin(NOW, signer=True)
    with bob.own_keys.signing_as_next(), ThreadPoolExecutor(1) as others:
        assert bob.key_id != present
        assert others.submit(lambda: bob.key_id).result() == present
        assert alice.key_id == alice.identity.key_id
    assert bob.key_id == present


def test_an_emergency_leaves_nothing_that_opens_old_mail(home: Path, alice: Mailbox, bob: Mailbox, send: Send) -> None:
    to_first = send()
    alice.pinned_keys.advance("bob", [rotate(bob)], NOW)
    to_second = send()
    (one_time,) = bob.own_keys.make_one_time_keys(1, NOW)
    to_one_time = send(one_time_key=one_time)
    link = rotate(bob, NOW + HOUR, emergency=True, signer=True)
    assert [entry.status for entry in link.bundle.kem_keys] == [KemKeyStatus.ACTIVE]
    for sealed in (to_first, to_second):
        with pytest.raises(UnknownKey):
            bob.receive(sealed, now=NOW + HOUR)
    assert stored(bob) == [("xwing", "one_time", "active", NOW + HOUR + DESTROY_AFTER)]
    assert bob.receive(to_one_time, now=NOW + HOUR).body == b"hello"  # a relay may have had it already
    assert set(seeds(home, "bob")) == {"ed25519", "ml_dsa_65", "xwing", "local"}


def test_a_rotation_for_which_the_disk_has_no_room_is_refused_and_can_be_tried_again(
    home: Path, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seeds(home, "bob")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(DiskFull, match=str(home / "bob")):
            bob.key_rotation.begin(NOW, signer=True)
    assert seeds(home, "bob") == before
    assert bob.key_rotation.pending() is None
    rotate(bob, signer=True)


def test_an_emergency_always_replaces_the_kem_key(bob: Mailbox) -> None:
    before = newest(bob).bundle.kem_keys[0].key.key_id
    assert rotate(bob, kem=False, emergency=True).bundle.kem_keys[0].key.key_id != before


def test_a_key_that_stays_keeps_its_times_though_the_bundle_is_renewed(bob: Mailbox) -> None:
    before = newest(bob).bundle
    after = rotate(bob, NOW + 300 * DAY, kem=False).bundle
    assert (after.signer, after.bundle_version) == (before.signer, 2)
    assert after.kem_keys == before.kem_keys
    assert after.expires_at > before.expires_at
    assert stored(bob) == []
    replaced = rotate(bob, NOW + 301 * DAY).bundle.kem_keys[0]
    assert replaced.expires_at - replaced.created_at == 365 * DAY / MS


def test_hourly_rotation_lists_what_finds_room_and_still_opens_the_rest(
    alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    first = send(body=b"sealed to the very first key")
    links = [rotate(bob, NOW + n * HOUR) for n in range(1, 20)]
    assert len(links[-1].bundle.kem_keys) == MOST_KEM_KEYS
    check_bundle(links[-1].bundle)
    assert bob.receive(first, now=NOW + 20 * HOUR).body == b"sealed to the very first key"
    assert alice.pinned_keys.advance("bob", links, NOW + 20 * HOUR).bundle_version == 20


def test_keys_whose_grace_is_over_leave_the_list(bob: Mailbox) -> None:
    rotate(bob)
    link = rotate(bob, NOW + 7 * DAY)
    assert [entry.status for entry in link.bundle.kem_keys] == [KemKeyStatus.ACTIVE, KemKeyStatus.GRACE]


def test_an_abandoned_rotation_leaves_the_keys_as_they_were(home: Path, bob: Mailbox, send: Send) -> None:
    before, chain = seeds(home, "bob"), bob.own_keys.chain()
    bob.key_rotation.begin(NOW, signer=True, suites=BOTH)
    bob.key_rotation.abandon()
    assert (seeds(home, "bob"), bob.own_keys.chain(), bob.key_rotation.pending(), stored(bob)) == (
        before,
        chain,
        None,
        [],
    )
    assert bob.receive(send(), now=NOW).body == b"hello"
    bob.key_rotation.abandon()
    assert rotate(bob).bundle.bundle_version == 2


def test_the_request_key_and_the_card_change_with_the_signer(home: Path, bob: Mailbox) -> None:
    before = bob.identity
    rotate(bob, signer=True)
    opened = identity.load(home, "bob", nobody)
    card = identity.public_identity(home, "bob")
    assert card is not None
    assert bob.identity.key_id == opened.key_id == card.key_id == bob.key_id != before.key_id
    assert opened.unlocked.seeds["local"] == before.unlocked.seeds["local"]


def test_a_passphrase_still_protects_the_keys_after_a_rotation(home: Path) -> None:
    with Mailbox(home, identity.create(home, "alice", "geheim"), NOW) as box:
        box.own_keys.first_bundle(NOW)
        rotate(box, signer=True)
        assert b'"protection":"scrypt-aes256gcm"' in (home / "alice" / "key").read_bytes()
        opened = identity.load(home, "alice", lambda: "geheim")
        assert opened.pair.public.fingerprint == newest(box).bundle.signer.fingerprint


def test_no_private_half_shows_in_a_repr(home: Path, bob: Mailbox) -> None:
    bob.key_rotation.begin(NOW, signer=True)
    shown = without_private_halves_shown(bob)
    for seed in seeds(home, "bob").values():
        assert repr(seed)[2:-1] not in shown


# Suite 1 beside X-Wing.


def test_a_separate_ml_kem_key_is_offered_rotated_and_withdrawn_like_the_other(
    home: Path, alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    added = rotate(bob, kem=False, suites=BOTH)
    kinds = [entry.key.kind for entry in added.bundle.kem_keys]
    assert kinds == [KeyType.XWING, KeyType.ML_KEM_768]
    assert stored(bob) == [("ml_kem_768", "signed", "active", None)]
    rotated = rotate(bob, NOW + HOUR)
    assert [entry.status for entry in rotated.bundle.kem_keys] == [KemKeyStatus.ACTIVE] * 2 + [KemKeyStatus.GRACE] * 2
    assert {(kind, status) for kind, _, status, _ in stored(bob)} == {
        ("xwing", "grace"),
        ("ml_kem_768", "grace"),
        ("ml_kem_768", "active"),
    }
    renewed = rotate(bob, NOW + 2 * HOUR, kem=False)
    assert renewed.bundle.kem_keys[1].key.key_id == rotated.bundle.kem_keys[1].key.key_id
    withdrawn = rotate(bob, NOW + 3 * HOUR, kem=False, suites=DEFAULT_SUITES)
    assert [entry.key.kind for entry in withdrawn.bundle.kem_keys if entry.status is KemKeyStatus.ACTIVE] == [
        KeyType.XWING
    ]
    assert {status for _, _, status, _ in stored(bob)} == {"grace"}
    alice.pinned_keys.advance("bob", [added, rotated, renewed, withdrawn], NOW + 3 * HOUR)
    assert bob.receive(send(now=NOW + 3 * HOUR), now=NOW + 3 * HOUR).body == b"hello"


# One-time keys.


def test_one_time_keys_are_signed_stored_and_destroyed_in_the_end(bob: Mailbox) -> None:
    keys = bob.own_keys.make_one_time_keys(3, NOW)
    for one in keys:
        check_one_time_key(one, bob.identity.pair.public)
    assert len({one.key.key_id for one in keys}) == 3
    end = NOW + timedelta(days=30, seconds=3_900 + 2_592_000 + 300)
    assert stored(bob) == [("xwing", "one_time", "active", end)] * 3
    for at in (end - MS, end + HOUR - MS):
        bob.receive_many([], now=at)
        assert len(stored(bob)) == 3
    bob.receive_many([], now=end + 2 * HOUR)
    assert stored(bob) == []


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_a_foolish_number_of_one_time_keys_is_refused(bob: Mailbox, count: int) -> None:
    with pytest.raises(InvalidArgument):
        bob.own_keys.make_one_time_keys(count, NOW)


def test_a_private_key_in_the_database_is_of_no_use_without_the_key_file(home: Path, bob: Mailbox) -> None:
    rotate(bob)
    old = bob.own_keys.chain()[0].bundle.kem_keys[0].key.key_id
    held = bob._receiver.keyring.find(old, NOW)
    assert held is not None
    bob.close()
    for path in (home / "bob" / "mail").iterdir():
        if path.is_file():
            assert held.key.seed not in path.read_bytes()
