"""The keys of channels: who names the next one, who lacks it, and from whom it may come. The keys are never here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.agents.model import Agent
from angelia.agents.service import Agents
from angelia.channels import store
from angelia.channels.admission import Admission
from angelia.channels.model import Channel, Policy, Subscription, no_channel
from angelia.errors import Denied, VersionConflict
from angelia.policy.model import Action
from angelia.stores.ledger import Ledger, Tx


class Epochs:
    """What a server knows of a channel's keys: their ids, and to whom somebody says they were sent."""

    def __init__(self, ledger: Ledger, agents: Agents, admission: Admission) -> None:
        self._ledger = ledger
        self._agents = agents
        self._admission = admission

    async def set_epoch(self, agent: Agent, channel_id: UUID, epoch: int, key_id: UUID, now: datetime) -> Channel:
        """Name the channel's next key. Of several who try at once, one is right; the others learn whose key it is.

        In an open channel, where anybody may publish, only the owner does."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now, of_open=False)
            if (channel.epoch, channel.epoch_key_id) == (epoch, key_id):
                return channel
            if epoch != channel.epoch + 1:
                raise _other_epoch(channel)
            changed = await store.set_epoch(tx, channel_id, epoch, key_id, now)
            await store.key_sent(tx, channel_id, [agent.handle], epoch, by_anybody=False)
        return changed

    async def keys_sent(self, agent: Agent, channel_id: UUID, epoch: int, names: Sequence[str], now: datetime) -> int:
        """Somebody sent the key of an epoch to these subscribers; how many of them had not been sent it before."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now)
            if epoch != channel.epoch or channel.epoch_key_id is None:
                raise _other_epoch(channel)
            by_anybody = channel.policy is Policy.OPEN and agent.handle != channel.owner_nhi
            return await store.key_sent(tx, channel_id, names, epoch, by_anybody=by_anybody)

    async def subscribers(
        self, agent: Agent, channel_id: UUID, after: str, limit: int, now: datetime, *, without_key: bool
    ) -> tuple[list[Subscription], str | None]:
        """A page of who listens, by name, and where the next one begins; for those who give out the key.

        Rules may have changed since somebody subscribed: who may no longer is left out."""
        async with self._ledger.transaction() as tx:
            channel = await store.channel(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now)
            if without_key:
                found = await store.without_key(tx, channel_id, channel.epoch, after, limit + 1)
            else:
                found = await store.subscribers(tx, channel_id, after, limit + 1)
            page = found[:limit]
            names = [one.subscriber_nhi for one in page]
            refusals = await self._admission.refusals(tx, channel, Action.SUBSCRIBE, names, now)
        following = page[-1].subscriber_nhi if len(found) > limit else None
        return [one for one, refusal in zip(page, refusals, strict=True) if refusal is None], following

    async def may_give_key(self, agent: Agent, channel_id: UUID, name: str, now: datetime) -> tuple[str, bool]:
        """The handle of an agent, and whether the channel's key may come from it; for whoever may see the channel."""
        nhi = (await self._agents.named(name)).handle
        async with self._ledger.transaction() as tx:
            channel = await store.channel(tx, channel_id)
            if not await self._visible(tx, channel, agent.handle, now):
                raise no_channel(channel_id)
            owns = nhi == channel.owner_nhi
            return nhi, owns or await self._admission.may(tx, channel, Action.PUBLISH, nhi, now)

    async def _visible(self, tx: Tx, channel: Channel, nhi: str, now: datetime) -> bool:
        if nhi == channel.owner_nhi:
            return True
        for action in (Action.SUBSCRIBE, Action.PUBLISH):
            if await self._admission.may(tx, channel, action, nhi, now):
                return True
        held = await store.subscription(tx, channel.channel_id, nhi)
        return held is not None and held.listens

    async def _check_keeper(
        self, tx: Tx, channel: Channel, agent: Agent, now: datetime, *, of_open: bool = True
    ) -> None:
        """The key is the owner's affair, and that of whoever may publish; in an open channel, of who listens too."""
        if agent.handle == channel.owner_nhi:
            return
        if channel.policy is Policy.OPEN:
            held = await store.subscription(tx, channel.channel_id, agent.handle)
            if not of_open or held is None or not held.listens:
                raise Denied(f"the key of an open channel is its owner's affair: {channel.owner_nhi}'s")
        await self._admission.check(tx, channel, Action.PUBLISH, agent.handle, now)


def _other_epoch(channel: Channel) -> VersionConflict:
    conflict = VersionConflict(f"the channel is at epoch {channel.epoch}", hint="read the channel and try again")
    conflict.members = {"epoch": channel.epoch, "epoch_key_id": msgspec.to_builtins(channel.epoch_key_id)}
    return conflict
