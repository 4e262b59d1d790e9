"""Hybrid signatures: Ed25519 and ML-DSA-65 over the same bytes. Always both are made, and both are verified."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey

from angelia.envelope import ids
from angelia.envelope.curve_points import sound_ed25519
from angelia.envelope.ed25519 import VerifyingKey
from angelia.envelope.refusals import InvalidKey

ED25519_BYTES, ED25519_SIGNATURE = 32, 64
ML_DSA_PUBLIC, ML_DSA_SIGNATURE, ML_DSA_SEED = 1952, 3309, 32


class Purpose(Enum):
    """The purpose of a signature: the label before the signed bytes, and the context of ML-DSA. Never shared."""

    ENVELOPE = (b"angelia/v1/envelope-signature", b"angelia/v1/envelope")
    BATCH_ROOT = (b"angelia/v1/batch-root", b"angelia/v1/batch-root")
    BUNDLE = (b"angelia/v1/bundle-signature", b"angelia/v1/bundle-signature")
    PREKEY = (b"angelia/v1/prekey-signature", b"angelia/v1/prekey-signature")
    RECEIPT = (b"angelia/v1/receipt-signature", b"angelia/v1/receipt-signature")
    ROTATION = (b"angelia/v1/signer-rotation", b"angelia/v1/signer-rotation")
    ROSTER = (b"angelia/v1/channel-roster", b"angelia/v1/channel-roster")

    def __init__(self, label: bytes, context: bytes) -> None:
        self.label = label
        self.context = context


@dataclass(frozen=True, slots=True)
class Signatures:
    """The two signatures of a pair; one without the other is not valid."""

    ed25519: bytes
    ml_dsa: bytes

    @property
    def raw(self) -> bytes:
        """Both signatures as bytes, which encoded objects carry at their end."""
        return self.ed25519 + self.ml_dsa


@dataclass(frozen=True, slots=True)
class VerifyingPair:
    """The public halves of a signing pair, parsed, with the ids computed from their bytes."""

    ed25519: bytes = field(repr=False)
    ml_dsa: bytes = field(repr=False)
    signer_id: UUID
    fingerprint: str
    _ed25519: VerifyingKey = field(repr=False, compare=False)
    _ml_dsa: MLDSA65PublicKey = field(repr=False, compare=False)

    def verify(self, purpose: Purpose, message: bytes, signatures: Signatures) -> bool:
        """Whether both signatures are valid. The second is verified even when the first failed."""
        signed = purpose.label + b"\0" + message
        classical = self._ed25519.holds(signatures.ed25519, signed)
        return self._ml_dsa_holds(signatures.ml_dsa, signed, purpose.context) and classical

    def _ml_dsa_holds(self, signature: bytes, signed: bytes, context: bytes) -> bool:
        try:
            self._ml_dsa.verify(signature, signed, context)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningPair:
    """The private halves. ML-DSA is hedged: signing the same bytes twice gives different signatures."""

    public: VerifyingPair
    _ed25519: Ed25519PrivateKey = field(repr=False)
    _ml_dsa: MLDSA65PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> SigningPair:
        return cls.from_seeds(os.urandom(ED25519_BYTES), os.urandom(ML_DSA_SEED))

    @classmethod
    def from_seeds(cls, ed25519: bytes, ml_dsa: bytes) -> SigningPair:
        if len(ed25519) != ED25519_BYTES or len(ml_dsa) != ML_DSA_SEED:
            raise InvalidKey("the seeds of a signing pair have 32 bytes each")
        classical = Ed25519PrivateKey.from_private_bytes(ed25519)
        quantum_safe = MLDSA65PrivateKey.from_seed_bytes(ml_dsa)
        halves = (classical.public_key().public_bytes_raw(), quantum_safe.public_key().public_bytes_raw())
        return cls(parse_pair(*halves), classical, quantum_safe)

    @property
    def seeds(self) -> tuple[bytes, bytes]:
        return self._ed25519.private_bytes_raw(), self._ml_dsa.private_bytes_raw()

    @property
    def request_key(self) -> Ed25519PrivateKey:
        """The half that also signs HTTP requests."""
        return self._ed25519

    def sign(self, purpose: Purpose, message: bytes) -> Signatures:
        signed = purpose.label + b"\0" + message
        return Signatures(self._ed25519.sign(signed), self._ml_dsa.sign(signed, purpose.context))

    def sign_object(self, purpose: Purpose, content: bytes) -> Signatures:
        """Signs an object such as a bundle or a receipt: the SHA-512 hash of its bytes."""
        return self.sign(purpose, hashlib.sha512(content).digest())


@functools.lru_cache(maxsize=4096)
def parse_pair(ed25519: bytes, ml_dsa: bytes) -> VerifyingPair:
    """Returns the public halves of a pair. A point of small order is refused: signatures for it can be forged."""
    if len(ed25519) != ED25519_BYTES or not sound_ed25519(ed25519):
        raise InvalidKey("the Ed25519 key is not a sound point of the curve")
    if len(ml_dsa) != ML_DSA_PUBLIC:
        raise InvalidKey(f"an ML-DSA-65 key has not {len(ml_dsa)} bytes")
    return VerifyingPair(
        ed25519,
        ml_dsa,
        ids.signer_id(ed25519, ml_dsa),
        ids.fingerprint(ed25519, ml_dsa),
        VerifyingKey(ed25519),
        MLDSA65PublicKey.from_public_bytes(ml_dsa),
    )


def split_signatures(content: bytes) -> tuple[bytes, Signatures]:
    """Returns the signed bytes of an encoded object, and the signatures at its end."""
    both = ED25519_SIGNATURE + ML_DSA_SIGNATURE
    signed, raw = content[:-both], content[-both:]
    return signed, Signatures(raw[:ED25519_SIGNATURE], raw[ED25519_SIGNATURE:])


def object_holds(pair: VerifyingPair, purpose: Purpose, content: bytes, signatures: Signatures) -> bool:
    """Whether both signatures over an object are valid."""
    return pair.verify(purpose, hashlib.sha512(content).digest(), signatures)
