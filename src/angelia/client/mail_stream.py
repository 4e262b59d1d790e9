"""Mail as it comes: one long answer of server-sent events, taken up again whenever it breaks off."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import httpx
import msgspec

from angelia.client.api_errors import ApiError, Unreachable
from angelia.client.exchange import BadAnswer, Request, Response, query
from angelia.client.mail_answers import Handed, MessageNews, PrekeysLow, RotationDue
from angelia.client.transport import Aside, Line, Send
from angelia.envelope import json_form
from angelia.envelope.refusals import Refused
from angelia.errors import AngeliaError, Stale, Unavailable

EVENT_STREAM = "text/event-stream"
PATH = "/v1/messages/stream"
# The server says something every 15 seconds; whoever has heard nothing for this long has lost it.
SILENCE = 45.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# An event holds one envelope in JSON; what goes on beyond that is no event.
MOST_BYTES = 2 * json_form.MAX_JSON
MOST_REFUSAL = 1 << 16

# What a stream says: mail in the agent's hands, what became of its own, keys that want replacing, keys that run out.
Event: TypeAlias = Handed | MessageNews | RotationDue | PrekeysLow


class _Message(msgspec.Struct):
    envelope: msgspec.Raw
    lease_token: str
    attempt: int


def is_passing(error: AngeliaError) -> bool:
    """Whether a fault is over some time, so that trying again is right. A proxy may answer for a server that restarts,
    and what it says cannot be read."""
    status = error.status if isinstance(error, ApiError) else 0
    return isinstance(error, Unreachable | Unavailable | Stale | BadAnswer) or status == 429 or status >= 500


@dataclass(slots=True)
class BackOff:
    """Ever longer pauses, until something goes well."""

    pause: float = 0.0

    def reset(self) -> None:
        self.pause = 0.0

    def next(self, at_least: float = 0.0) -> float:
        """How long to wait now; by chance up to twice as long, so that not everybody comes back at once."""
        self.pause = min(max(FIRST_PAUSE, 2 * self.pause), LONGEST_PAUSE)
        return max(self.pause, at_least) * (1 + secrets.randbelow(1000) / 1000)


class _Listening:
    """A stream that is taken up again and again, without input or output."""

    def __init__(self, line: Line, lease_seconds: int) -> None:
        self._line = line
        self._request = Request("GET", PATH, query(lease_seconds=lease_seconds), accept=EVENT_STREAM)
        self._back_off = BackOff()
        self._name = self._data = ""
        self._line_begun = b""
        self._asked_for = 0.0
        self.timeout = httpx.Timeout(line.timeout, read=SILENCE)

    def begin(self) -> Send:
        """The next attempt, signed."""
        self._name = self._data = ""
        self._line_begun = b""
        self._asked_for = 0.0
        return self._line.prepared(self._request, timeout=self._line.timeout)

    @staticmethod
    def is_stream(answer: httpx.Response) -> bool:
        """Whether what comes may be events; a captive portal's page is none."""
        kind = answer.headers.get("content-type", EVENT_STREAM)
        return answer.status_code == 200 and kind.partition(";")[0].strip().lower() == EVENT_STREAM

    def refused(self, answer: httpx.Response, body: bytes) -> None:
        """An answer that is no stream: raised if it would be repeated."""
        response = Response(self._request.method, PATH, answer.status_code, answer.headers, body)
        error = self._line.refusal(self._request, response)
        if not is_passing(error):
            raise error
        self._asked_for = float(error.retry_after or 0)

    def pause(self) -> float:
        return self._back_off.next(self._asked_for)

    def hear(self, chunk: bytes) -> Iterator[Event]:
        """The events that a piece of the stream completes."""
        *lines, self._line_begun = (self._line_begun + chunk).split(b"\n")
        if len(self._line_begun) + len(self._data) > MOST_BYTES:
            raise BadAnswer(f"an event of {PATH} does not end")
        for line in lines:
            event = self._heard(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _heard(self, line: str) -> Event | None:
        """An event when a line ends one; heartbeats are comments, and what a newer server says is left out."""
        if line.startswith("event:"):
            self._name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            self._data += line.removeprefix("data:").strip()
        elif not line:
            name, data, self._name, self._data = self._name, self._data, "", ""
            if name and data:
                self._back_off.reset()
                return _event(name, data)
        return None


async def events(
    line: Line,
    http: httpx.AsyncClient,
    aside: Aside,
    lease_seconds: int = 30,
    connected: Callable[[], None] | None = None,
) -> AsyncGenerator[Event, None]:
    """Every event, for as long as somebody listens. A refusal that would be repeated is raised.

    `connected` is called whenever the stream begins anew: something may have happened while nobody listened."""
    listening = _Listening(line, lease_seconds)
    while True:
        step = await aside(listening.begin)
        try:
            async with http.stream(step.method, step.url, headers=step.headers, timeout=listening.timeout) as answer:
                if not listening.is_stream(answer):
                    body = await anext(answer.aiter_bytes(MOST_REFUSAL), b"")
                    await aside(listening.refused, answer, body)
                else:
                    if connected is not None:
                        connected()
                    async for chunk in answer.aiter_bytes():
                        for event in listening.hear(chunk):
                            yield event
        except (httpx.RequestError, BadAnswer):
            pass  # broken off, never begun, or unreadable: the next try says it again
        await asyncio.sleep(listening.pause())


def blocking_events(line: Line, http: httpx.Client, lease_seconds: int = 30) -> Generator[Event, None, None]:
    """The same for whoever blocks until the next event."""
    listening = _Listening(line, lease_seconds)
    while True:
        step = listening.begin()
        try:
            with http.stream(step.method, step.url, headers=step.headers, timeout=listening.timeout) as answer:
                if not listening.is_stream(answer):
                    listening.refused(answer, next(answer.iter_bytes(MOST_REFUSAL), b""))
                else:
                    for chunk in answer.iter_bytes():
                        yield from listening.hear(chunk)
        except (httpx.RequestError, BadAnswer):
            pass
        time.sleep(listening.pause())


def _event(name: str, data: str) -> Event | None:
    try:
        match name:
            case "message":
                said = msgspec.json.decode(data, type=_Message)
                envelope = json_form.decode(bytes(said.envelope))
                return Handed(
                    wire=envelope.wire,
                    replay_key=envelope.replay_key,
                    lease_token=said.lease_token,
                    attempt=said.attempt,
                )
            case "receipt":
                return msgspec.json.decode(data, type=MessageNews)
            case "rotation_due":
                return msgspec.json.decode(data, type=RotationDue)
            case "prekeys_low":
                return msgspec.json.decode(data, type=PrekeysLow)
    except (msgspec.DecodeError, Refused) as error:
        raise BadAnswer(f"the event {name} of {PATH} cannot be read: {error}") from error
    return None
