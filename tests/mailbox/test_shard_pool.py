"""Shards in the memory of a device: only true ones reach the decoder, and what is held has its limits."""

from __future__ import annotations

import itertools
from hashlib import sha256
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import BadEncoding, BadShard
from angelia.grouplog.model import records
from angelia.grouplog.model.pieces import Manifest
from angelia.grouplog.model.records import Record
from angelia.mailbox import shard_pool
from angelia.mailbox.shard_pool import LONGEST, MOST_BYTES, MOST_OBJECTS, ShardPool, digest_of
from grouplog.open_logs import GROUP, Key, Snapshot

KEY = Key(b"sender")
SENDER = b"sender!!"
NODES = [Key(b"node %d" % number).public for number in range(5)]
HOUR = 3600.0


def snapshot(seq: int = 7, size: int = 5_000, seed: int = 1) -> Snapshot:
    """A snapshot in three data shards and two more."""
    data = Random(seed).randbytes(size)
    return Snapshot.coded(GROUP, SENDER, KEY.sign, NODES, seq=seq, data=data)


WHOLE = snapshot()


class Pool(ShardPool):
    """A pool that takes shards of snapshots of a test."""

    def take(self, of: Snapshot, shard: int, now: float = 0.0, **changed: object) -> bytes | None:
        record = msgspec.structs.replace(records.decode(of.message(shard).record), **changed)
        return self.add(Manifest.decode(of.manifest), digest_of(of.manifest), record, now)

    def have(self) -> dict[int, int]:
        """How many shards there are of each incomplete snapshot, by its number."""
        return {one.seq: one.have for one in self.incomplete()}


@pytest.mark.parametrize("indexes", list(itertools.permutations(range(5), 3)), ids=str)
def test_any_three_of_five_shards_in_any_order_give_the_snapshot(indexes: tuple[int, int, int]) -> None:
    pool = Pool()
    first, second, third = indexes
    assert pool.take(WHOLE, first) is None
    assert pool.take(WHOLE, second) is None
    assert pool.take(WHOLE, third) == WHOLE.data


def test_a_lone_shard_is_incomplete_with_what_it_takes() -> None:
    pool = Pool()
    pool.take(WHOLE, 4)
    assert [(one.sender, one.seq, one.have, one.need) for one in pool.incomplete()] == [(SENDER, 7, 1, 3)]
    pool.drop(SENDER, 7)
    assert list(pool.incomplete()) == []


# What reaches the decoder.


@pytest.mark.parametrize(
    "changed",
    [
        {"index": 5},
        {"index": 254},
        {"index": 1},
        {"data": WHOLE.shards[0][:-1]},
        {"data": WHOLE.shards[0] + b"\0"},
        {"data": b""},
        {"data": WHOLE.shards[0][:-1] + b"\xff"},
        {"data": WHOLE.shards[1]},
    ],
    ids=[
        "no such index",
        "an absurd index",
        "the index of another shard",
        "cut",
        "longer",
        "empty",
        "one byte changed",
        "the data of another shard",
    ],
)
def test_a_shard_that_is_not_of_its_manifest_is_refused_and_harms_no_other(changed: dict[str, object]) -> None:
    pool = Pool()
    pool.take(WHOLE, 2)
    pool.take(WHOLE, 4)
    with pytest.raises(BadShard):
        pool.take(WHOLE, 0, **changed)
    assert pool.have() == {7: 2}
    assert pool.take(WHOLE, 3) == WHOLE.data


def test_a_repeated_index_counts_once() -> None:
    pool = Pool()
    assert [pool.take(WHOLE, index) for index in (0, 1, 1, 0, 1)] == [None] * 5
    assert pool.have() == {7: 2}
    assert pool.take(WHOLE, 4) == WHOLE.data


def test_shards_of_two_manifests_for_one_message_are_never_mixed() -> None:
    one, other = snapshot(seed=1), snapshot(seed=2)
    pool = Pool()
    for index in (0, 1):
        assert pool.take(one, index) is None
        assert pool.take(other, index + 2) is None
    assert [found.have for found in pool.incomplete()] == [2, 2]
    assert pool.manifests(SENDER, 7) == 2
    assert pool.take(one, 4) == one.data
    assert pool.take(other, 4) == other.data


def dishonest(seq: int = 7) -> Snapshot:
    """A snapshot whose sender signed a digest that the decoded object does not have."""
    true = snapshot(seq)
    manifest = msgspec.structs.replace(Manifest.decode(true.manifest), digest=sha256(b"another").digest())
    true.manifest = manifest.encode(KEY.sign)
    return true


def test_an_object_that_is_not_what_its_manifest_says_is_refused_for_good() -> None:
    pool, false = Pool(), dishonest()
    pool.take(false, 0)
    pool.take(false, 1)
    for index in (2, 3, 4):
        with pytest.raises(BadEncoding):
            pool.take(false, index)


def test_a_failed_decode_discards_no_good_shard() -> None:
    pool, false = Pool(), dishonest()
    pool.take(WHOLE, 0)
    pool.take(WHOLE, 3)
    for index in range(2):
        pool.take(false, index)
    with pytest.raises(BadEncoding):
        pool.take(false, 2)
    assert pool.take(WHOLE, 4) == WHOLE.data


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["true", "other", "changed"])), max_size=25))
def test_whatever_comes_in_whatever_order_only_true_objects_come_out(arrived: list[tuple[int, str]]) -> None:
    pool, other = Pool(), snapshot(seed=2)
    held: dict[str, set[int]] = {"true": set(), "other": set()}
    for index, kind in arrived:
        if kind == "changed":
            with pytest.raises(BadShard):
                pool.take(WHOLE, index, data=WHOLE.shards[index][1:] + b"x")
            continue
        of = WHOLE if kind == "true" else other
        held[kind].add(index)
        assert pool.take(of, index) == (of.data if len(held[kind]) >= 3 else None)


# Limits.


def test_at_most_64_objects_are_held_and_the_oldest_makes_room() -> None:
    pool = Pool()
    for seq in range(1, MOST_OBJECTS + 6):
        pool.take(snapshot(seq), 0, now=float(seq))
        assert len(pool.have()) <= 64
    assert set(pool.have()) == set(range(6, MOST_OBJECTS + 6))


def test_what_made_room_can_come_again() -> None:
    pool = Pool()
    for seq in range(1, MOST_OBJECTS + 2):
        pool.take(snapshot(seq), 0, now=float(seq))
    evicted = snapshot(1)
    assert [pool.take(evicted, index, now=100.0) for index in (0, 1, 2)] == [None, None, evicted.data]


def test_the_limits_are_those_of_the_contract() -> None:
    assert (MOST_OBJECTS, MOST_BYTES, LONGEST) == (64, 256 << 20, 24 * HOUR)


def test_never_more_bytes_are_held_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_pool, "MOST_BYTES", 64 << 10)
    pool, many = Pool(), [snapshot(seq, 24 << 10, seq) for seq in range(1, 9)]
    length = len(many[0].shards[0])
    for index in range(2):
        for number, one in enumerate(many):
            pool.take(one, index, now=float(number))
            assert sum(pool.have().values()) * length <= 64 << 10


def test_what_is_older_than_a_day_is_dropped_when_something_comes() -> None:
    pool = Pool()
    pool.take(snapshot(1), 0, now=0.0)
    pool.take(snapshot(2), 0, now=20 * HOUR)
    pool.take(snapshot(3), 0, now=23.9 * HOUR)
    assert set(pool.have()) == {1, 2, 3}
    pool.take(snapshot(4), 0, now=24.1 * HOUR)
    assert set(pool.have()) == {2, 3, 4}


def test_a_shard_record_of_any_numbers_never_reaches_the_decoder_unchecked() -> None:
    pool, manifest = Pool(), Manifest.decode(WHOLE.manifest)
    for index in range(256):
        record = Record(2, WHOLE.shards[0], index, 3, 5, WHOLE.manifest)
        if index == 0:
            assert pool.add(manifest, digest_of(WHOLE.manifest), record, 0.0) is None
        else:
            with pytest.raises(BadShard):
                pool.add(manifest, digest_of(WHOLE.manifest), record, 0.0)
