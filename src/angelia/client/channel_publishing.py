"""Publishes in channels: members on the roster that lack the epoch key get it first; nothing is published under an
old key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack
from uuid import UUID

from angelia.channels.model import Policy, Shown
from angelia.client import channel_calls
from angelia.client.channel_answers import PublishedMessage
from angelia.client.channel_keys import Present, check_roster_stands, expect_keys, present_key
from angelia.client.channel_membership import find_channel
from angelia.client.channel_sharing import Shared, share
from angelia.client.exchange import Exchange
from angelia.client.mailbox_keys import now
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, EpochStale, VersionConflict
from angelia.mailbox.channels import PostWishes
from angelia.mailbox.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class Posted:
    """A message that was published, and those to whom the key could not be sent, with the reason."""

    channel: Shown
    published: PublishedMessage
    envelope: Envelope
    unreached: dict[str, AngeliaError]


def publish(mailbox: Mailbox, channel: str | UUID, body: bytes, **wishes: Unpack[PostWishes]) -> Exchange[Posted]:
    """Seal a message for all who listen, and publish it. Who lacks the key is sent it before; under a new key nothing
    is published before all were offered it who can be reached.

    With a `message_id` of one's own a second try after a crash ends in message_id_conflict, not in a second
    message."""
    found = yield from _found(mailbox, channel)
    for last_try in (False, True):
        try:
            present, shared = yield from _offered(mailbox, found)
            check_roster_stands(mailbox, present.roster)  # to send the key to many takes its time
            envelope = mailbox.channels.seal(found.channel_id, present.key, body, now(), **wishes)
            published = yield from channel_calls.publish_envelope(found.channel_id, envelope)
        except (EpochStale, VersionConflict):  # the key changed meanwhile
            if last_try:
                raise
        else:
            return Posted(present.channel, published, envelope, shared.failed)
        found = yield from channel_calls.channel_again(found)
    raise AssertionError("the last try returns or raises")


def share_key(mailbox: Mailbox, channel: str | UUID) -> Exchange[Shared]:
    """Send the present key to all who lack it; for the owner and those who may publish."""
    found = yield from _found(mailbox, channel)
    for last_try in (False, True):
        try:
            present = yield from present_key(mailbox, found)
            return (yield from share(mailbox, present.channel, present.key, present.roster))
        except (EpochStale, VersionConflict):
            if last_try:
                raise
        found = yield from channel_calls.channel_again(found)
    raise AssertionError("the last try returns or raises")


def _offered(mailbox: Mailbox, found: Shown) -> Exchange[tuple[Present, Shared]]:
    """The present key, after those were sent it who lack it; a new one nobody has yet."""
    present = yield from present_key(mailbox, found)
    if present.new or present.channel.without_key:
        return present, (yield from share(mailbox, present.channel, present.key, present.roster))
    return present, Shared([], {})


def _found(mailbox: Mailbox, channel: str | UUID) -> Exchange[Shown]:
    found = yield from find_channel(mailbox, channel)
    # Who publishes is sent the next keys. So is an owner, also one whose mailbox missed the making of its channel.
    owns = found.owner_nhi == mailbox.identity.handle
    if owns or (found.may_publish and found.policy is not Policy.OPEN):
        expect_keys(mailbox, found)
    return found
