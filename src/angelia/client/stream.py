"""Mail as it comes: one long answer of server-sent events, taken up again whenever it breaks off."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeAlias

import httpx
import msgspec

from angelia.client.attempts import Line
from angelia.client.faults import ApiError, fault
from angelia.client.mail_answers import Handed, MessageNews, PrekeysLow, RotationDue
from angelia.client.wire import BadAnswer, Request, Response, query
from angelia.envelope import jsonform
from angelia.envelope.refusals import Refused
from angelia.errors import Stale

EVENT_STREAM = "text/event-stream"
PATH = "/v1/messages/stream"
# The server says something every 15 seconds; whoever has heard nothing for this long has lost it.
SILENCE = 45.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
_PASSING = (429, 502, 503, 504)

# What a stream says: mail in the agent's hands, what became of its own, keys that want replacing, keys that run out.
Event: TypeAlias = Handed | MessageNews | RotationDue | PrekeysLow


class _Message(msgspec.Struct):
    envelope: msgspec.Raw
    lease_token: str
    attempt: int


async def events(line: Line, http: httpx.AsyncClient, lease_seconds: int = 30) -> AsyncGenerator[Event, None]:
    """Every event, for as long as somebody listens. A refusal that would be repeated is raised."""
    pause = FIRST_PAUSE
    request = Request("GET", PATH, query(lease_seconds=lease_seconds), accept=EVENT_STREAM)
    while True:
        step = line.prepared(request, timeout=line.timeout)
        timeout = httpx.Timeout(line.timeout, read=SILENCE)
        try:
            async with http.stream(step.method, step.url, headers=step.headers, timeout=timeout) as answer:
                if answer.status_code != 200:
                    body = await answer.aread()
                    refused = Response(step.method, PATH, answer.status_code, answer.headers, body)
                    raise fault(refused, now=line.clock())
                async for event in _parsed(answer):
                    pause = FIRST_PAUSE
                    yield event
        except httpx.RequestError:
            pass  # broken off, or never begun: the next try says it again
        except ApiError as error:
            if error.status not in _PASSING and not isinstance(error, Stale):
                raise
            pause = max(pause, float(error.retry_after or 0))
        await asyncio.sleep(pause * (1 + secrets.randbelow(1000) / 1000))
        pause = min(2 * pause, LONGEST_PAUSE)


async def _parsed(answer: httpx.Response) -> AsyncIterator[Event]:
    """The events of a stream; heartbeats are comments, and what a newer server says is left out."""
    name, data = "", ""
    async for line in answer.aiter_lines():
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data += line.removeprefix("data:").strip()
        elif not line:
            event = _event(name, data) if name and data else None
            name, data = "", ""
            if event is not None:
                yield event


def _event(name: str, data: str) -> Event | None:
    try:
        match name:
            case "message":
                said = msgspec.json.decode(data, type=_Message)
                envelope = jsonform.decode(bytes(said.envelope))
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
