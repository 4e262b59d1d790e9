"""The key that a channel's messages are sealed under: the present one if it is here or on its way, else a new one.

The server's word about the epoch is believed forward only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec

from angelia.channels import api
from angelia.channels.model import Channel, ChannelPolicy, ChannelView
from angelia.client import channel_calls, clock
from angelia.client.channel_key_mail import collect_keys, key_of_later_roster
from angelia.client.channel_rosters import know_earlier_pairs, signed_roster
from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask
from angelia.envelope.rosters import Roster, UntrustedRoster
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.errors import EpochStale, KeyNotFound, VersionConflict
from angelia.mailbox.mailbox import Mailbox

_ON_ITS_WAY, _PATIENCE = timedelta(seconds=60), 10.0
_RACES = 3
_KEY_LOST = api.KeyTakenBody(epoch=0)  # the server counts it once an hour


@dataclass(frozen=True, slots=True)
class SealingKey:
    """The key to seal under, the channel and its roster at that time, and whether the key was made just now."""

    key: EpochKey
    channel: ChannelView
    roster: Roster
    new: bool


def expect_keys(mailbox: Mailbox, found: Channel) -> None:
    """Takes this channel's keys from mail from now on; a second call changes nothing."""
    if mailbox.channels.name(found.channel_id) is None:
        mailbox.channels.join(found.channel_id, found.name, clock.now())


def sealing_key(mailbox: Mailbox, found: ChannelView) -> Exchange[SealingKey]:
    """Returns the key to seal under: the present one if it is here or on its way, else a new one."""
    for _ in range(_RACES):
        try:
            return (yield from _sealing_key(mailbox, found))
        except VersionConflict:  # another publisher was faster, or the owner
            found = yield from channel_calls.channel_again(found)
    raise EpochStale(f"the key of {found.name} changes faster than anybody can publish", hint="try again")


def _sealing_key(mailbox: Mailbox, found: ChannelView) -> Exchange[SealingKey]:
    # The roster comes first: it says which keys may seal.
    roster = yield from _newest_roster(mailbox, found)
    mailbox.channels.check_epoch(found.channel_id, found.epoch)
    if not found.key_is_due(clock.now()):
        key = yield from _held_key(mailbox, found)
        if (yield from _newest_roster(mailbox, found)) != roster:  # mail with the key told of a later one
            raise VersionConflict(f"{found.name} has changed just now", hint="try again")
        if key is not None:
            return SealingKey(key, found, roster, new=False)
        if found.key_epoch == found.epoch and not _only_opens(mailbox, found):
            raise (yield from _no_key_yet(found))
    if found.policy is ChannelPolicy.OPEN and found.owner_nhi != mailbox.identity.handle:
        raise (yield from _no_key_yet(found))
    key = yield from rekey(mailbox, found, roster)
    made = msgspec.structs.replace(found, epoch=found.epoch + 1, epoch_key_id=key.key_id)
    return SealingKey(key, made, roster, new=True)


def _newest_roster(mailbox: Mailbox, found: ChannelView) -> Exchange[Roster]:
    """Returns the roster to seal by. If a publisher on it has sent a key that was made under a later roster than the
    server shows, that is believed: the later roster may have removed a member."""
    roster = yield from signed_roster(mailbox, found)
    if key_of_later_roster(mailbox, roster) is None:
        return roster
    roster = yield from signed_roster(mailbox, (yield from channel_calls.channel_again(found)))
    yield from know_earlier_pairs(mailbox, roster.owner_nhi)
    later = key_of_later_roster(mailbox, roster)
    if later is None:
        return roster
    sender, version = later
    raise UntrustedRoster(
        f"{sender} has sent a key that was made under version {version} of the roster of {roster.name}, and the server "
        f"shows only version {roster.version}",
        hint="nothing is sealed for members who may be removed by now; ask the owner which version is the newest",
    )


def check_roster_stands(mailbox: Mailbox, roster: Roster) -> None:
    """Raises VersionConflict unless the roster is still the newest one known here: members may have been removed."""
    if mailbox.rosters.pinned(roster.channel_id) != roster:
        raise VersionConflict(f"{roster.name} has changed just now", hint="try again")


def rekey(mailbox: Mailbox, found: Channel, roster: Roster) -> Exchange[EpochKey]:
    """Makes the channel's next key, for the members on the roster, and returns it. It is stored here before the server
    hears of it: a crash must not lose it."""
    key, epoch = EpochKey.generate(), found.epoch + 1
    mailbox.channels.keep(
        ChannelKey(found.channel_id, epoch, key, roster.edition), mailbox.identity.handle, clock.now()
    )
    yield from ask(api.SET_EPOCH, found.channel_id, body=api.EpochBody(epoch, key.key_id))
    mailbox.channels.retire_before(found.channel_id, epoch, clock.now())
    return key


def ask_for_key(mailbox: Mailbox, channel_id: UUID) -> Exchange[None]:
    """Fetches a missing key from mail, and asks for it if it was lost. A key from before this agent joined stays
    missing."""
    found = yield from channel_calls.channel(channel_id)
    if found.owner_nhi == mailbox.identity.handle:
        expect_keys(mailbox, found)
    yield from collect_keys(mailbox, channel_id)
    if found.epoch_key_id is not None and found.key_epoch == found.epoch and present_key(mailbox, found) is None:
        yield from ask(api.KEY_TAKEN, channel_id, body=_KEY_LOST)


def _held_key(mailbox: Mailbox, found: ChannelView) -> Exchange[EpochKey | None]:
    """Returns the present key, also if it still waits as mail; None if it is not here. The agent that has just made it
    sends it to all key holders: to wait for it is less work for all of them than another key."""
    key = present_key(mailbox, found)
    if key is not None or _only_opens(mailbox, found):
        return key
    just_made = found.epoch_at is not None and clock.now() - found.epoch_at < _ON_ITS_WAY
    waits = (0.0, _PATIENCE, _PATIENCE) if just_made and found.key_epoch is not None else (0.0,)
    for wait in waits:
        yield from collect_keys(mailbox, found.channel_id, wait=wait)
        key = present_key(mailbox, found)
        if key is not None or _only_opens(mailbox, found):
            break
    return key


def _no_key_yet(found: ChannelView) -> Exchange[KeyNotFound]:
    """Asks again for a key that was sent and is not here, and returns the error to raise. That costs the other members
    less than a new key. In an open channel, where any agent may publish, only the owner makes a new key."""
    if found.key_epoch is not None:
        yield from ask(api.KEY_TAKEN, found.channel_id, body=_KEY_LOST)
    hint = "it was asked for; if it does not come, to publish again makes a new one"
    if found.policy is ChannelPolicy.OPEN:
        hint = f"it is sent to subscribers when somebody who has it publishes; its owner is {found.owner_nhi}"
    return KeyNotFound(f"the key of {found.name} has not come yet", hint=hint)


def _only_opens(mailbox: Mailbox, found: Channel) -> bool:
    """Whether the present key is here, but must not seal: it was made under a roster that does not count any more."""
    if found.epoch_key_id is None or present_key(mailbox, found) is not None:
        return False
    return mailbox.channels.key(found.channel_id, found.epoch_key_id, clock.now()) is not None


def present_key(mailbox: Mailbox, found: Channel) -> EpochKey | None:
    """Returns the key of the present epoch if it is here and may seal."""
    if found.epoch_key_id is None:
        return None
    return mailbox.channels.present_key(found.channel_id, found.epoch_key_id)
