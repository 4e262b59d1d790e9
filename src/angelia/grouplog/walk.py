"""The walk over what a device lacks: one seek past what it holds of each sender, then row by row."""

from __future__ import annotations

import bisect

from angelia.grouplog.model.frames import Hello
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.store import message_id, message_key
from angelia.stores.rocks import RocksIterator, check_iterator

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

    def lacks(self, sender: bytes, seq: int) -> bool:
        return self.next_from(sender, seq) == seq


class BackfillWalk:
    """Stands at the next message that a device lacks, in the order of sender and seq."""

    def __init__(self, iterator: RocksIterator, ordinal: int, wanted: Lacking, after: bytes = b"") -> None:
        """`after` is the cursor of the page before: the last key that is done."""
        self._iterator = iterator
        self._ordinal = ordinal
        self._wanted = wanted
        self.sender, self.seq = b"", 0
        if after:
            sender, seq = message_id(after)
            self._iterator.seek(message_key(ordinal, sender, seq + 1))
        self.found = self._settle()

    def value(self) -> bytes:
        record: bytes = self._iterator.value()
        return record

    def step(self) -> None:
        self._iterator.next()
        self.found = self._settle()

    def _settle(self) -> bool:
        """Moves on to a message that is lacking. Returns whether there is one."""
        while self._iterator.valid():
            self.sender, self.seq = message_id(self._iterator.key())
            wanted = self._wanted.next_from(self.sender, self.seq)
            if wanted == self.seq:
                return True
            self._iterator.seek(message_key(self._ordinal, self.sender, wanted))
        check_iterator(self._iterator)
        return False
