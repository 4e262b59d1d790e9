"""What the server answers about channels, as records. Members that a newer server adds are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from angelia.channels.model import Channel, Epoch, Listed, Subscriber
from angelia.channels.model import Published as PublishedMessage
from angelia.client.answers import Answer

__all__ = [
    "Allowlist",
    "ChannelPage",
    "Channels",
    "Epoch",
    "KeyGiver",
    "KeysNoted",
    "PlacedEnvelope",
    "PublishedMessage",
    "Subscribers",
]


class Channels(Answer, frozen=True, kw_only=True):
    """A page of channels, oldest first."""

    channels: list[Channel]
    next: str | None


class Allowlist(Answer, frozen=True, kw_only=True):
    """A page of whom a channel lists."""

    allowlist: list[Listed]
    next: str | None


class Subscribers(Answer, frozen=True, kw_only=True):
    """A page of who listens to a channel, by name."""

    subscribers: list[Subscriber]
    next: str | None


class KeysNoted(Answer, frozen=True, kw_only=True):
    noted: int


class KeyGiver(Answer, frozen=True, kw_only=True):
    """Whether a channel's key may come from an agent."""

    nhi: str
    may_give_key: bool


class PlacedEnvelope(Answer, frozen=True, kw_only=True):
    """A sealed message and where the server says that it stands."""

    offset: int
    replay_key: str
    accepted_at: datetime
    expires_at: datetime
    envelope: dict[str, Any]


class ChannelPage(Answer, frozen=True, kw_only=True):
    """Messages of a channel in their order, sealed."""

    messages: list[PlacedEnvelope]
    first_offset: int
    next_offset: int
    has_more: bool
    roster_version: int = 0
