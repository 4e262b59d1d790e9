"""What becomes of two editions that admins made at the same time: all that merge them get the same members."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.sealing import EpochKey
from angelia.grouplog.model.admin_grants import Admin, granted
from angelia.grouplog.model.edition_merge import left_out, merged, needs_new_key
from angelia.grouplog.model.editions import EditionMember, GroupEdition, new_member
from grouplog.open_logs import GROUP, Key
from log_members import node_of


def member(number: int, name: str, *, admin: bool = False) -> EditionMember:
    return new_member(GROUP, number, name, Key(name.encode()).public, admin=admin)


def grant_of(*admins: EditionMember) -> dict[str, object]:
    listed = tuple(Admin(one.sender, one.handle, one.public_key) for one in admins)
    return {"grant": granted(GROUP, None, listed, Key(b"ann").sign)}


ANN, BEN, CAT, DAN = (
    member(number, name, admin=number < 3) for number, name in enumerate(("ann", "ben", "cat", "dan"), 1)
)
EVE, FAY = member(5, "eve"), member(6, "fay")
KEY = EpochKey.of(b"\x44" * 32)
FIRST = GroupEdition(
    group=GROUP,
    name="team",
    number=1,
    depth=2,
    min_copies=1,
    quota_bytes=1 << 30,
    members=(ANN, BEN, CAT, DAN),
    past=(),
    nodes=(node_of(1), node_of(2)),
    epoch=1,
    author=ANN.sender,
    key_id=KEY.key_id,
    **grant_of(ANN, BEN),  # type: ignore[arg-type]
)


def changed(before: GroupEdition, **changes: object) -> GroupEdition:
    return msgspec.structs.replace(before, **changes)  # type: ignore[arg-type]


def handles(edition: GroupEdition) -> list[str]:
    return sorted(one.handle for one in edition.members)


def test_members_that_either_added_are_there_and_those_that_either_removed_are_gone() -> None:
    rotated = DAN.with_key(Key(b"new").public)
    mine = changed(FIRST, members=(ANN, BEN, rotated, EVE), past=(CAT,))
    theirs = changed(FIRST, members=(ANN, BEN, CAT, DAN, FAY), nodes=(node_of(1), node_of(3)))
    both = merged(theirs, mine)
    assert handles(both) == ["ann", "ben", "dan", "eve", "fay"]
    assert both.member("dan") == rotated
    assert both.nodes == theirs.nodes
    # Nodes may have had her under another entry of the roster, with messages that count.
    again = both.member("eve")
    assert again is not None
    assert again.sender != EVE.sender
    assert both.past == (CAT, EVE)
    both.check()
    assert merged(both, mine) == both
    assert handles(merged(mine, theirs)) == handles(both)


def test_what_holds_and_was_made_of_the_other_one_stays_as_it_is() -> None:
    later = changed(FIRST, members=(ANN, BEN, DAN, EVE), past=(CAT,), nodes=(node_of(3),))
    assert merged(later, FIRST) == later
    assert left_out(later, FIRST) == [node_of(1).url + " (added)", node_of(2).url + " (added)"]
    assert left_out(later, changed(FIRST, nodes=(node_of(3),))) == []


def test_a_member_that_both_added_is_added_once_and_what_it_wrote_as_another_sender_counts() -> None:
    theirs = changed(FIRST, members=(*FIRST.members, EVE))
    assert merged(theirs, theirs) == theirs
    mine = changed(FIRST, members=(*FIRST.members, member(9, "eve")))
    both = merged(theirs, mine)
    assert (both.members, both.past) == (theirs.members, (member(9, "eve"),))


def test_a_member_that_came_and_went_meanwhile_stays_known_and_has_no_key_of_what_follows() -> None:
    mine = changed(FIRST, past=(EVE,), epoch=2)
    both = merged(changed(FIRST, name="renamed"), mine)
    assert (handles(both), both.past) == (handles(FIRST), (EVE,))
    assert needs_new_key(FIRST, both)


def test_admins_and_nodes_stay_as_the_edition_that_holds_has_them() -> None:
    gone = changed(FIRST, past=(msgspec.structs.replace(BEN, admin=False),), members=(ANN, CAT, DAN))
    holds = changed(FIRST, name="renamed")
    assert merged(holds, changed(gone, **grant_of(ANN))) == holds
    added = changed(FIRST, members=(*FIRST.members, msgspec.structs.replace(EVE, admin=True)), **grant_of(ANN, BEN))
    eve = merged(holds, added).member("eve")
    assert eve is not None
    assert not eve.admin


def test_nothing_is_taken_over_where_an_admin_was_removed_or_has_another_key() -> None:
    mine = changed(FIRST, members=(ANN, BEN, DAN, EVE), past=(CAT,), nodes=(node_of(3),))
    alone = changed(FIRST, members=(ANN, CAT, DAN), past=(msgspec.structs.replace(BEN, admin=False),), **grant_of(ANN))
    bens = BEN.with_key(Key(b"new").public)
    rotated = changed(FIRST, members=(ANN, bens, CAT, DAN), **grant_of(ANN, bens))
    for holds in (alone, rotated):
        assert merged(holds, mine) == holds
        missing = ["eve (added)", node_of(3).url + " (added)", "cat (removed)"]
        assert left_out(holds, mine) == missing
    more = changed(FIRST, members=(ANN, BEN, CAT, msgspec.structs.replace(DAN, admin=True)), **grant_of(ANN, BEN, DAN))
    assert handles(merged(more, mine)) == ["ann", "ben", "dan", "eve"], "an admin that was added keeps nothing out"


def test_a_new_key_is_needed_when_a_member_went_or_has_another_one() -> None:
    assert not needs_new_key(FIRST, changed(FIRST, name="renamed"))
    assert needs_new_key(FIRST, changed(FIRST, members=(ANN, BEN, CAT), past=(DAN,)))
    assert needs_new_key(FIRST, changed(FIRST, members=(ANN, BEN, CAT, DAN.with_key(Key(b"new").public))))
    assert not needs_new_key(FIRST, changed(FIRST, members=(*FIRST.members, EVE)))


@given(st.integers(0, 1 << 32), st.integers(1, 6))
def test_whichever_editions_are_merged_in_whatever_order_the_members_are_the_same(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    branches = [FIRST, FIRST, FIRST]
    for _ in range(steps):
        at = chance.randrange(3)
        branches[at] = changed_at_random(branches[at], chance)
    results = set()
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        first, second, third = (branches[at] for at in order)
        both = merged(merged(first, second), third)
        both.check()
        results.add(tuple(handles(both)))
    assert len(results) == 1
    gone = {one.sender for one in FIRST.members for edition in branches if one.sender not in sent_ids(edition)}
    assert not gone & {one.sender for one in both.members}, "a removed member stays away"


def sent_ids(edition: GroupEdition) -> set[bytes]:
    return {one.sender for one in edition.members}


def changed_at_random(edition: GroupEdition, chance: random.Random) -> GroupEdition:
    others = [one for one in edition.members if not one.admin]
    if others and chance.random() < 0.4:
        gone = chance.choice(others)
        members = tuple(one for one in edition.members if one is not gone)
        return changed(edition, members=members, past=(*edition.past, gone))
    name = chance.choice(("eve", "fay", "gus", "hal"))
    if edition.member(name) is not None:
        return edition
    return changed(edition, members=(*edition.members, member(chance.randrange(10, 1 << 40), name)))
