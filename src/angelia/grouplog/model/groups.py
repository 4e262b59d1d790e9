"""The group log's records and rules without I/O: ids, roster, nodes, configuration, limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.envelope.ids import KeyType, key_id
from angelia.errors import InvalidArgument, SenderTaken
from angelia.grouplog.model.ids import MAX_SEQ, sender_id

MAX_LEVEL = 15
MAX_UPDATE = 1 << 20  # bytes of data of a level-0 message
MAX_PIECE = 16 << 20  # of a shard, and of a frame
MAX_SNAPSHOT = 64 << 20
MAX_ENTRIES = 10_000  # of a state vector, and of a roster with its past members
MAX_NODES = 32
MAX_GROUPS = 100_000  # of one node
MAX_BATCH = 256  # messages of one append
FORMER_KEYS = 16  # of a member
HEADROOM = 1.1  # of the quota, for snapshots and deletions

Vector = Mapping[bytes, int]  # sender → seq: everything of this sender up to here, without holes
Ranges = Mapping[bytes, list[tuple[int, int]]]  # sender → closed ranges above its vector entry


Binding = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as its group's roster has it. `binding` is the number of the entry, never used again."""

    binding: int
    sender: bytes
    public_key: bytes
    admin: bool = False
    former_keys: tuple[bytes, ...] = ()  # they signed manifests that are still stored

    @property
    def key_id(self) -> UUID:
        return key_id(KeyType.ED25519, self.public_key)


class RosterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A member as an admin names it: the binding of a present member keeps its sender id, also with another key. Former
    keys count only for one that is new to the node."""

    binding: Binding
    public_key: Key
    admin: bool = False
    former_keys: tuple[Key, ...] = ()


class GroupRoster(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a group, and those that were. Senders of past members stay known: their messages stay."""

    epoch: int
    members: tuple[GroupMember, ...]
    past: tuple[GroupMember, ...] = ()

    def by_sender(self, sender: bytes) -> GroupMember | None:
        return next((member for member in self.members if member.sender == sender), None)

    def signer(self, sender: bytes) -> GroupMember | None:
        """The present or past member of a sender id."""
        return next((member for member in (*self.members, *self.past) if member.sender == sender), None)

    @classmethod
    def first(cls, group: bytes, entries: Iterable[RosterEntry], past: Iterable[RosterEntry] = ()) -> GroupRoster:
        return cls(epoch=0, members=()).replaced(group, entries, past)

    def replaced(self, group: bytes, entries: Iterable[RosterEntry], past: Iterable[RosterEntry] = ()) -> GroupRoster:
        """Returns the next roster. Bindings and sender ids of the past are refused for new members. `past` names past
        members that this node may not know: it verifies what they signed."""
        known = {member.binding: member for member in self.members}
        used = {member.binding for member in (*self.members, *self.past)}
        taken = {member.sender for member in (*self.members, *self.past)}
        gone = list(self.past)
        for entry in past:
            if entry.binding not in used:
                member = _new_member(group, msgspec.structs.replace(entry, admin=False))
                used.add(member.binding)
                taken.add(member.sender)
                gone.append(member)
        newest = max(used, default=0)
        members: list[GroupMember] = []
        for entry in entries:
            present = known.pop(entry.binding, None)
            if present is not None:
                members.append(_with_key(present, entry))
                continue
            if entry.binding in used:
                raise InvalidArgument(
                    f"binding {entry.binding} was used before", hint=f"new members get numbers above {newest}"
                )
            member = _new_member(group, entry)
            if member.sender in taken:
                raise SenderTaken(f"binding {entry.binding} would have a sender id that is taken")
            used.add(member.binding)
            taken.add(member.sender)
            members.append(member)
        _check(members)
        gone += known.values()
        if len(members) + len(gone) > MAX_ENTRIES:
            raise InvalidArgument(f"a group has at most {MAX_ENTRIES:,} members, past ones counted")
        return GroupRoster(epoch=self.epoch + 1, members=tuple(members), past=tuple(gone))


def _new_member(group: bytes, entry: RosterEntry) -> GroupMember:
    return GroupMember(
        binding=entry.binding,
        sender=sender_id(group, (entry.public_key, *entry.former_keys)[-1], entry.binding),
        public_key=entry.public_key,
        admin=entry.admin,
        former_keys=entry.former_keys,
    )


def _with_key(present: GroupMember, entry: RosterEntry) -> GroupMember:
    former = present.former_keys
    if entry.public_key != present.public_key:
        former = (present.public_key, *(key for key in former if key != entry.public_key))[:FORMER_KEYS]
    return msgspec.structs.replace(present, public_key=entry.public_key, admin=entry.admin, former_keys=former)


def _check(members: list[GroupMember]) -> None:
    if not any(member.admin for member in members):
        raise InvalidArgument("a roster needs a member marked admin", hint="otherwise no member could change it again")
    if len({member.public_key for member in members}) < len(members):
        raise InvalidArgument("a roster names each public key once")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A spool node of a group: the public key that is its id, and its URL for devices."""

    id: Key
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    nodes: tuple[Node, ...]

    def replaced(self, nodes: Iterable[Node]) -> NodeList:
        listed = tuple(nodes)
        if not 1 <= len(listed) <= MAX_NODES:
            raise InvalidArgument(f"a group has 1 to {MAX_NODES} nodes")
        if len({node.id for node in listed}) < len(listed):
            raise InvalidArgument("a node is listed once")
        return NodeList(epoch=self.epoch + 1, nodes=listed)


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What all members of a group agree on. Placement depends on it, so it never changes."""

    depth: Annotated[int, msgspec.Meta(ge=0, le=MAX_LEVEL)] = 2
    min_copies: Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)] = 2
    quota_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 50)] = 2 << 30  # on one node


class GroupState(StrEnum):
    LIVE = "live"
    DROPPED = "dropped"  # its id is never used again


class LogGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A group as its node stores it. The ordinal is the node's own short name of the group in keys."""

    ordinal: int
    state: GroupState
    config: GroupConfig
    roster: GroupRoster
    nodes: NodeList
    schema: int = 1


class LogFloor(msgspec.Struct, frozen=True, order=True):
    """Messages of a sender below `level` up to `seq` are superseded."""

    sender: bytes
    level: int
    seq: int
