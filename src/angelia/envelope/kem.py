"""Keys that a message can be sealed to: ML-KEM-768 (suite 1) and X-Wing, ML-KEM-768 with X25519 (suite 2).

A KEM yields a fresh secret and its wrapped form; it cannot wrap a given secret.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass, field
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from angelia.envelope.curve_points import sound_x25519
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.refusals import InvalidKey, OpenFailed

ML_KEM_PUBLIC, ML_KEM_CIPHERTEXT, ML_KEM_SEED = 1184, 1088, 64
X25519_BYTES = 32
PUBLIC_BYTES = {KeyType.ML_KEM_768: ML_KEM_PUBLIC, KeyType.XWING: ML_KEM_PUBLIC + X25519_BYTES}
SEED_BYTES = {KeyType.ML_KEM_768: ML_KEM_SEED, KeyType.XWING: ML_KEM_SEED + X25519_BYTES}
WRAPPED_BYTES = {KeyType.ML_KEM_768: ML_KEM_CIPHERTEXT, KeyType.XWING: ML_KEM_CIPHERTEXT + X25519_BYTES}
_XWING_LABEL = bytes.fromhex("5c2e2f2f5e5c")


@dataclass(frozen=True, slots=True)
class KemPublicKey:
    """A parsed public key, with its id computed from its bytes."""

    kind: KeyType
    raw: bytes = field(repr=False)
    key_id: UUID
    digest: bytes = field(repr=False)
    _ml_kem: MLKEM768PublicKey = field(repr=False)
    _x25519: X25519PublicKey | None = field(repr=False)

    def encapsulate(self) -> tuple[bytes, bytes]:
        """Returns a fresh secret, and its wrapped form for the holder of the private key."""
        secret, ciphertext = self._ml_kem.encapsulate()
        if self._x25519 is None:
            return secret, ciphertext
        ephemeral = X25519PrivateKey.generate()
        public = ephemeral.public_key().public_bytes_raw()
        agreed = ephemeral.exchange(self._x25519)
        return _combine(secret, agreed, public, self.raw[ML_KEM_PUBLIC:]), ciphertext + public


@dataclass(frozen=True, slots=True)
class KemPrivateKey:
    """A private key; only its seed is ever stored."""

    kind: KeyType
    seed: bytes = field(repr=False)
    public: KemPublicKey
    _ml_kem: MLKEM768PrivateKey = field(repr=False)
    _x25519: X25519PrivateKey | None = field(repr=False)

    @classmethod
    def generate(cls, kind: KeyType) -> KemPrivateKey:
        return cls.from_seed(kind, os.urandom(SEED_BYTES[kind]))

    @classmethod
    def from_seed(cls, kind: KeyType, seed: bytes) -> KemPrivateKey:
        if len(seed) != SEED_BYTES.get(kind):
            raise InvalidKey(f"the seed of such a key has not {len(seed)} bytes")
        ml_kem, x25519 = MLKEM768PrivateKey.from_seed_bytes(seed[:ML_KEM_SEED]), None
        public = ml_kem.public_key().public_bytes_raw()
        if kind is KeyType.XWING:
            x25519 = X25519PrivateKey.from_private_bytes(seed[ML_KEM_SEED:])
            public += x25519.public_key().public_bytes_raw()
        return cls(kind, seed, parse_kem_key(kind, public), ml_kem, x25519)

    def decapsulate(self, wrapped: bytes) -> bytes:
        """Returns the secret. A changed wrapped key yields another secret, not an error (FIPS 203)."""
        if len(wrapped) != WRAPPED_BYTES[self.kind]:
            raise OpenFailed
        try:
            secret = self._ml_kem.decapsulate(wrapped[:ML_KEM_CIPHERTEXT])
            if self._x25519 is None:
                return secret
            public = wrapped[ML_KEM_CIPHERTEXT:]
            agreed = self._x25519.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # an X25519 result of zeros
            raise OpenFailed from error
        return _combine(secret, agreed, public, self.public.raw[ML_KEM_PUBLIC:])


@functools.lru_cache(maxsize=4096)
def parse_kem_key(kind: KeyType, raw: bytes) -> KemPublicKey:
    """Returns a public key to seal to. Parsing costs more than sealing, so the last few thousand are cached."""
    if kind not in PUBLIC_BYTES or len(raw) != PUBLIC_BYTES[kind]:
        raise InvalidKey(f"a KEM key of type {int(kind)} has not {len(raw)} bytes")
    x25519 = None
    if kind is KeyType.XWING:
        if not sound_x25519(raw[ML_KEM_PUBLIC:]):
            raise InvalidKey("the X25519 half is not canonical or has small order")
        x25519 = X25519PublicKey.from_public_bytes(raw[ML_KEM_PUBLIC:])
    try:
        ml_kem = MLKEM768PublicKey.from_public_bytes(raw[:ML_KEM_PUBLIC])
    except ValueError as error:
        raise InvalidKey("the ML-KEM key is not well formed") from error
    return KemPublicKey(kind, raw, key_id(kind, raw), hashlib.sha256(raw).digest(), ml_kem, x25519)


def _combine(ml_kem: bytes, x25519: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    """The combiner of X-Wing: safe as long as one of the two secrets is."""
    return hashlib.sha3_256(ml_kem + x25519 + ephemeral + recipient + _XWING_LABEL).digest()
