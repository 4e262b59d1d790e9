"""What members of a group tell each other about it: members, nodes, configuration and the epoch key.

The admin that makes an edition signs it, and admins send it to all members as sealed mail. So a member believes no node
about the group, and nodes never learn names or keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Self
from uuid import UUID

import msgspec

from angelia.envelope.curve_points import sound_ed25519
from angelia.envelope.ed25519 import verifying_key
from angelia.envelope.ids import valid_handle
from angelia.envelope.sealing import Control, EpochKey
from angelia.envelope.wire import MAX_PLAINTEXT
from angelia.errors import InvalidArgument
from angelia.grouplog.model.admin_grants import AdminGrant, Sign, Signature
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
MAX_LINEAGE = 16  # editions before one that it names
MAX_KEYS = 64  # epochs whose keys come with an edition
MAX_EDITION = MAX_PLAINTEXT - 64 * MAX_KEYS  # of mail; the rest is for keys and signature
_VERSION = 2
_REBOUND_LABEL = b"angelia/v1/group-entry-again\0"
_DIGEST_LABEL = b"angelia/v1/group-edition\0"
Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
GroupId = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Secret = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


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

    def rebound(self, group: bytes) -> EditionMember:
        """The member under another entry of the roster, and so with another sender id; always the same one."""
        binding = 1 + int.from_bytes(sha256(_REBOUND_LABEL + group + self.sender).digest()[:8]) % MAX_SEQ
        return msgspec.structs.replace(self, binding=binding, sender=sender_id(group, self.public_keys[-1], binding))


class EditionNode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: Key
    url: Annotated[str, msgspec.Meta(max_length=500, pattern=r"^https?://[a-z0-9._:\[\]-]+$")]

    @property
    def node(self) -> Node:
        return Node(id=self.id, url=self.url)


class GroupEdition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """A group at one moment; each edition replaces the one before it whole.

    `author` is the sender id of the admin that made the edition, `grant` says who the admins are, `key_id` names the
    key of its epoch, and `lineage` has the digests of the editions before it, the newest first. Those from before
    editions were signed have none of these."""

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
    author: Annotated[bytes, msgspec.Meta(max_length=8)] = b""
    key_id: UUID | None = None
    lineage: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MAX_LINEAGE)] = ()
    grant: AdminGrant | None = None

    @property
    def digest(self) -> bytes:
        return sha256(_DIGEST_LABEL + msgspec.msgpack.encode(self)).digest()

    @property
    def order(self) -> tuple[int, int, bytes]:
        """Of all editions under one key of the owner, that holds which is last in this order."""
        return 0 if self.grant is None else self.grant.generation, self.number, self.digest

    @property
    def owner(self) -> EditionMember:
        """The member that made the group; the first admin, in one from before editions were signed."""
        if self.grant is None:
            return next(member for member in self.members if member.admin)
        return next(member for member in self.members if member.sender == self.grant.owner.sender)

    @property
    def entries(self) -> dict[bytes, EditionMember]:
        """The present and past members by their sender ids."""
        return {member.sender: member for member in (*self.past, *self.members)}

    def role(self, member: EditionMember) -> str:
        return "member" if not member.admin else "owner" if member.sender == self.owner.sender else "admin"

    def following(self, before: GroupEdition, author: bytes, key: EpochKey) -> GroupEdition:
        """This edition as the one after another, as its author makes it."""
        return msgspec.structs.replace(
            self,
            number=counted_on(before.number),
            author=author,
            key_id=key.key_id,
            lineage=(before.digest, *before.lineage)[:MAX_LINEAGE],
        )

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

    def new_binding(self, handle: str) -> int:
        """The binding of a member that is added to this edition: none that was used, and hardly that of another member
        which another admin adds at the same time."""
        used = {member.binding for member in (*self.members, *self.past)}
        chance = self.digest + handle.encode()
        while True:
            chance = sha256(chance).digest()
            binding = 1 + int.from_bytes(chance[:8]) % MAX_SEQ
            if binding not in used:
                return binding

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
        if not self.admins or not all(valid_handle(member.handle) for member in every):
            yield "an edition of a group has no admin, or a member without a handle"
        if len({node.id for node in self.nodes}) < len(self.nodes) or self.min_copies > len(self.nodes):
            yield "an edition of a group has too few nodes, or one twice"
        if len(msgspec.msgpack.encode(self)) > MAX_EDITION:
            yield f"an edition of a group has at most {MAX_EDITION:,} bytes, so it has fewer members than these"
        for member in every:
            if sender_id(self.group, member.public_keys[-1], member.binding) != member.sender:
                yield "an edition of a group has a member with another sender id than its key gives"
        if len({member.public_key for member in self.members}) < len(self.members):
            yield "an edition of a group has two members with one key"
        if self.grant is not None:
            yield from self._problems_of_grant(self.grant)

    def _problems_of_grant(self, grant: AdminGrant) -> Iterator[str]:
        if not grant.is_consistent:
            yield "an edition of a group names an admin twice"
        admins = {(member.sender, member.handle) for member in self.members if member.admin}
        if admins != {(one.sender, one.handle) for one in grant.admins}:
            yield "an edition of a group has other admins than its owner says"
        if grant.admin(self.author) is None:
            yield "an edition of a group is not by one of its admins"
        if not all(sound_ed25519(key) for member in (*self.members, *self.past) for key in member.public_keys):
            yield "an edition of a group has a member with a key that is none"


def counted_on(number: int) -> int:
    """The number of the next edition or epoch. An admin that the owner has removed may have used them up."""
    return number % MAX_SEQ + 1


@dataclass(frozen=True)
class SignedEdition:
    """An edition with the signature of its author, which is empty for one from before they were signed."""

    edition: GroupEdition
    signature: bytes

    @classmethod
    def of(cls, edition: GroupEdition, sign: Sign) -> SignedEdition:
        return cls(edition, sign(edition.digest))

    @cached_property
    def digest(self) -> bytes:
        return self.edition.digest

    def is_sound(self) -> bool:
        """Whether the admin that it names signed it, and the group's owner says who the admins are. Which key is the
        owner's, is for the caller to know."""
        grant, edition = self.edition.grant, self.edition
        author = None if grant is None else grant.admin(edition.author)
        if grant is None or author is None or not grant.holds(edition.group):
            return False
        return verifying_key(author.public_key).holds(self.signature, self.digest)


@dataclass(frozen=True, slots=True)
class SentEdition:
    """An edition on its way to a member, with the keys of its epoch and of those before that the member lacks."""

    signed: SignedEdition
    keys: Sequence[tuple[int, EpochKey]]


class _Mail(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    edition: GroupEdition
    signature: Signature
    keys: Annotated[tuple[tuple[Number, Secret], ...], msgspec.Meta(min_length=1, max_length=MAX_KEYS)]


def encode_mail(sent: SentEdition) -> bytes:
    """Returns the body of a control message that brings an edition."""
    keys = tuple((epoch, key.secret) for epoch, key in sent.keys[-MAX_KEYS:])
    mail = _Mail(_VERSION, sent.signed.edition, sent.signed.signature, keys)
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
    return SentEdition(SignedEdition(mail.edition, mail.signature), keys)


def new_member(group: bytes, binding: int, handle: str, public_key: bytes, *, admin: bool) -> EditionMember:
    return EditionMember(binding, sender_id(group, public_key, binding), handle, (public_key,), admin)
