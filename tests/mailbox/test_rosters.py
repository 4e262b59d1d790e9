"""Pinned rosters: what a mailbox believes of a channel's members, and what no later word takes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from angelia.envelope.refusals import NotAllowed, SignatureFailed, UnknownSigner
from angelia.envelope.rosters import Member, Roster, UntrustedRoster, sign_roster
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import unix_ms
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from held_keys import held_keys

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CHANNEL = UUID("c9a3a2e0-1234-4678-9abc-def012345678")
BOB = Member("bob", may_publish=True, may_subscribe=True)
CAROL = Member("carol", may_publish=True, may_subscribe=True)


@pytest.fixture
def sign(alice: Mailbox) -> Callable[..., Roster]:
    def make(
        *members: Member,
        after: Roster | None = None,
        at: datetime = NOW,
        pair: SigningPair | None = None,
        **other: object,
    ) -> Roster:
        values: dict[str, object] = {
            "channel_id": CHANNEL,
            "owner_nhi": "alice",
            "channel_name": "news",
            "policy": "allowlist",
            "members": members,
            "issued_at": unix_ms(at),
            **({} if after is None else {"version": after.version + 1, "prev_roster_hash": after.hash}),
            **other,
        }
        return sign_roster(pair or alice.identity.pair, **values)  # type: ignore[arg-type]

    return make


Sign = Callable[..., Roster]


def test_a_pin_moves_forward_only(bob: Mailbox, sign: Sign) -> None:
    first = sign(BOB, CAROL)
    second = sign(BOB, after=first)
    third = sign(after=second)
    bob.rosters.pin(first, NOW)
    bob.rosters.pin(third, NOW)  # one that was away takes the newest
    assert bob.rosters.pinned(CHANNEL) == bob.rosters.named("alice/news") == third
    for older in (first, second):
        with pytest.raises(UntrustedRoster):
            bob.rosters.pin(older, NOW)
    bob.rosters.pin(third, NOW)
    assert bob.rosters.believed(CHANNEL) == third


def test_only_a_pair_of_the_owner_that_is_believed_signs(
    bob: Mailbox, sign: Sign, agent: Callable[[str], Mailbox]
) -> None:
    mallory = agent("mallory")
    forged = sign_roster(
        mallory.identity.pair, channel_id=CHANNEL, owner_nhi="alice", channel_name="news", policy="open", members=[],
        issued_at=unix_ms(NOW),
    )  # fmt: skip
    with pytest.raises(UnknownSigner):
        bob.rosters.pin(forged, NOW)
    stranger = sign_roster(
        mallory.identity.pair, channel_id=CHANNEL, owner_nhi="mallory", channel_name="news", policy="open", members=[],
        issued_at=unix_ms(NOW),
    )  # fmt: skip
    with pytest.raises(NotAllowed):
        bob.rosters.pin(stranger, NOW)
    assert bob.rosters.pinned(CHANNEL) is None


def test_a_name_goes_over_to_a_later_channel_and_never_back(bob: Mailbox, sign: Sign) -> None:
    old, new = sign(BOB), sign(BOB, channel_id=uuid4(), at=NOW + timedelta(seconds=1))
    bob.rosters.pin(old, NOW)
    bob.rosters.pin(new, NOW)
    assert bob.rosters.named("alice/news") == new
    with pytest.raises(UntrustedRoster, match="another channel than before"):
        bob.rosters.pin(old, NOW)


def key_of(roster: Roster) -> ChannelKey:
    return ChannelKey(CHANNEL, 3, EpochKey.generate(), roster.edition)


def seals(box: Mailbox, key: ChannelKey) -> bool:
    return box.channels.present_key(CHANNEL, key.key.key_id) is not None


def test_a_key_that_a_removed_member_has_seals_nothing_more(bob: Mailbox, sign: Sign) -> None:
    first = sign(BOB, CAROL)
    bob.rosters.pin(first, NOW)
    bob.channels.join(CHANNEL, "alice/news", NOW)
    key = key_of(first)
    bob.channels.keep(key, "alice", NOW)
    dave = Member("dave", may_publish=False, may_subscribe=True)
    second = sign(BOB, CAROL, dave, after=first, keys_since=1)
    bob.rosters.pin(second, NOW)
    assert seals(bob, key)  # a member that comes takes nothing away
    bob.rosters.pin(sign(BOB, after=second), NOW)
    for _ in ("at once", "when it comes again", "after a new join"):
        assert not seals(bob, key)
        bob.channels.keep(key, "alice", NOW)
        bob.channels.join(CHANNEL, "alice/news", NOW)
    assert bob.channels.key(CHANNEL, key.key.key_id, NOW) is not None  # what was published under it still opens


def test_a_key_that_no_publisher_brings_opens_and_says_nothing_of_its_roster(bob: Mailbox, sign: Sign) -> None:
    first = sign(BOB, CAROL)
    second = sign(BOB, after=first)
    bob.rosters.pin(second, NOW)
    key, claimed = key_of(first), key_of(second)
    for one in (key, ChannelKey(CHANNEL, 3, key.key, second.edition)):
        bob.channels.keep(one, "carol", NOW, seals=False)
        assert not seals(bob, key)
    bob.channels.keep(key, "alice", NOW)  # by whom it was made under the roster before
    bob.channels.keep(ChannelKey(CHANNEL, 3, key.key, second.edition), "carol", NOW, seals=False)
    assert not seals(bob, key)
    assert bob.channels.key(CHANNEL, key.key.key_id, NOW) is not None
    bob.channels.keep(claimed, "carol", NOW, seals=False)
    bob.channels.keep(claimed, "alice", NOW)
    assert seals(bob, claimed)
    assert [one.sender for one in held_keys(bob, CHANNEL) if one.key_id == claimed.key.key_id] == ["alice"]


def test_a_mailbox_that_missed_rosters_seals_by_what_the_newest_says_of_keys(bob: Mailbox, sign: Sign) -> None:
    first = sign(BOB)
    bob.rosters.pin(first, NOW)
    key = key_of(first)
    bob.channels.keep(key, "alice", NOW)
    again = sign(BOB, after=sign(BOB, after=first, keys_since=1), keys_since=1)  # others have come
    bob.rosters.pin(again, NOW)
    assert seals(bob, key)
    came_and_went = sign(BOB, after=sign(BOB, CAROL, after=again, keys_since=1))
    bob.rosters.pin(came_and_went, NOW)
    assert not seals(bob, key)


def test_who_meets_a_channel_after_a_removal_seals_under_no_key_of_before(bob: Mailbox, sign: Sign) -> None:
    before = sign(BOB, CAROL)
    bob.rosters.pin(sign(BOB, after=before), NOW)
    key = key_of(before)
    bob.channels.keep(key, "alice", NOW)
    assert not seals(bob, key)


def test_a_channel_that_was_forgotten_may_be_anothers_and_never_goes_back(
    bob: Mailbox, sign: Sign, agent: Callable[[str], Mailbox]
) -> None:
    first = sign(BOB, CAROL)
    second = sign(BOB, after=first)
    bob.rosters.pin(second, NOW)
    bob.channels.forget(CHANNEL, NOW)
    assert bob.rosters.pinned(CHANNEL) is bob.rosters.named("alice/news") is None
    with pytest.raises(UntrustedRoster):
        bob.rosters.pin(first, NOW)
    bob.rosters.pin(second, NOW)
    assert bob.rosters.named("alice/news") == second
    bob.channels.forget(CHANNEL, NOW)
    mallory = agent("mallory")
    bob.pinned_keys.pin_first(mallory.own_keys.first_bundle(NOW), NOW)
    hers = sign_roster(
        mallory.identity.pair, channel_id=CHANNEL, owner_nhi="mallory", channel_name="news", policy="open", members=[],
        issued_at=unix_ms(NOW),
    )  # fmt: skip
    bob.rosters.pin(hers, NOW)
    assert bob.rosters.pinned(CHANNEL) == hers


def test_an_emergency_spends_every_key_of_every_channel(bob: Mailbox, sign: Sign) -> None:
    bob.key_rotation.finish(NOW, bob.own_keys.first_bundle(NOW))
    roster = sign(BOB)
    bob.rosters.pin(roster, NOW)
    key = key_of(roster)
    bob.channels.keep(key, "alice", NOW)
    assert seals(bob, key)
    assert bob.channels.stolen_at is None
    bob.key_rotation.begin(NOW, signer=True, emergency=True, why="stolen")
    assert bob.channels.stolen_at == NOW
    for _ in ("at once", "when it comes again"):
        assert not seals(bob, key)
        bob.channels.keep(key, "alice", NOW)


def test_keys_of_the_time_before_the_first_roster_seal_nothing(bob: Mailbox, sign: Sign) -> None:
    key = ChannelKey(CHANNEL, 1, EpochKey.generate())
    bob.channels.keep(key, "alice", NOW)
    bob.rosters.pin(sign(BOB), NOW)
    assert bob.channels.present_key(CHANNEL, key.key.key_id) is None


def test_a_pin_of_a_pair_that_was_revoked_holds_nothing_back(alice: Mailbox, bob: Mailbox, sign: Sign) -> None:
    """Whoever stole the pair could sign any version."""
    stolen = alice.identity.pair
    late = sign(CAROL, version=1 << 52, prev_roster_hash=bytes([1]) * 32)
    bob.rosters.pin(late, NOW)
    link = alice.key_rotation.begin(NOW, signer=True, emergency=True, why="stolen")
    alice.key_rotation.finish(NOW, link)
    bob.pinned_keys.advance("alice", [link], NOW, [stolen.public.signer_id])
    assert bob.rosters.believed(CHANNEL) is None
    assert bob.rosters.pinned(CHANNEL) == late
    with pytest.raises((UnknownSigner, SignatureFailed)):
        bob.rosters.pin(late, NOW)
    mended = sign(BOB, version=2, prev_roster_hash=bytes([2]) * 32)
    bob.rosters.pin(mended, NOW)
    assert bob.rosters.believed(CHANNEL) == mended


def test_a_channel_stays_its_owners_whatever_is_said_of_the_pair_that_signed(
    alice: Mailbox, bob: Mailbox, sign: Sign, agent: Callable[[str], Mailbox]
) -> None:
    """That a pair was revoked is the server's word."""
    mallory = agent("mallory")
    newest = mallory.own_keys.first_bundle(NOW)
    bob.pinned_keys.pin_first(newest, NOW)
    first, pair = sign(BOB), alice.identity.pair.public
    bob.rosters.pin(first, NOW)
    link = alice.key_rotation.begin(NOW, signer=True)
    alice.key_rotation.finish(NOW, link)
    bob.pinned_keys.advance("alice", [link], NOW, [pair.signer_id])
    hers = sign_roster(
        mallory.identity.pair, channel_id=CHANNEL, owner_nhi="mallory", channel_name="news", policy="open", members=[],
        issued_at=unix_ms(NOW),
    )  # fmt: skip
    with pytest.raises(UntrustedRoster, match="not of alice/news"):
        bob.rosters.pin(hers, NOW)
    assert bob.rosters.pinned(CHANNEL) == first


def rotated(alice: Mailbox, *others: Mailbox) -> None:
    """Alice replaces her pair, and the others hear of it."""
    link = alice.key_rotation.begin(NOW, signer=True)
    alice.key_rotation.finish(NOW, link)
    for other in others:
        other.pinned_keys.advance("alice", [link], NOW)


def test_a_pair_that_was_replaced_takes_no_place_of_a_later_ones_roster(
    alice: Mailbox, bob: Mailbox, sign: Sign
) -> None:
    stolen, first = alice.identity.pair, sign(BOB)
    bob.rosters.pin(first, NOW)
    rotated(alice, bob)
    second = sign(BOB, after=first)
    bob.rosters.pin(second, NOW)
    late = sign(BOB, CAROL, after=second, pair=stolen)
    with pytest.raises(UntrustedRoster, match="signed by a pair that alice has replaced"):
        bob.rosters.pin(late, NOW)
    assert bob.rosters.pinned(CHANNEL) == second


def test_a_pair_that_was_replaced_changes_nothing_that_was_seen_before(
    alice: Mailbox, bob: Mailbox, sign: Sign
) -> None:
    """Also where the owner has not signed with its present pair yet, and whatever the server says of the pairs."""
    stolen, first = alice.identity.pair, sign(BOB)
    bob.rosters.pin(first, NOW)
    rotated(alice, bob)
    far = sign(BOB, version=1 << 40, prev_roster_hash=bytes([1]) * 32, pair=stolen)
    elsewhere = sign(BOB, CAROL, channel_id=uuid4(), pair=stolen, at=NOW + timedelta(seconds=200))
    for late in (far, sign(BOB, CAROL, after=first, pair=stolen), elsewhere):
        with pytest.raises(UntrustedRoster, match="signed by a pair that alice has replaced"):
            bob.rosters.pin(late, NOW)
    bob.rosters.pin(first, NOW)
    second, middle = sign(BOB, after=first), alice.identity.pair.public
    bob.rosters.pin(second, NOW)
    link = alice.key_rotation.begin(NOW, signer=True)
    alice.key_rotation.finish(NOW, link)
    bob.pinned_keys.advance(
        "alice", [link], NOW, [middle.signer_id]
    )  # the server's word: the pair of the pin is revoked
    with pytest.raises(UntrustedRoster, match="signed by a pair that alice has replaced"):
        bob.rosters.pin(first, NOW)
    assert bob.rosters.named("alice/news") == second


def test_a_process_that_was_held_up_takes_back_nothing_that_another_signed(alice: Mailbox, sign: Sign) -> None:
    first = sign(BOB, CAROL)
    alice.rosters.pin_own(first, NOW)
    late = sign(BOB, CAROL, after=first, keys_since=1)
    rotated(alice)
    third = sign(BOB, after=late)
    alice.rosters.pin_own(third, NOW)
    alice.rosters.pin_own(late, NOW)
    assert alice.rosters.pinned(CHANNEL) == third


def test_a_process_that_has_not_heard_of_the_new_pair_believes_nothing_of_the_old_one(
    home: Path, alice: Mailbox, sign: Sign
) -> None:
    stolen = alice.identity.pair
    with Mailbox(home, identity.load(home, "alice", lambda: ""), NOW) as stale:
        first = sign(BOB)
        alice.rosters.pin_own(first, NOW)
        rotated(alice)
        second = sign(BOB, after=first)
        alice.rosters.pin_own(second, NOW)
        assert stale.identity.pair.public.signer_id == stolen.public.signer_id
        thiefs = sign(BOB, CAROL, after=second, pair=stolen)
        assert not stale.rosters.names_present_pair(thiefs)
        with pytest.raises(UntrustedRoster, match="signed by a pair that alice has replaced"):
            stale.rosters.pin(thiefs, NOW)
        stale.rosters.pin_own(thiefs, NOW)
        assert stale.rosters.pinned(CHANNEL) == second


def test_the_versions_of_a_thief_mean_nothing_to_the_next_pair(alice: Mailbox, bob: Mailbox, sign: Sign) -> None:
    late = sign(BOB, CAROL, version=1_000, prev_roster_hash=bytes([1]) * 32)
    bob.rosters.pin(late, NOW)
    same = sign(BOB, CAROL, version=4, prev_roster_hash=bytes([1]) * 32, at=NOW - timedelta(1))
    keys = [key_of(late), key_of(same)]
    for key in keys:
        bob.channels.keep(key, "carol", NOW)
    assert seals(bob, keys[0])
    rotated(alice, bob)
    for version in (4, 2_000):
        bob.rosters.pin(sign(BOB, version=version, prev_roster_hash=bytes([2]) * 32, keys_since=4), NOW)
        assert not any(seals(bob, key) for key in keys)


def test_the_first_word_of_a_publisher_on_a_key_stands(bob: Mailbox, sign: Sign) -> None:
    """A later one could make the key of a removed member a new one."""
    first = sign(BOB, CAROL)
    bob.rosters.pin(first, NOW)
    theirs, own = key_of(first), key_of(first)
    bob.channels.keep(theirs, "alice", NOW)
    bob.channels.keep(own, "bob", NOW)
    second = sign(BOB, after=first)
    bob.rosters.pin(second, NOW)
    for key in (theirs, own):
        bob.channels.keep(ChannelKey(CHANNEL, 3, key.key, second.edition), "carol", NOW)
        assert not seals(bob, key)


def test_a_key_that_lay_in_the_inbox_when_keys_were_stolen_is_spent(bob: Mailbox, sign: Sign) -> None:
    roster = sign(BOB)
    bob.rosters.pin(roster, NOW)
    bob.key_rotation.begin(NOW, signer=True, emergency=True, why="stolen")
    before, after = key_of(roster), key_of(roster)
    bob.channels.keep(before, "alice", NOW, came_at=NOW - timedelta(minutes=1))
    bob.channels.keep(after, "alice", NOW, came_at=NOW + timedelta(minutes=1))
    assert not seals(bob, before)
    assert seals(bob, after)


def test_the_key_of_an_open_channel_which_anybody_may_have_goes_on(bob: Mailbox, sign: Sign) -> None:
    first = sign(BOB, policy="open")
    bob.rosters.pin(first, NOW)
    key = key_of(first)
    bob.channels.keep(key, "alice", NOW)
    bob.rosters.pin(sign(BOB, after=first, policy="open"), NOW)  # as after an emergency of the owner
    bob.key_rotation.begin(NOW, signer=True, emergency=True, why="stolen")
    assert seals(bob, key)
    bob.channels.retire(CHANNEL, 3, NOW)
    assert not seals(bob, key)


def test_a_roster_that_is_dated_back_is_refused(bob: Mailbox, sign: Sign) -> None:
    first = sign(BOB)
    bob.rosters.pin(first, NOW)
    with pytest.raises(UntrustedRoster, match="is dated before version 1"):
        bob.rosters.pin(sign(BOB, CAROL, after=first, at=NOW - timedelta(seconds=1)), NOW)


def test_an_owner_believes_its_present_pair_alone(alice: Mailbox, sign: Sign) -> None:
    first = sign(BOB)
    alice.rosters.pin(first, NOW)
    assert alice.rosters.signed_by_former() == []
    assert alice.rosters.names_present_pair(first)
    alice.key_rotation.begin(NOW, signer=True)
    alice.key_rotation.finish(NOW)
    assert not alice.rosters.names_present_pair(first)
    assert alice.rosters.signed_by_former() == [first]
    with pytest.raises(UnknownSigner):
        alice.rosters.pin(first, NOW)
    assert alice.rosters.pinned(CHANNEL) == first  # what it signed itself it still knows


def test_a_roster_outlives_a_leave(bob: Mailbox, sign: Sign) -> None:
    roster = sign(BOB)
    bob.rosters.pin(roster, NOW)
    bob.channels.leave(CHANNEL, NOW)
    assert bob.rosters.pinned(CHANNEL) == roster
