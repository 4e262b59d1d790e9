"""What is signed about snapshots: nothing of it can be changed, and a receipt counts once."""

from __future__ import annotations

import hashlib
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.errors import BadManifest
from angelia.grouplog.model import coding
from angelia.grouplog.model.groups import GroupMember
from angelia.grouplog.model.pieces import (
    Completion,
    Manifest,
    NodeReceipt,
    ShardPlace,
    receipt_bytes,
    verified_manifest,
)
from angelia.grouplog.model.placement import Shape
from angelia.grouplog.model.records import WHOLE
from grouplog.open_logs import GROUP, Key

KEY = Key(b"sender")
SENDER = b"sender!!"
MEMBER = GroupMember(binding=1, sender=SENDER, public_key=KEY.public)
NODES = [Key(b"node %d" % number) for number in range(5)]
LEVEL = 2
SHAPE = Shape(3, 5)
OBJECT = Random(5).randbytes(5_000)
SHARDS = coding.encode(OBJECT, SHAPE)


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


MANIFEST = Manifest(
    group=GROUP,
    sender=SENDER,
    seq=7,
    level=LEVEL,
    watermark_digest=digest(b"watermark"),
    length=len(OBJECT),
    digest=digest(OBJECT),
    data_shards=3,
    places=tuple(ShardPlace(digest(shard), node.public) for shard, node in zip(SHARDS, NODES, strict=True)),
)
SIGNED = MANIFEST.encode(KEY.sign)


def verified(data: bytes, signer: GroupMember | None = MEMBER) -> Manifest:
    return verified_manifest(data, GROUP, SENDER, 7, signer)


def test_a_manifest_is_read_as_it_was_signed() -> None:
    assert verified(SIGNED) == MANIFEST
    assert MANIFEST.shape == SHAPE


def test_a_manifest_takes_a_quarter_kibibyte_and_64_bytes_a_shard() -> None:
    assert len(SIGNED) <= 256 + 64 * 5


def test_every_single_changed_bit_of_a_manifest_is_refused() -> None:
    for at in range(len(SIGNED)):
        for bit in range(8):
            changed = bytearray(SIGNED)
            changed[at] ^= 1 << bit
            with pytest.raises(BadManifest):
                verified(bytes(changed))


def test_a_manifest_that_is_cut_at_any_byte_is_refused() -> None:
    for end in range(len(SIGNED)):
        with pytest.raises(BadManifest):
            verified(SIGNED[:end])
    with pytest.raises(BadManifest):
        verified(SIGNED + b"\0")


@given(st.binary(max_size=400))
def test_noise_is_no_manifest(noise: bytes) -> None:
    with pytest.raises(BadManifest):
        Manifest.decode(noise)


@pytest.mark.parametrize(
    ("group", "sender", "seq"),
    [(bytes(32), SENDER, 7), (GROUP, b"another!", 7), (GROUP, SENDER, 8)],
    ids=["group", "sender", "seq"],
)
def test_a_manifest_of_another_message_is_refused(group: bytes, sender: bytes, seq: int) -> None:
    with pytest.raises(BadManifest, match="another message"):
        verified_manifest(SIGNED, group, sender, seq, MEMBER)


def test_a_manifest_that_another_member_or_no_member_signed_is_refused() -> None:
    other = msgspec.structs.replace(MEMBER, public_key=Key(b"other").public)
    for signer in (other, None):
        with pytest.raises(BadManifest, match="not signed"):
            verified(SIGNED, signer)


def test_a_manifest_signed_before_a_rotation_of_the_key_still_holds() -> None:
    rotated = msgspec.structs.replace(MEMBER, public_key=Key(b"new").public, former_keys=(KEY.public,))
    assert verified(SIGNED, rotated) == MANIFEST


@pytest.mark.parametrize(
    "change",
    [
        {"code": "liberasurecode_rs_vand"},
        {"seq": 0},
        {"seq": 2**53},
        {"level": 0},
        {"level": 16},
        {"length": 0},
        {"length": (64 << 20) + 1},
        {"data_shards": 0},
        {"data_shards": 6},
        {"places": MANIFEST.places * 7},
    ],
    ids=str,
)
def test_numbers_that_are_not_allowed_are_refused_though_they_are_signed(change: dict[str, object]) -> None:
    changed = msgspec.structs.replace(MANIFEST, **change).encode(KEY.sign)
    with pytest.raises(BadManifest):
        Manifest.decode(changed)


def test_a_shard_fits_its_own_index_only() -> None:
    for index, shard in enumerate(SHARDS):
        assert [at for at in range(5) if MANIFEST.fits(at, shard)] == [index]


@given(st.integers(0, 4), st.integers(0, len(SHARDS[0]) - 1), st.integers(0, 7))
def test_a_shard_with_a_changed_bit_does_not_fit(index: int, at: int, bit: int) -> None:
    changed = bytearray(SHARDS[index])
    changed[at] ^= 1 << bit
    assert not MANIFEST.fits(index, bytes(changed))


@pytest.mark.parametrize("index", [5, 31, 255])
def test_no_shard_fits_an_index_that_the_manifest_does_not_list(index: int) -> None:
    assert not MANIFEST.fits(index, SHARDS[0])


def test_a_cut_or_longer_shard_does_not_fit_even_if_its_digest_were_listed() -> None:
    for wrong in (SHARDS[0][:-1], SHARDS[0] + b"\0", b""):
        places = (ShardPlace(digest(wrong), NODES[0].public), *MANIFEST.places[1:])
        assert not msgspec.structs.replace(MANIFEST, places=places).fits(0, wrong)


# Receipts.


def receipt(node: Key, index: int, data: bytes) -> NodeReceipt:
    signature = node.sign(receipt_bytes(GROUP, SENDER, 7, LEVEL, index, digest(data)))
    return NodeReceipt(node.public, index, digest(data), signature)


def completion(*receipts: NodeReceipt) -> Completion:
    return Completion(
        group=GROUP,
        level=LEVEL,
        sender=SENDER,
        seq=7,
        digest=digest(SIGNED),
        watermark_digest=MANIFEST.watermark_digest,
        receipts=receipts,
        signer=SENDER,
    )


def test_a_receipt_holds_for_its_own_piece_only() -> None:
    found = receipt(NODES[0], 0, SHARDS[0])
    assert found.holds(GROUP, SENDER, 7, LEVEL)
    assert not found.holds(bytes(32), SENDER, 7, LEVEL)
    assert not found.holds(GROUP, b"another!", 7, LEVEL)
    assert not found.holds(GROUP, SENDER, 8, LEVEL)
    assert not found.holds(GROUP, SENDER, 7, LEVEL + 1)
    for change in ({"index": 1}, {"digest": digest(b"")}, {"node": NODES[1].public}):
        assert not msgspec.structs.replace(found, **change).holds(GROUP, SENDER, 7, LEVEL)


def test_receipts_of_different_nodes_and_indexes_count() -> None:
    receipts = [receipt(node, index, SHARDS[index]) for index, node in enumerate(NODES[:4])]
    assert completion(*receipts).confirmed(None, MANIFEST) == 4


def test_one_node_counts_once_however_many_pieces_it_claims() -> None:
    assert completion(*(receipt(NODES[0], index, SHARDS[index]) for index in range(5))).confirmed(None, MANIFEST) == 1


def test_one_piece_counts_once_however_many_nodes_have_it() -> None:
    assert completion(*(receipt(node, 0, SHARDS[0]) for node in NODES)).confirmed(None, MANIFEST) == 1


def test_receipts_of_a_wrong_digest_index_or_signature_do_not_count() -> None:
    wrong = [
        receipt(NODES[0], 0, b"other bytes"),
        receipt(NODES[1], 5, SHARDS[0]),
        receipt(NODES[2], WHOLE, OBJECT),
        msgspec.structs.replace(receipt(NODES[3], 3, SHARDS[3]), signature=bytes(64)),
    ]
    assert completion(*wrong).confirmed(None, MANIFEST) == 0


def test_of_a_whole_snapshot_each_node_counts_once() -> None:
    receipts = [receipt(node, WHOLE, OBJECT) for node in (NODES[0], NODES[0], NODES[1])]
    assert completion(*receipts).confirmed(digest(OBJECT), None) == 2
    assert completion(receipt(NODES[0], 0, OBJECT)).confirmed(digest(OBJECT), None) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
@settings(max_examples=60)
def test_never_more_is_confirmed_than_nodes_can_hold_different_pieces(claims: list[tuple[int, int]]) -> None:
    receipts = [RECEIPTS[node, index] for node, index in claims]
    found = completion(*receipts).confirmed(None, MANIFEST)
    assert found <= len(matched(claims))


RECEIPTS = {(node, index): receipt(NODES[node], index, SHARDS[index]) for node in range(5) for index in range(5)}


def matched(claims: list[tuple[int, int]]) -> dict[int, int]:
    """The largest assignment of pieces to nodes, by augmenting paths."""
    holder: dict[int, int] = {}

    def place(node: int, tried: set[int]) -> bool:
        for index in {index for other, index in claims if other == node} - tried:
            tried.add(index)
            if index not in holder or place(holder[index], tried):
                holder[index] = node
                return True
        return False

    for node in {node for node, _ in claims}:
        place(node, set())
    return holder


def test_a_completion_signs_every_field() -> None:
    whole = completion(receipt(NODES[0], 0, SHARDS[0]))
    changes: list[dict[str, object]] = [
        {"group": bytes(32)},
        {"level": 3},
        {"sender": b"another!"},
        {"seq": 8},
        {"digest": bytes(32)},
        {"watermark_digest": bytes(32)},
        {"receipts": ()},
        {"receipts": (receipt(NODES[1], 1, SHARDS[1]),)},
        {"signer": b"another!"},
    ]
    others = {msgspec.structs.replace(whole, **change).signed_bytes() for change in changes}
    assert len(others) == len(changes)
    assert whole.signed_bytes() not in others


def test_what_a_node_signs_is_never_what_a_member_signs() -> None:
    labels = {
        data.split(b"\0")[0]
        for data in (receipt_bytes(GROUP, SENDER, 7, LEVEL, 0, bytes(32)), completion().signed_bytes())
    }
    assert len(labels) == 2
