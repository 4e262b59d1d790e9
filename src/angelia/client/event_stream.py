"""Server-sent events, from a stream that is opened again whenever it breaks off."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import httpx

from angelia.api import EVENT_STREAM
from angelia.client.api_errors import ApiError, Unreachable
from angelia.client.exchange import BadAnswer, Request, Response
from angelia.client.transport import Aside, Line, Send
from angelia.envelope import json_form
from angelia.errors import AngeliaError, Stale, Unavailable

E = TypeVar("E")

# The server sends a heartbeat every 15 seconds; a connection that is silent for this long is lost.
SILENCE = 45.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# An event holds one envelope in JSON at most; what goes on beyond that is no event.
MOST_BYTES = 2 * json_form.MAX_JSON
MOST_REFUSAL = 1 << 16


def is_passing(error: AngeliaError) -> bool:
    """Whether an error is temporary, so that a retry is right. A proxy may answer for a server that restarts, and its
    answer cannot be read."""
    status = error.status if isinstance(error, ApiError) else 0
    return isinstance(error, Unreachable | Unavailable | Stale | BadAnswer) or status == 429 or status >= 500


@dataclass(slots=True)
class BackOff:
    """Ever longer pauses between retries, until one succeeds."""

    pause: float = 0.0

    def reset(self) -> None:
        self.pause = 0.0

    def next(self, at_least: float = 0.0) -> float:
        """Seconds to wait now; at random up to twice as long, so that not all clients come back at once."""
        self.pause = min(max(FIRST_PAUSE, 2 * self.pause), LONGEST_PAUSE)
        return max(self.pause, at_least) * (1 + secrets.randbelow(1000) / 1000)


class EventStream(Generic[E]):
    """A stream that is opened again and again, without input or output. `request` makes the next request, given the id
    of the last block that had one; `read` makes an event of its name and data, None for those it does not know."""

    def __init__(
        self, line: Line, request: Callable[[str | None], Request], read: Callable[[str, str], E | None]
    ) -> None:
        self._line = line
        self._make_request = request
        self._read = read
        self._request = request(None)
        self._back_off = BackOff()
        self._last_id: str | None = None
        self._id: str | None = None
        self._name = self._data = ""
        self._line_begun = b""
        self._asked_for = 0.0
        self.timeout = httpx.Timeout(line.timeout, read=SILENCE)

    def begin(self) -> Send:
        """Returns the next attempt, signed."""
        self._id, self._name, self._data = None, "", ""
        self._line_begun = b""
        self._asked_for = 0.0
        self._request = self._make_request(self._last_id)
        return self._line.prepared(self._request, timeout=self._line.timeout)

    @staticmethod
    def is_stream(answer: httpx.Response) -> bool:
        """Whether an answer is a stream of events, and not a captive portal's page."""
        kind = answer.headers.get("content-type", EVENT_STREAM)
        return answer.status_code == 200 and kind.partition(";")[0].strip().lower() == EVENT_STREAM

    def refused(self, answer: httpx.Response, body: bytes) -> None:
        """Raises the error of an answer that is no stream, unless a retry is right."""
        request = self._request
        response = Response(request.method, request.path, answer.status_code, answer.headers, body)
        error = self._line.refusal(request, response)
        if not is_passing(error):
            raise error
        self._asked_for = float(error.retry_after or 0)

    def pause(self) -> float:
        return self._back_off.next(self._asked_for)

    def hear(self, chunk: bytes) -> Iterator[E]:
        """Yields the events that a piece of the stream completes."""
        *lines, self._line_begun = (self._line_begun + chunk).split(b"\n")
        if len(self._line_begun) + len(self._data) > MOST_BYTES:
            raise BadAnswer(f"an event of {self._request.path} does not end")
        for line in lines:
            event = self._heard(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _heard(self, line: str) -> E | None:
        """Returns the event that a line ends, if any; heartbeats are comments, and unknown events are left out."""
        if line.startswith("event:"):
            self._name = line.removeprefix("event:").strip()
        elif line.startswith("id:"):
            self._id = line.removeprefix("id:").strip()
        elif line.startswith("data:"):
            self._data += line.removeprefix("data:").strip()
        elif not line:
            return self._ended(self._name, self._data, self._id)
        return None

    def _ended(self, name: str, data: str, id_: str | None) -> E | None:
        """Returns the event of a block of lines, if it has one. A block with an id alone says where the stream is."""
        self._name, self._data, self._id = "", "", None
        event = None
        if name and data:
            event = self._read(name, data)
            self._back_off.reset()  # after it was read: an unreadable event that comes again is waited for ever longer
        self._last_id = id_ or self._last_id
        return event


async def events(
    stream: EventStream[E], http: httpx.AsyncClient, aside: Aside, connected: Callable[[], None] | None = None
) -> AsyncGenerator[E, None]:
    """Yields every event, until the generator is closed. Raises a refusal for which no retry is right.

    `connected` is called whenever the stream is opened: events may have been missed before."""
    while True:
        step = await aside(stream.begin)
        try:
            async with http.stream(**{**step.arguments, "timeout": stream.timeout}) as answer:
                if not stream.is_stream(answer):
                    body = await anext(answer.aiter_bytes(MOST_REFUSAL), b"")
                    await aside(stream.refused, answer, body)
                else:
                    if connected is not None:
                        connected()
                    async for chunk in answer.aiter_bytes():
                        for event in stream.hear(chunk):
                            yield event
        except (httpx.RequestError, BadAnswer):
            pass  # broken off, never begun, or unreadable: the next attempt brings it again
        await asyncio.sleep(stream.pause())


def blocking_events(stream: EventStream[E], http: httpx.Client) -> Generator[E, None, None]:
    """Does the same, blocking until the next event."""
    while True:
        step = stream.begin()
        try:
            with http.stream(**{**step.arguments, "timeout": stream.timeout}) as answer:
                if not stream.is_stream(answer):
                    stream.refused(answer, next(answer.iter_bytes(MOST_REFUSAL), b""))
                else:
                    for chunk in answer.iter_bytes():
                        yield from stream.hear(chunk)
        except (httpx.RequestError, BadAnswer):
            pass
        time.sleep(stream.pause())
