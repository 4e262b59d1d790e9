"""What is signed about snapshots: the manifest of a coded one, a node's receipt, and the completion of a compaction."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence

import msgspec

from angelia.envelope.ed25519 import verifying_key
from angelia.errors import BadManifest
from angelia.grouplog.model import coding
from angelia.grouplog.model.groups import MAX_LEVEL, MAX_NODES, MAX_SNAPSHOT, GroupMember
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.placement import Shape
from angelia.grouplog.model.records import WHOLE

SIGNATURE = 64
_MANIFEST_LABEL = b"angelia/v1/group-manifest\0"
_RECEIPT_LABEL = b"angelia/v1/node-receipt\0"
_COMPLETION_LABEL = b"angelia/v1/group-completion\0"
_VERSION = 1
_HEAD = struct.Struct(
    ">B32s8sQB32sB"
)  # version, group, sender, seq, level, digest of the watermark, length of the code
_BODY = struct.Struct(">BBQ32s")  # data shards, total shards, length of the object, its SHA-256
_PLACE = struct.Struct(">32s32s")  # SHA-256 of a shard, and the node that it is for
_RECEIPT = struct.Struct(">32s8sQBB32s")
_COMPLETION = struct.Struct(">B32sB8sQ32s32sB")
_CONFIRMED = struct.Struct(">32sB32s64s")

Sign = Callable[[bytes], bytes]


class ShardPlace(msgspec.Struct, frozen=True):
    """One shard in a manifest: its SHA-256, and the node that it was placed on at first."""

    digest: bytes
    node: bytes


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot's sender signs about its shards."""

    group: bytes
    sender: bytes
    seq: int
    level: int
    watermark_digest: bytes
    length: int
    digest: bytes  # SHA-256 of the ciphertext
    data_shards: int
    places: tuple[ShardPlace, ...]
    code: str = coding.CODE

    @property
    def shape(self) -> Shape:
        return Shape(self.data_shards, len(self.places))

    @property
    def shard_length(self) -> int:
        return coding.shard_length(self.length, self.data_shards)

    def fits(self, index: int, shard: bytes) -> bool:
        """Whether these bytes are the shard of an index. Checked before a decoder sees them."""
        return (
            index < len(self.places)
            and len(shard) == self.shard_length
            and hashlib.sha256(shard).digest() == self.places[index].digest
        )

    def _signed(self) -> bytes:
        code = self.code.encode("ascii")
        head = _HEAD.pack(_VERSION, self.group, self.sender, self.seq, self.level, self.watermark_digest, len(code))
        body = _BODY.pack(self.data_shards, len(self.places), self.length, self.digest)
        return head + code + body + b"".join(_PLACE.pack(place.digest, place.node) for place in self.places)

    def encode(self, sign: Sign) -> bytes:
        signed = self._signed()
        return signed + sign(_MANIFEST_LABEL + signed)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Parses a manifest and checks its numbers, not its signature; BadManifest if it has another form."""
        try:
            return cls._parsed(data)
        except (struct.error, UnicodeDecodeError) as error:
            raise BadManifest("the manifest is not well formed") from error

    @classmethod
    def _parsed(cls, data: bytes) -> Manifest:
        version, group, sender, seq, level, watermark, code_length = _HEAD.unpack_from(data)
        at = _HEAD.size + code_length
        code = data[_HEAD.size : at].decode("ascii")
        data_shards, total, length, digest = _BODY.unpack_from(data, at)
        at += _BODY.size
        end = at + total * _PLACE.size
        if version != _VERSION or code != coding.CODE:
            raise BadManifest("the manifest is of a version or code that is not known")
        if not 1 <= data_shards <= total <= MAX_NODES or len(data) != end + SIGNATURE:
            raise BadManifest("the manifest does not list its shards")
        if not (1 <= seq <= MAX_SEQ and 1 <= level <= MAX_LEVEL and 1 <= length <= MAX_SNAPSHOT):
            raise BadManifest("the manifest has a seq, level or length that is not allowed")
        return cls(
            group=group,
            sender=sender,
            seq=seq,
            level=level,
            watermark_digest=watermark,
            length=length,
            digest=digest,
            data_shards=data_shards,
            places=tuple(ShardPlace(*place) for place in _PLACE.iter_unpack(data[at:end])),
            code=code,
        )


def verified_manifest(data: bytes, group: bytes, sender: bytes, seq: int, signer: GroupMember | None) -> Manifest:
    """Parses the manifest of one message, and verifies the signature of its sender; BadManifest otherwise."""
    manifest = Manifest.decode(data)
    if (manifest.group, manifest.sender, manifest.seq) != (group, sender, seq):
        raise BadManifest("the manifest is of another message")
    signed, signature = _MANIFEST_LABEL + data[:-SIGNATURE], data[-SIGNATURE:]
    keys = () if signer is None else (signer.public_key, *signer.former_keys)
    if not any(verifying_key(key).holds(signature, signed) for key in keys):
        raise BadManifest("the manifest is not signed by the message's sender")
    return manifest


class NodeReceipt(msgspec.Struct, frozen=True):
    """A node's word that a piece is synced on its disk. `digest` is the SHA-256 of the piece's data."""

    node: bytes
    index: int  # WHOLE for a message that is not cut into shards
    digest: bytes
    signature: bytes

    def holds(self, group: bytes, sender: bytes, seq: int, level: int) -> bool:
        signed = receipt_bytes(group, sender, seq, level, self.index, self.digest)
        return verifying_key(self.node).holds(self.signature, signed)


def receipt_bytes(group: bytes, sender: bytes, seq: int, level: int, index: int, digest: bytes) -> bytes:
    """What a node signs: that it has synced this piece. The level is part of it, so that a completion of another level
    finds no node that confirms it."""
    return _RECEIPT_LABEL + _RECEIPT.pack(group, sender, seq, level, index, digest) + b"synced"


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The word of a member that a snapshot is durable: what it replaces may be forgotten."""

    group: bytes
    level: int
    sender: bytes  # of the snapshot
    seq: int
    digest: bytes  # SHA-256 of the manifest, or of the ciphertext if it is stored whole
    watermark_digest: bytes
    receipts: Sequence[NodeReceipt]
    signer: bytes
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        packed = _COMPLETION.pack(
            _VERSION,
            self.group,
            self.level,
            self.sender,
            self.seq,
            self.digest,
            self.watermark_digest,
            len(self.receipts),
        )
        return _COMPLETION_LABEL + packed + b"".join(self._packed_receipts()) + self.signer

    def _packed_receipts(self) -> Iterator[bytes]:
        for receipt in self.receipts:
            yield _CONFIRMED.pack(receipt.node, receipt.index, receipt.digest, receipt.signature)

    def signed(self, sign: Sign) -> Completion:
        return msgspec.structs.replace(self, signature=sign(self.signed_bytes()))

    def confirmed(self, whole_digest: bytes | None, manifest: Manifest | None) -> int:
        """How many different nodes hold a piece of the snapshot, by receipts that hold and name its true digest."""
        nodes: set[bytes] = set()
        indexes: set[int] = set()
        for receipt in self.receipts:
            if manifest is None:
                wanted = whole_digest if receipt.index == WHOLE else None
            else:
                in_range = receipt.index < len(manifest.places) and receipt.index not in indexes
                wanted = manifest.places[receipt.index].digest if in_range else None
            if receipt.digest == wanted and receipt.holds(self.group, self.sender, self.seq, self.level):
                nodes.add(receipt.node)
                indexes.add(receipt.index)
        return len(nodes) if manifest is None else min(len(nodes), len(indexes))
