"""Messages of channels (suite 4): one shared secret, a key per message, and a signature that no member can borrow."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope import json_form, wire
from angelia.envelope.refusals import InvalidKey, Malformed, OpenFailed, SignatureFailed
from angelia.envelope.sealing import ChannelKey, Edition, EpochKey, Letter, seal, unseal, unseal_post, verify
from angelia.envelope.wire import Compression, Envelope, Priority, Suite
from envelope.reference import Raw, inner
from envelope.samples import ALICE, BOB, CHANNEL, CORRELATION, MALLORY, NOW, SENDER, XWING, sealed

KEY = EpochKey.of(b"\x44" * 32)
OTHER = EpochKey.of(b"\x45" * 32)


def post(body: bytes = b"hello", **other: object) -> Letter:
    values: dict[str, object] = {"message_id": uuid4(), "created_at": NOW, "channel_id": CHANNEL, "key": KEY, **other}
    return Letter(body=body, **values)  # type: ignore[arg-type]


def posted(body: bytes = b"hello", **other: object) -> Envelope:
    return seal(post(body, **other), SENDER, ALICE)


@given(
    st.binary(max_size=2000) | st.binary(max_size=20).map(lambda some: some * 100),
    st.sampled_from(Compression),
    st.sampled_from(Priority),
    st.booleans(),
)
def test_who_has_the_key_of_the_epoch_reads_what_was_posted(
    body: bytes, compression: Compression, priority: Priority, padme: bool
) -> None:
    envelope = posted(body, compression=compression, priority=priority, padme=padme)
    for decoded in (wire.decode(envelope.wire), json_form.decode(json_form.encode(envelope))):
        assert decoded == envelope
        verify(decoded, ALICE.public)
        assert unseal_post(decoded, CHANNEL, KEY) == body


def test_the_header_names_the_channel_its_key_and_no_recipient() -> None:
    header = posted(correlation_id=CORRELATION, ttl_seconds=60).header
    assert (header.suite, header.channel_id, header.key_id) == (Suite.CHANNEL, CHANNEL, KEY.key_id)
    assert (header.recipient_nhi, header.wrapped_key, header.control) == ("", b"", False)
    assert (header.correlation_id, header.ttl_seconds, header.sender_nhi) == (CORRELATION, 60, SENDER)


def test_the_id_of_a_key_follows_from_its_hash_and_is_the_published_one() -> None:
    assert KEY.key_id == UUID("f189d781-2020-85a5-88f7-1fb085be3705")
    assert KEY.secret.hex() not in repr(KEY)
    with pytest.raises(InvalidKey):
        EpochKey.of(b"\x44" * 31)


def test_the_key_of_a_message_is_derived_as_the_definition_says() -> None:
    envelope = posted(b"spelled out")
    raw = Raw.of(envelope)
    info = b"angelia/v1/envelope-key\0" + hashlib.sha256(raw.head).digest() + bytes(32)
    key = HKDF(hashes.SHA256(), 32, b"angelia/v1/hkdf-salt", info).derive(b"\x44" * 32)
    opened = AESGCM(key).decrypt(raw.nonce, raw.encrypted_payload + raw.auth_tag, raw.head)
    assert opened == inner(11, b"spelled out")


def test_two_messages_of_one_epoch_have_two_keys() -> None:
    one, other = posted(), posted()
    assert one.ciphertext != other.ciphertext
    moved = replace(other, ciphertext=one.ciphertext, tag=one.tag)
    with pytest.raises(OpenFailed):
        unseal_post(moved, CHANNEL, KEY)


def test_another_key_another_channel_and_another_suite_open_nothing() -> None:
    envelope = posted()
    for channel, key in ((CHANNEL, OTHER), (uuid4(), KEY), (CHANNEL, replace(OTHER, key_id=KEY.key_id))):
        with pytest.raises(OpenFailed):
            unseal_post(envelope, channel, key)
    with pytest.raises(OpenFailed):
        unseal(envelope, BOB[XWING])
    with pytest.raises(OpenFailed):
        unseal_post(sealed(channel_id=CHANNEL), CHANNEL, KEY)


def test_a_member_cannot_pose_as_another_member() -> None:
    """Everybody has the key; nobody has the other's signing pair."""
    forged = seal(post(b"alice says so"), SENDER, MALLORY)
    with pytest.raises(SignatureFailed):
        verify(forged, ALICE.public)
    claimed = Raw.of(forged).but(sender_key_id=ALICE.public.signer_id.bytes).signed(MALLORY)
    with pytest.raises(SignatureFailed):
        verify(wire.decode(claimed.wire), ALICE.public)


@pytest.mark.parametrize(
    "change",
    [
        {"channel_id": uuid4().bytes},
        {"key_id": OTHER.key_id.bytes},
        {"priority": 3},
        {"correlation_id": uuid4().bytes, "flags": 3},
        {"ttl_seconds": 61, "expires_at": NOW + 61_000},
        {"sender_nhi": b"mallory"},
    ],
)
def test_every_changed_field_breaks_signature_and_seal(change: dict[str, object]) -> None:
    changed = wire.decode(Raw.of(posted(ttl_seconds=60)).but(**change).wire)
    with pytest.raises(SignatureFailed):
        verify(changed, ALICE.public)
    assert changed.header.channel_id is not None
    for key in (KEY, OTHER):
        with pytest.raises(OpenFailed):
            unseal_post(changed, changed.header.channel_id, key)


@pytest.mark.parametrize(
    "change",
    [
        {"recipient_nhi": b"bob"},
        {"flags": 0, "channel_id": b""},
        {"flags": 17},
        {"wrapped_key": bytes(32)},
    ],
)
def test_a_post_with_a_recipient_without_a_channel_or_as_control_is_no_envelope(change: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        wire.decode(Raw.of(posted()).but(**change).signed(ALICE).wire)


@given(
    st.uuids(),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=32, max_size=32),
    st.none() | st.builds(Edition, st.uuids(), st.integers(1, 2**53 - 1)),
)
def test_the_control_message_of_a_channel_key_has_one_form(
    channel: UUID, epoch: int, secret: bytes, made_under: Edition | None
) -> None:
    key = ChannelKey(channel, epoch, EpochKey.of(secret), made_under)
    content = b"\x01" + channel.bytes + epoch.to_bytes(8, "big") + secret
    if made_under is not None:  # the build before named none
        content += made_under.signer_id.bytes + made_under.version.to_bytes(8, "big")
    assert key.encode() == content
    assert ChannelKey.decode(content) == key


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        b"\x02" + bytes(56),
        b"\x01" + bytes(55),
        b"\x01" + bytes(57),
        b"\x01" + bytes(56) + bytes(16) + (0).to_bytes(8, "big"),
        b"\x01" + bytes(56) + bytes(16) + (2**53).to_bytes(8, "big"),
    ],
)
def test_anything_else_is_no_channel_key(content: bytes) -> None:
    assert ChannelKey.decode(content) is None


def test_a_control_message_carries_a_key_under_suite_2() -> None:
    body = ChannelKey(CHANNEL, 7, KEY).encode()
    assert unseal(sealed(XWING, body, control=True, channel_id=CHANNEL), BOB[XWING]) == body
