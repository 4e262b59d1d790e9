"""The JSON forms of a group: bytes are base64url without padding, senders hexadecimal, groups base58."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.envelope.curve_points import sound_ed25519
from angelia.envelope.json_form import from_text, to_text
from angelia.envelope.refusals import Malformed
from angelia.errors import InvalidArgument
from angelia.grouplog.model.groups import (
    FORMER_KEYS,
    MAX_ENTRIES,
    MAX_NODES,
    GroupConfig,
    GroupMember,
    LogFloor,
    LogGroupRow,
    Node,
    RosterEntry,
)
from angelia.grouplog.model.ids import MAX_SEQ, base58, parse_group, parse_sender
from angelia.grouplog.model.pieces import Completion, NodeReceipt

Seq = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
Epoch = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
Level = Annotated[int, msgspec.Meta(ge=0, le=255)]
Watermark = Annotated[dict[str, Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]], msgspec.Meta(max_length=MAX_ENTRIES)]
_KEY = 32


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EntryDocument(_Document, frozen=True, kw_only=True):
    """A member to be: the number of its roster entry, never used again, and its Ed25519 key. A node that does not know
    the member yet takes its former keys too, newest first: the oldest one makes the sender id."""

    binding: Seq
    public_key: str
    admin: bool = False
    former_keys: Annotated[list[str], msgspec.Meta(max_length=FORMER_KEYS)] = []

    def entry(self) -> RosterEntry:
        return RosterEntry(
            binding=self.binding,
            public_key=_key(self.public_key),
            admin=self.admin,
            former_keys=tuple(map(_key, self.former_keys)),
        )


class NodeDocument(_Document, frozen=True, kw_only=True):
    """A spool node: its public key, which is its id, and its URL for devices."""

    id: str
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]

    def node(self) -> Node:
        return Node(id=_key(self.id), url=self.url)

    @classmethod
    def of(cls, node: Node) -> NodeDocument:
        return cls(id=to_text(node.id), url=node.url)


Entries = Annotated[list[EntryDocument], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
Past = Annotated[list[EntryDocument], msgspec.Meta(max_length=MAX_ENTRIES)]
Nodes = Annotated[list[NodeDocument], msgspec.Meta(min_length=1, max_length=MAX_NODES)]


class NewGroup(_Document, frozen=True, kw_only=True):
    """A group to create. The request is signed by a member that is marked admin here. A node that joins a group later
    is told of past members too, whose messages stay."""

    group: str
    roster: Entries
    nodes: Nodes
    past: Past = []
    config: GroupConfig = GroupConfig()

    def id(self) -> bytes:
        return parse_group(self.group)


class NewRoster(_Document, frozen=True, kw_only=True):
    """A roster that replaces the present one, if that has this epoch. `past` names members that were."""

    epoch: Epoch
    roster: Entries
    past: Past = []


class NewNodes(_Document, frozen=True, kw_only=True):
    """A node list that replaces the present one, if that has this epoch."""

    epoch: Epoch
    nodes: Nodes


class GroupMemberDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group."""

    binding: int
    sender: str
    public_key: str
    admin: bool
    former_keys: list[str] = []

    @classmethod
    def of(cls, member: GroupMember) -> GroupMemberDocument:
        return cls(
            binding=member.binding,
            sender=member.sender.hex(),
            public_key=to_text(member.public_key),
            admin=member.admin,
            former_keys=[to_text(key) for key in member.former_keys],
        )


class GroupDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A group as its members see it: configuration, roster and nodes with their epochs."""

    group: str
    config: GroupConfig
    roster_epoch: int
    roster: list[GroupMemberDocument]
    past: list[GroupMemberDocument]
    node_epoch: int
    nodes: list[NodeDocument]

    @classmethod
    def of(cls, id: bytes, row: LogGroupRow) -> GroupDocument:
        return cls(
            group=base58(id),
            config=row.config,
            roster_epoch=row.roster.epoch,
            roster=[GroupMemberDocument.of(member) for member in row.roster.members],
            past=[GroupMemberDocument.of(member) for member in row.roster.past],
            node_epoch=row.nodes.epoch,
            nodes=[NodeDocument.of(node) for node in row.nodes.nodes],
        )


class FloorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a sender below this level up to this seq are superseded."""

    sender: str
    level: int
    seq: int

    @classmethod
    def of(cls, floor: LogFloor) -> FloorDocument:
        return cls(sender=floor.sender.hex(), level=floor.level, seq=floor.seq)


class HeldVector(msgspec.Struct, frozen=True, kw_only=True):
    """What a node holds: the highest seq of each sender, and the floors. Holes below are normal on one node."""

    highest: dict[str, int]
    floors: list[FloorDocument]


class NodeReceiptDocument(_Document, frozen=True, kw_only=True):
    """A node's word that it has synced a piece of a snapshot; 255 is the index of a whole one."""

    node: str
    index: Annotated[int, msgspec.Meta(ge=0, le=255)]
    digest: str
    signature: str

    @classmethod
    def of(cls, receipt: NodeReceipt) -> NodeReceiptDocument:
        return cls(
            node=to_text(receipt.node),
            index=receipt.index,
            digest=to_text(receipt.digest),
            signature=to_text(receipt.signature),
        )

    def receipt(self) -> NodeReceipt:
        return NodeReceipt(raw(self.node, _KEY), self.index, raw(self.digest, 32), raw(self.signature, 64))


class CompletionDocument(_Document, frozen=True, kw_only=True):
    """The signed word of a member that a snapshot is durable, with what proves it. A coded snapshot brings its
    manifest."""

    level: Level
    watermark: Watermark
    sender: str
    seq: Seq
    digest: str
    receipts: Annotated[list[NodeReceiptDocument], msgspec.Meta(max_length=2 * MAX_NODES)]
    signer: str
    signature: str
    manifest: str = ""

    def watermark_of(self) -> dict[bytes, int]:
        return {parse_sender(sender): seq for sender, seq in self.watermark.items()}

    def completion(self, group: bytes, watermark_digest: bytes) -> Completion:
        return Completion(
            group=group,
            level=self.level,
            sender=parse_sender(self.sender),
            seq=self.seq,
            digest=raw(self.digest, 32),
            watermark_digest=watermark_digest,
            receipts=[receipt.receipt() for receipt in self.receipts],
            signer=parse_sender(self.signer),
            signature=raw(self.signature, 64),
        )

    @classmethod
    def of(cls, completion: Completion, watermark: Mapping[bytes, int], manifest: bytes) -> CompletionDocument:
        return cls(
            level=completion.level,
            watermark={sender.hex(): seq for sender, seq in sorted(watermark.items())},
            sender=completion.sender.hex(),
            seq=completion.seq,
            digest=to_text(completion.digest),
            receipts=[NodeReceiptDocument.of(receipt) for receipt in completion.receipts],
            signer=completion.signer.hex(),
            signature=to_text(completion.signature),
            manifest=to_text(manifest),
        )


class DeletionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion did: the new floors, and how many ranges and single rows it removed."""

    floors: list[FloorDocument]
    ranges: int
    points: int


class CorruptDocument(msgspec.Struct, frozen=True, kw_only=True):
    sender: str
    seq: int


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """What a group takes on a node."""

    bytes: dict[str, int]  # by family
    quota_bytes: int
    snapshots: int
    floors: int
    corrupt: list[CorruptDocument]


class NodeIdentityDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A spool node: its id is its Ed25519 public key. A node of its own seals no audit, so it has signed no entry of
    one."""

    id: str
    key_id: UUID
    public_key: bytes
    signed: None = None


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of a file are imported."""

    source: str
    rows: int


def _key(text: str) -> bytes:
    """Returns an Ed25519 public key; InvalidArgument for one under which anything would hold."""
    key = raw(text, _KEY)
    if not sound_ed25519(key):
        raise InvalidArgument("this is no sound Ed25519 public key")
    return key


def raw(text: str, length: int) -> bytes:
    """Returns bytes of a known length from their text; InvalidArgument otherwise."""
    try:
        found = from_text(text)
    except Malformed as error:
        raise InvalidArgument(error.message) from error
    if len(found) != length:
        raise InvalidArgument(f"{length} bytes are expected here, and {len(found)} came")
    return found
