"""The value record of a stored message: fixed offsets, so that level and kind are read without decoding.

    offset  Full                        Shard
    0       format = 2                  the same
    1       kind = 0                    kind = 1
    2       level                       level (at least 1)
    3       flags = 0                   the same
    4       SHA-256 of the data, cut to 16 bytes
    20      data                        index, data shards, total shards, 0
    24                                  length of the manifest (u16 BE), manifest, data

Records travel as they are stored, so a node hands on what it got without encoding it again.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum

import msgspec

from angelia.errors import DamagedRecord
from angelia.grouplog.model.groups import MAX_LEVEL, MAX_NODES

FORMAT = 2
FULL_HEADER = 20
SHARD_HEADER = 26
WHOLE = 255  # the index of a message that is stored whole, where an index is signed
_LEVEL_OFFSET = 2
_SHARD = struct.Struct(">4BH")


_WHOLE_STARTS = frozenset(bytes((FORMAT, 0, level, 0)) for level in range(MAX_LEVEL + 1))


class Kind(IntEnum):
    FULL = 0
    SHARD = 1


class Record(msgspec.Struct, frozen=True):
    """One stored message, or one shard of it."""

    level: int
    data: bytes
    index: int = WHOLE
    data_shards: int = 0
    total_shards: int = 0
    manifest: bytes = b""

    @property
    def kind(self) -> Kind:
        return Kind.FULL if self.index == WHOLE else Kind.SHARD

    def encode(self) -> bytes:
        head = bytes((FORMAT, self.kind, self.level, 0)) + hashlib.sha256(self.data).digest()[:16]
        if self.kind is Kind.SHARD:
            head += _SHARD.pack(self.index, self.data_shards, self.total_shards, 0, len(self.manifest)) + self.manifest
        return head + self.data


def level_of(record: bytes) -> int:
    """The level of a record; 0 for one that is too short to have any."""
    return record[_LEVEL_OFFSET] if len(record) > _LEVEL_OFFSET else 0


def decode(record: bytes) -> Record:
    """Parses a record and verifies its digest; CorruptRecord names what is wrong."""
    if len(record) < FULL_HEADER:
        raise DamagedRecord("the record is cut short")
    format_, kind, level, flags = record[:4]
    if format_ != FORMAT or flags != 0 or kind > Kind.SHARD or level > MAX_LEVEL:
        raise DamagedRecord("the record has an unknown format, kind, flag or level")
    found = _full(record, level) if kind == Kind.FULL else _shard(record, level)
    if hashlib.sha256(found.data).digest()[:16] != record[4:20]:
        raise DamagedRecord("the record does not have its digest")
    return found


def is_sound(record: bytes) -> bool:
    """Whether a record is well formed and has its digest."""
    if record[:4] in _WHOLE_STARTS:  # most are: nothing is parsed
        return hashlib.sha256(record[FULL_HEADER:]).digest()[:16] == record[4:FULL_HEADER]
    try:
        decode(record)
    except DamagedRecord:
        return False
    return True


def _full(record: bytes, level: int) -> Record:
    return Record(level, record[FULL_HEADER:])


def _shard(record: bytes, level: int) -> Record:
    if len(record) < SHARD_HEADER:
        raise DamagedRecord("the record is cut short")
    index, data_shards, total_shards, reserved, length = _SHARD.unpack_from(record, FULL_HEADER)
    end = SHARD_HEADER + length
    if len(record) < end:
        raise DamagedRecord("the record is cut short")
    if level < 1 or reserved != 0 or not 1 <= data_shards <= total_shards <= MAX_NODES or index >= total_shards:
        raise DamagedRecord("the record has shard numbers that do not fit")
    return Record(level, record[end:], index, data_shards, total_shards, record[SHARD_HEADER:end])
