"""Seals the messages of a group log: AES-256-GCM under the group's epoch key, signed inside by their sender.

    sealed    u8 1, u64 epoch, nonce (12), ciphertext with its tag (16)
    AAD       group (32), sender (8), u64 seq, u8 level, u64 epoch
    key       HKDF-SHA256(epoch key, info = label, SHA-256(AAD, nonce), 32 zero bytes), as suite 4 derives its keys
    plaintext Ed25519 signature (64) over label, AAD, nonce and body; body

All members have the epoch key, so the key alone shows only that a member wrote a message. The signature shows which
one: with the help of a dishonest node, a member could pose as another otherwise.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.envelope.ed25519 import SIGNATURE_BYTES, verifying_key
from angelia.envelope.refusals import Malformed, OpenFailed, SignatureFailed
from angelia.envelope.sealing import EpochKey, Random, derived_key
from angelia.envelope.wire import NONCE, TAG

_VERSION = 1
_HEAD = struct.Struct(f">BQ{NONCE}s")
_AAD = struct.Struct(">32s8sQBQ")
_KEY_LABEL = b"angelia/v1/group-message-key\0"
_SIGNATURE_LABEL = b"angelia/v1/group-message\0"
OVERHEAD = _HEAD.size + SIGNATURE_BYTES + TAG  # of a sealed message over its body

Sign = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a message stands: what its seal is bound to."""

    group: bytes
    sender: bytes
    seq: int
    level: int

    def bound_to(self, epoch: int) -> bytes:
        return _AAD.pack(self.group, self.sender, self.seq, self.level, epoch)


def seal(place: GroupPlace, epoch: int, key: EpochKey, body: bytes, sign: Sign, random: Random = os.urandom) -> bytes:
    """Returns a message as nodes keep it."""
    bound, nonce = place.bound_to(epoch), random(NONCE)
    signature = sign(_SIGNATURE_LABEL + bound + nonce + body)
    cipher = AESGCM(_message_key(key, bound, nonce))
    return _HEAD.pack(_VERSION, epoch, nonce) + cipher.encrypt(nonce, signature + body, bound)


def epoch_of(sealed: bytes) -> int:
    """The epoch that a sealed message names; Malformed if it is none."""
    if len(sealed) < OVERHEAD or sealed[0] != _VERSION:
        raise Malformed("this is no sealed message of a group log")
    epoch: int = _HEAD.unpack_from(sealed)[1]
    return epoch


def unseal(place: GroupPlace, sealed: bytes, key: EpochKey, signers: Iterable[bytes]) -> bytes:
    """Returns the body of a message, if it was sealed for this place and one of its sender's keys signed it."""
    bound, nonce, signature, body = _opened(place, sealed, key)
    signed = _SIGNATURE_LABEL + bound + nonce + body
    if not any(verifying_key(signer).holds(signature, signed) for signer in signers):
        raise SignatureFailed("the message is not signed by its sender")
    return body


def unseal_own(place: GroupPlace, sealed: bytes, key: EpochKey) -> bytes:
    """Returns the body of a message that this device sealed and kept itself, under whatever key of its own."""
    return _opened(place, sealed, key)[-1]


def _opened(place: GroupPlace, sealed: bytes, key: EpochKey) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns what the message is bound to, its nonce, its signature and its body."""
    bound = place.bound_to(epoch_of(sealed))
    _, _, nonce = _HEAD.unpack_from(sealed)
    try:
        opened = AESGCM(_message_key(key, bound, nonce)).decrypt(nonce, sealed[_HEAD.size :], bound)
    except InvalidTag as error:
        raise OpenFailed from error
    return bound, nonce, opened[:SIGNATURE_BYTES], opened[SIGNATURE_BYTES:]


def _message_key(key: EpochKey, bound: bytes, nonce: bytes) -> bytes:
    return derived_key(key.secret, _KEY_LABEL + sha256(bound + nonce).digest() + EpochKey.digest)
