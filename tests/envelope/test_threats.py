"""Whole envelopes under attack: every byte, every cut and every field. Nothing changed is ever accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from angelia.envelope import wire
from angelia.envelope.refusals import Malformed, OpenFailed, Refused, SignatureFailed, SuiteRefused
from angelia.envelope.sealing import unseal, verify
from angelia.envelope.wire import Envelope
from envelope.reference import Raw, place
from envelope.samples import (
    ALICE,
    CHANNEL,
    CORRELATION,
    KEY_OF_SUITE,
    MALLORY,
    ML_KEM,
    XWING,
    open_wire,
    sealed,
    sealed_batch,
)

TARGETS = {
    "suite 1": sealed(ML_KEM, bytes(1024)),
    "suite 2": sealed(XWING, bytes(1024)),
    "batch": sealed_batch(5, ML_KEM)[1],
    "full": sealed(XWING, b"hello", channel_id=CHANNEL, correlation_id=CORRELATION),
}
targets = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def outcome(content: bytes) -> type[Refused] | None:
    """What opening these bytes ends in; whatever is outside the family of refusals is a fault of ours."""
    try:
        open_wire(content)
    except Refused as refused:
        return type(refused)
    return None


def decrypt(content: bytes) -> bytes:
    """Opening without a look at the signatures."""
    envelope = wire.decode(content)
    return unseal(envelope, KEY_OF_SUITE[envelope.header.suite])


@targets
def test_as_they_are_they_open(target: Envelope) -> None:
    assert outcome(target.wire) is None
    assert Raw.of(target).wire == target.wire


@targets
def test_a_bit_flipped_in_any_byte_is_refused(target: Envelope) -> None:
    content = bytearray(target.wire)
    for at in range(len(content)):
        bit = 1 << at % 8
        content[at] ^= bit
        assert outcome(bytes(content)) is not None, at
        content[at] ^= bit
    assert bytes(content) == target.wire


@targets
def test_a_bit_flipped_before_the_signatures_does_not_even_decrypt(target: Envelope) -> None:
    """The key and the tag are bound to every byte of the header, whatever the signatures say."""
    content = bytearray(target.wire)
    for at in range(len(target.head) + 4 + len(target.ciphertext) + 16):
        content[at] ^= 1
        with pytest.raises(Refused):
            decrypt(bytes(content))
        content[at] ^= 1


@targets
def test_every_cut_is_refused(target: Envelope) -> None:
    for length in range(len(target.wire)):
        with pytest.raises(Malformed):
            wire.decode(target.wire[:length])


@targets
def test_every_cut_at_the_front_is_refused(target: Envelope) -> None:
    for at in range(1, len(target.wire)):
        with pytest.raises(Malformed):
            wire.decode(target.wire[at:])


def flip(name: str, at: int = 0) -> Callable[[Raw], Raw]:
    def change(raw: Raw) -> Raw:
        content = bytearray(getattr(raw, name))
        content[at] ^= 1
        return raw.but(**{name: bytes(content)})

    return change


def other_life(raw: Raw) -> Raw:
    return raw.but(ttl_seconds=raw.ttl_seconds - 1, expires_at=raw.expires_at - 1000)


# Changes that leave a well-formed envelope: only the signatures, and the key, tell.
SIGNED: dict[str, Callable[[Raw], Raw]] = {
    "message_id": flip("message_id"),
    "created_at": lambda raw: raw.but(created_at=raw.created_at + 1, expires_at=raw.expires_at + 1),
    "expires_at and ttl_seconds": other_life,
    "priority": lambda raw: raw.but(priority=3),
    "priority lowered": lambda raw: raw.but(priority=0),
    "compression gzip": lambda raw: raw.but(compression=1),
    "compression zstd": lambda raw: raw.but(compression=2),
    "key_id": flip("key_id"),
    "sender_key_id": flip("sender_key_id"),
    "sender_key_id of another": lambda raw: raw.but(sender_key_id=MALLORY.public.signer_id.bytes),
    "sender_nhi": lambda raw: raw.but(sender_nhi=b"agent-mallory"),
    "recipient_nhi": lambda raw: raw.but(recipient_nhi=b"agent-carol"),
    "sender and recipient swapped": lambda raw: raw.but(sender_nhi=raw.recipient_nhi, recipient_nhi=raw.sender_nhi),
    "border between the names": lambda raw: raw.but(
        sender_nhi=raw.sender_nhi + b"a", recipient_nhi=raw.recipient_nhi[1:]
    ),
    "channel_id": lambda raw: raw.but(flags=raw.flags | 1, channel_id=ALICE.public.signer_id.bytes),
    "channel_id dropped or added": lambda raw: raw.but(
        flags=raw.flags ^ 1, channel_id=b"" if raw.channel_id else CHANNEL.bytes
    ),
    "correlation_id": lambda raw: raw.but(flags=raw.flags | 2, correlation_id=ALICE.public.signer_id.bytes),
    "correlation_id dropped or added": lambda raw: raw.but(
        flags=raw.flags ^ 2, correlation_id=b"" if raw.correlation_id else CHANNEL.bytes
    ),
    "channel_id for correlation_id": lambda raw: raw.but(
        flags=raw.flags & ~3 | (2 if raw.flags & 1 else 1),
        channel_id=b"" if raw.flags & 1 else CHANNEL.bytes,
        correlation_id=CHANNEL.bytes if raw.flags & 1 else b"",
    ),
    "control": lambda raw: raw.but(flags=raw.flags ^ 16),
    "nonce": flip("nonce"),
    "wrapped_key": flip("wrapped_key"),
    "wrapped_key at its end": flip("wrapped_key", -1),
    "encrypted_payload": flip("encrypted_payload"),
    "encrypted_payload shorter": lambda raw: raw.but(encrypted_payload=raw.encrypted_payload[:-1]),
    "encrypted_payload longer": lambda raw: raw.but(encrypted_payload=raw.encrypted_payload + b"\0"),
    "border between payload and tag": lambda raw: raw.but(
        encrypted_payload=raw.encrypted_payload + raw.auth_tag[:1], auth_tag=raw.auth_tag[1:] + b"\0"
    ),
    "auth_tag": flip("auth_tag"),
}
UNSIGNED: dict[str, Callable[[Raw], Raw]] = {
    "signature_ed25519": flip("signature_ed25519"),
    "signature_ed25519, its scalar": flip("signature_ed25519", 32),
    "signature_ml_dsa": flip("signature_ml_dsa"),
    "signature_ml_dsa, its middle": flip("signature_ml_dsa", 1600),
    "signature_ml_dsa, its hints": flip("signature_ml_dsa", -1),
    "both signatures zero": lambda raw: raw.but(signature_ed25519=bytes(64), signature_ml_dsa=bytes(3309)),
}
# Changes that no envelope may have.
IMPOSSIBLE: dict[str, Callable[[Raw], Raw]] = {
    "magic": flip("magic"),
    "version": lambda raw: raw.but(version=2),
    "version 0": lambda raw: raw.but(version=0),
    "suite 0": lambda raw: raw.but(suite=0),
    "suite 5": lambda raw: raw.but(suite=5),
    "the other suite": lambda raw: raw.but(suite=3 - raw.suite),
    "the channel suite": lambda raw: raw.but(suite=4),
    "unknown flag": lambda raw: raw.but(flags=raw.flags | 0x20),
    "session flag": lambda raw: raw.but(flags=raw.flags | 4),
    "message_id of version 1": lambda raw: raw.but(
        message_id=raw.message_id[:6] + bytes([raw.message_id[6] & 0x0F | 0x10]) + raw.message_id[7:]
    ),
    "message_id nil": lambda raw: raw.but(message_id=bytes(16)),
    "created_at alone": lambda raw: raw.but(created_at=raw.created_at - 1),
    "expires_at alone": lambda raw: raw.but(expires_at=raw.expires_at + 1000),
    "ttl_seconds alone": lambda raw: raw.but(ttl_seconds=raw.ttl_seconds - 1),
    "ttl_seconds 0": lambda raw: raw.but(ttl_seconds=0, expires_at=raw.created_at),
    "ttl_seconds huge": lambda raw: raw.but(ttl_seconds=2**32 - 1, expires_at=raw.created_at + 1000 * (2**32 - 1)),
    "priority": lambda raw: raw.but(priority=4),
    "compression": lambda raw: raw.but(compression=3),
    "sender_nhi empty": lambda raw: raw.but(sender_nhi=b""),
    "recipient_nhi empty": lambda raw: raw.but(recipient_nhi=b""),
    "sender_nhi upper case": lambda raw: raw.but(sender_nhi=raw.sender_nhi.upper()),
    "nonce short": lambda raw: raw.but(nonce=raw.nonce[:-1]),
    "wrapped_key short": lambda raw: raw.but(wrapped_key=raw.wrapped_key[:-1]),
    "wrapped_key long": lambda raw: raw.but(wrapped_key=raw.wrapped_key + b"\0"),
    "encrypted_payload short": lambda raw: raw.but(encrypted_payload=raw.encrypted_payload[:7]),
    "auth_tag short": lambda raw: raw.but(auth_tag=raw.auth_tag[:-1]),
    "signature_ed25519 stripped": lambda raw: raw.but(signature_ed25519=b""),
    "signature_ml_dsa stripped": lambda raw: raw.but(signature_ml_dsa=b""),
    "signature_ml_dsa short": lambda raw: raw.but(signature_ml_dsa=raw.signature_ml_dsa[:-1]),
}


@targets
@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
def test_a_changed_field_fails_the_signatures(name: str, target: Envelope) -> None:
    raw = {**SIGNED, **UNSIGNED}[name](Raw.of(target))
    assert wire.decode(raw.wire).wire == raw.wire != target.wire
    assert outcome(raw.wire) is SignatureFailed


@targets
@pytest.mark.parametrize("name", SIGNED)
def test_a_changed_field_does_not_decrypt_even_when_it_is_signed_anew(name: str, target: Envelope) -> None:
    """The sender itself cannot give one ciphertext a second header: that would be a second meaning."""
    raw = SIGNED[name](Raw.of(target)).but(flags=SIGNED[name](Raw.of(target)).flags & ~8, batch=b"")
    if "sender_key_id" not in name:
        raw = raw.signed(ALICE)
        verify(wire.decode(raw.wire), ALICE.public)
    with pytest.raises(OpenFailed):
        decrypt(raw.wire)


@targets
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_field_is_refused_when_parsed(name: str, target: Envelope) -> None:
    with pytest.raises(Malformed):
        wire.decode(IMPOSSIBLE[name](Raw.of(target)).wire)


@targets
def test_the_reserved_suite_is_refused_when_parsed(target: Envelope) -> None:
    with pytest.raises(SuiteRefused):
        wire.decode(Raw.of(target).but(suite=3).wire)


@targets
def test_a_downgrade_to_the_other_suite_is_refused(target: Envelope) -> None:
    raw = Raw.of(target)
    lengths = {1: 1088, 2: 1120}
    other = 3 - raw.suite
    changed = raw.but(suite=other, wrapped_key=(raw.wrapped_key + bytes(32))[: lengths[other]])
    assert outcome(changed.wire) is SignatureFailed


def batch_changes() -> dict[str, tuple[bytes, type[Refused]]]:
    proof = TARGETS["batch"].proof
    assert proof is not None
    index, count, path = proof.index, proof.count, proof.path
    flipped = bytes([path[1][0] ^ 1]) + path[1][1:]
    return {
        "index": (place(index ^ 1, count, path), SignatureFailed),
        "index of another pair": (place(index + 2, count, path), SignatureFailed),
        "index out of the batch": (place(count, count, path), Malformed),
        "count more": (place(index, count + 1, path), SignatureFailed),
        "count of another depth": (place(index, count - 1, path), Malformed),
        "count none": (place(0, 0, []), Malformed),
        "count too many": (place(index, 257, path), Malformed),
        "depth less": (place(index, count, path[:-1]), Malformed),
        "depth more": (place(index, count, [*path, bytes(32)]), Malformed),
        "depth that lies": (place(index, count, path, len(path) + 1), Malformed),
        "path": (place(index, count, [path[0], flipped, path[2]]), SignatureFailed),
        "path in another order": (place(index, count, path[::-1]), SignatureFailed),
        "path of zeros": (place(index, count, [bytes(32)] * 3), SignatureFailed),
        "batch of one": (place(0, 1, []), SignatureFailed),
        "no batch": (b"", Malformed),
    }


@pytest.mark.parametrize("name", batch_changes())
def test_a_changed_place_in_the_batch_is_refused(name: str) -> None:
    block, why = batch_changes()[name]
    assert outcome(Raw.of(TARGETS["batch"]).but(batch=block).wire) is why


def test_parts_of_two_envelopes_do_not_make_a_third() -> None:
    one, other = Raw.of(sealed()), Raw.of(sealed())
    payload = {"encrypted_payload": other.encrypted_payload, "auth_tag": other.auth_tag}
    signatures = {"signature_ed25519": other.signature_ed25519, "signature_ml_dsa": other.signature_ml_dsa}
    keys = {"wrapped_key": other.wrapped_key, "nonce": other.nonce}
    for parts in (payload, signatures, keys, {**payload, **keys}, {**payload, **signatures}, {**keys, **signatures}):
        assert outcome(one.but(**parts).wire) is SignatureFailed
