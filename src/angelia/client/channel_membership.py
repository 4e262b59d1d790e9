"""Being in channels with a mailbox and a server: find, make, join, leave."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from angelia.channels.model import Policy, Shown, Subscription, split_name
from angelia.client import channel_calls
from angelia.client.channel_keys import expect_keys, has_key, rekey
from angelia.client.channel_senders import know_senders
from angelia.client.sealed import is_id, now
from angelia.client.wire import Call
from angelia.errors import AngeliaError, NotFound
from angelia.mailbox.box import Mailbox


def find_channel(mailbox: Mailbox, name: str | UUID) -> Call[Shown]:
    """A channel by its id, as `owner/name`, or by the name of one's own."""
    if isinstance(name, UUID) or is_id(name):
        return (yield from channel_calls.channel(UUID(str(name))))
    candidates = [(mailbox.identity.handle, name)]
    if (named := split_name(name)) is not None:
        candidates.insert(0, named)
    for owner, short in candidates:
        page = yield from channel_calls.channels(owner=owner, name=short)
        if page.channels:
            return (yield from channel_calls.channel(page.channels[0].channel_id))
    raise NotFound(f"there is no channel {name}", hint="angelia channel list")


def create_channel(
    mailbox: Mailbox,
    name: str,
    policy: Policy,
    *,
    allow: Sequence[str] = (),
    retention_seconds: int | None = None,
    max_message_size_bytes: int | None = None,
    max_subscribers: int | None = None,
) -> Call[Shown]:
    """Make a channel with its first key. One that was made without it, by a process that crashed, gets it when its
    owner publishes."""
    made = yield from channel_calls.make_channel(
        name,
        policy,
        allow=allow,
        retention_seconds=retention_seconds,
        max_message_size_bytes=max_message_size_bytes,
        max_subscribers=max_subscribers,
    )
    expect_keys(mailbox, made)
    yield from rekey(mailbox, made)
    return (yield from channel_calls.channel(made.channel_id))


def subscribe(mailbox: Mailbox, channel: str | UUID) -> Call[Subscription]:
    """Listen to a channel from now on. Its key comes with the next message, or sooner."""
    found = yield from find_channel(mailbox, channel)
    # First here: the key may come before the server's answer does.
    joined = mailbox.channels.name(found.channel_id) is not None
    mailbox.channels.join(found.channel_id, found.name, now())
    try:
        problems = yield from know_senders(mailbox, {found.owner_nhi})
        if found.owner_nhi in problems:
            raise problems[found.owner_nhi]
        held = yield from channel_calls.join_channel(found.channel_id)
    except AngeliaError:
        if not joined:
            mailbox.channels.leave(found.channel_id, now())
        raise
    if held.key_epoch and held.key_epoch == found.epoch and not has_key(mailbox, found):
        held = yield from channel_calls.join_channel(found.channel_id, needs_key=True)
    return held


def unsubscribe(mailbox: Mailbox, channel: str | UUID) -> Call[Subscription]:
    """Listen no more; an owner still keeps the channel's key."""
    found = yield from find_channel(mailbox, channel)
    held = yield from channel_calls.leave_channel(found.channel_id)
    if found.owner_nhi != mailbox.identity.handle:
        mailbox.channels.leave(found.channel_id, now())
    return held
