"""Messages of channels over HTTP: publish, read, follow, commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

import msgspec

from angelia.api import EVENT_STREAM, HEARTBEAT, HEARTBEAT_SECONDS, JSON, Access, Answer, Call, Per, Route, Rule, sse
from angelia.api.route import declared
from angelia.channels.model import (
    Published,
    Reading,
    Stored,
    Subscription,
)
from angelia.channels.publishing import Publishing
from angelia.channels.reading import Readers, Wanted
from angelia.channels.routes import PUBLISH, Number, named_channel
from angelia.envelope import json_form, media_type, wire
from angelia.envelope.wire import MAX_ENVELOPE
from angelia.errors import AngeliaError, TooLarge

COMMIT = Rule("channel_commits", 1_200, 60_000, Per.AGENT)
BODY_LIMIT = json_form.MAX_JSON
_STREAM_PAGE = 20


class CommitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offset: Number


class MessagesQuery(msgspec.Struct, frozen=True):
    """Without `after_offset`, after what was committed."""

    after_offset: Number | None = None
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    wait_timeout_seconds: Annotated[int, msgspec.Meta(ge=0, le=30)] = 0


class StreamQuery(msgspec.Struct, frozen=True):
    """Without `after_offset`, after what was committed."""

    after_offset: Number | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a channel; `envelope` is the JSON form of a sealed envelope."""

    offset: int
    replay_key: str
    accepted_at: datetime
    expires_at: datetime
    envelope: dict[str, Any]


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in their order; offsets whose messages have expired are left out. `roster_version` is the channel's, so
    that a reader knows when to look at its roster again."""

    messages: list[Message]
    first_offset: int
    next_offset: int
    has_more: bool
    roster_version: int


class EnvelopeBody(msgspec.Struct, frozen=True):
    """The JSON form of a sealed envelope of suite 4; its members are those of the envelope format."""


class StreamError(msgspec.Struct, frozen=True):
    """Why a stream ends."""

    code: str
    title: str


def routes(publishing: Publishing, readers: Readers, ttl_max: int) -> list[Route]:
    async def publish(call: Call) -> Answer:
        channel_id, content_type = named_channel(call), call.headers.get("content-type", "")
        if media_type.is_binary(content_type) and len(call.body) > MAX_ENVELOPE:
            raise TooLarge(f"an envelope has at most {MAX_ENVELOPE:,} bytes", hint="publish it in parts")
        envelope = media_type.read(content_type, call.body, ttl_max)
        placed = await publishing.publish(call.agent, channel_id, envelope, call.now)
        return Answer(201 if placed.new else 200, placed.published)

    async def read(call: Call) -> Answer:
        query = call.query(MessagesQuery)
        wanted = Wanted(named_channel(call), query.after_offset, query.max_messages)
        found = await readers.read(call.agent, wanted, call.now, query.wait_timeout_seconds)
        return Answer(body=_messages(found), headers={"cache-control": "no-store"})

    async def stream(call: Call) -> Answer:
        wanted = Wanted(named_channel(call), call.query(StreamQuery).after_offset, _STREAM_PAGE)
        coming = readers.follow(call.agent, wanted, call.now, HEARTBEAT_SECONDS)
        first = await anext(coming, None)
        return Answer(content_type=EVENT_STREAM, stream=_events(first, coming))

    async def commit(call: Call) -> Answer:
        offset = call.json(CommitBody).offset
        return Answer(body=await readers.commit(call.agent, named_channel(call), offset, call.now))

    return [
        declared(
            "POST", "/v1/channels/{channel}/publish", publish, Access.AGENT, "Publish a sealed message",
            {201: Published, 200: Published}, takes=EnvelopeBody, rule=PUBLISH, body_limit=BODY_LIMIT,
            reads=(JSON, media_type.MEDIA_TYPE),
        ),
        declared(
            "GET", "/v1/channels/{channel}/messages", read, Access.AGENT, "The next messages, or the first that come",
            {200: Messages}, query=MessagesQuery, waits=True,
        ),
        declared(
            "GET", "/v1/channels/{channel}/stream", stream, Access.AGENT, "Messages as server-sent events",
            {200: EVENT_STREAM}, query=StreamQuery, waits=True,
        ),
        declared(
            "POST", "/v1/channels/{channel}/commit", commit, Access.AGENT, "Be done with messages up to an offset",
            {200: Subscription}, takes=CommitBody, rule=COMMIT,
        ),
    ]  # fmt: skip


async def _events(first: Reading | None, coming: AsyncIterator[Reading | None]) -> AsyncIterator[bytes]:
    try:
        yield _page(first)
        async for found in coming:
            yield _page(found)
    except AngeliaError as error:
        # The answer has begun, so this is the way to say that the reader may not go on.
        yield sse("error", msgspec.json.encode(StreamError(error.code, error.message)))
    finally:
        await coming.aclose()  # type: ignore[attr-defined]


def _page(found: Reading | None) -> bytes:
    if found is None:
        return HEARTBEAT
    return b"".join(sse("message", msgspec.json.encode(_message(one)), str(one.offset)) for one in found.messages)


def _messages(found: Reading) -> Messages:
    return Messages(
        messages=[_message(one) for one in found.messages],
        first_offset=found.first_offset,
        next_offset=found.next_offset,
        has_more=found.has_more,
        roster_version=found.roster_version,
    )


def _message(one: Stored) -> Message:
    return Message(
        offset=one.offset,
        replay_key=one.replay_key.hex(),
        accepted_at=one.accepted_at,
        expires_at=one.expires_at,
        envelope=json_form.to_fields(wire.decode(one.wire)),
    )
