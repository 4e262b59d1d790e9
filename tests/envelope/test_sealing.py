"""Sealing and opening: who can read, who wrote, what is bound to what, and one answer to every failure."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope import sealing, wire
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import parse_kem_key
from angelia.envelope.refusals import Malformed, OpenFailed, Refused, SignatureFailed
from angelia.envelope.sealing import Letter, seal, seal_batch, unseal, verify
from angelia.envelope.signing import Purpose
from angelia.envelope.wire import TTL_CEILING, TTL_MAX, Compression, Priority, Suite
from envelope import reference
from envelope.reference import Raw, inner
from envelope.samples import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    CORRELATION,
    KINDS,
    MALLORY,
    ML_KEM,
    NOW,
    RECIPIENT,
    SENDER,
    XWING,
    hostile,
    letter,
    open_envelope,
    open_wire,
    sealed,
    sealed_batch,
)


@given(
    st.sampled_from(KINDS),
    st.binary(max_size=2000) | st.binary(max_size=20).map(lambda some: some * 100),
    st.sampled_from(Compression),
    st.sampled_from(Priority),
    st.booleans(),
)
def test_what_alice_seals_bob_opens(
    kind: KeyType, body: bytes, compression: Compression, priority: Priority, padme: bool
) -> None:
    envelope = sealed(kind, body, compression=compression, priority=priority, padme=padme)
    assert open_wire(envelope.wire) == body
    assert wire.decode(envelope.wire) == envelope


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_letter_is_in_the_header(kind: KeyType) -> None:
    written = letter(
        kind,
        ttl_seconds=60,
        priority=Priority.CRITICAL,
        channel_id=CHANNEL,
        correlation_id=CORRELATION,
        control=True,
    )
    header = seal(written, SENDER, ALICE).header
    assert header.suite is {ML_KEM: Suite.ML_KEM, XWING: Suite.XWING}[kind]
    for name in ("message_id", "created_at", "ttl_seconds", "priority", "channel_id", "correlation_id", "control"):
        assert getattr(header, name) == getattr(written, name)
    assert (header.sender_nhi, header.recipient_nhi) == (SENDER, RECIPIENT)
    assert (header.key_id, header.sender_key_id) == (BOB[kind].public.key_id, ALICE.public.signer_id)
    assert not header.batched


def test_a_letter_lives_for_a_week_unless_told() -> None:
    header = sealed().header
    assert header.ttl_seconds == TTL_MAX == 604_800
    assert header.priority is Priority.NORMAL


@pytest.mark.parametrize("kind", KINDS)
def test_an_envelope_made_by_the_definition_opens(kind: KeyType) -> None:
    assert open_wire(hostile(inner(5, b"hello"), kind=kind).wire) == b"hello"


@pytest.mark.parametrize("kind", KINDS)
def test_an_envelope_of_ours_opens_by_the_definition(kind: KeyType) -> None:
    raw = Raw.of(sealed(kind, b"hello"))
    secret = BOB[kind].decapsulate(raw.wrapped_key)
    key = reference.message_key(secret, raw.head, BOB[kind].public.raw)
    opened = reference.AESGCM(key).decrypt(raw.nonce, raw.encrypted_payload + raw.auth_tag, raw.head)
    assert opened == inner(5, b"hello")
    ed25519, ml_dsa = reference.private_keys(ALICE)
    ed25519.public_key().verify(raw.signature_ed25519, reference.ENVELOPE_LABEL + raw.digest)
    ml_dsa.public_key().verify(raw.signature_ml_dsa, reference.ENVELOPE_LABEL + raw.digest, reference.ENVELOPE_CONTEXT)


def test_a_channel_key_stands_in_for_the_secret_and_no_kem_key() -> None:
    head = wire.encode_head(sealed().header)
    key = sealing.EpochKey.of(b"4" * 32)
    assert key.encapsulate() == (b"4" * 32, b"")
    assert sealing.message_key(b"4" * 32, head, key.digest) == sealing.message_key(b"4" * 32, head, bytes(32))


# Freshness.


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_letter_sealed_twice_is_two_envelopes(kind: KeyType) -> None:
    written = letter(kind)
    one, other = seal(written, SENDER, ALICE), seal(written, SENDER, ALICE)
    for name in ("nonce", "wrapped_key", "encrypted_payload", "auth_tag", "signature_ed25519", "signature_ml_dsa"):
        assert getattr(Raw.of(one), name) != getattr(Raw.of(other), name)
    assert one.replay_key != other.replay_key
    assert one.header.message_id == other.header.message_id


def count_nonces(count: int) -> None:
    nonces: set[bytes] = set()
    wrapped: set[bytes] = set()
    written = [letter(ML_KEM, b"")] * 250
    for _ in range(count // len(written)):
        for member in seal_batch(written, SENDER, ALICE):
            nonces.add(member.header.nonce)
            wrapped.add(member.header.wrapped_key[:32])
    assert len(nonces) == len(wrapped) == count


def test_ten_thousand_nonces_are_distinct() -> None:
    count_nonces(10_000)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_a_million_nonces_are_distinct() -> None:
    count_nonces(1_000_000)


def test_the_bits_of_nonces_are_even() -> None:
    nonces = [int.from_bytes(member.header.nonce) for _ in range(2) for member in sealed_batch(256, ML_KEM)]
    ones = Counter(bit for nonce in nonces for bit in range(96) if nonce >> bit & 1)
    assert all(156 < ones[bit] < 356 for bit in range(96))


def test_each_nonce_is_asked_of_the_source_that_is_given() -> None:
    asked: list[int] = []

    def source(count: int) -> bytes:
        asked.append(count)
        return bytes([len(asked)]) * count

    members = seal_batch([letter(), letter()], SENDER, ALICE, random=source)
    assert asked == [12, 12]
    assert [member.header.nonce for member in members] == [b"\1" * 12, b"\2" * 12]


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_process_does_not_repeat_its_parent(kind: KeyType) -> None:
    sealed(kind)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, sealed(kind).wire)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        theirs = Raw.of(wire.decode(pipe.read()))
    assert os.waitpid(child, 0)[1] == 0
    ours = Raw.of(sealed(kind))
    for name in ("nonce", "encrypted_payload", "signature_ml_dsa"):
        assert getattr(theirs, name) != getattr(ours, name)
    assert theirs.wrapped_key[:1088] != ours.wrapped_key[:1088]
    assert theirs.wrapped_key[1088:] != ours.wrapped_key[1088:] or kind is ML_KEM


# Refusals before anything is sealed.


@pytest.mark.parametrize(
    "changes",
    [
        {"ttl_seconds": 0},
        {"ttl_seconds": TTL_MAX + 1},
        {"created_at": -1},
        {"created_at": 2**53},
        {"recipient": "Bob"},
        {"recipient": ""},
        {"message_id": CHANNEL},
        {"body": bytes(2**20 + 1)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_letter_against_the_rules_is_not_sealed(changes: dict[str, object]) -> None:
    written: Letter = replace(letter(), **changes)  # type: ignore[arg-type]
    with pytest.raises(Malformed):
        seal(written, SENDER, ALICE)
    with pytest.raises(Malformed):
        seal_batch([letter(), written], SENDER, ALICE)


def test_a_sender_that_is_no_handle_is_refused() -> None:
    with pytest.raises(Malformed):
        seal(letter(), "Alice", ALICE)


def test_a_longer_life_is_sealed_where_it_is_allowed() -> None:
    envelope = seal(letter(ttl_seconds=TTL_CEILING), SENDER, ALICE, ttl_max=TTL_CEILING)
    assert open_wire(envelope.wire) == b"hello"
    with pytest.raises(Malformed):
        wire.decode(envelope.wire, TTL_MAX)


# Who wrote it.


def test_the_pair_of_another_agent_is_refused_by_its_id() -> None:
    """Even when it did sign: the envelope names the pair that speaks for its sender."""
    with pytest.raises(SignatureFailed):
        verify(sealed(), MALLORY.public)
    with pytest.raises(SignatureFailed):
        verify(wire.decode(Raw.of(sealed()).signed(MALLORY).wire), MALLORY.public)


def test_a_signature_by_another_pair_is_refused_though_the_id_is_right() -> None:
    for raw in (Raw.of(sealed()).signed(MALLORY), hostile(inner(5, b"hello")).signed(MALLORY)):
        with pytest.raises(SignatureFailed):
            open_wire(raw.wire)


def test_somebody_who_puts_their_own_id_there_is_known_by_it() -> None:
    """Taking the name of the sender does not help: the id in the envelope is that of the pair that signed."""
    raw = Raw.of(sealed()).but(sender_key_id=MALLORY.public.signer_id.bytes).signed(MALLORY)
    envelope = wire.decode(raw.wire)
    verify(envelope, MALLORY.public)
    with pytest.raises(SignatureFailed):
        verify(envelope, ALICE.public)
    with pytest.raises(OpenFailed):
        unseal(envelope, BOB[XWING])


@pytest.mark.parametrize("half", ["signature_ed25519", "signature_ml_dsa"])
def test_half_a_signature_is_none(half: str) -> None:
    raw, other = Raw.of(sealed()), Raw.of(sealed())
    content = getattr(raw, half)
    for changed in (bytes(len(content)), getattr(other, half), getattr(raw.signed(MALLORY), half), content[::-1]):
        with pytest.raises(SignatureFailed):
            open_wire(raw.but(**{half: changed}).wire)


def test_signatures_moved_to_another_envelope_are_refused() -> None:
    one, other = Raw.of(sealed()), Raw.of(sealed())
    moved = other.but(signature_ed25519=one.signature_ed25519, signature_ml_dsa=one.signature_ml_dsa)
    with pytest.raises(SignatureFailed):
        open_wire(moved.wire)


@pytest.mark.parametrize("purpose", [purpose for purpose in Purpose if purpose is not Purpose.ENVELOPE])
def test_a_signature_for_another_purpose_is_refused(purpose: Purpose) -> None:
    raw = Raw.of(sealed())
    made = ALICE.sign(purpose, raw.digest)
    with pytest.raises(SignatureFailed):
        open_wire(raw.but(signature_ed25519=made.ed25519, signature_ml_dsa=made.ml_dsa).wire)


def test_a_member_of_a_batch_cannot_pass_as_single_nor_a_single_as_a_batch_of_one() -> None:
    raw = Raw.of(sealed())
    as_batch = raw.but(flags=8)
    leaf = reference.leaf(reference.ENVELOPE_LABEL + as_batch.digest)
    made = ALICE.sign(Purpose.ENVELOPE, (1).to_bytes(2) + leaf)
    forged = as_batch.but(signature_ed25519=made.ed25519, signature_ml_dsa=made.ml_dsa, batch=reference.place(0, 1, []))
    with pytest.raises(SignatureFailed):
        open_wire(forged.wire)


# Who can read it.


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_else_opens_it(kind: KeyType) -> None:
    with pytest.raises(OpenFailed):
        unseal(sealed(kind), CAROL[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_naming_their_key_does_not_help_somebody_else(kind: KeyType) -> None:
    raw = Raw.of(sealed(kind)).but(key_id=CAROL[kind].public.key_id.bytes).signed(ALICE)
    envelope = wire.decode(raw.wire)
    verify(envelope, ALICE.public)
    with pytest.raises(OpenFailed):
        unseal(envelope, CAROL[kind])


def test_an_envelope_that_names_another_key_does_not_open_with_the_right_one() -> None:
    raw = hostile(inner(5, b"hello"), kind=XWING, key_id=CAROL[XWING].public.key_id.bytes)
    with pytest.raises(OpenFailed):
        unseal(wire.decode(raw.wire), BOB[XWING])


def test_a_key_of_the_other_suite_does_not_open_it() -> None:
    with pytest.raises(OpenFailed):
        unseal(sealed(ML_KEM), BOB[XWING])
    raw = Raw.of(sealed(ML_KEM)).but(key_id=BOB[XWING].public.key_id.bytes).signed(ALICE)
    with pytest.raises(OpenFailed):
        unseal(wire.decode(raw.wire), BOB[XWING])


def test_half_an_xwing_key_does_not_open_what_is_sealed_to_the_whole() -> None:
    """The ML-KEM half alone agrees on another secret, whatever suite the envelope is said to have."""
    half = reference.Raw.of(sealed(XWING))
    ml_kem = type(BOB[XWING]).from_seed(ML_KEM, BOB[XWING].seed[:64])
    raw = half.but(suite=1, wrapped_key=half.wrapped_key[:1088], key_id=ml_kem.public.key_id.bytes).signed(ALICE)
    with pytest.raises(OpenFailed):
        unseal(wire.decode(raw.wire), ml_kem)


def test_an_envelope_to_a_channel_is_opened_by_no_kem_key() -> None:
    raw = Raw.of(sealed(channel_id=CHANNEL)).but(suite=4, recipient_nhi=b"", wrapped_key=b"").signed(ALICE)
    with pytest.raises(OpenFailed):
        unseal(wire.decode(raw.wire), BOB[XWING])


def test_sealing_to_a_key_needs_no_more_than_its_bytes() -> None:
    public = parse_kem_key(XWING, bytes(BOB[XWING].public.raw))
    assert open_envelope(seal(replace(letter(), key=public), SENDER, ALICE)) == b"hello"


# One answer to every failure.


def failures() -> dict[str, wire.Envelope]:
    raw = Raw.of(sealed(XWING, body=b"x" * 40))
    small_order = raw.but(wrapped_key=raw.wrapped_key[:1088] + bytes(32))
    made = {
        "tag": raw.but(auth_tag=bytes(16)),
        "payload": raw.but(encrypted_payload=bytes(48)),
        "ML-KEM half": raw.but(wrapped_key=bytes(1088) + raw.wrapped_key[1088:]),
        "X25519 half": raw.but(wrapped_key=raw.wrapped_key[:1088] + (9).to_bytes(32, "little")),
        "X25519 of small order": small_order,
        "nonce": raw.but(nonce=bytes(12)),
        "key id": raw.but(key_id=bytes(16)),
        "lengths": hostile(inner(6, b"hello"), kind=XWING),
        "padding": hostile(inner(5, b"hello", b"\1"), kind=XWING),
        "gzip": hostile(inner(50, b"hello"), Compression.GZIP, XWING),
        "zstd": hostile(inner(50, b"hello"), Compression.ZSTD, XWING),
        "control": hostile(inner(5, b"hello"), kind=XWING, flags=16),
    }
    return {name: wire.decode(one.wire) for name, one in made.items()}


def test_every_failure_to_open_looks_the_same() -> None:
    seen = set()
    for name, envelope in failures().items():
        with pytest.raises(Refused) as refused:
            unseal(envelope, BOB[XWING])
        assert type(refused.value) is OpenFailed, name
        seen.add((refused.value.code, refused.value.message, refused.value.hint, refused.value.args))
    assert seen == {("open_failed", "The envelope cannot be opened", "", ("The envelope cannot be opened",))}


# Control messages.


CHANNEL_KEY = b"\1" + CHANNEL.bytes + (7).to_bytes(8) + b"k" * 32


@pytest.mark.parametrize("body", [CHANNEL_KEY, b"\2", b"\2" + b"anything" * 100], ids=["channel key", "empty", "long"])
def test_a_control_message_of_a_known_type_opens(body: bytes) -> None:
    envelope = sealed(body=body, control=True)
    assert envelope.header.control
    assert open_wire(envelope.wire) == body


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\3", b"\xff" * 57, b"\1", CHANNEL_KEY[:-1], CHANNEL_KEY + b"\0"], ids=range(7)
)
def test_another_control_message_is_refused_after_opening(body: bytes) -> None:
    with pytest.raises(OpenFailed):
        open_wire(sealed(body=body, control=True).wire)
    assert open_wire(sealed(body=body).wire) == body


def test_two_letters_of_one_id_are_told_apart_by_their_replay_keys() -> None:
    message_id = uuid4()
    one, other = sealed(message_id=message_id, created_at=NOW), sealed(message_id=message_id, created_at=NOW)
    assert one.header.message_id == other.header.message_id
    assert one.replay_key != other.replay_key
