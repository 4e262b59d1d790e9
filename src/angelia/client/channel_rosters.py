"""The rosters of channels: members believe a roster that the owner signed, checked and pinned, never the server's list.

The pinned copy is used until the server shows another version, so that publishing fetches no roster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeAlias
from uuid import UUID, uuid4

from angelia.channels.model import Channel, ChannelPolicy, ChannelView
from angelia.client import channel_calls, clock, key_calls, own_key_renewal, peer_keys
from angelia.client.exchange import Exchange
from angelia.envelope.bundles import Link
from angelia.envelope.refusals import Refused
from angelia.envelope.rosters import FIRST_PREVIOUS, Member, Roster, UntrustedRoster, sign_roster
from angelia.envelope.times import moment, unix_ms
from angelia.errors import AngeliaError, Conflict, NotFound, VersionConflict
from angelia.keys.model import parse_links
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind

Members: TypeAlias = Iterable[Member]
_TRIES = 5
_NOT_NOW = "could not be signed with your present pair now"
# So many rosters at the most are signed in a row for a server that was restored from an old backup.
MOST_AHEAD = 1_000


class MissingRoster(Conflict):
    """The channel has no roster that its owner signed"""


def first_roster(mailbox: Mailbox, name: str, policy: ChannelPolicy, members: Members) -> Roster:
    """Returns the signed roster of a channel that is still to be created, with the channel's new id."""
    identity = mailbox.identity
    before = mailbox.rosters.seen_as(f"{identity.handle}/{name}")
    return sign_roster(
        identity.pair,
        channel_id=uuid4(),
        owner_nhi=identity.handle,
        channel_name=name,
        policy=policy.value,
        members=members,
        # Of two channels of one name the one with the later roster counts, and this clock may have gone back.
        issued_at=max(unix_ms(clock.now()), 0 if before is None else before.issued_at + 1),
    )


def known_roster(mailbox: Mailbox, found: Channel) -> Exchange[Roster | None]:
    """Returns the newest roster of a channel, which must agree with the server's view of the channel; None if the owner
    has signed none yet.

    Name, policy and members of a channel change by the owner's signature alone."""
    joined = mailbox.channels.name(found.channel_id)
    if joined not in (None, found.name):
        raise UntrustedRoster(
            f"the server calls the channel {found.name} that was joined as {joined}",
            hint=f"if it never was {joined}: angelia channel forget {found.channel_id}",
        )
    if found.owner_nhi == mailbox.identity.handle:
        roster = yield from _own_roster(mailbox, found)
    else:
        roster = yield from _roster_of_another(mailbox, found)
    if roster is None:
        if mailbox.rosters.named(found.name) is not None:
            raise UntrustedRoster(f"the server shows a channel without a roster as {found.name}, which is another one")
        return None
    if (roster.channel_id, roster.name) != (found.channel_id, found.name):
        raise UntrustedRoster(f"the server calls the channel {found.name} whose roster is that of {roster.name}")
    if roster.version < found.roster_version:
        raise UntrustedRoster(
            f"the server tells of version {found.roster_version} of the roster of {roster.name}, and has only "
            f"version {roster.version}",
            hint=f"if that is the newest, {found.owner_nhi} signs it again: angelia channel sign {found.channel_name}",
        )
    if roster.policy != found.policy:
        if roster.version > found.roster_version:
            raise VersionConflict(f"{roster.name} has changed just now", hint="try again")
        raise UntrustedRoster(
            f"the server says that {roster.name} is {found.policy.value}; its owner signed {roster.policy}",
            hint="nothing is sealed on the server's word; to set it right, "
            f"{found.owner_nhi} runs `angelia channel sign {found.channel_name}`",
        )
    return roster


def signed_roster(mailbox: Mailbox, found: Channel) -> Exchange[Roster]:
    """Returns the newest roster for an agent that seals; without a roster it is not known which agents may have the
    key."""
    roster = yield from known_roster(mailbox, found)
    if roster is None:
        raise missing_roster(mailbox, found)
    return roster


def missing_roster(mailbox: Mailbox, found: Channel) -> MissingRoster:
    hint = f"{found.owner_nhi} runs `angelia channel sign {found.channel_name}`, once"
    if found.owner_nhi == mailbox.identity.handle:
        hint = f"look at its list and sign it: angelia channel sign {found.channel_name}"
    return MissingRoster(f"{found.owner_nhi} has not signed yet who is in {found.name}", hint=hint)


def publisher_rule(mailbox: Mailbox, channel_id: UUID, roster: Roster | None) -> Callable[[str], bool]:
    """Returns the rule that says whether messages and keys of an agent are believed in a channel. Without a roster only
    the owner is believed, by the name under which the channel was joined."""
    if roster is not None:
        if roster.channel_id != channel_id:
            raise UntrustedRoster(f"the roster of {roster.name} says nothing of the channel {channel_id}")
        return roster.lets_publish
    owner = (mailbox.channels.name(channel_id) or "").partition("/")[0]
    return lambda sender: sender == owner


def change_roster(
    mailbox: Mailbox,
    found: Channel,
    *,
    policy: ChannelPolicy | None = None,
    members: Callable[[Roster], Members] = lambda before: before.members,
) -> Exchange[ChannelView]:
    """Signs and stores the next roster of a channel of the agent's own, and returns the channel. `members` returns
    those of the next roster, given the present one; what is left out stays. Of two concurrent changes the second is
    applied on top of the first."""
    mailbox.own_keys.refresh()  # the pair signs the roster, and may have been rotated since
    pinned = mailbox.rosters.pinned(found.channel_id)
    if pinned is not None and pinned.version == found.roster_version:
        base = present = pinned
    else:
        base, present = yield from _base_and_served(mailbox, found)
    for _ in range(_TRIES):
        signed = _next(mailbox, base, present, policy or ChannelPolicy(base.policy), members(base))
        with contextlib.suppress(VersionConflict):
            shown = yield from channel_calls.put_roster(signed)
            if mailbox.rosters.pin_own(signed, clock.now()):
                return shown
        base, present = yield from _base_and_served(mailbox, found)
    raise VersionConflict(f"the roster of {found.name} changes faster than it can be signed", hint="try again")


def replace_roster(mailbox: Mailbox, found: Channel, policy: ChannelPolicy, members: Members) -> Exchange[ChannelView]:
    """Signs and stores a roster with exactly these members, whatever is pinned; for an owner that has reviewed them.

    Members refuse a lower version of the same pair. So, for a server that was restored from an old backup, versions are
    signed until they pass the one that members may have seen."""
    members, present = list(members), (yield from served_roster(mailbox, found))
    seen, wanted = mailbox.rosters.seen(found.channel_id), 0
    if seen is not None and mailbox.rosters.names_present_pair(seen) and _is_behind(present, seen):
        wanted = seen.version + 2
    if wanted > (0 if present is None else present.version) + MOST_AHEAD:
        raise UntrustedRoster(
            f"the server is more than {MOST_AHEAD:,} versions of the roster of {found.name} behind",
            hint="members take any version of a new pair: angelia key rotate --signer, then sign it",
        )
    while True:
        signed = _next(mailbox, seen or found, present, policy, members)
        shown = yield from channel_calls.put_roster(signed)
        if signed.version >= wanted:
            if not mailbox.rosters.pin_own(signed, clock.now()):
                raise VersionConflict(
                    "another process of yours has replaced the pair that signed", hint="sign it again"
                )
            return shown
        present = signed


def _is_behind(present: Roster | None, seen: Roster) -> bool:
    """Whether the server has an older roster than this mailbox has seen; also after an interrupted `replace_roster`,
    whose last roster does not follow from the pinned one."""
    return present is None or (present.hash != seen.hash and present.version <= seen.version + 1)


def served_roster(mailbox: Mailbox, found: Channel) -> Exchange[Roster | None]:
    """Returns the server's roster of a channel of the agent's own, signed by a pair that this agent has or had; None if
    the server has none."""
    if not found.roster_version:
        return None
    served = yield from _served(found)
    try:
        mailbox.rosters.check_own(served)
    except Refused as refusal:
        raise UntrustedRoster(f"the server shows a forged roster of {found.name}: {refusal.message}") from refusal
    return served


def kept_rights(mailbox: Mailbox, pinned: Roster, served: Roster | None) -> Roster:
    """Returns the pinned roster of a channel of the agent's own, without rights that a later roster took, if an earlier
    pair signed that one: a process may have died before it pinned it. Rights that such a roster gives are not taken
    over, since a thief may have the pair. The owner gets a notice, and can give back a right that a thief took."""
    if served is None or served.version <= pinned.version or mailbox.rosters.names_present_pair(pinned):
        return pinned
    lost = [one.nhi for one in pinned.members if one.exceeds(served.member(one.nhi))]
    if lost:
        others = f" and {len(lost) - 5} others" if len(lost) > 5 else ""
        mailbox.notices.tell(
            NoticeKind.WARNING,
            f"an earlier pair of yours has taken rights in {pinned.name} from {', '.join(lost[:5])}{others}; "
            f"if you did not, give them back: angelia channel allow {pinned.channel_name}",
        )
    return pinned.without_rights_lost_in(served)


def resign_rosters(mailbox: Mailbox) -> Exchange[int]:
    """Signs those rosters of the agent's own channels again that an earlier pair signed. Returns how many.

    For a roster that cannot be signed now there is a notice, and it is signed later."""
    done = 0
    try:
        former = mailbox.rosters.signed_by_former()
    except (AngeliaError, OSError) as error:
        own_key_renewal.put_off(mailbox, f"the rosters of your channels {_NOT_NOW}", error)
        return 0
    for roster in former:
        try:
            found = yield from channel_calls.channel(roster.channel_id)
            yield from change_roster(mailbox, found)
            done += 1
        except NotFound:
            mailbox.rosters.forget(roster.channel_id)  # the channel was deleted, by the server's word
        except (AngeliaError, OSError) as error:
            own_key_renewal.put_off(mailbox, f"the roster of {roster.name} {_NOT_NOW}", error)
    return done


def _roster_of_another(mailbox: Mailbox, found: Channel) -> Exchange[Roster | None]:
    # The owner may have revoked the pair that signed; that is looked up once an hour.
    yield from peer_keys.look_up(mailbox, found.owner_nhi)
    pinned = mailbox.rosters.believed(found.channel_id)
    if pinned is not None and pinned.version == found.roster_version:
        return pinned
    if not found.roster_version and mailbox.rosters.pinned(found.channel_id) is None:
        return None
    served = yield from _served(found)
    yield from _pin(mailbox, served)
    return served


def _served(found: Channel) -> Exchange[Roster]:
    served = yield from channel_calls.stored_roster(found.channel_id)
    if (served.channel_id, served.name) != (found.channel_id, found.name):
        raise UntrustedRoster(f"the server shows the roster of {served.name} for {found.name}")
    return served


def _pin(mailbox: Mailbox, served: Roster) -> Exchange[None]:
    """Pins a roster of another agent's channel, after following the owner's chain of bundles if it has rotated."""
    yield from peer_keys.know_sender(mailbox, served.owner_nhi)
    try:
        yield from peer_keys.following_signer(mailbox, lambda: mailbox.rosters.pin(served, clock.now()))
    except Refused as refusal:
        raise UntrustedRoster(
            f"the roster of {served.name} is not signed by keys of {served.owner_nhi} that are believed here: "
            f"{refusal.message}",
            hint=f"{served.owner_nhi} signs it anew: angelia channel sign {served.channel_name}",
        ) from refusal


def know_earlier_pairs(mailbox: Mailbox, owner: str) -> Exchange[None]:
    """Learns the earlier pairs of an owner that had rotated before it was first pinned: its chain up to the pinned
    bundle."""
    pin = mailbox.pinned_keys.pin(owner)
    if pin is None:
        return
    links, page = list[Link](), (yield from key_calls.bundles_since(owner, 0))
    while some := parse_links(page.bundles):
        links += some
        reached = some[-1].bundle.bundle_version
        if not page.has_more or max(reached, len(links)) >= pin.bundle_version:
            break
        page = yield from key_calls.bundles_since(owner, reached)
    mailbox.pinned_keys.learn_former_pairs(owner, links, clock.now(), page.revoked)


def _own_roster(mailbox: Mailbox, found: Channel) -> Exchange[Roster | None]:
    """Returns the pinned roster of the agent's own channel; one that an earlier pair signed is signed again first."""
    pinned = mailbox.rosters.pinned(found.channel_id)
    if pinned is None and not found.roster_version:
        return None
    if pinned is not None and pinned.version == found.roster_version and mailbox.rosters.names_present_pair(pinned):
        return pinned
    base, present = yield from _base_and_served(mailbox, found)
    if base.hash != present.hash or not mailbox.rosters.names_present_pair(base):
        yield from change_roster(mailbox, found)
    return mailbox.rosters.pinned(found.channel_id)


def _base_and_served(mailbox: Mailbox, found: Channel) -> Exchange[tuple[Roster, Roster]]:
    """Returns the roster that the next change starts from, and the server's roster, whose hash the next one names. A
    roster that another process of this agent has signed is taken over."""
    pinned = mailbox.rosters.pinned(found.channel_id)
    hint = f"look at its members and sign them: angelia channel sign {found.channel_name}"
    served = yield from served_roster(mailbox, found)
    if served is None and pinned is None:
        raise missing_roster(mailbox, found)
    is_ours = pinned is not None and mailbox.rosters.names_present_pair(pinned)
    if served is None or (pinned is not None and is_ours and served.version < pinned.version):
        at, signed = (0 if one is None else one.version for one in (served, pinned))
        raise UntrustedRoster(
            f"the server is at version {at} of the roster of {found.name}; you signed version {signed}",
            hint=f"was it put back from an old copy? {hint}",
        )
    if mailbox.rosters.names_present_pair(served):
        mailbox.rosters.pin(served, clock.now())
        return served, served
    if pinned is None:
        raise UntrustedRoster(f"an earlier pair of yours signed the roster of {found.name}", hint=hint)
    return kept_rights(mailbox, pinned, served), served


def _next(
    mailbox: Mailbox, named: Channel | Roster, present: Roster | None, policy: ChannelPolicy, members: Members
) -> Roster:
    """Returns the signed roster after `present`. Earlier keys seal no more if it takes a right from a member, if they
    may be stolen, or if the server's roster is not the one that this mailbox knew."""
    members, base = list(members), named if isinstance(named, Roster) else None
    keys_since = None
    if base is not None and present is not None and base.hash == present.hash:
        stolen_at = mailbox.channels.stolen_at
        stolen = stolen_at is not None and moment(base.issued_at) <= stolen_at
        keys_since = None if stolen or base.is_narrowed_by(policy.value, members) else base.keys_since
    return sign_roster(
        mailbox.identity.pair,
        channel_id=named.channel_id,
        owner_nhi=mailbox.identity.handle,
        channel_name=named.channel_name,
        policy=policy.value,
        members=members,
        # Members refuse a date that goes back, as an owner's clock may.
        issued_at=max(unix_ms(clock.now()), 0 if base is None else base.issued_at),
        version=1 if present is None else present.version + 1,
        keys_since=keys_since,
        prev_roster_hash=FIRST_PREVIOUS if present is None else present.hash,
    )
