"""The stored record: fixed offsets, and damage that is always noticed."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import DamagedRecord
from angelia.grouplog.model import records
from angelia.grouplog.model.records import Kind, Record

levels = st.integers(0, 15)
data = st.binary(max_size=200)


@st.composite
def shards(draw: st.DrawFn) -> Record:
    total = draw(st.integers(1, 32))
    return Record(
        draw(st.integers(1, 15)),
        draw(data),
        draw(st.integers(0, total - 1)),
        draw(st.integers(1, total)),
        total,
        draw(st.binary(max_size=300)),
    )


whole = st.builds(Record, level=levels, data=data)


@given(whole | shards())
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    encoded = record.encode()
    assert records.decode(encoded) == record
    assert records.level_of(encoded) == record.level


def test_a_whole_message_has_its_fields_at_fixed_offsets() -> None:
    encoded = Record(3, b"ciphertext").encode()
    assert encoded == b"\x02\x00\x03\x00" + hashlib.sha256(b"ciphertext").digest()[:16] + b"ciphertext"


def test_a_shard_has_its_fields_at_fixed_offsets() -> None:
    encoded = Record(1, b"piece", 2, 3, 5, b"manifest").encode()
    head = b"\x02\x01\x01\x00" + hashlib.sha256(b"piece").digest()[:16]
    assert encoded == head + b"\x02\x03\x05\x00" + b"\x00\x08" + b"manifest" + b"piece"


def test_the_kind_follows_from_the_index() -> None:
    assert Record(0, b"").kind is Kind.FULL
    assert Record(1, b"", 0, 1, 1, b"").kind is Kind.SHARD


@given(whole | shards(), st.data())
def test_a_record_that_is_cut_anywhere_is_damaged(record: Record, chance: st.DataObject) -> None:
    encoded = record.encode()
    cut = encoded[: chance.draw(st.integers(0, max(0, len(encoded) - 1)))]
    assert not records.is_sound(cut)


@given(shards())
def test_no_cut_of_a_shard_gives_another_error_than_damage(record: Record) -> None:
    encoded = record.encode()
    for end in range(len(encoded)):
        with pytest.raises(DamagedRecord):
            records.decode(encoded[:end])


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_damaged_and_nothing_worse(noise: bytes) -> None:
    assert not records.is_sound(noise)
    assert 0 <= records.level_of(noise) <= 255


@given(whole, st.data())
def test_a_flipped_bit_of_format_kind_flags_digest_or_data_is_noticed(record: Record, chance: st.DataObject) -> None:
    encoded = bytearray(record.encode())
    offsets = [at for at in range(len(encoded)) if at != 2]  # a level that is another level is found in `hi`
    at, bit = chance.draw(st.sampled_from(offsets)), chance.draw(st.integers(0, 7))
    encoded[at] ^= 1 << bit
    assert not records.is_sound(bytes(encoded))


@pytest.mark.parametrize(
    ("offset", "value"),
    [(0, 1), (0, 3), (1, 2), (2, 16), (2, 255), (3, 1)],
    ids=["older format", "newer format", "kind", "level 16", "level 255", "flags"],
)
def test_an_unknown_format_kind_level_or_flag_is_damage(offset: int, value: int) -> None:
    encoded = bytearray(Record(1, b"data").encode())
    encoded[offset] = value
    with pytest.raises(DamagedRecord, match="unknown"):
        records.decode(bytes(encoded))


@pytest.mark.parametrize(
    "numbers",
    [(5, 3, 5, 0), (0, 0, 5, 0), (0, 6, 5, 0), (0, 3, 33, 0), (0, 3, 5, 1), (255, 3, 5, 0)],
    ids=["index is n", "k is 0", "k over n", "n over 32", "reserved", "index of a whole message"],
)
def test_shard_numbers_that_do_not_fit_are_damage(numbers: tuple[int, int, int, int]) -> None:
    encoded = bytearray(Record(1, b"data", 0, 3, 5, b"m").encode())
    encoded[20:24] = bytes(numbers)
    with pytest.raises(DamagedRecord):
        records.decode(bytes(encoded))


def test_a_shard_of_level_0_is_damage() -> None:
    encoded = bytearray(Record(1, b"data", 0, 3, 5, b"m").encode())
    encoded[2] = 0
    assert not records.is_sound(bytes(encoded))
