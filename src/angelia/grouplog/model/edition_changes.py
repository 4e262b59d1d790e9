"""What one edition of a group changes of another, so that it can be changed again on a third one."""

from __future__ import annotations

import msgspec

from angelia.grouplog.model.editions import EditionMember, GroupEdition


def reapplied(onto: GroupEdition, before: GroupEdition, after: GroupEdition) -> GroupEdition:
    """What an edition would be if it had changed another one than it did: members that came and went, their keys, and
    nodes. Number and admins stay; if a member went or has another key, the epoch rises."""
    gone = {_agent(one) for one in before.members} - {_agent(one) for one in after.members}
    old = {one.sender: one for one in before.members}
    new = {one.sender: one for one in after.members}
    until = {_agent(one): one.until for one in after.past}
    members, past = list[EditionMember](), list(onto.past)
    for one in onto.members:
        if _agent(one) in gone and not one.admin:
            past.append(msgspec.structs.replace(one, until=until.get(_agent(one))))
        elif one.sender in old and one.sender in new and old[one.sender].public_key != new[one.sender].public_key:
            members.append(one.with_key(new[one.sender].public_key))
        else:
            members.append(one)
    for one in after.members:
        if one.sender in old or one.sender in {other.sender for other in (*onto.members, *onto.past)}:
            continue
        # It may have written under this entry of the roster, which nodes never take back once it went.
        past.append(msgspec.structs.replace(one, admin=False))
        if all(_agent(other) != _agent(one) and other.handle != one.handle for other in members):
            members.append(msgspec.structs.replace(one.rebound(onto, one.handle), admin=False))
    left = {one.id for one in before.nodes} - {one.id for one in after.nodes}
    nodes = [one for one in onto.nodes if one.id not in left]
    nodes += [one for one in after.nodes if before.node(one.id) is None and onto.node(one.id) is None]
    changed = msgspec.structs.replace(onto, members=tuple(members), past=tuple(past), nodes=tuple(nodes))
    return msgspec.structs.replace(changed, epoch=onto.epoch + needs_new_key(onto, changed))


def needs_new_key(before: GroupEdition, after: GroupEdition) -> bool:
    """Whether a member went, or has another signing key: the holder of the old one may have the epoch's key as well."""
    keys = {one.sender: one.public_key for one in after.members}
    return any(keys.get(one.sender) != one.public_key for one in before.members)


def _agent(member: EditionMember) -> tuple[str, bytes]:
    """The agent that a member is, under whatever entry of the roster."""
    return member.handle, member.public_keys[-1]
