"""Agents: records, and the rules for keys, names, e-mail addresses and handles."""

from __future__ import annotations

import base64
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from angelia.envelope.curve_points import sound_ed25519
from angelia.envelope.ids import valid_handle
from angelia.errors import InvalidArgument

NAME_BYTES = 100
_EMAIL = re.compile(r"[a-zA-Z0-9._%+\-]+@[a-zA-Z0-9.\-]+\.[a-zA-Z]{2,}")
_LIKE_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_BAD_KEY = "invalid public_key: must be base64-encoded Ed25519 public key (32 bytes)"


class Registration(NamedTuple):
    """A checked request to register a key as an agent."""

    id: UUID
    public_key: bytes
    key_id: UUID
    name: str
    email: str
    at: datetime


@dataclass(frozen=True, slots=True)
class BlockedAgent:
    """One entry of an agent's block list."""

    id: UUID
    handle: str
    blocked_at: datetime


def parse_public_key(text: str) -> bytes:
    """Parses an Ed25519 public key in canonical base64. Refuses what is no point of the curve, and points of small
    order."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidArgument(_BAD_KEY) from error
    if base64.b64encode(raw).decode() != text or not sound_ed25519(raw):
        raise InvalidArgument(_BAD_KEY)
    return raw


def clean_name(text: str) -> str:
    """Returns a display name without control characters, trimmed, and cut to 100 bytes between characters."""
    visible = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs")).strip()
    return visible.encode()[:NAME_BYTES].decode(errors="ignore").strip()


def check_email(text: str) -> str:
    """Returns the e-mail address; InvalidArgument if it is neither empty nor well formed."""
    if text and (len(text) > 254 or _EMAIL.fullmatch(text) is None):
        raise InvalidArgument("invalid email format")
    return text


def check_handle(text: str) -> str:
    """Returns a handle that an agent may claim. One that looks like an id is refused: it could be mistaken for an
    agent's id."""
    if not valid_handle(text):
        raise InvalidArgument(
            "a handle has 1 to 255 characters a-z 0-9 . _ -, begins and ends with a letter or digit, and has no '..'"
        )
    if _LIKE_UUID.fullmatch(text) or text == "me":
        raise InvalidArgument(f"the handle {text} is reserved")
    return text
