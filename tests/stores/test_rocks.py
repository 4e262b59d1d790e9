"""RocksDB behind its thin layer."""

from __future__ import annotations

from pathlib import Path

from angelia.stores.rocks import Rocks


def test_an_iterator_keeps_to_its_range(tmp_path: Path) -> None:
    rocks = Rocks(tmp_path / "log", ("a",))
    batch = rocks.batch()
    for group in range(1, 4):
        for number in range(3):
            batch.put("a", bytes((group, number)), b"x")
    rocks.write(batch)
    for group in range(1, 4):
        found = rocks.iterator("a", bytes((group,)), bytes((group + 1,)))
        keys = []
        while found.valid():
            keys.append(found.key())
            found.next()
        assert keys == [bytes((group, number)) for number in range(3)]
        found.seek(bytes((group + 1, 0)))
        assert not found.valid()
        assert found.seek_for_prev(bytes((group, 0xFF)))
        assert found.key() == bytes((group, 2))
        assert not found.seek_for_prev(bytes((group - 1, 0xFF)))
        del found
    rocks.close()
