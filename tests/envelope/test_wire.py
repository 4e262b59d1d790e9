"""The wire form: one legal string of bytes for each envelope, and a reason for every other string."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope import json_form, wire
from angelia.envelope.ids import KeyType
from angelia.envelope.refusals import Malformed, Refused, SuiteRefused
from angelia.envelope.wire import MAX_ENVELOPE, TTL_CEILING, TTL_MAX, Envelope, Header, Suite
from envelope.reference import Raw, place
from envelope.samples import CHANNEL, CORRELATION, ML_KEM, NOW, XWING, envelopes, headers, sealed, sealed_batch

RAW = Raw.of(sealed(ML_KEM, channel_id=CHANNEL, correlation_id=CORRELATION))
PLAIN = Raw.of(sealed())
TO_CHANNEL = RAW.but(suite=4, recipient_nhi=b"", wrapped_key=b"")
LATEST = 2**53 - 1


def refused(raw: Raw, why: type[Refused] = Malformed) -> None:
    with pytest.raises(why) as error:
        wire.decode(raw.wire)
    assert type(error.value) is why


def decoded(raw: Raw) -> Header:
    envelope = wire.decode(raw.wire)
    assert envelope.wire == raw.wire
    assert envelope.head == raw.head
    return envelope.header


# One form.


@given(envelopes())
def test_what_is_encoded_is_decoded_to_the_same(envelope: Envelope) -> None:
    assert wire.decode(envelope.wire) == envelope


@given(envelopes())
def test_the_form_is_the_one_that_is_defined(envelope: Envelope) -> None:
    raw = Raw.of(envelope)
    assert raw.head == envelope.head
    assert raw.wire == envelope.wire
    assert raw.digest == envelope.digest
    assert hashlib.sha256(raw.wire).hexdigest() == envelope.replay_key


@given(envelopes(), envelopes())
def test_two_envelopes_have_two_forms_two_digests_and_two_replay_keys(one: Envelope, other: Envelope) -> None:
    same = one == other
    assert (one.wire == other.wire) == same
    assert (one.replay_key == other.replay_key) == same
    parts = [(envelope.head, envelope.ciphertext, envelope.tag) for envelope in (one, other)]
    assert (one.digest == other.digest) == (parts[0] == parts[1])


@given(st.binary(max_size=300))
def test_no_random_bytes_are_an_envelope(content: bytes) -> None:
    with pytest.raises(Malformed):
        wire.decode(content)


@given(headers())
def test_expiry_and_flags_follow_from_the_other_fields(header: Header) -> None:
    head = wire.encode_head(header)
    assert int.from_bytes(head[32:40]) == header.expires_at == header.created_at + 1000 * header.ttl_seconds
    assert (
        int.from_bytes(head[6:8])
        == header.flags
        == (header.channel_id is not None)
        + 2 * (header.correlation_id is not None)
        + 8 * header.batched
        + 16 * header.control
    )


@pytest.mark.parametrize("kind", [ML_KEM, XWING])
def test_the_sizes_are_those_that_are_promised(kind: KeyType) -> None:
    envelope = sealed(kind, bytes(1024))
    names = len(envelope.header.sender_nhi) + len(envelope.header.recipient_nhi)
    assert names == 14 + 12
    assert len(envelope.wire) == {ML_KEM: 5637, XWING: 5669}[kind]
    assert len(envelope.wire) - 1024 - names == {ML_KEM: 4587, XWING: 4619}[kind]


def largest() -> Envelope:
    member = Raw.of(sealed_batch(256)[0]).but(
        flags=1 | 2 | 8,
        sender_nhi=b"s" * 255,
        recipient_nhi=b"r" * 255,
        channel_id=CHANNEL.bytes,
        correlation_id=CORRELATION.bytes,
        encrypted_payload=bytes(2**20 + 8 + 2**16),
    )
    return wire.decode(member.wire)


def test_the_largest_legal_envelope_fits() -> None:
    envelope = largest()
    assert len(envelope.wire) == 1_119_534
    assert MAX_ENVELOPE == 1_122_304
    assert json_form.decode(json_form.encode(envelope)) == envelope


def test_more_than_the_largest_envelope_is_refused_at_once() -> None:
    with pytest.raises(Malformed, match="at most"):
        wire.decode(largest().wire.ljust(MAX_ENVELOPE + 1, b"\0"))


# Fields, one by one. Whatever is wrong is wrong for who encodes it, too.


@pytest.mark.parametrize("magic", [b"AGLF", b"agle", bytes(4), b"ELGA"])
def test_the_magic_is_exact(magic: bytes) -> None:
    refused(RAW.but(magic=magic))


@pytest.mark.parametrize("version", [0, 2, 3, 255])
def test_another_version_is_refused(version: int) -> None:
    refused(RAW.but(version=version))


@pytest.mark.parametrize("suite", [0, 5, 6, 255])
def test_an_unknown_suite_is_refused(suite: int) -> None:
    refused(RAW.but(suite=suite))


def test_suite_3_is_reserved_and_refused() -> None:
    refused(RAW.but(suite=3), SuiteRefused)
    refused(RAW.but(suite=3, flags=RAW.flags | 4, session=bytes(48), wrapped_key=b""), SuiteRefused)
    header = replace(wire.decode(RAW.wire).header, suite=Suite.SESSION)
    with pytest.raises(SuiteRefused):
        wire.encode_head(header)


@pytest.mark.parametrize("bit", range(5, 16))
def test_an_unknown_flag_is_refused(bit: int) -> None:
    refused(RAW.but(flags=RAW.flags | 1 << bit))


@pytest.mark.parametrize("base", [RAW, PLAIN, TO_CHANNEL], ids=["suite 1", "suite 2", "suite 4"])
def test_a_session_block_is_refused(base: Raw) -> None:
    refused(base.but(flags=base.flags | 4))
    refused(base.but(flags=base.flags | 4, session=bytes(48)))


def test_a_flag_without_its_field_and_a_field_without_its_flag_are_refused() -> None:
    for bit in (1, 2):
        refused(RAW.but(flags=RAW.flags & ~bit))
        refused(PLAIN.but(flags=bit))
    refused(PLAIN.but(flags=8))
    refused(PLAIN.but(batch=place(0, 1, [])))


@pytest.mark.parametrize("version", [0, 1, 2, 3, 5, 6, 8, 15])
def test_a_message_id_is_of_version_4_or_7(version: int) -> None:
    raw = bytearray(RAW.message_id)
    raw[6] = raw[6] & 0x0F | version << 4
    refused(RAW.but(message_id=bytes(raw)))


@pytest.mark.parametrize("top", [0b00, 0b01, 0b11])
def test_a_message_id_has_the_variant_of_rfc_9562(top: int) -> None:
    raw = bytearray(RAW.message_id)
    raw[8] = raw[8] & 0x3F | top << 6
    refused(RAW.but(message_id=bytes(raw)))


def test_version_7_is_taken_and_the_nil_uuid_is_not() -> None:
    raw = bytearray(RAW.message_id)
    raw[6] = raw[6] & 0x0F | 0x70
    assert decoded(RAW.but(message_id=bytes(raw))).message_id.version == 7
    refused(RAW.but(message_id=bytes(16)))
    refused(RAW.but(message_id=b"\xff" * 16))


@pytest.mark.parametrize("name", ["key_id", "sender_key_id", "channel_id", "correlation_id"])
@pytest.mark.parametrize("value", [bytes(16), b"\xff" * 16], ids=["nil", "max"])
def test_the_other_ids_may_hold_any_value(name: str, value: bytes) -> None:
    assert getattr(decoded(RAW.but(**{name: value})), name) == UUID(bytes=value)


@pytest.mark.parametrize("difference", [-604_800_000, -1, 1, 1000, 604_800_000])
def test_expiry_is_creation_and_ttl(difference: int) -> None:
    refused(RAW.but(expires_at=RAW.expires_at + difference))


def timed(created_at: int, ttl: int) -> Raw:
    return RAW.but(created_at=created_at, ttl_seconds=ttl, expires_at=created_at + 1000 * ttl)


def test_times_end_before_2_to_the_53() -> None:
    assert decoded(timed(0, 1)).created_at == 0
    assert decoded(timed(LATEST - 1000, 1)).expires_at == LATEST
    refused(timed(LATEST - 999, 1))
    refused(timed(LATEST, 1))
    refused(timed(LATEST + 1, 1))
    refused(timed(2**64 - 1001, 1))


@pytest.mark.parametrize("created_at", [-1, LATEST - 999, 2**53, 2**64])
def test_times_out_of_range_are_not_encoded(created_at: int) -> None:
    with pytest.raises(Malformed):
        wire.encode_head(replace(wire.decode(RAW.wire).header, created_at=created_at, ttl_seconds=1))


@pytest.mark.parametrize("ttl", [0, TTL_CEILING + 1, 2**32 - 1])
def test_a_ttl_out_of_bounds_is_refused(ttl: int) -> None:
    refused(timed(NOW, ttl))


def test_the_ceiling_of_the_ttl_is_an_argument() -> None:
    header = replace(wire.decode(RAW.wire).header, ttl_seconds=TTL_MAX + 1)
    with pytest.raises(Malformed):
        wire.encode_head(header)
    assert wire.encode_head(header, TTL_MAX + 1)
    raw = timed(NOW, TTL_MAX + 1)
    assert decoded(raw).ttl_seconds == TTL_MAX + 1
    for ceiling in (TTL_MAX, 60):
        with pytest.raises(Malformed):
            wire.decode(raw.wire, ceiling)
    assert wire.decode(timed(NOW, 60).wire, 60)
    assert (TTL_MAX, TTL_CEILING) == (604_800, 2_592_000)


@pytest.mark.parametrize("name", ["priority", "compression"])
def test_priority_and_compression_have_known_values(name: str) -> None:
    most = {"priority": 3, "compression": 2}[name]
    for value in range(most + 1):
        assert getattr(decoded(RAW.but(**{name: value})), name) == value
    for value in (most + 1, 127, 255):
        refused(RAW.but(**{name: value}))


@pytest.mark.parametrize("name", ["sender_nhi", "recipient_nhi"])
@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"a" * 256, b"Alice", b"a\n", b"a\0", b"a..b", b".a", b"a-", b"a b", b"a/b", b"a:b", b"a{b}", b"a*b"),
        *("é".encode(), "а".encode(), "ａ".encode(), b"\xed\xa0\x80", b"\xff"),
    ],
)
def test_a_name_that_is_no_handle_is_refused(name: str, value: bytes) -> None:
    refused(RAW.but(**{name: value}))


@pytest.mark.parametrize("name", ["sender_nhi", "recipient_nhi"])
@pytest.mark.parametrize("value", [b"a", b"a" * 255, b"a.b-c_d"])
def test_a_handle_has_1_to_255_bytes(name: str, value: bytes) -> None:
    assert getattr(decoded(RAW.but(**{name: value})), name) == value.decode()


@pytest.mark.parametrize("change", [-12, -1, 1])
def test_the_nonce_has_12_bytes(change: int) -> None:
    refused(RAW.but(nonce=(RAW.nonce + b"\0")[: 12 + change]))


@pytest.mark.parametrize("length", [0, 1, 1087, 1089, 1119, 1120, 1121, 2240, 65535])
def test_a_wrapped_key_has_the_length_of_its_suite(length: int) -> None:
    refused(RAW.but(wrapped_key=bytes(length)))
    if length != 1120:
        refused(RAW.but(suite=2, wrapped_key=bytes(length)))
    if length != 0:
        refused(TO_CHANNEL.but(wrapped_key=bytes(length)))


@pytest.mark.parametrize("length", [0, 7, 2**20 + 8 + 2**16 + 1])
def test_a_payload_out_of_bounds_is_refused(length: int) -> None:
    refused(RAW.but(encrypted_payload=bytes(length)))


def test_the_least_and_the_longest_payload_are_taken() -> None:
    for length in (8, 2**20 + 8 + 2**16):
        decoded(RAW.but(encrypted_payload=bytes(length)))


@pytest.mark.parametrize("name", ["auth_tag", "signature_ed25519", "signature_ml_dsa"])
@pytest.mark.parametrize("change", ["none", "short", "long"])
def test_tag_and_signatures_have_one_length(name: str, change: str) -> None:
    content = getattr(RAW, name)
    refused(RAW.but(**{name: {"none": b"", "short": content[:-1], "long": content + b"\0"}[change]}))


def test_a_stripped_signature_is_refused_by_its_length() -> None:
    for length in (0, 1, 2420, 3293, 3308, 3310, 4627, 65535):
        refused(RAW.but(signature_ml_dsa=bytes(length)))


# Suite 4: to a channel, under its epoch key.


def test_an_envelope_to_a_channel_names_it_and_nobody() -> None:
    header = decoded(TO_CHANNEL)
    assert header.suite is Suite.CHANNEL
    assert (header.recipient_nhi, header.channel_id, header.wrapped_key) == ("", CHANNEL, b"")


def test_an_envelope_to_a_channel_has_no_recipient() -> None:
    refused(TO_CHANNEL.but(recipient_nhi=b"agent-bob-02"))


def test_an_envelope_to_a_channel_must_name_it() -> None:
    refused(TO_CHANNEL.but(flags=2, channel_id=b""))
    refused(TO_CHANNEL.but(flags=0, channel_id=b"", correlation_id=b""))


def test_a_channel_carries_no_control_messages() -> None:
    assert decoded(RAW.but(flags=RAW.flags | 16)).control
    refused(TO_CHANNEL.but(flags=TO_CHANNEL.flags | 16))


def test_only_an_envelope_to_a_channel_goes_without_recipient() -> None:
    for raw in (RAW, PLAIN):
        refused(raw.but(recipient_nhi=b""))


@pytest.mark.parametrize(
    "changes",
    [
        {"recipient_nhi": "agent-bob-02"},
        {"channel_id": None},
        {"control": True},
        {"wrapped_key": bytes(1088)},
        {"nonce": bytes(11)},
        {"sender_nhi": "Alice"},
        {"sender_nhi": ""},
        {"ttl_seconds": 0},
        {"message_id": UUID(int=0)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_who_encodes_keeps_the_same_rules(changes: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        wire.encode_head(replace(wire.decode(TO_CHANNEL.wire).header, **changes))  # type: ignore[arg-type]


# Lengths that lie: refused before anything of that length is made.


@pytest.mark.parametrize("at", [78, 94])
def test_a_lying_length_of_a_name_is_refused(at: int) -> None:
    for lie in (0, 13, 15, 256, 0xFFFF):
        content = bytearray(RAW.wire)
        if int.from_bytes(content[at : at + 2]) != lie:
            content[at : at + 2] = lie.to_bytes(2)
            with pytest.raises(Malformed):
                wire.decode(bytes(content))


def test_a_lying_length_of_the_payload_is_refused() -> None:
    at = len(RAW.head)
    for lie in (0, 1, 7, 12, 14, 1000, 2**20, 2**31, 2**32 - 1):
        with pytest.raises(Malformed):
            wire.decode(RAW.head + lie.to_bytes(4) + RAW.wire[at + 4 :])


@pytest.mark.parametrize("tail", [b"\0", b"x", bytes(5), bytes(100)])
def test_bytes_after_the_envelope_are_refused(tail: bytes) -> None:
    for raw in (RAW, PLAIN, TO_CHANNEL):
        with pytest.raises(Malformed):
            wire.decode(raw.wire + tail)


def test_two_envelopes_in_a_row_are_none() -> None:
    with pytest.raises(Malformed):
        wire.decode(RAW.wire + PLAIN.wire)


def test_no_secret_is_shown() -> None:
    shown = repr(wire.decode(RAW.wire))
    for name in ("nonce", "wrapped_key", "ciphertext", "signatures", "wire="):
        assert name not in shown
