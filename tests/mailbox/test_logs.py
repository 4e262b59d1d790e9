"""Groups in the mailbox: which editions a member believes, which keys it has, and what it forgets."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from angelia.client.log_editions import take_editions
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, SignatureFailed, UnknownSigner
from angelia.envelope.sealing import Control, EpochKey
from angelia.errors import AngeliaError, Conflict, Denied, EpochConflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model.admin_grants import Admin, granted
from angelia.grouplog.model.editions import EDITIONS, GroupEdition, decode_mail, encode_mail, new_member
from angelia.grouplog.model.ids import base58
from angelia.mailbox import database, identity
from angelia.mailbox.database import FILE, stamp
from angelia.mailbox.log_journal import Journal
from angelia.mailbox.log_replica import opened_replica
from angelia.mailbox.logs import EarlierEpoch, LaterEpoch
from angelia.mailbox.mailbox import Mailbox
from grouplog.open_logs import Key
from log_members import first_edition, following, sent, share, with_member, without

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
FIRST, SECOND, THIRD = (EpochKey.of(byte * 32) for byte in (b"\x11", b"\x22", b"\x33"))
Send = Callable[..., bytes]


@pytest.fixture
def member(agent: Callable[[str], Mailbox], alice: Mailbox) -> Callable[[str], Mailbox]:
    """Makes agents that know Alice, whose groups these are."""

    def make(name: str) -> Mailbox:
        box, link = agent(name), alice.own_keys.newest()
        assert link is not None
        box.pinned_keys.pin_first(link, NOW)
        return box

    return make


@pytest.fixture
def carol(member: Callable[[str], Mailbox]) -> Mailbox:
    return member("carol")


@pytest.fixture
def edition(alice: Mailbox, bob: Mailbox) -> GroupEdition:
    """A group of Alice, its admin, and Bob, which no other member has heard of yet."""
    return first_edition("team", [alice, bob], key=FIRST)


@pytest.fixture
def joined(alice: Mailbox, bob: Mailbox, edition: GroupEdition) -> GroupEdition:
    """The same group; both have the first edition and the key of epoch 1."""
    share(edition, FIRST, alice, bob)
    return edition


# Which editions are believed.


def test_the_first_edition_is_accepted_from_an_admin_that_it_lists(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition
) -> None:
    assert bob.logs.accept(sent(edition, alice, FIRST), "alice", NOW)
    assert bob.logs.edition(edition.group) == edition
    assert bob.logs.key(edition) == FIRST


@pytest.mark.parametrize("sender", ["bob", "mallory"])
def test_the_first_edition_is_refused_from_any_other_agent(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition, sender: str
) -> None:
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(edition, alice, FIRST), sender, NOW)
    assert bob.logs.editions() == []


def test_the_first_edition_is_refused_if_its_author_did_not_sign_it(bob: Mailbox, edition: GroupEdition) -> None:
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(edition, bob, FIRST), "alice", NOW)
    assert bob.logs.editions() == []


def test_a_group_that_does_not_list_this_agent_is_refused(bob: Mailbox, alice: Mailbox) -> None:
    with pytest.raises(NotMember):
        bob.logs.accept(sent(first_edition("others", [alice], key=FIRST), alice, FIRST), "alice", NOW)
    assert bob.logs.editions() == []


def test_an_edition_that_came_by_mail_is_taken_over(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    bob.receive(send(body=encode_mail(sent(edition, alice, FIRST)), channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.find("team") == edition
    assert take_editions(bob) == 0


def test_an_edition_of_an_agent_whose_mail_is_not_allowed_is_not_opened(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    with pytest.raises(NotAllowed):
        bob.receive(send(body=encode_mail(sent(edition, alice, FIRST)), channel_id=EDITIONS, control=True), now=NOW)
    assert (take_editions(bob), bob.logs.editions()) == (0, [])


def test_a_later_edition_of_an_admin_is_taken_over_also_when_its_other_mail_is_not_allowed(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    later = following(joined, alice, FIRST, name="renamed")
    bob.receive(send(body=encode_mail(sent(later, alice, FIRST)), channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.find("renamed") == later


def test_an_admin_whose_mail_is_not_allowed_brings_no_other_group_and_no_other_mail(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    other = encode_mail(sent(first_edition("other", [alice, bob], key=SECOND), alice, SECOND))
    for body in (other, other[:1]):
        with pytest.raises(NotAllowed):
            bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    with pytest.raises(NotAllowed):
        bob.receive(send(body=b"plain mail"), now=NOW)
    assert (take_editions(bob), bob.logs.editions()) == (0, [joined])


def test_a_later_edition_replaces_the_one_before(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = following(joined, alice, SECOND, epoch=2)
    assert bob.logs.accept(sent(later, alice, SECOND), "alice", LATER)
    assert bob.logs.edition(joined.group) == later
    assert (bob.logs.keys(later, 1), bob.logs.keys(later, 2)) == ([FIRST], [SECOND])


def test_a_later_edition_is_refused_if_no_admin_signed_it(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    by_alice = following(joined, alice, SECOND, epoch=2)
    with_bob = tuple(Admin(one.sender, one.handle, one.public_key) for one in joined.members)
    forged = granted(joined.group, joined.grant, with_bob, bob.logs.sign)
    admins = tuple(msgspec.structs.replace(one, admin=True) for one in joined.members)
    by_bob = msgspec.structs.replace(by_alice, author=bob.logs.me(joined).sender, members=admins, grant=forged)
    by_bob.check()
    for taken, signer in ((by_alice, bob), (by_bob, bob), (by_bob, alice)):
        with pytest.raises(NotAllowed):
            bob.logs.accept(sent(taken, signer, SECOND), "alice", LATER)
    assert bob.logs.edition(joined.group) == joined


def test_an_edition_may_be_handed_on_by_any_agent(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = following(joined, alice, FIRST, name="renamed")
    assert bob.logs.accept(sent(later, alice, FIRST), "carol", LATER)


def test_an_agent_that_the_owner_makes_admin_is_believed_also_by_those_that_did_not_read_of_it(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition
) -> None:
    with_carol = with_member(joined, carol, alice, FIRST, admin=True)
    later = following(with_carol, carol, FIRST, name="renamed")
    assert bob.logs.accept(sent(later, carol, FIRST), "carol", NOW)
    assert not bob.logs.accept(sent(with_carol, alice, FIRST), "alice", LATER)
    assert bob.logs.edition(joined.group) == later


def test_a_later_edition_holds_without_those_before_it(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = joined
    for number in range(20):
        later = following(later, alice, FIRST, name=f"name{number}")
    assert bob.logs.accept(sent(later, alice, FIRST), "alice", LATER)
    assert bob.logs.edition(joined.group) == later


def test_an_admin_that_uses_up_the_numbers_is_stopped_by_the_owner(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    last = msgspec.structs.replace(following(three, carol, FIRST, name="last"), number=1 << 50)
    assert bob.logs.accept(sent(last, carol, FIRST), "carol", NOW)
    removal = without(three, "carol", alice, SECOND)
    assert removal.number < last.number
    assert bob.logs.accept(sent(removal, alice, SECOND), "alice", LATER)
    assert bob.logs.edition(three.group) == removal


def test_an_older_edition_changes_nothing(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = following(joined, alice, FIRST, name="renamed")
    assert bob.logs.accept(sent(later, alice, FIRST), "alice", NOW)
    for old in (joined, later):
        assert not bob.logs.accept(sent(old, alice, FIRST), "alice", LATER)
    assert bob.logs.edition(joined.group) == later


def test_an_older_edition_that_comes_late_still_brings_its_key(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    second = following(joined, alice, SECOND, epoch=2)
    third = following(second, alice, THIRD, epoch=3)
    assert bob.logs.accept(sent(third, alice, THIRD), "alice", NOW)
    with pytest.raises(EarlierEpoch):
        bob.logs.keys(third, 2)
    assert not bob.logs.accept(sent(second, alice, SECOND), "alice", LATER)
    assert bob.logs.keys(third, 2) == [SECOND]
    assert bob.logs.edition(joined.group) == third


def test_an_edition_with_another_configuration_or_owner_is_refused(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    for change in ({"depth": 3}, {"quota_bytes": 2 << 30}):
        with pytest.raises(NotAllowed):
            bob.logs.accept(sent(following(joined, alice, FIRST, **change), alice, FIRST), "alice", LATER)
    bobs = first_edition("team", [bob, alice], key=FIRST)
    taken = msgspec.structs.replace(bobs, group=joined.group, number=9)
    members = tuple(
        new_member(joined.group, one.binding, one.handle, one.public_key, admin=one.admin) for one in bobs.members
    )
    taken = msgspec.structs.replace(taken, members=members, author=members[0].sender, grant=None)
    taken = bob.logs.granted(taken, None)
    taken.check()
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(taken, bob, FIRST), "alice", LATER)
    assert bob.logs.edition(joined.group) == joined


def test_an_edition_that_contradicts_itself_is_not_stored(alice: Mailbox, edition: GroupEdition) -> None:
    (first, second) = edition.members
    broken = msgspec.structs.replace(edition, members=(first, msgspec.structs.replace(second, sender=b"borrowed")))
    with pytest.raises(InvalidArgument):
        alice.logs.publish(broken, FIRST, NOW)
    assert alice.logs.editions() == []


def test_mail_that_brings_no_edition_is_dropped_and_holds_up_no_other(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    good = encode_mail(sent(edition, alice, FIRST))
    for body in (good[:1] + b"\xc1" * 400, good[:-1], good):
        bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.editions() == [edition]
    assert take_editions(bob) == 0


def test_an_admin_that_sends_keys_without_end_keeps_out_none_that_is_needed(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers = following(three, carol, FIRST, name="hers")
    keys = [(1, EpochKey.generate()) for _ in range(40)]
    for _ in range(2):
        bob.logs.accept(sent(hers, carol, FIRST, *keys), "carol", NOW)
    assert len(bob.logs.keys(hers, 1)) == 16
    second = following(hers, alice, SECOND, name="second")
    assert bob.logs.accept(sent(second, alice, SECOND), "alice", LATER)
    assert bob.logs.key(second) == SECOND


# Two admins at once, and admins that were removed.


@pytest.fixture
def three(alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition) -> GroupEdition:
    """Alice, Bob and Carol have the second edition; Alice made the group, and made Carol another admin."""
    second = with_member(joined, carol, alice, FIRST, admin=True)
    share(second, FIRST, alice, bob, carol)
    return second


def test_a_removed_admin_is_not_believed_by_those_that_read_the_removal_later(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    removal = without(three, "carol", alice, SECOND)
    taken = following(three, carol, THIRD, epoch=2)
    later = following(taken, carol, THIRD, name="hers")
    for edition in (taken, later):  # nothing shows yet that she was removed
        assert bob.logs.accept(sent(edition, carol, THIRD), "carol", NOW)
    assert bob.logs.accept(sent(removal, alice, SECOND), "alice", LATER)
    assert (bob.logs.edition(three.group), bob.logs.key(removal)) == (removal, SECOND)
    again = following(later, carol, THIRD, name="again")
    assert not bob.logs.accept(sent(again, carol, FIRST, (3, THIRD)), "carol", LATER)
    assert bob.logs.edition(three.group) == removal
    with pytest.raises(LaterEpoch):
        bob.logs.keys(removal, 3)


def test_an_admin_that_was_removed_is_believed_no_more(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    gone = without(three, "carol", alice, SECOND)
    assert bob.logs.accept(sent(gone, alice, SECOND), "alice", LATER)
    own = next(one for one in three.members if one.handle == "carol")
    back = msgspec.structs.replace(gone, members=three.members, past=()).following(gone, own.sender, SECOND)
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(msgspec.structs.replace(back, grant=gone.grant), carol, SECOND), "carol", LATER)
    as_before_ = msgspec.structs.replace(back, grant=three.grant)
    assert not bob.logs.accept(sent(as_before_, carol, SECOND), "carol", LATER)
    assert bob.logs.edition(three.group) == gone


def test_only_the_owner_makes_and_removes_admins(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    with pytest.raises(Denied, match="only alice"):
        without(three, "alice", carol, SECOND)
    with pytest.raises(Denied, match="only alice"):
        with_member(three, bob, carol, FIRST, admin=True)
    own = alice.logs.me(three)
    with pytest.raises(Denied, match="stay its admin"):
        following(three, alice, FIRST, members=(msgspec.structs.replace(own, admin=False), *three.members[1:]))


@pytest.mark.parametrize("revoked", [False, True])
def test_a_thief_of_a_replaced_key_of_the_owner_is_not_believed_whatever_it_signs(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition, revoked: bool
) -> None:
    stolen = three
    for _ in range(3):  # with the key that Alice has now
        stolen = without(stolen, "carol", alice, THIRD)
        stolen = with_member(stolen, carol, alice, THIRD, admin=True)
    by_thief, old = sent(stolen, alice, THIRD), alice.identity.pair.public.signer_id
    assert bob.logs.accept(by_thief, "alice", NOW)
    alice.key_rotation.begin(NOW, kem=False, signer=True)
    alice.key_rotation.finish(NOW)
    mine = following(three, alice, SECOND, epoch=2)
    assert stolen.grant is not None
    assert mine.grant is not None
    assert stolen.grant.generation > mine.grant.generation
    mail = sent(mine, alice, SECOND)
    for box in (bob, carol):
        with pytest.raises(UnknownSigner) as unknown:
            box.logs.accept(mail, "alice", LATER)
        assert unknown.value.agent == "alice"
        link = alice.own_keys.newest()
        assert link is not None
        box.pinned_keys.advance("alice", [link], LATER, [old] if revoked else [])
        assert box.logs.accept(mail, "alice", LATER)
        with pytest.raises(UnknownSigner) if revoked else contextlib.nullcontext():
            assert not box.logs.accept(by_thief, "alice", LATER)
        assert box.logs.edition(three.group) == mine


def test_no_admin_gives_another_member_a_new_handle_not_even_the_owner(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    for at in range(2):
        members = [*three.members]
        members[at] = msgspec.structs.replace(members[at], handle="zoe")
        renamed = three.following(three, carol.logs.me(three).sender, FIRST)
        renamed = msgspec.structs.replace(renamed, members=tuple(members))
        with pytest.raises(NotAllowed):
            bob.logs.accept(sent(renamed, carol, FIRST), "carol", LATER)
    assert bob.logs.edition(three.group) == three


def test_an_edition_under_a_key_that_its_owner_never_had_waits_until_the_owner_is_looked_up(
    agent: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    first = first_edition("team", [alice, bob], key=FIRST)
    alices = [Admin(one.sender, one.handle, bob.identity.pair.public.ed25519) for one in first.members if one.admin]
    forged = msgspec.structs.replace(first, grant=granted(first.group, None, tuple(alices), bob.logs.sign))
    bob.receive(send(body=encode_mail(sent(forged, bob, FIRST)), channel_id=EDITIONS, control=True), now=NOW)
    assert (take_editions(bob), bob.logs.editions()) == (0, [])
    assert len(bob.inbox.controls(Control.GROUP_KEY)) == 1


def test_an_admin_that_was_removed_brings_nothing_more_past_the_allowlist(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition, send: Send
) -> None:
    later = encode_mail(sent(following(three, alice, FIRST, name="later"), alice, FIRST))
    assert [bob.logs.continues(later, sender) for sender in ("alice", "carol", "dave")] == [True, True, False]
    assert bob.logs.accept(sent(without(three, "carol", alice, SECOND), alice, SECOND), "carol", LATER)
    assert [bob.logs.continues(later, sender) for sender in ("alice", "carol", "dave")] == [True, False, False]


def test_an_admin_whose_new_key_the_owner_has_not_said_keeps_what_others_send(
    member: Callable[[str], Mailbox],
    alice: Mailbox,
    bob: Mailbox,
    carol: Mailbox,
    three: GroupEdition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hers = with_member(three, member("dave"), carol, FIRST)
    carol.logs.publish(hers, FIRST, NOW)
    theirs = higher_than(hers, lambda name: following(three, alice, FIRST, name=name))
    mail = sent(theirs, alice, FIRST)
    another = dataclasses.replace(carol.identity, pair=bob.identity.pair)
    monkeypatch.setattr(carol.own_keys, "identity", another)
    assert carol.logs.accept(mail, "alice", LATER)
    assert carol.logs.find(theirs.name) == theirs
    assert "its change does not fit to yours" in carol.notices.take()[-1].text


@pytest.mark.parametrize("seed", range(4))
def test_members_come_to_the_same_edition_whatever_the_order_of_mail_and_whatever_was_lost_at_first(
    member: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition, seed: int
) -> None:
    chance, dave = random.Random(seed), member("dave")
    four = with_member(three, dave, alice, FIRST, admin=True)
    share(four, FIRST, alice, bob, carol, dave)
    boxes, admins = {box.identity.handle: box for box in (alice, bob, carol, dave)}, (alice, carol, dave)
    added, removed, at = list[str](), set[str](), LATER
    for round_ in range(6):
        for author in admins:  # all at once
            before = newest_of(author, four)
            others = [one for one in before.members if one.handle.startswith("agent")]
            if others and chance.random() < 0.4:
                gone = chance.choice(others)
                removed.add(gone.handle)
                after = without(before, gone.handle, author, key := EpochKey.generate())
            else:
                name, key = f"agent-{author.identity.handle}-{round_}", author.logs.key(before)
                added.append(name)
                new = new_member(before.group, before.new_binding(name), name, Key(name.encode()).public, admin=False)
                after = following(before, author, key, members=(*before.members, new))
            author.logs.publish(after, key, NOW)
        last = round_ == 5
        for _ in range(16 if last else 2):
            mails = [
                (author, edition, handle, body)
                for author in admins
                for edition in [newest_of(author, four)]
                for handle, body in author.logs.untold(edition)
            ]
            chance.shuffle(mails)
            for author, edition, handle, body in mails:
                if chance.random() < 0.4 and not last:
                    continue  # it comes the next time
                at += timedelta(seconds=1)
                author.logs.note_told(edition, [handle])
                if handle in boxes:
                    boxes[handle].logs.accept(decode_mail(body), author.identity.handle, at)
    assert len({newest_of(box, four).digest for box in boxes.values()}) == 1
    assert [one for one in mails if one[2] in boxes] == [], "they came to rest"
    handles = {one.handle for one in newest_of(bob, four).members}
    assert handles == {*boxes, *added} - removed


def higher_than(other: GroupEdition, make: Callable[[str], GroupEdition]) -> GroupEdition:
    """The edition that holds against another one that was made at the same time."""
    return next(made for number in range(1000) if (made := make(f"name{number}")).order > other.order)


def newest_of(box: Mailbox, edition: GroupEdition) -> GroupEdition:
    found = box.logs.edition(edition.group)
    assert found is not None
    return found


def test_messages_under_the_key_of_an_edition_that_does_not_hold_are_opened(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers = following(three, carol, SECOND, name="hers", epoch=2)
    theirs = higher_than(hers, lambda name: following(three, alice, THIRD, name=name, epoch=2))
    carol.logs.publish(hers, SECOND, NOW)
    place = GroupPlace(three.group, carol.logs.me(hers).sender, 1, 0)
    sealed = carol.logs.seal(hers, place, b"before she heard of theirs")
    assert bob.logs.accept(sent(theirs, alice, THIRD), "alice", NOW)
    with pytest.raises(OpenFailed):
        bob.logs.unseal(theirs, place, sealed)
    assert not bob.logs.accept(sent(hers, carol, SECOND), "carol", LATER)
    assert bob.logs.unseal(theirs, place, sealed) == b"before she heard of theirs"
    assert bob.logs.key(theirs) == THIRD


def test_what_an_admin_changed_at_the_same_time_as_another_one_is_changed_again(
    member: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    dave, erin = member("dave"), member("erin")
    hers, theirs = with_member(three, dave, carol, FIRST), with_member(three, erin, alice, FIRST)
    alice.logs.publish(theirs, FIRST, NOW)
    alice.logs.settle_at(theirs, None)
    removal = without(hers, "bob", carol, SECOND)
    assert alice.logs.accept(sent(removal, carol, SECOND), "carol", LATER)
    both = alice.logs.find("team")
    assert [one.handle for one in both.members] == ["alice", "carol", "dave", "erin"]
    assert [one.handle for one in both.past] == ["bob", "erin"]  # Erin may have written under her first entry
    assert both.epoch == 3
    assert alice.logs.key(both) not in (FIRST, SECOND)
    assert len({one.binding for one in (*both.members, *both.past)}) == 6
    assert set(untold(alice, both)) == {"carol", "dave", "erin"}
    assert alice.logs.unsettled(LATER) == [base58(three.group)]
    assert alice.notices.take() == [], "nothing is left out"
    share(hers, FIRST, carol)
    share(removal, SECOND, carol)
    assert not carol.logs.accept(sent(theirs, alice, FIRST), "alice", LATER)
    mails = dict(alice.logs.untold(both))
    for box in (carol, dave, erin):
        assert box.logs.accept(decode_mail(mails[box.identity.handle]), "alice", LATER)
        assert box.logs.find("team") == both


def test_what_is_sealed_under_a_key_that_does_not_hold_is_opened_by_all_that_stay(
    member: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    dave = member("dave")
    four = with_member(three, dave, alice, FIRST)
    share(four, FIRST, alice, bob, carol, dave)
    for box in (bob, carol, dave):
        alice.logs.note_told(four, [box.identity.handle])
    mine = without(four, "bob", alice, SECOND)
    theirs = higher_than(mine, lambda name: following(four, carol, FIRST, name=name))
    alice.logs.publish(mine, SECOND, NOW)
    place = GroupPlace(four.group, alice.logs.me(mine).sender, 1, 0)
    sealed = alice.logs.seal(mine, place, b"under the second key")
    for box in (alice, carol, dave):
        assert box.logs.accept(sent(theirs, carol, FIRST), "carol", LATER)
    again = newest_of(alice, four)
    assert again.member("bob") is None
    mails = {handle: decode_mail(body) for handle, body in alice.logs.untold(again)}
    for box in (carol, dave):
        assert box.logs.accept(mails[box.identity.handle], "alice", LATER)
        assert box.logs.unseal(again, place, sealed) == b"under the second key"


def test_a_member_that_was_removed_stays_away_also_if_others_went_on_from_the_removal(
    member: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    dave = member("dave")
    four = with_member(three, dave, alice, FIRST, admin=True)
    share(four, FIRST, alice, bob, carol, dave)
    removal = without(four, "bob", alice, SECOND)
    share(removal, SECOND, alice, dave)
    on = following(removal, dave, SECOND, name="on")
    share(on, SECOND, dave, alice)
    away = four
    for number in range(3):  # Carol has heard of nothing
        away = following(away, carol, FIRST, name=f"name{number}")
    assert alice.logs.accept(sent(away, carol, FIRST), "carol", LATER)
    again = newest_of(alice, four)
    assert (again.name, again.member("bob"), again.epoch) == ("name2", None, 3)


def test_a_member_that_an_admin_removed_in_what_does_not_hold_is_removed_again(
    alice: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers = without(three, "bob", carol, SECOND)
    theirs = higher_than(hers, lambda name: following(three, alice, FIRST, name=name))
    carol.logs.publish(hers, SECOND, NOW)
    assert carol.logs.accept(sent(theirs, alice, FIRST), "alice", LATER)
    again = carol.logs.find(theirs.name)
    assert (again.lineage[0], [one.handle for one in again.past]) == (theirs.digest, ["bob"])
    assert carol.logs.key(again) not in (FIRST, SECOND)


def test_a_change_that_the_other_admin_made_too_is_not_made_again(
    alice: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers, same = without(three, "bob", carol, SECOND), without(three, "bob", alice, THIRD)
    theirs = higher_than(hers, lambda name: msgspec.structs.replace(same, name=name))
    carol.logs.publish(hers, SECOND, NOW)
    assert carol.logs.accept(sent(theirs, alice, THIRD), "alice", LATER)
    assert carol.logs.find(theirs.name) == theirs


def test_an_admin_whose_change_does_not_hold_because_it_was_removed_changes_nothing_more(
    member: Callable[[str], Mailbox], alice: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers, removal = with_member(three, member("dave"), carol, FIRST), without(three, "carol", alice, SECOND)
    carol.logs.publish(hers, FIRST, NOW)
    assert carol.logs.accept(sent(removal, alice, SECOND), "alice", LATER)
    assert carol.logs.find("team") == removal


def test_an_edition_that_another_process_overtook_is_not_published(alice: Mailbox, joined: GroupEdition) -> None:
    first, second = (following(joined, alice, FIRST, name=name) for name in ("first", "second"))
    alice.logs.publish(first, FIRST, NOW)
    with pytest.raises(EpochConflict):
        alice.logs.publish(second, FIRST, NOW)
    alice.logs.settle_at(joined, None)  # of the one before
    assert alice.logs.unsettled(LATER) == [base58(joined.group)]
    assert alice.logs.find("first") == first


def untold(box: Mailbox, edition: GroupEdition) -> dict[str, list[int]]:
    """The members that have yet to be sent an edition, each with the epochs whose keys it gets."""
    return {handle: [epoch for epoch, _ in decode_mail(body).keys] for handle, body in box.logs.untold(edition)}


def test_each_member_is_to_be_told_of_each_edition_once(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    assert untold(alice, three) == {"bob": [1], "carol": [1]}
    alice.logs.note_told(three, ["bob"])
    assert untold(alice, three) == {"carol": [1]}
    later = following(three, alice, SECOND, epoch=2)
    alice.logs.publish(later, SECOND, NOW)
    alice.logs.note_told(three, ["carol"])  # of the one before
    assert untold(alice, later) == {"bob": [2], "carol": [1, 2]}
    alice.logs.note_told(later, ["bob"])
    alice.logs.note_untold(later)
    assert untold(alice, later) == {"bob": [2], "carol": [1, 2]}
    assert carol.logs.accept(sent(later, alice, SECOND), "alice", LATER)
    assert (untold(carol, later), bob.logs.unsettled(LATER)) == ({}, [])


def test_a_member_gets_the_keys_of_epochs_that_it_was_in(
    member: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    dave = member("dave")
    alice.logs.note_told(three, ["bob", "carol"])
    second = msgspec.structs.replace(with_member(three, dave, alice, SECOND), epoch=2)
    alice.logs.publish(second, SECOND, NOW)
    third = following(second, alice, THIRD, epoch=3)
    alice.logs.publish(third, THIRD, NOW)
    mails = {handle: decode_mail(body) for handle, body in alice.logs.untold(third)}
    for box in (bob, dave):
        mail = mails[box.identity.handle]
        assert mail.keys == [(2, SECOND), (3, THIRD)]
        assert box.logs.accept(mail, "alice", LATER)
        assert box.logs.keys(third, 2) == [SECOND]
    with pytest.raises(EarlierEpoch):
        dave.logs.keys(third, 1)


# Keys.


def test_a_removed_member_has_no_key_of_what_follows(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    gone = without(joined, "bob", alice, SECOND)
    alice.logs.publish(gone, SECOND, LATER)
    me = alice.logs.me(gone)
    place = GroupPlace(gone.group, me.sender, 1, 0)
    sealed = alice.logs.seal(gone, place, b"for those who are left")
    with pytest.raises(LaterEpoch):
        bob.logs.unseal(joined, place, sealed)
    with pytest.raises(NotMember):
        bob.logs.me(gone)


def test_a_new_member_is_told_that_what_came_before_is_in_a_snapshot(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition
) -> None:
    alone = first_edition("team", [alice], key=FIRST)
    alice.logs.publish(alone, FIRST, NOW)
    place = GroupPlace(alone.group, alice.logs.me(alone).sender, 1, 0)
    sealed = alice.logs.seal(alone, place, b"before Bob came")
    new = new_member(alone.group, 2, "bob", bob.identity.pair.public.ed25519, admin=False)
    second = following(alone, alice, SECOND, members=(*alone.members, new), epoch=2)
    bob.logs.accept(sent(second, alice, SECOND), "alice", NOW)
    with pytest.raises(EarlierEpoch) as refused:
        bob.logs.unseal(second, place, sealed)
    assert "snapshot" in str(refused.value.hint)


def test_members_open_what_a_member_sealed_and_no_member_poses_as_another(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    alices, bobs = (GroupPlace(joined.group, box.logs.me(joined).sender, 1, 0) for box in (alice, bob))
    assert bob.logs.unseal(joined, alices, alice.logs.seal(joined, alices, b"true")) == b"true"
    with pytest.raises(OpenFailed):
        alice.logs.unseal(joined, alices, bob.logs.seal(joined, bobs, b"moved"))
    with pytest.raises(SignatureFailed):
        alice.logs.unseal(joined, alices, bob.logs.seal(joined, alices, b"posed"))
    stranger = GroupPlace(joined.group, b"stranger", 1, 0)
    with pytest.raises(OpenFailed):
        alice.logs.unseal(joined, stranger, bob.logs.seal(joined, stranger, b"of none"))


def test_what_a_past_member_wrote_still_opens(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    place = GroupPlace(joined.group, bob.logs.me(joined).sender, 1, 0)
    sealed = bob.logs.seal(joined, place, b"when I was a member")
    gone = without(joined, "bob", alice, SECOND)
    alice.logs.publish(gone, SECOND, LATER)
    assert alice.logs.unseal(gone, place, sealed) == b"when I was a member"


def test_keys_are_nowhere_in_clear_on_the_disk(home: Path, alice: Mailbox, bob: Mailbox, send: Send) -> None:
    secret = b"sixteen and then sixteen others!"
    edition = first_edition("team", [alice, bob], key=EpochKey.of(secret))
    body = encode_mail(sent(edition, alice, EpochKey.of(secret)))
    bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    take_editions(bob)
    replica = opened_replica(bob.logs, edition, Journal())
    assert bob.logs.key(edition).secret == secret
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files)
    for path in files:
        content = path.read_bytes()
        assert secret not in content, path
        assert secret.hex().encode() not in content, path
    replica.database.close()


def test_a_key_opens_only_in_the_row_that_it_was_sealed_for(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    bob.logs.accept(sent(following(joined, alice, SECOND, epoch=2), alice, SECOND), "alice", LATER)
    with bob.database.transaction() as tx:
        tx.execute("UPDATE log_keys SET (secret_nonce, secret) = (SELECT secret_nonce, secret FROM log_keys LIMIT 1)")
    opened = 0
    for epoch in (1, 2):
        try:
            bob.logs.keys(bob.logs.find("team"), epoch)
        except AngeliaError:
            continue
        opened += 1
    assert opened == 1


# From before editions were signed.


def as_before(box: Mailbox, edition: GroupEdition, *, untold: bool) -> None:
    """Puts a group into a mailbox as version 7 had it."""
    gid = base58(edition.group)
    before = list(msgspec.msgpack.decode(msgspec.msgpack.encode(edition)))[:10]
    sealed = box.logs._local.encrypt("log_keys", f"{gid}/1", FIRST.secret)
    box.close()
    with contextlib.closing(sqlite3.connect(box.directory / FILE)) as old:
        for table in ("logs", "log_keys", "log_untold"):
            old.execute(f"DROP TABLE {table}")
        old.executescript((Path(database.__file__).parent / "schema_7.sql").read_text())
        row = (gid, edition.name, edition.number, msgspec.msgpack.encode(before), "alice", stamp(NOW), untold)
        old.execute("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        old.execute("INSERT INTO log_keys VALUES (?, 1, ?, ?, ?)", (gid, *sealed, stamp(NOW)))
        old.execute("PRAGMA user_version = 7")
        old.commit()


def test_groups_from_before_editions_were_signed_go_on(
    home: Path, alice: Mailbox, bob: Mailbox, edition: GroupEdition
) -> None:
    unsigned = msgspec.structs.replace(edition, number=4, author=b"", key_id=None, grant=None)
    renamed = msgspec.structs.replace(unsigned, number=5, name="renamed")
    as_before(alice, renamed, untold=True)
    as_before(bob, unsigned, untold=False)  # which had not read the last one yet
    with (
        Mailbox(home, identity.load(home, "alice", lambda: ""), LATER) as alices,
        Mailbox(home, identity.load(home, "bob", lambda: ""), LATER) as bobs,
    ):
        assert (alices.logs.editions(), bobs.logs.editions()) == ([renamed], [unsigned])
        assert alices.logs.key(renamed) == bobs.logs.key(unsigned) == FIRST
        assert alices.logs.unsettled(LATER) == [base58(edition.group)]
        place = GroupPlace(edition.group, edition.members[0].sender, 1, 0)
        sealed = alices.logs.seal(renamed, place, b"from before")
        signed = following(renamed, alices, FIRST)
        alices.logs.publish(signed, FIRST, LATER)
        (mail,) = [body for _, body in alices.logs.untold(signed)]
        with pytest.raises(NotAllowed):
            bobs.logs.accept(sent(signed, bobs, FIRST), "alice", LATER)
        assert bobs.logs.accept(decode_mail(mail), "alice", LATER)
        assert bobs.logs.edition(edition.group) == signed
        assert bobs.logs.unseal(signed, place, sealed) == b"from before"


# What there is, and what is forgotten.


def test_editions_and_keys_are_there_after_a_restart(home: Path, bob: Mailbox, joined: GroupEdition) -> None:
    bob.close()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), LATER) as again:
        assert again.logs.editions() == [joined]
        assert again.logs.key(joined) == FIRST


def test_a_group_is_found_by_its_name_or_the_beginning_of_its_id(alice: Mailbox, joined: GroupEdition) -> None:
    text = base58(joined.group)
    assert alice.logs.find("team") == alice.logs.find(text) == alice.logs.find(text[:8]) == joined
    for name in ("nothing", text[:7], ""):
        with pytest.raises(NoGroup):
            alice.logs.find(name)


def test_two_groups_of_one_name_are_told_apart_by_their_ids(alice: Mailbox, bob: Mailbox) -> None:
    both = [first_edition("team", [alice], key=FIRST) for _ in range(2)]
    for one in both:
        alice.logs.publish(one, FIRST, NOW)
    with pytest.raises(Conflict) as refused:
        alice.logs.find("team")
    for one in both:
        assert base58(one.group)[:12] in str(refused.value.hint)
        assert alice.logs.find(base58(one.group)[:12]) == one


def test_nothing_of_a_group_is_left_once_it_is_forgotten(home: Path, alice: Mailbox, joined: GroupEdition) -> None:
    other = first_edition("other", [alice], key=SECOND)
    alice.logs.publish(other, SECOND, NOW)
    for one in (joined, other):
        opened_replica(alice.logs, one, Journal()).database.close()
    alice.logs.forget(joined.group)
    assert alice.logs.editions() == [other]
    with pytest.raises(EarlierEpoch):
        alice.logs.keys(joined, 1)
    assert alice.logs.key(other) == SECOND
    left = {path.name.partition(".")[0] for path in home.rglob("*.db*") if path.parent.name == "logs"}
    assert left == {base58(other.group)}


def test_a_group_that_was_forgotten_can_be_joined_again(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    bob.logs.forget(joined.group)
    later = following(joined, alice, SECOND, epoch=2)
    assert bob.logs.accept(sent(later, alice, SECOND), "alice", LATER)
    assert bob.logs.key(later) == SECOND
