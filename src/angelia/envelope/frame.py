"""The plaintext frame of AES-GCM: `u32 raw_len | u32 body_len | body | zero padding`, the body compressed or not."""

from __future__ import annotations

import struct
import zlib

from angelia.envelope.refusals import Malformed, OpenFailed, UnsupportedCompression
from angelia.envelope.wire import MAX_PAD, MAX_PLAINTEXT, Compression

try:
    import zstandard
except ImportError:  # a sender falls back to gzip, a recipient raises an error that names the package
    zstandard = None  # type: ignore[assignment]

# A smaller saving is not worth it: the length of a compressed secret leaks a little of its content.
_WORTH_IT = 0.95
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW = 8 << 20


def compress(raw: bytes, wish: Compression) -> tuple[Compression, bytes]:
    """Returns the compression in use and the body, compressed as wished if that saves at least 5 %."""
    if len(raw) > MAX_PLAINTEXT:
        raise Malformed(f"a message has at most {MAX_PLAINTEXT:,} bytes, this has {len(raw):,}")
    if wish is Compression.NONE:
        return wish, raw
    if wish is Compression.ZSTD and zstandard is not None:
        body = zstandard.ZstdCompressor().compress(raw)
    else:
        wish, body = Compression.GZIP, zlib.compress(raw, wbits=31)
    return (wish, body) if len(body) <= len(raw) * _WORTH_IT else (Compression.NONE, raw)


def pack(raw_length: int, body: bytes, *, padme: bool) -> bytes:
    frame = struct.pack(">II", raw_length, len(body)) + body
    return frame + bytes(_padme(len(frame)) - len(frame)) if padme else frame


def unpack(frame: bytes, compression: Compression) -> bytes:
    """Returns the message in a frame. Every fault raises the same OpenFailed."""
    raw_length, body_length = struct.unpack_from(">II", frame)
    padding = len(frame) - 8 - body_length
    if raw_length > MAX_PLAINTEXT or body_length > raw_length or not 0 <= padding <= MAX_PAD:
        raise OpenFailed
    if frame.count(0, 8 + body_length) != padding:
        raise OpenFailed
    body = frame[8 : 8 + body_length]
    match compression:
        case Compression.NONE:
            if body_length != raw_length:
                raise OpenFailed
            return body
        case Compression.GZIP:
            return _gunzip(body, raw_length)
        case Compression.ZSTD:
            return _unzstd(body, raw_length)


def _gunzip(body: bytes, length: int) -> bytes:
    reader = zlib.decompressobj(wbits=31)
    try:
        raw = reader.decompress(body, length + 1)
    except zlib.error as error:
        raise OpenFailed from error
    if len(raw) != length or not reader.eof or reader.unused_data:
        raise OpenFailed
    return raw


def _unzstd(body: bytes, length: int) -> bytes:
    if zstandard is None:
        raise UnsupportedCompression(hint="pip install zstandard")
    try:
        # A skippable frame has another magic number; a frame that asks for a dictionary names it.
        if not body.startswith(_ZSTD_MAGIC) or zstandard.get_frame_parameters(body).dict_id:
            raise OpenFailed
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        with decompressor.stream_reader(body) as reader:
            raw = reader.read(length + 1)
        if len(raw) != length:
            raise OpenFailed
        # The reader hides where the frame ended: a truncated frame, or bytes after it, would read the same.
        whole = decompressor.decompressobj()
        whole.decompress(body)
    except zstandard.ZstdError as error:
        raise OpenFailed from error
    if not whole.eof or whole.unused_data:
        raise OpenFailed
    return raw


def _padme(length: int) -> int:
    """Returns the padded length, which reveals only the order of magnitude (at most 12 % more)."""
    exponent = length.bit_length() - 1
    step = 1 << exponent - (exponent.bit_length() - 1) - 1
    return -(-length // step) * step
