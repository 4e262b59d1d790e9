"""Channels are created, changed and deleted by their owners, and agents subscribe to them.

A removed member must not read on, so its removal closes the epoch: the next message is sealed under a new key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import msgspec

from angelia.agents.service import Agents, check_handles
from angelia.api import AgentRow, cursor_after, parse_cursor
from angelia.audit import service as audit
from angelia.audit.model import Detail
from angelia.channels import store
from angelia.channels.admission import ChannelAdmission
from angelia.channels.api import AllowlistRights, ChannelChange, ChannelQuery, NewChannel
from angelia.channels.member_removal import BATCH, channel_event, recheck, recheck_all, withdraw
from angelia.channels.model import (
    ASK_AGAIN,
    LONGEST_RETENTION,
    AllowlistEntry,
    Channel,
    ChannelPolicy,
    ChannelView,
    Subscription,
    SubscriptionStatus,
    check_limits,
    check_name,
    no_channel,
    not_subscribed,
)
from angelia.channels.reading import channel_topic
from angelia.channels.roster_checks import check_signed, refuse_another
from angelia.envelope.rosters import Member, parse_roster
from angelia.errors import AlreadyExists, Conflict, Denied, InvalidArgument, NotFound
from angelia.keys.service import Keys
from angelia.policy.model import Action
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import Wake

MOST_COUNTED = 1_000
_RECHECKED_TOGETHER = 20
# As long as a message under a replaced key may be read; a day more than needed, for clocks that differ.
_EPOCHS_KEPT = timedelta(seconds=LONGEST_RETENTION) + timedelta(days=1)


class Channels:
    """Every change is one ledger transaction under the channel's own lock."""

    def __init__(self, ledger: Ledger, wake: Wake, agents: Agents, keys: Keys, admission: ChannelAdmission) -> None:
        self._ledger = ledger
        self._wake = wake
        self._agents = agents
        self._keys = keys
        self._admission = admission

    async def create(self, owner: AgentRow, wanted: NewChannel, now: datetime) -> Channel:
        """Returns a new channel. Agents on the allowlist may subscribe; `allow` gives them more. With a roster the
        channel has the id that its owner signed, and the roster's members are the allowlist.

        The owner must have published keys: without them nothing can be published, and its handle might still change."""
        name, policy = wanted.channel_name, wanted.policy
        roster = None if wanted.roster is None else parse_roster(wanted.roster)
        check_name(name)
        limits = check_limits(wanted.retention_seconds, wanted.max_message_size_bytes, wanted.max_subscribers)
        await self._keys.bundle(owner.handle, owner, now)
        handles = {(await self._agents.named(one)).handle for one in wanted.allowlist_nhis}
        listed: Sequence[Member] = [Member(nhi, may_publish=False, may_subscribe=True) for nhi in sorted(handles)]
        channel_id = uuid4()
        if roster is not None:
            refuse_another(roster, roster.channel_id, owner.handle, name)
            if roster.policy != policy or roster.version != 1 or listed:
                raise InvalidArgument(
                    "the first roster has the channel's policy, and names all who are listed",
                    hint="leave allowlist_nhis out",
                )
            channel_id, listed = roster.channel_id, roster.members
        async with self._ledger.transaction() as tx:
            made = await store.add(tx, channel_id, owner.handle, name, policy, limits, now)
            if made is None:
                raise AlreadyExists(
                    f"{owner.handle} has a channel {name} already",
                    hint=f"it is yours and can be used as it is: angelia channel show {name}",
                )
            await store.hold_key(tx, made.channel_id, owner.handle, 0, now)
            if roster is not None:
                await check_signed(tx, roster, now)
                await check_handles(tx, [one.nhi for one in listed])
                made = await store.put_roster(tx, roster, now)
            await store.put_listed(tx, made.channel_id, listed, now)
            detail = {"channel_id": str(made.channel_id), "name": name, "policy": policy.value, "listed": len(listed)}
            event = audit.event("channel_created", now, actor=owner.handle, object=owner.handle, detail=detail)
            await audit.record(tx, [event])
        return made

    async def show(self, agent: AgentRow, channel_id: UUID, now: datetime) -> ChannelView:
        """Returns a channel to its owner, its subscribers and agents that may become one or publish; to others it does
        not exist."""
        async with self._ledger.reading() as tx:
            return await self._view(tx, await store.channel(tx, channel_id), agent, now)

    async def page(self, agent: AgentRow, query: ChannelQuery, now: datetime) -> tuple[list[Channel], str | None]:
        """Returns a page of the channels that an agent may know of, oldest first, and the cursor of the next page.

        A page may be shorter than asked for: policy rules decide about some channels only after they were found."""
        nhi, after, most = agent.handle, parse_cursor(query.cursor), query.and_one_more
        async with self._ledger.reading() as tx:
            found = await store.page(tx, nhi, after, most, query.owner, query.name, subscribed=query.subscribed)
            some, following = query.cut(found, lambda one: cursor_after(one[0].created_at, one[0].channel_id))
            allowed = await self._admission.admitting(tx, [one for one, known in some if not known], nhi, now)
        return [one for one, known in some if known or one.channel_id in allowed], following

    async def update(self, agent: AgentRow, channel_id: UUID, change: ChannelChange, now: datetime) -> ChannelView:
        """Changes a channel; None leaves a value as it is. A policy, also the present one, checks all subscribers.

        Another policy always closes the epoch: subscribers that it lets in must not open earlier messages, and those
        that it drops must not open later ones."""
        given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
        async with self._ledger.transaction() as tx:
            before = await self.owned(tx, channel_id, agent, now)
            after = msgspec.structs.replace(before, **given)
            if after.policy is not before.policy:
                _refuse_signed(before)
            limits = check_limits(after.retention_seconds, after.max_message_size_bytes, after.max_subscribers)
            await store.update(tx, channel_id, after.policy, limits, now)
            if change.policy is not None:
                await store.recheck_from(tx, channel_id, "")
            if after.policy is not before.policy:
                await store.close_epoch(tx, channel_id, now)
                detail = {"policy": after.policy, "before": before.policy.value}
                await audit.record(tx, [channel_event("channel_policy_changed", before, agent.handle, now, detail)])
        if change.policy is not None:
            await recheck_all(self._ledger, self._admission, channel_id, now)
        await self._wake.tell(channel_topic(channel_id), b"")
        return await self.show(agent, channel_id, now)

    async def delete(self, agent: AgentRow, channel_id: UUID, now: datetime) -> None:
        async with self._ledger.transaction() as tx:
            gone = await self.owned(tx, channel_id, agent, now)
            await store.remove(tx, channel_id, now)
            detail = {"messages": gone.total_messages, "subscribers": gone.total_subscribers}
            await audit.record(tx, [channel_event("channel_deleted", gone, agent.handle, now, detail)])
        await self._wake.tell(channel_topic(channel_id), b"")

    async def allowlist(
        self, agent: AgentRow, channel_id: UUID, after: str, limit: int, now: datetime
    ) -> list[AllowlistEntry]:
        """Returns the entries after a name, by name; for the channel's owner."""
        async with self._ledger.reading() as tx:
            await self._refuse_others(tx, await store.channel(tx, channel_id), agent, now)
            return await store.allowlist(tx, channel_id, after, limit)

    async def allow(
        self, agent: AgentRow, channel_id: UUID, name: str, rights: AllowlistRights, now: datetime
    ) -> AllowlistEntry:
        """Puts an agent on the allowlist, or changes its rights. An agent that loses a right is removed from the
        subscribers or publishers."""
        nhi = (await self._agents.named(name)).handle
        async with self._ledger.transaction() as tx:
            channel = await self.owned(tx, channel_id, agent, now)
            _refuse_signed(channel)
            before = (await store.listed(tx, channel_id, [nhi])).get(nhi)
            member = Member(nhi, rights.may_publish, rights.may_subscribe)
            [entry] = await store.put_listed(tx, channel_id, [member], now)
            detail: Detail = {"listed": nhi, "may_subscribe": rights.may_subscribe, "may_publish": rights.may_publish}
            await audit.record(tx, [channel_event("channel_policy_changed", channel, agent.handle, now, detail)])
            if before is not None and before.member.exceeds(entry.member):
                await withdraw(tx, self._admission, channel, [before], now)
        await self._wake.tell(channel_topic(channel_id), b"")
        return entry

    async def disallow(self, agent: AgentRow, channel_id: UUID, name: str, now: datetime) -> None:
        """Takes an agent off the allowlist, and removes it from the subscribers and publishers."""
        nhi = (await self._agents.named(name)).handle
        async with self._ledger.transaction() as tx:
            channel = await self.owned(tx, channel_id, agent, now)
            _refuse_signed(channel)
            removed = await store.remove_listed(tx, channel_id, [nhi])
            if not removed:
                raise NotFound(
                    f"{nhi} is not on the allowlist of {channel.name}",
                    hint=f"who is: angelia channel allow {channel.channel_name}",
                )
            await audit.record(
                tx, [channel_event("channel_policy_changed", channel, agent.handle, now, {"unlisted": nhi})]
            )
            await withdraw(tx, self._admission, channel, removed, now)
        await self._wake.tell(channel_topic(channel_id), b"")

    async def subscribe(
        self, agent: AgentRow, channel_id: UUID, now: datetime, *, needs_key: bool
    ) -> tuple[Subscription, bool]:
        """Subscribes from the channel's end on. The second value says whether the subscription is new. `needs_key`
        reports that the subscriber has lost the key, which counts once an hour.

        The subscriber must have published keys: the channel's key is sealed to them."""
        await self._keys.bundle(agent.handle, agent, now)
        async with self._ledger.reading() as tx:
            seen = await store.channel(tx, channel_id)
        await self._admission.spend(seen, Action.SUBSCRIBE, agent.handle, now)
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            await self._admission.check(tx, channel, Action.SUBSCRIBE, agent.handle, now)
            held = await store.subscription(tx, channel_id, agent.handle)
            new = held is None or not held.listens
            if held is None or new:
                if channel.total_subscribers >= channel.max_subscribers:
                    raise Conflict(
                        f"the channel has {channel.max_subscribers:,} subscribers, as many as it takes",
                        hint=f"its owner runs `angelia channel update {channel.channel_name} --max-subscribers N`",
                    )
                held = await store.put_subscription(tx, channel_id, agent.handle, channel.end, now)
                await store.count_subscribers(tx, channel_id, 1)
                await audit.record(tx, [channel_event("subscribed", channel, agent.handle, now)])
            if needs_key:
                held = await store.key_lost(tx, channel_id, agent.handle, now, now - ASK_AGAIN) or held
        return held, new

    async def unsubscribe(self, agent: AgentRow, channel_id: UUID, now: datetime) -> Subscription:
        """Ends a subscription. It does not close the epoch: an agent that comes and goes must not make others create
        keys. An owner is still sent the keys of its channel."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            held = await store.subscription(tx, channel_id, agent.handle)
            if held is None:
                await self._admission.refuse_outsiders(tx, channel, agent.handle, now)
                raise not_subscribed(channel)
            if held.listens:
                owns = agent.handle == channel.owner_nhi
                status = SubscriptionStatus.PUBLISHING if owns else SubscriptionStatus.DELETED
                await store.become(tx, channel_id, [agent.handle], status, now)
                await store.count_subscribers(tx, channel_id, -1)
                if channel.policy is not ChannelPolicy.OPEN and not owns:
                    await store.note_leave(tx, channel_id, now)
                await audit.record(tx, [channel_event("unsubscribed", channel, agent.handle, now)])
                held = msgspec.structs.replace(held, status=status, updated_at=now)
        await self._wake.tell(channel_topic(channel_id), b"")
        return held

    async def pause(self, agent: AgentRow, channel_id: UUID, now: datetime) -> Subscription:
        held = await self._set_status(agent, channel_id, SubscriptionStatus.PAUSED, now)
        await self._wake.tell(channel_topic(channel_id), b"")  # a long poll or stream of this subscriber ends
        return held

    async def resume(self, agent: AgentRow, channel_id: UUID, now: datetime) -> Subscription:
        return await self._set_status(agent, channel_id, SubscriptionStatus.ACTIVE, now)

    async def tidy(self, now: datetime) -> bool:
        """One tick: removes expired messages and what deleted channels left, and rechecks subscribers where a crash
        interrupted that or the policy rules have changed. Returns whether there may be more to do."""
        async with self._ledger.transaction() as tx:
            remains = await store.drop_remains(tx, BATCH)
        async with self._ledger.transaction() as tx:
            more = await store.drop_expired(tx, now, BATCH)
            await store.forget_epochs(tx, now - _EPOCHS_KEPT, BATCH)
        async with self._ledger.transaction() as tx:
            await store.recheck_behind(tx, await self._admission.rules_version(tx), _RECHECKED_TOGETHER)
            due = await store.recheck_due(tx)
        if due is not None:
            await recheck(self._ledger, self._admission, due, now)
        return remains or more or due is not None

    async def owned(self, tx: Tx, channel_id: UUID, agent: AgentRow, now: datetime) -> Channel:
        """Returns a channel under its lock to its owner, and refuses other agents."""
        channel = await store.locked(tx, channel_id)
        await self._refuse_others(tx, channel, agent, now)
        return channel

    async def _view(self, tx: Tx, channel: Channel, agent: AgentRow, now: datetime) -> ChannelView:
        nhi = agent.handle
        held = await store.subscription(tx, channel.channel_id, nhi)
        listens = held is not None and held.listens
        may_subscribe = await self._admission.may(tx, channel, Action.SUBSCRIBE, nhi, now)
        may_publish = await self._admission.may(tx, channel, Action.PUBLISH, nhi, now)
        owns = nhi == channel.owner_nhi
        if not (owns or listens or may_subscribe or may_publish):
            raise no_channel(channel.channel_id)
        lacking = None
        # Any agent may publish in an open channel, so there only subscribers see how many lack the key.
        if owns or (listens if channel.policy is ChannelPolicy.OPEN else may_publish):
            lacking = await store.count_without_key(tx, channel.channel_id, channel.epoch, MOST_COUNTED)
        return ChannelView(
            **msgspec.structs.asdict(channel),
            may_subscribe=may_subscribe,
            may_publish=may_publish,
            subscription=held if listens else None,
            without_key=lacking,
            key_epoch=held.key_epoch if held is not None and held.holds else None,
        )

    async def _set_status(
        self, agent: AgentRow, channel_id: UUID, status: SubscriptionStatus, now: datetime
    ) -> Subscription:
        async with self._ledger.transaction() as tx:
            channel = await store.channel(tx, channel_id)
            held = await store.set_status(tx, channel_id, agent.handle, status, now)
            if held is None:
                await self._admission.refuse_outsiders(tx, channel, agent.handle, now)
                raise not_subscribed(channel)
        return held

    async def _refuse_others(self, tx: Tx, channel: Channel, agent: AgentRow, now: datetime) -> None:
        if channel.owner_nhi != agent.handle:
            await self._admission.refuse_outsiders(tx, channel, agent.handle, now)
            raise Denied("only the channel's owner may do this", hint=f"its owner is {channel.owner_nhi}")


def _refuse_signed(channel: Channel) -> None:
    if channel.roster_version:
        raise Conflict(
            f"the roster that {channel.owner_nhi} signed decides who is in {channel.name}, and under which policy",
            hint="put the next version of it: `angelia channel allow`, `deny` and `update` do, and the SDK",
        )
