"""RocksDB as the log needs it: iterators keep to their bounds and to their moment, and batches are whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from angelia.stores.rocks import Rocks, RocksIterator

FAMILIES = ("one", "two")


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Rocks]:
    rocks = Rocks(tmp_path / "log", FAMILIES)
    yield rocks
    rocks.close()


def put(rocks: Rocks, *keys: bytes, family: str = "one") -> None:
    batch = rocks.batch()
    for key in keys:
        batch.put(family, key, b"value of " + key)
    rocks.write(batch)


def keys(iterator: RocksIterator) -> list[bytes]:
    found = []
    while iterator.valid():
        found.append(iterator.key())
        iterator.next()
    return found


def test_an_iterator_keeps_to_its_bounds_whatever_memory_is_used_after_it_was_opened(rocks: Rocks) -> None:
    put(rocks, *(bytes((first, second)) for first in range(5) for second in range(20)))
    for _ in range(50):
        iterator = rocks.iterator("one", bytes((2,)), bytes((3,)))
        others = [rocks.iterator("one", bytes((number,)), b"\xff" * 8) for number in range(5)]
        assert {key[0] for key in keys(iterator)} == {2}
        del others


def test_an_iterator_does_not_see_what_is_written_after_it_was_opened(rocks: Rocks) -> None:
    put(rocks, b"a", b"c")
    iterator = rocks.iterator("one", b"a", b"z")
    put(rocks, b"b", b"d")
    batch = rocks.batch()
    batch.delete_range("one", b"a", b"z")
    rocks.write(batch)
    assert keys(iterator) == [b"a", b"c"]
    assert keys(rocks.iterator("one", b"a", b"z")) == []


def test_a_range_ends_before_its_end(rocks: Rocks) -> None:
    put(rocks, b"a", b"b", b"c")
    batch = rocks.batch()
    batch.delete_range("one", b"a", b"c")
    rocks.write(batch)
    assert keys(rocks.iterator("one", b"a", b"z")) == [b"c"]


def test_families_are_apart_and_a_batch_writes_to_both(rocks: Rocks) -> None:
    batch = rocks.batch()
    batch.put("one", b"key", b"1")
    batch.put("two", b"key", b"2")
    assert rocks.get("one", b"key") is None
    rocks.write(batch)
    assert (rocks.get("one", b"key"), rocks.get("two", b"key")) == (b"1", b"2")


def test_a_log_that_was_closed_opens_with_all_it_had(tmp_path: Path) -> None:
    for number in range(3):
        rocks = Rocks(tmp_path / "log", FAMILIES)
        put(rocks, bytes((number,)))
        assert len(keys(rocks.iterator("one", b"\0", b"\xff"))) == number + 1
        rocks.close()
