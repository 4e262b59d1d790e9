"""Snapshots: what they carry, how their length is hidden, when one is due, and which member takes it."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import InvalidArgument
from angelia.grouplog.model.groups import MAX_ENTRIES, MAX_LEVEL, LogFloor
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.snapshots import (
    BASE,
    Snapshot,
    compactors,
    covers,
    due_level,
    entries_by_level,
    padded_length,
)

A, B, C = (letter * 8 for letter in (b"a", b"b", b"c"))
vectors = st.dictionaries(st.binary(min_size=8, max_size=8), st.integers(0, MAX_SEQ), max_size=8)


def quarters(most: int) -> list[int]:
    """All lengths that a padded snapshot may have."""
    return sorted({(4 + part) << power for power in range(most) for part in range(4)})


# What they carry.


@given(vectors, st.binary(max_size=2_000), st.integers(0, 200))
def test_a_snapshot_is_read_as_it_was_taken(watermark: dict[bytes, int], content: bytes, overhead: int) -> None:
    assert Snapshot.decode(Snapshot(watermark, content).encode(overhead)) == Snapshot(watermark, content)


@given(st.integers(5, 70 << 20))
def test_a_length_is_padded_to_1_or_1_25_or_1_5_or_1_75_times_a_power_of_two(length: int) -> None:
    allowed = quarters(28)
    assert padded_length(length) == next(one for one in allowed if one >= length)


def test_padding_adds_at_most_a_quarter() -> None:
    assert [padded_length(length) for length in (4096, 4097, 5120, 5121, 6145, 7169, 8192)] == [
        4096,
        5120,
        5120,
        6144,
        7168,
        8192,
        8192,
    ]


@given(st.binary(max_size=3_000), st.integers(50, 150))
def test_only_the_padded_length_of_a_sealed_snapshot_shows(content: bytes, overhead: int) -> None:
    sealed = len(Snapshot({A: 1}, content).encode(overhead)) + overhead
    assert sealed in quarters(14)


@given(st.binary(max_size=200))
def test_a_body_of_any_bytes_is_a_snapshot_or_refused(body: bytes) -> None:
    try:
        found = Snapshot.decode(body)
    except InvalidArgument:
        return
    assert Snapshot.decode(found.encode(0)) == found


def body_of(count: int, entries: bytes, length: int, rest: bytes) -> bytes:
    return struct.pack(">I", count) + entries + struct.pack(">Q", length) + rest


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        body_of(0, b"", 5, b"four"),
        body_of(0, b"", 1 << 63, b""),
        body_of(2, A + struct.pack(">Q", 1), 0, b""),
        body_of((1 << 32) - 1, b"", 0, b""),
        body_of(MAX_ENTRIES + 1, bytes(16 * (MAX_ENTRIES + 1)), 0, b""),
        body_of(2, (A + struct.pack(">Q", 1)) * 2, 0, b""),
        body_of(1, A + struct.pack(">Q", MAX_SEQ + 1), 0, b""),
        body_of(0, b"", 3, b"abc" + b"\0\0\1"),
    ],
    ids=[
        "nothing",
        "cut short",
        "less content than it says",
        "absurd length",
        "fewer senders than it says",
        "absurd count",
        "too many senders",
        "a sender twice",
        "absurd seq",
        "padding that is not zero",
    ],
)
def test_a_hostile_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Snapshot.decode(body)


def test_a_snapshot_that_is_cut_inside_its_content_is_refused() -> None:
    body = Snapshot({A: 1}, b"x" * 100).encode(0)
    for end in range(4 + 16 + 8 + 100):
        with pytest.raises(InvalidArgument):
            Snapshot.decode(body[:end])


def test_a_vector_covers_a_watermark_of_which_it_has_all() -> None:
    assert covers({A: 5, B: 2}, {A: 5})
    assert covers({}, {A: 0})
    assert not covers({A: 5}, {A: 5, B: 1})
    assert not covers({A: 4}, {A: 5})


# When one is due.


@pytest.mark.parametrize(
    ("counts", "due"),
    [
        ({}, None),
        ({0: 19}, None),
        ({0: 20}, 1),
        ({0: 500}, 1),
        ({0: 20, 1: 18}, 1),
        ({0: 20, 1: 19}, 2),
        ({0: 20, 1: 19, 2: 19}, 3),
        ({0: 20, 1: 19, 2: 18}, 2),
        ({0: 20, 1: 18, 2: 19}, 1),
        (dict.fromkeys(range(1, 20), 19) | {0: 20}, MAX_LEVEL),
    ],
    ids=str,
)
def test_twenty_entries_fire_and_a_level_that_fires_adds_one_above(counts: dict[int, int], due: int | None) -> None:
    assert due_level(counts) == due


def test_updates_count_until_a_snapshot_has_replaced_them() -> None:
    assert entries_by_level({A: 12, B: 7}, [], []) == {0: 19}
    # A snapshot of level 1, as number 13 of A, that has all of them.
    floors = [LogFloor(A, 1, 12), LogFloor(B, 1, 7)]
    counted = entries_by_level({A: 15, B: 9}, [(A, 13, 1)], floors)
    assert counted == {0: 4, 1: 1}


def test_a_snapshot_is_no_update_and_counts_at_its_own_level() -> None:
    assert entries_by_level({A: 3}, [(A, 2, 1), (A, 3, 2)], []) == {0: 1, 1: 1, 2: 1}


def test_a_snapshot_of_a_higher_level_replaces_all_below() -> None:
    floors = [LogFloor(A, 2, 40)]
    assert entries_by_level({A: 41}, [(A, 20, 1), (A, 40, 1), (A, 41, 2)], floors) == {0: 0, 2: 1}


def test_two_snapshots_of_one_level_from_two_members_both_count() -> None:
    floors = [LogFloor(A, 1, 20), LogFloor(B, 1, 0)]
    assert entries_by_level({A: 21, B: 1}, [(A, 21, 1), (B, 1, 1)], floors)[1] == 2


@given(st.integers(1, 9000))
def test_a_lone_writer_that_snapshots_when_due_has_fewer_than_twenty_entries_of_each_level(updates: int) -> None:
    """Each snapshot has all that came before it; it is a number of its own in its sender's row."""
    seq, snapshots, floors = 0, list[tuple[bytes, int, int]](), dict[int, int]()
    for _ in range(updates // BASE):
        seq += BASE
        listed = [LogFloor(A, level, up_to) for level, up_to in floors.items()]
        level = due_level(entries_by_level({A: seq}, snapshots, listed))
        assert level is not None
        floors = {other: up_to for other, up_to in floors.items() if other > level} | {level: seq}
        snapshots = [one for one in snapshots if one[2] >= level]
        seq += 1
        snapshots.append((A, seq, level))
    listed = [LogFloor(A, level, up_to) for level, up_to in floors.items()]
    counts = entries_by_level({A: seq}, snapshots, listed)
    assert all(count < BASE for count in counts.values())
    assert max(counts, default=0) <= 4


# Which member takes it.


@given(vectors, st.integers(1, MAX_LEVEL), st.randoms())
def test_the_order_of_compactors_is_the_same_on_all_devices(
    vector: dict[bytes, int], level: int, order: random.Random
) -> None:
    senders = [A, B, C, *vector]
    entries = list(vector.items())
    mixed = list(senders)
    order.shuffle(mixed)
    order.shuffle(entries)
    assert compactors(mixed, level, dict(entries)) == compactors(senders, level, vector)
    assert sorted(compactors(senders, level, vector)) == sorted(senders)


def test_devices_that_differ_by_a_few_messages_agree_on_the_order() -> None:
    senders = [bytes((number,)) * 8 for number in range(20)]
    assert compactors(senders, 1, {A: 40, B: 61}) == compactors(senders, 1, {A: 59, B: 79})
    assert compactors(senders, 1, {A: 40}) != compactors(senders, 1, {A: 60})
    assert compactors(senders, 1, {A: 40}) != compactors(senders, 2, {A: 40})


def test_the_turn_goes_round_among_members() -> None:
    senders = [bytes((number,)) * 8 for number in range(4)]
    first = [compactors(senders, 1, {A: BASE * number})[0] for number in range(400)]
    assert all(60 <= first.count(sender) <= 140 for sender in senders)
