"""Who may subscribe to a channel, publish in it, and know of it: its policy, its allowlist, or the rules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.channels import store
from angelia.channels.model import Channel, Policy, Subscription, no_channel
from angelia.errors import AngeliaError, Denied
from angelia.policy import service as rules
from angelia.policy.model import Action, Wish
from angelia.stores.ledger import Tx

_DOING = {Action.PUBLISH: "publish in", Action.SUBSCRIBE: "subscribe to"}


class Admission:
    """Asks the policy of a channel, many agents at a time."""

    def __init__(self, engine: rules.Policy) -> None:
        self._engine = engine

    async def refusals(
        self, tx: Tx, channel: Channel, action: Action, nhis: Sequence[str], now: datetime
    ) -> list[AngeliaError | None]:
        """One answer per agent: None is yes."""
        match channel.policy:
            case Policy.OPEN:
                return [None] * len(nhis)
            case Policy.AUTHZ_REQUIRED:
                return await self._engine.check(tx, [Wish(nhi, action, channel.name) for nhi in nhis], now)
            case Policy.PRIVATE:
                allowed = {channel.owner_nhi}
            case Policy.ALLOWLIST:
                listed = (await store.listed(tx, channel.channel_id, nhis)).values()
                publishes = action is Action.PUBLISH
                allowed = {one.nhi for one in listed if (one.may_publish if publishes else one.may_subscribe)}
                allowed.add(channel.owner_nhi)
        return [None if nhi in allowed else _denial(channel, action, nhi) for nhi in nhis]

    async def check(self, tx: Tx, channel: Channel, action: Action, nhi: str, now: datetime) -> None:
        """The same for one agent; raises. To whom the channel is none of its business, there is none."""
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
        """Whether those who hold the key may go on as what they are: as listeners, or as publishers.

        The key is the owner's affair, also where rules do not let it publish."""
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
        """Whether an agent owns a channel, listens to it, or may do something in it."""
        if nhi == channel.owner_nhi:
            return True
        for action in (Action.SUBSCRIBE, Action.PUBLISH):
            if await self.may(tx, channel, action, nhi, now):
                return True
        held = await store.subscription(tx, channel.channel_id, nhi)
        return held is not None and held.listens

    async def refuse_outsiders(self, tx: Tx, channel: Channel, nhi: str, now: datetime) -> None:
        """Before anything is said of a channel to whom something was refused: to outsiders there is none.

        Whoever was in it knows of it, and is told the reason."""
        if await store.subscription(tx, channel.channel_id, nhi) is not None:
            return
        if not await self.sees(tx, channel, nhi, now):
            raise no_channel(channel.channel_id)

    async def rules_version(self, tx: Tx) -> int:
        return await self._engine.version(tx)

    async def admitting(self, tx: Tx, channels: Sequence[Channel], nhi: str, now: datetime) -> set[UUID]:
        """Of channels whose rules decide, those in which an agent may do something; asked about in one go."""
        wishes = [Wish(nhi, action, one.name) for one in channels for action in (Action.SUBSCRIBE, Action.PUBLISH)]
        refusals = await self._engine.check(tx, wishes, now)
        named = {wish.object for wish, refusal in zip(wishes, refusals, strict=True) if refusal is None}
        return {one.channel_id for one in channels if one.name in named}

    async def spend(self, channel: Channel, action: Action, nhi: str, now: datetime) -> None:
        """Count an act against the rate of the rule that allows it; only where rules decide."""
        if channel.policy is Policy.AUTHZ_REQUIRED:
            [refusal] = await self._engine.spend([Wish(nhi, action, channel.name)], now)
            if refusal is not None:
                raise refusal


def _denial(channel: Channel, action: Action, nhi: str) -> Denied:
    return Denied(
        f"{nhi} may not {_DOING[action]} this channel", hint=f"{channel.owner_nhi} runs `angelia channel allow`"
    )
