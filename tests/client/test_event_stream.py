"""Streams of server-sent events: where one goes on after a break, and how long it waits before that."""

from __future__ import annotations

import pytest

from angelia.client.event_stream import EventStream
from angelia.client.exchange import BadAnswer, Request
from angelia.client.transport import Line


def read(name: str, data: str) -> str:
    if data == "garbled":
        raise BadAnswer("garbled")
    return f"{name}={data}"


@pytest.fixture
def stream() -> EventStream[str]:
    return EventStream(Line("http://x"), lambda last: Request("GET", f"/stream/{last}"), read)


def goes_on(stream: EventStream[str]) -> str:
    return stream.begin().url.removeprefix("http://x/stream/")


def test_a_block_with_an_id_alone_says_where_to_go_on(stream: EventStream[str]) -> None:
    assert goes_on(stream) == "None"
    assert list(stream.hear(b"id: 7\n")) == []
    assert goes_on(stream) == "None", "the block did not end"
    assert list(stream.hear(b"id: 7\n\n: heartbeat\n\n")) == []
    assert goes_on(stream) == "7"
    assert list(stream.hear(b"event: said\ndata: hello\nid: 8\n\nevent: said\ndata: again\n\n")) == [
        "said=hello",
        "said=again",
    ]
    assert goes_on(stream) == "8"


def test_an_event_that_cannot_be_read_is_asked_for_again_after_ever_longer_pauses(stream: EventStream[str]) -> None:
    pauses = []
    for _ in range(5):
        stream.begin()
        with pytest.raises(BadAnswer):
            list(stream.hear(b"id: 7\n\nevent: said\ndata: garbled\nid: 8\n\n"))
        pauses.append(stream.pause())
    assert goes_on(stream) == "7"
    assert pauses[-1] >= 8
    assert list(stream.hear(b"event: said\ndata: hello\nid: 8\n\n")) == ["said=hello"]
    assert stream.pause() <= 1
