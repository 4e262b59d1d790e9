"""Groups in the mailbox: which editions a member believes, which keys it has, and what it forgets."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from angelia.mailbox.log_history import MOST_HELD, MOST_OF_SENDER

from angelia.client.log_editions import take_editions
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, SignatureFailed
from angelia.envelope.sealing import EpochKey
from angelia.errors import AngeliaError, Conflict, EpochConflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model.editions import EDITIONS, GroupEdition, decode_mail, encode_mail, new_member
from angelia.grouplog.model.ids import MAX_SEQ, base58
from angelia.mailbox import database, identity
from angelia.mailbox.database import FILE, stamp
from angelia.mailbox.log_journal import Journal
from angelia.mailbox.log_replica import opened_replica
from angelia.mailbox.logs import EarlierEpoch, LaterEpoch
from angelia.mailbox.mailbox import Mailbox
from log_members import first_edition, following, node_of, sent, share, with_member, without

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
FIRST, SECOND, THIRD = (EpochKey.of(byte * 32) for byte in (b"\x11", b"\x22", b"\x33"))
Send = Callable[..., bytes]


@pytest.fixture
def carol(agent: Callable[[str], Mailbox]) -> Mailbox:
    return agent("carol")


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
    admins = tuple(msgspec.structs.replace(one, admin=True) for one in joined.members)
    for author, signer in ((bob, bob), (alice, bob), (bob, alice)):
        taken = following(joined, author, SECOND, members=admins, epoch=2)
        with pytest.raises(NotAllowed):
            bob.logs.accept(sent(taken, signer, SECOND), "alice", LATER)
    assert bob.logs.edition(joined.group) == joined


def test_an_edition_may_be_handed_on_by_any_agent(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = following(joined, alice, FIRST, name="renamed")
    assert bob.logs.accept(sent(later, alice, FIRST), "carol", LATER)


def test_an_agent_that_an_edition_makes_admin_is_believed_from_the_next_one_on(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition
) -> None:
    with_carol = with_member(joined, carol, alice, FIRST, admin=True)
    later = following(with_carol, carol, FIRST, name="renamed")
    assert not bob.logs.accept(sent(later, carol, FIRST), "carol", NOW)  # what leads to it has not come
    assert bob.logs.edition(joined.group) == joined
    assert bob.logs.accept(sent(with_carol, alice, FIRST), "alice", LATER)
    assert bob.logs.edition(joined.group) == later


def test_a_later_edition_waits_for_those_that_lead_to_it(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    way = [joined]
    for number in range(1 + MOST_OF_SENDER):
        way.append(following(way[-1], alice, FIRST, name=f"name{number}"))
    for one in reversed(way[2:]):
        assert not bob.logs.accept(sent(one, alice, FIRST), "alice", LATER)
    assert bob.logs.accept(sent(way[1], alice, FIRST), "alice", LATER)
    assert bob.logs.edition(joined.group) == way[-1]


def test_a_number_far_ahead_is_not_believed_without_what_leads_to_it(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    later = following(joined, alice, FIRST)
    far = msgspec.structs.replace(later, number=MAX_SEQ)
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(far, alice, FIRST), "alice", NOW)
    unknown = msgspec.structs.replace(far, parent=bytes(32))
    assert not bob.logs.accept(sent(unknown, alice, FIRST), "alice", NOW)
    assert bob.logs.accept(sent(later, alice, FIRST), "alice", LATER)


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
    both = [*sent(second, alice, None), *sent(third, alice, THIRD)]
    assert bob.logs.accept(both, "alice", NOW)
    with pytest.raises(EarlierEpoch):
        bob.logs.keys(third, 2)
    assert not bob.logs.accept(sent(second, alice, SECOND), "alice", LATER)
    assert bob.logs.keys(third, 2) == [SECOND]
    assert bob.logs.edition(joined.group) == third


def test_an_edition_that_takes_back_key_or_configuration_is_refused(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    second = following(joined, alice, SECOND, epoch=2)
    bob.logs.accept(sent(second, alice, SECOND), "alice", NOW)
    for key, change in ((FIRST, {"epoch": 1}), (THIRD, {}), (SECOND, {"depth": 3}), (SECOND, {"quota_bytes": 2 << 30})):
        with pytest.raises(NotAllowed):
            bob.logs.accept(sent(following(second, alice, key, **change), alice, key), "alice", LATER)
    assert (bob.logs.edition(joined.group), bob.logs.key(second)) == (second, SECOND)


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


def kept(box: Mailbox) -> tuple[int, int]:
    """How many editions and keys a mailbox has."""
    with box.database.transaction() as tx:
        editions = tx.execute("SELECT count(*) FROM log_editions").fetchone()[0]
        return editions, tx.execute("SELECT count(*) FROM log_keys").fetchone()[0]


def test_no_sender_pushes_out_what_others_sent(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition
) -> None:
    with_carol = with_member(joined, carol, alice, FIRST, admin=True)
    early = following(with_carol, carol, FIRST, name="early")
    bob.logs.accept(sent(early, carol, FIRST), "carol", NOW)
    for number in range(3 * MOST_OF_SENDER):
        key = EpochKey.generate()
        unplaced = msgspec.structs.replace(with_carol, parent=key.secret)
        false = following(unplaced, carol, key, name=f"false{number}", epoch=2)
        bob.logs.accept(sent(false, carol, key), "mallory", LATER + timedelta(seconds=number))
    assert kept(bob) == (2 + MOST_OF_SENDER, 1 + MOST_OF_SENDER)
    assert bob.logs.accept(sent(with_carol, alice, FIRST), "alice", LATER)
    assert bob.logs.edition(joined.group) == early
    assert kept(bob) == (3 + MOST_OF_SENDER, 1 + MOST_OF_SENDER)
    false = following(with_carol, carol, SECOND, name="false", epoch=2)
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(false, bob, SECOND), "mallory", LATER)  # it would keep out hers


def test_what_is_kept_of_editions_is_bounded_and_what_is_made_of_long_past_ones_changes_nothing(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition, three: GroupEdition
) -> None:
    later = three
    for number in range(2 * MOST_HELD):
        later = following(later, carol, FIRST, name=f"name{number}")
        assert bob.logs.accept(sent(later, carol, FIRST), "carol", LATER)
    assert kept(bob) == (MOST_HELD, 1)
    for before in (joined, three):
        late = following(before, alice, FIRST, name="late")
        assert not bob.logs.accept(sent(late, alice, FIRST), "alice", LATER)
    assert bob.logs.edition(three.group) == later
    on = following(later, alice, FIRST, name="on")
    assert bob.logs.accept(sent(on, alice, FIRST), "alice", LATER)


# Two admins at once, and admins that were removed.


@pytest.fixture
def three(alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition) -> GroupEdition:
    """Alice, Bob and Carol have the second edition; Alice and Carol are admins, and Alice has been one for longer."""
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
    assert not bob.logs.accept(sent(again, carol, THIRD), "carol", LATER)
    assert bob.logs.edition(three.group) == removal


def test_an_admin_that_was_removed_is_believed_no_more(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    gone = without(three, "carol", alice, SECOND)
    assert bob.logs.accept(sent(gone, alice, SECOND), "alice", LATER)
    own = next(one for one in three.members if one.handle == "carol")
    back = msgspec.structs.replace(gone, members=three.members, past=()).following(gone, own.binding, SECOND)
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(back, carol, SECOND), "carol", LATER)
    unaware = following(three, carol, FIRST, name="renamed")
    assert not bob.logs.accept(sent(unaware, carol, FIRST), "carol", LATER)
    assert bob.logs.edition(three.group) == gone


def test_no_admin_removes_one_that_joined_before_it(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(without(three, "alice", carol, SECOND), carol, SECOND), "carol", NOW)
    assert bob.logs.edition(three.group) == three


def test_an_admin_of_an_edition_that_does_not_hold_now_may_bring_one_that_does(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition, three: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    assert bob.logs.accept(sent(without(three, "carol", alice, SECOND), alice, SECOND), "carol", LATER)
    body = encode_mail(sent(following(three, alice, FIRST, name="also-hers"), alice, FIRST))
    bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    assert bob.logs.continues(body, "carol")
    assert not bob.logs.continues(body, "dave")


def test_an_admin_with_a_new_key_that_no_edition_has_keeps_what_others_send(
    alice: Mailbox, carol: Mailbox, three: GroupEdition, monkeypatch: pytest.MonkeyPatch
) -> None:
    hers = following(three, carol, FIRST, name="hers")
    carol.logs.publish(hers, FIRST, NOW)
    theirs = following(three, alice, FIRST, name="theirs", nodes=(node_of(2),))
    mail = sent(theirs, alice, FIRST)
    monkeypatch.setattr(type(carol.logs), "sign", lambda logs, message: bytes(64))
    assert carol.logs.accept(mail, "alice", LATER)
    assert carol.logs.find("theirs") == theirs


def test_members_come_to_the_same_edition_whatever_the_order_of_mail_and_whatever_was_lost_at_first(
    agent: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    chance = random.Random(7)
    boxes = {box.identity.handle: box for box in (alice, bob, carol)}
    for round_ in range(12):
        for author in (alice, carol):  # both at once
            before = author.logs.edition(three.group)
            assert before is not None
            name = f"{author.identity.handle}-{round_}"
            changed = following(before, author, author.logs.key(before), name=name)
            if chance.random() < 0.3:
                nodes = (*changed.nodes, node_of(2 + round_))
                changed = msgspec.structs.replace(changed, nodes=nodes)
            author.logs.publish(changed, author.logs.key(changed), NOW)
        for _ in range(4):
            mails = [
                (author, handle, body)
                for author in (alice, carol)
                for handle, body in author.logs.untold(newest_of(author, three))
            ]
            chance.shuffle(mails)
            for author, handle, body in mails:
                if chance.random() < 0.4 and round_ < 11:
                    continue  # it comes the next time
                author.logs.note_told(newest_of(author, three), [handle])
                with contextlib.suppress(NotAllowed):
                    boxes[handle].logs.accept(decode_mail(body), author.identity.handle, LATER)
    held = {newest_of(box, three).digest for box in boxes.values()}
    assert len(held) == 1


def newest_of(box: Mailbox, edition: GroupEdition) -> GroupEdition:
    found = box.logs.edition(edition.group)
    assert found is not None
    return found


def test_messages_under_the_key_of_an_edition_that_does_not_hold_are_opened(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers = following(three, carol, SECOND, name="hers", epoch=2)
    theirs = following(three, alice, THIRD, name="theirs", epoch=2)
    carol.logs.publish(hers, SECOND, NOW)
    place = GroupPlace(three.group, carol.logs.me(hers).sender, 1, 0)
    sealed = carol.logs.seal(hers, place, b"before she heard of theirs")
    assert bob.logs.accept(sent(theirs, alice, THIRD), "alice", NOW)
    with pytest.raises(OpenFailed):
        bob.logs.unseal(theirs, place, sealed)
    assert not bob.logs.accept(sent(hers, carol, SECOND), "carol", LATER)
    assert bob.logs.unseal(theirs, place, sealed) == b"before she heard of theirs"
    assert bob.logs.key(theirs) == THIRD


def test_what_the_younger_admin_changed_at_the_same_time_is_changed_again(
    agent: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    dave, erin = agent("dave"), agent("erin")
    hers, theirs = with_member(three, dave, carol, FIRST), with_member(three, erin, alice, FIRST)
    carol.logs.publish(hers, FIRST, NOW)
    removal = without(hers, "bob", carol, SECOND)
    carol.logs.publish(removal, SECOND, NOW)
    carol.logs.settle_at(removal, None)
    assert carol.logs.accept(sent(theirs, alice, FIRST), "alice", LATER)
    both = carol.logs.find("team")
    assert [one.handle for one in both.members] == ["alice", "carol", "erin", "dave"]
    assert [one.handle for one in both.past] == ["dave", "bob"]  # Dave may have written under his first entry
    assert both.epoch == three.epoch + 1
    assert carol.logs.key(both) not in (FIRST, SECOND)
    assert len({one.binding for one in (*both.members, *both.past)}) == 6
    assert sorted(handle for handle, _ in carol.logs.untold(both)) == ["alice", "dave", "erin"]
    assert carol.logs.unsettled(LATER) == [base58(three.group)]
    assert "made again" in carol.notices.take()[-1].text
    alice.logs.publish(theirs, FIRST, NOW)
    assert not alice.logs.accept(sent(hers, carol, FIRST), "carol", LATER)
    mails = dict(carol.logs.untold(both))
    assert alice.logs.accept(decode_mail(mails["alice"]), "carol", LATER)
    assert alice.logs.find("team") == both
    # Dave came with what does not hold now, and Erin with what does.
    for box in (dave, erin):
        assert box.logs.accept(decode_mail(mails[box.identity.handle]), "carol", LATER)
        assert box.logs.find("team") == both


def test_a_member_that_another_admin_removed_in_what_does_not_hold_is_removed_again(
    agent: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    dave = agent("dave")
    four = with_member(three, dave, alice, FIRST, admin=True)
    share(four, FIRST, alice, bob, carol, dave)
    gone = without(four, "bob", dave, SECOND)
    assert carol.logs.accept(sent(gone, dave, SECOND), "dave", NOW)
    late = following(four, alice, FIRST, name="renamed")
    assert carol.logs.accept(sent(late, alice, FIRST), "alice", LATER)
    again = carol.logs.find("renamed")
    assert (again.parent, [one.handle for one in again.past]) == (late.digest, ["bob"])
    assert carol.logs.key(again) not in (FIRST, SECOND)


def test_a_change_that_the_other_admin_made_too_is_not_made_again(
    alice: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers, theirs = without(three, "bob", carol, SECOND), without(three, "bob", alice, THIRD)
    carol.logs.publish(hers, SECOND, NOW)
    assert carol.logs.accept(sent(theirs, alice, THIRD), "alice", LATER)
    assert carol.logs.find("team") == theirs


def test_an_admin_whose_change_does_not_hold_because_it_was_removed_changes_nothing_more(
    agent: Callable[[str], Mailbox], alice: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    hers, removal = with_member(three, agent("dave"), carol, FIRST), without(three, "carol", alice, SECOND)
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


def untold(box: Mailbox, edition: GroupEdition) -> dict[str, list[GroupEdition]]:
    """Which editions each member has yet to be sent."""
    return {handle: [one.signed.edition for one in decode_mail(body)] for handle, body in box.logs.untold(edition)}


def test_each_member_is_to_be_told_of_each_edition_once(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    assert set(untold(alice, three)) == {"bob", "carol"}
    alice.logs.note_told(three, ["bob"])
    assert set(untold(alice, three)) == {"carol"}
    later = following(three, alice, FIRST, name="renamed")
    alice.logs.publish(later, FIRST, NOW)
    alice.logs.note_told(three, ["carol"])  # of the one before
    first, second, third = untold(alice, later)["carol"]
    assert (second, third) == (three, later)
    assert untold(alice, later)["bob"] == [later]
    alice.logs.note_untold(later)
    assert untold(alice, later) == {key: [first, second, third] for key in ("bob", "carol")}
    assert carol.logs.accept(sent(later, alice, FIRST), "alice", LATER)
    assert (untold(carol, later), bob.logs.unsettled(LATER)) == ({}, [])


def test_a_member_gets_the_keys_of_editions_that_it_was_in(
    agent: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, carol: Mailbox, three: GroupEdition
) -> None:
    dave = agent("dave")
    alice.logs.note_told(three, ["bob", "carol"])
    second = following(with_member(three, dave, alice, FIRST), alice, SECOND, epoch=2)
    second = msgspec.structs.replace(second, number=three.number + 1, parent=three.digest)
    alice.logs.publish(second, SECOND, NOW)
    third = following(second, alice, THIRD, epoch=3)
    alice.logs.publish(third, THIRD, NOW)
    mails = {handle: decode_mail(body) for handle, body in alice.logs.untold(third)}
    assert [one.key for one in mails["bob"]] == [SECOND, THIRD]
    assert [one.key for one in mails["dave"]][-2:] == [SECOND, THIRD]
    assert {one.key for one in mails["dave"][:-2]} == {None}
    assert bob.logs.accept(mails["bob"], "alice", LATER)
    assert dave.logs.accept(mails["dave"], "alice", LATER)
    assert (bob.logs.keys(third, 2), dave.logs.keys(third, 2)) == ([SECOND], [SECOND])
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
        for table in ("logs", "log_keys", "log_editions", "log_untold"):
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
    unsigned = msgspec.structs.replace(edition, number=4, author=0, key_id=None)
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
