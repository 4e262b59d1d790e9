"""The inner frame: lengths that agree, padding of zeros, one compressed stream that ends where it should."""

from __future__ import annotations

import gc
import gzip
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope import frame, json_form
from angelia.envelope.refusals import Malformed, OpenFailed, UnsupportedCompression
from angelia.envelope.wire import Compression, decode
from envelope.reference import inner
from envelope.samples import hostile, open_envelope, open_wire, sealed

NONE, GZIP, ZSTD = Compression.NONE, Compression.GZIP, Compression.ZSTD
MIB = 1 << 20
TEXT = b"the same words again and again, " * 64


def gzipped(raw: bytes) -> bytes:
    return gzip.compress(raw, mtime=0)


def zstandarded(raw: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(raw)  # type: ignore[arg-type]


COMPRESS = {GZIP: gzipped, ZSTD: zstandarded}


# What a sender makes.


@given(st.binary(max_size=3000) | st.binary(max_size=60).map(lambda some: some * 40), st.sampled_from(Compression))
def test_what_is_packed_comes_out_again(raw: bytes, wish: Compression) -> None:
    compression, body = frame.compress(raw, wish)
    for padme in (False, True):
        assert frame.unpack(frame.pack(len(raw), body, padme=padme), compression) == raw


def test_a_frame_is_two_lengths_the_body_and_zeros() -> None:
    assert frame.pack(5, b"hello", padme=False) == struct.pack(">II", 5, 5) + b"hello"
    assert frame.pack(5, b"hello", padme=True) == struct.pack(">II", 5, 5) + b"hello\0"


@pytest.mark.parametrize(("length", "padded"), [(8, 8), (9, 10), (13, 14), (1008, 1024), (1024, 1024), (1025, 1088)])
def test_padme_fills_up_to_the_next_length(length: int, padded: int) -> None:
    assert len(frame.pack(length - 8, bytes(length - 8), padme=True)) == padded


@given(st.integers(0, MIB))
def test_padme_follows_its_formula_and_costs_at_most_12_percent(size: int) -> None:
    length = size + 8
    exponent = length.bit_length() - 1
    step = 2 ** (exponent - (exponent.bit_length() - 1) - 1)
    padded = frame._padme(length)
    assert padded % step == 0
    assert length <= padded < length + step
    assert padded - length <= 0.12 * length
    assert padded - length <= 65_536


def test_padme_lets_few_lengths_be_seen() -> None:
    seen = sorted({frame._padme(length) for length in range(8, 100_000)})
    assert len(seen) < 250
    assert all(one < other for one, other in pairwise(seen))


@pytest.mark.parametrize("wish", [GZIP, ZSTD])
def test_what_does_not_get_smaller_is_sent_as_it_is(wish: Compression) -> None:
    raw = os.urandom(1000)
    assert frame.compress(raw, wish) == (NONE, raw)


@pytest.mark.parametrize("wish", Compression)
def test_an_empty_message_is_never_compressed(wish: Compression) -> None:
    assert frame.compress(b"", wish) == (NONE, b"")


@pytest.mark.parametrize("wish", [GZIP, ZSTD])
def test_compression_is_used_when_it_saves_5_percent(wish: Compression) -> None:
    outcomes = set()
    for zeros in range(0, 200, 4):
        raw = os.urandom(1000 - zeros) + bytes(zeros)
        compressed = zlib.compress(raw, wbits=31) if wish is GZIP else zstandarded(raw)
        worth_it = len(compressed) <= 950
        assert frame.compress(raw, wish) == ((wish, compressed) if worth_it else (NONE, raw))
        outcomes.add(worth_it)
    assert outcomes == {True, False}


def test_nothing_is_compressed_unless_asked() -> None:
    assert sealed(body=TEXT).header.compression is NONE


@pytest.mark.parametrize("wish", Compression)
def test_one_mebibyte_goes_and_one_byte_more_does_not(wish: Compression) -> None:
    assert open_wire(sealed(body=bytes(MIB), compression=wish).wire) == bytes(MIB)
    with pytest.raises(Malformed):
        sealed(body=bytes(MIB + 1), compression=wish)


@pytest.fixture
def no_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "zstandard", None)


@pytest.mark.usefixtures("no_zstd")
def test_without_zstd_a_sender_falls_back_to_gzip() -> None:
    envelope = sealed(body=TEXT, compression=ZSTD)
    assert envelope.header.compression is GZIP
    assert open_wire(envelope.wire) == TEXT


def test_without_zstd_a_receiver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = sealed(body=TEXT, compression=ZSTD)
    assert envelope.header.compression is ZSTD
    monkeypatch.setattr(frame, "zstandard", None)
    with pytest.raises(UnsupportedCompression) as refused:
        open_wire(envelope.wire)
    assert refused.value.code == "unsupported_compression"
    assert refused.value.hint


# What a receiver takes. Everything is sealed and signed by a sender whose keys are good.


def refused(content: bytes, compression: Compression) -> None:
    with pytest.raises(OpenFailed):
        open_wire(hostile(content, compression).wire)


def test_any_amount_of_zero_padding_is_taken() -> None:
    for padding in (0, 1, 7, 65_536):
        assert open_wire(hostile(inner(5, b"hello", bytes(padding))).wire) == b"hello"


def test_the_longest_message_with_the_longest_padding_is_taken() -> None:
    assert open_wire(hostile(inner(MIB, bytes(MIB), bytes(65_536))).wire) == bytes(MIB)


@pytest.mark.parametrize(
    "content",
    [
        inner(5, b"hello", b"\1"),
        inner(5, b"hello", bytes(100) + b"\1"),
        inner(5, b"hello", b"\1" + bytes(100)),
        inner(5, b"hello", bytes(65_537)),
        inner(5, b"hello", body_length=6),
        inner(5, b"hello", body_length=2**32 - 1),
        inner(4, b"hello"),
        inner(6, b"hello"),
        inner(6, b"hello", body_length=4),
        inner(2**32 - 1, b"hello"),
        inner(MIB + 1, b"hello"),
        inner(MIB + 1, bytes(MIB + 1)),
        inner(1, b""),
        bytes(7) + b"\1",
    ],
    ids=[
        "padding of ones",
        "last byte of the padding",
        "first byte of the padding",
        "too much padding",
        "body longer than the frame",
        "body of 4 GiB",
        "body longer than the message",
        "body shorter than the message",
        "both lie",
        "message of 4 GiB",
        "message above the limit",
        "message above the limit, in full",
        "empty body",
        "a body that is not there",
    ],
)
def test_a_frame_that_lies_is_refused(content: bytes) -> None:
    refused(content, NONE)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
def test_a_compressed_body_as_others_make_it_is_taken(compression: Compression) -> None:
    body = COMPRESS[compression](TEXT)
    assert open_wire(hostile(inner(len(TEXT), body, bytes(3)), compression).wire) == TEXT


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
@pytest.mark.parametrize("lie", [-len(TEXT), -1, 1, 1000])
def test_a_compressed_body_has_exactly_the_length_it_says(compression: Compression, lie: int) -> None:
    refused(inner(len(TEXT) + lie, COMPRESS[compression](TEXT)), compression)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
def test_a_body_larger_than_its_message_is_refused(compression: Compression) -> None:
    body = COMPRESS[compression](b"x")
    assert len(body) > 1
    refused(inner(1, body), compression)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
def test_an_empty_compressed_message_is_refused(compression: Compression) -> None:
    refused(inner(0, b""), compression)
    refused(inner(0, COMPRESS[compression](b"")), compression)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
@pytest.mark.parametrize("tail", [b"\0", b"x", TEXT[:40]], ids=["a zero", "a letter", "text"])
def test_bytes_after_the_stream_are_refused(compression: Compression, tail: bytes) -> None:
    refused(inner(len(TEXT), COMPRESS[compression](TEXT) + tail), compression)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
@pytest.mark.parametrize("first", [TEXT, TEXT[:100], b""], ids=["whole", "part", "empty"])
def test_a_second_stream_is_refused(compression: Compression, first: bytes) -> None:
    body = COMPRESS[compression](first) + COMPRESS[compression](TEXT[len(first) :] or TEXT)
    refused(inner(len(TEXT), body), compression)
    refused(inner(2 * len(TEXT), body), compression)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
def test_every_cut_of_a_stream_is_refused(compression: Compression) -> None:
    body = COMPRESS[compression](TEXT)
    for length in range(len(body)):
        with pytest.raises(OpenFailed):
            frame.unpack(inner(len(TEXT), body[:length]), compression)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
def test_a_body_that_is_no_stream_is_refused(compression: Compression) -> None:
    refused(inner(len(TEXT), TEXT[:100]), compression)
    refused(inner(len(TEXT), COMPRESS[ZSTD if compression is GZIP else GZIP](TEXT)), compression)


def test_a_gzip_body_is_not_zlib_or_bare_deflate() -> None:
    refused(inner(len(TEXT), zlib.compress(TEXT)), GZIP)
    refused(inner(len(TEXT), zlib.compress(TEXT, wbits=-15)), GZIP)


@pytest.mark.parametrize("at", [-8, -4])
def test_a_gzip_body_with_a_wrong_checksum_or_length_is_refused(at: int) -> None:
    body = bytearray(gzipped(TEXT))
    body[at] ^= 1
    refused(inner(len(TEXT), bytes(body)), GZIP)


def test_a_zstd_frame_may_go_without_checksum_and_size() -> None:
    body = zstandarded(TEXT, write_checksum=False, write_content_size=False)
    assert open_wire(hostile(inner(len(TEXT), body), ZSTD).wire) == TEXT


def test_a_zstd_frame_without_the_checksum_that_it_promises_is_refused() -> None:
    body = zstandarded(TEXT, write_checksum=True)
    assert open_wire(hostile(inner(len(TEXT), body), ZSTD).wire) == TEXT
    for cut in range(1, 5):
        refused(inner(len(TEXT), body[:-cut]), ZSTD)
    refused(inner(len(TEXT), body[:-1] + bytes([body[-1] ^ 1])), ZSTD)


SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"


@pytest.mark.parametrize("number", range(16))
def test_skippable_zstd_frames_are_refused(number: int) -> None:
    skippable = struct.pack("<II", 0x184D2A50 + number, 4) + b"skip"
    body = zstandarded(TEXT)
    refused(inner(len(TEXT), skippable + body), ZSTD)
    refused(inner(len(TEXT), body + skippable), ZSTD)
    refused(inner(len(TEXT), skippable), ZSTD)


def test_a_zstd_dictionary_is_refused() -> None:
    samples = [TEXT[at:] + bytes([at]) * 20 for at in range(200)]
    dictionary = zstandard.train_dictionary(4096, samples)
    assert dictionary.dict_id()
    refused(inner(len(TEXT), zstandarded(TEXT, dict_data=dictionary)), ZSTD)
    unnamed = zstandard.ZstdCompressionDict(TEXT, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    refused(inner(len(TEXT), zstandarded(TEXT[:1000], dict_data=unnamed)), ZSTD)


def windowed(log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=log)
    made = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return made.compress(TEXT) + made.flush()


def test_a_zstd_window_above_8_mebibytes_is_refused() -> None:
    assert zstandard.get_frame_parameters(windowed(23)).window_size == 8 * MIB
    assert open_wire(hostile(inner(len(TEXT), windowed(23)), ZSTD).wire) == TEXT
    for log in (24, 27, 30):
        refused(inner(len(TEXT), windowed(log)), ZSTD)


# Memory: whatever was sealed, opening it takes at most 8 MiB more than the input.


def bomb(compression: Compression) -> bytes:
    """200 MiB of zeros."""
    making = zlib.compressobj(9, wbits=31) if compression is GZIP else zstandard.ZstdCompressor().compressobj()
    zeros = bytes(MIB)
    return b"".join(making.compress(zeros) for _ in range(200)) + making.flush()


def peak_of(action: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_small(content: bytes, reads: bytes | None) -> None:
    def from_wire() -> None:
        if reads is None:
            with pytest.raises(OpenFailed):
                open_wire(content)
        else:
            assert open_wire(content) == reads

    assert peak_of(from_wire) <= 8 * MIB


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
@pytest.mark.parametrize("claims", [MIB, 300_000])
def test_a_bomb_is_refused_in_little_memory(compression: Compression, claims: int) -> None:
    assert_small(hostile(inner(claims, bomb(compression)), compression).wire, None)


def test_a_bomb_that_says_its_true_size_is_refused_in_little_memory() -> None:
    single = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(200 * MIB))
    assert zstandard.get_frame_parameters(single).content_size == 200 * MIB
    assert_small(hostile(inner(MIB, single), ZSTD).wire, None)


@pytest.mark.parametrize("compression", [GZIP, ZSTD])
def test_streams_behind_streams_are_refused_in_little_memory(compression: Compression) -> None:
    once = COMPRESS[compression](bytes(MIB))
    assert_small(hostile(inner(MIB, once * 64), compression).wire, None)
    assert_small(hostile(inner(MIB, once + bomb(compression)), compression).wire, None)
    assert_small(hostile(inner(MIB, once + bytes(500_000)), compression).wire, None)


def test_odd_zstd_frames_are_refused_in_little_memory() -> None:
    checked = zstandarded(bytes(MIB), write_checksum=True)
    dictionary = zstandard.train_dictionary(4096, [TEXT[at:] + bytes([at]) * 20 for at in range(200)])
    wide = windowed(27)
    for body in (checked[:-4], SKIPPABLE + checked, zstandarded(bytes(MIB), dict_data=dictionary), wide):
        assert_small(hostile(inner(MIB, body), ZSTD).wire, None)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("body", [bytes(MIB), os.urandom(MIB * 15 // 16)], ids=["zeros", "noise"])
def test_the_longest_message_opens_in_little_memory(compression: Compression, body: bytes) -> None:
    assert_small(sealed(body=body, compression=compression, padme=True).wire, body)
    framed = COMPRESS[compression](body) if compression is not NONE else body
    if len(framed) <= len(body):
        assert_small(hostile(inner(len(body), framed, bytes(65_536)), compression).wire, body)


def test_the_longest_message_in_json_opens_in_little_memory() -> None:
    body = os.urandom(MIB)
    content = json_form.encode(decode(hostile(inner(MIB, body, bytes(65_536))).wire))
    assert len(content) > 1_480_000
    assert peak_of(lambda: open_envelope(json_form.decode(content))) <= 8 * MIB
