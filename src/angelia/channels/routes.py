"""Channels over HTTP: binds the operations to the services, and shapes the answers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.api import EVENT_STREAM, HEARTBEAT, HEARTBEAT_SECONDS, AgentRow, Answer, Call, Handler, Route, sse, uuid_of
from angelia.channels import api
from angelia.channels.epochs import Epochs
from angelia.channels.model import ReadResult, StoredChannelMessage
from angelia.channels.publishing import Publishing
from angelia.channels.reading import Readers
from angelia.channels.rosters import Rosters
from angelia.channels.service import Channels
from angelia.envelope import json_form, media_type, wire
from angelia.envelope.rosters import RosterDocument, parse_roster, roster_document
from angelia.envelope.wire import MAX_ENVELOPE
from angelia.errors import AngeliaError, InvalidArgument, TooLarge

_EPOCH = re.compile(r"[1-9][0-9]{0,14}")


def routes(
    channels: Channels, epochs: Epochs, rosters: Rosters, publishing: Publishing, readers: Readers, ttl_max: int
) -> list[Route]:
    return [
        *_channel_routes(channels),
        *_roster_routes(rosters),
        *_key_routes(epochs),
        *_message_routes(publishing, readers, ttl_max),
    ]


def _channel_routes(channels: Channels) -> list[Route]:
    async def create(call: Call) -> Answer:
        return Answer(201, await channels.create(call.agent, call.json(api.NewChannel), call.now))

    async def list_channels(call: Call) -> Answer:
        page = await channels.page(call.agent, call.query(api.ChannelQuery), call.now)
        return Answer(body=api.ChannelList(*page))

    async def update(call: Call) -> Answer:
        change = call.json(api.ChannelChange)
        return Answer(body=await channels.update(call.agent, _channel_id(call), change, call.now))

    async def delete(call: Call) -> Answer:
        await channels.delete(call.agent, _channel_id(call), call.now)
        return Answer(204)

    async def list_allowed(call: Call) -> Answer:
        query = call.query(api.NamePageQuery)
        found = await channels.allowlist(call.agent, _channel_id(call), query.cursor, query.and_one_more, call.now)
        return Answer(body=api.AllowlistPage(*query.cut(found, lambda entry: entry.nhi)))

    async def allow(call: Call) -> Answer:
        rights = call.json(api.AllowlistRights) if call.body else api.AllowlistRights()
        return Answer(body=await channels.allow(call.agent, _channel_id(call), call.path("agent"), rights, call.now))

    async def disallow(call: Call) -> Answer:
        await channels.disallow(call.agent, _channel_id(call), call.path("agent"), call.now)
        return Answer(204)

    async def subscribe(call: Call) -> Answer:
        body = call.json(api.SubscribeBody) if call.body else api.SubscribeBody()
        held, new = await channels.subscribe(call.agent, _channel_id(call), call.now, needs_key=body.needs_key)
        return Answer(201 if new else 200, held)

    return [
        Route(api.CREATE, create),
        Route(api.LIST, list_channels),
        Route(api.SHOW, _answered(channels.show)),
        Route(api.UPDATE, update),
        Route(api.DELETE, delete),
        Route(api.LIST_ALLOWED, list_allowed),
        Route(api.ALLOW, allow),
        Route(api.DISALLOW, disallow),
        Route(api.SUBSCRIBE, subscribe),
        Route(api.UNSUBSCRIBE, _answered(channels.unsubscribe)),
        Route(api.PAUSE, _answered(channels.pause)),
        Route(api.RESUME, _answered(channels.resume)),
    ]


def _answered(act: Callable[[AgentRow, UUID, datetime], Awaitable[msgspec.Struct]]) -> Handler:
    """The handler of an operation that takes a channel and nothing else."""

    async def handler(call: Call) -> Answer:
        return Answer(body=await act(call.agent, _channel_id(call), call.now))

    return handler


def _roster_routes(rosters: Rosters) -> list[Route]:
    async def show(call: Call) -> Answer:
        return Answer(body=roster_document(await rosters.roster(call.agent, _channel_id(call), call.now)))

    async def put(call: Call) -> Answer:
        channel_id, roster = _channel_id(call), parse_roster(call.json(RosterDocument))
        return Answer(body=await rosters.put(call.agent, channel_id, roster, call.now))

    return [Route(api.SHOW_ROSTER, show), Route(api.PUT_ROSTER, put)]


def _key_routes(epochs: Epochs) -> list[Route]:
    async def set_epoch(call: Call) -> Answer:
        body = call.json(api.EpochBody)
        changed = await epochs.set_epoch(call.agent, _channel_id(call), body.epoch, body.epoch_key_id, call.now)
        return Answer(body=changed)

    async def keys_sent(call: Call) -> Answer:
        body = call.json(api.KeysSentBody)
        noted = await epochs.keys_sent(call.agent, _channel_id(call), body.epoch, body.subscribers, call.now)
        return Answer(body=api.KeysSent(noted))

    async def key_taken(call: Call) -> Answer:
        epoch = call.json(api.KeyTakenBody).epoch
        return Answer(body=await epochs.key_taken(call.agent, _channel_id(call), epoch, call.now))

    async def epoch(call: Call) -> Answer:
        number = _epoch_number(call.path("epoch"))
        return Answer(body=await epochs.epoch(call.agent, _channel_id(call), number, call.now))

    async def subscribers(call: Call) -> Answer:
        query = call.query(api.SubscribersQuery)
        found, following = await epochs.subscribers(call.agent, _channel_id(call), query, call.now)
        shown = [msgspec.convert(one, api.Subscriber, from_attributes=True) for one in found]
        return Answer(body=api.SubscriberList(shown, following))

    async def key_giver(call: Call) -> Answer:
        told = await epochs.may_give_key(call.agent, _channel_id(call), call.path("agent"), call.now)
        return Answer(body=api.KeyGiver(*told))

    return [
        Route(api.SET_EPOCH, set_epoch),
        Route(api.KEYS_SENT, keys_sent),
        Route(api.KEY_TAKEN, key_taken),
        Route(api.SHOW_EPOCH, epoch),
        Route(api.LIST_SUBSCRIBERS, subscribers),
        Route(api.SHOW_KEY_GIVER, key_giver),
    ]


def _message_routes(publishing: Publishing, readers: Readers, ttl_max: int) -> list[Route]:
    async def publish(call: Call) -> Answer:
        channel_id, content_type = _channel_id(call), call.headers.get("content-type", "")
        if media_type.is_binary(content_type) and len(call.body) > MAX_ENVELOPE:
            raise TooLarge(f"an envelope has at most {MAX_ENVELOPE:,} bytes", hint="publish it in parts")
        envelope = media_type.read(content_type, call.body, ttl_max)
        published, new = await publishing.publish(call.agent, channel_id, envelope, call.now)
        return Answer(201 if new else 200, published)

    async def read(call: Call) -> Answer:
        query = call.query(api.ChannelReadQuery)
        found = await readers.read(call.agent, _channel_id(call), query, call.now)
        page = api.ChannelMessagePage(
            messages=[_message(one) for one in found.messages],
            first_offset=found.first_offset,
            next_offset=found.next_offset,
            has_more=found.has_more,
            roster_version=found.roster_version,
        )
        return Answer(body=page, headers={"cache-control": "no-store"})

    async def stream(call: Call) -> Answer:
        after = call.query(api.ChannelStreamQuery).after_offset
        coming = readers.follow(call.agent, _channel_id(call), after, call.now, HEARTBEAT_SECONDS)
        first = await anext(coming, None)  # what is wrong from the beginning is an error answer, and no stream
        return Answer(content_type=EVENT_STREAM, stream=_events(first, coming))

    async def commit(call: Call) -> Answer:
        offset = call.json(api.CommitBody).offset
        return Answer(body=await readers.commit(call.agent, _channel_id(call), offset, call.now))

    return [
        Route(api.PUBLISH, publish),
        Route(api.READ, read),
        Route(api.STREAM, stream),
        Route(api.COMMIT, commit),
    ]


async def _events(first: ReadResult | None, coming: AsyncGenerator[ReadResult | None, None]) -> AsyncIterator[bytes]:
    async with aclosing(coming):
        try:
            yield _lines(first)
            async for found in coming:
                yield _lines(found)
        except AngeliaError as error:
            # The answer has begun, so an event is the only way to say that the reader may not go on.
            yield sse("error", msgspec.json.encode({"code": error.code, "title": error.message}))


def _lines(found: ReadResult | None) -> bytes:
    """The messages as events; a heartbeat where there are none."""
    if found is None:
        return HEARTBEAT
    return b"".join(sse("message", msgspec.json.encode(_message(one)), str(one.offset)) for one in found.messages)


def _message(one: StoredChannelMessage) -> api.SealedChannelMessage:
    return api.SealedChannelMessage(
        offset=one.offset,
        replay_key=one.replay_key.hex(),
        accepted_at=one.accepted_at,
        expires_at=one.expires_at,
        envelope=json_form.to_fields(wire.decode(one.wire)),
    )


def _channel_id(call: Call) -> UUID:
    return uuid_of(call.path("channel"), "a channel id is a UUID in lower case")


def _epoch_number(text: str) -> int:
    if _EPOCH.fullmatch(text) is None:
        raise InvalidArgument("an epoch is a whole number from 1 on", hint="the channel tells its present one")
    return int(text)
