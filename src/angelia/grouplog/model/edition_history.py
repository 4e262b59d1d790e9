"""Which edition of a group holds, of those that are known. Two admins may change a group at once, and an admin that was
removed may go on: all members that know the same editions come to the same one, in whatever order they came.

Editions form a tree: each names the one that it follows. Admins have ranks, by the order in which they joined, and an
edition changes nothing of admins that rank above its author. Of several editions that follow one, that holds which the
admin of the highest rank made, or went on from.

So what an admin did is undone by admins of a higher rank alone, and one that was removed stays removed, wherever in the
past it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from angelia.grouplog.model.editions import EditionMember, GroupEdition, SignedEdition


def chain(base: SignedEdition, others: Iterable[SignedEdition]) -> list[SignedEdition]:
    """The editions from the first one that is known, which holds for certain, to the one that holds now."""
    following = _following(base, others)
    authors = _authors(base, following)
    found = [base]
    while next_ones := following[found[-1].digest]:
        ranks = _ranks(found[-1].edition)
        standing = min(
            (min(ranks.get(author, len(ranks)) for author in authors[one.digest]), one.digest) for one in next_ones
        )
        found.append(next(one for one in next_ones if one.digest == standing[1]))
    return found


def behind(base: SignedEdition, others: Iterable[SignedEdition]) -> list[SignedEdition]:
    """Those of the other editions that the first one led to, by whatever way."""
    return [one for found in _following(base, others).values() for one in found]


def follows(one: SignedEdition, before: SignedEdition) -> bool:
    """Whether an edition may come after another: an admin made it, and had the right to what it changes."""
    after, was = one.edition, before.edition
    author = was.admin(after.author)
    return (
        author is not None
        and (after.group, after.parent, after.number) == (was.group, before.digest, was.number + 1)
        and after.config == was.config
        and _keeps_key(was, after)
        and _keeps_members(was, after)
        and not overruled(was, after, author)
        and one.is_signed_with(author.public_key)
    )


def overruled(before: GroupEdition, after: GroupEdition, author: EditionMember) -> list[EditionMember]:
    """The admins that rank above the author of an edition and that it changes or removes, which it may not."""
    above = before.members[: before.members.index(author)]
    return [one for one in above if one.admin and one not in after.members]


def reapplied(onto: GroupEdition, before: GroupEdition, after: GroupEdition) -> GroupEdition:
    """What an edition would be if it had changed another one than it did: members that came and went, admins, keys and
    nodes. The number stays; if a member went or has another key, the epoch rises."""
    changed = _without(onto, before, after)
    old = {one.sender: one for one in before.members}
    new = {one.sender: one for one in after.members}
    members = [
        _changed(one, old[one.sender], new[one.sender]) if one.sender in old and one.sender in new else one
        for one in changed.members
    ]
    past = list(changed.past)
    for one in after.members:
        known = {other.sender for other in (*members, *past)}
        if one.sender in old or one.sender in known or any(other.handle == one.handle for other in members):
            continue
        # Nodes may have had it under this entry of the roster, which they never take back once it went.
        past.append(msgspec.structs.replace(one, admin=False))
        members.append(one.rebound(onto.group, onto.new_binding(one.handle)))
    left = {one.id for one in before.nodes} - {one.id for one in after.nodes}
    nodes = [one for one in onto.nodes if one.id not in left]
    nodes += [one for one in after.nodes if before.node(one.id) is None and onto.node(one.id) is None]
    changed = msgspec.structs.replace(changed, members=tuple(members), past=tuple(past), nodes=tuple(nodes))
    return _renewed(onto, changed)


def removed_again(onto: GroupEdition, before: GroupEdition, after: GroupEdition) -> GroupEdition:
    """What `reapplied` returns, but for all that is not the removal of a member."""
    return _renewed(onto, _without(onto, before, after))


def needs_new_key(before: GroupEdition, after: GroupEdition) -> bool:
    """Whether a member went, or has another signing key: the holder of the old one may have the epoch's key as well."""
    keys = {one.sender: one.public_key for one in after.members}
    return any(keys.get(one.sender) != one.public_key for one in before.members)


def _following(base: SignedEdition, others: Iterable[SignedEdition]) -> dict[bytes, list[SignedEdition]]:
    """The editions that may follow each one that the first one led to."""
    named = dict[bytes, list[SignedEdition]]()
    for one in others:
        if one.edition.parent is not None:
            named.setdefault(one.edition.parent, []).append(one)
    found, left = dict[bytes, list[SignedEdition]](), [base]
    while left:
        before = left.pop()
        found[before.digest] = [one for one in named.get(before.digest, ()) if follows(one, before)]
        left += found[before.digest]
    return found


def _authors(base: SignedEdition, following: dict[bytes, list[SignedEdition]]) -> dict[bytes, set[int]]:
    """Who made each edition, or one that it led to."""
    found = dict[bytes, set[int]]()
    for one in reversed(list(_walk(base, following))):
        found[one.digest] = {one.edition.author}.union(*(found[next_.digest] for next_ in following[one.digest]))
    return found


def _walk(base: SignedEdition, following: dict[bytes, list[SignedEdition]]) -> Iterator[SignedEdition]:
    """All editions, each before those that follow it."""
    left = [base]
    while left:
        one = left.pop()
        yield one
        left += following[one.digest]


def _ranks(edition: GroupEdition) -> dict[int, int]:
    """The ranks of admins, by their entries of the roster; 0 is the highest."""
    return {one.binding: rank for rank, one in enumerate(edition.members) if one.admin}


def _keeps_key(before: GroupEdition, after: GroupEdition) -> bool:
    """Whether the epoch rises by one with a new key, or stays with the same one where no member went."""
    if after.epoch == before.epoch:
        return before.key_id in (None, after.key_id) and not needs_new_key(before, after)
    return after.epoch == before.epoch + 1 and after.key_id != before.key_id


def _keeps_members(before: GroupEdition, after: GroupEdition) -> bool:
    """Whether no member is forgotten or becomes another agent, past ones stay past, and new ones come last."""
    now = {one.sender: one.handle for one in (*after.members, *after.past)}
    if any(now.get(one.sender) != one.handle for one in before.members) or not set(before.past) <= set(after.past):
        return False
    stay = {one.sender for one in after.members}
    kept = [one.sender for one in before.members if one.sender in stay]
    return [one.sender for one in after.members[: len(kept)]] == kept


def _without(onto: GroupEdition, before: GroupEdition, after: GroupEdition) -> GroupEdition:
    gone = {one.sender for one in before.members} - {one.sender for one in after.members}
    until = {one.sender: one.until for one in after.past}
    past = [
        msgspec.structs.replace(one, admin=False, until=until.get(one.sender))
        for one in onto.members
        if one.sender in gone
    ]
    members = tuple(one for one in onto.members if one.sender not in gone)
    return msgspec.structs.replace(onto, members=members, past=(*onto.past, *past))


def _renewed(onto: GroupEdition, changed: GroupEdition) -> GroupEdition:
    return msgspec.structs.replace(changed, epoch=onto.epoch + needs_new_key(onto, changed))


def _changed(member: EditionMember, old: EditionMember, new: EditionMember) -> EditionMember:
    if old.admin != new.admin:
        member = msgspec.structs.replace(member, admin=new.admin)
    return member if old.public_key == new.public_key else member.with_key(new.public_key)
