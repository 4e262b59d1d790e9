"""Ed25519: two libraries, one verdict, also for signatures that only a forger makes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_sign_open
from nacl.exceptions import CryptoError

from angelia.envelope.ed25519 import VerifyingKey, verifying_key

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
L = 2**252 + 27742317777372353535851937790883648493  # the order of the group
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)
ORDER_8_Y = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7


# The curve, by its textbook formulas: to make what no signer makes.


def x_of(y: int, sign: int) -> int:
    squared = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(squared, (P + 3) // 8, P)
    if (x * x - squared) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert (x * x - squared) % P == 0
    return x if x & 1 == sign else P - x


def plus(a: Point, b: Point) -> Point:
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2 % P
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def times(n: int, point: Point) -> Point:
    result = NEUTRAL
    while n:
        if n & 1:
            result = plus(result, point)
        point, n = plus(point, point), n >> 1
    return result


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


BASE: Point = (x_of(4 * pow(5, -1, P) % P, 0), 4 * pow(5, -1, P) % P)
TORSION: Point = (x_of(ORDER_8_Y, 0), ORDER_8_Y)  # of order 8


def challenge(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % L


def forged() -> Iterator[tuple[str, bytes, bytes, bytes]]:
    """What: public key, signature, message. With torsion in the key, in R, in both; of small order; out of range; in
    other encodings."""
    a, r = 0x1234567 << 200, 0x7654321 << 190
    for in_key in range(8):
        for in_r in range(8):
            for number in range(4):
                key = encoded(plus(times(a, BASE), times(in_key, TORSION)))
                first = encoded(plus(times(r, BASE), times(in_r, TORSION)))
                message = b"message %d" % number
                s = (r + challenge(first, key, message) * a) % L
                yield f"torsion {in_key} in A, {in_r} in R", key, first + s.to_bytes(32, "little"), message
    key, message = encoded(times(a, BASE)), b"message"
    for k in range(8):
        small = encoded(times(k, TORSION))
        s = challenge(small, key, message) * a % L
        yield f"R of small order {k}", key, small + s.to_bytes(32, "little"), message
        for number in range(16):
            message = b"any %d" % number
            yield f"A of small order {k}", small, small + bytes(32), message
            yield f"A of small order {k}, R the neutral point", small, encoded(NEUTRAL) + bytes(32), message
    first = encoded(times(r, BASE))
    s = (r + challenge(first, key, b"m") * a) % L
    for more in (L, 2 * L, 3 * L, 8 * L):
        yield f"S + {more // L} L", key, first + (s + more).to_bytes(32, "little"), b"m"
    yield "S = L", key, encoded(NEUTRAL) + L.to_bytes(32, "little"), b"m"
    for y in (*range(19), P - 1):
        for top in (0, 1 << 255):
            odd = ((y + P) % (1 << 255) | top).to_bytes(32, "little")  # at or beyond the prime, where that fits
            yield f"A written as {y} + p", odd, odd + bytes(32), b"m"
            yield f"R written as {y} + p", key, odd + (challenge(odd, key, b"m") * a % L).to_bytes(32, "little"), b"m"


def by_cryptography(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def by_libsodium(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        crypto_sign_open(signature + message, public)
    except CryptoError:
        return False
    return True


def test_what_libsodium_accepts_cryptography_accepts_and_its_verdict_is_ours() -> None:
    outcomes = set()
    for what, *case in forged():
        theirs, ours = by_cryptography(*case), by_libsodium(*case)
        assert theirs or not ours, what
        public, signature, message = case
        assert VerifyingKey(public).holds(signature, message) is theirs, what
        outcomes.add((theirs, ours))
    # The cases do tell them apart: a point of small order is where they differ.
    assert outcomes == {(True, True), (True, False), (False, False)}


def test_both_agree_with_every_published_case(outside_vectors: Path) -> None:
    count = 0
    for group in json.loads((outside_vectors / "wycheproof/ed25519_test.json").read_text("utf-8"))["testGroups"]:
        public = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            signature, message = bytes.fromhex(case["sig"]), bytes.fromhex(case["msg"])
            verdicts = {VerifyingKey(public).holds(signature, message), by_cryptography(public, signature, message)}
            if len(signature) == 64:
                verdicts.add(by_libsodium(public, signature, message))
            assert verdicts == {case["result"] == "valid"}, case["tcId"]
            count += 1
    assert count >= 150


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.integers(0, 8 * 64 - 1), st.booleans())
def test_a_signature_holds_for_its_key_and_message_and_with_no_bit_changed(
    seed: bytes, message: bytes, bit: int, in_message: bool
) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = VerifyingKey(private.public_key().public_bytes_raw()), private.sign(message)
    assert key.holds(signature, message)
    changed = bytearray(message if in_message and message else signature)
    changed[bit // 8 % len(changed)] ^= 1 << bit % 8
    given = (signature, bytes(changed)) if in_message and message else (bytes(changed), message)
    assert not key.holds(*given)


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_a_signature_has_64_bytes(length: int) -> None:
    private = Ed25519PrivateKey.generate()
    key = VerifyingKey(private.public_key().public_bytes_raw())
    assert not key.holds((private.sign(b"m") * 2)[:length], b"m")
    # Nor may a byte of the message pass for one of the signature.
    assert not key.holds(private.sign(b"m")[:63], private.sign(b"m")[63:] + b"m")


def test_a_key_of_another_length_is_no_key() -> None:
    for raw in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="32 bytes"):
            verifying_key(raw)
