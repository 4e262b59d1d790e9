"""Frames: read as they were written, also in pieces; anything else is refused with one error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.errors import InvalidArgument, TooLarge
from angelia.grouplog.model import frames
from angelia.grouplog.model.frames import (
    MAX_FRAME,
    Backfill,
    CaughtUp,
    End,
    Failure,
    FrameReader,
    Held,
    Hello,
    Hole,
    LogMessage,
    Result,
    Status,
    Type,
)
from angelia.grouplog.model.groups import LogFloor
from angelia.grouplog.model.ids import MAX_SEQ

senders = st.binary(min_size=8, max_size=8)
seqs = st.integers(1, MAX_SEQ)
floors = st.builds(LogFloor, senders, st.integers(1, 15), seqs)


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    vector = draw(st.dictionaries(senders, st.integers(0, 1000), max_size=4))
    have = {}
    for sender in draw(st.sets(senders | st.sampled_from(sorted(vector) or [bytes(8)]), max_size=3)):
        at, ranges = vector.get(sender, 0), []
        for gap, length in draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5)):
            first = at + gap + (1 if ranges else 0)
            at = first + length
            ranges.append((first, at))
        have[sender] = ranges
    return Hello(vector, have, draw(st.none() | senders))


cursors = st.just(b"") | st.builds(lambda sender, seq: sender + seq.to_bytes(8), senders, seqs)
FORMS: dict[str, tuple[Callable[[bytes], Any], st.SearchStrategy[Any]]] = {
    "message": (LogMessage.decode, st.builds(LogMessage, senders, seqs, st.binary(max_size=50))),
    "result": (
        Result.decode,
        st.builds(Result, senders, seqs, st.sampled_from(Status), st.sampled_from([b"", b"s" * 64])),
    ),
    "hello": (Hello.decode, hellos()),
    "backfill": (
        Backfill.decode,
        st.builds(Backfill, hellos(), st.integers(1, 5_000), st.integers(1, 16 << 20), cursors),
    ),
    "end": (
        End.decode,
        st.builds(End, st.just(True), st.binary(min_size=16, max_size=16), st.lists(floors, max_size=3))
        | st.builds(End, st.just(False), st.just(b""), st.lists(floors, max_size=3)),
    ),
    "hole": (Hole.decode, st.builds(Hole, senders, seqs)),
    "caught up": (
        CaughtUp.decode,
        st.builds(CaughtUp, st.binary(min_size=16, max_size=16), st.integers(0, MAX_SEQ)),
    ),
    "failure": (Failure.decode, st.builds(Failure, st.text(max_size=9), st.text(max_size=9))),
    "held": (Held.decode, st.builds(Held, st.integers(0, 31), st.binary(max_size=30))),
}
BODIES: dict[str, Callable[[bytes], Any]] = {name: decode for name, (decode, _) in FORMS.items()}
BODIES["floor"] = frames.decode_floor


@pytest.mark.parametrize("form", FORMS)
@given(chance=st.data())
@settings(max_examples=30)
def test_a_frame_is_read_as_it_was_written(form: str, chance: st.DataObject) -> None:
    decode, values = FORMS[form]
    value = chance.draw(values)
    ((_, body),) = FrameReader().feed(value.encode())
    assert decode(body) == value


@given(floors)
def test_a_floor_is_read_as_it_was_written(floor: LogFloor) -> None:
    ((type_, body),) = FrameReader().feed(frames.floor_frame(floor))
    assert (type_, frames.decode_floor(body)) == (Type.FLOOR, floor)


@pytest.mark.parametrize("form", BODIES)
@given(noise=st.binary(max_size=120))
@settings(max_examples=60)
def test_noise_is_refused_or_read_and_nothing_worse(form: str, noise: bytes) -> None:
    with suppress(InvalidArgument):
        BODIES[form](noise)


@pytest.mark.parametrize("form", sorted(FORMS))
@given(chance=st.data())
@settings(max_examples=10)
def test_a_body_that_is_cut_at_any_byte_gives_no_other_error(form: str, chance: st.DataObject) -> None:
    decode, values = FORMS[form]
    ((_, body),) = FrameReader().feed(chance.draw(values).encode())
    for end in range(len(body)):
        with suppress(InvalidArgument):
            decode(body[:end])


@given(hellos(), st.binary(min_size=1, max_size=3))
def test_a_hello_has_nothing_behind_its_end(hello: Hello, more: bytes) -> None:
    ((_, body),) = FrameReader().feed(hello.encode())
    with pytest.raises(InvalidArgument):
        Hello.decode(body + more)


@given(st.lists(st.binary(max_size=30), max_size=5), st.lists(st.integers(1, 7), min_size=1))
def test_a_stream_gives_the_same_frames_however_it_is_cut(bodies: list[bytes], steps: list[int]) -> None:
    data = b"".join(frames.frame(Type.MESSAGE, body) for body in bodies)
    reader, found, at, turn = FrameReader(), [], 0, 0
    while at < len(data):
        step = steps[turn % len(steps)]
        found += reader.feed(data[at : at + step])
        at, turn = at + step, turn + 1
    assert found == [(Type.MESSAGE, body) for body in bodies]
    assert reader.empty


def test_a_stream_that_ends_inside_a_frame_is_seen() -> None:
    reader = FrameReader()
    assert list(reader.feed(frames.PING[:-1])) == []
    assert not reader.empty


@pytest.mark.parametrize("length", [0, MAX_FRAME + 1, 2**32 - 1])
def test_a_stream_stops_at_a_length_that_is_not_allowed_before_its_bytes_come(length: int) -> None:
    with pytest.raises(InvalidArgument):
        list(FrameReader().feed(length.to_bytes(4) + b"\1"))


def test_a_request_is_cut_into_its_frames() -> None:
    body = frames.frame(Type.MESSAGE, b"one") + frames.frame(Type.MESSAGE, b"two")
    assert frames.split(body, Type.MESSAGE, 2) == [b"one", b"two"]


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", frames.frame(Type.MESSAGE, b"x")[:-1], frames.PING, bytes(5), frames.frame(Type.MESSAGE) * 3],
    ids=["nothing", "half a head", "cut", "other type", "length 0", "too many"],
)
def test_a_request_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        frames.split(body, Type.MESSAGE, 2)


def test_a_request_with_a_frame_over_the_limit_is_too_large() -> None:
    body = frames.frame(Type.MESSAGE, bytes(MAX_FRAME))
    with pytest.raises(TooLarge):
        frames.split(body, Type.MESSAGE, 1)
    assert len(frames.split(frames.frame(Type.MESSAGE, bytes(MAX_FRAME - 1)), Type.MESSAGE, 1)) == 1


@given(st.binary(max_size=60))
def test_a_request_of_noise_is_refused_and_nothing_worse(noise: bytes) -> None:
    with suppress(InvalidArgument, TooLarge):
        frames.split(noise, Type.MESSAGE, 256)


@pytest.mark.parametrize("seq", [0, MAX_SEQ + 1, 2**64 - 1])
def test_0_and_a_number_over_the_largest_are_no_seq_of_a_message(seq: int) -> None:
    with pytest.raises(InvalidArgument, match="seq"):
        LogMessage.decode(b"s" * 8 + seq.to_bytes(8) + b"record")


def body_of(hello: Hello) -> bytes:
    ((_, body),) = FrameReader().feed(hello.encode())
    return body


@pytest.mark.parametrize(
    "ranges",
    [
        [(5, 5)],
        [(7, 6)],
        [(7, 8), (9, 9)],
        [(9, 9), (7, 7)],
        [(7, 9), (8, 8)],
        [(7, MAX_SEQ + 1)],
        [(0, 3)],
        [(7 + 2 * n, 7 + 2 * n) for n in range(65)],
    ],
    ids=["in the vector", "backwards", "touching", "falling", "overlapping", "too high", "from 0", "65 of them"],
)
def test_ranges_rise_do_not_touch_and_lie_above_the_vector(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidArgument):
        Hello.decode(body_of(Hello({b"s" * 8: 5}, {b"s" * 8: ranges})))


def test_64_ranges_of_a_sender_are_accepted() -> None:
    hello = Hello({}, {b"s" * 8: [(2 * n, 2 * n) for n in range(1, 65)]})
    assert Hello.decode(body_of(hello)) == hello


def test_a_vector_that_names_a_sender_twice_is_refused() -> None:
    entry = b"s" * 8 + (1).to_bytes(8)
    with pytest.raises(InvalidArgument, match="twice"):
        Hello.decode((2).to_bytes(4) + entry * 2 + bytes(4) + b"\0")


def test_a_vector_has_at_most_10000_entries_and_more_are_not_even_read() -> None:
    assert len(Hello.decode(body_of(Hello({n.to_bytes(8): 1 for n in range(10_000)}, {}))).vector) == 10_000
    with pytest.raises(InvalidArgument, match="10,000"):
        Hello.decode((10_001).to_bytes(4))


@pytest.mark.parametrize(("limit", "max_bytes"), [(0, 1), (5_001, 1), (1, 0), (1, (16 << 20) + 1)])
def test_a_page_has_limits(limit: int, max_bytes: int) -> None:
    ((_, body),) = FrameReader().feed(Backfill(Hello({}, {}), limit, max_bytes).encode())
    with pytest.raises(InvalidArgument):
        Backfill.decode(body)


@pytest.mark.parametrize(
    "cursor",
    [b"x", b"x" * 15, b"x" * 17, b"s" * 8 + bytes(8), b"s" * 8 + b"\xff" * 8, b"s" * 8 + (MAX_SEQ + 1).to_bytes(8)],
    ids=["1 byte", "15 bytes", "17 bytes", "seq 0", "largest number", "seq over the largest"],
)
def test_a_cursor_is_one_that_a_page_gave_out(cursor: bytes) -> None:
    ((_, body),) = FrameReader().feed(Backfill(Hello({}, {}), cursor=cursor).encode())
    with pytest.raises(InvalidArgument, match="cursor"):
        Backfill.decode(body)
