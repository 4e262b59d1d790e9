"""Channels over HTTP: their lives, who listens, and their keys."""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.api import Access, Answer, Call, PageSize, Per, Route, Rule, cursor_after, parse_cursor, uuid_of
from angelia.api.route import declared
from angelia.channels.epochs import Epochs
from angelia.channels.model import (
    MESSAGE_BYTES,
    RETENTION,
    SUBSCRIBERS,
    Channel,
    Epoch,
    Listed,
    Policy,
    Shown,
    Subscriber,
    Subscription,
)
from angelia.channels.service import Channels
from angelia.envelope.rosters import RosterDocument, parse_roster
from angelia.errors import InvalidArgument

WRITE = Rule("channels", 120, 60_000, Per.AGENT)
PUBLISH = Rule("publish", 1_200, 60_000, Per.AGENT)
ROSTER_BODY = 4 << 20  # ten thousand of the longest handles, and their rights

Name = Annotated[str, msgspec.Meta(max_length=255)]
Handles = Annotated[list[Name], msgspec.Meta(max_length=100)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_EPOCH = re.compile(r"[1-9][0-9]{0,14}")


class NewChannel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel to make. Who is in `allowlist_nhis` may subscribe. With a `roster`, which names the channel's id, its
    members are listed instead."""

    channel_name: Name
    policy: Policy
    allowlist_nhis: Handles = []
    retention_seconds: int = RETENTION
    max_message_size_bytes: int = MESSAGE_BYTES
    max_subscribers: int = SUBSCRIBERS
    roster: RosterDocument | None = None


class ChannelChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to change; what is left out stays. A policy, also the same one, checks every subscriber again."""

    policy: Policy | None = None
    retention_seconds: int | None = None
    max_message_size_bytes: int | None = None
    max_subscribers: int | None = None


class ChannelQuery(msgspec.Struct, frozen=True):
    """`owner` and `name` find one channel; `subscribed` lists those that the caller listens to."""

    owner: Name | None = None
    name: Name | None = None
    subscribed: bool = False
    limit: PageSize = 50
    cursor: str | None = None


class ChannelList(msgspec.Struct, frozen=True):
    """A page of channels, oldest first; it may have fewer than were asked for and still have a next one."""

    channels: list[Channel]
    next: str | None


class Rights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody on the allowlist may do."""

    may_subscribe: bool = True
    may_publish: bool = False


class NamesQuery(msgspec.Struct, frozen=True):
    """`cursor` is the `next` of the page before."""

    limit: PageSize = 100
    cursor: Name = ""


class Allowlist(msgspec.Struct, frozen=True):
    """A page of who is listed, by name."""

    allowlist: list[Listed]
    next: str | None


class SubscribeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`needs_key` says that the subscriber has lost the channel's key; it counts once an hour."""

    needs_key: bool = False


class EpochBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The channel's next key: the epoch after the present one, and the id of the key."""

    epoch: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    epoch_key_id: UUID


class KeysSentBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """To whom the key of an epoch was sent."""

    epoch: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    subscribers: Annotated[list[Name], msgspec.Meta(max_length=1000)]


class KeysSent(msgspec.Struct, frozen=True):
    """For how many of them that is new, and counts."""

    noted: int


class KeyTakenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The present epoch, whose key the caller has; 0 says that it has none, which counts once an hour."""

    epoch: Number


class SubscribersQuery(msgspec.Struct, frozen=True):
    """`without_key` leaves out those to whom the present key was sent, and has those too who only publish."""

    without_key: bool = False
    limit: PageSize = 100
    cursor: Name = ""


class Subscribers(msgspec.Struct, frozen=True):
    """A page of subscribers, by name."""

    subscribers: list[Subscriber]
    next: str | None


class Publisher(msgspec.Struct, frozen=True):
    """Whether the channel's key may come from an agent: its owner, or who may publish."""

    nhi: str
    may_give_key: bool


def routes(channels: Channels, epochs: Epochs) -> list[Route]:
    return [*_channel_routes(channels), *_subscription_routes(channels), *_key_routes(epochs)]


def _channel_routes(channels: Channels) -> list[Route]:
    async def create(call: Call) -> Answer:
        body = call.json(NewChannel)
        made = await channels.create(
            call.agent,
            body.channel_name,
            body.policy,
            call.now,
            allowlist=body.allowlist_nhis,
            retention_seconds=body.retention_seconds,
            max_message_size_bytes=body.max_message_size_bytes,
            max_subscribers=body.max_subscribers,
            roster=None if body.roster is None else parse_roster(body.roster),
        )
        return Answer(201, made)

    async def list_channels(call: Call) -> Answer:
        query = call.query(ChannelQuery)
        found, next_page = await channels.page(
            call.agent,
            parse_cursor(query.cursor),
            query.limit,
            call.now,
            owner=query.owner,
            name=query.name,
            subscribed=query.subscribed,
        )
        following = None if next_page is None else cursor_after(*next_page)
        return Answer(body=ChannelList(found, following))

    async def show(call: Call) -> Answer:
        return Answer(body=await channels.show(call.agent, named_channel(call), call.now))

    async def change(call: Call) -> Answer:
        body = call.json(ChannelChange)
        changed = await channels.update(
            call.agent,
            named_channel(call),
            call.now,
            policy=body.policy,
            retention_seconds=body.retention_seconds,
            max_message_size_bytes=body.max_message_size_bytes,
            max_subscribers=body.max_subscribers,
        )
        return Answer(body=changed)

    async def delete(call: Call) -> Answer:
        await channels.delete(call.agent, named_channel(call), call.now)
        return Answer(204)

    async def list_allowed(call: Call) -> Answer:
        query = call.query(NamesQuery)
        found = await channels.allowlist(call.agent, named_channel(call), query.cursor, query.limit + 1, call.now)
        shown = found[: query.limit]
        return Answer(body=Allowlist(shown, shown[-1].nhi if len(found) > query.limit else None))

    async def allow(call: Call) -> Answer:
        rights = call.json(Rights) if call.body else Rights()
        entry = await channels.allow(
            call.agent,
            named_channel(call),
            call.path("agent"),
            call.now,
            may_subscribe=rights.may_subscribe,
            may_publish=rights.may_publish,
        )
        return Answer(body=entry)

    async def disallow(call: Call) -> Answer:
        await channels.disallow(call.agent, named_channel(call), call.path("agent"), call.now)
        return Answer(204)

    return [
        declared(
            "POST", "/v1/channels", create, Access.AGENT, "Make a channel",
            {201: Channel}, takes=NewChannel, rule=WRITE, body_limit=ROSTER_BODY,
        ),
        declared(
            "GET", "/v1/channels", list_channels, Access.AGENT, "The channels that the caller may know of",
            {200: ChannelList}, query=ChannelQuery,
        ),
        declared("GET", "/v1/channels/{channel}", show, Access.AGENT, "One channel", {200: Shown}),
        declared(
            "PATCH", "/v1/channels/{channel}", change, Access.AGENT, "Change a channel; for its owner",
            {200: Shown}, takes=ChannelChange, rule=WRITE,
        ),
        declared(
            "DELETE", "/v1/channels/{channel}", delete, Access.AGENT, "Delete a channel and all in it; for its owner",
            {204: None}, rule=WRITE,
        ),
        declared(
            "GET", "/v1/channels/{channel}/allowlist", list_allowed, Access.AGENT,
            "Whom a channel lists; for its owner", {200: Allowlist}, query=NamesQuery,
        ),
        declared(
            "PUT", "/v1/channels/{channel}/allowlist/{agent}", allow, Access.AGENT,
            "List an agent, or change what it may; for the owner of a channel without a roster",
            {200: Listed}, takes=Rights, rule=WRITE,
        ),
        declared(
            "DELETE", "/v1/channels/{channel}/allowlist/{agent}", disallow, Access.AGENT,
            "Take an agent off the allowlist; for the owner of a channel without a roster", {204: None}, rule=WRITE,
        ),
    ]  # fmt: skip


def _subscription_routes(channels: Channels) -> list[Route]:
    async def subscribe(call: Call) -> Answer:
        body = call.json(SubscribeBody) if call.body else SubscribeBody()
        held, new = await channels.subscribe(call.agent, named_channel(call), call.now, needs_key=body.needs_key)
        return Answer(201 if new else 200, held)

    async def unsubscribe(call: Call) -> Answer:
        return Answer(body=await channels.unsubscribe(call.agent, named_channel(call), call.now))

    async def pause(call: Call) -> Answer:
        return Answer(body=await channels.pause(call.agent, named_channel(call), call.now))

    async def resume(call: Call) -> Answer:
        return Answer(body=await channels.resume(call.agent, named_channel(call), call.now))

    return [
        declared(
            "POST", "/v1/channels/{channel}/subscribe", subscribe, Access.AGENT, "Listen to a channel from now on",
            {201: Subscription, 200: Subscription}, takes=SubscribeBody, rule=WRITE,
        ),
        declared(
            "POST", "/v1/channels/{channel}/unsubscribe", unsubscribe, Access.AGENT, "Listen no more",
            {200: Subscription}, rule=WRITE,
        ),
        declared(
            "POST", "/v1/channels/{channel}/pause", pause, Access.AGENT, "Keep the offset and read nothing",
            {200: Subscription}, rule=WRITE,
        ),
        declared(
            "POST", "/v1/channels/{channel}/resume", resume, Access.AGENT, "Go on after a pause",
            {200: Subscription}, rule=WRITE,
        ),
    ]  # fmt: skip


def _key_routes(epochs: Epochs) -> list[Route]:
    async def set_epoch(call: Call) -> Answer:
        body = call.json(EpochBody)
        changed = await epochs.set_epoch(call.agent, named_channel(call), body.epoch, body.epoch_key_id, call.now)
        return Answer(body=changed)

    async def keys_sent(call: Call) -> Answer:
        body = call.json(KeysSentBody)
        noted = await epochs.keys_sent(call.agent, named_channel(call), body.epoch, body.subscribers, call.now)
        return Answer(body=KeysSent(noted))

    async def key_taken(call: Call) -> Answer:
        epoch = call.json(KeyTakenBody).epoch
        return Answer(body=await epochs.key_taken(call.agent, named_channel(call), epoch, call.now))

    async def epoch(call: Call) -> Answer:
        number = _epoch_number(call.path("epoch"))
        return Answer(body=await epochs.epoch(call.agent, named_channel(call), number, call.now))

    async def subscribers(call: Call) -> Answer:
        query = call.query(SubscribersQuery)
        found, following = await epochs.subscribers(
            call.agent, named_channel(call), query.cursor, query.limit, call.now, without_key=query.without_key
        )
        shown = [
            Subscriber(
                subscriber_nhi=one.subscriber_nhi,
                status=one.status.value,
                key_epoch=one.key_epoch,
                created_at=one.created_at,
            )
            for one in found
        ]
        return Answer(body=Subscribers(shown, following))

    async def publisher(call: Call) -> Answer:
        told = await epochs.may_give_key(call.agent, named_channel(call), call.path("agent"), call.now)
        return Answer(body=Publisher(*told))

    return [
        declared(
            "POST", "/v1/channels/{channel}/epoch", set_epoch, Access.AGENT, "Name the channel's next key",
            {200: Channel}, takes=EpochBody, rule=WRITE,
        ),
        declared(
            "POST", "/v1/channels/{channel}/keys", keys_sent, Access.AGENT, "Say to whom the present key was sent",
            {200: KeysSent}, takes=KeysSentBody, rule=PUBLISH,
        ),
        declared(
            "POST", "/v1/channels/{channel}/key", key_taken, Access.AGENT, "Say that the caller has the key, or none",
            {200: Subscription}, takes=KeyTakenBody, rule=WRITE,
        ),
        declared(
            "GET", "/v1/channels/{channel}/epochs/{epoch}", epoch, Access.AGENT, "Which key a channel had in an epoch",
            {200: Epoch},
        ),
        declared(
            "GET", "/v1/channels/{channel}/subscribers", subscribers, Access.AGENT,
            "Who listens; for those who give out the key", {200: Subscribers}, query=SubscribersQuery,
        ),
        declared(
            "GET", "/v1/channels/{channel}/publishers/{agent}", publisher, Access.AGENT,
            "Whether the channel's key may come from an agent", {200: Publisher},
        ),
    ]  # fmt: skip


def named_channel(call: Call) -> UUID:
    return uuid_of(call.path("channel"), "a channel id is a UUID in lower case")


def _epoch_number(text: str) -> int:
    if _EPOCH.fullmatch(text) is None:
        raise InvalidArgument("an epoch is a whole number from 1 on", hint="the channel tells its present one")
    return int(text)
