"""Seals messages and opens them: a KEM's secret, one AES-256-GCM key per message, two signatures."""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import ClassVar
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.envelope import frame, merkle_batch, wire
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.kem import KemPrivateKey, KemPublicKey
from angelia.envelope.merkle_batch import MerkleProof, VerifiedRoots
from angelia.envelope.refusals import InvalidKey, Malformed, OpenFailed, SignatureFailed
from angelia.envelope.signing import Purpose, SigningPair, VerifyingPair
from angelia.envelope.wire import (
    LATEST,
    NONCE,
    SUITE_OF,
    TAG,
    TTL_DEFAULT,
    TTL_MAX,
    Compression,
    Envelope,
    Header,
    Priority,
    Suite,
)

_SALT = b"angelia/v1/hkdf-salt"
_INFO = b"angelia/v1/envelope-key\0"
_EPOCH_KEY = 32

Random = Callable[[int], bytes]


class Control(IntEnum):
    """The first byte of a control message, which is for the SDK and not for a person."""

    CHANNEL_KEY = 1
    GROUP_KEY = 2


# type, channel_id, epoch, epoch key; then signer and version of the roster, which the previous release did not send
_CHANNEL_KEY, _EDITION = struct.Struct(">B16sQ32s"), struct.Struct(">16sQ")
CHANNEL_KEY_LENGTHS = (_CHANNEL_KEY.size, _CHANNEL_KEY.size + _EDITION.size)


@dataclass(frozen=True, slots=True)
class EpochKey:
    """The secret that the members of a channel share for an epoch; its id does not reveal it."""

    kind: ClassVar = KeyType.CHANNEL_EPOCH
    digest: ClassVar = bytes(32)  # in place of the digest of a recipient's public key

    secret: bytes = field(repr=False)
    key_id: UUID

    @classmethod
    def of(cls, secret: bytes) -> EpochKey:
        if len(secret) != _EPOCH_KEY:
            raise InvalidKey(f"the key of a channel has {_EPOCH_KEY} bytes")
        return cls(secret, key_id(KeyType.CHANNEL_EPOCH, sha256(secret).digest()))

    @classmethod
    def generate(cls, random: Random = os.urandom) -> EpochKey:
        return cls.of(random(_EPOCH_KEY))

    def encapsulate(self) -> tuple[bytes, bytes]:
        """Returns the secret; it needs no wrapped form, because the members of the channel have it."""
        return self.secret, b""


@dataclass(frozen=True, slots=True)
class Edition:
    """The id of one roster of a channel: each signing pair of its owner counts its own versions."""

    signer_id: UUID
    version: int


@dataclass(frozen=True, slots=True)
class ChannelKey:
    """The body of a control message that brings a channel's key.

    `made_under` is the roster that the key's maker had; the previous release names none."""

    channel_id: UUID
    epoch: int
    key: EpochKey
    made_under: Edition | None = None

    def encode(self) -> bytes:
        fixed = _CHANNEL_KEY.pack(Control.CHANNEL_KEY, self.channel_id.bytes, self.epoch, self.key.secret)
        if self.made_under is None:
            return fixed
        return fixed + _EDITION.pack(self.made_under.signer_id.bytes, self.made_under.version)

    @classmethod
    def decode(cls, message: bytes) -> ChannelKey | None:
        """Returns the key of a control message; None if it is of another type, or its roster version is impossible."""
        if len(message) not in CHANNEL_KEY_LENGTHS or message[0] != Control.CHANNEL_KEY:
            return None
        _, channel_id, epoch, secret = _CHANNEL_KEY.unpack_from(message)
        made_under = None
        if more := message[_CHANNEL_KEY.size :]:
            signer_id, version = _EDITION.unpack(more)
            if not 1 <= version < LATEST:
                return None
            made_under = Edition(UUID(bytes=signer_id), version)
        return cls(UUID(bytes=channel_id), epoch, EpochKey.of(secret), made_under)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message to be sealed: to a key of one recipient or, without a recipient, to the key of a channel's epoch. The
    sender chooses message id and time."""

    recipient: str = ""
    key: KemPublicKey | EpochKey
    body: bytes = field(repr=False)
    message_id: UUID
    created_at: int
    ttl_seconds: int = TTL_DEFAULT
    priority: Priority = Priority.NORMAL
    compression: Compression = Compression.NONE
    padme: bool = False
    channel_id: UUID | None = None
    correlation_id: UUID | None = None
    control: bool = False


@dataclass(frozen=True, slots=True)
class _Encrypted:
    """An envelope without its signatures."""

    header: Header
    head: bytes
    ciphertext: bytes
    tag: bytes


def seal(
    letter: Letter, sender: str, pair: SigningPair, *, ttl_max: int = TTL_MAX, random: Random = os.urandom
) -> Envelope:
    """Seals one message: holders of the key can read it, only the sender can have made it."""
    made = _encrypt(letter, sender, pair, ttl_max, random, batched=False)
    signatures = pair.sign(Purpose.ENVELOPE, wire.signed_digest(made.head, made.ciphertext, made.tag))
    return wire.assemble(made.header, made.head, made.ciphertext, made.tag, signatures)


def seal_batch(
    letters: Sequence[Letter], sender: str, pair: SigningPair, *, ttl_max: int = TTL_MAX, random: Random = os.urandom
) -> list[Envelope]:
    """Seals up to 256 messages under one pair of signatures; each can be verified without the others."""
    if not 1 <= len(letters) <= merkle_batch.MOST_LEAVES:
        raise Malformed(f"a batch has 1 to {merkle_batch.MOST_LEAVES} messages, this has {len(letters)}")
    made = [_encrypt(letter, sender, pair, ttl_max, random, batched=True) for letter in letters]
    root, paths = merkle_batch.tree([_leaf(one.head, one.ciphertext, one.tag) for one in made])
    signatures = pair.sign(Purpose.BATCH_ROOT, merkle_batch.signed_root(len(made), root))
    return [
        wire.assemble(one.header, one.head, one.ciphertext, one.tag, signatures, MerkleProof(index, len(made), path))
        for index, (one, path) in enumerate(zip(made, paths, strict=True))
    ]


def verify(envelope: Envelope, signer: VerifyingPair, roots: VerifiedRoots | None = None, now_ms: int = 0) -> None:
    """Raises unless both signatures are valid, by the pair that the envelope names; `roots` saves verifying a batch's
    signatures again."""
    if signer.signer_id != envelope.header.sender_key_id:
        raise SignatureFailed
    proof, signatures = envelope.proof, envelope.signatures
    if proof is None:
        if not signer.verify(Purpose.ENVELOPE, envelope.digest, signatures):
            raise SignatureFailed
        return
    root = merkle_batch.root_of(_leaf(envelope.head, envelope.ciphertext, envelope.tag), proof)
    if roots is not None and roots.has(signer.signer_id, proof.count, root, signatures, now_ms):
        return
    if not signer.verify(Purpose.BATCH_ROOT, merkle_batch.signed_root(proof.count, root), signatures):
        raise SignatureFailed
    if roots is not None:
        roots.add(signer.signer_id, proof.count, root, signatures, now_ms)


def unseal(envelope: Envelope, key: KemPrivateKey) -> bytes:
    """Returns the message. Every fault raises the same OpenFailed, so that an attacker learns nothing from it."""
    header = envelope.header
    if header.key_id != key.public.key_id or header.suite is not SUITE_OF[key.kind]:
        raise OpenFailed
    secret = key.decapsulate(header.wrapped_key)
    message = _decrypted(envelope, message_key(secret, envelope.head, key.public.digest))
    if header.control:
        _check_control(message)
    return message


def unseal_post(envelope: Envelope, channel_id: UUID, key: EpochKey) -> bytes:
    """Returns the message of a channel; as in `unseal`, every fault raises OpenFailed."""
    header = envelope.header
    if header.suite is not Suite.CHANNEL or (header.channel_id, header.key_id) != (channel_id, key.key_id):
        raise OpenFailed
    return _decrypted(envelope, message_key(key.secret, envelope.head, key.digest))


def message_key(secret: bytes, head: bytes, recipient_key_digest: bytes) -> bytes:
    """Returns the AES key of one message: HKDF-SHA256 over the secret, bound to the header and the recipient's key."""
    return derived_key(secret, _INFO + sha256(head).digest() + recipient_key_digest)


def derived_key(secret: bytes, info: bytes) -> bytes:
    """Returns a key of 32 bytes that belongs to one use of a secret."""
    return _hkdf(_SALT, secret, info)


def _hkdf(salt: bytes, secret: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) for an output of 32 bytes, which is one block."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\x01", "sha256")


def _encrypt(
    letter: Letter, sender: str, pair: SigningPair, ttl_max: int, random: Random, *, batched: bool
) -> _Encrypted:
    compression, body = frame.compress(letter.body, letter.compression)
    secret, wrapped_key = letter.key.encapsulate()
    header = Header(
        suite=SUITE_OF[letter.key.kind],
        message_id=letter.message_id,
        created_at=letter.created_at,
        ttl_seconds=letter.ttl_seconds,
        priority=letter.priority,
        compression=compression,
        key_id=letter.key.key_id,
        sender_key_id=pair.public.signer_id,
        sender_nhi=sender,
        recipient_nhi=letter.recipient,
        channel_id=letter.channel_id,
        correlation_id=letter.correlation_id,
        control=letter.control,
        batched=batched,
        nonce=random(NONCE),
        wrapped_key=wrapped_key,
    )
    head = wire.encode_head(header, ttl_max)
    plain = frame.pack(len(letter.body), body, padme=letter.padme)
    sealed = AESGCM(message_key(secret, head, letter.key.digest)).encrypt(header.nonce, plain, head)
    return _Encrypted(header, head, sealed[:-TAG], sealed[-TAG:])


def _decrypted(envelope: Envelope, key: bytes) -> bytes:
    header = envelope.header
    try:
        opened = AESGCM(key).decrypt(header.nonce, envelope.ciphertext + envelope.tag, envelope.head)
    except InvalidTag as error:
        raise OpenFailed from error
    return frame.unpack(opened, header.compression)


def _leaf(head: bytes, ciphertext: bytes, tag: bytes) -> bytes:
    return merkle_batch.leaf(Purpose.ENVELOPE.label + b"\0" + wire.signed_digest(head, ciphertext, tag))


def _check_control(message: bytes) -> None:
    kind = message[0] if message else None
    if kind == Control.CHANNEL_KEY and len(message) in CHANNEL_KEY_LENGTHS:
        return
    if kind != Control.GROUP_KEY:
        raise OpenFailed
