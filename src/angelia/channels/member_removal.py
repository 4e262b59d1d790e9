"""Removes key holders that may not have a channel's key any more, and closes the epoch with it: nothing is published
under a key that a removed member has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.audit import service as audit
from angelia.audit.model import Detail, Event
from angelia.channels import store
from angelia.channels.admission import ChannelAdmission
from angelia.channels.model import AllowlistEntry, Channel, ChannelPolicy, Subscription, SubscriptionStatus
from angelia.stores.ledger import Ledger, Tx

BATCH = 500


async def withdraw(
    tx: Tx, admission: ChannelAdmission, channel: Channel, before: Sequence[AllowlistEntry], now: datetime
) -> None:
    """Removes agents that lost rights, and closes the epoch if one of them may have the key. `before` are their entries
    from before the change."""
    lost = {one.nhi: one for one in before if one.nhi != channel.owner_nhi}
    if channel.policy is not ChannelPolicy.ALLOWLIST or not lost:
        return
    subscriptions = await store.subscriptions(tx, channel.channel_id, list(lost))
    await _drop_refused(tx, admission, channel, [one for one in subscriptions.values() if one.holds], now)
    if subscriptions or any(one.may_publish for one in lost.values()):
        await store.close_epoch(tx, channel.channel_id, now)


async def recheck_all(ledger: Ledger, admission: ChannelAdmission, channel_id: UUID, now: datetime) -> None:
    """Removes all key holders that are not allowed any more; after a crash the tick does the rest."""
    while await recheck(ledger, admission, channel_id, now):
        pass


async def recheck(ledger: Ledger, admission: ChannelAdmission, channel_id: UUID, now: datetime) -> bool:
    """Checks one batch of key holders and removes those that are not allowed any more. Returns whether there are more
    to check."""
    async with ledger.transaction() as tx:
        channel = (await store.lock(tx, [channel_id])).get(channel_id)
        after = await store.recheck_after(tx, channel_id)
        if channel is None or after is None:
            return False
        found = await store.holders(tx, channel_id, after, BATCH)
        await _drop_refused(tx, admission, channel, found, now)
        more = len(found) == BATCH
        await store.recheck_from(tx, channel_id, found[-1].subscriber_nhi if more else None)
    return more


async def _drop_refused(
    tx: Tx, admission: ChannelAdmission, channel: Channel, held: Sequence[Subscription], now: datetime
) -> None:
    """Removes the key holders that may not stay, and closes the epoch if there are any.

    A subscriber that may publish but not subscribe any more stays as a publisher; the owner always does."""
    refusals = await admission.staying(tx, channel, held, now)
    refused = [one for one, refusal in zip(held, refusals, strict=True) if refusal]
    if not refused:
        return
    publishing = SubscriptionStatus.PUBLISHING
    publishers = [msgspec.structs.replace(one, status=publishing) for one in refused if one.listens]
    still = await admission.staying(tx, channel, publishers, now)
    kept = [one.subscriber_nhi for one, refusal in zip(publishers, still, strict=True) if not refusal]
    dropped = [one.subscriber_nhi for one in refused if one.subscriber_nhi not in kept]
    await store.become(tx, channel.channel_id, kept, publishing, now)
    await store.become(tx, channel.channel_id, dropped, SubscriptionStatus.DELETED, now)
    await store.count_subscribers(tx, channel.channel_id, -len(publishers))
    await store.close_epoch(tx, channel.channel_id, now)
    removals = [
        channel_event("unsubscribed", channel, channel.owner_nhi, now, {"removed": one.subscriber_nhi})
        for one in refused
    ]
    await audit.record(tx, removals)


def channel_event(kind: str, channel: Channel, actor: str, now: datetime, detail: Detail | None = None) -> Event:
    """Returns an audit event about a channel."""
    said = {"channel_id": str(channel.channel_id), "name": channel.name, **(detail or {})}
    return audit.event(kind, now, actor=actor, object=channel.owner_nhi, detail=said)
