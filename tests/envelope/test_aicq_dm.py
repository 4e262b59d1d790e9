"""The cipher of AICQ's direct messages: its published vector both ways, and bodies that do not open."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope import aicq_dm
from angelia.envelope.aicq_dm import DmNotOpened, open_body, seal
from angelia.envelope.curve_points import montgomery_u
from angelia.envelope.refusals import InvalidKey

SEED = bytes(range(0x20, 0x40))
PUBLIC = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
TEXT = "hello from Angelia ✓"
BODY = (
    "eaYx7t4b+cmPEgMs3q3Q56B5OY/HhriMyEbsia+FpRpgYWJjZGVmZ2hpamtLoeKPC1M3I00PU+j0+z6eRkVeUzWMduFC02bb9RWjV8kzOPZW0Q=="
)


def test_the_published_body_opens() -> None:
    assert open_body(BODY, SEED) == TEXT


def test_the_published_body_is_made_from_its_parts() -> None:
    fresh = X25519PrivateKey.from_private_bytes(bytes(range(0x40, 0x60)))
    assert aicq_dm._sealed(TEXT, PUBLIC, fresh, bytes(range(0x60, 0x6C))) == BODY


def test_the_keys_of_the_published_recipient() -> None:
    assert PUBLIC.hex() == "29acbae141bccaf0b22e1a94d34d0bc7361e526d0bfe12c89794bc9322966dd7"
    assert montgomery_u(PUBLIC).hex() == "5730800ab340fcb18ce5111eda9d705f91388b41e4544cbd103ba5942db2233e"


@given(st.text(max_size=500))
def test_what_is_sealed_opens_and_is_never_the_same_twice(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    one, other = seal(text, PUBLIC), seal(text, PUBLIC)
    assert one != other
    assert open_body(one, SEED) == open_body(other, SEED) == text
    assert len(base64.b64decode(one)) == len(text.encode()) + aicq_dm.OVERHEAD


@pytest.mark.parametrize("at", [0, 31, 32, 43, 44, 60, -1])
def test_a_body_that_was_changed_anywhere_does_not_open(at: int) -> None:
    raw = bytearray(base64.b64decode(BODY))
    raw[at] ^= 1
    with pytest.raises(DmNotOpened):
        open_body(base64.b64encode(raw).decode(), SEED)


@pytest.mark.parametrize(
    "body", ["", "hello", "!" * 100, base64.b64encode(bytes(59)).decode(), base64.b64encode(bytes(80)).decode()]
)
def test_a_body_that_is_none_does_not_open(body: str) -> None:
    with pytest.raises(DmNotOpened):
        open_body(body, SEED)


def test_another_agent_does_not_open_it() -> None:
    with pytest.raises(DmNotOpened):
        open_body(BODY, bytes(32))


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"\xff" * 32])
def test_nothing_is_sealed_to_a_key_that_anybody_could_open(key: bytes) -> None:
    with pytest.raises(InvalidKey):
        seal(TEXT, key)
