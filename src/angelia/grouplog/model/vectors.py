"""State vectors: what a device holds of each sender. Pure; shared by nodes and devices."""

from __future__ import annotations

import bisect
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping

from angelia.errors import InvalidArgument
from angelia.grouplog.model.groups import MAX_ENTRIES, Ranges, Vector
from angelia.grouplog.model.ids import MAX_SEQ

MAX_RANGES = 64  # of one sender, in a request
MAX_ALL_RANGES = 65_536  # of all senders, in a request
_ENTRY = struct.Struct(">8sQ")


def digest(vector: Vector) -> bytes:
    """SHA-256 over the entries in order of their senders."""
    hashed = hashlib.sha256()
    for sender in sorted(vector):
        hashed.update(_ENTRY.pack(sender, vector[sender]))
    return hashed.digest()


def check(vector: Vector) -> None:
    if len(vector) > MAX_ENTRIES:
        raise InvalidArgument(f"a state vector has at most {MAX_ENTRIES:,} entries")
    if any(not 0 <= seq <= MAX_SEQ for seq in vector.values()):
        raise InvalidArgument(f"a seq is at most {MAX_SEQ}")


class ReceivedSeqs:
    """What was received of one sender: all up to `confirmed`, and disjoint closed ranges above it.

    A gap is not closed by what comes after it: with 1, 2 and 5 the watermark is 2, and 3 and 4 are asked for.
    """

    __slots__ = ("_firsts", "_lasts", "confirmed")

    def __init__(self, confirmed: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.confirmed = confirmed
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))

    @property
    def highest(self) -> int:
        return self._lasts[-1] if self._lasts else self.confirmed

    def __contains__(self, seq: int) -> bool:
        at = bisect.bisect_right(self._firsts, seq) - 1
        return seq <= self.confirmed or (at >= 0 and seq <= self._lasts[at])

    def add(self, first: int, last: int | None = None) -> None:
        """Records a seq, or all from `first` to `last`; merges with its neighbours."""
        last = first if last is None else last
        if not 1 <= first <= last <= MAX_SEQ:
            raise ValueError(f"{first} to {last} are no seqs")
        if last <= self.confirmed:
            return
        # Those that touch or overlap are one range with it.
        low = bisect.bisect_left(self._lasts, first - 1)
        high = bisect.bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high], self._lasts[low:high] = [first], [last]
        self._close_up()

    def raise_to(self, seq: int) -> None:
        """Takes all up to a seq as received: a snapshot with that watermark was applied."""
        if seq > self.confirmed:
            self.add(1, seq)

    def missing(self) -> Iterator[tuple[int, int]]:
        """The closed ranges that are missing below what was received."""
        after = self.confirmed
        for first, last in zip(self._firsts, self._lasts, strict=True):
            yield after + 1, first - 1
            after = last

    def _close_up(self) -> None:
        if self._firsts and self._firsts[0] <= self.confirmed + 1:
            self.confirmed = max(self.confirmed, self._lasts[0])
            del self._firsts[0], self._lasts[0]


class ReceivedVector:
    """What a device received of all senders of a group."""

    def __init__(self, received: Mapping[bytes, ReceivedSeqs] | None = None) -> None:
        self._received = dict(received or {})

    def of(self, sender: bytes) -> ReceivedSeqs:
        found = self._received.get(sender)
        if found is None:
            found = self._received[sender] = ReceivedSeqs()
        return found

    def __iter__(self) -> Iterator[tuple[bytes, ReceivedSeqs]]:
        return iter(sorted(self._received.items()))

    def contains(self, sender: bytes, seq: int) -> bool:
        found = self._received.get(sender)
        return found is not None and seq in found

    @property
    def vector(self) -> dict[bytes, int]:
        return {sender: found.confirmed for sender, found in sorted(self._received.items()) if found.confirmed}

    @property
    def have(self) -> Ranges:
        """The ranges above the vector, as a request names them: the lowest of each sender, if there are many."""
        with_ranges = {sender: found for sender, found in sorted(self._received.items()) if found.ranges}
        most = min(MAX_RANGES, MAX_ALL_RANGES // max(1, len(with_ranges)))
        return {sender: found.ranges[:most] for sender, found in with_ranges.items()}
