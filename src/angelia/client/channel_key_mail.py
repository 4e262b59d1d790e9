"""Keys of channels that come as mail: fetched, and accepted if their senders may give them out.

The roster says which agents may give out a channel's key; in channels where the server admits the members, the server
does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from angelia.channels import api
from angelia.channels.model import ChannelView
from angelia.client import channel_calls, clock, mail_calls, mail_receiving
from angelia.client.api_errors import ApiError, Unreachable
from angelia.client.channel_rosters import known_roster, publisher_rule
from angelia.client.exchange import Exchange
from angelia.client.mail_calls import LeasedMessage
from angelia.client.operation_requests import ask
from angelia.envelope.rosters import Roster
from angelia.envelope.sealing import ChannelKey, Edition
from angelia.envelope.times import SKEW, unix_ms
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, Conflict, NotFound, Unavailable
from angelia.mail.api import NackItem
from angelia.mail.model import MOST_AT_ONCE
from angelia.mailbox.inbox import Message
from angelia.mailbox.mailbox import Mailbox

_LEASE, _MOST_PAGES = 60, 20
# Channels with their newest rosters, or the errors that the server's answers about them led to.
_Known: TypeAlias = dict[UUID, tuple[ChannelView, Roster | None] | AngeliaError]


def take_keys(mailbox: Mailbox) -> Exchange[int]:
    """Accepts keys of channels that came as mail, if their senders may give them out. Returns how many.

    A key that cannot be judged now, because the server lies about its channel, stays in the mailbox until it expires.
    It does not hold up keys of other channels or senders. A key of a later roster than the server shows stays until
    the server shows that one."""
    known: _Known = {}
    taken = 0
    for message, brought in _keys_in_mail(mailbox):
        if brought is None:
            mailbox.inbox.mark_handled(message.replay_key)  # it claims to be a key, and is none
            continue
        try:
            believed = yield from _believed(mailbox, message, brought, known)
        except (Unreachable, Unavailable):
            raise
        except AngeliaError:
            if clock.now() < message.expires_at or _tells_of_later(mailbox, brought, message):
                continue
            believed = None
        if believed is not None:
            came = replace(brought, made_under=believed.made_under)
            mailbox.channels.keep(came, message.sender, clock.now(), seals=believed.seals, came_at=message.received_at)
            if brought.epoch < believed.channel.epoch:
                mailbox.channels.retire(brought.channel_id, brought.epoch, clock.now())
            if believed.is_ahead:
                continue  # it tells of a roster that the server does not show
            taken += 1
        mailbox.inbox.mark_handled(message.replay_key)
        if believed is not None:
            yield from _confirmed(believed.channel, brought)
    return taken


def collect_keys(mailbox: Mailbox, channel_id: UUID, *, wait: float = 0.0) -> Exchange[int]:
    """Fetches the control messages of this channel, and waits for them so many seconds. Returns how many keys are new.

    Other mail may name the channel too. It is put back as it was, and only at the end: else the next poll would return
    the same mail again."""
    yield from collect_controls(mailbox, channel_id, wait=wait)
    return (yield from take_keys(mailbox))


def collect_controls(mailbox: Mailbox, channel_id: UUID, *, wait: float = 0.0) -> Exchange[None]:
    """Fetches the control messages that name this channel, and waits for them so many seconds."""
    deadline = time.monotonic() + wait
    others: list[LeasedMessage] = []
    try:
        for _ in range(_MOST_PAGES):
            page = yield from mail_calls.poll(
                channel_id=channel_id,
                max_messages=MOST_AT_ONCE,
                wait=max(0.0, deadline - time.monotonic()),
                lease_seconds=_LEASE,
            )
            controls = [
                one for one in page.messages if isinstance(one.envelope, Envelope) and one.envelope.header.control
            ]
            others += [one for one in page.messages if one not in controls]
            yield from mail_receiving.take_in(mailbox, controls)
            if controls or not page.messages:
                break
    except AngeliaError:
        yield from _put_back(others)
        raise
    yield from _put_back(others)


def _put_back(others: list[LeasedMessage]) -> Exchange[None]:
    """Nacks mail that brings no key of the channel, so that it is redelivered at once; that counts as no attempt."""
    nacks = [
        NackItem(replay_key=one.replay_key, lease_token=one.lease_token, retry_after=0, counted=False) for one in others
    ]
    with contextlib.suppress(ApiError, Unreachable):  # then their leases run out
        for some in mail_calls.in_hundreds(nacks):
            yield from mail_calls.nack(some)


def key_of_later_roster(mailbox: Mailbox, roster: Roster) -> tuple[str, int] | None:
    """Returns a publisher on the roster of another agent's channel that made a key under a later roster, and that
    version; None if there is none."""
    if not roster.decides or roster.owner_nhi == mailbox.identity.handle:
        return None
    for message, brought in _keys_in_mail(mailbox):
        made_under = None if brought is None or brought.channel_id != roster.channel_id else brought.made_under
        if made_under is not None and _is_later(mailbox, made_under, roster, message):
            return message.sender, made_under.version
    return None


def _keys_in_mail(mailbox: Mailbox) -> Iterator[tuple[Message, ChannelKey | None]]:
    """Yields the control messages in the inbox, each with the channel's key that it brings, if it is one."""
    last = None
    while controls := mailbox.inbox.controls(after=last):
        for control in controls:
            last = control.message
            yield last, ChannelKey.decode(control.body)


def _shown(mailbox: Mailbox, channel_id: UUID, known: _Known) -> Exchange[tuple[ChannelView, Roster | None]]:
    """Returns a channel and its newest roster; the server is asked about each channel once."""
    if channel_id not in known:
        try:
            found = yield from channel_calls.channel(channel_id)
            known[channel_id] = found, (yield from known_roster(mailbox, found))
        except (Unreachable, Unavailable):
            raise
        except AngeliaError as error:
            known[channel_id] = error
    shown = known[channel_id]
    if isinstance(shown, AngeliaError):
        raise shown
    return shown


@dataclass(frozen=True, slots=True)
class _Believed:
    """A key that its channel has or had. `seals` says that a publisher vouches for it, so that it may seal. `is_ahead`
    says that it was made under a later roster than the server shows: until the server shows that one, it only opens."""

    channel: ChannelView
    seals: bool
    is_ahead: bool
    made_under: Edition | None


def _believed(mailbox: Mailbox, message: Message, brought: ChannelKey, known: _Known) -> Exchange[_Believed | None]:
    """Returns what a key from mail may be used for, or None if the channel never had it.

    The present key must come from a publisher on the roster; where the server admits the members, from an agent that
    the server names. An earlier key opens what others published under it, whichever agent sends it: its maker may have
    been added and removed by rosters that were never seen here. It seals only if a publisher sends it. The server alone
    says which keys a channel has and had, so a key from a publisher on the roster is never dropped on its word."""
    channel_id = brought.channel_id
    if message.channel_id != channel_id or mailbox.channels.name(channel_id) is None:
        return None
    found, roster = yield from _shown(mailbox, channel_id, known)
    publishes = publisher_rule(mailbox, channel_id, roster)(message.sender)
    listed = publishes and roster is not None and roster.decides
    believed = yield from _is_key(found, brought, message.sender, publishes=publishes, listed=listed)
    if listed and not believed:
        raise Conflict(f"the server knows nothing of a key of {found.name} that {message.sender} sent")
    if not believed:
        return None
    if roster is None or not roster.decides:  # under such a policy the members decide nothing
        return _Believed(found, publishes, is_ahead=False, made_under=None if roster is None else roster.edition)
    made_under = brought.made_under
    is_ahead = made_under is not None and _is_later(mailbox, made_under, roster, message)
    seals = listed and not is_ahead and _signs_still(mailbox, message)
    return _Believed(found, seals, is_ahead, made_under)


def _tells_of_later(mailbox: Mailbox, brought: ChannelKey, message: Message) -> bool:
    """Whether a key was made under a later roster than the one that is known here."""
    pinned = mailbox.rosters.pinned(brought.channel_id)
    if pinned is None or not pinned.decides or brought.made_under is None:
        return False
    return _is_later(mailbox, brought.made_under, pinned, message)


def _is_later(mailbox: Mailbox, made_under: Edition, roster: Roster, message: Message) -> bool:
    """Whether a publisher on the roster made a key under a later roster: a higher version of the same pair, or one of a
    pair that is not known as an earlier pair of the owner. Mail from before the owner signed this roster does not
    count."""
    if not roster.lets_publish(message.sender) or unix_ms(message.created_at + SKEW) < roster.issued_at:
        return False
    if made_under.signer_id == roster.signer_id:
        return made_under.version > roster.version
    # If an earlier pair signed this roster, a pair that is known here may still be a later one.
    newest = mailbox.rosters.names_present_pair(roster)
    return not (newest and mailbox.rosters.knows_as_earlier(roster, made_under.signer_id))


def _signs_still(mailbox: Mailbox, message: Message) -> bool:
    """Whether the pair that signed a message is its sender's present one: a thief may have a replaced pair, so it
    vouches for no key."""
    pin = mailbox.pinned_keys.pin(message.sender)
    return pin is not None and pin.fingerprint == message.sender_fingerprint


def _is_key(found: ChannelView, brought: ChannelKey, sender: str, *, publishes: bool, listed: bool) -> Exchange[bool]:
    """Whether the channel has this key, and its sender may give it out, or had it in an earlier epoch."""
    if brought.epoch == found.epoch and found.epoch_key_id is not None:
        if not publishes or brought.key.key_id != found.epoch_key_id:
            return False
        return listed or (yield from _may_come(found, sender))
    if not 1 <= brought.epoch <= found.epoch:
        return False
    try:
        had = yield from ask(api.SHOW_EPOCH, brought.channel_id, brought.epoch)
    except NotFound:
        return False
    return brought.key.key_id == had.key_id


def _may_come(found: ChannelView, sender: str) -> Exchange[bool]:
    """Whether the server says that an agent may give out the present key, or made it. Its maker may have lost the right
    since, before the epoch closes."""
    try:
        giver = yield from ask(api.SHOW_KEY_GIVER, found.channel_id, sender)
        if giver.nhi != sender or giver.may_give_key:
            return giver.nhi == sender
        return (yield from ask(api.SHOW_EPOCH, found.channel_id, found.epoch)).made_by == sender
    except NotFound:  # here the server decides
        return False


def _confirmed(found: ChannelView, brought: ChannelKey) -> Exchange[None]:
    """Confirms the present key to the server, unless it counts as sent already: no publisher need send it again."""
    if found.key_epoch is None or found.key_epoch >= brought.epoch or brought.epoch < found.epoch:
        return
    with contextlib.suppress(AngeliaError):  # else it is sent again, and confirmed the next time
        yield from ask(api.KEY_TAKEN, found.channel_id, body=api.KeyTakenBody(epoch=brought.epoch))
