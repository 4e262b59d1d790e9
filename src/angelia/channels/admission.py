"""Who may subscribe to a channel and publish in it: its policy, its allowlist, or the rules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.channels import store
from angelia.channels.model import Channel, Policy
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
        """The same for one agent; raises."""
        [refusal] = await self.refusals(tx, channel, action, [nhi], now)
        if refusal is not None:
            raise refusal

    async def may(self, tx: Tx, channel: Channel, action: Action, nhi: str, now: datetime) -> bool:
        [refusal] = await self.refusals(tx, channel, action, [nhi], now)
        return refusal is None

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
