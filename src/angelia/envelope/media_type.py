"""The two forms of an envelope in HTTP bodies: JSON by default, and the binary wire form."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from angelia.envelope import json_form, wire
from angelia.envelope.refusals import Malformed
from angelia.envelope.wire import Envelope

MEDIA_TYPE = "application/vnd.angelia.envelope"
_length = struct.Struct(">I")
LENGTH_BYTES = _length.size


def read(content_type: str, body: bytes, ttl_max: int) -> Envelope:
    """Returns the envelope of a request body, in the form that its Content-Type names."""
    return wire.decode(body, ttl_max) if is_binary(content_type) else json_form.decode(body, ttl_max)


def write_batch(envelopes: Iterable[Envelope]) -> bytes:
    """Returns the binary form of several: before each envelope stands its length, four bytes, big-endian."""
    return b"".join(_length.pack(len(one.wire)) + one.wire for one in envelopes)


def split_batch(body: bytes) -> Iterator[bytes]:
    """Returns the wire forms of a batch, which are still to be decoded."""
    at, view = 0, memoryview(body)
    while at < len(body):
        start = at + LENGTH_BYTES
        end = start + _length.unpack_from(body, at)[0] if start <= len(body) else start
        if end > len(body):
            raise Malformed("the batch ends within an envelope", hint="before each envelope stands its length, 4 bytes")
        yield bytes(view[start:end])
        at = end


def is_binary(content_type: str) -> bool:
    """Whether a Content-Type or an Accept header asks for the binary form."""
    return any(part.partition(";")[0].strip().lower() == MEDIA_TYPE for part in content_type.split(","))
