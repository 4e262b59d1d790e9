"""Which agents may subscribe to a channel, publish in it, and know of it: its policy decides, its allowlist, or the
operator's policy rules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.channels import store
from angelia.channels.model import Channel, ChannelPolicy, Subscription, no_channel
from angelia.errors import AngeliaError, Denied
from angelia.policy import service as rules
from angelia.policy.model import Action, Wish
from angelia.stores.ledger import Tx

_DOING = {Action.PUBLISH: "publish in", Action.SUBSCRIBE: "subscribe to"}


class ChannelAdmission:
    """Asks the policy of a channel, for many agents at a time."""

    def __init__(self, engine: rules.Policy) -> None:
        self._engine = engine

    async def refusals(
        self, tx: Tx, channel: Channel, action: Action, nhis: Sequence[str], now: datetime
    ) -> list[AngeliaError | None]:
        """Returns one outcome per agent: None if it may, else the error that says why not."""
        match channel.policy:
            case ChannelPolicy.OPEN:
                return [None] * len(nhis)
            case ChannelPolicy.AUTHZ_REQUIRED:
                return await self._engine.check(tx, [Wish(nhi, action, channel.name) for nhi in nhis], now)
            case ChannelPolicy.PRIVATE:
                allowed = {channel.owner_nhi}
            case ChannelPolicy.ALLOWLIST:
                listed = (await store.listed(tx, channel.channel_id, nhis)).values()
                publishes = action is Action.PUBLISH
                allowed = {one.nhi for one in listed if (one.may_publish if publishes else one.may_subscribe)}
                allowed.add(channel.owner_nhi)
        return [None if nhi in allowed else _denial(channel, action, nhi) for nhi in nhis]

    async def check(self, tx: Tx, channel: Channel, action: Action, nhi: str, now: datetime) -> None:
        """Raises the refusal of one agent, if there is one; to an outsider the channel does not exist."""
        [refusal] = await self.refusals(tx, channel, action, [nhi], now)
        if isinstance(refusal, Denied):
            await self.refuse_outsiders(tx, channel, nhi, now)
        if refusal is not None:
            raise refusal

    async def may(self, tx: Tx, channel: Channel, action: Action, nhi: str, now: datetime) -> bool:
        [refusal] = await self.refusals(tx, channel, action, [nhi], now)
        return refusal is None

    async def staying(
        self, tx: Tx, channel: Channel, held: Sequence[Subscription], now: datetime
    ) -> list[AngeliaError | None]:
        """Returns for each key holder None if it may stay what it is, subscriber or publisher, else the refusal.

        The owner keeps its channel's key, even where policy rules do not let it publish."""
        listening = [one.subscriber_nhi for one in held if one.listens]
        others = [one.subscriber_nhi for one in held if not one.listens]
        refusals = dict(
            [
                *zip(listening, await self.refusals(tx, channel, Action.SUBSCRIBE, listening, now), strict=True),
                *zip(others, await self.refusals(tx, channel, Action.PUBLISH, others, now), strict=True),
            ]
        )
        if channel.owner_nhi in others:
            refusals[channel.owner_nhi] = None
        return [refusals[one.subscriber_nhi] for one in held]

    async def sees(self, tx: Tx, channel: Channel, nhi: str, now: datetime) -> bool:
        """Whether an agent owns a channel, is its subscriber, or may subscribe or publish."""
        if nhi == channel.owner_nhi:
            return True
        for action in (Action.SUBSCRIBE, Action.PUBLISH):
            if await self.may(tx, channel, action, nhi, now):
                return True
        held = await store.subscription(tx, channel.channel_id, nhi)
        return held is not None and held.listens

    async def seen(self, tx: Tx, channel_id: UUID, nhi: str, now: datetime) -> Channel:
        """Returns a channel to an agent that sees it; to others it does not exist."""
        channel = await store.channel(tx, channel_id)
        if not await self.sees(tx, channel, nhi, now):
            raise no_channel(channel_id)
        return channel

    async def refuse_outsiders(self, tx: Tx, channel: Channel, nhi: str, now: datetime) -> None:
        """Raises NotFound to an agent that does not see the channel, before another refusal would tell of it.

        A former member knows of the channel, so it is told the reason."""
        if await store.subscription(tx, channel.channel_id, nhi) is not None:
            return
        if not await self.sees(tx, channel, nhi, now):
            raise no_channel(channel.channel_id)

    async def rules_version(self, tx: Tx) -> int:
        return await self._engine.version(tx)

    async def admitting(self, tx: Tx, channels: Sequence[Channel], nhi: str, now: datetime) -> set[UUID]:
        """Returns those of the channels under policy rules in which an agent may subscribe or publish, by one check."""
        wishes = [Wish(nhi, action, one.name) for one in channels for action in (Action.SUBSCRIBE, Action.PUBLISH)]
        refusals = await self._engine.check(tx, wishes, now)
        named = {wish.object for wish, refusal in zip(wishes, refusals, strict=True) if refusal is None}
        return {one.channel_id for one in channels if one.name in named}

    async def spend(self, channel: Channel, action: Action, nhi: str, now: datetime) -> None:
        """Counts an act against the rate of the policy rule that allows it, if policy rules decide in this channel."""
        if channel.policy is ChannelPolicy.AUTHZ_REQUIRED:
            await self._engine.spend(Wish(nhi, action, channel.name), now)


def _denial(channel: Channel, action: Action, nhi: str) -> Denied:
    return Denied(
        f"{nhi} may not {_DOING[action]} this channel", hint=f"{channel.owner_nhi} runs `angelia channel allow`"
    )
