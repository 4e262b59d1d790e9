"""Stores the roster that a channel's owner signed; the allowlist of the channel is exactly the roster's members."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from angelia.agents.service import check_handles
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.model import Detail, Event
from angelia.channels import store
from angelia.channels.admission import ChannelAdmission
from angelia.channels.member_removal import BATCH, channel_event, recheck_all, withdraw
from angelia.channels.model import Channel, ChannelPolicy, ChannelView
from angelia.channels.reading import channel_topic
from angelia.channels.roster_checks import check_signed, refuse_another
from angelia.channels.service import Channels
from angelia.envelope.json_form import to_text
from angelia.envelope.rosters import FIRST_PREVIOUS, Member, Roster
from angelia.errors import NotFound, VersionConflict
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import Wake

_MOST_LISTED = 1 << 31  # an allowlist from before rosters has no bound
_MOST_NAMED = 100  # changes of one roster that have an audit event each


class Rosters:
    """One transaction stores a roster, the allowlist of its members and its policy."""

    def __init__(self, ledger: Ledger, wake: Wake, channels: Channels, admission: ChannelAdmission) -> None:
        self._ledger = ledger
        self._wake = wake
        self._channels = channels
        self._admission = admission

    async def roster(self, agent: AgentRow, channel_id: UUID, now: datetime) -> Roster:
        """Returns the newest roster to an agent that sees the channel: publishers and readers check it themselves."""
        async with self._ledger.reading() as tx:
            channel = await self._admission.seen(tx, channel_id, agent.handle, now)
            found = await store.roster(tx, channel_id)
        if found is None:
            raise NotFound(
                f"{channel.name} has no roster yet",
                hint=f"{channel.owner_nhi} runs `angelia channel sign {channel.channel_name}`",
            )
        return found

    async def put(self, agent: AgentRow, channel_id: UUID, roster: Roster, now: datetime) -> ChannelView:
        """Stores the owner's next roster, and returns the channel; the present roster again changes nothing.

        As with an allowlist without a roster, a member that loses a right is removed, another policy checks all
        members, and the epoch closes in the same transaction."""
        async with self._ledger.transaction() as tx:
            channel = await self._channels.owned(tx, channel_id, agent, now)
            refuse_another(roster, channel_id, channel.owner_nhi, channel.channel_name)
            present, rechecks = await store.roster(tx, channel_id), False
            if present is None or present.hash != roster.hash:
                _check_next(channel, present, roster)
                await check_signed(tx, roster, now)
                rechecks = await self._replace(tx, channel, roster, now)
        if rechecks:
            await recheck_all(self._ledger, self._admission, channel_id, now)
        await self._wake.tell(channel_topic(channel_id), b"")
        return await self._channels.show(agent, channel_id, now)

    async def _replace(self, tx: Tx, channel: Channel, roster: Roster, now: datetime) -> bool:
        """Stores a roster and its allowlist. Returns whether all key holders must be checked again, in batches."""
        before = {one.nhi: one for one in await store.allowlist(tx, channel.channel_id, "", _MOST_LISTED)}
        named = {one.nhi: one for one in roster.members}
        changed = [one for one in roster.members if one.nhi not in before or before[one.nhi].member != one]
        await check_handles(tx, {one.nhi for one in changed} - before.keys())
        gone = [nhi for nhi in before if nhi not in named]
        await store.put_listed(tx, channel.channel_id, changed, now)
        await store.remove_listed(tx, channel.channel_id, gone)
        after = await store.put_roster(tx, roster, now)
        await audit.record(tx, _events(channel, roster, changed, gone, now))
        lost = [one for one in before.values() if one.member.exceeds(named.get(one.nhi))]
        if after.policy is channel.policy and (len(lost) <= BATCH or after.policy is not ChannelPolicy.ALLOWLIST):
            await withdraw(tx, self._admission, after, lost, now)
            return False
        await store.recheck_from(tx, channel.channel_id, "")
        await store.close_epoch(tx, channel.channel_id, now)
        return True


def _check_next(channel: Channel, present: Roster | None, roster: Roster) -> None:
    version, hash_ = (0, FIRST_PREVIOUS) if present is None else (present.version, present.hash)
    if roster.version != version + 1 or roster.prev_roster_hash != hash_:
        conflict = VersionConflict(
            f"the roster of {channel.name} is at version {version}", hint="read it, and sign the one after it"
        )
        conflict.members = {"roster_version": version, "roster_hash": to_text(hash_)}
        raise conflict


def _events(channel: Channel, roster: Roster, changed: list[Member], gone: list[str], now: datetime) -> list[Event]:
    """Returns the audit event of the roster, and one event for each change where they are few."""
    details: list[Detail] = [
        {
            "roster": roster.version,
            "roster_hash": roster.hash.hex(),
            "policy": roster.policy,
            "before": channel.policy.value,
            "members": len(roster.members),
            "listed": len(changed),
            "unlisted": len(gone),
        }
    ]
    if len(changed) + len(gone) <= _MOST_NAMED:
        details += [
            {"listed": one.nhi, "may_subscribe": one.may_subscribe, "may_publish": one.may_publish} for one in changed
        ]
        details += [{"unlisted": nhi} for nhi in gone]
    return [channel_event("channel_policy_changed", channel, channel.owner_nhi, now, detail) for detail in details]
