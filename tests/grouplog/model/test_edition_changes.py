"""What an admin changed at the same time as another one is changed again, and nothing else."""

from __future__ import annotations

import msgspec

from angelia.grouplog.model.edition_changes import needs_new_key, reapplied
from angelia.grouplog.model.editions import EditionMember, GroupEdition, new_member
from grouplog.open_logs import GROUP, Key
from log_members import node_of


def member(number: int, name: str, *, admin: bool = False) -> EditionMember:
    return new_member(GROUP, number, name, Key(name.encode()).public, admin=admin)


ANN, BEN, CAT, DAN = (
    member(number, name, admin=number < 3) for number, name in enumerate(("ann", "ben", "cat", "dan"), 1)
)
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
)


def changed(before: GroupEdition, **changes: object) -> GroupEdition:
    return msgspec.structs.replace(before, **changes)  # type: ignore[arg-type]


def test_members_keys_and_nodes_are_changed_again_on_what_another_admin_changed() -> None:
    eve, fay = member(5, "eve"), member(6, "fay")
    rotated = DAN.with_key(Key(b"new").public)
    mine = changed(FIRST, members=(ANN, BEN, rotated, eve), past=(CAT,), nodes=(node_of(1), node_of(3)))
    theirs = changed(FIRST, members=(ANN, BEN, CAT, DAN, fay), nodes=(node_of(1), node_of(2), node_of(4)))
    both = reapplied(theirs, FIRST, mine)
    assert [one.handle for one in both.members] == ["ann", "ben", "dan", "fay", "eve"]
    assert both.member("dan") == rotated
    assert both.nodes == (node_of(1), node_of(4), node_of(3))
    assert both.epoch == theirs.epoch + 1
    # Nodes may have had her under another entry of the roster, with messages that count.
    again = both.member("eve")
    assert again is not None
    assert again.sender != eve.sender
    assert both.past == (CAT, eve)
    both.check()
    assert reapplied(both, FIRST, mine) == both


def test_a_member_that_both_added_is_added_once_and_what_it_wrote_as_another_sender_counts() -> None:
    theirs = changed(FIRST, members=(*FIRST.members, member(5, "eve")))
    assert reapplied(theirs, FIRST, theirs) == theirs
    mine = changed(FIRST, members=(*FIRST.members, member(9, "eve")))
    both = reapplied(theirs, FIRST, mine)
    assert (both.members, both.past) == (theirs.members, (member(9, "eve"),))


def test_a_member_that_was_added_and_removed_again_is_removed_under_whatever_entry() -> None:
    with_eve = changed(FIRST, members=(*FIRST.members, member(5, "eve")))
    without_eve = changed(with_eve, members=FIRST.members, past=(member(5, "eve"),))
    theirs = changed(FIRST, members=(*FIRST.members, member(9, "eve")))
    both = reapplied(theirs, with_eve, without_eve)
    assert (both.member("eve"), both.past, both.epoch) == (None, (member(9, "eve"),), 2)


def test_admins_stay_as_the_owner_has_them() -> None:
    mine = changed(FIRST, members=(ANN, CAT, DAN), past=(msgspec.structs.replace(BEN, admin=False),))
    theirs = changed(FIRST, name="renamed")
    assert reapplied(theirs, FIRST, mine) == theirs
    promoted = changed(FIRST, members=(ANN, BEN, msgspec.structs.replace(CAT, admin=True), DAN))
    assert reapplied(theirs, FIRST, promoted) == theirs
    added = changed(FIRST, members=(*FIRST.members, member(5, "eve", admin=True)))
    eve = reapplied(theirs, FIRST, added).member("eve")
    assert eve is not None
    assert not eve.admin


def test_a_new_key_is_needed_when_a_member_went_or_has_another_one() -> None:
    assert not needs_new_key(FIRST, changed(FIRST, name="renamed"))
    assert needs_new_key(FIRST, changed(FIRST, members=(ANN, BEN, CAT), past=(DAN,)))
    assert needs_new_key(FIRST, changed(FIRST, members=(ANN, BEN, CAT, DAN.with_key(Key(b"new").public))))
    assert not needs_new_key(FIRST, changed(FIRST, members=(*FIRST.members, member(5, "eve"))))
