"""Keys and values of a spool's database. Functions that change it take the batch first.

    family  key                                     value
    groups  group id (32)                           the group's row
            group id, then `b`, `c`, `d`,           bytes stored; whether they must be counted again; damaged messages;
            `p` or `i`                              deletion that is not finished; position of an import
            `ordinal`, `scrub`                      the last ordinal given; where the scrub is
    msg     ordinal (8), sender (8), seq (8)        the record
    hi      the same key, for level 1 and higher    the level
    floor   ordinal (8), sender (8), level (1)      seq, and the highest seq of the sender that was seen by then

Numbers in keys are big-endian, so that keys sort as numbers do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from angelia.grouplog.model.groups import GroupState, LogFloor, LogGroupRow
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.stores.rocks import Rocks, RocksBatch, RocksIterator, check_iterator

GROUPS, MSG, HI, FLOOR = FAMILIES = ("groups", "msg", "hi", "floor")
ROW_OVERHEAD = 24  # bytes of a key
FLOOR_BYTES = 33  # of a floor with its key
_ORDINAL = struct.Struct(">Q")
_KEY = struct.Struct(">Q8sQ")
_ID = struct.Struct(">8sQ")
_FLOOR = struct.Struct(">Q8sB")
_SEQ = struct.Struct(">Q")
_MARK = struct.Struct(">QQ")
_LAST_ORDINAL, _SCRUB = b"ordinal", b"scrub"
_GROUP_BYTES = 32
ID, SENDER = slice(8, 24), slice(8, 16)  # parts of a key of `msg` or `hi`


class PendingDeletion(msgspec.Struct, frozen=True):
    """A deletion of several batches, of which some may be written."""

    level: int
    watermark: dict[str, int]


class ImportPosition(msgspec.Struct, frozen=True):
    """How many rows of which file are imported."""

    source: str
    rows: int


class ScrubPosition(msgspec.Struct, frozen=True):
    """The last key that was checked in the pass that began then; None if that pass is done."""

    began_at: datetime
    after: bytes | None


def message_key(ordinal: int, sender: bytes, seq: int) -> bytes:
    return _KEY.pack(ordinal, sender, seq)


def message_id(key: bytes) -> tuple[bytes, int]:
    """Sender and seq of a key of `msg` or `hi`, with its ordinal or without."""
    return _ID.unpack(key[-_ID.size :])


def cursor(sender: bytes, seq: int) -> bytes:
    """An id as in its key, without the ordinal: a page ends with that of its last message."""
    return _ID.pack(sender, seq)


def span(ordinal: int) -> tuple[bytes, bytes]:
    """The keys of a group in any of its families: the first, and the one behind the last."""
    return _ORDINAL.pack(ordinal), _ORDINAL.pack(ordinal + 1)


# Groups.


def group(rocks: Rocks, id: bytes) -> LogGroupRow | None:
    found = rocks.get(GROUPS, id)
    return None if found is None else msgspec.json.decode(found, type=LogGroupRow)


def put_group(batch: RocksBatch, id: bytes, row: LogGroupRow) -> None:
    batch.put(GROUPS, id, msgspec.json.encode(row))


def all_groups(rocks: Rocks) -> Iterator[tuple[bytes, LogGroupRow]]:
    """All groups, dropped ones too."""
    for key, value in _items(rocks.iterator(GROUPS, b"\0", b"\xff" * (_GROUP_BYTES + 2))):
        if len(key) == _GROUP_BYTES:
            yield key, msgspec.json.decode(value, type=LogGroupRow)


def last_ordinal(rocks: Rocks) -> int:
    found = rocks.get(GROUPS, _LAST_ORDINAL)
    return 0 if found is None else _ORDINAL.unpack(found)[0]


def put_last_ordinal(batch: RocksBatch, ordinal: int) -> None:
    batch.put(GROUPS, _LAST_ORDINAL, _ORDINAL.pack(ordinal))


def drop(batch: RocksBatch, id: bytes, row: LogGroupRow) -> None:
    """Removes all that a group has but its row, which says from now on that it was dropped."""
    first, end = span(row.ordinal)
    for family in (MSG, HI, FLOOR):
        batch.delete_range(family, first, end)
    for kind in (b"b", b"c", b"d", b"p", b"i"):
        batch.delete(GROUPS, id + kind)
    put_group(batch, id, msgspec.structs.replace(row, state=GroupState.DROPPED))


def stored_bytes(rocks: Rocks, id: bytes) -> int:
    found = rocks.get(GROUPS, id + b"b")
    return 0 if found is None else _SEQ.unpack(found)[0]


def put_stored_bytes(batch: RocksBatch, id: bytes, count: int) -> None:
    batch.put(GROUPS, id + b"b", _SEQ.pack(count))


def must_be_counted(rocks: Rocks, id: bytes) -> bool:
    return rocks.get(GROUPS, id + b"c") is not None


def put_must_be_counted(batch: RocksBatch, id: bytes) -> None:
    batch.put(GROUPS, id + b"c", b"")


def put_counted(batch: RocksBatch, id: bytes) -> None:
    batch.delete(GROUPS, id + b"c")


def corrupt(rocks: Rocks, id: bytes) -> list[tuple[bytes, int]]:
    """The messages that are known to be damaged."""
    found = rocks.get(GROUPS, id + b"d")
    return [] if found is None else list(_ID.iter_unpack(found))


def put_corrupt(batch: RocksBatch, id: bytes, messages: Sequence[tuple[bytes, int]]) -> None:
    batch.put(GROUPS, id + b"d", b"".join(_ID.pack(*one) for one in messages))


def pending_deletion(rocks: Rocks, id: bytes) -> PendingDeletion | None:
    found = rocks.get(GROUPS, id + b"p")
    return None if found is None else msgspec.json.decode(found, type=PendingDeletion)


def put_pending_deletion(batch: RocksBatch, id: bytes, pending: PendingDeletion | None) -> None:
    if pending is None:
        batch.delete(GROUPS, id + b"p")
    else:
        batch.put(GROUPS, id + b"p", msgspec.json.encode(pending))


def import_position(rocks: Rocks, id: bytes) -> ImportPosition | None:
    found = rocks.get(GROUPS, id + b"i")
    return None if found is None else msgspec.json.decode(found, type=ImportPosition)


def put_import_position(batch: RocksBatch, id: bytes, position: ImportPosition) -> None:
    batch.put(GROUPS, id + b"i", msgspec.json.encode(position))


def scrub_position(rocks: Rocks) -> ScrubPosition | None:
    found = rocks.get(GROUPS, _SCRUB)
    return None if found is None else msgspec.json.decode(found, type=ScrubPosition)


def put_scrub_position(batch: RocksBatch, position: ScrubPosition) -> None:
    batch.put(GROUPS, _SCRUB, msgspec.json.encode(position))


# Messages.


def record(rocks: Rocks, ordinal: int, sender: bytes, seq: int) -> bytes | None:
    return rocks.get(MSG, message_key(ordinal, sender, seq))


def put_message(batch: RocksBatch, ordinal: int, sender: bytes, seq: int, level: int, record: bytes) -> None:
    key = message_key(ordinal, sender, seq)
    batch.put(MSG, key, record)
    if level >= 1:
        batch.put(HI, key, bytes((level,)))


def messages(rocks: Rocks, ordinal: int, after: bytes = b"") -> RocksIterator:
    """The messages of a group, those behind a cursor if there is one."""
    first, end = span(ordinal)
    return rocks.iterator(MSG, first + after + b"\0" if after else first, end)


def all_messages(rocks: Rocks, after: bytes) -> RocksIterator:
    """The messages of all groups behind a key."""
    return rocks.iterator(MSG, after + b"\0", b"\xff" * 25)


def behind(ordinal: int) -> bytes:
    """A key behind all messages of a group."""
    return message_key(ordinal, b"\xff" * 8, MAX_SEQ + 1)


def ordinal_of(key: bytes) -> int:
    found: int = _ORDINAL.unpack_from(key)[0]
    return found


def highest(rocks: Rocks, ordinal: int, sender: bytes) -> int:
    """The highest seq of a sender that is stored; 0 if there is none."""
    first, last = message_key(ordinal, sender, 0), message_key(ordinal, sender, MAX_SEQ)
    found = rocks.iterator(MSG, first, message_key(ordinal, sender, MAX_SEQ + 1))
    if not found.seek_for_prev(last):
        check_iterator(found)
        return 0
    return message_id(found.key())[1]


def held(rocks: Rocks, ordinal: int) -> Iterator[tuple[bytes, int]]:
    """The highest seq of each sender, by two seeks for each."""
    found = messages(rocks, ordinal)
    while found.valid():
        sender, _ = message_id(found.key())
        if not found.seek_for_prev(message_key(ordinal, sender, MAX_SEQ)):
            break
        yield message_id(found.key())
        found.next()
    check_iterator(found)


def level(rocks: Rocks, ordinal: int, sender: bytes, seq: int) -> int:
    """The level of a message that is stored, by `hi`."""
    found = rocks.get(HI, message_key(ordinal, sender, seq))
    return 0 if found is None else found[0]


def all_levels(rocks: Rocks, ordinal: int) -> RocksIterator:
    return rocks.iterator(HI, *span(ordinal))


def levels(every: RocksIterator, ordinal: int, sender: bytes, up_to: int) -> Iterator[tuple[int, int]]:
    """Seq and level of a sender's snapshots up to a seq, by an iterator that serves for all senders."""
    every.seek(message_key(ordinal, sender, 1))
    while every.valid():
        other, seq = message_id(every.key())
        if other != sender or seq > up_to:
            return
        yield seq, every.value()[0]
        every.next()
    check_iterator(every)


def snapshots(rocks: Rocks, ordinal: int) -> Iterator[tuple[bytes, int, int]]:
    """Sender, seq and level of all snapshots of a group."""
    for key, value in _items(rocks.iterator(HI, *span(ordinal))):
        yield (*message_id(key), value[0])


def delete_snapshot(batch: RocksBatch, ordinal: int, sender: bytes, seq: int) -> None:
    key = message_key(ordinal, sender, seq)
    batch.delete(MSG, key)
    batch.delete(HI, key)


def delete_level(batch: RocksBatch, ordinal: int, sender: bytes, seq: int) -> None:
    """Removes a snapshot from `hi` alone, where a range removes it from `msg`."""
    batch.delete(HI, message_key(ordinal, sender, seq))


def delete_messages(batch: RocksBatch, ordinal: int, sender: bytes, first: int, last: int) -> None:
    batch.delete_range(MSG, message_key(ordinal, sender, first), message_key(ordinal, sender, last + 1))


# Floors.


def floors(rocks: Rocks, ordinal: int) -> Iterator[LogFloor]:
    for floor, _ in floor_rows(rocks, ordinal):
        yield floor


def floor_rows(rocks: Rocks, ordinal: int) -> Iterator[tuple[LogFloor, int]]:
    """The floors, each with the highest seq of its sender that the node had seen by then."""
    for key, value in _items(rocks.iterator(FLOOR, *span(ordinal))):
        _, sender, level = _FLOOR.unpack(key)
        seq, seen = _MARK.unpack(value)
        yield LogFloor(sender, level, seq), seen


def put_floor(batch: RocksBatch, ordinal: int, floor: LogFloor, seen: int) -> None:
    batch.put(FLOOR, _FLOOR.pack(ordinal, floor.sender, floor.level), _MARK.pack(floor.seq, seen))


def delete_floor(batch: RocksBatch, ordinal: int, sender: bytes, level: int) -> None:
    batch.delete(FLOOR, _FLOOR.pack(ordinal, sender, level))


def _items(iterator: RocksIterator) -> Iterator[tuple[bytes, bytes]]:
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    check_iterator(iterator)
