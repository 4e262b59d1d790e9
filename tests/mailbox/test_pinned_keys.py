"""Whom an agent believes: pinned once, moved only along a chain that holds, and no silent change of a signing pair."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from angelia.envelope.bundles import Link, UntrustedBundle, anchor_of, sign_bundle, sign_rotation
from angelia.envelope.refusals import NotAllowed, SignatureFailed, UnknownSigner
from angelia.envelope.signing import SigningPair
from angelia.errors import KeyRevoked
from angelia.mailbox import bundle_file
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.pinned_keys import TrustedBy

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
MS, SKEW, HOUR = timedelta(milliseconds=1), timedelta(seconds=300), timedelta(hours=1)

Agent = Callable[[str], Mailbox]
Send = Callable[..., bytes]


def rotate(box: Mailbox, at: datetime = NOW, **what: bool) -> Link:
    link = box.key_rotation.begin(at, **what)
    box.key_rotation.finish(at)
    return link


def newest(box: Mailbox) -> Link:
    link = box.own_keys.newest()
    assert link is not None
    return link


def resigned(link: Link, pair: SigningPair, *, after: Link) -> Link:
    """The same keys as the next bundle after another one, signed by somebody's pair."""
    bundle = sign_bundle(
        pair,
        agent_nhi=link.bundle.agent_nhi,
        issued_at=link.bundle.issued_at,
        kem_keys=link.bundle.kem_keys,
        after=anchor_of(after.bundle),
    )
    return Link(bundle)


def test_an_agent_is_pinned_at_first_sight(alice: Mailbox, agent: Agent) -> None:
    bob = agent("bob")
    pin = alice.pinned_keys.pin_first(newest(bob), NOW)
    assert (pin.nhi, pin.fingerprint) == ("bob", bob.identity.pair.public.fingerprint)
    assert (pin.bundle_version, pin.trusted_by, pin.pinned_at) == (1, TrustedBy.FIRST_USE, NOW)
    assert alice.pinned_keys.pins() == [pin]
    assert alice.pinned_keys.pin_first(newest(bob), NOW + HOUR) == pin


def test_a_bundle_that_does_not_verify_is_never_pinned(alice: Mailbox, agent: Agent) -> None:
    link = newest(agent("bob"))
    changed = Link(dataclasses.replace(link.bundle, expires_at=link.bundle.expires_at + 1))
    for take in (alice.pinned_keys.pin_first, alice.pinned_keys.trust):
        with pytest.raises(SignatureFailed):
            take(changed, NOW)
    assert alice.pinned_keys.pin("bob") is None


def test_a_pin_follows_the_chain_through_new_keys_and_new_signers(alice: Mailbox, bob: Mailbox) -> None:
    links = [rotate(bob, NOW + n * HOUR, signer=n % 2 == 1) for n in range(4)]
    pin = alice.pinned_keys.advance("bob", links, NOW + 4 * HOUR)
    assert pin.bundle_version == 5
    assert pin.trusted_by is TrustedBy.ROTATION
    assert pin.fingerprint == bob.identity.pair.public.fingerprint
    known = alice.pinned_keys.bundle("bob", NOW + 4 * HOUR)
    assert known is not None
    assert known.bundle.hash == pin.bundle_hash


def test_the_bundle_that_is_pinned_may_come_again_and_renews_the_copy(alice: Mailbox, bob: Mailbox) -> None:
    before = alice.pinned_keys.pin("bob")
    link = rotate(bob)
    assert alice.pinned_keys.advance("bob", [newest_before(bob), link], NOW).bundle_version == 2
    later = NOW + 2 * HOUR
    assert alice.pinned_keys.bundle("bob", later) is None
    assert alice.pinned_keys.advance("bob", [link], later) == alice.pinned_keys.pin("bob")
    assert alice.pinned_keys.bundle("bob", later) is not None
    assert before is not None
    assert before.bundle_version == 1


def newest_before(box: Mailbox) -> Link:
    return box.own_keys.chain()[-2]


def test_a_rollback_a_gap_a_fork_and_a_foreign_bundle_leave_the_pin_where_it_was(
    alice: Mailbox, bob: Mailbox, agent: Agent
) -> None:
    first = newest(bob)
    second, third, fourth = (rotate(bob) for _ in range(3))
    pin = alice.pinned_keys.advance("bob", [second], NOW)
    fork = resigned(third, bob.identity.pair, after=first)
    fork_of_now = resigned(second, bob.identity.pair, after=first)
    carol = newest(agent("carol"))
    for links in ([first], [fourth], [third, third], [fork], [fork_of_now], [carol], [third, carol], [fourth, third]):
        with pytest.raises(UntrustedBundle):
            alice.pinned_keys.advance("bob", links, NOW)
        assert alice.pinned_keys.pin("bob") == pin
    with pytest.raises(UntrustedBundle):
        alice.pinned_keys.pin_first(first, NOW)
    assert alice.pinned_keys.advance("bob", [third, fourth], NOW).bundle_version == 4


def test_a_new_signer_without_the_old_ones_word_is_refused(alice: Mailbox, bob: Mailbox) -> None:
    before = newest(bob)
    pin = alice.pinned_keys.pin("bob")
    link = rotate(bob, signer=True)
    stranger = SigningPair.generate()
    silent = Link(link.bundle)
    assert link.statement is not None
    forged = Link(link.bundle, sign_rotation(stranger, bob.identity.pair, "bob", link.bundle.issued_at))
    taken_over = resigned(link, stranger, after=before)
    for bad in (silent, forged, taken_over, Link(taken_over.bundle, link.statement)):
        with pytest.raises((UntrustedBundle, SignatureFailed)):
            alice.pinned_keys.advance("bob", [bad], NOW)
        assert alice.pinned_keys.pin("bob") == pin
    assert alice.pinned_keys.advance("bob", [link], NOW).trusted_by is TrustedBy.ROTATION


def test_who_is_not_pinned_has_no_chain_to_follow(alice: Mailbox, agent: Agent) -> None:
    with pytest.raises(UnknownSigner):
        alice.pinned_keys.advance("bob", [newest(agent("bob"))], NOW)


def test_a_replaced_pair_speaks_for_what_it_signed_in_time(alice: Mailbox, bob: Mailbox) -> None:
    old = bob.identity.pair.public
    link = rotate(bob, NOW, signer=True)
    alice.pinned_keys.advance("bob", [link], NOW + HOUR)
    assert alice.pinned_keys.signer("bob", old.signer_id, NOW + SKEW) == old
    with pytest.raises(SignatureFailed):
        alice.pinned_keys.signer("bob", old.signer_id, NOW + SKEW + MS)
    present = bob.identity.pair.public
    assert alice.pinned_keys.signer("bob", present.signer_id, NOW + 90 * HOUR) == present
    with pytest.raises(UnknownSigner) as unknown:
        alice.pinned_keys.signer("bob", uuid.uuid4(), NOW)
    assert unknown.value.agent == "bob"
    with pytest.raises(NotAllowed):
        alice.pinned_keys.signer("carol", present.signer_id, NOW)


def test_a_replaced_pair_of_one_agent_does_not_speak_for_another(alice: Mailbox, bob: Mailbox, agent: Agent) -> None:
    carol = agent("carol")
    old = carol.identity.pair.public
    alice.pinned_keys.pin_first(newest(carol), NOW)
    alice.pinned_keys.advance("carol", [rotate(carol, signer=True)], NOW)
    assert alice.pinned_keys.signer("carol", old.signer_id, NOW) == old
    with pytest.raises(UnknownSigner):
        alice.pinned_keys.signer("bob", old.signer_id, NOW)


def test_late_mail_of_a_replaced_pair_is_opened_to_the_millisecond(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    old_enough, too_late = send(now=NOW + SKEW), send(now=NOW + SKEW + MS)
    link = rotate(alice, NOW, signer=True)
    bob.pinned_keys.advance("alice", [link], NOW + HOUR)
    assert bob.receive(old_enough, now=NOW + HOUR).body == b"hello"
    with pytest.raises(SignatureFailed):
        bob.receive(too_late, now=NOW + HOUR)


def test_who_was_allowed_stays_allowed_through_a_rotation_that_was_vouched_for(
    alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    bob.allowlist.deny("alice")
    bob.allowlist.allow("alice", NOW, "my friend")
    link = rotate(alice, NOW, signer=True)
    sealed = send()
    with pytest.raises(UnknownSigner):
        bob.receive(sealed, now=NOW)
    bob.pinned_keys.advance("alice", [link], NOW)
    assert bob.receive(sealed, now=NOW).body == b"hello"
    assert [(entry.nhi, entry.label) for entry in bob.allowlist.entries()] == [("alice", "my friend")] * 2
    assert bob.allowlist.deny("alice") == 2


def test_a_rotation_does_not_allow_who_was_not_allowed(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    bob.allowlist.deny("alice")
    bob.pinned_keys.advance("alice", [rotate(alice, NOW, signer=True)], NOW)
    assert bob.allowlist.entries() == []
    with pytest.raises(NotAllowed):
        bob.receive(send(), now=NOW)


def test_an_operators_trust_replaces_the_pair_and_takes_nothing_over(
    alice: Mailbox, bob: Mailbox, send: Send, agent: Agent
) -> None:
    late = send()
    bob.pinned_keys.advance("alice", [rotate(alice, NOW, signer=True)], NOW)
    lost = SigningPair.generate()
    link = resigned(newest(alice), lost, after=newest_before(alice))
    pin = bob.pinned_keys.trust(link, NOW)
    assert (pin.trusted_by, pin.fingerprint) == (TrustedBy.OPERATOR, lost.public.fingerprint)
    with pytest.raises(UnknownSigner):
        bob.receive(late, now=NOW)
    assert lost.public.fingerprint not in [entry.fingerprint for entry in bob.allowlist.entries()]


def test_an_operators_trust_does_not_take_a_pair_back_to_an_older_bundle(alice: Mailbox, bob: Mailbox) -> None:
    first = newest(alice)
    bob.pinned_keys.advance("alice", [rotate(alice, NOW)], NOW)
    pin = bob.pinned_keys.pin("alice")
    with pytest.raises(UntrustedBundle):
        bob.pinned_keys.trust(first, NOW)
    assert bob.pinned_keys.pin("alice") == pin


def test_a_file_of_keys_does_not_bring_a_revoked_key_back_and_is_no_fresh_copy(alice: Mailbox, bob: Mailbox) -> None:
    link = newest(bob)
    revoked = [entry.key.key_id for entry in link.bundle.kem_keys]
    alice.pinned_keys.advance("bob", [link], NOW, revoked)
    bundle_file.take(alice.pinned_keys, [link], NOW + HOUR)
    known = alice.pinned_keys.bundle("bob", NOW, max_age=None)
    assert known is not None
    assert (known.revoked, known.fetched_at) == (frozenset(revoked), NOW)
    with pytest.raises(KeyRevoked):
        alice.outbox.seal(link.bundle, b"hello", now=NOW + HOUR)


def test_keys_that_came_only_as_a_file_are_looked_up_before_they_are_used_with_a_server(
    agent: Agent, alice: Mailbox
) -> None:
    carol = agent("carol")
    bundle_file.take(alice.pinned_keys, carol.own_keys.chain(), NOW)
    assert alice.pinned_keys.bundle("carol", NOW) is None
    assert alice.pinned_keys.bundle("carol", NOW, max_age=None) is not None


def test_a_replaced_pair_that_was_revoked_is_believed_no_more(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    old, late = alice.identity.pair.public, send()
    bob.pinned_keys.advance("alice", [rotate(alice, NOW, signer=True)], NOW)
    assert bob.pinned_keys.signer("alice", old.signer_id, NOW) == old
    bob.pinned_keys.advance("alice", [newest(alice)], NOW, [old.signer_id])
    with pytest.raises(UnknownSigner):
        bob.receive(late, now=NOW)


def test_a_revocation_that_a_server_only_says_destroys_no_pair_and_an_operator_can_undo_it(
    alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    old, late = alice.identity.pair.public, send()
    link = rotate(alice, NOW, signer=True)
    bob.pinned_keys.advance("alice", [link], NOW, [old.signer_id])
    with pytest.raises(UnknownSigner):
        bob.receive(late, now=NOW)
    bob.pinned_keys.advance("alice", [link], NOW)
    with pytest.raises(UnknownSigner):  # a true one is not taken back by a server either
        bob.receive(late, now=NOW)
    bob.pinned_keys.trust(link, NOW)
    assert bob.receive(late, now=NOW).body == b"hello"


def test_a_key_that_a_server_calls_revoked_is_used_again_once_its_agent_signs_that_it_is_active(
    alice: Mailbox, bob: Mailbox
) -> None:
    link = newest(bob)
    key = link.bundle.kem_keys[0].key.key_id
    alice.pinned_keys.advance("bob", [link], NOW, [key])
    alice.pinned_keys.advance("bob", [link], NOW)
    with pytest.raises(KeyRevoked):
        alice.outbox.seal(link.bundle, b"hello", now=NOW)
    later = rotate(bob, NOW + HOUR, kem=False)
    alice.pinned_keys.advance("bob", [later], NOW + HOUR)
    assert alice.outbox.seal(later.bundle, b"hello", now=NOW + HOUR).header.key_id == key
    alice.pinned_keys.advance("bob", [later], NOW + HOUR, [key])
    with pytest.raises(KeyRevoked):  # said again, of the bundle that lists it
        alice.outbox.seal(later.bundle, b"hello", now=NOW + HOUR)
    alice.pinned_keys.trust(later, NOW + HOUR)
    assert alice.outbox.seal(later.bundle, b"hello", now=NOW + HOUR).header.key_id == key


def test_a_revocation_outlives_the_copy_of_the_bundle(alice: Mailbox, bob: Mailbox) -> None:
    link = newest(bob)
    alice.pinned_keys.advance("bob", [link], NOW, [link.bundle.kem_keys[0].key.key_id])
    alice.pinned_keys.drop_bundle("bob")
    alice.pinned_keys.advance("bob", [link], NOW)
    with pytest.raises(KeyRevoked):
        alice.outbox.seal(link.bundle, b"hello", now=NOW)


def test_a_copy_of_a_bundle_is_good_for_an_hour_and_can_be_dropped_at_once(alice: Mailbox, bob: Mailbox) -> None:
    assert alice.pinned_keys.bundle("bob", NOW + HOUR - MS) is not None
    assert alice.pinned_keys.bundle("bob", NOW + HOUR) is None
    assert alice.pinned_keys.bundle("bob", NOW - SKEW) is not None
    assert alice.pinned_keys.bundle("bob", NOW - SKEW - MS) is None  # of a clock that ran ahead
    assert alice.pinned_keys.bundle("bob", NOW + 1000 * HOUR, max_age=None) is not None
    pin = alice.pinned_keys.pin("bob")
    alice.pinned_keys.drop_bundle("bob")
    assert alice.pinned_keys.bundle("bob", NOW, max_age=None) is None
    assert alice.pinned_keys.pin("bob") == pin


def test_a_failed_step_in_the_middle_of_a_chain_takes_none_of_it(alice: Mailbox, bob: Mailbox) -> None:
    pin = alice.pinned_keys.pin("bob")
    good, bad = rotate(bob, signer=True), rotate(bob, signer=True)
    with pytest.raises(UntrustedBundle):
        alice.pinned_keys.advance("bob", [good, Link(bad.bundle)], NOW)
    assert alice.pinned_keys.pin("bob") == pin
    with pytest.raises(UnknownSigner):
        alice.pinned_keys.signer("bob", good.bundle.signer.signer_id, NOW)
