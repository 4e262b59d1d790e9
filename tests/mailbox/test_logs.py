"""Groups in the mailbox: which editions a member believes, which keys it has, and what it forgets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from angelia.client.log_editions import take_editions
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, SignatureFailed
from angelia.envelope.sealing import EpochKey
from angelia.errors import AngeliaError, Conflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model.editions import EDITIONS, GroupEdition, encode_mail, new_member
from angelia.grouplog.model.ids import base58
from angelia.mailbox import identity
from angelia.mailbox.log_journal import Journal
from angelia.mailbox.log_replica import opened_replica
from angelia.mailbox.logs import EarlierEpoch, LaterEpoch
from angelia.mailbox.mailbox import Mailbox
from log_members import first_edition

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
FIRST, SECOND = EpochKey.of(b"\x11" * 32), EpochKey.of(b"\x22" * 32)
Send = Callable[..., bytes]


@pytest.fixture
def carol(agent: Callable[[str], Mailbox]) -> Mailbox:
    return agent("carol")


@pytest.fixture
def edition(alice: Mailbox, bob: Mailbox) -> GroupEdition:
    """A group of Alice, its admin, and Bob, which no other member has heard of yet."""
    return first_edition("team", [alice, bob])


@pytest.fixture
def joined(alice: Mailbox, bob: Mailbox, edition: GroupEdition) -> GroupEdition:
    """The same group; both have the first edition and the key of epoch 1."""
    alice.logs.store(edition, FIRST, "alice", NOW)
    assert bob.logs.accept(edition, FIRST, "alice", NOW)
    return edition


def next_of(edition: GroupEdition, **values: object) -> GroupEdition:
    return msgspec.structs.replace(edition, number=edition.number + 1, **values)


def without(edition: GroupEdition, handle: str) -> GroupEdition:
    gone = edition.member(handle)
    assert gone is not None
    members = tuple(one for one in edition.members if one is not gone)
    return next_of(edition, members=members, past=(*edition.past, gone), epoch=edition.epoch + 1)


def with_admin(edition: GroupEdition, box: Mailbox) -> GroupEdition:
    key = box.identity.pair.public.ed25519
    new = new_member(edition.group, edition.next_binding, box.identity.handle, key, admin=True)
    return next_of(edition, members=(*edition.members, new))


# Which editions are believed.


def test_the_first_edition_is_accepted_from_an_admin_that_it_lists(bob: Mailbox, edition: GroupEdition) -> None:
    assert bob.logs.accept(edition, FIRST, "alice", NOW)
    assert bob.logs.edition(edition.group) == edition
    assert bob.logs.key(edition, 1) == FIRST


@pytest.mark.parametrize("sender", ["bob", "mallory"])
def test_the_first_edition_is_refused_from_any_other_agent(bob: Mailbox, edition: GroupEdition, sender: str) -> None:
    with pytest.raises(NotAllowed):
        bob.logs.accept(edition, FIRST, sender, NOW)
    assert bob.logs.editions() == []


def test_a_group_that_does_not_list_this_agent_is_refused(bob: Mailbox, alice: Mailbox) -> None:
    with pytest.raises(NotMember):
        bob.logs.accept(first_edition("others", [alice]), FIRST, "alice", NOW)
    assert bob.logs.editions() == []


def test_an_edition_that_came_by_mail_is_taken_over(bob: Mailbox, edition: GroupEdition, send: Send) -> None:
    bob.receive(send(body=encode_mail(edition, FIRST), channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.find("team") == edition
    assert take_editions(bob) == 0


def test_an_edition_of_an_agent_whose_mail_is_not_allowed_is_not_opened(
    bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    with pytest.raises(NotAllowed):
        bob.receive(send(body=encode_mail(edition, FIRST), channel_id=EDITIONS, control=True), now=NOW)
    assert (take_editions(bob), bob.logs.editions()) == (0, [])


def test_a_later_edition_of_an_admin_is_taken_over_also_when_its_other_mail_is_not_allowed(
    bob: Mailbox, joined: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    later = next_of(joined, name="renamed")
    bob.receive(send(body=encode_mail(later, FIRST), channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.find("renamed") == later


def test_an_admin_whose_mail_is_not_allowed_brings_no_other_group_and_no_other_mail(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    other = encode_mail(first_edition("other", [alice, bob]), SECOND)
    for body in (other, other[:1]):
        with pytest.raises(NotAllowed):
            bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    with pytest.raises(NotAllowed):
        bob.receive(send(body=b"plain mail"), now=NOW)
    assert (take_editions(bob), bob.logs.editions()) == (0, [joined])


def test_a_later_edition_replaces_the_one_before(bob: Mailbox, joined: GroupEdition) -> None:
    later = next_of(joined, epoch=2)
    assert bob.logs.accept(later, SECOND, "alice", LATER)
    assert bob.logs.edition(joined.group) == later
    assert (bob.logs.key(later, 1), bob.logs.key(later, 2)) == (FIRST, SECOND)


@pytest.mark.parametrize("sender", ["bob", "mallory"])
def test_a_later_edition_is_refused_from_an_agent_that_is_no_admin(
    bob: Mailbox, joined: GroupEdition, sender: str
) -> None:
    taken = next_of(joined, members=tuple(msgspec.structs.replace(one, admin=True) for one in joined.members))
    with pytest.raises(NotAllowed):
        bob.logs.accept(taken, SECOND, sender, LATER)
    assert bob.logs.edition(joined.group) == joined


def test_an_agent_that_an_edition_makes_admin_is_believed_from_the_next_one_on(
    bob: Mailbox, carol: Mailbox, joined: GroupEdition
) -> None:
    with_carol = with_admin(joined, carol)
    with pytest.raises(NotAllowed):
        bob.logs.accept(with_carol, FIRST, "carol", LATER)
    assert bob.logs.accept(with_carol, FIRST, "alice", LATER)
    assert bob.logs.accept(next_of(with_carol), FIRST, "carol", LATER)


def test_an_admin_that_was_removed_is_believed_no_more(bob: Mailbox, carol: Mailbox, joined: GroupEdition) -> None:
    with_carol = with_admin(joined, carol)
    bob.logs.accept(with_carol, FIRST, "alice", NOW)
    gone = without(with_carol, "alice")
    assert bob.logs.accept(gone, SECOND, "carol", LATER)
    back = next_of(gone, members=with_carol.members, past=())
    with pytest.raises(NotAllowed):
        bob.logs.accept(back, FIRST, "alice", LATER)
    assert bob.logs.edition(joined.group) == gone


def test_an_older_edition_changes_nothing(bob: Mailbox, joined: GroupEdition) -> None:
    later = next_of(joined, name="renamed")
    assert bob.logs.accept(later, FIRST, "alice", NOW)
    assert not bob.logs.accept(joined, FIRST, "alice", LATER)
    assert not bob.logs.accept(later, FIRST, "alice", LATER)
    assert not bob.logs.accept(msgspec.structs.replace(later, name="another"), FIRST, "alice", LATER)
    assert bob.logs.edition(joined.group) == later


def test_an_older_edition_that_comes_late_still_brings_its_key(bob: Mailbox, joined: GroupEdition) -> None:
    second = next_of(joined, epoch=2)
    third = next_of(second, epoch=3)
    bob.logs.accept(third, EpochKey.of(b"\x33" * 32), "alice", NOW)
    with pytest.raises(EarlierEpoch):
        bob.logs.key(third, 2)
    assert not bob.logs.accept(second, SECOND, "alice", LATER)
    assert bob.logs.key(third, 2) == SECOND
    assert bob.logs.edition(joined.group) == third


def test_an_edition_that_goes_back_to_an_earlier_key_is_refused(bob: Mailbox, joined: GroupEdition) -> None:
    second = next_of(joined, epoch=2)
    bob.logs.accept(second, SECOND, "alice", NOW)
    with pytest.raises(Conflict):
        bob.logs.accept(next_of(second, epoch=1), FIRST, "alice", LATER)
    assert bob.logs.edition(joined.group) == second


def test_the_configuration_of_a_group_never_changes(bob: Mailbox, joined: GroupEdition) -> None:
    for change in ({"depth": 3}, {"quota_bytes": 2 << 30}):
        with pytest.raises(Conflict):
            bob.logs.accept(next_of(joined, **change), FIRST, "alice", LATER)
    assert bob.logs.edition(joined.group) == joined


def test_a_key_that_is_here_is_not_replaced_by_another_of_the_same_epoch(bob: Mailbox, joined: GroupEdition) -> None:
    bob.logs.accept(next_of(joined), SECOND, "alice", LATER)
    assert bob.logs.key(joined, 1) == FIRST


def test_an_edition_that_contradicts_itself_is_not_stored(alice: Mailbox, edition: GroupEdition) -> None:
    (first, second) = edition.members
    broken = msgspec.structs.replace(edition, members=(first, msgspec.structs.replace(second, sender=b"borrowed")))
    with pytest.raises(InvalidArgument):
        alice.logs.store(broken, FIRST, "alice", NOW)
    assert alice.logs.editions() == []


def test_mail_that_brings_no_edition_is_dropped_and_holds_up_no_other(
    bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    good = encode_mail(edition, FIRST)
    for body in (good[:1] + b"\xc1" * 400, good[:-1], good):
        bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.editions() == [edition]
    assert take_editions(bob) == 0


# Keys.


def test_a_removed_member_has_no_key_of_what_follows(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    gone = without(joined, "bob")
    alice.logs.store(gone, SECOND, "alice", LATER)
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
    alone = first_edition("team", [alice])
    alice.logs.store(alone, FIRST, "alice", NOW)
    place = GroupPlace(alone.group, alice.logs.me(alone).sender, 1, 0)
    sealed = alice.logs.seal(alone, place, b"before Bob came")
    new = new_member(alone.group, 2, "bob", bob.identity.pair.public.ed25519, admin=False)
    second = next_of(alone, members=(*alone.members, new), epoch=2)
    bob.logs.accept(second, SECOND, "alice", NOW)
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
    gone = without(joined, "bob")
    alice.logs.store(gone, SECOND, "alice", LATER)
    assert alice.logs.unseal(gone, place, sealed) == b"when I was a member"


def test_keys_are_nowhere_in_clear_on_the_disk(
    home: Path, alice: Mailbox, bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    secret = b"sixteen and then sixteen others!"
    bob.receive(send(body=encode_mail(edition, EpochKey.of(secret)), channel_id=EDITIONS, control=True), now=NOW)
    take_editions(bob)
    replica = opened_replica(bob.logs, edition, Journal())
    assert bob.logs.key(edition, 1).secret == secret
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files)
    for path in files:
        content = path.read_bytes()
        assert secret not in content, path
        assert secret.hex().encode() not in content, path
    replica.database.close()


def test_a_key_opens_only_in_the_row_that_it_was_sealed_for(bob: Mailbox, joined: GroupEdition) -> None:
    bob.logs.accept(next_of(joined, epoch=2), SECOND, "alice", LATER)
    with bob.database.transaction() as tx:
        tx.execute("UPDATE log_keys SET (secret_nonce, secret) = (SELECT secret_nonce, secret FROM log_keys LIMIT 1)")
    opened = 0
    for epoch in (1, 2):
        try:
            bob.logs.key(bob.logs.find("team"), epoch)
        except AngeliaError:
            continue
        opened += 1
    assert opened == 1


# What there is, and what is forgotten.


def test_editions_and_keys_are_there_after_a_restart(home: Path, bob: Mailbox, joined: GroupEdition) -> None:
    bob.close()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), LATER) as again:
        assert again.logs.editions() == [joined]
        assert again.logs.key(joined, 1) == FIRST


def test_a_group_is_found_by_its_name_or_the_beginning_of_its_id(alice: Mailbox, joined: GroupEdition) -> None:
    text = base58(joined.group)
    assert alice.logs.find("team") == alice.logs.find(text) == alice.logs.find(text[:8]) == joined
    for name in ("nothing", text[:7], ""):
        with pytest.raises(NoGroup):
            alice.logs.find(name)


def test_two_groups_of_one_name_are_told_apart_by_their_ids(alice: Mailbox, bob: Mailbox) -> None:
    both = [first_edition("team", [alice]) for _ in range(2)]
    for one in both:
        alice.logs.store(one, FIRST, "alice", NOW)
    with pytest.raises(Conflict) as refused:
        alice.logs.find("team")
    for one in both:
        assert base58(one.group)[:12] in str(refused.value.hint)
        assert alice.logs.find(base58(one.group)[:12]) == one


def test_nothing_of_a_group_is_left_once_it_is_forgotten(home: Path, alice: Mailbox, joined: GroupEdition) -> None:
    other = first_edition("other", [alice])
    alice.logs.store(other, SECOND, "alice", NOW)
    for one in (joined, other):
        opened_replica(alice.logs, one, Journal()).database.close()
    alice.logs.forget(joined.group)
    assert alice.logs.editions() == [other]
    with pytest.raises(EarlierEpoch):
        alice.logs.key(joined, 1)
    assert alice.logs.key(other, 1) == SECOND
    left = {path.name.partition(".")[0] for path in home.rglob("*.db*") if path.parent.name == "logs"}
    assert left == {base58(other.group)}


def test_a_group_that_was_forgotten_can_be_joined_again(bob: Mailbox, joined: GroupEdition) -> None:
    bob.logs.forget(joined.group)
    assert bob.logs.accept(next_of(joined, epoch=2), SECOND, "alice", LATER)
    assert bob.logs.key(joined, 2) == SECOND
