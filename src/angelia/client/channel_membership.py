"""Being in channels with a mailbox and a server: find, make, change, join, leave."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from angelia.channels.model import Policy, Shown, Subscription, check_name, split_name
from angelia.client import channel_calls, key_calls
from angelia.client.channel_keys import expect_keys, has_key, rekey
from angelia.client.channel_rosters import (
    change_roster,
    first_roster,
    kept_rights,
    known_roster,
    replace_roster,
    served_roster,
)
from angelia.client.channel_senders import know_senders
from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.client.mailbox_keys import is_id, now, refuse_misnamed
from angelia.envelope.rosters import MOST_MEMBERS, Member, Roster, UntrustedRoster
from angelia.errors import AngeliaError, Denied, KeyNotFound, NotFound, VersionConflict
from angelia.keys.model import parse_bundle
from angelia.mailbox.mailbox import Mailbox


def find_channel(mailbox: Mailbox, name: str | UUID) -> Exchange[Shown]:
    """A channel by its id, as `owner/name`, or by the name of one's own; its roster, if it has one, agrees."""
    found = yield from look_up_channel(mailbox, name)
    for last_try in (False, True):
        try:
            yield from known_roster(mailbox, found)
        except VersionConflict:  # its owner has changed it just now
            if last_try:
                raise
            found = yield from channel_calls.channel_again(found)
        else:
            break
    return found


def create_channel(
    mailbox: Mailbox,
    name: str,
    policy: Policy,
    *,
    allow: Sequence[str] = (),
    retention_seconds: int | None = None,
    max_message_size_bytes: int | None = None,
    max_subscribers: int | None = None,
) -> Exchange[Shown]:
    """Make a channel with its first roster and its first key. One that was made without the key, by a process that
    crashed, gets it when its owner publishes."""
    mailbox.own_keys.refresh()  # the pair signs the roster before any request
    check_name(name)
    listed = [Member(one, may_publish=False, may_subscribe=True) for one in sorted(set(allow))]
    roster = first_roster(mailbox, name, policy, listed)
    made = yield from channel_calls.make_channel(
        name,
        policy,
        retention_seconds=retention_seconds,
        max_message_size_bytes=max_message_size_bytes,
        max_subscribers=max_subscribers,
        roster=roster,
    )
    if (made.channel_id, made.name) != (roster.channel_id, roster.name):
        raise UntrustedRoster(f"the server was asked to make {roster.name}, and made {made.name}")
    mailbox.rosters.pin_own(roster, now())
    expect_keys(mailbox, made)
    yield from rekey(mailbox, made, roster)
    return (yield from channel_calls.channel(roster.channel_id))


def update_channel(
    mailbox: Mailbox,
    channel: str | UUID,
    *,
    policy: Policy | None = None,
    retention_seconds: int | None = None,
    max_message_size_bytes: int | None = None,
    max_subscribers: int | None = None,
) -> Exchange[Shown]:
    """Change a channel of one's own; what is not given stays. Another policy is signed with the next roster, and drops
    those who may not stay; the same one again only checks all subscribers."""
    found = yield from find_channel(mailbox, channel)
    if policy is not None and policy != found.policy:
        wanted, policy = policy, None
        found = yield from change_roster(mailbox, found, lambda before: (wanted, before.members))
        if retention_seconds is max_message_size_bytes is max_subscribers is None:
            return found
    return (
        yield from channel_calls.update_channel(
            found.channel_id,
            policy=policy,
            retention_seconds=retention_seconds,
            max_message_size_bytes=max_message_size_bytes,
            max_subscribers=max_subscribers,
        )
    )


def allow(
    mailbox: Mailbox, channel: str | UUID, agent: str, *, may_subscribe: bool = True, may_publish: bool = False
) -> Exchange[Member]:
    """Put an agent on the roster of a channel of one's own, or change what it may."""
    found = yield from find_channel(mailbox, channel)
    if is_id(agent):  # it may have claimed a handle since, which a roster has to name
        with contextlib.suppress(KeyNotFound, NotFound):
            answer = yield from key_calls.bundle(agent)
            refuse_misnamed(agent, parse_bundle(answer.bundle))
    entry = Member(agent, may_publish=may_publish, may_subscribe=may_subscribe)
    roster = mailbox.rosters.pinned(found.channel_id)
    if roster is None or roster.member(agent) != entry:
        yield from change_roster(
            mailbox, found, lambda before: (Policy(before.policy), [*_without(before, agent), entry])
        )
    return entry


def disallow(mailbox: Mailbox, channel: str | UUID, agent: str) -> Exchange[None]:
    """Take an agent off the roster of a channel of one's own; it is removed, and the channel gets another key."""
    # Not found by its roster: that may be the very one which the owner is to set right.
    found = yield from look_up_channel(mailbox, channel)
    _refuse_others(mailbox, found)

    def change(before: Roster) -> tuple[Policy, list[Member]]:
        if before.member(agent) is None:
            raise NotFound(
                f"{agent} is not on the roster of {found.name}",
                hint=f"who is: angelia channel allow {found.channel_name}",
            )
        return Policy(before.policy), _without(before, agent)

    yield from change_roster(mailbox, found, change)


def roster(mailbox: Mailbox, channel: str | UUID) -> Exchange[Roster | None]:
    """Who is in a channel, as its owner signed it and this mailbox has pinned it; None where it has signed nothing."""
    found = yield from find_channel(mailbox, channel)
    return (yield from known_roster(mailbox, found))


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an owner is asked to sign. `by_server` says that only the server vouches for the policy and the members."""

    channel: Shown
    policy: Policy
    members: list[Member]
    by_server: bool


def propose_roster(mailbox: Mailbox, channel: str | UUID) -> Exchange[Proposal]:
    """What `sign_roster` may be given: the roster that this mailbox has pinned, else what the server lists."""
    found = yield from look_up_channel(mailbox, channel)
    pinned = mailbox.rosters.seen(found.channel_id) if found.owner_nhi == mailbox.identity.handle else None
    if pinned is not None:
        kept = kept_rights(mailbox, pinned, (yield from served_roster(mailbox, found)))
        return Proposal(found, Policy(kept.policy), list(kept.members), by_server=False)
    members, cursor = list[Member](), ""
    for _ in range(MOST_PAGES):
        page = yield from channel_calls.channel_allowlist(found.channel_id, cursor=cursor)
        members += [Member(one.nhi, one.may_publish, one.may_subscribe) for one in page.allowlist]
        if page.next is None or page.next <= cursor or len(members) > MOST_MEMBERS:
            break
        cursor = page.next
    else:
        raise BadAnswer("the server's pages of members do not come to an end")
    members = [one for one in members if one.nhi != found.owner_nhi]
    return Proposal(found, found.policy, members, by_server=True)


def sign_roster(mailbox: Mailbox, channel: str | UUID, policy: Policy, members: Iterable[Member]) -> Exchange[Shown]:
    """Sign that exactly these are in a channel of one's own, and publish its roster.

    For a channel of an earlier version, which has none, and for a mailbox that was lost: the list is then only the
    server's word, so look at it first."""
    found = yield from look_up_channel(mailbox, channel)
    _refuse_others(mailbox, found)
    return (yield from replace_roster(mailbox, found, policy, members))


def subscribe(mailbox: Mailbox, channel: str | UUID) -> Exchange[Subscription]:
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


def unsubscribe(mailbox: Mailbox, channel: str | UUID) -> Exchange[Subscription]:
    """Listen no more; an owner still keeps the channel's key."""
    found = yield from look_up_channel(mailbox, channel)
    held = yield from channel_calls.leave_channel(found.channel_id)
    if found.owner_nhi != mailbox.identity.handle:
        mailbox.channels.leave(found.channel_id, now())
    return held


def delete_channel(mailbox: Mailbox, channel: str | UUID) -> Exchange[None]:
    """Delete a channel of one's own, with its messages."""
    found = yield from look_up_channel(mailbox, channel)
    yield from channel_calls.delete_channel(found.channel_id)
    mailbox.channels.forget(found.channel_id, now())


def forget_channel(mailbox: Mailbox, channel: str | UUID) -> UUID:
    """Unlearn whose a channel is, who is in it and at which epoch: after a look at what was no true answer.

    Nothing more is sealed under its keys. The next use is a first contact, so name it by `owner/name` then; if its
    roster is of the same owner and name, its version still does not go back."""
    known = UUID(str(channel)) if isinstance(channel, UUID) or is_id(channel) else None
    for name in [] if known is not None else [str(channel), f"{mailbox.identity.handle}/{channel}"]:
        roster = mailbox.rosters.named(name)
        known = known or (mailbox.channels.joined_as(name) if roster is None else roster.channel_id)
    if known is None:
        raise NotFound(f"this mailbox knows of no channel {channel}", hint="say its id: angelia channel list")
    mailbox.channels.forget(known, now())
    return known


def look_up_channel(mailbox: Mailbox, name: str | UUID) -> Exchange[Shown]:
    """The channel that the server shows under a name, if it is at least called so. Nothing of its roster is checked: to
    leave it, to pause or to delete it needs no more."""
    if isinstance(name, UUID) or is_id(name):
        return (yield from channel_calls.channel(UUID(str(name))))
    candidates = [(mailbox.identity.handle, name)]
    if (named := split_name(name)) is not None:
        candidates.insert(0, named)
    for owner, short in candidates:
        page = yield from channel_calls.channels(owner=owner, name=short)
        if page.channels:
            found = yield from channel_calls.channel(page.channels[0].channel_id)
            if (found.owner_nhi, found.channel_name) != (owner, short):
                raise UntrustedRoster(f"asked for {owner}/{short}, the server showed {found.name}")
            return found
    raise NotFound(f"there is no channel {name}", hint="angelia channel list")


def _refuse_others(mailbox: Mailbox, found: Shown) -> None:
    if found.owner_nhi != mailbox.identity.handle:
        raise Denied(f"only {found.owner_nhi} signs who is in {found.name}")


def _without(roster: Roster, agent: str) -> list[Member]:
    return [one for one in roster.members if one.nhi != agent]
