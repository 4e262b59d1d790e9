"""Pinned rosters: what a mailbox believes of a channel's members, and what no later word takes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from angelia.envelope.refusals import NotAllowed, SignatureFailed, UnknownSigner
from angelia.envelope.rosters import Member, Roster, UntrustedRoster, sign_roster
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.envelope.signing import SigningPair
from angelia.keys.model import unix_ms
from angelia.mailbox.box import Mailbox

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


def test_a_key_that_somebody_has_who_was_removed_seals_nothing_more(bob: Mailbox, sign: Sign) -> None:
    first = sign(BOB, CAROL)
    bob.rosters.pin(first, NOW)
    bob.channels.join(CHANNEL, "alice/news", NOW)
    key = ChannelKey(CHANNEL, 3, EpochKey.generate())
    bob.channels.keep(key, "alice", NOW)
    second = sign(BOB, CAROL, Member("dave", may_publish=False, may_subscribe=True), after=first)
    bob.rosters.pin(second, NOW)
    assert bob.channels.present_key(CHANNEL, key.key.key_id) is not None  # who comes takes nothing away
    third = sign(BOB, after=second)
    bob.rosters.pin(third, NOW)
    for _ in ("at once", "when it comes again", "after a new join"):
        assert bob.channels.present_key(CHANNEL, key.key.key_id) is None
        assert bob.rosters.is_spent(CHANNEL, 3)
        bob.channels.keep(key, "alice", NOW)
        bob.channels.join(CHANNEL, "alice/news", NOW)
    assert bob.channels.key(CHANNEL, key.key.key_id, NOW) is not None  # what was published under it still opens
    assert not bob.rosters.is_spent(CHANNEL, 4)


def test_who_jumps_over_a_roster_seals_nothing_under_a_key_of_before(bob: Mailbox, sign: Sign) -> None:
    """Carol came and went on the one in between."""
    first = sign(BOB)
    bob.rosters.pin(first, NOW)
    key = ChannelKey(CHANNEL, 3, EpochKey.generate())
    bob.channels.keep(key, "alice", NOW)
    bob.rosters.pin(sign(BOB, after=sign(BOB, CAROL, after=first)), NOW)
    assert bob.channels.present_key(CHANNEL, key.key.key_id) is None
    assert bob.rosters.is_spent(CHANNEL, 3)


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
    link = alice.own.begin_rotation(NOW, signer=True, emergency=True, why="stolen")
    alice.own.finish_rotation(NOW, link)
    bob.trust.advance("alice", [link], NOW, [stolen.public.signer_id])
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
    newest = mallory.own.first_bundle(NOW)
    bob.trust.pin_first(newest, NOW)
    first, pair = sign(BOB), alice.identity.pair.public
    bob.rosters.pin(first, NOW)
    link = alice.own.begin_rotation(NOW, signer=True)
    alice.own.finish_rotation(NOW, link)
    bob.trust.advance("alice", [link], NOW, [pair.signer_id])
    hers = sign_roster(
        mallory.identity.pair, channel_id=CHANNEL, owner_nhi="mallory", channel_name="news", policy="open", members=[],
        issued_at=unix_ms(NOW),
    )  # fmt: skip
    with pytest.raises(UntrustedRoster, match="not of alice/news"):
        bob.rosters.pin(hers, NOW)
    assert bob.rosters.pinned(CHANNEL) == first


def rotated(alice: Mailbox, *others: Mailbox) -> None:
    """Alice replaces her pair, and the others hear of it."""
    link = alice.own.begin_rotation(NOW, signer=True)
    alice.own.finish_rotation(NOW, link)
    for other in others:
        other.trust.advance("alice", [link], NOW)


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


def test_a_pair_that_was_replaced_drives_no_version_out_of_reach(alice: Mailbox, bob: Mailbox, sign: Sign) -> None:
    stolen, first = alice.identity.pair, sign(BOB)
    bob.rosters.pin(first, NOW)
    rotated(alice, bob)
    far = sign(BOB, version=1 << 40, prev_roster_hash=bytes([1]) * 32, pair=stolen)
    with pytest.raises(UntrustedRoster, match="signed by a pair that alice has replaced"):
        bob.rosters.pin(far, NOW)
    bob.rosters.pin(sign(BOB, after=first, pair=stolen), NOW)  # from before its owner rotated, met late


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
    alice.own.begin_rotation(NOW, signer=True)
    alice.own.finish_rotation(NOW)
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
