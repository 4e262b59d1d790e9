"""Identifiers that are computed from key bytes, and the grammar of handles."""

from __future__ import annotations

import base64
import hashlib
import re
from enum import IntEnum
from uuid import UUID

_HANDLE = re.compile(r"\A[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\Z")
MAX_HANDLE = 255
BUCKETS = 256  # rows that belong to an agent are spread over so many


class KeyType(IntEnum):
    """The kind of key that a key_id names; the number is part of the hash."""

    ML_KEM_768 = 1
    ED25519 = 2
    ML_DSA_65 = 3
    X25519 = 4
    XWING = 5
    CHANNEL_EPOCH = 6


def key_id(kind: KeyType, public_key: bytes) -> UUID:
    """Returns the id of one public key. Recipients recompute it and never trust a given one."""
    framed = bytes([kind]) + len(public_key).to_bytes(2, "big") + public_key
    return _uuid8(hashlib.sha256(b"angelia/v1/key-id\0" + framed).digest())


def signer_id(ed25519: bytes, ml_dsa: bytes) -> UUID:
    """Returns the id of a signing pair."""
    return _uuid8(_signer_digest(ed25519, ml_dsa))


def fingerprint(ed25519: bytes, ml_dsa: bytes) -> str:
    """Returns the whole hash behind a signer_id, as 43 characters for people to compare."""
    return base64.urlsafe_b64encode(_signer_digest(ed25519, ml_dsa)).rstrip(b"=").decode()


def valid_handle(text: str) -> bool:
    """Whether a text is a handle: lower-case ASCII, no `..`, nothing to normalise."""
    return len(text) <= MAX_HANDLE and ".." not in text and _HANDLE.match(text) is not None


def bucket_of(handle: str) -> int:
    """Returns the bucket of an agent's rows; SQL computes the same."""
    return hashlib.sha256(handle.encode()).digest()[0]


def hot_tag(handle: str) -> str:
    """Returns the tag of a handle in the names of hot-tier keys, which never contain the handle itself."""
    return hashlib.sha256(handle.encode()).hexdigest()[:32]


def _signer_digest(ed25519: bytes, ml_dsa: bytes) -> bytes:
    return hashlib.sha256(b"angelia/v1/signer-id\0" + ed25519 + ml_dsa).digest()


def _uuid8(digest: bytes) -> UUID:
    raw = bytearray(digest[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return UUID(bytes=bytes(raw))
