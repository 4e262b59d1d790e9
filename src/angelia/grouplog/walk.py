"""The walk over what a device lacks: one seek past what it holds of each sender, then row by row."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from angelia.errors import DamagedRecord
from angelia.grouplog.damage import DamagedPart, Found
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

    def wants_all_behind(self, sender: bytes) -> bool:
        """Whether all of a sender is lacking behind a seq that is."""
        return sender not in self._have

    def lacks(self, sender: bytes, seq: int) -> bool:
        return self.next_from(sender, seq) == seq


class BackfillWalk:
    """Stands at the next message that a device lacks, in the order of sender and seq."""

    def __init__(
        self,
        iterator: RocksIterator,
        ordinal: int,
        wanted: Lacking,
        after: bytes = b"",
        damage: DamagedPart | None = None,
    ) -> None:
        """`after` is the cursor of the page before: the last key that is done. With `damage` the walk goes on where the
        disk cannot be read; without it DamagedRecord ends it."""
        self._iterator = iterator
        self._ordinal = ordinal
        self._wanted = wanted
        self._damage = damage
        self._hidden: Iterator[Found] | None = None
        self._record: bytes | None = None
        self._all_of, self._from = b"", 0  # a sender of which all behind a seq is wanted
        self.sender, self.seq = bytes(8), 0
        if after:
            self.sender, self.seq = message_id(after)
            self._iterator.seek(message_key(ordinal, self.sender, self.seq + 1))
        self.found = self._settle()

    @property
    def is_lost(self) -> bool:
        """Whether the message is there, and cannot be read."""
        return self._hidden is not None and self._record is None

    def value(self) -> bytes:
        record: bytes = self._iterator.value() if self._record is None else self._record
        return record

    def step(self) -> None:
        if self._hidden is None:
            self._iterator.next()
        self.found = self._settle()

    def _settle(self) -> bool:
        """Moves on to a message that is lacking. Returns whether there is one."""
        while True:
            if self._hidden is not None:
                for found in self._hidden:
                    self.sender, self.seq, self._record = found
                    if self._wanted.lacks(self.sender, self.seq):
                        return True
                self._hidden = self._record = None
            if not self._iterator.valid():
                try:
                    check_iterator(self._iterator)
                except DamagedRecord:
                    if self._damage is None:
                        raise
                    self._hidden = self._damage.rows(self._iterator, self.sender, self.seq)
                    continue
                return False
            sender, self.seq = message_id(self._iterator.key())
            if sender == self._all_of and self.seq > self._from:
                return True  # of this sender all is wanted from some seq on: the common case
            self.sender = sender
            wanted = self._wanted.next_from(sender, self.seq)
            if wanted == self.seq:
                if self._wanted.wants_all_behind(sender):
                    self._all_of, self._from = sender, self.seq
                return True
            self.seq = wanted - 1
            self._iterator.seek(message_key(self._ordinal, self.sender, wanted))
