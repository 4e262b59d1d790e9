"""The keys of channels: who names the next one, who lacks it, and from whom it may come. The keys are never here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.agents.service import Agents
from angelia.api import AgentRow
from angelia.channels import store
from angelia.channels.admission import Admission
from angelia.channels.model import ASK_AGAIN, Channel, Epoch, Policy, Subscription, no_channel, not_subscribed
from angelia.errors import Denied, NotFound, VersionConflict
from angelia.policy.model import Action
from angelia.stores.ledger import Ledger, Tx


class Epochs:
    """What a server knows of a channel's keys: their ids, and to whom somebody says they were sent."""

    def __init__(self, ledger: Ledger, agents: Agents, admission: Admission) -> None:
        self._ledger = ledger
        self._agents = agents
        self._admission = admission

    async def set_epoch(self, agent: AgentRow, channel_id: UUID, epoch: int, key_id: UUID, now: datetime) -> Channel:
        """Name the channel's next key. Of several who try at once, one is right; the others learn whose key it is.

        In an open channel, where anybody may publish, only the owner does."""
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
        """Somebody sent the key of an epoch to these; for how many of them that is new and counts."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now)
            if epoch != channel.epoch or channel.epoch_key_id is None:
                raise _other_epoch(channel)
            by_anybody = channel.policy is Policy.OPEN and agent.handle != channel.owner_nhi
            return await store.key_sent(tx, channel_id, names, epoch, by_anybody=by_anybody)

    async def key_taken(self, agent: AgentRow, channel_id: UUID, epoch: int, now: datetime) -> Subscription:
        """The caller says that it has the present key; or, by epoch 0, that it has none, which counts once an hour."""
        async with self._ledger.transaction() as tx:
            channel = await store.locked(tx, channel_id)
            held = await store.subscription(tx, channel_id, agent.handle)
            if held is None or not held.holds:
                await self._admission.refuse_outsiders(tx, channel, agent.handle, now)
                raise not_subscribed(channel)
            if not epoch:
                return await store.key_lost(tx, channel_id, agent.handle, now, now - ASK_AGAIN) or held
            if epoch != channel.epoch or channel.epoch_key_id is None:
                raise _other_epoch(channel)
            return await store.key_taken(tx, channel_id, agent.handle, epoch, now) or held

    async def epoch(self, agent: AgentRow, channel_id: UUID, number: int, now: datetime) -> Epoch:
        """The key that a channel had in an epoch, for whoever may see the channel."""
        async with self._ledger.reading() as tx:
            channel = await store.channel(tx, channel_id)
            if not await self._admission.sees(tx, channel, agent.handle, now):
                raise no_channel(channel_id)
            found = await store.epoch(tx, channel_id, number)
        if found is None:
            raise NotFound(
                f"nothing is known of epoch {number} of {channel.name}", hint=f"the present one is {channel.epoch}"
            )
        return found

    async def subscribers(
        self, agent: AgentRow, channel_id: UUID, after: str, limit: int, now: datetime, *, without_key: bool
    ) -> tuple[list[Subscription], str | None]:
        """A page of who listens, by name, and where the next one begins; for those who give out the key. Who lacks
        it may also be somebody who only publishes.

        Rules may have changed since somebody subscribed: who may no longer is left out."""
        async with self._ledger.reading() as tx:
            channel = await store.channel(tx, channel_id)
            await self._check_keeper(tx, channel, agent, now)
            if without_key:
                found = await store.without_key(tx, channel_id, channel.epoch, after, limit + 1)
            else:
                found = await store.subscribers(tx, channel_id, after, limit + 1)
            page = found[:limit]
            refusals = await self._admission.staying(tx, channel, page, now)
        following = page[-1].subscriber_nhi if len(found) > limit else None
        return [one for one, refusal in zip(page, refusals, strict=True) if refusal is None], following

    async def may_give_key(self, agent: AgentRow, channel_id: UUID, name: str, now: datetime) -> tuple[str, bool]:
        """The handle of an agent, and whether the channel's key may come from it; for whoever may see the channel."""
        nhi = (await self._agents.named(name)).handle
        async with self._ledger.reading() as tx:
            channel = await store.channel(tx, channel_id)
            if not await self._admission.sees(tx, channel, agent.handle, now):
                raise no_channel(channel_id)
            owns = nhi == channel.owner_nhi
            return nhi, owns or await self._admission.may(tx, channel, Action.PUBLISH, nhi, now)

    async def _check_keeper(
        self, tx: Tx, channel: Channel, agent: AgentRow, now: datetime, *, of_open: bool = True
    ) -> None:
        """The key is the owner's affair, and that of whoever may publish; in an open channel, of who listens too."""
        if agent.handle == channel.owner_nhi:
            return
        if channel.policy is Policy.OPEN:
            held = await store.subscription(tx, channel.channel_id, agent.handle)
            if not of_open or held is None or not held.listens:
                raise Denied(
                    f"the key of an open channel is its owner's affair: {channel.owner_nhi}'s",
                    hint=f"who listens may give it out: angelia channel subscribe {channel.name}",
                )
        await self._admission.check(tx, channel, Action.PUBLISH, agent.handle, now)


def _other_epoch(channel: Channel) -> VersionConflict:
    conflict = VersionConflict(f"the channel is at epoch {channel.epoch}", hint="read the channel and try again")
    conflict.members = {"epoch": channel.epoch, "epoch_key_id": msgspec.to_builtins(channel.epoch_key_id)}
    return conflict
