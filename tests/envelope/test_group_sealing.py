"""Messages of group logs under their seal: they open for members, where they were written, and show who wrote them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.group_sealing import OVERHEAD, GroupPlace, epoch_of, seal, unseal
from angelia.envelope.refusals import Malformed, OpenFailed, Refused, SignatureFailed
from angelia.envelope.sealing import EpochKey
from angelia.grouplog.model.ids import MAX_SEQ

KEY, OTHER_KEY = EpochKey.of(b"\x44" * 32), EpochKey.of(b"\x45" * 32)
EPOCH = 3
PLACE = GroupPlace(b"g" * 32, b"alice-id", 7, 0)
BODY = b"shared between members"


class Signer:
    """A member's signing key."""

    def __init__(self, number: int) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(bytes((number,)) * 32)
        self.public = self._private.public_key().public_bytes_raw()
        self.sign = self._private.sign


ALICE, BOB = Signer(1), Signer(2)

places = st.builds(
    GroupPlace,
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=8, max_size=8),
    st.integers(1, MAX_SEQ),
    st.integers(0, 15),
)


def sealed(body: bytes = BODY, place: GroupPlace = PLACE, key: EpochKey = KEY, signer: Signer = ALICE) -> bytes:
    return seal(place, EPOCH, key, body, signer.sign)


@given(places, st.integers(1, MAX_SEQ), st.binary(max_size=2_000))
def test_members_open_what_a_member_sealed(place: GroupPlace, epoch: int, body: bytes) -> None:
    message = seal(place, epoch, KEY, body, ALICE.sign)
    assert epoch_of(message) == epoch
    assert len(message) == len(body) + OVERHEAD
    assert unseal(place, message, KEY, [ALICE.public]) == body


@given(places, places)
def test_a_message_opens_at_its_own_place_only(place: GroupPlace, other: GroupPlace) -> None:
    message = sealed(place=place)
    if place == other:
        assert unseal(other, message, KEY, [ALICE.public]) == BODY
    else:
        with pytest.raises(OpenFailed):
            unseal(other, message, KEY, [ALICE.public])


@pytest.mark.parametrize(
    "place",
    [
        replace(PLACE, group=b"h" * 32),
        replace(PLACE, sender=b"bob's-id"),
        replace(PLACE, seq=8),
        replace(PLACE, level=1),
    ],
    ids=["group", "sender", "seq", "level"],
)
def test_a_message_is_refused_in_another_place(place: GroupPlace) -> None:
    with pytest.raises(OpenFailed):
        unseal(place, sealed(), KEY, [ALICE.public])


def test_a_message_is_refused_under_another_epoch_also_with_the_same_key() -> None:
    message = bytearray(sealed())
    message[8] ^= 1
    assert epoch_of(bytes(message)) != EPOCH
    with pytest.raises(OpenFailed):
        unseal(PLACE, bytes(message), KEY, [ALICE.public])


def test_every_single_changed_bit_is_refused() -> None:
    message = sealed()
    for at in range(len(message)):
        for bit in range(8):
            changed = bytearray(message)
            changed[at] ^= 1 << bit
            with pytest.raises(Refused):
                unseal(PLACE, bytes(changed), KEY, [ALICE.public])


def test_a_message_that_is_cut_or_longer_is_refused() -> None:
    message = sealed()
    for end in range(len(message)):
        with pytest.raises(Refused):
            unseal(PLACE, message[:end], KEY, [ALICE.public])
    with pytest.raises(OpenFailed):
        unseal(PLACE, message + b"\0", KEY, [ALICE.public])


@given(st.binary(max_size=200))
def test_bytes_that_no_member_sealed_are_refused(message: bytes) -> None:
    with pytest.raises(Refused):
        unseal(PLACE, message, KEY, [ALICE.public])


def test_no_epoch_is_read_from_what_is_no_message() -> None:
    for message in (b"", b"\1" * (OVERHEAD - 1), b"\2" * OVERHEAD):
        with pytest.raises(Malformed):
            epoch_of(message)


def test_an_agent_without_the_key_opens_nothing() -> None:
    with pytest.raises(OpenFailed):
        unseal(PLACE, sealed(), OTHER_KEY, [ALICE.public])


def test_a_member_cannot_pose_as_another_although_it_has_the_key() -> None:
    with pytest.raises(SignatureFailed):
        unseal(PLACE, sealed(signer=BOB), KEY, [ALICE.public])


def test_a_signature_cannot_be_taken_from_another_message() -> None:
    stolen: list[bytes] = []

    def note(message: bytes) -> bytes:
        stolen.append(ALICE.sign(message))
        return stolen[-1]

    seal(PLACE, EPOCH, KEY, BODY, note)
    for place, epoch, body in (
        (replace(PLACE, seq=8), EPOCH, BODY),
        (PLACE, EPOCH + 1, BODY),
        (PLACE, EPOCH, BODY + b"!"),
        (replace(PLACE, group=b"h" * 32), EPOCH, BODY),
    ):
        forged = seal(place, epoch, KEY, body, lambda _: stolen[0])
        with pytest.raises(SignatureFailed):
            unseal(place, forged, KEY, [ALICE.public])


def test_what_was_signed_with_a_former_key_of_its_sender_opens() -> None:
    new = Signer(3)
    assert unseal(PLACE, sealed(), KEY, [new.public, ALICE.public]) == BODY
    assert unseal(PLACE, sealed(signer=new), KEY, [new.public, ALICE.public]) == BODY
    with pytest.raises(SignatureFailed):
        unseal(PLACE, sealed(), KEY, [new.public])
    with pytest.raises(SignatureFailed):
        unseal(PLACE, sealed(), KEY, [])


def test_two_messages_of_one_place_share_neither_nonce_nor_ciphertext() -> None:
    one, other = sealed(bytes(200)), sealed(bytes(200))
    assert one[9:21] != other[9:21]
    assert one[21:] != other[21:]


def test_a_nonce_serves_one_place_only_since_each_place_has_its_own_message_key() -> None:
    def zeros(count: int) -> bytes:
        return bytes(count)

    one = seal(PLACE, EPOCH, KEY, bytes(200), lambda _: bytes(64), zeros)
    other = seal(replace(PLACE, seq=8), EPOCH, KEY, bytes(200), lambda _: bytes(64), zeros)
    assert one[21:] != other[21:]


def test_neither_the_body_nor_its_signature_is_visible() -> None:
    signatures: list[bytes] = []

    def note(message: bytes) -> bytes:
        signatures.append(ALICE.sign(message))
        return signatures[-1]

    message = seal(PLACE, EPOCH, KEY, BODY, note)
    assert BODY not in message
    assert signatures[0] not in message
