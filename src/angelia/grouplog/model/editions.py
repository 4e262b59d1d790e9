"""What members of a group tell each other about it: members, nodes, configuration and the epoch key.

The admin that makes an edition signs it, and admins send it to all members as sealed mail. So a member believes no node
about the group, and nodes never learn names or keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Self
from uuid import UUID

import msgspec

from angelia.envelope.ed25519 import SIGNATURE_BYTES, verifying_key
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
    RosterEntry,
)
from angelia.grouplog.model.ids import MAX_SEQ, sender_id

# The channel_id of mail that brings an edition, by which a member fetches it before its other mail.
EDITIONS = UUID("a6d1c1a0-6c6f-8e65-9a2b-67726f75706b")
MAX_NAME = 64
MAX_SENT = 64  # editions of one mail
MAX_EDITION = MAX_PLAINTEXT - 256  # of mail; the rest is for key and signature
_BINDING_GAP = 1 << 20
_VERSION = 2
_DIGEST_LABEL = b"angelia/v1/group-edition\0"
Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
GroupId = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Secret = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Sign = Callable[[bytes], bytes]


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

    def rebound(self, group: bytes, binding: int) -> EditionMember:
        """The member under another entry of the roster, and so with another sender id."""
        return msgspec.structs.replace(self, binding=binding, sender=sender_id(group, self.public_keys[-1], binding))


class EditionNode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: Key
    url: Annotated[str, msgspec.Meta(max_length=500, pattern=r"^https?://[a-z0-9._:\[\]-]+$")]

    @property
    def node(self) -> Node:
        return Node(id=self.id, url=self.url)


class GroupEdition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """A group at one moment; each edition replaces the one before it whole.

    Members are listed in the order in which they joined. `author` is the binding of the admin that made the edition,
    `parent` the digest of the one before it, and `key_id` names the key of its epoch. Those from before editions were
    signed have none of these."""

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
    author: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] = 0
    key_id: UUID | None = None
    parent: Digest | None = None

    @property
    def digest(self) -> bytes:
        return sha256(_DIGEST_LABEL + msgspec.msgpack.encode(self)).digest()

    def following(self, before: GroupEdition, author: int, key: EpochKey) -> GroupEdition:
        """This edition as the one after another, as its author makes it."""
        return msgspec.structs.replace(
            self, number=before.number + 1, author=author, key_id=key.key_id, parent=before.digest
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

    def admin(self, binding: int) -> EditionMember | None:
        """The admin of a roster entry."""
        return next((member for member in self.members if member.binding == binding and member.admin), None)

    def by_sender(self, sender: bytes) -> EditionMember | None:
        """The present or past member of a sender id."""
        return next((member for member in (*self.members, *self.past) if member.sender == sender), None)

    def node(self, id: bytes) -> EditionNode | None:
        return next((node for node in self.nodes if node.id == id), None)

    def new_binding(self, handle: str) -> int:
        """The binding of a member that is added to this edition: above all that were used, and hardly that of another
        member which another admin adds at the same time."""
        highest = max(member.binding for member in (*self.members, *self.past))
        chance = sha256(self.digest + handle.encode()).digest()
        return highest + 1 + int.from_bytes(chance[:4]) % _BINDING_GAP

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
        if self.author and (self.parent is None) != (self.number == 1):
            yield "an edition of a group does not name the one before it"
        if len(msgspec.msgpack.encode(self)) > MAX_EDITION:
            yield f"an edition of a group has at most {MAX_EDITION:,} bytes, so it has fewer members than these"
        for member in every:
            if sender_id(self.group, member.public_keys[-1], member.binding) != member.sender:
                yield "an edition of a group has a member with another sender id than its key gives"


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

    def is_by_its_author(self) -> bool:
        """Whether the member that it names as its author signed it: what a new member of a group can verify."""
        every = (*self.edition.members, *self.edition.past)
        return any(
            self.is_signed_with(key) for one in every if one.binding == self.edition.author for key in one.public_keys
        )

    def is_signed_with(self, public_key: bytes) -> bool:
        return verifying_key(public_key).holds(self.signature, self.digest)


@dataclass(frozen=True, slots=True)
class SentEdition:
    """An edition on its way to a member, with the key of its epoch if the member was in the group then."""

    signed: SignedEdition
    key: EpochKey | None


class _Sent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    edition: GroupEdition
    signature: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)]
    secret: Secret | None


class _Mail(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    editions: Annotated[tuple[_Sent, ...], msgspec.Meta(min_length=1, max_length=MAX_SENT)]


def encode_mail(editions: Sequence[SentEdition]) -> bytes:
    """Returns the body of a control message that brings editions of a group, which follow each other."""
    sent = [
        _Sent(one.signed.edition, one.signed.signature, None if one.key is None else one.key.secret) for one in editions
    ]
    return bytes((Control.GROUP_KEY,)) + msgspec.msgpack.encode(_Mail(_VERSION, tuple(sent)))


def decode_mail(message: bytes) -> list[SentEdition]:
    """Parses the body of a control message; InvalidArgument if it does not bring sound editions of one group, the last
    of them with its key."""
    if message[:1] != bytes((Control.GROUP_KEY,)):
        raise InvalidArgument("the message brings no edition of a group")
    try:
        mail = msgspec.msgpack.decode(message[1:], type=_Mail)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the edition of a group cannot be read: {error}") from error
    if mail.version != _VERSION:
        raise InvalidArgument("the edition of a group is of a version that is not known", hint="update Angelia")
    if len({one.edition.group for one in mail.editions}) > 1:
        raise InvalidArgument("a message brings editions of one group")
    return [_received(one, needs_key=one is mail.editions[-1]) for one in mail.editions]


def _received(sent: _Sent, *, needs_key: bool) -> SentEdition:
    sent.edition.check()
    key = None if sent.secret is None else EpochKey.of(sent.secret)
    if (needs_key or key is not None) and (key is None or key.key_id != sent.edition.key_id):
        raise InvalidArgument("the edition of a group comes with another key than it names")
    return SentEdition(SignedEdition(sent.edition, sent.signature), key)


def new_member(group: bytes, binding: int, handle: str, public_key: bytes, *, admin: bool) -> EditionMember:
    return EditionMember(binding, sender_id(group, public_key, binding), handle, (public_key,), admin)
