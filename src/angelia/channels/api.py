"""The operations on channels: their lives, subscriptions, keys, rosters and messages."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from angelia.api import EVENT_STREAM, JSON, NOTHING, Access, Operation, PageQuery, PageSize, Per, Rule
from angelia.channels.model import (
    MESSAGE_BYTES,
    RETENTION,
    SUBSCRIBERS,
    AllowlistEntry,
    Channel,
    ChannelPolicy,
    ChannelView,
    Epoch,
    PublishedMessage,
    Subscription,
    SubscriptionStatus,
)
from angelia.envelope.json_form import MAX_JSON
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.rosters import RosterDocument

TAG = "channels"
WRITE_RULE = Rule("channels", 120, 60_000, Per.AGENT)
PUBLISH_RULE = Rule("publish", 1_200, 60_000, Per.AGENT)
COMMIT_RULE = Rule("channel_commits", 1_200, 60_000, Per.AGENT)
ROSTER_BODY = 4 << 20  # ten thousand of the longest handles, and their rights

Name = Annotated[str, Meta(max_length=255)]
Handles = Annotated[list[Name], Meta(max_length=100)]
Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
EpochNumber = Annotated[int, Meta(ge=1, lt=1 << 53)]
AfterOffset = Annotated[Number, Meta(description="Messages after this offset; left out, after the committed one")]
NameCursor = Annotated[Name, Meta(description="Where to go on: the `next` of the page before, which is a name")]


class NewChannel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel to create. Agents in `allowlist_nhis` may subscribe. A `roster` fixes the channel's id, and its members
    are the allowlist instead."""

    channel_name: Name
    policy: ChannelPolicy
    allowlist_nhis: Handles = []
    retention_seconds: int = RETENTION
    max_message_size_bytes: int = MESSAGE_BYTES
    max_subscribers: int = SUBSCRIBERS
    roster: RosterDocument | None = None


class ChannelChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to change; what is left out stays. A policy, also the present one, checks every subscriber again."""

    policy: ChannelPolicy | None = None
    retention_seconds: int | None = None
    max_message_size_bytes: int | None = None
    max_subscribers: int | None = None


class ChannelQuery(PageQuery, frozen=True, kw_only=True):
    """`owner` and `name` find one channel; `subscribed` lists those that the caller listens to."""

    owner: Annotated[Name, Meta(description="Only channels of this owner, named by its handle")] | None = None
    name: Annotated[Name, Meta(description="Only channels of this name, without the owner")] | None = None
    subscribed: Annotated[bool, Meta(description="Only channels that the caller is subscribed to")] = False


class ChannelList(msgspec.Struct, frozen=True):
    """A page of channels, oldest first; it may have fewer than were asked for and still have a next one."""

    channels: list[Channel]
    next: str | None


class AllowlistRights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent on the allowlist may do."""

    may_subscribe: bool = True
    may_publish: bool = False


class NamePageQuery(PageQuery, frozen=True, kw_only=True):
    """A page of a list that is ordered by name."""

    limit: PageSize = 100
    cursor: NameCursor = ""


class AllowlistPage(msgspec.Struct, frozen=True):
    """A page of a channel's allowlist, by name."""

    allowlist: list[AllowlistEntry]
    next: str | None


class SubscribeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`needs_key` says that the subscriber has lost the channel's key; it counts once an hour."""

    needs_key: bool = False


class EpochBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The channel's next key: the epoch after the present one, and the id of the key."""

    epoch: EpochNumber
    epoch_key_id: UUID


class KeysSentBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agents to which the key of an epoch was sent."""

    epoch: EpochNumber
    subscribers: Annotated[list[Name], Meta(max_length=1000)]


class KeysSent(msgspec.Struct, frozen=True):
    """How many of the agents count as provided with the key from now on, and did not before."""

    noted: int


class KeyTakenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The present epoch, whose key the caller has; 0 says that it has none, which counts once an hour."""

    epoch: Number


class SubscribersQuery(NamePageQuery, frozen=True, kw_only=True):
    """A page of subscribers, by name."""

    without_key: Annotated[
        bool, Meta(description="Only agents that were not sent the present key, also those that only publish")
    ] = False


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber; `key_epoch` is the newest epoch whose key was sent to it."""

    subscriber_nhi: str
    status: SubscriptionStatus
    key_epoch: int
    created_at: datetime


class SubscriberList(msgspec.Struct, frozen=True):
    """A page of subscribers, by name."""

    subscribers: list[Subscriber]
    next: str | None


class KeyGiver(msgspec.Struct, frozen=True):
    """Whether an agent may give out the channel's key: the owner may, and agents that may publish."""

    nhi: str
    may_give_key: bool


class ChannelEnvelopeBody(msgspec.Struct, frozen=True):
    """The JSON form of a sealed envelope of suite 4; its members are those of the envelope format."""


class ChannelReadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The next messages of a channel."""

    after_offset: AfterOffset | None = None
    max_messages: Annotated[int, Meta(ge=1, le=100, description="How many messages an answer has at the most")] = 10
    wait_timeout_seconds: Annotated[
        int, Meta(ge=0, le=30, description="How many seconds to wait for a message where there is none yet")
    ] = 0


class ChannelStreamQuery(msgspec.Struct, frozen=True):
    """Where a stream of messages begins."""

    after_offset: AfterOffset | None = None


class SealedChannelMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a channel; `envelope` is the JSON form of a sealed envelope."""

    offset: int
    replay_key: str
    accepted_at: datetime
    expires_at: datetime
    envelope: dict[str, Any]


class ChannelMessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in their order; offsets whose messages have expired are left out. `roster_version` is the channel's, so
    that a reader knows when to fetch its roster again."""

    messages: list[SealedChannelMessage]
    first_offset: int
    next_offset: int
    has_more: bool
    roster_version: int


class CommitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset up to which the caller is done with a channel's messages."""

    offset: Number


_CHANNEL = {"channel": "The channel's id, a UUID in lower case"}
_CHANNEL_AND_AGENT = {**_CHANNEL, "agent": "The agent's handle or id"}

CREATE = Operation(
    TAG, "POST", "/v1/channels", Access.AGENT, "Create a channel", Channel,
    statuses=(201,), body=NewChannel, rule=WRITE_RULE, body_limit=ROSTER_BODY, repeatable=False,
)  # fmt: skip
LIST = Operation(
    TAG, "GET", "/v1/channels", Access.AGENT, "The channels that the caller may know of", ChannelList,
    query=ChannelQuery,
)  # fmt: skip
SHOW = Operation(
    TAG, "GET", "/v1/channels/{channel}", Access.AGENT, "One channel, and what the caller is and may do in it",
    ChannelView, parameters=_CHANNEL,
)  # fmt: skip
UPDATE = Operation(
    TAG, "PATCH", "/v1/channels/{channel}", Access.AGENT, "Change a channel; for its owner", ChannelView,
    parameters=_CHANNEL, body=ChannelChange, rule=WRITE_RULE,
)  # fmt: skip
DELETE = Operation(
    TAG, "DELETE", "/v1/channels/{channel}", Access.AGENT, "Delete a channel and all in it; for its owner", NOTHING,
    statuses=(204,), parameters=_CHANNEL, rule=WRITE_RULE, repeatable=False,
)  # fmt: skip
LIST_ALLOWED = Operation(
    TAG, "GET", "/v1/channels/{channel}/allowlist", Access.AGENT, "The allowlist of a channel; for its owner",
    AllowlistPage, parameters=_CHANNEL, query=NamePageQuery,
)  # fmt: skip
ALLOW = Operation(
    TAG, "PUT", "/v1/channels/{channel}/allowlist/{agent}", Access.AGENT,
    "Put an agent on the allowlist, or change its rights; for the owner of a channel without a roster", AllowlistEntry,
    parameters=_CHANNEL_AND_AGENT, body=AllowlistRights, rule=WRITE_RULE,
)  # fmt: skip
DISALLOW = Operation(
    TAG, "DELETE", "/v1/channels/{channel}/allowlist/{agent}", Access.AGENT,
    "Take an agent off the allowlist; for the owner of a channel without a roster", NOTHING,
    statuses=(204,), parameters=_CHANNEL_AND_AGENT, rule=WRITE_RULE,
)  # fmt: skip
SHOW_ROSTER = Operation(
    TAG, "GET", "/v1/channels/{channel}/roster", Access.AGENT, "The roster that the channel's owner signed last",
    RosterDocument, parameters=_CHANNEL,
)  # fmt: skip
PUT_ROSTER = Operation(
    TAG, "PUT", "/v1/channels/{channel}/roster", Access.AGENT,
    "Store the next roster, and with it the channel's allowlist and policy; for the owner", ChannelView,
    parameters=_CHANNEL, body=RosterDocument, rule=WRITE_RULE, body_limit=ROSTER_BODY,
)  # fmt: skip
SUBSCRIBE = Operation(
    TAG, "POST", "/v1/channels/{channel}/subscribe", Access.AGENT, "Subscribe to a channel, from its end on",
    Subscription, statuses=(201, 200), parameters=_CHANNEL, body=SubscribeBody, rule=WRITE_RULE,
)  # fmt: skip
UNSUBSCRIBE = Operation(
    TAG, "POST", "/v1/channels/{channel}/unsubscribe", Access.AGENT, "End the caller's subscription", Subscription,
    parameters=_CHANNEL, rule=WRITE_RULE,
)  # fmt: skip
PAUSE = Operation(
    TAG, "POST", "/v1/channels/{channel}/pause", Access.AGENT, "Keep the offset, and read nothing until resumed",
    Subscription, parameters=_CHANNEL, rule=WRITE_RULE,
)  # fmt: skip
RESUME = Operation(
    TAG, "POST", "/v1/channels/{channel}/resume", Access.AGENT, "Go on after a pause", Subscription,
    parameters=_CHANNEL, rule=WRITE_RULE,
)  # fmt: skip
SET_EPOCH = Operation(
    TAG, "POST", "/v1/channels/{channel}/epoch", Access.AGENT, "Announce the channel's next key by its id", Channel,
    parameters=_CHANNEL, body=EpochBody, rule=WRITE_RULE,
)  # fmt: skip
KEYS_SENT = Operation(
    TAG, "POST", "/v1/channels/{channel}/keys", Access.AGENT, "Report the agents to which the present key was sent",
    KeysSent, parameters=_CHANNEL, body=KeysSentBody, rule=PUBLISH_RULE,
)  # fmt: skip
KEY_TAKEN = Operation(
    TAG, "POST", "/v1/channels/{channel}/key", Access.AGENT, "Confirm that the caller has the key, or ask for it",
    Subscription, parameters=_CHANNEL, body=KeyTakenBody, rule=WRITE_RULE,
)  # fmt: skip
SHOW_EPOCH = Operation(
    TAG, "GET", "/v1/channels/{channel}/epochs/{epoch}", Access.AGENT, "The id of the key of an epoch", Epoch,
    parameters={**_CHANNEL, "epoch": "The number of the epoch, from 1 on"},
)  # fmt: skip
LIST_SUBSCRIBERS = Operation(
    TAG, "GET", "/v1/channels/{channel}/subscribers", Access.AGENT,
    "The subscribers of a channel; for agents that give out its key", SubscriberList,
    parameters=_CHANNEL, query=SubscribersQuery,
)  # fmt: skip
SHOW_KEY_GIVER = Operation(
    TAG, "GET", "/v1/channels/{channel}/publishers/{agent}", Access.AGENT,
    "Whether an agent may give out the channel's key", KeyGiver, parameters=_CHANNEL_AND_AGENT,
)  # fmt: skip
PUBLISH = Operation(
    TAG, "POST", "/v1/channels/{channel}/publish", Access.AGENT, "Publish a sealed message", PublishedMessage,
    statuses=(201, 200), parameters=_CHANNEL, body=ChannelEnvelopeBody, rule=PUBLISH_RULE, body_limit=MAX_JSON,
    reads=(JSON, MEDIA_TYPE),
)  # fmt: skip
READ = Operation(
    TAG, "GET", "/v1/channels/{channel}/messages", Access.AGENT, "The next messages; waits for one if asked to",
    ChannelMessagePage, parameters=_CHANNEL, query=ChannelReadQuery, waits=True,
)  # fmt: skip
STREAM = Operation(
    TAG, "GET", "/v1/channels/{channel}/stream", Access.AGENT, "Messages as server-sent events", NOTHING,
    parameters=_CHANNEL, query=ChannelStreamQuery, media=EVENT_STREAM, waits=True,
)  # fmt: skip
COMMIT = Operation(
    TAG, "POST", "/v1/channels/{channel}/commit", Access.AGENT, "Commit the messages up to an offset as done",
    Subscription, parameters=_CHANNEL, body=CommitBody, rule=COMMIT_RULE,
)  # fmt: skip
