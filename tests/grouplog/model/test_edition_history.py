"""Which edition holds: all that know the same editions come to the same one, in whatever order they came."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.envelope.sealing import EpochKey
from angelia.grouplog.model.edition_history import chain, follows, needs_new_key, reapplied
from angelia.grouplog.model.editions import EditionMember, GroupEdition, SignedEdition, new_member
from grouplog.open_logs import GROUP, Key
from log_members import node_of

KEY = EpochKey.of(b"\x44" * 32)
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
    key_id=KEY.key_id,
)


def by(author: EditionMember, edition: GroupEdition) -> SignedEdition:
    return SignedEdition.of(edition, KEYS[author.handle].sign)


def after(before: GroupEdition, author: EditionMember, made_at: int = 0, **changes: object) -> GroupEdition:
    wanted: GroupEdition = msgspec.structs.replace(before, **changes)  # type: ignore[arg-type]
    return wanted.following(before, author.binding, KEY, made_at)


def removing(before: GroupEdition, author: EditionMember, *gone: EditionMember) -> GroupEdition:
    left = tuple(one for one in before.members if one not in gone)
    past = tuple(msgspec.structs.replace(one, admin=False) for one in gone)
    return after(before, author, members=left, past=(*before.past, *past))


def newest(*others: SignedEdition) -> GroupEdition:
    return chain(by(ANN, FIRST), others)[-1].edition


@given(st.integers(0, 2**32), st.integers(2, 14))
@settings(max_examples=60)
def test_all_orders_in_which_editions_come_lead_to_the_same_one(seed: int, count: int) -> None:
    chance = random.Random(seed)
    made = [by(ANN, FIRST)]
    for _ in range(count):
        before = chance.choice(made).edition
        authors = [one for one in before.members if one.admin]
        author = chance.choice(authors)
        others = [one for one in before.members if one is not author]
        gone = chance.sample(others, chance.randint(0, min(2, len(others))))
        made.append(by(author, removing(before, author, *gone)))
    base, *others = made
    held = [one.edition.digest for one in chain(base, others)]
    for _ in range(4):
        chance.shuffle(others)
        assert [one.edition.digest for one in chain(base, others)] == held
    # A member that missed some on the way to the one that holds is not led elsewhere by the rest of that way.
    way = [one for one in others if one.edition.digest in held]
    last = [one for one in others if one.edition.digest == held[-1]]
    for missed in way:
        known = [one for one in way if one is not missed or one in last]
        assert chain(base, known)[-1].edition.digest == held[-1]


def test_of_two_at_once_that_of_the_older_admin_holds_whichever_was_made_first() -> None:
    for made_at in (1, 9_999):
        older, younger = after(FIRST, BEN, made_at, name="bens"), after(FIRST, CAT, 5_000, name="cats")
        assert newest(by(CAT, younger), by(BEN, older)) == older


def test_of_two_of_one_admin_that_which_was_made_last_holds() -> None:
    first, last = after(FIRST, BEN, 1_000, name="first"), after(FIRST, BEN, 2_000, name="last")
    assert newest(by(BEN, last), by(BEN, first)) == last


def test_the_edition_of_an_admin_that_another_removes_at_once_does_not_hold() -> None:
    unaware, removal = after(FIRST, BEN, name="bens"), removing(FIRST, CAT, BEN)
    assert newest(by(BEN, unaware), by(CAT, removal)) == removal
    on = after(unaware, BEN, name="more of bens")
    assert newest(by(BEN, unaware), by(BEN, on), by(CAT, removal)) == removal


def test_admins_that_remove_each_other_in_a_ring_are_outranked_by_the_oldest() -> None:
    ring = [by(ANN, removing(FIRST, ANN, BEN)), by(BEN, removing(FIRST, BEN, CAT)), by(CAT, removing(FIRST, CAT, ANN))]
    assert newest(*ring) == ring[0].edition


def test_a_longer_way_does_not_outweigh_the_older_admin() -> None:
    older, younger = after(FIRST, ANN, name="anns"), after(FIRST, BEN, name="bens")
    on = after(after(younger, CAT, name="cats"), BEN, name="more")
    assert newest(by(BEN, on), by(BEN, younger), by(ANN, older)) == older


def test_what_was_made_of_the_editions_before_the_first_known_one_may_hold_instead_of_it() -> None:
    second = after(FIRST, CAT, name="second")
    base = after(second, CAT, name="base")
    instead = after(FIRST, BEN, name="bens")
    assert chain(by(CAT, base), [by(BEN, instead)])[-1].edition == instead
    assert chain(by(CAT, base), [by(DAN, instead)])[-1].edition == base  # it is not its author's
    assert chain(by(CAT, base), [by(CAT, second)])[-1].edition == base  # it led to the base
    elsewhere = msgspec.structs.replace(instead, lineage=(bytes(32),))
    assert chain(by(CAT, base), [by(BEN, elsewhere)])[-1].edition == base


@pytest.mark.parametrize(
    "changes",
    [{"number": 3}, {"epoch": 0}, {"depth": 1}, {"lineage": (bytes(32),)}, {"author": 4}, {"author": 9}],
    ids=["a number left out", "an earlier epoch", "another configuration", "of another", "no admin", "no member"],
)
def test_an_edition_that_may_not_follow_another_is_refused(changes: dict[str, object]) -> None:
    good = after(FIRST, BEN)
    assert follows(by(BEN, good), FIRST)
    assert not follows(by(BEN, msgspec.structs.replace(good, **changes)), FIRST)  # type: ignore[arg-type]
    assert not follows(by(DAN, good), FIRST)


def test_a_change_is_made_again_on_what_another_admin_changed() -> None:
    eve = new_member(GROUP, 5, "eve", Key(b"eve").public, admin=False)
    fay = new_member(GROUP, 5, "fay", Key(b"fay").public, admin=True)
    promoted = msgspec.structs.replace(DAN, admin=True).with_key(Key(b"new").public)
    mine = after(FIRST, BEN, members=(ANN, BEN, promoted, eve), past=(CAT,), nodes=(node_of(1), node_of(3)))
    theirs = after(FIRST, ANN, members=(*MEMBERS, fay), nodes=(node_of(1), node_of(2), node_of(4)))
    both = reapplied(theirs, FIRST, mine)
    assert [one.handle for one in both.members] == ["ann", "ben", "dan", "fay", "eve"]
    assert [one.binding for one in both.members] == [1, 2, 4, 5, 6]
    assert both.member("dan") == promoted
    assert [one.handle for one in both.past] == ["cat"]
    assert both.nodes == (node_of(1), node_of(4), node_of(3))
    assert both.epoch == theirs.epoch + 1
    both.following(theirs, BEN.binding, KEY, 0).check()
    assert reapplied(both, FIRST, mine) == both


def test_a_member_that_both_added_is_added_once() -> None:
    eve = new_member(GROUP, 5, "eve", Key(b"eve").public, admin=False)
    mine, theirs = (after(FIRST, author, members=(*MEMBERS, eve)) for author in (BEN, ANN))
    assert reapplied(theirs, FIRST, mine) == theirs


def test_a_new_key_is_needed_when_a_member_went_or_has_another_one() -> None:
    assert not needs_new_key(FIRST, after(FIRST, ANN, name="renamed"))
    assert needs_new_key(FIRST, removing(FIRST, ANN, DAN))
    rotated = DAN.with_key(Key(b"new").public)
    assert needs_new_key(FIRST, after(FIRST, ANN, members=(ANN, BEN, CAT, rotated)))
    eve = new_member(GROUP, 5, "eve", Key(b"eve").public, admin=False)
    assert not needs_new_key(FIRST, after(FIRST, ANN, members=(*MEMBERS, eve)))
