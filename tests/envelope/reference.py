"""The envelope written down a second time, straight from its definition and with none of its rules.

What a hostile sender could write: every field may hold anything, and what is sealed and signed is sealed and signed
correctly. Nothing here calls the product, except that keys are parsed by it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from angelia.envelope.signing import SigningPair
from angelia.envelope.wire import Envelope

ENVELOPE_LABEL, ENVELOPE_CONTEXT = b"angelia/v1/envelope-signature\0", b"angelia/v1/envelope"
BATCH_LABEL, BATCH_CONTEXT = b"angelia/v1/batch-root\0", b"angelia/v1/batch-root"


def counted(content: bytes) -> bytes:
    return struct.pack(">H", len(content)) + content


@dataclass(frozen=True, kw_only=True)
class Raw:
    """An envelope field by field."""

    magic: bytes = b"AGLE"
    version: int = 1
    suite: int
    flags: int
    message_id: bytes
    created_at: int
    expires_at: int
    ttl_seconds: int
    priority: int
    compression: int
    key_id: bytes
    sender_key_id: bytes
    sender_nhi: bytes
    recipient_nhi: bytes
    channel_id: bytes = b""
    correlation_id: bytes = b""
    session: bytes = b""
    nonce: bytes
    wrapped_key: bytes
    encrypted_payload: bytes
    auth_tag: bytes
    signature_ed25519: bytes
    signature_ml_dsa: bytes
    # u16 index, u16 count, u8 depth, path
    batch: bytes = b""

    @classmethod
    def of(cls, envelope: Envelope) -> Raw:
        header, proof = envelope.header, envelope.proof
        return cls(
            suite=int(header.suite),
            flags=(header.channel_id is not None)
            | (header.correlation_id is not None) << 1
            | (proof is not None) << 3
            | header.control << 4,
            message_id=header.message_id.bytes,
            created_at=header.created_at,
            expires_at=header.created_at + 1000 * header.ttl_seconds,
            ttl_seconds=header.ttl_seconds,
            priority=int(header.priority),
            compression=int(header.compression),
            key_id=header.key_id.bytes,
            sender_key_id=header.sender_key_id.bytes,
            sender_nhi=header.sender_nhi.encode(),
            recipient_nhi=header.recipient_nhi.encode(),
            channel_id=header.channel_id.bytes if header.channel_id else b"",
            correlation_id=header.correlation_id.bytes if header.correlation_id else b"",
            nonce=header.nonce,
            wrapped_key=header.wrapped_key,
            encrypted_payload=envelope.ciphertext,
            auth_tag=envelope.tag,
            signature_ed25519=envelope.signatures.ed25519,
            signature_ml_dsa=envelope.signatures.ml_dsa,
            batch=place(proof.index, proof.count, proof.path) if proof else b"",
        )

    def but(self, **changes: object) -> Self:
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def head(self) -> bytes:
        fixed = struct.pack(">4sBBH", self.magic, self.version, self.suite, self.flags) + self.message_id
        times = struct.pack(">QQI", self.created_at, self.expires_at, self.ttl_seconds)
        keys = bytes([self.priority, self.compression]) + self.key_id + self.sender_key_id
        names = counted(self.sender_nhi) + counted(self.recipient_nhi)
        optional = self.channel_id + self.correlation_id + self.session
        return fixed + times + keys + names + optional + self.nonce + counted(self.wrapped_key)

    @property
    def wire(self) -> bytes:
        sealed = struct.pack(">I", len(self.encrypted_payload)) + self.encrypted_payload + self.auth_tag
        return self.head + sealed + self.signature_ed25519 + counted(self.signature_ml_dsa) + self.batch

    @property
    def digest(self) -> bytes:
        """What the signatures cover, after their label."""
        head, payload = self.head, self.encrypted_payload
        framed = struct.pack(">I", len(head)) + head + struct.pack(">I", len(payload)) + payload
        return hashlib.sha512(framed + self.auth_tag).digest()

    def sealed(self, secret: bytes, recipient_key: bytes, frame: bytes) -> Self:
        """With this inner frame, encrypted as the definition says."""
        out = AESGCM(message_key(secret, self.head, recipient_key)).encrypt(self.nonce, frame, self.head)
        return self.but(encrypted_payload=out[:-16], auth_tag=out[-16:])

    def signed(self, pair: SigningPair) -> Self:
        """With both signatures of its own."""
        ed25519, ml_dsa = private_keys(pair)
        message = ENVELOPE_LABEL + self.digest
        return self.but(
            signature_ed25519=ed25519.sign(message), signature_ml_dsa=ml_dsa.sign(message, ENVELOPE_CONTEXT)
        )


def private_keys(pair: SigningPair) -> tuple[Ed25519PrivateKey, MLDSA65PrivateKey]:
    ed25519, ml_dsa = pair.seeds
    return Ed25519PrivateKey.from_private_bytes(ed25519), MLDSA65PrivateKey.from_seed_bytes(ml_dsa)


def message_key(secret: bytes, head: bytes, recipient_key: bytes) -> bytes:
    info = b"angelia/v1/envelope-key\0" + hashlib.sha256(head).digest() + hashlib.sha256(recipient_key).digest()
    return HKDF(hashes.SHA256(), 32, b"angelia/v1/hkdf-salt", info).derive(secret)


def inner(raw_length: int, body: bytes, padding: bytes = b"", body_length: int | None = None) -> bytes:
    """An inner frame that may lie about its lengths."""
    return struct.pack(">II", raw_length, len(body) if body_length is None else body_length) + body + padding


def place(index: int, count: int, path: Sequence[bytes], depth: int | None = None) -> bytes:
    return struct.pack(">HHB", index, count, len(path) if depth is None else depth) + b"".join(path)


# The tree as RFC 9162, section 2.1, defines it: by halves, not by levels.


def leaf(message: bytes) -> bytes:
    return hashlib.sha256(b"\0" + message).digest()


def _split(count: int) -> int:
    """The largest power of two below a count."""
    return 1 << (count - 1).bit_length() - 1


def tree_root(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    half = _split(len(leaves))
    return hashlib.sha256(b"\1" + tree_root(leaves[:half]) + tree_root(leaves[half:])).digest()


def tree_path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    half = _split(len(leaves))
    if index < half:
        return [*tree_path(index, leaves[:half]), tree_root(leaves[half:])]
    return [*tree_path(index - half, leaves[half:]), tree_root(leaves[:half])]
