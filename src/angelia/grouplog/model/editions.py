"""What members of a group tell each other about it: members, nodes, configuration and the epoch key.

An admin sends each edition to all members as sealed mail. So a member believes no node about the group, and nodes never
learn names or keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.envelope.ids import valid_handle
from angelia.envelope.sealing import Control, EpochKey
from angelia.errors import InvalidArgument
from angelia.grouplog.model.groups import (
    FORMER_KEYS,
    MAX_ENTRIES,
    MAX_NODES,
    Binding,
    GroupConfig,
    GroupMember,
    Key,
    Node,
    RosterEntry,
)
from angelia.grouplog.model.ids import MAX_SEQ, sender_id

# The channel_id of mail that brings an edition, by which a member fetches it before its other mail.
EDITIONS = UUID("a6d1c1a0-6c6f-8e65-9a2b-67726f75706b")
MAX_NAME = 64
_VERSION = 1
Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
GroupId = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Secret = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class EditionMember(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member as other members know it. `public_keys` are its keys, the present one first. `until` is the last message
    that counts of a past member, as far as the admin knew that removed it; None if it knew nothing."""

    binding: Binding
    sender: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    handle: Annotated[str, msgspec.Meta(max_length=255)]
    public_keys: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=1 + FORMER_KEYS)]
    admin: bool
    until: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] | None = None

    def may_have_written(self, seq: int) -> bool:
        """Whether a message of it counts. With a dishonest node a removed member could go on under the old key."""
        return self.until is None or seq <= self.until

    @property
    def public_key(self) -> bytes:
        return self.public_keys[0]

    @property
    def entry(self) -> RosterEntry:
        """The member as nodes know it."""
        return RosterEntry(binding=self.binding, public_key=self.public_key, admin=self.admin)

    @property
    def on_nodes(self) -> GroupMember:
        """The member as a node's roster has it."""
        return GroupMember(
            binding=self.binding,
            sender=self.sender,
            public_key=self.public_key,
            admin=self.admin,
            former_keys=self.public_keys[1:],
        )

    def with_key(self, public_key: bytes) -> EditionMember:
        """The member with a new key. The oldest key stays, since the sender id comes from it."""
        if public_key == self.public_key:
            return self
        *others, first = self.public_keys
        keys = (public_key, *(key for key in others if key != public_key))[:FORMER_KEYS]
        return msgspec.structs.replace(self, public_keys=(*keys, first))


class EditionNode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: Key
    url: Annotated[str, msgspec.Meta(max_length=500, pattern=r"^https?://[a-z0-9._:\[\]-]+$")]

    @property
    def node(self) -> Node:
        return Node(id=self.id, url=self.url)


class GroupEdition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """A group at one moment. Numbers rise, and a later edition replaces an earlier one whole."""

    group: GroupId
    name: Name
    number: Number
    depth: Annotated[int, msgspec.Meta(ge=0, le=15)]
    min_copies: Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)]
    quota_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 50)]
    members: Annotated[tuple[EditionMember, ...], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
    past: Annotated[tuple[EditionMember, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
    nodes: Annotated[tuple[EditionNode, ...], msgspec.Meta(min_length=1, max_length=MAX_NODES)]
    epoch: Number

    @property
    def config(self) -> GroupConfig:
        return GroupConfig(depth=self.depth, min_copies=self.min_copies, quota_bytes=self.quota_bytes)

    @property
    def admins(self) -> list[str]:
        return [member.handle for member in self.members if member.admin]

    @property
    def node_ids(self) -> list[bytes]:
        return [node.id for node in self.nodes]

    def member(self, handle: str) -> EditionMember | None:
        return next((member for member in self.members if member.handle == handle), None)

    def by_sender(self, sender: bytes) -> EditionMember | None:
        """The present or past member of a sender id."""
        return next((member for member in (*self.members, *self.past) if member.sender == sender), None)

    def node(self, id: bytes) -> EditionNode | None:
        return next((node for node in self.nodes if node.id == id), None)

    @property
    def next_binding(self) -> int:
        return max(member.binding for member in (*self.members, *self.past)) + 1

    def check(self) -> None:
        """Raises InvalidArgument for an edition that contradicts itself."""
        for problem in self._problems():
            raise InvalidArgument(problem)

    def _problems(self) -> Iterator[str]:
        every = (*self.members, *self.past)
        if any(len({getattr(member, field) for member in every}) < len(every) for field in ("binding", "sender")):
            yield "an edition of a group names a member twice"
        if len({member.handle for member in self.members}) < len(self.members):
            yield "an edition of a group names a member twice"
        if not self.admins or not all(valid_handle(member.handle) for member in every):
            yield "an edition of a group has no admin, or a member without a handle"
        if len({node.id for node in self.nodes}) < len(self.nodes) or self.min_copies > len(self.nodes):
            yield "an edition of a group has too few nodes, or one twice"
        for member in every:
            if sender_id(self.group, member.public_keys[-1], member.binding) != member.sender:
                yield "an edition of a group has a member with another sender id than its key gives"


class _Mail(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    edition: GroupEdition
    secret: Secret


def encode_mail(edition: GroupEdition, key: EpochKey) -> bytes:
    """Returns the body of a control message that brings an edition with the key of its epoch."""
    return bytes((Control.GROUP_KEY,)) + msgspec.msgpack.encode(_Mail(_VERSION, edition, key.secret))


def decode_mail(message: bytes) -> tuple[GroupEdition, EpochKey]:
    """Parses the body of a control message; InvalidArgument if it brings no sound edition."""
    if message[:1] != bytes((Control.GROUP_KEY,)):
        raise InvalidArgument("the message brings no edition of a group")
    try:
        mail = msgspec.msgpack.decode(message[1:], type=_Mail)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the edition of a group cannot be read: {error}") from error
    if mail.version != _VERSION:
        raise InvalidArgument("the edition of a group is of a version that is not known", hint="update Angelia")
    mail.edition.check()
    return mail.edition, EpochKey.of(mail.secret)


def new_member(group: bytes, binding: int, handle: str, public_key: bytes, *, admin: bool) -> EditionMember:
    return EditionMember(binding, sender_id(group, public_key, binding), handle, (public_key,), admin)
