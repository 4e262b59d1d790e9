"""Shards of snapshots that are not whole yet: each is checked against its manifest, and decoded when enough came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from angelia.errors import BadEncoding, BadShard
from angelia.grouplog.model import coding
from angelia.grouplog.model.pieces import Manifest
from angelia.grouplog.model.records import Record

MOST_OBJECTS = 64
MOST_BYTES = 256 << 20
LONGEST = 24 * 3600.0  # seconds
_Key = tuple[bytes, int, bytes]  # sender, seq, digest of the manifest


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A snapshot of which fewer shards came than it takes."""

    sender: bytes
    seq: int
    have: int
    need: int


@dataclass(slots=True)
class _Object:
    manifest: Manifest
    since: float
    shards: dict[int, bytes] = field(default_factory=dict)
    refused: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.shards.values()))


class ShardPool:
    """The shards that a device holds in memory. Those of different manifests are kept apart, also for one message."""

    def __init__(self) -> None:
        self._objects: dict[_Key, _Object] = {}

    def add(self, manifest: Manifest, digest: bytes, record: Record, now: float) -> bytes | None:
        """Takes a shard whose manifest was verified; `digest` is the manifest's. Returns the object once it is whole.

        BadShard for one that is not of its manifest, before any decoder sees it. BadEncoding if the whole object is not
        what the manifest says: then its sender is at fault."""
        if not manifest.fits(record.index, record.data):
            raise BadShard(f"shard {record.index} is not the one of its manifest")
        key = (manifest.sender, manifest.seq, digest)
        found = self._objects.get(key)
        if found is not None and found.refused:
            raise BadEncoding
        if found is None or record.index not in found.shards:
            self._make_room(key, len(record.data), now)
        found = self._objects.setdefault(key, found or _Object(manifest, now))
        found.shards.setdefault(record.index, record.data)
        if len(found.shards) < manifest.data_shards:
            return None
        try:
            return coding.decode(found.shards, manifest.shape, manifest.length, manifest.digest)
        except BadEncoding:
            found.refused = True
            raise

    def drop(self, sender: bytes, seq: int) -> None:
        """Forgets a message that was applied."""
        for key in [key for key in self._objects if key[:2] == (sender, seq)]:
            del self._objects[key]

    def manifests(self, sender: bytes, seq: int) -> int:
        """How many different manifests came for one message: more than one is its sender's fault."""
        return sum(key[:2] == (sender, seq) for key in self._objects)

    def incomplete(self) -> Iterator[Incomplete]:
        for (sender, seq, _), found in self._objects.items():
            if len(found.shards) < found.manifest.data_shards:
                yield Incomplete(sender, seq, len(found.shards), found.manifest.data_shards)

    def _make_room(self, wanted: _Key, length: int, now: float) -> None:
        """Drops what is too old, then the oldest as long as there is too much: it is asked for again. The object that
        the room is for stays."""
        for key in [key for key, found in self._objects.items() if now - found.since > LONGEST]:
            del self._objects[key]
        others = {key: found for key, found in self._objects.items() if key != wanted}
        held = sum(found.size for found in self._objects.values())
        while others and (len(others) >= MOST_OBJECTS or held + length > MOST_BYTES):
            oldest = min(others, key=lambda key: others[key].since)
            held -= others.pop(oldest).size
            del self._objects[oldest]


def digest_of(manifest: bytes) -> bytes:
    return sha256(manifest).digest()
