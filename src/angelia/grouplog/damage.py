"""What lies in a damaged part of the disk. An iterator stops there and does not say what it hides, so the messages are
looked for one by one: by the senders of the group, and the seqs that they may have."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from angelia.errors import DamagedRecord
from angelia.grouplog import store
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.stores.rocks import Rocks, RocksIterator, reads_at

# Seqs of a sender between two messages that are found, those that cannot be read left out: behind more of them nothing
# is looked for. A node has two of 32 messages, if the nodes are many. By the bloom filters, one in a hundred absent
# seqs looks as if it could not be read.
MOST_ABSENT = 256
Found = tuple[bytes, int, bytes | None]  # sender, seq and record; None for a record that cannot be read


class DamagedPart:
    """Finds what an iterator over a group cannot show."""

    def __init__(self, rocks: Rocks, group: LiveGroup) -> None:
        self._rocks = rocks
        self._group = group

    def rows(self, iterator: RocksIterator, sender: bytes, seq: int) -> Iterator[Found]:
        """Yields what lies behind a message, as far as the iterator cannot read it. At the end the iterator stands at
        the next row that it can read, or behind the last."""
        for next_sender in (sender, *(other for other in self._senders() if other > sender)):
            goes_on = yield from self._rows_of(iterator, next_sender, seq if next_sender == sender else 0)
            if goes_on:
                return
        reads_at(iterator, store.message_key(self._group.ordinal, b"\xff" * 8, MAX_SEQ + 1))

    def _senders(self) -> list[bytes]:
        roster = self._group.row.roster
        return sorted({member.sender for member in (*roster.members, *roster.past)})

    def _rows_of(self, iterator: RocksIterator, sender: bytes, after: int) -> Generator[Found, None, bool]:
        """The same for one sender. Returns whether the iterator can go on."""
        ordinal, absent = self._group.ordinal, 0
        for seq in self._candidates(sender, after):
            if reads_at(iterator, store.message_key(ordinal, sender, seq)):
                return True
            try:
                record = store.record(self._rocks, ordinal, sender, seq)
            except DamagedRecord:
                yield sender, seq, None
                continue
            if record is not None:  # stored again since
                absent = 0
                yield sender, seq, record
            elif (absent := absent + 1) > MOST_ABSENT:
                return False
        return False

    def _candidates(self, sender: bytes, after: int) -> Iterator[int]:
        """The seqs that a sender may have behind one: below its floor snapshots alone, then all."""
        yield after + 1
        floor = max(after + 1, self._group.floor_above(sender, 0))
        every = store.all_levels(self._rocks, self._group.ordinal)
        for seq, _ in store.levels(every, self._group.ordinal, sender, floor):
            if seq > after + 1:
                yield seq
        yield from range(floor + 1, MAX_SEQ + 1)
