"""Payloads of encrypted queues: decrypted as Queen encrypts them, and encrypted as Angelia does."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.errors import InvalidArgument
from angelia.queues.model import ChunkIds
from angelia.settings import Settings

VARIABLE = "QUEEN_ENCRYPTION_KEY"
_KEY_DIGITS = 64
_NONCE_BYTES = 12
_ID_LABEL = b"angelia/v1/queue-key-id\0"


class _Encrypted(msgspec.Struct):
    """An encrypted payload of Queen, in base64."""

    encrypted: str
    iv: str
    auth_tag: str = msgspec.field(name="authTag")


class ImportedPayloads:
    """Decrypts by Queen's key, and encrypts by the server's own key of queues. That is Queen's key as well, unless
    QUEEN_ENCRYPTION_KEY says otherwise."""

    def __init__(self, settings: Settings) -> None:
        own, theirs = settings.queue_key, _queens_key() or settings.queue_key
        self._theirs = None if theirs is None else AESGCM(theirs)
        self._own = None if own is None else AESGCM(own)
        # As the server makes the id of an own key.
        self._key_id = None if own is None else UUID(bytes=hashlib.sha256(_ID_LABEL + own).digest()[:16])

    def require(self) -> None:
        """Raises InvalidArgument without a key to encrypt by: a payload that was encrypted never becomes plain."""
        if self._own is None:
            raise InvalidArgument(
                "queues of Queen are encrypted, and there is no key for them here",
                hint=f"set ANGELIA_QUEUE_ENCRYPTION_KEY, here and for the server, to Queen's {VARIABLE}",
            )

    def opened(self, payload: str) -> bytes:
        """A payload in the clear; raises InvalidArgument if the key does not decrypt it."""
        self.require()
        assert self._theirs is not None, "the own key is theirs as well"
        try:
            found = msgspec.json.decode(payload, type=_Encrypted)
            sealed, iv, tag = (base64.b64decode(text) for text in (found.encrypted, found.iv, found.auth_tag))
        except (msgspec.DecodeError, binascii.Error) as error:
            raise InvalidArgument("its payload is said to be encrypted, and is not") from error
        # The server of 0.15 takes the first 12 bytes of its initialisation vector for the nonce, older ones all 16.
        for nonce in (iv[:_NONCE_BYTES], iv):
            try:
                return self._theirs.decrypt(nonce, sealed + tag, None)
            except (InvalidTag, ValueError):
                continue
        raise InvalidArgument(f"its payload cannot be decrypted; was it another {VARIABLE}?")

    def sealed(self, queue: str, partition: str, ids: ChunkIds, payloads: Sequence[bytes]) -> tuple[UUID, list[bytes]]:
        """Returns the id of the key, and nonce, ciphertext and tag of each payload, as the server encrypts them."""
        self.require()
        assert self._own is not None
        assert self._key_id is not None
        names = (queue.encode(), partition.encode())
        place = b"".join(len(name).to_bytes(2, "big") + name for name in names) + (16).to_bytes(2, "big")
        found = []
        for number, payload in enumerate(payloads):
            nonce = os.urandom(_NONCE_BYTES)
            bound = place + (ids.first.int + number).to_bytes(16, "big")
            found.append(nonce + self._own.encrypt(nonce, payload, bound))
        return self._key_id, found


def _queens_key() -> bytes | None:
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    if len(given) != _KEY_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in given):
        raise InvalidArgument(f"{VARIABLE} must have {_KEY_DIGITS} hexadecimal digits")
    return bytes.fromhex(given)
