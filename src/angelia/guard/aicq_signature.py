"""The signature of old AICQ clients: four headers, which cover the body, a nonce and a time, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from angelia.api import uuid_of
from angelia.api.http_signature import NONCE_MAX
from angelia.errors import InvalidArgument, Unauthenticated

HEADERS = tuple(f"x-aicq-{name}" for name in ("agent", "nonce", "timestamp", "signature"))
NONCE_MIN = 24
_TIMESTAMP = re.compile(r"[0-9]{1,16}")
OUT_OF_TIME = "timestamp expired or too far in future"


@dataclass(frozen=True, slots=True)
class AicqProof:
    """The four headers, well formed but not verified."""

    agent: UUID
    nonce: str
    timestamp_ms: int
    signature: str

    def signature_bytes(self) -> bytes:
        try:
            raw = base64.b64decode(self.signature, validate=True)
        except ValueError as error:
            raise Unauthenticated("invalid signature") from error
        if base64.b64encode(raw).decode() != self.signature:
            raise Unauthenticated("invalid signature")
        return raw

    def signed(self, body: bytes) -> bytes:
        """The bytes that were signed."""
        return f"{body_hash(body)}|{self.nonce}|{self.timestamp_ms}".encode()


def body_hash(body: bytes) -> str:
    """The hash of a body that is signed; an empty one is signed as {}."""
    return hashlib.sha256(body or b"{}").hexdigest()


def parse(headers: Mapping[str, str], now_ms: int, past_ms: int, ahead_ms: int) -> AicqProof:
    """Reads the four headers. Checks them in the order, and refuses them with the texts, that old clients expect."""
    agent, nonce, timestamp, signature = (headers.get(name, "") for name in HEADERS)
    if not (agent and nonce and timestamp and signature):
        raise Unauthenticated("missing auth headers")
    if _TIMESTAMP.fullmatch(timestamp) is None:
        raise Unauthenticated("invalid timestamp format")
    at = int(timestamp)
    if not now_ms - past_ms < at <= now_ms + ahead_ms:
        raise Unauthenticated(OUT_OF_TIME)
    if len(nonce) < NONCE_MIN:
        raise Unauthenticated("nonce must be at least 24 characters")
    if len(nonce) > NONCE_MAX:
        raise Unauthenticated("nonce must be at most 128 characters")
    try:
        id_ = uuid_of(agent, "invalid agent ID format")
    except InvalidArgument as error:
        raise Unauthenticated(error.message) from error
    return AicqProof(id_, nonce, at, signature)
