"""Who an agent is: its record, and what makes a key, a name, an e-mail address or a handle acceptable."""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.envelope.ids import valid_handle
from angelia.errors import InvalidArgument

NAME_BYTES = 100
_EMAIL = re.compile(r"[a-zA-Z0-9._%+\-]+@[a-zA-Z0-9.\-]+\.[a-zA-Z]{2,}")
_LIKE_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_BAD_KEY = "invalid public_key: must be base64-encoded Ed25519 public key (32 bytes)"

# The curve of Ed25519: -x² + y² = 1 + d·x²·y² over the field of p elements.
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
# y of the eight points whose order divides 8 (RFC 7748 section 6 warns of them): a "key" everybody can sign for.
_SMALL_ORDER_Y = {
    0,
    1,
    _P - 1,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
}


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent. `id` and `handle` are for ever; until it claims one, its handle is the id in text."""

    id: UUID
    handle: str
    public_key: bytes
    key_id: UUID
    name: str
    email: str
    aicq_signatures: bool
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class Registration:
    """A request to exist, already checked."""

    id: UUID
    public_key: bytes
    key_id: UUID
    name: str
    email: str
    at: datetime


def parse_public_key(text: str) -> bytes:
    """An Ed25519 public key in canonical base64: a point of the curve, not one of small order."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(_BAD_KEY) from error
    if len(raw) != 32 or base64.b64encode(raw).decode() != text or not _is_sound_point(raw):
        raise InvalidArgument(_BAD_KEY)
    return raw


def clean_name(text: str) -> str:
    """A display name: no control characters, trimmed, at most 100 bytes, never cut inside a character."""
    visible = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs")).strip()
    return visible.encode()[:NAME_BYTES].decode(errors="ignore").strip()


def check_email(text: str) -> str:
    if text and (len(text) > 254 or _EMAIL.fullmatch(text) is None):
        raise InvalidArgument("invalid email format")
    return text


def check_handle(text: str) -> str:
    """A handle that an agent may claim; one that looks like an id would be taken for another agent's."""
    if not valid_handle(text):
        raise InvalidArgument(
            "a handle has 1 to 255 characters a-z 0-9 . _ -, begins and ends with a letter or digit, and has no '..'"
        )
    if _LIKE_UUID.fullmatch(text) or text == "me":
        raise InvalidArgument(f"the handle {text} is reserved")
    return text


def _is_sound_point(raw: bytes) -> bool:
    y = int.from_bytes(raw, "little") & (1 << 255) - 1
    if y >= _P or y in _SMALL_ORDER_Y:
        return False
    x_squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    return pow(x_squared, (_P - 1) // 2, _P) == 1
