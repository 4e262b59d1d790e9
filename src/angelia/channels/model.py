"""What a channel is, who may do what in it, and when a message leaves it. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from angelia.envelope.ids import valid_handle
from angelia.envelope.rosters import valid_channel_name
from angelia.envelope.wire import Envelope
from angelia.errors import InvalidArgument, NotFound

RETENTION, SHORTEST_RETENTION, LONGEST_RETENTION = 604_800, 3_600, 2_592_000
MESSAGE_BYTES, LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES = 1_048_576, 4_096, 1_122_304
SUBSCRIBERS, MOST_SUBSCRIBERS = 10_000, 100_000
KEY_LIFE = timedelta(hours=24)  # after a voluntary leave, the next publish under an older key changes it
ASK_AGAIN = timedelta(hours=1)  # how often a subscriber may say that it has lost the key


class Policy(StrEnum):
    """Who may subscribe and publish."""

    OPEN = "open"
    PRIVATE = "private"
    AUTHZ_REQUIRED = "authz_required"
    ALLOWLIST = "allowlist"


class Status(StrEnum):
    """A subscription's life. A paused one keeps its offset and reads nothing; who only publishes holds the key, and
    is sent the next ones, without listening."""

    ACTIVE = "active"
    PAUSED = "paused"
    PUBLISHING = "publishing"
    DELETED = "deleted"


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel as those see it who may use it. `roster_version` is that of the roster which its owner signed last;
    0 is none.

    Without an `epoch_key_id` nothing can be published until somebody who may publish sets the next key. `left_at` is
    the last time that somebody left who has the present key."""

    channel_id: UUID
    owner_nhi: str
    channel_name: str
    policy: Policy
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
        """Owner and name: what rules call it, and people."""
        return f"{self.owner_nhi}/{self.channel_name}"

    @property
    def end(self) -> int:
        """The offset of the newest message; 0 before the first."""
        return self.next_offset - 1

    def key_is_due(self, now: datetime) -> bool:
        """Whether the next publisher should change the key: there is none, or somebody left and it is a day old.

        However many leave, that is once a day; an open channel keeps its key, since anybody may have it."""
        if self.epoch_key_id is None or self.epoch_at is None:
            return True
        left = self.left_at is not None and self.policy is not Policy.OPEN
        return left and now - self.epoch_at >= KEY_LIFE

    def leaves_at(self, accepted_at: datetime, expires_at: datetime) -> datetime:
        """When a message goes: its own time, or the channel's."""
        return min(expires_at, accepted_at + timedelta(seconds=self.retention_seconds))


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a channel's allowlist."""

    nhi: str
    may_subscribe: bool
    may_publish: bool
    added_at: datetime


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody listens to a channel, or holds its key to publish in it. `key_epoch` is the newest epoch whose key was
    sent to it; 0 is none."""

    subscription_id: UUID
    channel_id: UUID
    subscriber_nhi: str
    status: Status
    last_offset: int
    last_consumed_at: datetime | None
    key_epoch: int
    asked_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def listens(self) -> bool:
        return self.status in (Status.ACTIVE, Status.PAUSED)

    @property
    def holds(self) -> bool:
        """Whether the channel's keys are sent to it."""
        return self.status is not Status.DELETED


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a channel has, or had as long as anything under it may be read; never the key itself. Who made it is
    not known of some old ones."""

    epoch: int
    key_id: UUID
    made_by: str | None
    made_at: datetime


class Shown(Channel, frozen=True, kw_only=True):
    """A channel, and what the caller is in it. `without_key` counts, up to a thousand, those to whom nobody has sent
    the present key; only those who give it out are told. `key_epoch` is the newest epoch whose key was sent to the
    caller, and null for whom keys are not sent to."""

    may_subscribe: bool
    may_publish: bool
    subscription: Subscription | None
    without_key: int | None
    key_epoch: int | None = None


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who listens; `key_epoch` is the newest epoch whose key was sent to it."""

    subscriber_nhi: str
    status: str
    key_epoch: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """An envelope that may go into a channel: parsed, allowed, and its signatures hold."""

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


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message stands in its channel, and when it leaves."""

    message_id: UUID
    replay_key: str
    offset: int
    accepted_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message of a channel."""

    offset: int
    replay_key: bytes
    accepted_at: datetime
    expires_at: datetime
    wire: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """A page of messages, and where the channel stood when it was read."""

    messages: list[Stored]
    first_offset: int
    next_offset: int
    has_more: bool
    roster_version: int = 0


def check_name(name: str) -> str:
    """A channel's name within its owner's."""
    if not valid_channel_name(name):
        raise InvalidArgument(
            f"{name[:70]!r} is no channel name", hint="1 to 64 of a-z 0-9 _ . / -, a letter or digit first"
        )
    return name


def check_limits(retention_seconds: int, max_message_size_bytes: int, max_subscribers: int) -> None:
    """Whether a channel may be so; the error says which is out of bounds."""
    bounds = {
        "retention_seconds": (retention_seconds, SHORTEST_RETENTION, LONGEST_RETENTION),
        "max_message_size_bytes": (max_message_size_bytes, LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES),
        "max_subscribers": (max_subscribers, 1, MOST_SUBSCRIBERS),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise InvalidArgument(f"{name} is {value:,}", hint=f"from {least:,} to {most:,}")


def split_name(text: str) -> tuple[str, str] | None:
    """Owner and name of a channel written as `owner/name`, or None."""
    owner, slash, name = text.partition("/")
    return (owner, name) if slash and valid_handle(owner) and valid_channel_name(name) else None


def not_subscribed(channel: Channel) -> NotFound:
    return NotFound(f"you are not subscribed to {channel.name}", hint=f"angelia channel subscribe {channel.name}")


def no_channel(channel_id: UUID) -> NotFound:
    return NotFound(f"there is no channel {channel_id}", hint="angelia channel list")
