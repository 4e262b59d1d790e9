"""Frames, the body format of data: u32 BE length of what follows, type, body.

Numbers are big-endian. A message is sender (8), seq (u64) and its record as it is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from angelia.errors import InvalidArgument, TooLarge
from angelia.grouplog.model import vectors
from angelia.grouplog.model.groups import MAX_ENTRIES, MAX_PIECE, LogFloor, Ranges, Vector
from angelia.grouplog.model.ids import MAX_SEQ

MEDIA = "application/vnd.angelia.frames"
MAX_FRAME = MAX_PIECE + (64 << 10)  # a piece of the largest size, with its manifest and heads
CURSOR_BYTES = 16
DEFAULT_LIMIT, MAX_LIMIT = 500, 5_000
DEFAULT_BYTES, MAX_BYTES = 4 << 20, 16 << 20

_HEAD = struct.Struct(">IB")
_ID = struct.Struct(">8sQ")
_MESSAGE_HEAD = struct.Struct(">IB8sQ")
_RANGE = struct.Struct(">8sQQ")
_FLOOR = struct.Struct(">8sBQ")
_COUNT = struct.Struct(">I")
_PAGE = struct.Struct(">II")
_CAUGHT_UP = struct.Struct(">16sQ")


class Type(IntEnum):
    MESSAGE = 1
    RESULT = 2
    BACKFILL = 3
    END = 4
    HOLE = 5
    HELLO = 6
    CAUGHT_UP = 7
    FLOOR = 8
    ERROR = 9
    PING = 10
    RECEIPT = 11
    HELD = 12


class Status(IntEnum):
    """What became of an appended message."""

    STORED = 0
    DUPLICATE = 1
    SUPERSEDED = 2

    @property
    def label(self) -> str:
        return self.name.lower()


def frame(type_: Type, *parts: bytes) -> bytes:
    return b"".join((_HEAD.pack(1 + sum(map(len, parts)), type_), *parts))


PING = frame(Type.PING)


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Takes the bytes that came, and yields the type and body of each frame that is complete."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            length, type_ = _HEAD.unpack_from(self._buffer)
            if not 1 <= length <= MAX_FRAME:
                raise InvalidArgument("a frame has a length that is not allowed")
            end = 4 + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield type_, body

    @property
    def empty(self) -> bool:
        """Whether all that came was whole frames."""
        return not self._buffer


def split(body: bytes, wanted: Type, most: int) -> list[bytes]:
    """Returns the bodies of a request's frames, all of one type."""
    found: list[bytes] = []
    at = 0
    while at < len(body):
        if len(body) - at < _HEAD.size:
            raise InvalidArgument("the body ends inside a frame")
        length, type_ = _HEAD.unpack_from(body, at)
        end = at + 4 + length
        if length < 1 or end > len(body):
            raise InvalidArgument("the body ends inside a frame")
        if length > MAX_FRAME:
            raise TooLarge(f"a frame has at most {MAX_FRAME:,} bytes")
        if type_ != wanted:
            raise InvalidArgument(f"frame {len(found)} is of type {type_}, not {wanted.value}")
        if len(found) == most:
            raise InvalidArgument(f"a request has at most {most} frames")
        found.append(body[at + _HEAD.size : end])
        at = end
    if not found:
        raise InvalidArgument("the body has no frame")
    return found


def message_head(sender: bytes, seq: int, length: int) -> bytes:
    """What comes before the record in the frame of a message."""
    return _MESSAGE_HEAD.pack(1 + _ID.size + length, Type.MESSAGE, sender, seq)


class LogMessage(msgspec.Struct, frozen=True):
    """A message on its way: its id, and its record."""

    sender: bytes
    seq: int
    record: bytes

    def encode(self) -> bytes:
        return message_head(self.sender, self.seq, len(self.record)) + self.record

    @classmethod
    def decode(cls, body: bytes) -> LogMessage:
        sender, seq = _id(body)
        return cls(sender, seq, body[_ID.size :])


class Result(msgspec.Struct, frozen=True):
    """What became of one message. A stored snapshot comes with the signature of the node's receipt."""

    sender: bytes
    seq: int
    status: Status
    receipt: bytes = b""

    def encode(self) -> bytes:
        return frame(Type.RESULT, _ID.pack(self.sender, self.seq), bytes((self.status,)), self.receipt)

    @classmethod
    def decode(cls, body: bytes) -> Result:
        sender, seq = _id(body)
        rest = body[_ID.size :]
        if len(rest) not in (1, 65) or rest[0] not in list(Status):
            raise InvalidArgument("a result frame does not fit")
        return cls(sender, seq, Status(rest[0]), rest[1:])


class Hello(msgspec.Struct, frozen=True):
    """What a subscriber holds: the vector, ranges above it, and a sender to leave out."""

    vector: Vector
    have: Ranges
    exclude: bytes | None = None

    def encode(self) -> bytes:
        return frame(Type.HELLO, self._packed())

    def _packed(self) -> bytes:
        ranges = [(sender, first, last) for sender, found in sorted(self.have.items()) for first, last in found]
        return b"".join(
            (
                _COUNT.pack(len(self.vector)),
                *(_ID.pack(sender, seq) for sender, seq in sorted(self.vector.items())),
                _COUNT.pack(len(ranges)),
                *(_RANGE.pack(*one) for one in ranges),
                bytes((self.exclude is not None,)) + (self.exclude or b""),
            )
        )

    @classmethod
    def decode(cls, body: bytes) -> Hello:
        reader = _Reader(body)
        hello = _hello(reader)
        reader.finish()
        return hello


class Backfill(msgspec.Struct, frozen=True):
    """A request for a page of what a device lacks."""

    hello: Hello
    limit: int = DEFAULT_LIMIT
    max_bytes: int = DEFAULT_BYTES
    cursor: bytes = b""

    def encode(self) -> bytes:
        return frame(Type.BACKFILL, self.hello._packed(), _PAGE.pack(self.limit, self.max_bytes), self.cursor)

    @classmethod
    def decode(cls, body: bytes) -> Backfill:
        reader = _Reader(body)
        hello = _hello(reader)
        limit, max_bytes = _PAGE.unpack(reader.take(_PAGE.size))
        cursor = reader.rest()
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidArgument(f"limit is 1 to {MAX_LIMIT:,}")
        if not 1 <= max_bytes <= MAX_BYTES:
            raise InvalidArgument(f"max_bytes is 1 to {MAX_BYTES:,}")
        if cursor:
            _check_cursor(cursor)
        return cls(hello, limit, max_bytes, cursor)


class End(msgspec.Struct, frozen=True):
    """The end of a page: whether more follows and from where, and the floors of the group."""

    has_more: bool
    cursor: bytes
    floors: Sequence[LogFloor] = ()

    def encode(self) -> bytes:
        cursor = self.cursor if self.has_more else b""
        return frame(Type.END, bytes((self.has_more,)), cursor, *map(_pack_floor, self.floors))

    @classmethod
    def decode(cls, body: bytes) -> End:
        if not body or body[0] > 1:
            raise InvalidArgument("an end frame does not fit")
        has_more, at = bool(body[0]), 1 + (CURSOR_BYTES if body[0] else 0)
        if len(body) < at or (len(body) - at) % _FLOOR.size:
            raise InvalidArgument("an end frame does not fit")
        return cls(has_more, body[1:at], [LogFloor(*one) for one in _FLOOR.iter_unpack(body[at:])])


class Hole(msgspec.Struct, frozen=True):
    """A message that the node has stored, and whose record is damaged."""

    sender: bytes
    seq: int

    def encode(self) -> bytes:
        return frame(Type.HOLE, _ID.pack(self.sender, self.seq))

    @classmethod
    def decode(cls, body: bytes) -> Hole:
        if len(body) != _ID.size:
            raise InvalidArgument("a hole frame does not fit")
        return cls(*_id(body))


class CaughtUp(msgspec.Struct, frozen=True):
    """All that was stored when the subscription began is sent. `boot` names the node's run, in which `position` counts
    the messages stored."""

    boot: bytes
    position: int

    def encode(self) -> bytes:
        return frame(Type.CAUGHT_UP, _CAUGHT_UP.pack(self.boot, self.position))

    @classmethod
    def decode(cls, body: bytes) -> CaughtUp:
        if len(body) != _CAUGHT_UP.size:
            raise InvalidArgument("a caught_up frame does not fit")
        return cls(*_CAUGHT_UP.unpack(body))


class Failure(msgspec.Struct, frozen=True):
    """Why a stream ends."""

    code: str
    title: str

    def encode(self) -> bytes:
        return frame(Type.ERROR, msgspec.json.encode(self))

    @classmethod
    def decode(cls, body: bytes) -> Failure:
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument("an error frame does not fit") from error


class Held(msgspec.Struct, frozen=True):
    """The shard that a node holds of a snapshot: its index and the manifest."""

    index: int
    manifest: bytes

    def encode(self) -> bytes:
        return frame(Type.HELD, bytes((self.index,)), self.manifest)

    @classmethod
    def decode(cls, body: bytes) -> Held:
        if not body:
            raise InvalidArgument("a held frame does not fit")
        return cls(body[0], body[1:])


def floor_frame(floor: LogFloor) -> bytes:
    return frame(Type.FLOOR, _pack_floor(floor))


def decode_floor(body: bytes) -> LogFloor:
    if len(body) != _FLOOR.size:
        raise InvalidArgument("a floor frame does not fit")
    return LogFloor(*_FLOOR.unpack(body))


def receipt_frame(signature: bytes) -> bytes:
    return frame(Type.RECEIPT, signature)


def _pack_floor(floor: LogFloor) -> bytes:
    return _FLOOR.pack(floor.sender, floor.level, floor.seq)


def _id(body: bytes) -> tuple[bytes, int]:
    if len(body) < _ID.size:
        raise InvalidArgument("a frame is too short for a message id")
    sender, seq = _ID.unpack_from(body)
    if not 1 <= seq <= MAX_SEQ:
        raise InvalidArgument(f"a seq is 1 to {MAX_SEQ}", hint="0 means nothing yet, and is never a message")
    return sender, seq


class _Reader:
    """Reads a body piece by piece; InvalidArgument where it is too short or too long."""

    def __init__(self, body: bytes) -> None:
        self._left = memoryview(body)

    def take(self, count: int) -> bytes:
        if len(self._left) < count:
            raise InvalidArgument("the frame is too short")
        taken, self._left = bytes(self._left[:count]), self._left[count:]
        return taken

    def entries(self, form: struct.Struct, most: int) -> Iterator[Any]:
        (count,) = _COUNT.unpack(self.take(_COUNT.size))
        if count > most:
            raise InvalidArgument(f"the frame names more than {most:,} entries")
        return form.iter_unpack(self.take(count * form.size))

    def rest(self) -> bytes:
        return self.take(len(self._left))

    def finish(self) -> None:
        if self._left:
            raise InvalidArgument("the frame is too long")


def _hello(reader: _Reader) -> Hello:
    entries: list[tuple[bytes, int]] = list(reader.entries(_ID, MAX_ENTRIES))
    vector = dict(entries)
    if len(vector) < len(entries):
        raise InvalidArgument("the vector names a sender twice")
    vectors.check(vector)
    have: dict[bytes, list[tuple[int, int]]] = {}
    for sender, first, last in reader.entries(_RANGE, vectors.MAX_ALL_RANGES):
        have.setdefault(sender, []).append((first, last))
    for sender, ranges in have.items():
        _check_ranges(vector.get(sender, 0), ranges)
    (excludes,) = reader.take(1)
    if excludes > 1:
        raise InvalidArgument("exclude is given or not")
    return Hello(vector, have, reader.take(8) if excludes else None)


def _check_cursor(cursor: bytes) -> None:
    if len(cursor) != CURSOR_BYTES or not 1 <= _ID.unpack(cursor)[1] <= MAX_SEQ:
        raise InvalidArgument("the cursor is not one that a page gave out")


def _check_ranges(above: int, ranges: list[tuple[int, int]]) -> None:
    if len(ranges) > vectors.MAX_RANGES:
        raise InvalidArgument(f"a sender has at most {vectors.MAX_RANGES} ranges above its vector")
    for first, last in ranges:
        if not above < first <= last <= MAX_SEQ:
            raise InvalidArgument("ranges rise, do not touch, and lie above the vector")
        above = last + 1
