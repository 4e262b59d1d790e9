"""Channels with a mailbox and a server: who has the key, when it changes, and what is believed of what is read.

Each function is a verb like those of `calls`. The server says who may give out a channel's key and publish in it;
who wrote a message is not the server's to say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Unpack
from uuid import UUID

from angelia.channels.model import Channel, Policy, Shown, Subscription, split_name
from angelia.client import channel_calls, key_calls, mail_calls, receiving, sealed
from angelia.client.channel_answers import PublishedMessage
from angelia.client.faults import Unreachable
from angelia.client.mail import send_sealed
from angelia.client.sealed import is_id, now
from angelia.client.wire import Call
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.envelope.wire import Envelope
from angelia.errors import (
    AngeliaError,
    EpochStale,
    KeyNotFound,
    KeyRevoked,
    KeyStale,
    NotFound,
    Unavailable,
    VersionConflict,
)
from angelia.keys.model import parse_links
from angelia.mailbox.box import Mailbox
from angelia.mailbox.channels import PostWishes
from angelia.mailbox.inbox import Opened
from angelia.mailbox.outbox import Draft

_SEALED_TOGETHER, _SENT_TOGETHER = 256, 100
_ON_ITS_WAY, _PATIENCE = timedelta(seconds=60), 10.0
_RACES = 3


@dataclass(frozen=True, slots=True)
class Shared:
    """To whom a channel's key was sent, and to whom it could not be."""

    sent: list[str]
    failed: dict[str, AngeliaError]


@dataclass(frozen=True, slots=True)
class Posted:
    """A message that was published, and the subscribers to whom the key could not be sent, with the reason."""

    channel: Shown
    published: PublishedMessage
    envelope: Envelope
    unreached: dict[str, AngeliaError]


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
    """Make a channel with its first key."""
    made = yield from channel_calls.make_channel(
        name,
        policy,
        allow=allow,
        retention_seconds=retention_seconds,
        max_message_size_bytes=max_message_size_bytes,
        max_subscribers=max_subscribers,
    )
    mailbox.channels.join(made.channel_id, made.name, now())
    yield from _rekey(mailbox, made)
    return (yield from channel_calls.channel(made.channel_id))


def subscribe(mailbox: Mailbox, channel: str | UUID) -> Call[Subscription]:
    """Listen to a channel from now on. Its key comes with the next message, or sooner."""
    found = yield from find_channel(mailbox, channel)
    # First here: the key may come before the server's answer does.
    joined = mailbox.channels.name(found.channel_id) is not None
    mailbox.channels.join(found.channel_id, found.name, now())
    try:
        yield from know_senders(mailbox, {found.owner_nhi})
        held = yield from channel_calls.join_channel(found.channel_id)
    except AngeliaError:
        if not joined:
            mailbox.channels.leave(found.channel_id, now())
        raise
    if held.key_epoch and held.key_epoch == found.epoch and not _has_key(mailbox, found):
        held = yield from channel_calls.join_channel(found.channel_id, needs_key=True)
    return held


def unsubscribe(mailbox: Mailbox, channel: str | UUID) -> Call[Subscription]:
    """Listen no more; an owner still keeps the channel's key."""
    found = yield from find_channel(mailbox, channel)
    held = yield from channel_calls.leave_channel(found.channel_id)
    if found.owner_nhi != mailbox.identity.handle:
        mailbox.channels.leave(found.channel_id, now())
    return held


def publish(mailbox: Mailbox, channel: str | UUID, body: bytes, **wishes: Unpack[PostWishes]) -> Call[Posted]:
    """Seal a message for all who listen, and publish it. Who lacks the key is sent it before.

    With a `message_id` of one's own a second try after a crash ends in message_id_conflict, not in a second
    message."""
    mailbox.own.refresh()
    found = yield from find_channel(mailbox, channel)
    for last_try in (False, True):
        key, found = yield from _present_key(mailbox, found)
        shared = (yield from _share(mailbox, found, key)) if found.without_key else Shared([], {})
        envelope = mailbox.channels.seal(found.channel_id, key, body, now(), **wishes)
        try:
            published = yield from channel_calls.publish_envelope(found.channel_id, envelope)
        except EpochStale:
            if last_try:
                raise
        else:
            return Posted(found, published, envelope, shared.failed)
        found = yield from channel_calls.channel(found.channel_id)
    raise AssertionError("the last try returns or raises")


def share_key(mailbox: Mailbox, channel: str | UUID) -> Call[Shared]:
    """Send the present key to all subscribers who lack it; for the owner and those who may publish."""
    mailbox.own.refresh()
    found = yield from find_channel(mailbox, channel)
    key, found = yield from _present_key(mailbox, found)
    return (yield from _share(mailbox, found, key))


def take_keys(mailbox: Mailbox) -> Call[int]:
    """Believe the keys of channels that came as mail, as far as their senders may give them out; how many."""
    taken = 0
    for control in mailbox.inbox.controls():
        brought = ChannelKey.decode(control.body)
        if brought is None:
            continue  # of another kind, and not for channels
        if (yield from _credible(mailbox, control, brought)):
            mailbox.channels.keep(brought, control.message.sender, now())
            taken += 1
        mailbox.inbox.mark_handled(control.message.replay_key)
    return taken


def _present_key(mailbox: Mailbox, found: Shown) -> Call[tuple[EpochKey, Shown]]:
    """The key to seal under: the present one if it is here or on its way, else a new one."""
    for _ in range(_RACES):
        if not found.key_is_due(now()):
            key = yield from _held_key(mailbox, found)
            if key is not None:
                return key, found
        if found.policy is Policy.OPEN and found.owner_nhi != mailbox.identity.handle:
            raise (yield from _no_key_yet(found))
        try:
            key = yield from _rekey(mailbox, found)
        except VersionConflict:  # somebody was faster
            found = yield from channel_calls.channel(found.channel_id)
        else:
            return key, (yield from channel_calls.channel(found.channel_id))
    raise EpochStale(f"the key of {found.name} changes faster than anybody can publish", hint="try again")


def _held_key(mailbox: Mailbox, found: Shown) -> Call[EpochKey | None]:
    """The present key, also one that waits as mail. Whoever has just made it sends it to all who listen: to wait for
    it is less work for everybody than the next one."""
    key = _key_of(mailbox, found)
    if key is not None:
        return key
    just_made = found.epoch_at is not None and now() - found.epoch_at < _ON_ITS_WAY
    patience = _PATIENCE if just_made and found.subscription is not None else 0.0
    for wait in (0.0, patience, patience):
        page = yield from mail_calls.poll(channel_id=found.channel_id, max_messages=_SENT_TOGETHER, wait=wait)
        yield from receiving.take_in(mailbox, page.messages)
        yield from take_keys(mailbox)
        key = _key_of(mailbox, found)
        if key is not None or not patience:
            break
    return key


def _no_key_yet(found: Shown) -> Call[KeyNotFound]:
    """In an open channel anybody may publish, so nobody but the owner makes others take a new key."""
    if found.subscription is not None:
        yield from channel_calls.join_channel(found.channel_id, needs_key=True)
    return KeyNotFound(
        f"the key of {found.name} has not come yet",
        hint=f"it is sent to subscribers when somebody who has it publishes; its owner is {found.owner_nhi}",
    )


def _rekey(mailbox: Mailbox, found: Channel) -> Call[EpochKey]:
    """Make the channel's next key. It is here before the server hears of it: a crash must not lose it."""
    key, epoch = EpochKey.generate(), found.epoch + 1
    mailbox.channels.keep(ChannelKey(found.channel_id, epoch, key), mailbox.identity.handle, now())
    yield from channel_calls.set_epoch(found.channel_id, epoch, key.key_id)
    mailbox.channels.retire_before(found.channel_id, epoch, now())
    return key


def _share(mailbox: Mailbox, found: Shown, key: EpochKey) -> Call[Shared]:
    """Seal the key to everybody who lacks it: one pair of signatures for 256 of them, a hundred in a request."""
    shared = Shared([], {})
    body = ChannelKey(found.channel_id, found.epoch, key).encode()
    cursor: str | None = None
    while True:
        page = yield from channel_calls.subscribers(
            found.channel_id, without_key=True, cursor=cursor, limit=_SEALED_TOGETHER
        )
        names = [one.subscriber_nhi for one in page.subscribers]
        sent = [name for name in names if name == mailbox.identity.handle]
        envelopes = yield from _sealed_to(mailbox, [name for name in names if name not in sent], found, body, shared)
        sent += yield from _sent(mailbox, envelopes, shared)
        if sent:
            yield from channel_calls.keys_sent(found.channel_id, found.epoch, sent)
        shared.sent.extend(sent)
        if page.next is None:
            return shared
        cursor = page.next


def _sealed_to(
    mailbox: Mailbox, names: Sequence[str], found: Shown, body: bytes, shared: Shared
) -> Call[list[Envelope]]:
    drafts: list[Draft] = []
    for name in names:
        try:
            known, _ = yield from sealed.find_keys(mailbox, name)
        except (Unreachable, Unavailable):
            raise
        except AngeliaError as error:
            shared.failed[name] = error
            continue
        drafts.append(Draft(recipient=known.bundle, body=body, channel_id=found.channel_id, control=True))
    try:
        return mailbox.outbox.seal_many(drafts, now()) if drafts else []
    except AngeliaError:
        return _sealed_one_by_one(mailbox, drafts, shared)


def _sealed_one_by_one(mailbox: Mailbox, drafts: Sequence[Draft], shared: Shared) -> list[Envelope]:
    """One of them cannot be sealed to, and the others must not wait for it."""
    envelopes = []
    for draft in drafts:
        try:
            envelopes += mailbox.outbox.seal_many([draft], now())
        except AngeliaError as error:
            shared.failed[draft.recipient.agent_nhi] = error
    return envelopes


def _sent(mailbox: Mailbox, envelopes: Sequence[Envelope], shared: Shared) -> Call[list[str]]:
    sent: list[str] = []
    for start in range(0, len(envelopes), _SENT_TOGETHER):
        some = envelopes[start : start + _SENT_TOGETHER]
        outcomes = yield from send_sealed(mailbox, some)
        for envelope, refusal in zip(some, outcomes, strict=True):
            name = envelope.header.recipient_nhi
            if isinstance(refusal, KeyStale | KeyRevoked):
                refusal = yield from _sent_again(mailbox, envelope, refusal)
            if refusal is None:
                sent.append(name)
            else:
                shared.failed[name] = refusal
    return sent


def _sent_again(mailbox: Mailbox, envelope: Envelope, refusal: KeyStale | KeyRevoked) -> Call[AngeliaError | None]:
    """The recipient has other keys by now."""
    try:
        again = yield from sealed.reseal(mailbox, envelope.replay_key, refusal)
    except AngeliaError as error:
        return error
    (outcome,) = yield from send_sealed(mailbox, [again])
    return outcome


def _collect(mailbox: Mailbox, channel_id: UUID) -> Call[int]:
    """Fetch the mail of this channel alone, so that its keys are here; how many keys are new."""
    yield from receiving.receive(mailbox, most=_SENT_TOGETHER, channel_id=channel_id)
    return (yield from take_keys(mailbox))


def ask_for_key(mailbox: Mailbox, channel_id: UUID) -> Call[None]:
    """A message's key is not here: it waits as mail, was lost, or is of a time before this agent joined."""
    yield from _collect(mailbox, channel_id)
    found = yield from channel_calls.channel(channel_id)
    held = found.subscription
    if held is not None and held.key_epoch == found.epoch and not _has_key(mailbox, found):
        yield from channel_calls.join_channel(channel_id, needs_key=True)


def _credible(mailbox: Mailbox, control: Opened, brought: ChannelKey) -> Call[bool]:
    """Whether a key may come from its sender, and is the one that the channel has, or had."""
    message = control.message
    if message.channel_id != brought.channel_id or mailbox.channels.name(brought.channel_id) is None:
        return False
    try:
        giver = yield from channel_calls.key_giver(brought.channel_id, message.sender)
        found = yield from channel_calls.channel(brought.channel_id)
    except NotFound:
        return False
    if not giver.may_give_key or giver.nhi != message.sender or not 1 <= brought.epoch <= found.epoch:
        return False
    present = brought.epoch == found.epoch and found.epoch_key_id is not None
    if present:
        mailbox.channels.retire_before(brought.channel_id, found.epoch, now())
    return not present or brought.key.key_id == found.epoch_key_id


def know_senders(mailbox: Mailbox, senders: set[str]) -> Call[None]:
    """Who publishes is believed as in mail: at first sight, and from then on along its chain of bundles.

    A server that is away, or does not know the agent, keeps nobody from reading whom it knows."""
    for sender in sorted(senders - {mailbox.identity.handle}):
        with contextlib.suppress(Unreachable, Unavailable, NotFound, KeyNotFound):
            yield from _meet(mailbox, sender)


def _meet(mailbox: Mailbox, agent: str) -> Call[None]:
    """Know an agent's present keys. Who was not known is believed from the beginning of its chain on: what it signed
    before it rotated its pair is still there to be read."""
    if mailbox.trust.pin(agent) is None:
        page = yield from key_calls.bundles_since(agent, 0)
        links = parse_links(page.bundles[:1])
        if links and links[0].bundle.agent_nhi == agent:
            yield from sealed.catch_up(mailbox, mailbox.trust.pin_first(links[0], now(), page.revoked))
            return
    yield from sealed.find_keys(mailbox, agent)


def _has_key(mailbox: Mailbox, found: Channel) -> bool:
    return _key_of(mailbox, found) is not None


def _key_of(mailbox: Mailbox, found: Channel) -> EpochKey | None:
    if found.epoch_key_id is None:
        return None
    return mailbox.channels.key(found.channel_id, found.epoch_key_id, now())
