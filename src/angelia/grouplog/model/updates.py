"""What a message of level 0 carries under its seal: when it was written, and the application's content."""

from __future__ import annotations

import struct

import msgspec

from angelia.errors import InvalidArgument

_TIME = struct.Struct(">Q")
LATEST = 253_402_300_800_000  # the year 10000, which no datetime holds
OVERHEAD = _TIME.size


class Update(msgspec.Struct, frozen=True):
    """An update by its sender's word: `written_at` is in milliseconds since 1970."""

    written_at: int
    content: bytes

    def encode(self) -> bytes:
        return _TIME.pack(self.written_at) + self.content

    @classmethod
    def decode(cls, body: bytes) -> Update:
        """Parses the body of a message; InvalidArgument if it is no update."""
        if len(body) < _TIME.size:
            raise InvalidArgument("an update is cut short")
        (written_at,) = _TIME.unpack_from(body)
        if written_at >= LATEST:
            raise InvalidArgument("an update has a time that no calendar has")
        return cls(written_at, body[_TIME.size :])
