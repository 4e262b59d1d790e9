"""Which bytes are public keys: one encoding of each point, and none that everybody can use."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.curve_points import sound_ed25519, sound_x25519

P = 2**255 - 19
ORDER_8_Y = (
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
)
ORDER_8_U = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
seeds = st.binary(min_size=32, max_size=32)


def encoded(value: int, *, top_bit: bool = False) -> bytes:
    return (value | top_bit << 255).to_bytes(32, "little")


def low_order_ed25519() -> list[bytes]:
    """The eight points of order 1, 2, 4 and 8; the first two have x = 0 and so no sign."""
    signed = [encoded(y, top_bit=sign) for y in (0, *ORDER_8_Y) for sign in (False, True)]
    return [encoded(1), encoded(P - 1), *signed]


@given(seeds)
def test_what_a_seed_makes_is_an_ed25519_key(seed: bytes) -> None:
    assert sound_ed25519(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


@given(seeds)
def test_what_a_scalar_makes_is_an_x25519_key(seed: bytes) -> None:
    assert sound_x25519(X25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


def test_the_neutral_point_would_verify_anything() -> None:
    """Why this module exists: the library takes such a key, and then a signature that nobody made."""
    forged = encoded(1) + bytes(32)
    Ed25519PublicKey.from_public_bytes(encoded(1)).verify(forged, b"whatever was said")
    with pytest.raises(InvalidSignature):
        Ed25519PrivateKey.generate().public_key().verify(forged, b"whatever was said")


@pytest.mark.parametrize("raw", low_order_ed25519(), ids=bytes.hex)
def test_no_point_of_small_order_is_an_ed25519_key(raw: bytes) -> None:
    assert len(set(low_order_ed25519())) == 8
    assert not sound_ed25519(raw)


@pytest.mark.parametrize("y", range(19))
@pytest.mark.parametrize("top_bit", [False, True])
def test_a_second_spelling_of_a_point_is_no_ed25519_key(y: int, top_bit: bool) -> None:
    assert not sound_ed25519(encoded(P + y, top_bit=top_bit))


@pytest.mark.parametrize("y", [1, P - 1])
def test_a_sign_where_there_is_none_is_no_ed25519_key(y: int) -> None:
    assert not sound_ed25519(encoded(y, top_bit=True))


def test_a_y_without_a_point_is_no_ed25519_key() -> None:
    assert not sound_ed25519(encoded(2))


@given(seeds)
def test_a_point_and_its_negative_are_alike(raw: bytes) -> None:
    assert sound_ed25519(raw) == sound_ed25519(raw[:31] + bytes([raw[31] ^ 0x80]))


@pytest.mark.parametrize("u", [0, 1, P - 1, *ORDER_8_U])
def test_no_u_of_small_order_is_an_x25519_key(u: int) -> None:
    assert not sound_x25519(encoded(u))
    assert not sound_x25519(encoded(u, top_bit=True))


@pytest.mark.parametrize("u", range(19))
def test_a_second_spelling_of_u_is_no_x25519_key(u: int) -> None:
    assert not sound_x25519(encoded(P + u))


@given(seeds)
def test_the_bit_that_x25519_ignores_must_be_clear(seed: bytes) -> None:
    raw = X25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    assert not sound_x25519(raw[:31] + bytes([raw[31] | 0x80]))


def test_the_base_points_are_sound() -> None:
    assert sound_ed25519(encoded(4 * pow(5, -1, P) % P))
    assert sound_x25519(encoded(9))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_key_has_32_bytes(length: int) -> None:
    for sound, base in ((sound_ed25519, encoded(4 * pow(5, -1, P) % P)), (sound_x25519, encoded(9))):
        assert not sound((base + bytes(32))[:length])
