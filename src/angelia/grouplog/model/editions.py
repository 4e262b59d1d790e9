"""What members of a group tell each other about it: members, nodes, configuration and the epoch key.

The owner, the agent that made the group, sends each edition to all members as sealed mail. So a member believes no node
about the group, and nodes never learn names or keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Self
from uuid import UUID

import msgspec

from angelia.envelope.curve_points import sound_ed25519
from angelia.envelope.ids import valid_handle
from angelia.envelope.sealing import Control, EpochKey
from angelia.envelope.wire import MAX_PLAINTEXT
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
)
from angelia.grouplog.model.ids import MAX_SEQ, sender_id

# The channel_id of mail that brings an edition, by which a member fetches it before its other mail.
EDITIONS = UUID("a6d1c1a0-6c6f-8e65-9a2b-67726f75706b")
MAX_NAME = 64
MAX_KEYS = 64  # epochs whose keys come with an edition
MAX_EDITION = MAX_PLAINTEXT - 64 * MAX_KEYS  # of mail; the rest is for keys
_VERSION = 2
Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
GroupId = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Secret = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class EditionMember(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member as other members know it. `public_keys` are its keys, the present one first. `until` is the last message
    that counts of a past member, as far as the owner knew that removed it; None if it knew nothing."""

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
    """A group at one moment; each edition replaces the one before it whole. Its owner is the one admin, and `key_id`
    names the key of its epoch. Groups from before that may have several admins, and name no key."""

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
    key_id: UUID | None = None

    @property
    def owner(self) -> EditionMember:
        """The member that made the group, or the first one of those that could change it."""
        return min((member for member in self.members if member.admin), key=lambda member: member.binding)

    def role(self, member: EditionMember) -> str:
        return "owner" if member.admin and member.sender == self.owner.sender else "member"

    def may_follow(self, before: GroupEdition) -> bool:
        """Whether this may be a later edition of the same group: it has its owner and configuration."""
        same = (self.owner.sender, self.owner.handle) == (before.owner.sender, before.owner.handle)
        return same and self.config == before.config

    def following(self, before: GroupEdition, key: EpochKey) -> GroupEdition:
        """This edition as the one after another, as the owner makes it."""
        owner = before.owner.sender
        members = tuple(msgspec.structs.replace(one, admin=one.sender == owner) for one in self.members)
        return msgspec.structs.replace(self, number=before.number + 1, members=members, key_id=key.key_id)

    @property
    def config(self) -> GroupConfig:
        return GroupConfig(depth=self.depth, min_copies=self.min_copies, quota_bytes=self.quota_bytes)

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

    def next_bindings(self) -> Iterator[int]:
        """The bindings of members that are added to this edition."""
        return itertools.count(max(member.binding for member in (*self.members, *self.past)) + 1)

    def check(self) -> None:
        """Raises InvalidArgument for an edition that contradicts itself."""
        for problem in self._problems():
            raise InvalidArgument(problem)

    def checked(self) -> Self:
        """Returns the edition as its recipients will read it; InvalidArgument if they would refuse it."""
        try:
            edition = msgspec.msgpack.decode(msgspec.msgpack.encode(self), type=type(self))
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"this is no group: {error}") from error
        edition.check()
        return edition

    def _problems(self) -> Iterator[str]:
        every = (*self.members, *self.past)
        if any(len({getattr(member, field) for member in every}) < len(every) for field in ("binding", "sender")):
            yield "an edition of a group names a member twice"
        if len({member.handle for member in self.members}) < len(self.members):
            yield "an edition of a group names a member twice"
        if sum(member.admin for member in every) != 1 or not all(valid_handle(member.handle) for member in every):
            yield "an edition of a group has another number of owners than one, or a member without a handle"
        if len({node.id for node in self.nodes}) < len(self.nodes) or self.min_copies > len(self.nodes):
            yield "an edition of a group has too few nodes, or one twice"
        if len(msgspec.msgpack.encode(self)) > MAX_EDITION:
            yield f"an edition of a group has at most {MAX_EDITION:,} bytes, so it has fewer members than these"
        for member in every:
            if sender_id(self.group, member.public_keys[-1], member.binding) != member.sender:
                yield "an edition of a group has a member with another sender id than its key gives"
        if len({member.public_key for member in self.members}) < len(self.members):
            yield "an edition of a group has two members with one key"
        if not all(sound_ed25519(key) for member in every for key in member.public_keys):
            yield "an edition of a group has a member with a key that is none"


@dataclass(frozen=True, slots=True)
class SentEdition:
    """An edition on its way to a member, with the keys of its epoch and of those before that the member lacks."""

    edition: GroupEdition
    keys: Sequence[tuple[int, EpochKey]]


class _Mail(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    edition: GroupEdition
    keys: Annotated[tuple[tuple[Number, Secret], ...], msgspec.Meta(min_length=1, max_length=MAX_KEYS)]


def encode_mail(sent: SentEdition) -> bytes:
    """Returns the body of a control message that brings an edition."""
    keys = tuple((epoch, key.secret) for epoch, key in sent.keys[-MAX_KEYS:])
    mail = _Mail(_VERSION, sent.edition, keys)
    return bytes((Control.GROUP_KEY,)) + msgspec.msgpack.encode(mail)


def decode_mail(message: bytes) -> SentEdition:
    """Parses the body of a control message; InvalidArgument if it brings no sound edition with its key."""
    if message[:1] != bytes((Control.GROUP_KEY,)):
        raise InvalidArgument("the message brings no edition of a group")
    try:
        mail = msgspec.msgpack.decode(message[1:], type=_Mail)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the edition of a group cannot be read: {error}") from error
    if mail.version != _VERSION:
        raise InvalidArgument("the edition of a group is of a version that is not known", hint="update Angelia")
    mail.edition.check()
    keys = [(epoch, EpochKey.of(secret)) for epoch, secret in mail.keys]
    epoch, key = keys[-1]
    if (epoch, key.key_id) != (mail.edition.epoch, mail.edition.key_id) or max(epoch for epoch, _ in keys) != epoch:
        raise InvalidArgument("the edition of a group comes with another key than it names")
    return SentEdition(mail.edition, keys)


def new_member(group: bytes, binding: int, handle: str, public_key: bytes, *, admin: bool) -> EditionMember:
    return EditionMember(binding, sender_id(group, public_key, binding), handle, (public_key,), admin)
