"""Channels with a mailbox and a server: owners create, change and delete them and sign their rosters; subscribers join
and leave."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack
from uuid import UUID

import msgspec

from angelia.channels import api
from angelia.channels.model import ChannelPolicy, ChannelView, Subscription, check_name, split_name
from angelia.client import channel_calls, clock, key_calls
from angelia.client.agent_profiles import is_id
from angelia.client.channel_keys import expect_keys, present_key, rekey
from angelia.client.channel_rosters import (
    change_roster,
    first_roster,
    kept_rights,
    known_roster,
    replace_roster,
    served_roster,
)
from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.client.operation_requests import ask
from angelia.client.peer_keys import know_sender, refuse_misnamed
from angelia.envelope.rosters import MOST_MEMBERS, Member, Roster, UntrustedRoster, roster_document
from angelia.errors import AngeliaError, Denied, InvalidArgument, KeyNotFound, NotFound, VersionConflict
from angelia.keys.model import parse_bundle
from angelia.mailbox.mailbox import Mailbox


def find_channel(mailbox: Mailbox, name: str | UUID) -> Exchange[ChannelView]:
    """Returns a channel by its id, as `owner/name`, or by the name alone if the agent owns it; its roster, if it has
    one, must agree."""
    found = yield from look_up_channel(mailbox, name)
    try:
        yield from known_roster(mailbox, found)
    except VersionConflict:  # its owner has changed it just now
        found = yield from channel_calls.channel_again(found)
        yield from known_roster(mailbox, found)
    return found


class ChannelLimits(TypedDict, total=False):
    """The limits of a channel. One that is left out, or None, has the server's default, or stays as it is."""

    retention_seconds: int | None
    max_message_size_bytes: int | None
    max_subscribers: int | None


def create_channel(
    mailbox: Mailbox,
    name: str,
    policy: str = ChannelPolicy.ALLOWLIST,
    *,
    allow: Sequence[str] = (),
    **limits: Unpack[ChannelLimits],
) -> Exchange[ChannelView]:
    """Creates a channel with its first roster and its first key, and returns it. Without a policy, the agents of
    `allow` may subscribe. After a crash between roster and key, the owner's next publish makes the key."""
    policy = _policy(policy)
    mailbox.own_keys.refresh()  # the pair signs the roster before any request
    check_name(name)
    listed = [Member(one, may_publish=False, may_subscribe=True) for one in sorted(set(allow))]
    roster = first_roster(mailbox, name, policy, listed)
    wanted = api.NewChannel(channel_name=name, policy=policy, roster=roster_document(roster))
    given = {limit: value for limit, value in limits.items() if value is not None}
    made = yield from ask(api.CREATE, body=msgspec.structs.replace(wanted, **given))
    if (made.channel_id, made.name) != (roster.channel_id, roster.name):
        raise UntrustedRoster(f"the server was asked to make {roster.name}, and made {made.name}")
    mailbox.rosters.pin_own(roster, clock.now())
    expect_keys(mailbox, made)
    yield from rekey(mailbox, made, roster)
    return (yield from channel_calls.channel(roster.channel_id))


def update_channel(
    mailbox: Mailbox, channel: str | UUID, *, policy: str | None = None, **limits: Unpack[ChannelLimits]
) -> Exchange[ChannelView]:
    """Changes a channel of the agent's own; what is not given stays. Another policy is signed with the next roster, and
    removes subscribers that it does not admit; the present policy again only checks all subscribers."""
    wanted = None if policy is None else _policy(policy)
    found = yield from find_channel(mailbox, channel)
    if wanted is not None and wanted is not found.policy:
        found, wanted = (yield from change_roster(mailbox, found, policy=wanted)), None
        if all(limit is None for limit in limits.values()):
            return found
    return (yield from channel_calls.change_channel(found.channel_id, api.ChannelChange(policy=wanted, **limits)))


def allow(
    mailbox: Mailbox, channel: str | UUID, agent: str, *, may_subscribe: bool = True, may_publish: bool = False
) -> Exchange[Member]:
    """Puts an agent on the roster of a channel of the agent's own, or changes its rights. Returns its entry."""
    found = yield from find_channel(mailbox, channel)
    if is_id(agent):  # it may have claimed a handle since, which a roster has to name
        with contextlib.suppress(KeyNotFound, NotFound):
            answer = yield from key_calls.bundle(agent)
            refuse_misnamed(agent, parse_bundle(answer.bundle))
    entry = Member(agent, may_publish=may_publish, may_subscribe=may_subscribe)
    roster = mailbox.rosters.pinned(found.channel_id)
    if roster is None or roster.member(agent) != entry:
        yield from change_roster(mailbox, found, members=lambda before: [*_without(before, agent), entry])
    return entry


def disallow(mailbox: Mailbox, channel: str | UUID, agent: str) -> Exchange[None]:
    """Takes an agent off the roster of a channel of the agent's own; the server removes it, and the next message has
    another key."""
    # The roster is not checked first: it may be the very one that the owner has to correct.
    found = yield from look_up_channel(mailbox, channel)
    _refuse_others(mailbox, found)

    def others(before: Roster) -> list[Member]:
        if before.member(agent) is None:
            raise NotFound(
                f"{agent} is not on the roster of {found.name}",
                hint=f"who is: angelia channel allow {found.channel_name}",
            )
        return _without(before, agent)

    yield from change_roster(mailbox, found, members=others)


def roster(mailbox: Mailbox, channel: str | UUID) -> Exchange[Roster | None]:
    """Returns the roster that the channel's owner signed, as this mailbox has pinned it; None if it has signed none."""
    found = yield from find_channel(mailbox, channel)
    return (yield from known_roster(mailbox, found))


@dataclass(frozen=True, slots=True)
class RosterProposal:
    """What an owner is asked to sign. `by_server` says that only the server vouches for the policy and the members."""

    channel: ChannelView
    policy: ChannelPolicy
    members: list[Member]
    by_server: bool


def propose_roster(mailbox: Mailbox, channel: str | UUID) -> Exchange[RosterProposal]:
    """Returns what the owner may give to `sign_roster`: the pinned roster, else the server's allowlist."""
    found = yield from look_up_channel(mailbox, channel)
    pinned = mailbox.rosters.seen(found.channel_id) if found.owner_nhi == mailbox.identity.handle else None
    if pinned is not None:
        kept = kept_rights(mailbox, pinned, (yield from served_roster(mailbox, found)))
        return RosterProposal(found, ChannelPolicy(kept.policy), list(kept.members), by_server=False)
    members, cursor = list[Member](), ""
    for _ in range(MOST_PAGES):
        page = yield from ask(api.LIST_ALLOWED, found.channel_id, query=api.NamePageQuery(cursor=cursor))
        members += [one.member for one in page.allowlist]
        if page.next is None or page.next <= cursor or len(members) > MOST_MEMBERS:
            break
        cursor = page.next
    else:
        raise BadAnswer("the server's pages of members do not come to an end")
    members = [one for one in members if one.nhi != found.owner_nhi]
    return RosterProposal(found, found.policy, members, by_server=True)


def sign_roster(
    mailbox: Mailbox, channel: str | UUID, policy: ChannelPolicy, members: Iterable[Member]
) -> Exchange[ChannelView]:
    """Signs and stores a roster with exactly these members, for a channel of the agent's own.

    It serves a channel from before rosters, and an owner that lost its mailbox. The list is then only the server's
    word, so the owner should review it first."""
    found = yield from look_up_channel(mailbox, channel)
    _refuse_others(mailbox, found)
    return (yield from replace_roster(mailbox, found, policy, members))


def subscribe(mailbox: Mailbox, channel: str | UUID) -> Exchange[Subscription]:
    """Subscribes to a channel, from its end on. Its key comes with the next message, or sooner."""
    found = yield from find_channel(mailbox, channel)
    # The mailbox comes first: the key may come before the server's answer does.
    joined = mailbox.channels.name(found.channel_id) is not None
    mailbox.channels.join(found.channel_id, found.name, clock.now())
    try:
        yield from know_sender(mailbox, found.owner_nhi)
        held = yield from ask(api.SUBSCRIBE, found.channel_id)
    except AngeliaError:
        if not joined:
            mailbox.channels.leave(found.channel_id, clock.now())
        raise
    if held.key_epoch and held.key_epoch == found.epoch and present_key(mailbox, found) is None:
        held = yield from ask(api.SUBSCRIBE, found.channel_id, body=api.SubscribeBody(needs_key=True))
    return held


def unsubscribe(mailbox: Mailbox, channel: str | UUID) -> Exchange[Subscription]:
    """Ends the subscription; an owner still keeps the channel's key."""
    found = yield from look_up_channel(mailbox, channel)
    held = yield from ask(api.UNSUBSCRIBE, found.channel_id)
    if found.owner_nhi != mailbox.identity.handle:
        mailbox.channels.leave(found.channel_id, clock.now())
    return held


def delete_channel(mailbox: Mailbox, channel: str | UUID) -> Exchange[None]:
    """Deletes a channel of the agent's own, with its messages."""
    found = yield from look_up_channel(mailbox, channel)
    yield from ask(api.DELETE, found.channel_id)
    mailbox.channels.forget(found.channel_id, clock.now())


def forget_channel(mailbox: Mailbox, channel: str | UUID) -> UUID:
    """Forgets a channel's owner, roster and epoch, after a server has shown another channel for it. Returns its id.

    Nothing more is sealed under its keys. The next use pins the channel as if for the first time, so name it by
    `owner/name` then; if its roster has the same owner and name, its version still does not go back."""
    known = UUID(str(channel)) if isinstance(channel, UUID) or is_id(channel) else None
    for name in [] if known is not None else [str(channel), f"{mailbox.identity.handle}/{channel}"]:
        roster = mailbox.rosters.named(name)
        known = known or (mailbox.channels.joined_as(name) if roster is None else roster.channel_id)
    if known is None:
        raise NotFound(f"this mailbox knows of no channel {channel}", hint="say its id: angelia channel list")
    mailbox.channels.forget(known, clock.now())
    return known


def look_up_channel(mailbox: Mailbox, name: str | UUID) -> Exchange[ChannelView]:
    """Returns the channel that the server shows under a name, if it has that name. Its roster is not checked: to leave,
    to pause or to delete a channel needs no more."""
    if isinstance(name, UUID) or is_id(name):
        return (yield from channel_calls.channel(UUID(str(name))))
    candidates = [(mailbox.identity.handle, name)]
    if (named := split_name(name)) is not None:
        candidates.insert(0, named)
    for owner, short in candidates:
        page = yield from ask(api.LIST, query=api.ChannelQuery(owner=owner, name=short))
        if page.channels:
            found = yield from channel_calls.channel(page.channels[0].channel_id)
            if (found.owner_nhi, found.channel_name) != (owner, short):
                raise UntrustedRoster(f"asked for {owner}/{short}, the server showed {found.name}")
            return found
    raise NotFound(f"there is no channel {name}", hint="angelia channel list")


def _policy(name: str) -> ChannelPolicy:
    if name not in list(ChannelPolicy):
        raise InvalidArgument(f"{name!r} is no policy of a channel", hint=f"one of {', '.join(ChannelPolicy)}")
    return ChannelPolicy(name)


def _refuse_others(mailbox: Mailbox, found: ChannelView) -> None:
    if found.owner_nhi != mailbox.identity.handle:
        raise Denied(f"only {found.owner_nhi} signs who is in {found.name}")


def _without(roster: Roster, agent: str) -> list[Member]:
    return [one for one in roster.members if one.nhi != agent]
