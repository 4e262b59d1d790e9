"""Two signatures or none: each half counts, each purpose is its own, and only sound keys sign."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import permutations

import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

from angelia.envelope import ids
from angelia.envelope.refusals import InvalidKey
from angelia.envelope.signing import Purpose, Signatures, SigningPair, object_holds, parse_pair
from envelope.reference import private_keys
from envelope.samples import ALICE, MALLORY

MESSAGE = b"what was said"
PAIRS = list(permutations(Purpose, 2))
LABELS = {
    Purpose.ENVELOPE: (b"angelia/v1/envelope-signature", b"angelia/v1/envelope"),
    Purpose.BATCH_ROOT: (b"angelia/v1/batch-root", b"angelia/v1/batch-root"),
    Purpose.BUNDLE: (b"angelia/v1/bundle-signature", b"angelia/v1/bundle-signature"),
    Purpose.PREKEY: (b"angelia/v1/prekey-signature", b"angelia/v1/prekey-signature"),
    Purpose.RECEIPT: (b"angelia/v1/receipt-signature", b"angelia/v1/receipt-signature"),
    Purpose.ROTATION: (b"angelia/v1/signer-rotation", b"angelia/v1/signer-rotation"),
    Purpose.ROSTER: (b"angelia/v1/channel-roster", b"angelia/v1/channel-roster"),
}


@pytest.mark.parametrize("purpose", Purpose)
def test_what_a_pair_signs_it_verifies(purpose: Purpose) -> None:
    assert ALICE.public.verify(purpose, MESSAGE, ALICE.sign(purpose, MESSAGE))


@pytest.mark.parametrize("purpose", Purpose)
def test_both_signatures_cover_the_label_a_zero_byte_and_the_message(purpose: Purpose) -> None:
    label, context = LABELS[purpose]
    made = ALICE.sign(purpose, MESSAGE)
    ed25519, ml_dsa = private_keys(ALICE)
    ed25519.public_key().verify(made.ed25519, label + b"\0" + MESSAGE)
    ml_dsa.public_key().verify(made.ml_dsa, label + b"\0" + MESSAGE, context)


@pytest.mark.parametrize(("signed_as", "read_as"), PAIRS)
def test_a_signature_for_one_purpose_is_none_for_another(signed_as: Purpose, read_as: Purpose) -> None:
    assert not ALICE.public.verify(read_as, MESSAGE, ALICE.sign(signed_as, MESSAGE))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_label_begins_another(one: Purpose, other: Purpose) -> None:
    assert not (one.label + b"\0").startswith(other.label + b"\0")
    assert one.context != other.context


def test_the_context_alone_keeps_purposes_apart() -> None:
    signed = b"the same bytes"
    made = private_keys(ALICE)[1].sign(signed, Purpose.BUNDLE.context)
    assert ALICE.public._ml_dsa_holds(made, signed, Purpose.BUNDLE.context)
    assert not ALICE.public._ml_dsa_holds(made, signed, Purpose.ENVELOPE.context)


def test_half_a_signature_is_none() -> None:
    made = ALICE.sign(Purpose.ENVELOPE, MESSAGE)
    other = MALLORY.sign(Purpose.ENVELOPE, MESSAGE)
    halves = [
        replace(made, ed25519=bytes(64)),
        replace(made, ml_dsa=bytes(3309)),
        replace(made, ed25519=b""),
        replace(made, ml_dsa=b""),
        replace(made, ed25519=other.ed25519),
        replace(made, ml_dsa=other.ml_dsa),
        replace(made, ed25519=made.ed25519 + b"\0"),
        replace(made, ml_dsa=made.ml_dsa + b"\0"),
        replace(made, ml_dsa=made.ml_dsa[:-1]),
        Signatures(bytes(64), bytes(3309)),
    ]
    for one in halves:
        assert not ALICE.public.verify(Purpose.ENVELOPE, MESSAGE, one)


def test_the_other_solution_of_an_ed25519_signature_is_refused() -> None:
    """S + L satisfies the same equation; it would be a second envelope with the same content."""
    made = ALICE.sign(Purpose.ENVELOPE, MESSAGE)
    order = 2**252 + 27742317777372353535851937790883648493
    scalar = int.from_bytes(made.ed25519[32:], "little") + order
    twin = replace(made, ed25519=made.ed25519[:32] + scalar.to_bytes(32, "little"))
    assert not ALICE.public.verify(Purpose.ENVELOPE, MESSAGE, twin)


class Spy:
    """Counts how often a key was asked, and answers as it would."""

    def __init__(self, key: MLDSA65PublicKey) -> None:
        self.key = key
        self.asked = 0

    def verify(self, signature: bytes, data: bytes, context: bytes) -> None:
        self.asked += 1
        self.key.verify(signature, data, context)


@pytest.mark.parametrize("first_holds", [True, False])
def test_the_second_signature_is_checked_even_when_the_first_failed(first_holds: bool) -> None:
    spy = Spy(private_keys(ALICE)[1].public_key())
    pair = replace(ALICE.public, _ml_dsa=spy)  # type: ignore[arg-type]
    made = ALICE.sign(Purpose.ENVELOPE, MESSAGE)
    if not first_holds:
        made = replace(made, ed25519=bytes(64))
    assert pair.verify(Purpose.ENVELOPE, MESSAGE, made) is first_holds
    assert spy.asked == 1


def test_signing_twice_gives_two_signatures() -> None:
    one, other = ALICE.sign(Purpose.ENVELOPE, MESSAGE), ALICE.sign(Purpose.ENVELOPE, MESSAGE)
    assert one.ml_dsa != other.ml_dsa
    assert ALICE.public.verify(Purpose.ENVELOPE, MESSAGE, one)
    assert ALICE.public.verify(Purpose.ENVELOPE, MESSAGE, other)


def test_an_object_is_signed_by_its_sha512() -> None:
    made = ALICE.sign_object(Purpose.BUNDLE, MESSAGE)
    assert object_holds(ALICE.public, Purpose.BUNDLE, MESSAGE, made)
    assert ALICE.public.verify(Purpose.BUNDLE, hashlib.sha512(MESSAGE).digest(), made)
    assert not object_holds(ALICE.public, Purpose.BUNDLE, MESSAGE + b"!", made)
    assert not object_holds(ALICE.public, Purpose.RECEIPT, MESSAGE, made)


def test_a_pair_comes_back_from_its_seeds() -> None:
    made = SigningPair.generate()
    again = SigningPair.from_seeds(*made.seeds)
    assert again.public == made.public
    assert made.public.verify(Purpose.RECEIPT, MESSAGE, again.sign(Purpose.RECEIPT, MESSAGE))
    assert [len(seed) for seed in made.seeds] == [32, 32]


def test_the_ids_of_a_pair_are_computed_from_its_bytes() -> None:
    public = parse_pair(ALICE.public.ed25519, ALICE.public.ml_dsa)
    assert public.signer_id == ids.signer_id(public.ed25519, public.ml_dsa)
    assert public.fingerprint == ids.fingerprint(public.ed25519, public.ml_dsa)


@pytest.mark.parametrize(
    ("ed25519", "ml_dsa"), [(b"", bytes(32)), (bytes(31), bytes(32)), (bytes(32), bytes(33)), (bytes(64), bytes(32))]
)
def test_seeds_of_another_length_are_no_pair(ed25519: bytes, ml_dsa: bytes) -> None:
    with pytest.raises(InvalidKey):
        SigningPair.from_seeds(ed25519, ml_dsa)


@pytest.mark.parametrize(
    "raw",
    [
        (1).to_bytes(32, "little"),  # the neutral point: "verifies" one signature over everything
        bytes(32),
        (2**255 - 20).to_bytes(32, "little"),
        (2**255 - 18).to_bytes(32, "little"),  # the neutral point in its second spelling
        (1 | 1 << 255).to_bytes(32, "little"),
        (2).to_bytes(32, "little"),
        b"\xff" * 32,
        b"",
        bytes(31),
        bytes(33),
    ],
    ids=bytes.hex,
)
def test_what_anybody_could_sign_for_is_no_key(raw: bytes) -> None:
    with pytest.raises(InvalidKey):
        parse_pair(raw, ALICE.public.ml_dsa)


@pytest.mark.parametrize("length", [0, 1951, 1953, 1312, 2592])
def test_an_ml_dsa_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidKey):
        parse_pair(ALICE.public.ed25519, (ALICE.public.ml_dsa * 2)[:length])


def test_no_secret_is_shown() -> None:
    shown = repr(ALICE)
    assert "Private" not in shown
    assert not any(repr(seed) in shown for seed in ALICE.seeds)
