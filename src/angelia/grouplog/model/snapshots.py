"""What a snapshot carries, and when one is due: the watermark with the state of that instant, padded; counters by
level; and the order in which members may start a compaction."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import msgspec
import xxhash

from angelia.errors import InvalidArgument
from angelia.grouplog.model import vectors
from angelia.grouplog.model.groups import MAX_ENTRIES, MAX_LEVEL, LogFloor, Vector

BASE = 20  # entries of a level that one snapshot of the next level replaces
RANK_SECONDS = 30.0  # for which each rank waits for the one before it
_COUNT, _LENGTH = struct.Struct(">I"), struct.Struct(">Q")
_ENTRY = struct.Struct(">8sQ")
_COUNTER = struct.Struct("<Q")


class Snapshot(msgspec.Struct, frozen=True):
    """The state of an application, and the vector that it contains, taken at one instant."""

    watermark: Vector
    content: bytes

    def encode(self, overhead: int) -> bytes:
        """Returns the body of a message, padded so that its length with `overhead` is one of four for each power of
        two: nodes learn less from the size of a snapshot."""
        entries = b"".join(_ENTRY.pack(sender, seq) for sender, seq in sorted(self.watermark.items()))
        body = _COUNT.pack(len(self.watermark)) + entries + _LENGTH.pack(len(self.content)) + self.content
        return body.ljust(padded_length(len(body) + overhead) - overhead, b"\0")

    @classmethod
    def decode(cls, body: bytes) -> Snapshot:
        """Parses the body of a message; InvalidArgument if it is no snapshot."""
        try:
            (count,) = _COUNT.unpack_from(body)
            end = _COUNT.size + count * _ENTRY.size
            if count > MAX_ENTRIES or end > len(body):
                raise InvalidArgument("a snapshot names more senders than it has")
            entries: list[tuple[bytes, int]] = list(_ENTRY.iter_unpack(body[_COUNT.size : end]))
            (length,) = _LENGTH.unpack_from(body, end)
        except struct.error as error:
            raise InvalidArgument("a snapshot is cut short") from error
        start, watermark = end + _LENGTH.size, dict(entries)
        if len(watermark) < count or length > len(body) - start or any(body[start + length :]):
            raise InvalidArgument("a snapshot is not well formed")
        vectors.check(watermark)
        return cls(watermark, body[start : start + length])


def padded_length(length: int) -> int:
    """The next of 1, 1.25, 1.5 and 1.75 times a power of two."""
    if length <= 4:
        return length
    quarter = 1 << ((length - 1).bit_length() - 3)
    return -(-length // quarter) * quarter


def covers(vector: Vector, watermark: Vector) -> bool:
    """Whether a vector has all that a watermark has."""
    return all(vector.get(sender, 0) >= seq for sender, seq in watermark.items())


def entries_by_level(
    vector: Vector, snapshots: Iterable[tuple[bytes, int, int]], floors: Iterable[LogFloor]
) -> dict[int, int]:
    """How many entries of each level no snapshot of a higher level has replaced. `snapshots` are sender, seq and level
    of those that are known."""
    above: dict[tuple[bytes, int], int] = {}
    for floor in floors:
        for level in range(floor.level):
            above[floor.sender, level] = max(floor.seq, above.get((floor.sender, level), 0))
    counts = {0: sum(max(0, seq - above.get((sender, 0), 0)) for sender, seq in vector.items())}
    for sender, seq, level in snapshots:
        if 0 < seq <= vector.get(sender, 0):
            if seq > above.get((sender, 0), 0):
                counts[0] -= 1  # it is no update
            if seq > above.get((sender, level), 0):
                counts[level] = counts.get(level, 0) + 1
    return counts


def due_level(counts: Mapping[int, int]) -> int | None:
    """The level of the snapshot that is due: the highest that fires, each one adding an entry to the next; or None."""
    due, added = None, 0
    for level in range(1, MAX_LEVEL + 1):
        if counts.get(level - 1, 0) + added < BASE:
            break
        due, added = level, 1
    return due


def compactors(senders: Iterable[bytes], level: int, vector: Vector) -> list[bytes]:
    """The members in the order in which they may start a snapshot: the same for all that hold about the same."""
    state = bytes((level,)) + b"".join(sender + _COUNTER.pack(vector[sender] // BASE) for sender in sorted(vector))
    return sorted(senders, key=lambda sender: (-xxhash.xxh3_64_intdigest(sender + state), sender))
