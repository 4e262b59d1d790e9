"""State vectors: a gap is never closed by what comes after it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import InvalidArgument
from angelia.grouplog.model import vectors
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.vectors import ReceivedSeqs, ReceivedVector

A, B = b"a" * 8, b"b" * 8
seqs = st.lists(st.integers(1, 40), max_size=60)


def test_after_1_2_and_5_the_vector_is_2_and_3_and_4_are_missing() -> None:
    received = ReceivedVector()
    for seq in (1, 2, 5):
        received.of(A).add(seq)
    assert received.vector == {A: 2}
    assert received.have == {A: [(5, 5)]}
    assert list(received.of(A).missing()) == [(3, 4)]
    assert received.contains(A, 5)
    assert not received.contains(A, 3)


@given(seqs)
def test_what_was_received_is_exactly_the_set_of_seqs(arrived: list[int]) -> None:
    received, model = ReceivedSeqs(), set()
    for seq in arrived:
        received.add(seq)
        model.add(seq)
        prefix = next(seq for seq in range(50) if seq + 1 not in model)
        assert received.confirmed == prefix
        assert {seq for seq in range(1, 45) if seq in received} == model
        assert [*received.ranges] == sorted(received.ranges)
        assert all(
            last + 1 < first for (_, last), (first, _) in zip(received.ranges, received.ranges[1:], strict=False)
        )
        assert all(first > received.confirmed + 1 for first, _ in received.ranges)
        assert received.highest == max(model)


@given(seqs, st.integers(1, 40), st.integers(0, 10))
def test_a_range_is_the_same_as_its_seqs_one_by_one(arrived: list[int], first: int, length: int) -> None:
    at_once, one_by_one = ReceivedSeqs(), ReceivedSeqs()
    for seq in arrived:
        at_once.add(seq)
        one_by_one.add(seq)
    at_once.add(first, first + length)
    for seq in range(first, first + length + 1):
        one_by_one.add(seq)
    assert (at_once.confirmed, at_once.ranges) == (one_by_one.confirmed, one_by_one.ranges)


@given(seqs, st.integers(0, 45))
def test_an_applied_snapshot_confirms_all_up_to_its_watermark_and_nothing_above(arrived: list[int], to: int) -> None:
    received = ReceivedSeqs()
    for seq in arrived:
        received.add(seq)
    received.raise_to(to)
    assert {seq for seq in range(1, 50) if seq in received} == {*arrived, *range(1, to + 1)}
    assert received.confirmed >= to


@given(seqs)
def test_ranges_come_back_after_a_restart(arrived: list[int]) -> None:
    before = ReceivedSeqs()
    for seq in arrived:
        before.add(seq)
    after = ReceivedSeqs(before.confirmed, before.ranges)
    assert (after.confirmed, after.ranges) == (before.confirmed, before.ranges)


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 3), (3, 2), (1, MAX_SEQ + 1)])
def test_0_and_what_is_no_seq_is_never_received(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="no seqs"):
        ReceivedSeqs().add(first, last)


def test_a_request_names_at_most_64_ranges_of_a_sender_the_lowest() -> None:
    received = ReceivedVector()
    for seq in range(3, 303, 2):
        received.of(A).add(seq)
    assert len(received.have[A]) == 64
    assert received.have[A][0] == (3, 3)


def test_a_digest_does_not_depend_on_the_order_of_insertion() -> None:
    expected = hashlib.sha256(A + (1).to_bytes(8) + B + (2).to_bytes(8)).digest()
    assert vectors.digest({A: 1, B: 2}) == expected
    assert vectors.digest({B: 2, A: 1}) == expected


@given(st.dictionaries(st.binary(min_size=8, max_size=8), st.integers(1, MAX_SEQ), min_size=1, max_size=5), st.data())
def test_any_other_vector_has_another_digest(vector: dict[bytes, int], chance: st.DataObject) -> None:
    sender = chance.draw(st.sampled_from(sorted(vector)))
    changed = {**vector, sender: vector[sender] - 1}
    assert vectors.digest(changed) != vectors.digest(vector)
    assert vectors.digest({s: q for s, q in vector.items() if s != sender}) != vectors.digest(vector)


def test_a_vector_has_at_most_10000_entries() -> None:
    vectors.check({number.to_bytes(8): 1 for number in range(10_000)})
    with pytest.raises(InvalidArgument, match="10,000"):
        vectors.check({number.to_bytes(8): 1 for number in range(10_001)})


@pytest.mark.parametrize("seq", [-1, MAX_SEQ + 1])
def test_a_vector_with_what_is_no_seq_is_refused(seq: int) -> None:
    with pytest.raises(InvalidArgument):
        vectors.check({A: seq})


def test_senders_that_gave_nothing_are_not_in_the_vector() -> None:
    received = ReceivedVector()
    received.of(A).add(7)
    received.of(B)
    assert received.vector == {}
    assert received.have == {A: [(7, 7)]}
