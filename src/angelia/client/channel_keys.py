"""Which key a channel has: taken from mail as far as it is believed, or made where there is none.

Each function is a verb like those of `calls`. Who may give out a channel's key is on its roster; in channels where the
server admits the members, the server says it. What it says of the epoch is believed forward only.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

import msgspec

from angelia.channels.model import Channel, Policy, Shown
from angelia.client import channel_calls, mail_calls, mail_receiving
from angelia.client.api_errors import ApiError, Unreachable
from angelia.client.channel_rosters import know_earlier_pairs, known_roster, publisher_rule, signed_roster
from angelia.client.exchange import Exchange
from angelia.client.mail_calls import LeasedMessage
from angelia.client.mailbox_keys import now
from angelia.envelope.rosters import Roster, UntrustedRoster
from angelia.envelope.sealing import ChannelKey, Edition, EpochKey
from angelia.envelope.times import SKEW, unix_ms
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, Conflict, EpochStale, KeyNotFound, NotFound, Unavailable, VersionConflict
from angelia.mail.api import NackItem
from angelia.mail.model import MOST_AT_ONCE
from angelia.mailbox.inbox import Message, Opened
from angelia.mailbox.mailbox import Mailbox

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


def present_key(mailbox: Mailbox, found: Shown) -> Exchange[Present]:
    """The key to seal under: the present one if it is here or on its way, else a new one."""
    for _ in range(_RACES):
        try:
            return (yield from _present_key(mailbox, found))
        except VersionConflict:  # another publisher was faster, or the owner
            found = yield from channel_calls.channel_again(found)
    raise EpochStale(f"the key of {found.name} changes faster than anybody can publish", hint="try again")


def _present_key(mailbox: Mailbox, found: Shown) -> Exchange[Present]:
    # First the roster: it says which keys may seal.
    roster = yield from _newest_roster(mailbox, found)
    mailbox.channels.follow(found.channel_id, found.epoch)
    if not found.key_is_due(now()):
        key = yield from _held_key(mailbox, found)
        if (yield from _newest_roster(mailbox, found)) != roster:  # word of a later one has come with the key
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


def _newest_roster(mailbox: Mailbox, found: Shown) -> Exchange[Roster]:
    """The roster to seal by. A listed publisher whose key was made by a later one than the server shows is believed:
    that one may have taken a member from it."""
    roster = yield from signed_roster(mailbox, found)
    if _made_by_later(mailbox, roster) is None:
        return roster
    roster = yield from signed_roster(mailbox, (yield from channel_calls.channel_again(found)))
    yield from know_earlier_pairs(mailbox, roster.owner_nhi)
    later = _made_by_later(mailbox, roster)
    if later is None:
        return roster
    sender, version = later
    raise UntrustedRoster(
        f"{sender} has sent a key that was made under version {version} of the roster of {roster.name}, and the server "
        f"shows only version {roster.version}",
        hint="nothing is sealed for members who may be removed by now; ask the owner which version is the newest",
    )


def _made_by_later(mailbox: Mailbox, roster: Roster) -> tuple[str, int] | None:
    """The publisher on a roster of another agent's channel who made a key by a later one, and by which."""
    if not roster.decides or roster.owner_nhi == mailbox.identity.handle:
        return None
    last = None
    while controls := mailbox.inbox.controls(after=last):
        for control in controls:
            last = control.message
            brought = ChannelKey.decode(control.body)
            if brought is None or brought.channel_id != roster.channel_id:
                continue
            if brought.made_under is not None and _is_later(mailbox, brought.made_under, roster, last):
                return last.sender, brought.made_under.version
    return None


def check_roster_stands(mailbox: Mailbox, roster: Roster) -> None:
    """Whether the roster is still the newest that is known here; others may have been taken from it meanwhile."""
    if mailbox.rosters.pinned(roster.channel_id) != roster:
        raise VersionConflict(f"{roster.name} has changed just now", hint="try again")


def rekey(mailbox: Mailbox, found: Channel, roster: Roster) -> Exchange[EpochKey]:
    """Make the channel's next key, for those on the roster. It is here before the server hears of it: a crash must not
    lose it."""
    key, epoch = EpochKey.generate(), found.epoch + 1
    mailbox.channels.keep(ChannelKey(found.channel_id, epoch, key, roster.edition), mailbox.identity.handle, now())
    yield from channel_calls.set_epoch(found.channel_id, epoch, key.key_id)
    mailbox.channels.retire_before(found.channel_id, epoch, now())
    return key


def take_keys(mailbox: Mailbox) -> Exchange[int]:
    """Believe the keys of channels that came as mail, as far as their senders may give them out; how many.

    What cannot be judged now, because the server lies about one channel, stays until it expires, and keeps nothing of
    other channels or senders from us. A key of a later roster than the server shows stays until that one is shown."""
    taken, last, known = 0, None, _Known(mailbox)
    while controls := mailbox.inbox.controls(after=last):
        for control in controls:
            last = control.message
            brought = ChannelKey.decode(control.body)
            if brought is None:
                mailbox.inbox.mark_handled(last.replay_key)  # it says to be a key, and is none
                continue
            try:
                believed = yield from _believed(mailbox, control, brought, known)
            except (Unreachable, Unavailable):
                raise
            except AngeliaError:
                if now() < last.expires_at or _tells_of_later(mailbox, brought, last):
                    continue
                believed = None
            if believed is not None:
                came, message = replace(brought, made_under=believed.made_under), control.message
                mailbox.channels.keep(came, message.sender, now(), seals=believed.seals, came_at=message.received_at)
                if brought.epoch < believed.channel.epoch:
                    mailbox.channels.retire(brought.channel_id, brought.epoch, now())
                if believed.is_ahead:
                    continue  # it tells of a roster that the server does not show
                taken += 1
            mailbox.inbox.mark_handled(control.message.replay_key)
            if believed is not None:
                yield from _confirmed(believed.channel, brought)
    return taken


def ask_for_key(mailbox: Mailbox, channel_id: UUID) -> Exchange[None]:
    """A message's key is not here: it waits as mail, was lost, or is of a time before this agent joined."""
    found = yield from channel_calls.channel(channel_id)
    if found.owner_nhi == mailbox.identity.handle:
        expect_keys(mailbox, found)
    yield from _collect(mailbox, channel_id)
    if found.epoch_key_id is not None and found.key_epoch == found.epoch and not has_key(mailbox, found):
        yield from channel_calls.key_needed(channel_id)


def _held_key(mailbox: Mailbox, found: Shown) -> Exchange[EpochKey | None]:
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


def _no_key_yet(found: Shown) -> Exchange[KeyNotFound]:
    """The key was sent and is not here: it is asked for again, which costs others less than the next one. In an open
    channel anybody may publish, so nobody but the owner makes others take a new key."""
    if found.key_epoch is not None:
        yield from channel_calls.key_needed(found.channel_id)
    hint = "it was asked for; if it does not come, to publish again makes a new one"
    if found.policy is Policy.OPEN:
        hint = f"it is sent to subscribers when somebody who has it publishes; its owner is {found.owner_nhi}"
    return KeyNotFound(f"the key of {found.name} has not come yet", hint=hint)


def _collect(mailbox: Mailbox, channel_id: UUID, *, wait: float = 0.0) -> Exchange[int]:
    """Fetch the control messages of this channel, and wait for them so long; how many keys are new.

    Other mail may name the channel too, and is not ours to take. It is put back as it was, and only at the end: the
    next look would find nothing else."""
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
            controls = [one for one in page.messages if _is_control(one)]
            others += [one for one in page.messages if one not in controls]
            yield from mail_receiving.take_in(mailbox, controls)
            if controls or not page.messages:
                break
    except AngeliaError:
        yield from _put_back(others)
        raise
    yield from _put_back(others)
    return (yield from take_keys(mailbox))


def _put_back(others: list[LeasedMessage]) -> Exchange[None]:
    with contextlib.suppress(ApiError, Unreachable):  # then their leases run out
        for start in range(0, len(others), MOST_AT_ONCE):
            some = others[start : start + MOST_AT_ONCE]
            yield from mail_calls.nack(
                [
                    NackItem(replay_key=one.replay_key, lease_token=one.lease_token, retry_after=0, counted=False)
                    for one in some
                ]
            )


def _is_control(one: LeasedMessage) -> bool:
    return isinstance(one.envelope, Envelope) and one.envelope.header.control


class _Known:
    """The channels whose keys came, each asked for once in one go."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._found: dict[UUID, tuple[Shown, Roster | None] | AngeliaError] = {}

    def channel(self, channel_id: UUID) -> Exchange[tuple[Shown, Roster | None]]:
        """The channel and the newest roster of it."""
        if channel_id not in self._found:
            try:
                found = yield from channel_calls.channel(channel_id)
                self._found[channel_id] = found, (yield from known_roster(self._mailbox, found))
            except (Unreachable, Unavailable):
                raise
            except AngeliaError as error:
                self._found[channel_id] = error
        known = self._found[channel_id]
        if isinstance(known, AngeliaError):
            raise known
        return known


@dataclass(frozen=True, slots=True)
class _Believed:
    """A key that its channel has or had; `is_ahead` says that a publisher made it by a later roster than the server
    shows, so that it only opens until that one is there."""

    channel: Shown
    vouched: bool
    is_ahead: bool
    made_under: Edition | None

    @property
    def seals(self) -> bool:
        return self.vouched and not self.is_ahead


def _believed(mailbox: Mailbox, control: Opened, brought: ChannelKey, known: _Known) -> Exchange[_Believed | None]:
    """What a key that came is good for, if it is one that the channel has or had; None if it is not.

    The present key comes from a publisher on the roster; where the server admits the members, from those of whom it
    says so. One that the channel had opens what others published under it, whoever brings it: its maker may have come
    and gone on rosters that were never seen here. It seals only if a publisher brings it. The server alone says which
    keys a channel has and had, so what a publisher on the roster brings is never dropped on its word."""
    channel_id, message = brought.channel_id, control.message
    if message.channel_id != channel_id or mailbox.channels.name(channel_id) is None:
        return None
    found, roster = yield from known.channel(channel_id)
    publishes = publisher_rule(mailbox, channel_id, roster)(message.sender)
    listed = publishes and roster is not None and roster.decides
    believed = yield from _is_key(found, brought, message.sender, publishes=publishes, listed=listed)
    if listed and not believed:
        raise Conflict(f"the server knows nothing of a key of {found.name} that {message.sender} sent")
    if not believed:
        return None
    if roster is None or not roster.decides:  # there its members decide nothing, nor do their words about it
        return _Believed(found, publishes, is_ahead=False, made_under=None if roster is None else roster.edition)
    made_under = brought.made_under
    is_ahead = made_under is not None and _is_later(mailbox, made_under, roster, message)
    return _Believed(found, listed and _signs_still(mailbox, message), is_ahead, made_under)


def _tells_of_later(mailbox: Mailbox, brought: ChannelKey, message: Message) -> bool:
    """Whether a key was made by a later roster than the one that is known here."""
    pinned = mailbox.rosters.pinned(brought.channel_id)
    if pinned is None or not pinned.decides or brought.made_under is None:
        return False
    return _is_later(mailbox, brought.made_under, pinned, message)


def _is_later(mailbox: Mailbox, made_under: Edition, roster: Roster, message: Message) -> bool:
    """Whether a listed publisher made a key by a later roster than this: by one of a pair that is not known as an
    earlier one of the owner's, too. What was sent before the owner signed this one counts no more."""
    if not roster.lets_publish(message.sender) or unix_ms(message.created_at + SKEW) < roster.issued_at:
        return False
    if made_under.signer_id == roster.signer_id:
        return made_under.version > roster.version
    # Before a roster of a former pair, a pair that is known by now may be a later one.
    newest = mailbox.rosters.names_present_pair(roster)
    return not (newest and mailbox.rosters.knows_as_earlier(roster, made_under.signer_id))


def _signs_still(mailbox: Mailbox, message: Message) -> bool:
    """Whether the pair that signed a message is its sender's present one: one that was replaced may be in other hands,
    and vouches for no key."""
    pin = mailbox.trust.pin(message.sender)
    return pin is not None and pin.fingerprint == message.sender_fingerprint


def _is_key(found: Shown, brought: ChannelKey, sender: str, *, publishes: bool, listed: bool) -> Exchange[bool]:
    """Whether the channel has this key, and its sender may give it out, or had it in an earlier epoch."""
    if brought.epoch == found.epoch and found.epoch_key_id is not None:
        if not publishes or brought.key.key_id != found.epoch_key_id:
            return False
        return listed or (yield from _may_come(found, sender))
    if not 1 <= brought.epoch <= found.epoch:
        return False
    try:
        had = yield from channel_calls.channel_epoch(brought.channel_id, brought.epoch)
    except NotFound:
        return False
    return brought.key.key_id == had.key_id


def _may_come(found: Shown, sender: str) -> Exchange[bool]:
    """Whether the present key may come from an agent: one that may give it out, or made it. The latter may be about to
    be removed, before the epoch closes."""
    try:
        giver = yield from channel_calls.key_giver(found.channel_id, sender)
        if giver.nhi != sender or giver.may_give_key:
            return giver.nhi == sender
        return (yield from channel_calls.channel_epoch(found.channel_id, found.epoch)).made_by == sender
    except NotFound:  # here the server decides
        return False


def _confirmed(found: Shown, brought: ChannelKey) -> Exchange[None]:
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
