"""The epochs of channels: which key is the present one, which agents lack it, and which may give it out.

The server knows the ids of keys, never the keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.agents.service import Agents
from angelia.api import AgentRow
from angelia.channels import store
from angelia.channels.admission import ChannelAdmission
from angelia.channels.api import SubscribersQuery
from angelia.channels.model import ASK_AGAIN, Channel, ChannelPolicy, Epoch, Subscription, not_subscribed
from angelia.errors import Denied, NotFound, VersionConflict
from angelia.policy.model import Action
from angelia.stores.ledger import Ledger, Tx


class Epochs:
    """The ids of a channel's keys, and the agents to which they were sent, as publishers and subscribers report it."""

    def __init__(self, ledger: Ledger, agents: Agents, admission: ChannelAdmission) -> None:
        self._ledger = ledger
        self._agents = agents
        self._admission = admission

    async def set_epoch(self, agent: AgentRow, channel_id: UUID, epoch: int, key_id: UUID, now: datetime) -> Channel:
        """Sets the id of the channel's next key, and returns the channel. Of several agents that try at once one
        succeeds; the others get the present epoch with the refusal.

        In an open channel, where any agent may publish, only the owner does."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now, of_open=False)
            if (channel.epoch, channel.epoch_key_id) == (epoch, key_id):
                return channel
            if epoch != channel.epoch + 1:
                raise _other_epoch(channel)
            changed = await store.set_epoch(tx, channel_id, epoch, key_id, agent.handle, now)
            await store.hold_key(tx, channel_id, agent.handle, epoch, now)
        return changed

    async def keys_sent(
        self, agent: AgentRow, channel_id: UUID, epoch: int, names: Sequence[str], now: datetime
    ) -> int:
        """Notes that the present key was sent to these agents. Returns for how many of them that is new and counts."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now)
            _check_present(channel, epoch)
            by_anybody = channel.policy is ChannelPolicy.OPEN and agent.handle != channel.owner_nhi
            return await store.key_sent(tx, channel_id, names, epoch, by_anybody=by_anybody)

    async def key_taken(self, agent: AgentRow, channel_id: UUID, epoch: int, now: datetime) -> Subscription:
        """Notes that the caller has the present key, or, for epoch 0, that it lost it, which counts once an hour.
        Returns its subscription."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            held = await store.subscription(tx, channel_id, agent.handle)
            if held is None or not held.holds:
                await self._admission.refuse_outsiders(tx, channel, agent.handle, now)
                raise not_subscribed(channel)
            if not epoch:
                return await store.key_lost(tx, channel_id, agent.handle, now, now - ASK_AGAIN) or held
            _check_present(channel, epoch)
            return await store.key_taken(tx, channel_id, agent.handle, epoch, now) or held

    async def epoch(self, agent: AgentRow, channel_id: UUID, number: int, now: datetime) -> Epoch:
        """Returns the id of the key that a channel had in an epoch, to an agent that sees the channel."""
        async with self._ledger.reading() as tx:
            channel = await self._admission.seen(tx, channel_id, agent.handle, now)
            found = await store.epoch(tx, channel_id, number)
        if found is None:
            raise NotFound(
                f"nothing is known of epoch {number} of {channel.name}", hint=f"the present one is {channel.epoch}"
            )
        return found

    async def subscribers(
        self, agent: AgentRow, channel_id: UUID, query: SubscribersQuery, now: datetime
    ) -> tuple[list[Subscription], str | None]:
        """Returns a page of subscribers, by name, and the cursor of the next one; for agents that give out the key.
        Among the agents without the key are also publishers that do not subscribe.

        Policy rules may have changed since an agent subscribed: one that may no longer is left out."""
        after, most = query.cursor, query.and_one_more
        async with self._ledger.reading() as tx:
            channel = await store.channel(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now)
            if query.without_key:
                found = await store.without_key(tx, channel_id, channel.epoch, after, most)
            else:
                found = await store.subscribers(tx, channel_id, after, most)
            some, following = query.cut(found, lambda one: one.subscriber_nhi)
            refusals = await self._admission.staying(tx, channel, some, now)
        return [one for one, refusal in zip(some, refusals, strict=True) if refusal is None], following

    async def may_give_key(self, agent: AgentRow, channel_id: UUID, name: str, now: datetime) -> tuple[str, bool]:
        """Returns the handle of the agent `name`, and whether it may give out the channel's key; to a caller that sees
        the channel."""
        nhi = (await self._agents.named(name)).handle
        async with self._ledger.reading() as tx:
            channel = await self._admission.seen(tx, channel_id, agent.handle, now)
            owns = nhi == channel.owner_nhi
            return nhi, owns or await self._admission.may(tx, channel, Action.PUBLISH, nhi, now)

    async def _check_keeper(
        self, tx: Tx, channel: Channel, agent: AgentRow, now: datetime, *, of_open: bool = True
    ) -> None:
        """Refuses agents that do not manage the channel's key. The owner does, and agents that may publish; in an open
        channel, subscribers if `of_open`."""
        if agent.handle == channel.owner_nhi:
            return
        if channel.policy is ChannelPolicy.OPEN:
            held = await store.subscription(tx, channel.channel_id, agent.handle)
            if not of_open or held is None or not held.listens:
                raise Denied(
                    f"the key of an open channel is its owner's affair: {channel.owner_nhi}'s",
                    hint=f"who listens may give it out: angelia channel subscribe {channel.name}",
                )
        await self._admission.check(tx, channel, Action.PUBLISH, agent.handle, now)


def _check_present(channel: Channel, epoch: int) -> None:
    if epoch != channel.epoch or channel.epoch_key_id is None:
        raise _other_epoch(channel)


def _other_epoch(channel: Channel) -> VersionConflict:
    conflict = VersionConflict(f"the channel is at epoch {channel.epoch}", hint="read the channel and try again")
    conflict.members = {"epoch": channel.epoch, "epoch_key_id": msgspec.to_builtins(channel.epoch_key_id)}
    return conflict
