"""The walk over what a device lacks: one seek past what it holds of each sender, then row by row."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from angelia.errors import DamagedRecord
from angelia.grouplog.damage import DamagedPart
from angelia.grouplog.model.frames import CURSOR_BYTES, Hello
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.store import ID, SENDER, cursor, message_id, message_key
from angelia.stores.rocks import RocksIterator, check_iterator

Row = tuple[bytes, bytes | None]  # a message's id, as in its key, and its record; None for one that cannot be read
_PAST_LAST = MAX_SEQ + 1


class Lacking:
    """Which messages a device lacks, by its vector, its ranges, and the sender to leave out."""

    def __init__(self, hello: Hello) -> None:
        self._vector = hello.vector
        self._exclude = hello.exclude
        self._have = {
            sender: ([first for first, _ in ranges], [last for _, last in ranges])
            for sender, ranges in hello.have.items()
        }

    def next_from(self, sender: bytes, seq: int) -> int:
        """The first seq from this one on that may be lacking."""
        if sender == self._exclude:
            return _PAST_LAST
        seq = max(seq, self._vector.get(sender, 0) + 1)
        have = self._have.get(sender)
        if have is not None:
            firsts, lasts = have
            at = bisect.bisect_right(firsts, seq) - 1
            if at >= 0 and seq <= lasts[at]:
                seq = lasts[at] + 1
        return seq

    def wants_all_behind(self, sender: bytes) -> bool:
        """Whether all of a sender is lacking behind a seq that is."""
        return sender not in self._have

    def lacks(self, sender: bytes, seq: int) -> bool:
        return self.next_from(sender, seq) == seq


def lacking_rows(
    iterator: RocksIterator, ordinal: int, wanted: Lacking, after: bytes = b"", damage: DamagedPart | None = None
) -> Iterator[Row]:
    """Yields the messages that a device lacks, in the order of sender and seq.

    `after` is the cursor behind which the iterator begins: the last id that is done. With `damage` the walk goes on
    where the disk cannot be read; without it DamagedRecord ends it.
    """
    key, value, step = iterator.key, iterator.value, iterator.next
    done = after or bytes(CURSOR_BYTES)
    all_of = b""  # a sender of which all that follows is lacking: most rows are passed on by this alone
    while True:
        while (found := key()) is not None:
            if found[SENDER] != all_of:
                sender, seq = message_id(found)
                lacked = wanted.next_from(sender, seq)
                if lacked > seq:
                    done = cursor(sender, lacked - 1)
                    iterator.seek(message_key(ordinal, sender, lacked))
                    continue
                if wanted.wants_all_behind(sender):
                    all_of = sender
            done = found[ID]
            yield done, value()
            step()
        try:
            check_iterator(iterator)
        except DamagedRecord:
            if damage is None:
                raise
        else:
            return
        for sender, seq, record in damage.rows(iterator, *message_id(done)):
            done = cursor(sender, seq)
            if wanted.lacks(sender, seq):
                yield done, record
