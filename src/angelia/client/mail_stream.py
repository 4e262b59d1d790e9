"""Mail as it comes: a stream of server-sent events, opened again whenever it breaks off."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import httpx
import msgspec

from angelia.api import EVENT_STREAM
from angelia.client.api_errors import ApiError, Unreachable
from angelia.client.exchange import BadAnswer, Response
from angelia.client.mail_calls import LeasedMessage
from angelia.client.operation_requests import request_for
from angelia.client.transport import Aside, Line, Send
from angelia.envelope import json_form
from angelia.envelope.refusals import Refused
from angelia.errors import AngeliaError, Stale, Unavailable
from angelia.mail import api
from angelia.mail.api import LeasedDocument
from angelia.mail.model import DeliveryEvent

PATH = api.STREAM.path
# The server sends a heartbeat every 15 seconds; a connection that is silent for this long is lost.
SILENCE = 45.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# An event holds one envelope in JSON; what goes on beyond that is no event.
MOST_BYTES = 2 * json_form.MAX_JSON
MOST_REFUSAL = 1 << 16


class RotationDue(msgspec.Struct, frozen=True, kw_only=True):
    """The event that a rotation schedule asks for new keys."""

    peer: str
    session_id: UUID
    due_since: datetime


class PrekeysLow(msgspec.Struct, frozen=True, kw_only=True):
    """The event that few one-time keys are left."""

    count: int


# What a stream brings: leased mail, what became of sent mail, keys that want replacing, keys that run out.
Event: TypeAlias = LeasedMessage | DeliveryEvent | RotationDue | PrekeysLow
_EVENTS = {"receipt": DeliveryEvent, "rotation_due": RotationDue, "prekeys_low": PrekeysLow}


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


class _Listening:
    """A stream that is opened again and again, without input or output."""

    def __init__(self, line: Line, lease_seconds: int) -> None:
        self._line = line
        query = api.MailStreamQuery(lease_seconds)
        self._request = request_for(api.STREAM, query=query, accept=EVENT_STREAM)
        self._back_off = BackOff()
        self._name = self._data = ""
        self._line_begun = b""
        self._asked_for = 0.0
        self.timeout = httpx.Timeout(line.timeout, read=SILENCE)

    def begin(self) -> Send:
        """Returns the next attempt, signed."""
        self._name = self._data = ""
        self._line_begun = b""
        self._asked_for = 0.0
        return self._line.prepared(self._request, timeout=self._line.timeout)

    @staticmethod
    def is_stream(answer: httpx.Response) -> bool:
        """Whether an answer is a stream of events, and not a captive portal's page."""
        kind = answer.headers.get("content-type", EVENT_STREAM)
        return answer.status_code == 200 and kind.partition(";")[0].strip().lower() == EVENT_STREAM

    def refused(self, answer: httpx.Response, body: bytes) -> None:
        """Raises the error of an answer that is no stream, unless a retry is right."""
        response = Response(self._request.method, PATH, answer.status_code, answer.headers, body)
        error = self._line.refusal(self._request, response)
        if not is_passing(error):
            raise error
        self._asked_for = float(error.retry_after or 0)

    def pause(self) -> float:
        return self._back_off.next(self._asked_for)

    def hear(self, chunk: bytes) -> Iterator[Event]:
        """Yields the events that a piece of the stream completes."""
        *lines, self._line_begun = (self._line_begun + chunk).split(b"\n")
        if len(self._line_begun) + len(self._data) > MOST_BYTES:
            raise BadAnswer(f"an event of {PATH} does not end")
        for line in lines:
            event = self._heard(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _heard(self, line: str) -> Event | None:
        """Returns the event that a line ends, if any; heartbeats are comments, and unknown events are left out."""
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
    """Yields every event, until the generator is closed. Raises a refusal for which no retry is right.

    `connected` is called whenever the stream is opened: events may have been missed before."""
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
            pass  # broken off, never begun, or unreadable: the next attempt brings it again
        await asyncio.sleep(listening.pause())


def blocking_events(line: Line, http: httpx.Client, lease_seconds: int = 30) -> Generator[Event, None, None]:
    """Does the same, blocking until the next event."""
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
        if name == "message":
            leased = msgspec.json.decode(data, type=LeasedDocument)
            return LeasedMessage.of(json_form.decode(bytes(leased.envelope)), leased.lease_token, leased.attempt)
        kind = _EVENTS.get(name)
        return None if kind is None else msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, Refused) as error:
        raise BadAnswer(f"the event {name} of {PATH} cannot be read: {error}") from error
