"""The group log as its seed document has it, on the same RocksDB: one synced write for each message, and scans over all
rows for backfill and deletion. Beside it a deletion that makes the best of a level in the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from angelia.grouplog import store
from angelia.grouplog.model.frames import LogMessage
from angelia.grouplog.model.records import level_of
from angelia.stores.rocks import Rocks, check_iterator

_DELETES = 1_000  # of one batch


class SeedLog:
    """A group in an open database."""

    def __init__(self, rocks: Rocks, ordinal: int) -> None:
        self._rocks = rocks
        self._ordinal = ordinal

    def append(self, message: LogMessage) -> None:
        self.append_all([message])

    def append_all(self, messages: Sequence[LogMessage]) -> None:
        """Messages in one synced batch, without any check."""
        batch = self._rocks.batch()
        for one in messages:
            batch.put(store.MSG, store.message_key(self._ordinal, one.sender, one.seq), one.record)
        self._rocks.write(batch)

    def backfill(self, vector: Mapping[bytes, int]) -> bytes:
        """Frames of all that lies above a vector."""
        found = []
        for key, record in self._scan():
            sender, seq = store.message_id(key)
            if seq > vector.get(sender, 0):
                found.append(LogMessage(sender, seq, record).encode())
        return b"".join(found)

    def delete(self, level: int, watermark: Mapping[bytes, int]) -> int:
        """Row by row. Returns how many rows went. The seed's store syncs these writes some time later, so here they are
        not synced at all."""
        deleted = 0
        with _unsynced(self._rocks):
            for key, record in self._scan():
                sender, seq = store.message_id(key)
                if seq > watermark.get(sender, 0) or level_of(record) >= level:
                    continue
                batch = self._rocks.batch()
                batch.delete(store.MSG, key)
                self._rocks.write(batch)
                deleted += 1
        return deleted

    def delete_batched(self, level: int, watermark: Mapping[bytes, int]) -> int:
        """Reads only what lies under the watermark, and deletes in synced batches. Returns how many rows went."""
        deleted = 0
        batch = self._rocks.batch()
        for sender, last in sorted(watermark.items()):
            first, end = (store.message_key(self._ordinal, sender, seq) for seq in (1, last + 1))
            rows = self._rocks.iterator(store.MSG, first, end)
            while rows.valid():
                if level_of(rows.value()) < level:
                    batch.delete(store.MSG, rows.key())
                    deleted += 1
                    if batch.operations == _DELETES:
                        self._rocks.write(batch)
                        batch = self._rocks.batch()
                rows.next()
            check_iterator(rows)
        self._rocks.write(batch)
        return deleted

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        rows = store.messages(self._rocks, self._ordinal)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        check_iterator(rows)


@contextmanager
def _unsynced(rocks: Rocks) -> Iterator[None]:
    rocks._synced.sync = False
    try:
        yield
    finally:
        rocks._synced.sync = True
