"""The cipher of direct messages that AICQ's clients know, `aicq-dm-v1`: X25519 with a fresh key, ChaCha20-Poly1305.

It hides the text from the server. It proves nothing about the sender, which is known by the server's word alone: sealed
mail does both.
"""

from __future__ import annotations

import base64
import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from angelia.envelope.curve_points import montgomery_u, sound_ed25519
from angelia.envelope.refusals import InvalidKey
from angelia.errors import InvalidArgument

OVERHEAD = 60  # bytes: the fresh public key, the nonce and the tag
_KEY_BYTES, _NONCE_BYTES = 32, 12
_INFO = b"aicq-dm-v1"


class DmNotOpened(InvalidArgument, code="dm_not_opened"):
    """The body is not sealed to this agent, or was changed"""


def seal(text: str, recipient: bytes) -> str:
    """Seals a text to an agent's Ed25519 public key. Returns the body of a direct message."""
    return _sealed(text, recipient, X25519PrivateKey.generate(), os.urandom(_NONCE_BYTES))


def open_body(body: str, seed: bytes) -> str:
    """Opens the body of a direct message with the seed of the recipient's Ed25519 key."""
    own = X25519PrivateKey.from_private_bytes(hashlib.sha512(seed).digest()[:_KEY_BYTES])  # X25519 clamps it
    try:
        raw = base64.b64decode(body, validate=True)
        if len(raw) < OVERHEAD:
            raise DmNotOpened
        fresh, nonce = raw[:_KEY_BYTES], raw[_KEY_BYTES : _KEY_BYTES + _NONCE_BYTES]
        shared = own.exchange(X25519PublicKey.from_public_bytes(fresh))
        key = _derived(shared, fresh, own.public_key().public_bytes_raw())
        return ChaCha20Poly1305(key).decrypt(nonce, raw[_KEY_BYTES + _NONCE_BYTES :], None).decode()
    except (ValueError, InvalidTag) as error:
        raise DmNotOpened from error


def _sealed(text: str, recipient: bytes, fresh: X25519PrivateKey, nonce: bytes) -> str:
    if not sound_ed25519(recipient):
        raise InvalidKey("the recipient's public key is no safe Ed25519 key")
    theirs, mine = montgomery_u(recipient), fresh.public_key().public_bytes_raw()
    shared = fresh.exchange(X25519PublicKey.from_public_bytes(theirs))
    sealed = ChaCha20Poly1305(_derived(shared, mine, theirs)).encrypt(nonce, text.encode(), None)
    return base64.b64encode(mine + nonce + sealed).decode()


def _derived(shared: bytes, fresh: bytes, recipient: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=fresh + recipient, info=_INFO).derive(shared)
