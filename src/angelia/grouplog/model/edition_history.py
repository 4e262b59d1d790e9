"""Which edition of a group holds, of those that are known. Two admins may change a group at once, and an admin that was
removed may go on: all members that know the same editions come to the same one, in whatever order they came.

Each edition follows the newest one of its lineage that is known, if its author was an admin there. Of several that
follow one edition

- that of an admin that another one removes does not hold, unless it removes the other's author too;
- then that of the admin that has been a member for longest holds, and of one admin's the one that was made last.

So an admin that was removed stays removed, whatever it makes afterwards, and of two that remove each other the older
member stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from angelia.grouplog.model.editions import EditionMember, GroupEdition, SignedEdition


def chain(base: SignedEdition, others: Sequence[SignedEdition]) -> list[SignedEdition]:
    """The editions from the one that holds for certain to the one that holds now, in their order. What others make of
    the editions before the first one counts as if it followed them."""
    known = {one.edition.digest: one for one in (base, *others)}
    before = set(base.edition.lineage) - set(known)
    rivals, following = [base], dict[bytes, list[SignedEdition]]()
    for one in others:
        nearest = next((digest for digest in one.edition.lineage if digest in known), None)
        if one.edition.digest in before:
            continue
        if nearest is not None:
            following.setdefault(nearest, []).append(one)
        elif not before.isdisjoint(one.edition.lineage) and _is_by_admin(one, base.edition):
            rivals.append(one)
    found = [_standing(rivals)]
    while True:
        last = found[-1].edition
        next_ones = [one for one in following.get(last.digest, ()) if follows(one, last)]
        if not next_ones:
            return found
        found.append(_standing(next_ones))


def follows(one: SignedEdition, before: GroupEdition) -> bool:
    """Whether an edition may come after another: its author was an admin there, and it takes nothing back."""
    edition = one.edition
    if before.digest not in edition.lineage or edition.config != before.config or edition.epoch < before.epoch:
        return False
    if edition.number != before.number + edition.lineage.index(before.digest) + 1:
        return False
    if edition.epoch == before.epoch and before.key_id not in (None, edition.key_id):
        return False
    return _is_by_admin(one, before)


def reapplied(onto: GroupEdition, before: GroupEdition, after: GroupEdition) -> GroupEdition:
    """What an edition would be if it had changed another one than it did: members that came and went, admins, keys and
    nodes. The number stays; if a member went or has another key, the epoch rises."""
    gone = {one.sender for one in before.members} - {one.sender for one in after.members}
    old = {one.sender: one for one in before.members}
    new = {one.sender: one for one in after.members}
    until = {one.sender: one.until for one in after.past}
    members, past = list[EditionMember](), list(onto.past)
    for one in onto.members:
        if one.sender in gone:
            past.append(msgspec.structs.replace(one, admin=False, until=until.get(one.sender)))
        elif one.sender in old and one.sender in new:
            members.append(_changed(one, old[one.sender], new[one.sender]))
        else:
            members.append(one)
    listed = {one.handle for one in members}
    binding = onto.next_binding
    for one in after.members:
        if one.sender not in old and one.handle not in listed:
            members.append(one.rebound(onto.group, binding))
            binding += 1
    left = {one.id for one in before.nodes} - {one.id for one in after.nodes}
    nodes = [one for one in onto.nodes if one.id not in left]
    nodes += [one for one in after.nodes if before.node(one.id) is None and onto.node(one.id) is None]
    changed = msgspec.structs.replace(onto, members=tuple(members), past=tuple(past), nodes=tuple(nodes))
    return msgspec.structs.replace(changed, epoch=onto.epoch + needs_new_key(onto, changed))


def needs_new_key(before: GroupEdition, after: GroupEdition) -> bool:
    """Whether a member went, or has another signing key: whoever has the old one may have the epoch's key as well."""
    keys = {one.sender: one.public_key for one in after.members}
    return any(keys.get(one.sender) != one.public_key for one in before.members)


def _is_by_admin(one: SignedEdition, of: GroupEdition) -> bool:
    author = of.admin(one.edition.author)
    return author is not None and one.is_by(author)


def _standing(rivals: Sequence[SignedEdition]) -> SignedEdition:
    """The one that holds, of several that follow one edition."""
    upheld = [one for one in rivals if not any(_undoes(other.edition, one.edition) for other in rivals)] or rivals
    return min(upheld, key=lambda one: (one.edition.author, -one.edition.made_at, one.edition.digest))


def _undoes(one: GroupEdition, other: GroupEdition) -> bool:
    """Whether an edition removes the author of another, which does not remove its author."""
    return one.admin(other.author) is None and other.admin(one.author) is not None


def _changed(member: EditionMember, old: EditionMember, new: EditionMember) -> EditionMember:
    if old.admin != new.admin:
        member = msgspec.structs.replace(member, admin=new.admin)
    return member if old.public_key == new.public_key else member.with_key(new.public_key)
