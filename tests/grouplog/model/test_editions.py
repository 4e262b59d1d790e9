"""Editions of groups: what a member hears of a group holds together, or is refused before it is stored."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.sealing import Control, EpochKey
from angelia.errors import InvalidArgument
from angelia.grouplog.model.editions import (
    EditionMember,
    EditionNode,
    GroupEdition,
    SentEdition,
    decode_mail,
    encode_mail,
    new_member,
)
from angelia.grouplog.model.groups import FORMER_KEYS, GroupRoster, RosterEntry
from angelia.grouplog.model.ids import sender_id
from grouplog.open_logs import GROUP, Key
from log_members import node_of

KEY = EpochKey.of(b"\x44" * 32)
ALICE, BOB = (
    new_member(GROUP, number, name, Key(name.encode()).public, admin=number == 1)
    for number, name in enumerate(("alice", "bob"), 1)
)
CAROL = new_member(GROUP, 3, "carol", Key(b"carol").public, admin=False)
EDITION = GroupEdition(
    group=GROUP,
    name="team",
    number=4,
    depth=2,
    min_copies=2,
    quota_bytes=1 << 30,
    members=(ALICE, BOB),
    past=(CAROL,),
    nodes=(node_of(1), node_of(2)),
    epoch=2,
    key_id=KEY.key_id,
)


def changed(**values: object) -> GroupEdition:
    return msgspec.structs.replace(EDITION, **values)


def mail_of(edition: GroupEdition, key: EpochKey = KEY) -> bytes:
    return encode_mail(SentEdition(edition, [(edition.epoch, key)]))


def mailed(edition: GroupEdition) -> GroupEdition:
    found = decode_mail(mail_of(edition))
    assert found.keys == [(edition.epoch, KEY)]
    return found.edition


def test_a_member_reads_the_edition_and_its_key_as_an_admin_sent_them() -> None:
    assert mailed(EDITION) == EDITION


def test_no_key_shows_in_the_text_of_an_edition() -> None:
    assert KEY.secret.hex() not in repr(decode_mail(mail_of(EDITION)))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_edition_are_refused(body: bytes) -> None:
    for message in (body, bytes((Control.GROUP_KEY,)) + body):
        with pytest.raises(InvalidArgument):
            decode_mail(message)


def test_an_edition_that_is_cut_at_any_byte_is_refused() -> None:
    message = mail_of(EDITION)
    for end in range(len(message)):
        with pytest.raises(InvalidArgument):
            decode_mail(message[:end])


def test_an_edition_with_more_members_than_fit_into_mail_is_refused() -> None:
    key = Key(b"one of many").public
    many = [new_member(GROUP, number, f"agent-{number:0100}", key, admin=False) for number in range(10, 7_000)]
    with pytest.raises(InvalidArgument, match="fewer members"):
        mailed(changed(members=(ALICE, BOB, *many)))


def test_an_edition_of_a_later_version_is_refused_with_the_hint_to_update() -> None:
    (_, *rest) = msgspec.msgpack.decode(mail_of(EDITION)[1:])
    later = bytes((Control.GROUP_KEY,)) + msgspec.msgpack.encode([3, *rest])
    with pytest.raises(InvalidArgument) as refused:
        decode_mail(later)
    assert refused.value.hint == "update Angelia"


@pytest.mark.parametrize(
    "wrong",
    [
        changed(members=(ALICE, BOB, BOB)),
        changed(past=(BOB,)),
        changed(past=(msgspec.structs.replace(CAROL, binding=2),)),
        changed(past=(msgspec.structs.replace(CAROL, sender=ALICE.sender),)),
        changed(members=(ALICE, new_member(GROUP, 9, "alice", Key(b"x").public, admin=False))),
        changed(members=(BOB,)),
        changed(members=(ALICE, new_member(GROUP, 9, "", Key(b"x").public, admin=False))),
        changed(nodes=(node_of(1), node_of(1))),
        changed(min_copies=3),
        changed(members=(ALICE, msgspec.structs.replace(BOB, sender=b"borrowed"))),
        changed(members=(ALICE, msgspec.structs.replace(BOB, public_keys=(Key(b"mallory").public,)))),
        changed(members=(ALICE, msgspec.structs.replace(BOB, admin=True))),
        changed(past=(msgspec.structs.replace(CAROL, admin=True),)),
        changed(members=(ALICE, new_member(GROUP, 2, "bob", ALICE.public_key, admin=False))),
        changed(past=(new_member(GROUP, 3, "carol", bytes(32), admin=False),)),
        changed(key_id=EpochKey.of(b"\x45" * 32).key_id),
        changed(key_id=None),
    ],
    ids=[
        "a member twice",
        "present and past",
        "a binding twice",
        "a sender twice",
        "a handle twice",
        "no admin",
        "no handle",
        "a node twice",
        "more copies than nodes",
        "a sender that its key does not give",
        "a key that does not give its sender",
        "two owners",
        "an owner that is gone",
        "two members with one key",
        "a key that is none",
        "another key than it comes with",
        "no key",
    ],
)
def test_an_edition_that_contradicts_itself_is_refused(wrong: GroupEdition) -> None:
    with pytest.raises(InvalidArgument):
        mailed(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": GROUP[:-1]},
        {"name": ""},
        {"name": "Team"},
        {"name": "../team"},
        {"name": "team/"},
        {"name": "t" * 65},
        {"number": 0},
        {"number": 1 << 53},
        {"epoch": 0},
        {"depth": 16},
        {"min_copies": 0},
        {"members": ()},
        {"nodes": ()},
        {"nodes": tuple(node_of(number) for number in range(1, 34))},
        {"members": (msgspec.structs.replace(ALICE, public_keys=(b"short",)),)},
        {"nodes": (EditionNode(b"short", "http://node.example"),)},
    ],
    ids=str,
)
def test_values_outside_their_bounds_do_not_parse(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        mailed(changed(**wrong))


def test_a_sender_id_differs_in_each_group_so_that_no_member_is_followed_across_groups() -> None:
    other = new_member(b"o" * 32, 1, "alice", ALICE.public_key, admin=True)
    assert other.sender != ALICE.sender
    assert ALICE.sender == sender_id(GROUP, ALICE.public_key, 1)


def test_a_member_with_a_new_key_keeps_its_sender_id_however_often_it_rotates() -> None:
    member = BOB
    for number in range(FORMER_KEYS + 10):
        member = member.with_key(Key(b"key %d" % number).public)
        assert mailed(changed(members=(ALICE, member))).by_sender(BOB.sender) == member
    assert member.public_key == Key(b"key %d" % (FORMER_KEYS + 9)).public
    assert member.sender == BOB.sender
    assert len(member.public_keys) <= 1 + FORMER_KEYS


def test_a_member_whose_key_did_not_change_is_the_same() -> None:
    assert ALICE.with_key(ALICE.public_key) == ALICE
    member = ALICE.with_key(Key(b"second").public).with_key(Key(b"third").public)
    assert member.public_keys == (Key(b"third").public, Key(b"second").public, ALICE.public_key)


def test_members_are_found_by_handle_and_by_sender_past_ones_by_sender_only() -> None:
    assert EDITION.member("bob") == BOB
    assert EDITION.member("carol") is None
    assert EDITION.by_sender(CAROL.sender) == CAROL
    assert EDITION.by_sender(b"stranger") is None
    assert EDITION.owner == ALICE


def test_a_binding_is_never_used_again() -> None:
    assert [next(changed(past=past).next_bindings()) for past in ((CAROL,), ())] == [4, 3]


def test_the_owner_is_the_first_of_those_that_could_change_a_group_and_alone_from_then_on() -> None:
    both = changed(members=(msgspec.structs.replace(BOB, admin=True), ALICE))
    assert both.owner == ALICE
    later = both.following(both, KEY).checked()
    assert [(one.handle, later.role(one)) for one in later.members] == [("bob", "member"), ("alice", "owner")]
    assert later.number == both.number + 1


def test_mail_brings_the_keys_of_earlier_epochs_and_that_of_the_edition_last() -> None:
    earlier = EpochKey.of(b"\x46" * 32)
    sent = SentEdition(EDITION, [(1, earlier), (2, KEY)])
    assert decode_mail(encode_mail(sent)) == sent
    for keys in ([(2, KEY), (1, earlier)], [(3, earlier), (2, KEY)], [(2, earlier)], [(1, KEY)], []):
        with pytest.raises(InvalidArgument):
            decode_mail(encode_mail(SentEdition(EDITION, keys)))


def as_is(member: EditionMember) -> EditionMember:
    return member


def rotated(member: EditionMember) -> EditionMember:
    return member.with_key(Key(b"rotated").public)


@pytest.mark.parametrize("change", [as_is, rotated])
def test_a_node_computes_the_sender_ids_that_members_have(change: Callable[[EditionMember], EditionMember]) -> None:
    members = [change(ALICE), BOB]
    entries = [
        RosterEntry(binding=one.binding, public_key=one.public_key, admin=one.admin, former_keys=one.public_keys[1:])
        for one in members
    ]
    roster = GroupRoster.first(GROUP, entries)
    assert [one.sender for one in roster.members] == [ALICE.sender, BOB.sender]
    assert [one.public_key for one in roster.members] == [one.public_key for one in members]
