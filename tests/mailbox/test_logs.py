"""Groups in the mailbox: which editions a member believes, which keys it has, and what it forgets."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

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
from log_members import accept, first_edition, following, sent, share, with_member, without

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
    """A group of Alice, its owner, and Bob, which no other member has heard of yet."""
    return first_edition("team", [alice, bob], key=FIRST)


@pytest.fixture
def joined(alice: Mailbox, bob: Mailbox, edition: GroupEdition) -> GroupEdition:
    """The same group; both have the first edition and the key of epoch 1."""
    share(edition, FIRST, alice, bob)
    return edition


# Which editions are believed.


def test_the_first_edition_is_accepted_from_the_owner_that_it_names(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition
) -> None:
    assert accept(bob, sent(edition, FIRST), alice, NOW)
    assert bob.logs.edition(edition.group) == edition
    assert bob.logs.key(edition) == FIRST


@pytest.mark.parametrize("sender", ["bob", "mallory"])
def test_the_first_edition_is_refused_from_any_other_agent(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition, sender: str
) -> None:
    with pytest.raises(NotAllowed):
        bob.logs.accept(sent(edition, FIRST), sender, alice.identity.pair.public.fingerprint, NOW)
    assert bob.logs.editions() == []


def test_an_agent_that_no_owner_made_an_admin_of_its_group_is_not_believed(
    alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition
) -> None:
    later = following(joined, FIRST, name="renamed")
    with pytest.raises(NotAllowed):
        accept(bob, sent(later, FIRST), carol)
    hers = msgspec.structs.replace(
        later,
        members=tuple(msgspec.structs.replace(one, admin=one.handle == "bob") for one in later.members),
    )
    for sender in (alice, bob):
        with pytest.raises(NotAllowed):
            accept(bob, sent(hers, FIRST), sender)
    assert bob.logs.edition(joined.group) == joined


def test_a_group_that_does_not_list_this_agent_is_refused(bob: Mailbox, alice: Mailbox) -> None:
    with pytest.raises(NotMember):
        accept(bob, sent(first_edition("others", [alice], key=FIRST), FIRST), alice, NOW)
    assert bob.logs.editions() == []


def test_an_edition_that_came_by_mail_is_taken_over(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    bob.receive(send(body=encode_mail(sent(edition, FIRST)), channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.find("team") == edition
    assert take_editions(bob) == 0


def test_an_edition_of_an_agent_whose_mail_is_not_allowed_is_not_opened(
    alice: Mailbox, bob: Mailbox, edition: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    with pytest.raises(NotAllowed):
        bob.receive(send(body=encode_mail(sent(edition, FIRST)), channel_id=EDITIONS, control=True), now=NOW)
    assert (take_editions(bob), bob.logs.editions()) == (0, [])


def test_a_later_edition_of_an_owner_is_taken_over_also_when_its_other_mail_is_not_allowed(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    later = following(joined, FIRST, name="renamed")
    bob.receive(send(body=encode_mail(sent(later, FIRST)), channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.find("renamed") == later


def test_an_owner_whose_mail_is_not_allowed_brings_no_other_group_and_no_other_mail(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition, send: Send
) -> None:
    bob.allowlist.deny("alice")
    other = encode_mail(sent(first_edition("other", [alice, bob], key=SECOND), SECOND))
    for body in (other, other[:1]):
        with pytest.raises(NotAllowed):
            bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    with pytest.raises(NotAllowed):
        bob.receive(send(body=b"plain mail"), now=NOW)
    assert (take_editions(bob), bob.logs.editions()) == (0, [joined])


def test_a_later_edition_replaces_the_one_before(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = following(joined, SECOND, epoch=2)
    assert accept(bob, sent(later, SECOND), alice, LATER)
    assert bob.logs.edition(joined.group) == later
    assert (bob.logs.keys(later, 1), bob.logs.keys(later, 2)) == ([FIRST], [SECOND])


def test_a_later_edition_holds_without_those_before_it(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = joined
    for number in range(20):
        later = following(later, FIRST, name=f"name{number}")
    assert accept(bob, sent(later, FIRST), alice, LATER)
    assert bob.logs.edition(joined.group) == later


def test_an_older_edition_changes_nothing(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    later = following(joined, FIRST, name="renamed")
    assert accept(bob, sent(later, FIRST), alice, NOW)
    for old in (joined, later):
        assert not accept(bob, sent(old, FIRST), alice, LATER)
    assert bob.logs.edition(joined.group) == later


def test_an_older_edition_that_comes_late_still_brings_its_key(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    second = following(joined, SECOND, epoch=2)
    third = following(second, THIRD, epoch=3)
    assert accept(bob, sent(third, THIRD), alice, NOW)
    with pytest.raises(EarlierEpoch):
        bob.logs.keys(third, 2)
    assert not accept(bob, sent(second, SECOND), alice, LATER)
    assert bob.logs.keys(third, 2) == [SECOND]
    assert bob.logs.edition(joined.group) == third


def test_an_edition_with_another_configuration_or_owner_is_refused(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    for change in ({"depth": 3}, {"quota_bytes": 2 << 30}):
        with pytest.raises(NotAllowed):
            accept(bob, sent(following(joined, FIRST, **change), FIRST), alice, LATER)
    again = new_member(joined.group, 7, "alice", alice.identity.pair.public.ed25519, admin=True)
    taken = msgspec.structs.replace(joined, number=9, members=(again, *joined.members[1:]))
    taken.check()
    with pytest.raises(NotAllowed):
        accept(bob, sent(taken, FIRST), alice, LATER)
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
    good = encode_mail(sent(edition, FIRST))
    for body in (good[:1] + b"\xc1" * 400, good[:-1], good):
        bob.receive(send(body=body, channel_id=EDITIONS, control=True), now=NOW)
    assert take_editions(bob) == 1
    assert bob.logs.editions() == [edition]
    assert take_editions(bob) == 0


# The owner's pair is stolen, and replaced.


@pytest.mark.parametrize("revoked", [False, True])
def test_what_an_owner_sends_with_a_new_pair_counts_for_more_than_what_a_thief_of_the_old_one_sent(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition, revoked: bool
) -> None:
    stolen = alice.identity.pair.public
    false = msgspec.structs.replace(following(joined, THIRD, name="false"), number=MAX_SEQ)
    assert accept(bob, sent(false, THIRD), alice)
    alice.key_rotation.begin(NOW, kem=False, signer=True)
    alice.key_rotation.finish(NOW)
    link = alice.own_keys.newest()
    assert link is not None
    bob.pinned_keys.advance("alice", [link], LATER, [stolen.signer_id] if revoked else [])
    mine = following(joined, SECOND, epoch=2)
    assert accept(bob, sent(mine, SECOND), alice, LATER)
    assert not bob.logs.accept(sent(false, THIRD), "alice", stolen.fingerprint, LATER)
    assert bob.logs.edition(joined.group) == mine
    assert bob.logs.key(mine) == SECOND


def test_an_edition_that_was_sent_before_the_owner_replaced_its_pair_still_counts(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    before, later = alice.identity.pair.public.fingerprint, following(joined, FIRST, name="renamed")
    alice.key_rotation.begin(NOW, kem=False, signer=True)
    alice.key_rotation.finish(NOW)
    link = alice.own_keys.newest()
    assert link is not None
    bob.pinned_keys.advance("alice", [link], LATER)
    assert bob.logs.accept(sent(later, FIRST), "alice", before, LATER)
    assert not bob.logs.accept(sent(joined, FIRST), "alice", before, LATER)
    assert bob.logs.find("renamed") == later


def test_messages_under_the_key_of_a_thief_are_opened_beside_those_under_the_owners(
    alice: Mailbox, bob: Mailbox, joined: GroupEdition
) -> None:
    false, mine = following(joined, THIRD, epoch=2), following(joined, SECOND, epoch=2)
    place = GroupPlace(joined.group, bob.logs.me(joined).sender, 1, 0)
    assert accept(bob, sent(false, THIRD), alice)
    sealed = bob.logs.seal(false, place, b"while the thief was believed")
    later = following(mine, SECOND, name="renamed")
    assert accept(bob, sent(later, SECOND), alice)
    assert bob.logs.keys(later, 2) == [THIRD, SECOND]
    assert bob.logs.unseal(later, place, sealed) == b"while the thief was believed"
    assert bob.logs.key(later) == SECOND


# What the owner has yet to bring to nodes and members.


@pytest.fixture
def three(alice: Mailbox, bob: Mailbox, carol: Mailbox, joined: GroupEdition) -> GroupEdition:
    """Alice, Bob and Carol have the second edition, by which Carol became a member."""
    second = with_member(joined, carol, FIRST)
    share(second, FIRST, alice, bob, carol)
    return second


def test_an_edition_that_another_process_overtook_is_not_published(alice: Mailbox, joined: GroupEdition) -> None:
    first, second = (following(joined, FIRST, name=name) for name in ("first", "second"))
    alice.logs.publish(first, FIRST, NOW)
    with pytest.raises(EpochConflict):
        alice.logs.publish(second, FIRST, NOW)
    alice.logs.settle_at(joined, None)  # of the one before
    assert alice.logs.unsettled(LATER) == [base58(joined.group)]
    assert alice.logs.find("first") == first


def untold(box: Mailbox, edition: GroupEdition) -> dict[str, list[int]]:
    """The members that have yet to be sent an edition, each with the epochs whose keys it gets."""
    return {handle: [epoch for epoch, _ in decode_mail(body).keys] for handle, body in box.logs.untold(edition)}


def test_each_member_is_to_be_told_of_each_edition_once(alice: Mailbox, bob: Mailbox, three: GroupEdition) -> None:
    assert untold(alice, three) == {"bob": [1], "carol": [1]}
    alice.logs.note_told(three, ["bob"])
    assert untold(alice, three) == {"carol": [1]}
    later = following(three, SECOND, epoch=2)
    alice.logs.publish(later, SECOND, NOW)
    alice.logs.note_told(three, ["carol"])  # of the one before
    assert untold(alice, later) == {"bob": [2], "carol": [1, 2]}
    alice.logs.note_told(later, ["bob"])
    alice.logs.note_untold(later)
    assert untold(alice, later) == {"bob": [2], "carol": [1, 2]}
    assert accept(bob, sent(later, SECOND), alice)
    assert bob.logs.unsettled(LATER) == []


def test_a_member_gets_the_keys_of_epochs_that_it_was_in(
    member: Callable[[str], Mailbox], alice: Mailbox, bob: Mailbox, three: GroupEdition
) -> None:
    dave = member("dave")
    alice.logs.note_told(three, ["bob", "carol"])
    second = msgspec.structs.replace(with_member(three, dave, SECOND), epoch=2)
    alice.logs.publish(second, SECOND, NOW)
    third = following(second, THIRD, epoch=3)
    alice.logs.publish(third, THIRD, NOW)
    mails = {handle: decode_mail(body) for handle, body in alice.logs.untold(third)}
    for box in (bob, dave):
        mail = mails[box.identity.handle]
        assert mail.keys == [(2, SECOND), (3, THIRD)]
        assert accept(box, mail, alice)
        assert box.logs.keys(third, 2) == [SECOND]
    with pytest.raises(EarlierEpoch):
        dave.logs.keys(third, 1)


# Keys.


def test_a_removed_member_has_no_key_of_what_follows(alice: Mailbox, bob: Mailbox, joined: GroupEdition) -> None:
    gone = without(joined, "bob", SECOND)
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
    second = following(alone, SECOND, members=(*alone.members, new), epoch=2)
    accept(bob, sent(second, SECOND), alice, NOW)
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
    gone = without(joined, "bob", SECOND)
    alice.logs.publish(gone, SECOND, LATER)
    assert alice.logs.unseal(gone, place, sealed) == b"when I was a member"


def test_keys_are_nowhere_in_clear_on_the_disk(home: Path, alice: Mailbox, bob: Mailbox, send: Send) -> None:
    secret = b"sixteen and then sixteen others!"
    edition = first_edition("team", [alice, bob], key=EpochKey.of(secret))
    body = encode_mail(sent(edition, EpochKey.of(secret)))
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
    accept(bob, sent(following(joined, SECOND, epoch=2), SECOND), alice, LATER)
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


# From before groups had one owner.


def as_before(box: Mailbox, edition: GroupEdition, *, untold: bool) -> None:
    """Puts a group into a mailbox as version 7 had it."""
    gid = base58(edition.group)
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(edition))[:10]
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


def test_groups_from_before_they_had_one_owner_go_on(
    home: Path, alice: Mailbox, bob: Mailbox, edition: GroupEdition
) -> None:
    plain = msgspec.structs.replace(edition, number=4, key_id=None)
    members = tuple(msgspec.structs.replace(one, admin=True) for one in plain.members)
    renamed = msgspec.structs.replace(plain, number=5, name="renamed", members=members)
    as_before(alice, renamed, untold=True)
    as_before(bob, plain, untold=False)  # which had not read the last one yet
    with (
        Mailbox(home, identity.load(home, "alice", lambda: ""), LATER) as alices,
        Mailbox(home, identity.load(home, "bob", lambda: ""), LATER) as bobs,
    ):
        assert (alices.logs.editions(), bobs.logs.editions()) == ([renamed], [plain])
        assert renamed.owner.handle == "alice"
        assert alices.logs.key(renamed) == bobs.logs.key(plain) == FIRST
        assert alices.logs.unsettled(LATER) == [base58(edition.group)]
        place = GroupPlace(edition.group, edition.members[0].sender, 1, 0)
        sealed = alices.logs.seal(renamed, place, b"from before")
        later = following(renamed, FIRST)
        assert [one.admin for one in later.members] == [True, False]
        alices.logs.publish(later, FIRST, LATER)
        (mail,) = [body for _, body in alices.logs.untold(later)]
        assert accept(bobs, decode_mail(mail), alices, LATER)
        assert bobs.logs.edition(edition.group) == later
        assert bobs.logs.unseal(later, place, sealed) == b"from before"


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
    later = following(joined, SECOND, epoch=2)
    assert accept(bob, sent(later, SECOND), alice, LATER)
    assert bob.logs.key(later) == SECOND
