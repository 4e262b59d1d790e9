"""The envelope's one canonical form. Hashing, signing, storing and sending all use these bytes.

    H = magic(4) version(1) suite(1) flags(2) message_id(16) created_at(8) expires_at(8) ttl_seconds(4)
        priority(1) compression(1) key_id(16) sender_key_id(16)
        u16+sender_nhi  u16+recipient_nhi  [channel_id(16)] [correlation_id(16)]  nonce(12)  u16+wrapped_key
    W = H  u32+encrypted_payload  auth_tag(16)  signature_ed25519(64)  u16+signature_ml_dsa
        [index(2) count(2) depth(1) depth × 32]

Integers are big-endian. `decode(W).wire == W`, and no other bytes decode to the same envelope.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from angelia.envelope import kem, merkle_batch, signing
from angelia.envelope.ids import KeyType, valid_handle
from angelia.envelope.merkle_batch import MerkleProof
from angelia.envelope.refusals import Malformed, SuiteRefused
from angelia.envelope.signing import Signatures

MAGIC = b"AGLE"
VERSION = 1
TTL_DEFAULT = TTL_MAX = 604_800
TTL_CEILING = 2_592_000  # what a setting may raise TTL_MAX to, and so what a stored envelope may have
MAX_PLAINTEXT = 1 << 20
MAX_PAD = 1 << 16
MAX_ENVELOPE = 1_122_304
NONCE, TAG = 12, 16
_LEAST_FRAME, _MOST_FRAME = 8, MAX_PLAINTEXT + 8 + MAX_PAD
LATEST = 1 << 53  # times and versions stay exact in every JSON reader
_FIXED = struct.Struct(">4sBBH16sQQIBB16s16s")


class Suite(IntEnum):
    """How an envelope's secret is made."""

    ML_KEM = 1
    XWING = 2
    SESSION = 3  # reserved: the number is known, envelopes of it are refused
    CHANNEL = 4

    @property
    def bit(self) -> int:
        """Its place in a bundle's mask of suites."""
        return 1 << self - 1


class Priority(IntEnum):
    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    ZSTD = 2


# The bits of `flags`: plain numbers, since an operation with members of an IntFlag takes a microsecond.
_CHANNEL, _CORRELATION, _SESSION, _BATCH, _CONTROL = 1, 2, 4, 8, 16
_UNKNOWN_FLAGS = 0xFFFF & ~(_CHANNEL | _CORRELATION | _SESSION | _BATCH | _CONTROL)
# By number, which is faster than to call the enum.
_SUITES = {suite.value: suite for suite in Suite}
_PRIORITIES, _COMPRESSIONS = tuple(Priority), tuple(Compression)
# The suite that seals to a type of key.
SUITE_OF = {KeyType.ML_KEM_768: Suite.ML_KEM, KeyType.XWING: Suite.XWING, KeyType.CHANNEL_EPOCH: Suite.CHANNEL}
_WRAPPED_BYTES = {suite: kem.WRAPPED_BYTES.get(kind, 0) for kind, suite in SUITE_OF.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Everything about a message except its content. All of it is signed, and bound into the key."""

    suite: Suite
    message_id: UUID
    created_at: int
    ttl_seconds: int
    priority: Priority
    compression: Compression
    key_id: UUID
    sender_key_id: UUID
    sender_nhi: str
    recipient_nhi: str
    channel_id: UUID | None = None
    correlation_id: UUID | None = None
    control: bool = False
    batched: bool = False
    nonce: bytes = field(repr=False)
    wrapped_key: bytes = field(repr=False)

    @property
    def expires_at(self) -> int:
        return self.created_at + 1000 * self.ttl_seconds

    @property
    def flags(self) -> int:
        return (
            (_CHANNEL if self.channel_id else 0)
            | (_CORRELATION if self.correlation_id else 0)
            | (_BATCH if self.batched else 0)
            | (_CONTROL if self.control else 0)
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A sealed message: its header, and bytes that only the recipient can read and only the sender can have made."""

    header: Header
    head: bytes = field(repr=False)
    ciphertext: bytes = field(repr=False)
    tag: bytes = field(repr=False)
    signatures: Signatures = field(repr=False)
    proof: MerkleProof | None = field(repr=False)
    wire: bytes = field(repr=False)

    @property
    def replay_key(self) -> str:
        """The hash of the whole wire form, signatures included: the id of this very envelope."""
        return hashlib.sha256(self.wire).hexdigest()

    @property
    def digest(self) -> bytes:
        return signed_digest(self.head, self.ciphertext, self.tag)


def signed_digest(head: bytes, ciphertext: bytes, tag: bytes) -> bytes:
    """Returns the bytes that the signatures of an envelope cover, after their label."""
    hashed = hashlib.sha512(len(head).to_bytes(4, "big"))
    for part in (head, len(ciphertext).to_bytes(4, "big"), ciphertext, tag):
        hashed.update(part)
    return hashed.digest()


def encode_head(header: Header, ttl_max: int = TTL_MAX) -> bytes:
    """Returns H, after the same checks that `decode` makes."""
    _check(header, ttl_max)
    sender, recipient = header.sender_nhi.encode("ascii"), header.recipient_nhi.encode("ascii")
    parts = [
        _FIXED.pack(
            MAGIC,
            VERSION,
            header.suite,
            header.flags,
            header.message_id.bytes,
            header.created_at,
            header.expires_at,
            header.ttl_seconds,
            header.priority,
            header.compression,
            header.key_id.bytes,
            header.sender_key_id.bytes,
        ),
        counted(sender),
        counted(recipient),
    ]
    parts += [optional.bytes for optional in (header.channel_id, header.correlation_id) if optional]
    parts += [header.nonce, counted(header.wrapped_key)]
    return b"".join(parts)


def assemble(
    header: Header, head: bytes, ciphertext: bytes, tag: bytes, signatures: Signatures, proof: MerkleProof | None = None
) -> Envelope:
    """Returns the envelope of these parts."""
    parts = [
        head,
        len(ciphertext).to_bytes(4, "big"),
        ciphertext,
        tag,
        signatures.ed25519,
        counted(signatures.ml_dsa),
    ]
    if proof is not None:
        parts += [struct.pack(">HHB", proof.index, proof.count, len(proof.path)), *proof.path]
    return Envelope(header, head, ciphertext, tag, signatures, proof, b"".join(parts))


def decode(wire: bytes, ttl_max: int = TTL_CEILING) -> Envelope:
    """Parses a wire form. Every length is checked before memory of that length is taken."""
    if len(wire) > MAX_ENVELOPE:
        raise Malformed(f"an envelope has at most {MAX_ENVELOPE:,} bytes, this has {len(wire):,}")
    reader = _Reader(wire)
    magic, version, suite, flags, message_id, created_at, expires_at, ttl, priority, compression, key, sender_key = (
        _FIXED.unpack(reader.take(_FIXED.size))
    )
    if magic != MAGIC:
        raise Malformed("these bytes do not begin as an envelope does")
    if version != VERSION:
        raise Malformed(f"version {version} of the envelope is not known here", hint="update Angelia")
    known = _known_suite(suite)
    if flags & _UNKNOWN_FLAGS:
        raise Malformed("the envelope has flags that are not known here")
    if flags & _SESSION:
        raise Malformed("only an envelope of the session suite has a session block")
    if priority >= len(_PRIORITIES) or compression >= len(_COMPRESSIONS):
        raise Malformed("priority or compression has a value that is not known here")
    sender = reader.take_counted(2, 1, 255)
    recipient = reader.take_counted(2, 0, 255)
    channel_id = UUID(bytes=reader.take(16)) if flags & _CHANNEL else None
    correlation_id = UUID(bytes=reader.take(16)) if flags & _CORRELATION else None
    nonce = reader.take(NONCE)
    wrapped_key = reader.take_counted(2, _WRAPPED_BYTES[known], _WRAPPED_BYTES[known])
    header = Header(
        suite=known,
        message_id=UUID(bytes=message_id),
        created_at=created_at,
        ttl_seconds=ttl,
        priority=_PRIORITIES[priority],
        compression=_COMPRESSIONS[compression],
        key_id=UUID(bytes=key),
        sender_key_id=UUID(bytes=sender_key),
        # Latin-1 decodes any bytes, so that bytes that are no handle fail in the check and not here.
        sender_nhi=sender.decode("latin-1"),
        recipient_nhi=recipient.decode("latin-1"),
        channel_id=channel_id,
        correlation_id=correlation_id,
        control=bool(flags & _CONTROL),
        batched=bool(flags & _BATCH),
        nonce=nonce,
        wrapped_key=wrapped_key,
    )
    if expires_at != header.expires_at:
        raise Malformed("expires_at is not created_at and ttl_seconds")
    _check(header, ttl_max)
    head = wire[: reader.at]
    ciphertext = reader.take_counted(4, _LEAST_FRAME, _MOST_FRAME)
    tag = reader.take(TAG)
    ed25519 = reader.take(signing.ED25519_SIGNATURE)
    ml_dsa = reader.take_counted(2, signing.ML_DSA_SIGNATURE, signing.ML_DSA_SIGNATURE)
    proof = _take_proof(reader) if header.batched else None
    reader.finish()
    return Envelope(header, head, ciphertext, tag, Signatures(ed25519, ml_dsa), proof, bytes(wire))


def _known_suite(number: int) -> Suite:
    if number == Suite.SESSION:
        raise SuiteRefused("sessions (suite 3) are not served by this version")
    if number not in _WRAPPED_BYTES:
        raise Malformed(f"suite {number} is not known here")
    return _SUITES[number]


def _check(header: Header, ttl_max: int) -> None:
    """The rules for every envelope, when it is made and when it is read."""
    _known_suite(header.suite)
    raw = header.message_id.bytes
    if raw[6] >> 4 not in (4, 7) or raw[8] >> 6 != 2:
        raise Malformed("the message id is not a UUID of version 4 or 7")
    if not 1 <= header.ttl_seconds <= ttl_max:
        raise Malformed(f"ttl_seconds is not between 1 and {ttl_max}")
    if not 0 <= header.created_at < LATEST or header.expires_at >= LATEST:
        raise Malformed("created_at or expires_at is out of range")
    if not valid_handle(header.sender_nhi):
        raise Malformed("the sender is not a handle")
    if len(header.nonce) != NONCE or len(header.wrapped_key) != _WRAPPED_BYTES[header.suite]:
        raise Malformed("nonce or wrapped_key has the wrong length")
    if header.suite is not Suite.CHANNEL:
        if not valid_handle(header.recipient_nhi):
            raise Malformed("the recipient is not a handle")
        return
    if header.recipient_nhi:
        raise Malformed("an envelope for a channel names no recipient")
    if header.channel_id is None:
        raise Malformed("an envelope for a channel must name it")
    if header.control:
        raise Malformed("a channel carries no control messages")


def _take_proof(reader: _Reader) -> MerkleProof:
    index, count, depth = struct.unpack(">HHB", reader.take(5))
    if not 1 <= count <= merkle_batch.MOST_LEAVES or index >= count or depth != merkle_batch.depth(index, count):
        raise Malformed("the envelope's place in its batch is not possible")
    return MerkleProof(index, count, tuple(reader.take(32) for _ in range(depth)))


def counted(content: bytes) -> bytes:
    """Returns the bytes after their length, as all signed formats write them."""
    return len(content).to_bytes(2, "big") + content


def read_counted(content: bytes, at: int) -> tuple[bytes, int]:
    """Returns the bytes that `counted` wrote at an offset, and the offset after them."""
    end = at + 2 + int.from_bytes(content[at : at + 2], "big")
    return content[at + 2 : end], end


class _Reader:
    """Reads bytes from the front, never more than there are."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._content):
            raise Malformed("the envelope is cut off")
        taken = self._content[self.at : end]
        self.at = end
        return taken

    def take_counted(self, prefix: int, least: int, most: int) -> bytes:
        count = int.from_bytes(self.take(prefix), "big")
        if not least <= count <= most:
            raise Malformed("a length in the envelope is out of bounds")
        return self.take(count)

    def finish(self) -> None:
        if self.at != len(self._content):
            raise Malformed("there are bytes after the envelope")
