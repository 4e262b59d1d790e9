"""Shards of a snapshot: any k of n give it back, byte for byte, and nothing wrong passes for it."""

from __future__ import annotations

import hashlib
from itertools import combinations
from random import Random

import pytest
import zfec
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.errors import BadEncoding
from angelia.grouplog.model import coding
from angelia.grouplog.model.placement import Shape

SHAPES = [Shape(*numbers) for numbers in ((2, 3), (2, 4), (3, 5), (4, 6), (5, 8), (6, 10), (8, 12))]
objects = st.integers(1, 5_000).map(lambda size: Random(size).randbytes(size))


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@given(objects, st.sampled_from(SHAPES), st.data())
@settings(max_examples=60)
def test_any_k_of_n_shards_give_the_object(ciphertext: bytes, shape: Shape, chance: st.DataObject) -> None:
    shards = coding.encode(ciphertext, shape)
    assert len(shards) == shape.total_shards
    assert {len(shard) for shard in shards} == {coding.shard_length(len(ciphertext), shape.data_shards)}
    chosen = chance.draw(st.permutations(range(shape.total_shards)))[: shape.data_shards]
    found = coding.decode({index: shards[index] for index in chosen}, shape, len(ciphertext), digest(ciphertext))
    assert found == ciphertext


def test_every_choice_of_3_of_5_shards_gives_the_object() -> None:
    ciphertext, shape = Random(1).randbytes(4_097), Shape(3, 5)
    shards = coding.encode(ciphertext, shape)
    for size in (3, 4, 5):
        for chosen in combinations(range(5), size):
            found = coding.decode({i: shards[i] for i in chosen}, shape, len(ciphertext), digest(ciphertext))
            assert found == ciphertext


@given(objects, st.sampled_from(SHAPES))
@settings(max_examples=40)
def test_data_shards_are_slices_of_the_object_as_another_library_has_them(ciphertext: bytes, shape: Shape) -> None:
    length = coding.shard_length(len(ciphertext), shape.data_shards)
    padded = ciphertext.ljust(length * shape.data_shards, b"\0")
    slices = [padded[at : at + length] for at in range(0, len(padded), length)]
    second_opinion = zfec.Encoder(shape.data_shards, shape.total_shards).encode(slices)
    assert coding.encode(ciphertext, shape)[: shape.data_shards] == second_opinion[: shape.data_shards] == slices


@given(objects, st.sampled_from(SHAPES), st.data())
@settings(max_examples=40)
def test_a_shard_that_is_made_again_has_the_same_bytes(ciphertext: bytes, shape: Shape, chance: st.DataObject) -> None:
    index = chance.draw(st.integers(0, shape.total_shards - 1))
    assert coding.rebuilt(ciphertext, shape, index) == coding.encode(ciphertext, shape)[index]


@given(objects, st.sampled_from(SHAPES), st.data())
@settings(max_examples=60)
def test_a_flipped_byte_of_a_shard_never_passes_for_the_object(
    ciphertext: bytes, shape: Shape, chance: st.DataObject
) -> None:
    shards = dict(enumerate(coding.encode(ciphertext, shape)))
    chosen = chance.draw(st.permutations(range(shape.total_shards)))[: shape.data_shards]
    at = chance.draw(st.integers(0, len(shards[0]) - 1))
    broken = bytearray(shards[chosen[0]])
    broken[at] ^= 0x40
    try:
        found = coding.decode(
            {**{i: shards[i] for i in chosen}, chosen[0]: bytes(broken)}, shape, len(ciphertext), digest(ciphertext)
        )
    except BadEncoding:
        return
    assert found == ciphertext  # the byte was padding


@pytest.mark.parametrize("length", [99, 101])
def test_an_object_of_another_length_is_refused(length: int) -> None:
    ciphertext, shape = bytes(100), Shape(2, 3)
    shards = dict(enumerate(coding.encode(ciphertext, shape)))
    with pytest.raises(BadEncoding):
        coding.decode(shards, shape, length, digest(ciphertext))


def test_fewer_than_k_shards_are_not_decoded() -> None:
    shards = coding.encode(bytes(100), Shape(3, 5))
    with pytest.raises(ValueError, match="cannot be decoded"):
        coding.decode({0: shards[0], 4: shards[4]}, Shape(3, 5), 100, digest(bytes(100)))


@pytest.mark.parametrize(("length", "data", "expected"), [(1, 8, 1), (8, 8, 1), (9, 8, 2), (4096, 3, 1366), (0, 3, 1)])
def test_a_shard_is_the_kth_part_rounded_up(length: int, data: int, expected: int) -> None:
    assert coding.shard_length(length, data) == expected
