"""One pair of signatures for many envelopes: each is provable alone, and none can be read as another place or size."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope import merkle_batch, sealing, wire
from angelia.envelope.merkle_batch import MerkleProof, VerifiedRoots
from angelia.envelope.refusals import Malformed, SignatureFailed
from angelia.envelope.signing import Purpose, Signatures, VerifyingPair
from angelia.envelope.wire import Envelope
from envelope import reference
from envelope.reference import BATCH_CONTEXT, BATCH_LABEL, ENVELOPE_LABEL, Raw, place, private_keys
from envelope.samples import ALICE, MALLORY, ML_KEM, NOW, SENDER, letter, open_envelope, open_wire, sealed, sealed_batch

COUNTS = (1, 2, 3, 5, 64, 255, 256)
leaves = st.integers(1, 256).map(lambda count: [reference.leaf(bytes([at])) for at in range(count)])


class Asked:
    """How often signatures were checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        real = VerifyingPair.verify

        def verify(pair: VerifyingPair, purpose: Purpose, message: bytes, signatures: Signatures) -> bool:
            self.times += 1
            return real(pair, purpose, message, signatures)

        monkeypatch.setattr(VerifyingPair, "verify", verify)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


# The tree.


@given(leaves, st.data())
def test_root_and_paths_are_those_of_rfc_9162(given_leaves: list[bytes], data: st.DataObject) -> None:
    root, paths = merkle_batch.tree(given_leaves)
    index = data.draw(st.integers(0, len(given_leaves) - 1))
    assert root == reference.tree_root(given_leaves)
    assert list(paths[index]) == reference.tree_path(index, given_leaves)


@given(leaves, st.data())
def test_every_leaf_and_its_path_lead_to_the_root(given_leaves: list[bytes], data: st.DataObject) -> None:
    root, paths = merkle_batch.tree(given_leaves)
    index = data.draw(st.integers(0, len(given_leaves) - 1))
    proof = MerkleProof(index, len(given_leaves), paths[index])
    assert merkle_batch.root_of(given_leaves[index], proof) == root
    assert len(proof.path) == merkle_batch.depth(index, proof.count)
    if proof.path:
        at = data.draw(st.integers(0, len(proof.path) - 1))
        changed = (*proof.path[:at], bytes(32), *proof.path[at + 1 :])
        assert merkle_batch.root_of(given_leaves[index], replace(proof, path=changed)) != root
    assert merkle_batch.root_of(bytes(32), proof) != root


@pytest.mark.parametrize("count", COUNTS)
def test_the_length_of_a_path_follows_from_index_and_count(count: int) -> None:
    some = [reference.leaf(bytes([at])) for at in range(count)]
    paths = [reference.tree_path(index, some) for index in range(count)]
    assert [list(path) for path in merkle_batch.tree(some)[1]] == paths
    assert [merkle_batch.depth(index, count) for index in range(count)] == [len(path) for path in paths]


def test_an_inner_node_is_no_leaf() -> None:
    """The bytes before leaves and nodes differ, so that a node cannot pass as somebody's message."""
    some = [merkle_batch.leaf(bytes([at])) for at in range(4)]
    root, _ = merkle_batch.tree(some)
    assert merkle_batch.tree([merkle_batch.leaf(some[0] + some[1]), merkle_batch.leaf(some[2] + some[3])])[0] != root


# Envelopes of a batch.


@pytest.mark.parametrize("count", COUNTS)
def test_each_member_verifies_and_opens_alone(count: int) -> None:
    members = sealed_batch(count, ML_KEM)
    assert [open_wire(member.wire) for member in members] == [b"%d" % number for number in range(count)]
    assert len({member.replay_key for member in members}) == count
    assert {member.signatures for member in members} == {members[0].signatures}


@pytest.mark.parametrize("count", [0, 257])
def test_a_batch_has_1_to_256_messages(count: int) -> None:
    with pytest.raises(Malformed):
        sealing.seal_batch([letter(ML_KEM)] * count, SENDER, ALICE)


def test_the_signatures_cover_label_count_and_root() -> None:
    members = sealed_batch(5)
    root = reference.tree_root([reference.leaf(ENVELOPE_LABEL + Raw.of(member).digest) for member in members])
    signed = BATCH_LABEL + (5).to_bytes(2) + root
    ed25519, ml_dsa = private_keys(ALICE)
    ed25519.public_key().verify(members[0].signatures.ed25519, signed)
    ml_dsa.public_key().verify(members[0].signatures.ml_dsa, signed, BATCH_CONTEXT)


def test_the_batch_flag_is_signed() -> None:
    """Neither a member without its path nor a single envelope with one is what was signed."""
    member, single = sealed_batch(1)[0], sealed()
    stripped = Raw.of(member).but(flags=0, batch=b"")
    added = Raw.of(single).but(flags=8, batch=place(0, 1, []))
    for raw in (stripped, added):
        with pytest.raises(SignatureFailed):
            open_wire(raw.wire)


def test_a_member_in_another_place_is_refused() -> None:
    members = sealed_batch(4)
    for index in (0, 1, 3):
        raw = Raw.of(members[2]).but(batch=place(index, 4, members[2].proof.path))  # type: ignore[union-attr]
        with pytest.raises(SignatureFailed):
            open_wire(raw.wire)


def test_the_path_of_another_member_is_refused() -> None:
    members = sealed_batch(4)
    for other in members[1:]:
        raw = Raw.of(members[0]).but(batch=Raw.of(other).batch)
        with pytest.raises(SignatureFailed):
            open_wire(raw.wire)


@pytest.mark.parametrize(
    ("index", "count", "depth", "path"),
    [
        (0, 0, 0, 0),
        (0, 0, 1, 1),
        (1, 1, 0, 0),
        (5, 5, 1, 1),
        (65535, 5, 3, 3),
        (0, 257, 9, 9),
        (0, 65535, 16, 16),
        (0, 1, 1, 1),
        (0, 5, 2, 2),
        (0, 5, 4, 4),
        (4, 5, 3, 3),
        (4, 5, 0, 0),
        (0, 5, 255, 255),
        (0, 5, 3, 2),
        (0, 5, 3, 4),
        (0, 256, 8, 7),
    ],
)
def test_an_impossible_place_is_refused_when_parsed(index: int, count: int, depth: int, path: int) -> None:
    raw = Raw.of(sealed()).but(flags=8, batch=place(index, count, [os.urandom(32)] * path, depth))
    with pytest.raises(Malformed):
        wire.decode(raw.wire)


@pytest.mark.parametrize("missing", [5, 4, 3, 1])
def test_a_cut_place_is_refused(missing: int) -> None:
    raw = Raw.of(sealed()).but(flags=8, batch=place(0, 1, [])[:-missing])
    with pytest.raises(Malformed):
        wire.decode(raw.wire)


# The memory of verified roots.


def test_a_verified_root_spares_the_signatures_of_the_others(asked: Asked) -> None:
    roots = VerifiedRoots()
    for number, member in enumerate(sealed_batch(5)):
        assert open_envelope(member, roots=roots) == b"%d" % number
    assert asked.times == 1


def test_without_a_memory_every_signature_is_checked(asked: Asked) -> None:
    for member in sealed_batch(3):
        open_envelope(member)
    assert asked.times == 3


@pytest.mark.parametrize(("later", "times"), [(0, 1), (300_000, 1), (300_001, 2), (-1, 2)])
def test_a_root_is_remembered_for_five_minutes(asked: Asked, later: int, times: int) -> None:
    roots = VerifiedRoots()
    one, other = sealed_batch(2)
    open_envelope(one, roots=roots)
    open_envelope(other, roots=roots, now_ms=NOW + later)
    assert asked.times == times


def test_a_root_that_failed_is_not_remembered(asked: Asked) -> None:
    roots = VerifiedRoots()
    forged = Raw.of(sealed_batch(2)[0]).but(signature_ed25519=bytes(64))
    for _ in range(2):
        with pytest.raises(SignatureFailed):
            open_envelope(wire.decode(forged.wire), roots=roots)
    assert asked.times == 2


def warm(members: list[Envelope]) -> VerifiedRoots:
    roots = VerifiedRoots()
    for member in members:
        sealing.verify(member, ALICE.public, roots, NOW)
    return roots


@pytest.mark.parametrize("half", ["signature_ed25519", "signature_ml_dsa"])
def test_other_signature_bytes_are_refused_though_the_root_is_known(half: str) -> None:
    members = sealed_batch(3)
    roots = warm(members)
    raw = Raw.of(members[0])
    content = getattr(raw, half)
    for changed in (bytes(len(content)), content[:-1] + bytes([content[-1] ^ 1])):
        with pytest.raises(SignatureFailed):
            open_envelope(wire.decode(raw.but(**{half: changed}).wire), roots=roots)


def test_three_leaves_cannot_be_read_as_four_though_the_root_is_known() -> None:
    """The first leaf of three and of four has a path of the same length, and it leads to the same root."""
    members = sealed_batch(3)
    roots = warm(members)
    proof = members[0].proof
    assert proof is not None
    envelope = wire.decode(Raw.of(members[0]).but(batch=place(0, 4, proof.path)).wire)
    leaf = reference.leaf(ENVELOPE_LABEL + envelope.digest)
    assert envelope.proof is not None
    assert merkle_batch.root_of(leaf, envelope.proof) == merkle_batch.root_of(leaf, proof)
    with pytest.raises(SignatureFailed):
        open_envelope(envelope, roots=roots)


def test_a_known_root_does_not_admit_what_is_not_under_it() -> None:
    members = sealed_batch(3)
    roots = warm(members)
    raw = Raw.of(members[0])
    for changed in (raw.but(priority=3), raw.but(auth_tag=bytes(16)), raw.but(batch=place(0, 3, [bytes(32)] * 2))):
        with pytest.raises(SignatureFailed):
            open_envelope(wire.decode(changed.wire), roots=roots)


def test_a_root_is_known_for_its_signer_only() -> None:
    members = sealed_batch(2)
    roots = warm(members)
    raw = Raw.of(members[0]).but(sender_key_id=MALLORY.public.signer_id.bytes)
    with pytest.raises(SignatureFailed):
        open_envelope(wire.decode(raw.wire), MALLORY.public, roots)
    with pytest.raises(SignatureFailed):
        open_envelope(members[0], MALLORY.public, roots)


def test_every_part_of_what_is_remembered_must_be_the_same() -> None:
    roots, signatures = VerifiedRoots(), Signatures(b"1" * 64, b"2" * 3309)
    signer, root = ALICE.public.signer_id, b"3" * 32
    roots.add(signer, 3, root, signatures, NOW)
    assert roots.has(signer, 3, root, signatures, NOW)
    assert not roots.has(MALLORY.public.signer_id, 3, root, signatures, NOW)
    assert not roots.has(signer, 4, root, signatures, NOW)
    assert not roots.has(signer, 3, b"4" * 32, signatures, NOW)
    assert not roots.has(signer, 3, root, replace(signatures, ed25519=b"0" * 64), NOW)
    assert not roots.has(signer, 3, root, replace(signatures, ml_dsa=b"0" * 3309), NOW)


def test_the_memory_does_not_grow_for_ever() -> None:
    roots, signatures = VerifiedRoots(), Signatures(b"", b"")
    for number in range(10_000):
        roots.add(ALICE.public.signer_id, 1, number.to_bytes(32), signatures, NOW)
        assert roots.has(ALICE.public.signer_id, 1, number.to_bytes(32), signatures, NOW)
    assert len(roots._seen) <= 4096
