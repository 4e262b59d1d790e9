"""Publishes in channels: members on the roster that lack the epoch key get it first; nothing is published under an
old key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, Unpack
from uuid import UUID

from angelia.channels.model import ChannelPolicy, ChannelView, PublishedMessage
from angelia.client import channel_calls, clock
from angelia.client.channel_keys import check_roster_stands, expect_keys, sealing_key
from angelia.client.channel_membership import find_channel
from angelia.client.channel_sharing import KeyShareResult, share
from angelia.client.exchange import Exchange
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, EpochStale, VersionConflict
from angelia.mailbox.drafts import MessageOptions
from angelia.mailbox.mailbox import Mailbox

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PublishResult:
    """A published message, and the members to which the key could not be sent, each with the reason."""

    channel: ChannelView
    published: PublishedMessage
    envelope: Envelope
    unreached: dict[str, AngeliaError]


def publish(
    mailbox: Mailbox, channel: str | UUID, body: str | bytes, **options: Unpack[MessageOptions]
) -> Exchange[PublishResult]:
    """Seals a message for all subscribers, and publishes it. Members that lack the key are sent it first; under a new
    key nothing is published before it was offered to all members that can be reached.

    With a `message_id` of the caller's own a second try after a crash ends in message_id_conflict, not in a second
    message."""
    content = body.encode() if isinstance(body, str) else body

    def attempt(found: ChannelView) -> Exchange[PublishResult]:
        key, unreached = (yield from sealing_key(mailbox, found)), dict[str, AngeliaError]()
        if key.new or key.channel.without_key:
            unreached = (yield from share(mailbox, key)).failed
        check_roster_stands(mailbox, key.roster)  # to send the key to many members takes its time
        envelope = mailbox.channels.seal(found.channel_id, key.key, content, clock.now(), **options)
        published = yield from channel_calls.publish_envelope(found.channel_id, envelope)
        return PublishResult(key.channel, published, envelope, unreached)

    return (yield from _twice(mailbox, channel, attempt))


def share_key(mailbox: Mailbox, channel: str | UUID) -> Exchange[KeyShareResult]:
    """Sends the present key to all members that lack it; for the owner and publishers."""

    def attempt(found: ChannelView) -> Exchange[KeyShareResult]:
        return (yield from share(mailbox, (yield from sealing_key(mailbox, found))))

    return (yield from _twice(mailbox, channel, attempt))


def _twice(mailbox: Mailbox, channel: str | UUID, attempt: Callable[[ChannelView], Exchange[T]]) -> Exchange[T]:
    """Tries a second time if the channel's key was replaced during the first attempt."""
    found = yield from find_channel(mailbox, channel)
    # Publishers are sent the next keys. So is an owner, also if its mailbox was not there when the channel was created.
    owns = found.owner_nhi == mailbox.identity.handle
    if owns or (found.may_publish and found.policy is not ChannelPolicy.OPEN):
        expect_keys(mailbox, found)
    try:
        return (yield from attempt(found))
    except (EpochStale, VersionConflict):
        found = yield from channel_calls.channel_again(found)
    return (yield from attempt(found))
