"""Channels, subscriptions and messages as records, and their rules. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

import msgspec

from angelia.envelope.ids import valid_handle
from angelia.envelope.rosters import Member, valid_channel_name
from angelia.envelope.wire import Envelope
from angelia.errors import InvalidArgument, NotFound

RETENTION, SHORTEST_RETENTION, LONGEST_RETENTION = 604_800, 3_600, 2_592_000
MESSAGE_BYTES, LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES = 1_048_576, 4_096, 1_122_304
SUBSCRIBERS, MOST_SUBSCRIBERS = 10_000, 100_000
KEY_LIFE = timedelta(hours=24)  # a key older than this is replaced at the next publish after a subscriber has left
ASK_AGAIN = timedelta(hours=1)  # how often a subscriber may report that it has lost the key

ChannelLimits: TypeAlias = tuple[int, int, int]  # seconds of retention, bytes of a message, subscribers


class ChannelPolicy(StrEnum):
    """How it is decided which agents may subscribe and publish."""

    OPEN = "open"
    PRIVATE = "private"
    AUTHZ_REQUIRED = "authz_required"
    ALLOWLIST = "allowlist"


class SubscriptionStatus(StrEnum):
    """The state of a subscription. A paused one keeps its offset and reads nothing. `PUBLISHING` is a key holder that
    is sent the channel's keys without being a subscriber."""

    ACTIVE = "active"
    PAUSED = "paused"
    PUBLISHING = "publishing"
    DELETED = "deleted"


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel as agents see it that may use it. `roster_version` is the version of the roster that its owner signed
    last; 0 is none.

    Without an `epoch_key_id` nothing can be published until a publisher sets the next key. `left_at` is the last time
    that a holder of the present key left."""

    channel_id: UUID
    owner_nhi: str
    channel_name: str
    policy: ChannelPolicy
    retention_seconds: int
    max_message_size_bytes: int
    max_subscribers: int
    epoch: int
    epoch_key_id: UUID | None
    epoch_at: datetime | None
    left_at: datetime | None
    first_offset: int
    next_offset: int
    total_messages: int
    total_subscribers: int
    created_at: datetime
    updated_at: datetime
    roster_version: int = 0

    @property
    def name(self) -> str:
        """Owner and name, as in `alice/news`: what policy rules and people call the channel."""
        return f"{self.owner_nhi}/{self.channel_name}"

    @property
    def end(self) -> int:
        """The offset of the newest message; 0 before the first."""
        return self.next_offset - 1

    def key_is_due(self, now: datetime) -> bool:
        """Whether the next publisher should replace the key: there is none, or a holder left and it is a day old.

        However many leave, that is once a day. An open channel keeps its key, since any agent may have it."""
        if self.epoch_key_id is None or self.epoch_at is None:
            return True
        left = self.left_at is not None and self.policy is not ChannelPolicy.OPEN
        return left and now - self.epoch_at >= KEY_LIFE

    def leaves_at(self, accepted_at: datetime, expires_at: datetime) -> datetime:
        """When a message is removed: at its own expiry or at the end of the channel's retention."""
        return min(expires_at, accepted_at + timedelta(seconds=self.retention_seconds))


class AllowlistEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a channel's allowlist."""

    nhi: str
    may_subscribe: bool
    may_publish: bool
    added_at: datetime

    @property
    def member(self) -> Member:
        """The entry as a roster has it."""
        return Member(self.nhi, may_publish=self.may_publish, may_subscribe=self.may_subscribe)


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber of a channel, or a publisher that holds its key. `key_epoch` is the newest epoch whose key was sent
    to it; 0 is none."""

    subscription_id: UUID
    channel_id: UUID
    subscriber_nhi: str
    status: SubscriptionStatus
    last_offset: int
    last_consumed_at: datetime | None
    key_epoch: int
    asked_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def listens(self) -> bool:
        """Whether it is a subscription in the narrow sense, active or paused."""
        return self.status in (SubscriptionStatus.ACTIVE, SubscriptionStatus.PAUSED)

    @property
    def holds(self) -> bool:
        """Whether the channel's keys are sent to this agent."""
        return self.status is not SubscriptionStatus.DELETED


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a key that a channel has, or had as long as a message under it may be read; never the key itself. The
    agent that made it is not known of some old ones."""

    epoch: int
    key_id: UUID
    made_by: str | None
    made_at: datetime


class ChannelView(Channel, frozen=True, kw_only=True):
    """A channel, and what the caller is and may do in it. `without_key` counts, up to a thousand, the agents to which
    the present key was not sent yet; only agents that give out the key see it. `key_epoch` is the newest epoch whose
    key was sent to the caller, and null if keys are not sent to it."""

    may_subscribe: bool
    may_publish: bool
    subscription: Subscription | None
    without_key: int | None
    key_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPublication:
    """An envelope that may be published: parsed, of the calling agent, and for this channel."""

    channel_id: UUID
    envelope: Envelope = field(repr=False)
    replay_key: bytes
    created_at: datetime
    expires_at: datetime
    accepted_at: datetime

    @property
    def sender(self) -> str:
        return self.envelope.header.sender_nhi

    @property
    def message_id(self) -> UUID:
        return self.envelope.header.message_id


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The offset of a published message, and when it is removed."""

    message_id: UUID
    replay_key: str
    offset: int
    accepted_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChannelMessage:
    """A message of a channel as the ledger has it."""

    offset: int
    replay_key: bytes
    accepted_at: datetime
    expires_at: datetime
    wire: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A page of messages, and the offsets and the roster's version that the channel had when it was read."""

    messages: list[StoredChannelMessage]
    first_offset: int
    next_offset: int
    has_more: bool
    roster_version: int = 0


def check_name(name: str) -> str:
    """Returns a channel's name without its owner, if it is valid."""
    if not valid_channel_name(name):
        raise InvalidArgument(
            f"{name[:70]!r} is no channel name", hint="1 to 64 of a-z 0-9 _ . / -, a letter or digit first"
        )
    return name


def check_limits(retention_seconds: int, max_message_size_bytes: int, max_subscribers: int) -> ChannelLimits:
    """Returns the limits of a channel, if it may have them; the error says which is out of bounds."""
    bounds = {
        "retention_seconds": (retention_seconds, SHORTEST_RETENTION, LONGEST_RETENTION),
        "max_message_size_bytes": (max_message_size_bytes, LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES),
        "max_subscribers": (max_subscribers, 1, MOST_SUBSCRIBERS),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise InvalidArgument(f"{name} is {value:,}", hint=f"from {least:,} to {most:,}")
    return retention_seconds, max_message_size_bytes, max_subscribers


def split_name(text: str) -> tuple[str, str] | None:
    """Owner and name of a channel written as `owner/name`, or None."""
    owner, slash, name = text.partition("/")
    return (owner, name) if slash and valid_handle(owner) and valid_channel_name(name) else None


def not_subscribed(channel: Channel) -> NotFound:
    return NotFound(f"you are not subscribed to {channel.name}", hint=f"angelia channel subscribe {channel.name}")


def no_channel(channel_id: UUID) -> NotFound:
    return NotFound(f"there is no channel {channel_id}", hint="angelia channel list")
