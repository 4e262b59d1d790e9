"""Ids follow from key bytes, and a handle has one spelling."""

from __future__ import annotations

import base64
import hashlib
import re
from uuid import RFC_4122

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.ids import KeyType, fingerprint, key_id, signer_id, valid_handle

keys = st.binary(max_size=64)
GRAMMAR = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")


@given(st.sampled_from(KeyType), keys)
def test_a_key_id_is_a_uuid8_of_the_hash_of_type_length_and_bytes(kind: KeyType, raw: bytes) -> None:
    digest = hashlib.sha256(b"angelia/v1/key-id\0" + bytes([kind, 0, len(raw)]) + raw).digest()
    made = key_id(kind, raw)
    assert made.version == 8
    assert made.variant == RFC_4122
    assert made.int & ~(0xF << 76 | 0b11 << 62) == int.from_bytes(digest[:16]) & ~(0xF << 76 | 0b11 << 62)


@given(keys, st.sampled_from(KeyType), st.sampled_from(KeyType))
def test_the_same_bytes_as_another_type_have_another_id(raw: bytes, one: KeyType, other: KeyType) -> None:
    assert (key_id(one, raw) == key_id(other, raw)) == (one is other)


@given(keys, keys)
def test_other_bytes_have_another_id(one: bytes, other: bytes) -> None:
    assert (key_id(KeyType.ED25519, one) == key_id(KeyType.ED25519, other)) == (one == other)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=8, max_size=8))
def test_a_fingerprint_is_the_whole_hash_behind_the_signer_id(ed25519: bytes, ml_dsa: bytes) -> None:
    text = fingerprint(ed25519, ml_dsa * 244)
    digest = base64.urlsafe_b64decode(text + "=")
    assert len(text) == 43
    assert digest == hashlib.sha256(b"angelia/v1/signer-id\0" + ed25519 + ml_dsa * 244).digest()
    made = signer_id(ed25519, ml_dsa * 244)
    assert made.bytes[:6] == digest[:6]
    assert made.version == 8


@pytest.mark.parametrize("text", ["a", "0", "agent-bob-02", "a.b", "a_b", "a--b", "a._-b", "a" * 255])
def test_a_handle_is_lower_case_ascii(text: str) -> None:
    assert valid_handle(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * 256,
        "A",
        "Alice",
        ".a",
        "a.",
        "-a",
        "a-",
        "_a",
        "a_",
        "a..b",
        "a b",
        "a/b",
        "a:b",
        "a{b}",
        "a*",
        "a\n",
        "\na",
        "a\0b",
        "a\x7fb",
        "a\u200bb",
        "а",  # Cyrillic
        "ａ",  # full width
        "é",
        "a\u0301b",
        "ﬁ",
        "a٣",  # an Arabic digit
        "ſ",
        "ı",
        "a\ud800b",
    ],
    ids=ascii,
)
def test_what_could_be_taken_for_another_handle_is_none(text: str) -> None:
    assert not valid_handle(text)


@given(st.text("ab09._-A/\n é", max_size=12) | st.text(max_size=300))
def test_the_grammar_decides(text: str) -> None:
    assert valid_handle(text) == (GRAMMAR.fullmatch(text) is not None and ".." not in text and len(text) <= 255)
