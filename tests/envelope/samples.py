"""Alice writes to Bob: their keys, her letters, and how a receiver opens them. Keys come from fixed seeds."""

from __future__ import annotations

import os
from uuid import UUID, uuid4

from hypothesis import strategies as st

from angelia.envelope import sealing, wire
from angelia.envelope.ids import KeyType, valid_handle
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.merkle_batch import MerkleProof, VerifiedRoots, depth
from angelia.envelope.sealing import Letter
from angelia.envelope.signing import Signatures, SigningPair, VerifyingPair
from angelia.envelope.wire import Compression, Envelope, Header, Priority, Suite
from envelope.reference import Raw

SENDER, RECIPIENT = "agent-alice-01", "agent-bob-02"
NOW = 1_735_171_200_000
ALICE = SigningPair.from_seeds(b"\x22" * 32, b"\x33" * 32)
MALLORY = SigningPair.from_seeds(b"\x66" * 32, b"\x77" * 32)
ML_KEM, XWING = KeyType.ML_KEM_768, KeyType.XWING
KINDS = (ML_KEM, XWING)
BOB = {ML_KEM: KemPrivateKey.from_seed(ML_KEM, bytes(range(64)))}
BOB[XWING] = KemPrivateKey.from_seed(XWING, bytes(range(64, 128)) + b"\x11" * 32)
CAROL = {kind: KemPrivateKey.generate(kind) for kind in KINDS}
KEY_OF_SUITE = {Suite.ML_KEM: BOB[ML_KEM], Suite.XWING: BOB[XWING]}
CHANNEL, CORRELATION = UUID("c9a3a2e0-1234-5678-9abc-def012345678"), UUID("7c9e6679-7425-40de-944b-e07fc1f90ae7")


def letter(kind: KeyType = XWING, body: bytes = b"hello", **other: object) -> Letter:
    values: dict[str, object] = {"message_id": uuid4(), "created_at": NOW, **other}
    return Letter(recipient=RECIPIENT, key=BOB[kind].public, body=body, **values)  # type: ignore[arg-type]


def sealed(kind: KeyType = XWING, body: bytes = b"hello", **other: object) -> Envelope:
    return sealing.seal(letter(kind, body, **other), SENDER, ALICE)


def sealed_batch(count: int, kind: KeyType = XWING) -> list[Envelope]:
    return sealing.seal_batch([letter(kind, b"%d" % number) for number in range(count)], SENDER, ALICE)


def open_envelope(
    envelope: Envelope, signer: VerifyingPair = ALICE.public, roots: VerifiedRoots | None = None, now_ms: int = NOW
) -> bytes:
    """What a receiver does with a parsed envelope."""
    sealing.verify(envelope, signer, roots, now_ms)
    return sealing.unseal(envelope, KEY_OF_SUITE[envelope.header.suite])


def open_wire(content: bytes) -> bytes:
    return open_envelope(wire.decode(content))


def hostile(frame: bytes, compression: Compression = Compression.NONE, kind: KeyType = ML_KEM, **fields: object) -> Raw:
    """An envelope with any inner frame and any header, by a sender whose keys and signatures are good."""
    secret, wrapped_key = BOB[kind].public.encapsulate()
    raw = Raw.of(sealed(kind)).but(
        compression=int(compression), wrapped_key=wrapped_key, nonce=os.urandom(12), message_id=uuid4().bytes
    )
    return raw.but(**fields).sealed(secret, BOB[kind].public.raw, frame).signed(ALICE)


# Anything that the format can hold; signatures and ciphertext are any bytes.

_names = st.text("abcxyz0189", min_size=1, max_size=40)
handles = (
    st.lists(_names, min_size=1, max_size=5)
    .flatmap(lambda parts: st.sampled_from([".", "-", "_", "--", "._"]).map(lambda between: between.join(parts)))
    .filter(valid_handle)
)
uuids = st.uuids()
message_ids = st.uuids(version=4) | st.uuids(version=4).map(lambda made: UUID(int=made.int & ~(0xF << 76) | 7 << 76))


@st.composite
def headers(draw: st.DrawFn) -> Header:
    suite = draw(st.sampled_from([Suite.ML_KEM, Suite.XWING, Suite.CHANNEL]))
    to_channel = suite is Suite.CHANNEL
    length = {Suite.ML_KEM: 1088, Suite.XWING: 1120, Suite.CHANNEL: 0}[suite]
    return Header(
        suite=suite,
        message_id=draw(message_ids),
        created_at=draw(st.integers(0, 2**53 - 1 - 604_800_000)),
        ttl_seconds=draw(st.integers(1, 604_800)),
        priority=draw(st.sampled_from(Priority)),
        compression=draw(st.sampled_from(Compression)),
        key_id=draw(uuids),
        sender_key_id=draw(uuids),
        sender_nhi=draw(handles),
        recipient_nhi="" if to_channel else draw(handles),
        channel_id=draw(uuids if to_channel else st.none() | uuids),
        correlation_id=draw(st.none() | uuids),
        control=False if to_channel else draw(st.booleans()),
        batched=draw(st.booleans()),
        nonce=draw(st.binary(min_size=12, max_size=12)),
        wrapped_key=draw(st.binary(min_size=1, max_size=16)).ljust(length, b"\x5a")[:length],
    )


@st.composite
def proofs(draw: st.DrawFn) -> MerkleProof:
    count = draw(st.integers(1, 256))
    index = draw(st.integers(0, count - 1))
    return MerkleProof(
        index, count, tuple(draw(st.binary(min_size=32, max_size=32)) for _ in range(depth(index, count)))
    )


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    header = draw(headers())
    signatures = Signatures(
        draw(st.binary(min_size=64, max_size=64)), draw(st.binary(min_size=8, max_size=32)).ljust(3309, b"\xa5")
    )
    return wire.assemble(
        header,
        wire.encode_head(header),
        draw(st.binary(min_size=8, max_size=200)),
        draw(st.binary(min_size=16, max_size=16)),
        signatures,
        draw(proofs()) if header.batched else None,
    )
