"""Which key a channel has: taken from mail as far as it is believed, or made where there is none.

Each function is a verb like those of `calls`. Who may give out a channel's key is on its roster; in channels where the
server admits the members, the server says it. What it says of the epoch is believed forward only.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec

from angelia.channels.model import Channel, Policy, Shown
from angelia.client import channel_calls, mail_calls, receiving
from angelia.client.channel_rosters import known_roster, newest_roster, publisher_rule
from angelia.client.faults import ApiError, Unreachable
from angelia.client.mail_answers import Handed
from angelia.client.sealed import now
from angelia.client.wire import Call
from angelia.envelope.refusals import Refused
from angelia.envelope.rosters import Roster
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.envelope.wire import decode
from angelia.errors import AngeliaError, EpochStale, KeyNotFound, NotFound, Unavailable, VersionConflict
from angelia.mail.model import MOST_AT_ONCE
from angelia.mailbox.box import Mailbox
from angelia.mailbox.inbox import Message, Opened

_ON_ITS_WAY, _PATIENCE = timedelta(seconds=60), 10.0
_LEASE, _MOST_PAGES = 60, 20
_RACES = 3


@dataclass(frozen=True, slots=True)
class Present:
    """The key to seal under, the channel and its roster as they were then, and whether the key was made just now."""

    key: EpochKey
    channel: Shown
    roster: Roster
    new: bool


def expect_keys(mailbox: Mailbox, found: Channel) -> None:
    """From now on this channel's keys are taken from mail. Saying it again changes nothing."""
    if mailbox.channels.name(found.channel_id) is None:
        mailbox.channels.join(found.channel_id, found.name, now())


def has_key(mailbox: Mailbox, found: Channel) -> bool:
    return _key_of(mailbox, found) is not None


def present_key(mailbox: Mailbox, found: Shown) -> Call[Present]:
    """The key to seal under: the present one if it is here or on its way, else a new one."""
    for _ in range(_RACES):
        try:
            return (yield from _present_key(mailbox, found))
        except VersionConflict:  # another publisher was faster, or the owner
            found = yield from channel_calls.channel_again(found)
    raise EpochStale(f"the key of {found.name} changes faster than anybody can publish", hint="try again")


def _present_key(mailbox: Mailbox, found: Shown) -> Call[Present]:
    # First the roster: which keys may seal depends on who was removed.
    roster = yield from newest_roster(mailbox, found)
    mailbox.channels.follow(found.channel_id, found.epoch)
    if not found.key_is_due(now()) and not mailbox.rosters.is_spent(found.channel_id, found.epoch):
        key = yield from _held_key(mailbox, found)
        if (yield from newest_roster(mailbox, found)) != roster:  # word of a later one has come with the key
            raise VersionConflict(f"{found.name} has changed just now", hint="try again")
        if key is not None:
            return Present(key, found, roster, new=False)
        if found.key_epoch == found.epoch and not _only_opens(mailbox, found):
            raise (yield from _no_key_yet(found))
    if found.policy is Policy.OPEN and found.owner_nhi != mailbox.identity.handle:
        raise (yield from _no_key_yet(found))
    key = yield from rekey(mailbox, found, roster)
    made = msgspec.structs.replace(found, epoch=found.epoch + 1, epoch_key_id=key.key_id)
    return Present(key, made, roster, new=True)


def rekey(mailbox: Mailbox, found: Channel, roster: Roster) -> Call[EpochKey]:
    """Make the channel's next key, for those on the roster. It is here before the server hears of it: a crash must not
    lose it."""
    key, epoch = EpochKey.generate(), found.epoch + 1
    mailbox.channels.keep(ChannelKey(found.channel_id, epoch, key, roster.version), mailbox.identity.handle, now())
    yield from channel_calls.set_epoch(found.channel_id, epoch, key.key_id)
    mailbox.channels.retire_before(found.channel_id, epoch, now())
    return key


def take_keys(mailbox: Mailbox) -> Call[int]:
    """Believe the keys of channels that came as mail, as far as their senders may give them out; how many."""
    taken, looked_at = 0, set[str]()
    while True:
        controls = [one for one in mailbox.inbox.controls() if one.message.replay_key not in looked_at]
        if not controls:
            return taken
        for control in controls:
            looked_at.add(control.message.replay_key)
            brought = ChannelKey.decode(control.body)
            if brought is None:
                continue  # of another kind, and not for channels
            try:
                believed = yield from _believed(mailbox, control, brought)
            except (Unreachable, Unavailable):
                raise
            except AngeliaError:
                continue  # a server that lies about one channel takes no key away, and keeps none of another from us
            if believed is not None:
                found, seals = believed
                mailbox.channels.keep(brought, control.message.sender, now(), seals=seals)
                if brought.epoch < found.epoch:
                    mailbox.channels.retire(brought.channel_id, brought.epoch, now())
                taken += 1
            mailbox.inbox.mark_handled(control.message.replay_key)
            if believed is not None:
                yield from _confirmed(believed[0], brought)


def ask_for_key(mailbox: Mailbox, channel_id: UUID) -> Call[None]:
    """A message's key is not here: it waits as mail, was lost, or is of a time before this agent joined."""
    found = yield from channel_calls.channel(channel_id)
    if found.owner_nhi == mailbox.identity.handle:
        expect_keys(mailbox, found)
    yield from _collect(mailbox, channel_id)
    if found.epoch_key_id is not None and found.key_epoch == found.epoch and not has_key(mailbox, found):
        yield from channel_calls.key_needed(channel_id)


def _held_key(mailbox: Mailbox, found: Shown) -> Call[EpochKey | None]:
    """The present key, also one that waits as mail. Whoever has just made it sends it to all who hold keys: to wait for
    it is less work for everybody than the next one."""
    key = _key_of(mailbox, found)
    if key is not None or _only_opens(mailbox, found):
        return key
    just_made = found.epoch_at is not None and now() - found.epoch_at < _ON_ITS_WAY
    waits = (0.0, _PATIENCE, _PATIENCE) if just_made and found.key_epoch is not None else (0.0,)
    for wait in waits:
        yield from _collect(mailbox, found.channel_id, wait=wait)
        key = _key_of(mailbox, found)
        if key is not None or _only_opens(mailbox, found):
            break
    return key


def _no_key_yet(found: Shown) -> Call[KeyNotFound]:
    """The key was sent and is not here: it is asked for again, which costs others less than the next one. In an open
    channel anybody may publish, so nobody but the owner makes others take a new key."""
    if found.key_epoch is not None:
        yield from channel_calls.key_needed(found.channel_id)
    hint = "it was asked for; if it does not come, to publish again makes a new one"
    if found.policy is Policy.OPEN:
        hint = f"it is sent to subscribers when somebody who has it publishes; its owner is {found.owner_nhi}"
    return KeyNotFound(f"the key of {found.name} has not come yet", hint=hint)


def _collect(mailbox: Mailbox, channel_id: UUID, *, wait: float = 0.0) -> Call[int]:
    """Fetch the control messages of this channel, and wait for them so long; how many keys are new.

    Other mail may name the channel too, and is not ours to take. It is put back as it was, and only at the end: the
    next look would find nothing else."""
    deadline = time.monotonic() + wait
    others: list[Handed] = []
    try:
        for _ in range(_MOST_PAGES):
            page = yield from mail_calls.poll(
                channel_id=channel_id,
                max_messages=MOST_AT_ONCE,
                wait=max(0.0, deadline - time.monotonic()),
                lease_seconds=_LEASE,
            )
            controls = [one for one in page.messages if _is_control(one)]
            others += [one for one in page.messages if one not in controls]
            yield from receiving.take_in(mailbox, controls)
            if controls or not page.messages:
                break
    except AngeliaError:
        yield from _put_back(others)
        raise
    yield from _put_back(others)
    return (yield from take_keys(mailbox))


def _put_back(others: list[Handed]) -> Call[None]:
    with contextlib.suppress(ApiError, Unreachable):  # then their leases run out
        for start in range(0, len(others), MOST_AT_ONCE):
            some = others[start : start + MOST_AT_ONCE]
            yield from mail_calls.nack(
                [
                    mail_calls.Nack(
                        replay_key=one.replay_key, lease_token=one.lease_token, retry_after=0, counted=False
                    )
                    for one in some
                ]
            )


def _is_control(one: Handed) -> bool:
    try:
        return decode(one.wire).header.control
    except Refused:
        return False


def _believed(mailbox: Mailbox, control: Opened, brought: ChannelKey) -> Call[tuple[Shown, bool] | None]:
    """The channel, and whether the key may seal, if it is one that the channel has or had.

    The present key comes from a publisher on the roster; where the server admits the members, from those of whom it
    says so. One that the channel had opens what others published under it, whoever brings it: its maker may have come
    and gone on rosters that were never seen here. It seals only if a publisher brings it."""
    channel_id, message = brought.channel_id, control.message
    if message.channel_id != channel_id or mailbox.channels.name(channel_id) is None:
        return None
    try:
        found = yield from channel_calls.channel(channel_id)
    except NotFound:
        return None  # the channel is gone
    if not 1 <= brought.epoch <= found.epoch:
        return None
    roster = yield from known_roster(mailbox, found)
    publishes = publisher_rule(mailbox, channel_id, roster)(message.sender)
    if brought.epoch == found.epoch and found.epoch_key_id is not None:
        believed = publishes and brought.key.key_id == found.epoch_key_id
        if believed and (roster is None or not roster.decides):
            believed = yield from _may_come(found, message.sender)
    else:
        believed = yield from _was_key(brought, message, publishes=publishes)
    return (found, publishes) if believed else None


def _was_key(brought: ChannelKey, message: Message, *, publishes: bool) -> Call[bool]:
    """Whether a channel had this key in its epoch. Where the server knows none, what a publisher sent waits until its
    message expires; what anybody else did must not fill the place of others."""
    try:
        had = yield from channel_calls.channel_epoch(brought.channel_id, brought.epoch)
    except NotFound:
        if publishes and now() < message.expires_at:
            raise
        return False
    return brought.key.key_id == had.key_id


def _may_come(found: Shown, sender: str) -> Call[bool]:
    """Whether the present key may come from an agent: one that may give it out, or made it. The latter may be about to
    be removed, before the epoch closes."""
    try:
        giver = yield from channel_calls.key_giver(found.channel_id, sender)
        if giver.nhi != sender or giver.may_give_key:
            return giver.nhi == sender
        return (yield from channel_calls.channel_epoch(found.channel_id, found.epoch)).made_by == sender
    except NotFound:  # here the server decides
        return False


def _confirmed(found: Shown, brought: ChannelKey) -> Call[None]:
    """Tell the server that the present key is here, if it does not count it as sent: nobody need send it again."""
    if found.key_epoch is None or found.key_epoch >= brought.epoch or brought.epoch < found.epoch:
        return
    with contextlib.suppress(AngeliaError):  # it is sent again then, and confirmed the next time
        yield from channel_calls.key_taken(found.channel_id, brought.epoch)


def _only_opens(mailbox: Mailbox, found: Channel) -> bool:
    """Whether the present key is here, and must seal nothing: its maker had another roster than counts by now."""
    if found.epoch_key_id is None or _key_of(mailbox, found) is not None:
        return False
    return mailbox.channels.key(found.channel_id, found.epoch_key_id, now()) is not None


def _key_of(mailbox: Mailbox, found: Channel) -> EpochKey | None:
    if found.epoch_key_id is None:
        return None
    return mailbox.channels.present_key(found.channel_id, found.epoch_key_id)
