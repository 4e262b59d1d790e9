"""Ed25519 verification in half the time: libsodium verifies first, and `cryptography` has the last word.

Both check one equation over the same bytes (RFC 8032 without the cofactor, S below the order of the group). libsodium
refuses some signatures that the other accepts, those with a point of small order, and accepts none that the other
refuses. So what it accepts holds, and what it refuses is verified again. A test compares the two over all outside
vectors, and over points that are made to tell them apart.
"""

from __future__ import annotations

from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.bindings import crypto_sign_open
from nacl.exceptions import CryptoError

SIGNATURE_BYTES = 64


class VerifyingKey:
    """An Ed25519 public key. Whether its point is sound is for the caller to ask (`curve_points`)."""

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        """Raises ValueError for bytes of another length."""
        self._key = Ed25519PublicKey.from_public_bytes(raw)
        self.raw = raw

    def holds(self, signature: bytes, message: bytes) -> bool:
        """Whether the signature over the message is this key's."""
        if len(signature) != SIGNATURE_BYTES:
            return False
        try:
            crypto_sign_open(signature + message, self.raw)
        except CryptoError:
            return self._holds_by_the_other(signature, message)
        return True

    def _holds_by_the_other(self, signature: bytes, message: bytes) -> bool:
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


@lru_cache(maxsize=10_000)
def verifying_key(raw: bytes) -> VerifyingKey:
    """The key of these bytes, parsed once. Raises ValueError for bytes of another length."""
    return VerifyingKey(raw)
