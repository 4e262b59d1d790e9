"""Which edition holds: all that know the same editions come to the same one, in whatever order they came."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.envelope.sealing import EpochKey
from angelia.grouplog.model.edition_history import chain, follows, needs_new_key, reapplied, removed_again
from angelia.grouplog.model.editions import EditionMember, GroupEdition, SignedEdition, new_member
from grouplog.open_logs import GROUP, Key
from log_members import node_of

FIRST_KEY = EpochKey.of(b"\x44" * 32)
NAMES = ("ann", "ben", "cat", "dan")
KEYS = {name: Key(name.encode()) for name in NAMES}
MEMBERS = tuple(
    new_member(GROUP, number, name, KEYS[name].public, admin=number < 4) for number, name in enumerate(NAMES, 1)
)
ANN, BEN, CAT, DAN = MEMBERS
FIRST = GroupEdition(
    group=GROUP,
    name="team",
    number=1,
    depth=2,
    min_copies=1,
    quota_bytes=1 << 30,
    members=MEMBERS,
    past=(),
    nodes=(node_of(1), node_of(2)),
    epoch=1,
    author=1,
    key_id=FIRST_KEY.key_id,
)


def by(author: EditionMember, edition: GroupEdition) -> SignedEdition:
    return SignedEdition.of(edition, KEYS[author.handle].sign)


def after(before: GroupEdition, author: EditionMember, **changes: object) -> GroupEdition:
    """What an author makes of an edition, under a new key where it takes one."""
    wanted: GroupEdition = msgspec.structs.replace(before, **changes)  # type: ignore[arg-type]
    renews = needs_new_key(before, wanted)
    wanted = msgspec.structs.replace(wanted, epoch=before.epoch + renews)
    key = EpochKey.generate().key_id if renews else before.key_id
    return msgspec.structs.replace(wanted.following(before, author.binding, FIRST_KEY), key_id=key)


def removing(before: GroupEdition, author: EditionMember, *gone: EditionMember) -> GroupEdition:
    left = tuple(one for one in before.members if one not in gone)
    past = tuple(msgspec.structs.replace(one, admin=False) for one in gone)
    return after(before, author, members=left, past=(*before.past, *past))


def newest(*others: SignedEdition) -> GroupEdition:
    return chain(by(ANN, FIRST), others)[-1].edition


def grown(chance: random.Random, count: int) -> list[SignedEdition]:
    """A tree of editions by all admins, who may remove each other and anybody else."""
    made = [by(ANN, FIRST)]
    for _ in range(count):
        before = chance.choice(made).edition
        author = chance.choice([one for one in before.members if one.admin])
        others = [one for one in before.members if one is not author]
        gone = chance.sample(others, chance.randint(0, min(2, len(others))))
        made.append(by(author, removing(before, author, *gone)))
    return made


@given(st.integers(0, 2**32), st.integers(2, 14))
@settings(max_examples=60)
def test_all_orders_in_which_editions_come_lead_to_the_same_one(seed: int, count: int) -> None:
    chance = random.Random(seed)
    base, *others = grown(chance, count)
    held = [one.digest for one in chain(base, others)]
    for _ in range(4):
        chance.shuffle(others)
        assert [one.digest for one in chain(base, others)] == held


@given(st.integers(0, 2**32), st.integers(2, 14))
@settings(max_examples=60)
def test_what_an_admin_removed_no_admin_of_a_lower_rank_brings_back(seed: int, count: int) -> None:
    chance = random.Random(seed)
    base, *others = grown(chance, count)
    before = chain(base, others)
    # An admin that was removed on the way begins anew somewhere before that, and goes on for long.
    for removed, at in ((one, at) for at, held in enumerate(before) for one in held.edition.past):
        fork = chance.choice(before[:at])
        if removed.sender not in {one.sender for one in fork.edition.members if one.admin}:
            continue
        hers, own = [], fork.edition
        for _ in range(5):
            own = after(own, removed, name="hers")
            hers.append(by(removed, own))
        held = chain(base, [*others, *hers])
        ranks = [one.sender for one in fork.edition.members]
        signed = {one.edition.author for one in before[before.index(fork) + 1 :]}
        higher = [one for one in fork.edition.members if one.binding in signed and one.admin]
        if any(ranks.index(one.sender) < ranks.index(removed.sender) for one in higher):
            assert held[-1].digest == before[-1].digest


def test_of_two_at_once_that_of_the_older_admin_holds() -> None:
    older, younger = after(FIRST, BEN, name="bens"), after(FIRST, CAT, name="cats")
    assert newest(by(CAT, younger), by(BEN, older)) == older


def test_of_two_of_one_admin_all_take_the_same_one() -> None:
    one, other = by(BEN, after(FIRST, BEN, name="one")), by(BEN, after(FIRST, BEN, name="other"))
    assert newest(one, other) == newest(other, one)


def test_a_longer_way_does_not_outweigh_the_older_admin() -> None:
    older, younger = after(FIRST, ANN, name="anns"), after(FIRST, BEN, name="bens")
    on = after(after(younger, CAT, name="cats"), BEN, name="more")
    assert newest(by(BEN, on), by(BEN, younger), by(ANN, older)) == older


def test_an_older_admin_that_went_on_from_an_edition_upholds_it() -> None:
    bens, cats = after(FIRST, BEN, name="bens"), after(FIRST, CAT, name="cats")
    anns = after(cats, ANN, name="anns")
    assert newest(by(BEN, bens), by(CAT, cats), by(ANN, anns)) == anns
    assert newest(by(BEN, bens), by(CAT, cats)) == bens


def test_a_removed_admin_gains_nothing_by_beginning_anew_before_its_removal() -> None:
    dans = after(FIRST, CAT, name="by the youngest")
    removal = removing(dans, ANN, BEN)
    fork = after(FIRST, BEN, name="bens")
    on = removing(fork, BEN, CAT)
    assert newest(by(CAT, dans), by(ANN, removal), by(BEN, fork), by(BEN, on)) == removal


def test_an_admin_gains_no_rank_by_making_an_older_member_admin() -> None:
    dan_first = msgspec.structs.replace(FIRST, members=(DAN, ANN, BEN, CAT))
    promoted = msgspec.structs.replace(DAN, admin=True)
    mine = after(dan_first, CAT, members=(promoted, ANN, BEN, CAT))
    on = after(mine, promoted, name="dans")
    bens = after(dan_first, BEN, name="bens")
    held = chain(by(ANN, dan_first), [by(CAT, mine), by(DAN, on), by(BEN, bens)])
    assert held[-1].edition == bens


EVE = new_member(GROUP, 9, "eve", Key(b"eve").public, admin=False)
ANN_DEMOTED = msgspec.structs.replace(ANN, admin=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 3},
        {"parent": bytes(32)},
        {"depth": 1},
        {"author": 4},
        {"author": 9},
        {"epoch": 3},
        {"epoch": 2},
        {"key_id": EpochKey.of(b"\x45" * 32).key_id},
        {"members": (ANN, BEN, CAT), "past": (DAN,)},
        {"members": (BEN, CAT, DAN), "past": (ANN_DEMOTED,), "epoch": 2, "key_id": EpochKey.generate().key_id},
        {"members": (ANN_DEMOTED, BEN, CAT, DAN)},
        {
            "members": (ANN.with_key(Key(b"new").public), BEN, CAT, DAN),
            "epoch": 2,
            "key_id": EpochKey.generate().key_id,
        },
        {"members": (ANN, BEN, CAT), "epoch": 2, "key_id": EpochKey.generate().key_id},
        {"members": (ANN, BEN, DAN, CAT)},
        {"members": (ANN, BEN, CAT, EVE, DAN)},
        {"members": (ANN, BEN, CAT, msgspec.structs.replace(DAN, handle="another"))},
    ],
    ids=[
        "a number left out",
        "after another",
        "another configuration",
        "no admin",
        "no member",
        "an epoch left out",
        "a new epoch with the old key",
        "another key for the epoch",
        "a removal under the old key",
        "the removal of an older admin",
        "an older admin demoted",
        "another key for an older admin",
        "a member forgotten",
        "members in another order",
        "a new member in front of an old one",
        "another handle",
    ],
)
def test_an_edition_that_may_not_follow_another_is_refused(changes: dict[str, object]) -> None:
    good = after(FIRST, BEN)
    assert follows(by(BEN, good), by(ANN, FIRST))
    assert not follows(by(BEN, msgspec.structs.replace(good, **changes)), by(ANN, FIRST))  # type: ignore[arg-type]
    assert not follows(by(DAN, good), by(ANN, FIRST))


def test_a_past_member_stays_one() -> None:
    gone = removing(FIRST, ANN, DAN)
    for past in ((), (msgspec.structs.replace(gone.past[0], until=7),)):
        assert not follows(by(ANN, after(gone, ANN, past=past)), by(ANN, gone))
    assert follows(by(ANN, after(gone, ANN)), by(ANN, gone))


def test_an_admin_signs_with_its_present_key_alone() -> None:
    rotated = BEN.with_key(Key(b"new").public)
    second = after(FIRST, BEN, members=(ANN, rotated, CAT, DAN))
    assert follows(by(BEN, second), by(ANN, FIRST))  # a rotation is signed with the key that it replaces
    third = after(second, rotated, name="third")
    assert not follows(by(BEN, third), by(BEN, second))
    assert follows(SignedEdition.of(third, Key(b"new").sign), by(BEN, second))


def test_a_change_is_made_again_on_what_another_admin_changed() -> None:
    eve = new_member(GROUP, 5, "eve", Key(b"eve").public, admin=False)
    fay = new_member(GROUP, 6, "fay", Key(b"fay").public, admin=True)
    promoted = msgspec.structs.replace(DAN, admin=True).with_key(Key(b"new").public)
    mine = after(FIRST, BEN, members=(ANN, BEN, promoted, eve), past=(CAT,), nodes=(node_of(1), node_of(3)))
    theirs = after(FIRST, ANN, members=(*MEMBERS, fay), nodes=(node_of(1), node_of(2), node_of(4)))
    both = reapplied(theirs, FIRST, mine)
    assert [one.handle for one in both.members] == ["ann", "ben", "dan", "fay", "eve"]
    assert both.member("dan") == promoted
    assert [one.handle for one in both.past] == ["cat", "eve"]
    assert both.nodes == (node_of(1), node_of(4), node_of(3))
    assert both.epoch == theirs.epoch + 1
    # Nodes may have had her as another sender, which wrote messages that count.
    again = both.member("eve")
    assert again is not None
    assert again.sender != eve.sender == both.past[1].sender
    signed = by(BEN, both.following(theirs, BEN.binding, EpochKey.generate()))
    signed.edition.check()
    assert follows(signed, by(ANN, theirs))
    assert reapplied(both, FIRST, mine) == both


def test_a_member_that_both_added_is_added_once() -> None:
    mine, theirs = (after(FIRST, author, members=(*MEMBERS, EVE)) for author in (BEN, ANN))
    assert reapplied(theirs, FIRST, mine) == theirs


def test_of_what_others_changed_only_removals_are_made_again() -> None:
    mine = after(FIRST, BEN, members=(ANN, BEN, CAT, EVE), past=(DAN,), nodes=(node_of(3),))
    theirs = after(FIRST, ANN, name="anns")
    again = removed_again(theirs, FIRST, mine)
    assert [one.handle for one in again.members] == ["ann", "ben", "cat"]
    assert (again.past, again.nodes, again.epoch) == ((DAN,), theirs.nodes, 2)
    assert removed_again(again, FIRST, mine) == again


def test_a_new_key_is_needed_when_a_member_went_or_has_another_one() -> None:
    assert not needs_new_key(FIRST, after(FIRST, ANN, name="renamed"))
    assert needs_new_key(FIRST, removing(FIRST, ANN, DAN))
    rotated = DAN.with_key(Key(b"new").public)
    assert needs_new_key(FIRST, after(FIRST, ANN, members=(ANN, BEN, CAT, rotated)))
    assert not needs_new_key(FIRST, after(FIRST, ANN, members=(*MEMBERS, EVE)))
