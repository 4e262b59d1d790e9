"""Each primitive the way the envelope calls it, so that published vectors run through our code and not beside it."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.envelope import sealing
from angelia.envelope.kem import KemPrivateKey, parse_kem_key
from angelia.envelope.refusals import InvalidKey, OpenFailed
from angelia.envelope.signing import SigningPair, parse_pair
from envelope.samples import ALICE, BOB, ML_KEM, XWING

_ML_KEM_CIPHERTEXT = BOB[ML_KEM].public.encapsulate()[1]


def aes_gcm_holds(key: bytes, nonce: bytes, message: bytes, aad: bytes, sealed: bytes) -> bool:
    """Whether this is what sealing gives, and opening gives the message back."""
    assert len(key) == 32
    assert len(nonce) == 12
    try:
        opened = AESGCM(key).decrypt(nonce, sealed, aad)
    except InvalidTag:
        return False
    assert opened == message
    return AESGCM(key).encrypt(nonce, message, aad) == sealed


def ed25519_holds(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        pair = parse_pair(public, ALICE.public.ml_dsa)
    except InvalidKey:
        return False
    return pair._ed25519.holds(signature, message)


def ed25519_signature(seed: bytes, message: bytes) -> bytes:
    return SigningPair.from_seeds(seed, bytes(32)).request_key.sign(message)


def ml_dsa_holds(public: bytes, signature: bytes, message: bytes, context: bytes) -> bool:
    """A context beyond 255 bytes raises; ours are constants."""
    try:
        pair = parse_pair(ALICE.public.ed25519, public)
        return pair._ml_dsa_holds(signature, message, context)
    except (InvalidKey, ValueError):
        return False


def hkdf(salt: bytes, secret: bytes, info: bytes) -> bytes:
    return sealing._hkdf(salt, secret, info)


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def ml_kem_public(seed: bytes) -> bytes:
    return KemPrivateKey.from_seed(ML_KEM, seed).public.raw


def ml_kem_secret(seed: bytes, ciphertext: bytes) -> bytes | None:
    try:
        return KemPrivateKey.from_seed(ML_KEM, seed).decapsulate(ciphertext)
    except (InvalidKey, OpenFailed):
        return None


def ml_kem_takes(public: bytes) -> bool:
    """Whether these bytes are a key; then a secret can be sent to it."""
    try:
        secret, ciphertext = parse_kem_key(ML_KEM, public).encapsulate()
    except InvalidKey:
        return False
    return (len(secret), len(ciphertext)) == (32, 1088)


def x25519_agrees(private: bytes, public: bytes, agreed: bytes) -> bool:
    """Whether X-Wing with this X25519 half comes to the secret that follows from this agreement."""
    key = KemPrivateKey.from_seed(XWING, BOB[ML_KEM].seed + private)
    try:
        secret = key.decapsulate(_ML_KEM_CIPHERTEXT + public)
    except OpenFailed:
        return False
    ml_kem = BOB[ML_KEM].decapsulate(_ML_KEM_CIPHERTEXT)
    combined = ml_kem + agreed + public + key.public.raw[1184:] + bytes.fromhex("5c2e2f2f5e5c")
    return secret == hashlib.sha3_256(combined).digest()


def xwing_key(seed: bytes) -> KemPrivateKey:
    """A key from the 32 bytes that X-Wing expands to both halves; we keep the halves."""
    return KemPrivateKey.from_seed(XWING, hashlib.shake_256(seed).digest(96))
