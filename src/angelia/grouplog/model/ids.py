"""Ids of groups and senders, seqs, and their text forms."""

from __future__ import annotations

import hashlib
import re
import struct

from angelia.errors import InvalidArgument

MAX_SEQ = (1 << 53) - 1
_LONGEST_GROUP_TEXT = 44
_SENDER = re.compile(r"[0-9a-f]{16}")
_U64_LE = struct.Struct("<Q")
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = {character: digit for digit, character in enumerate(_ALPHABET)}


def parse_group(text: str) -> bytes:
    """Returns the 32 bytes of a group id. Its text has one form only."""
    try:
        group = from_base58(text) if len(text) <= _LONGEST_GROUP_TEXT else b""
    except ValueError:
        group = b""
    if len(group) != 32:
        raise InvalidArgument("a group id is 32 bytes in base58", hint="it has 32 to 44 characters")
    return group


def parse_sender(text: str) -> bytes:
    if _SENDER.fullmatch(text) is None:
        raise InvalidArgument("a sender id is 16 lower-case hexadecimal digits")
    return bytes.fromhex(text)


def parse_seq(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and 1 <= int(text) <= MAX_SEQ):
        raise InvalidArgument(f"a seq is a number from 1 to {MAX_SEQ}")
    return int(text)


def sender_id(group: bytes, public_key: bytes, binding: int) -> bytes:
    """The sender id of a roster entry, from its first key. It differs in each group, so that a member cannot
    be followed across groups."""
    return hashlib.sha256(group + public_key + _U64_LE.pack(binding)).digest()[:8]


def base58(data: bytes) -> str:
    """Encodes bytes. Each leading zero byte is a leading 1, so the length survives."""
    number, digits = int.from_bytes(data), []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_ALPHABET[digit])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(digits))


def from_base58(text: str) -> bytes:
    """Decodes text. ValueError for a character outside the alphabet; the caller bounds the length."""
    number = 0
    for character in text:
        digit = _DIGITS.get(character)
        if digit is None:
            raise ValueError(f"{character!r} is no base58 digit")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)
