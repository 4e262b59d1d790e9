"""What becomes of two editions that admins made at the same time: members that either removed are gone, members that
either added are there. An entry of the roster that is once among the past ones never comes back, so all admins that
merge the same two editions get the same members."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from angelia.grouplog.model.admin_grants import Admin
from angelia.grouplog.model.editions import EditionMember, GroupEdition


def merged(holds: GroupEdition, other: GroupEdition) -> GroupEdition:
    """Returns the edition that holds, with the members that the other one added and without those that it removed.

    Admins and nodes are those of the edition that holds. If an admin was removed meanwhile, or replaced its key, the
    other one is left out: it may be the work of that admin, or of a thief of that key."""
    if not _admins(other) <= _admins(holds):
        return holds
    known, theirs = holds.entries, other.entries
    went, gone = _removed(other, known), _removed(holds, theirs)
    members, past = list[EditionMember](), list(holds.past)
    for one in holds.members:
        if one.sender in went and not one.admin:
            past.append(theirs.get(one.sender, one))
        else:
            members.append(_with_newer_key(one, theirs.get(one.sender, one)))
    past += [one for one in other.past if one.sender not in known]
    handles = {one.handle for one in members}
    for one in other.members:
        if one.sender not in known:
            # It may have written under this entry of the roster, which nodes do not take back once they dropped it.
            past.append(msgspec.structs.replace(one, admin=False))
            if one.sender not in gone and one.handle not in handles:
                members.append(msgspec.structs.replace(one.rebound(holds.group), admin=False))
    return msgspec.structs.replace(holds, members=tuple(members), past=tuple(past))


def _removed(edition: GroupEdition, entries: Mapping[bytes, EditionMember]) -> set[bytes]:
    """The senders of another edition's entries whose members this one removed, also if the other one gave them another
    entry since."""
    known, removed = edition.entries, set[bytes]()
    for one in edition.past:
        removed.add(one.sender)
        again = one.rebound(edition.group)
        if again.sender not in known:
            while again.sender in entries:
                removed.add(again.sender)
                again = again.rebound(edition.group)
    return removed


def left_out(holds: GroupEdition, other: GroupEdition) -> list[str]:
    """What of another edition its merger with the one that holds does not have."""
    result = merged(holds, other)
    there, gone = {one.handle for one in result.members}, {one.sender for one in holds.past}
    added = [one.handle for one in other.members if one.handle not in there and one.sender not in gone]
    past = {one.sender for one in other.past}
    removed = [one.handle for one in result.members if one.sender in past]
    nodes = [one.url for one in other.nodes if holds.node(one.id) is None]
    return [*(f"{one} (added)" for one in (*added, *nodes)), *(f"{one} (removed)" for one in removed)]


def needs_new_key(before: GroupEdition, after: GroupEdition) -> bool:
    """Whether a member went, or has another signing key: the holder of the old one may have the epoch's key as well."""
    keys = {one.sender: one.public_key for one in after.members}
    past = {one.sender for one in before.past}
    went = any(one.sender not in past for one in after.past)
    return went or any(keys.get(one.sender) != one.public_key for one in before.members)


def _with_newer_key(one: EditionMember, other: EditionMember) -> EditionMember:
    return one.with_key(other.public_key) if one.public_key in other.public_keys[1:] else one


def _admins(edition: GroupEdition) -> set[Admin]:
    return set() if edition.grant is None else set(edition.grant.admins)
