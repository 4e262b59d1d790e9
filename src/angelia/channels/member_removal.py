"""Takes the key from those who may not have it any more: they are dropped, and the epoch closes with it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.audit import service as audit
from angelia.audit.model import Detail, Event
from angelia.channels import store
from angelia.channels.admission import Admission
from angelia.channels.model import Channel, Listed, Policy, Status, Subscription
from angelia.stores.ledger import Ledger, Tx

BATCH = 500


async def withdraw(tx: Tx, admission: Admission, channel: Channel, before: Sequence[Listed], now: datetime) -> None:
    """Rights were taken away: what rested on them ends with them, and no key follows that those have who lost them."""
    lost = {one.nhi: one for one in before if one.nhi != channel.owner_nhi}
    if channel.policy is not Policy.ALLOWLIST or not lost:
        return
    subscriptions = await store.subscriptions(tx, channel.channel_id, list(lost))
    await _drop_refused(tx, admission, channel, [one for one in subscriptions.values() if one.holds], now)
    if subscriptions or any(one.may_publish for one in lost.values()):
        await store.close_epoch(tx, channel.channel_id, now)


async def recheck_all(ledger: Ledger, admission: Admission, channel_id: UUID, now: datetime) -> None:
    """Drop all holders of the key that are not allowed any more; a crash leaves the rest to the tick."""
    while await recheck(ledger, admission, channel_id, now):
        pass


async def recheck(ledger: Ledger, admission: Admission, channel_id: UUID, now: datetime) -> bool:
    """Drop the next few holders of the key that are not allowed any more; whether there are more to look at."""
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
    tx: Tx, admission: Admission, channel: Channel, held: Sequence[Subscription], now: datetime
) -> None:
    """Remove those who may not go on; the epoch closes with it, so that nothing follows under a key that they have.

    Who may not listen but publish, as an owner always keeps its channel's key, goes on as a publisher."""
    refusals = await admission.staying(tx, channel, held, now)
    refused = [one for one, refusal in zip(held, refusals, strict=True) if refusal]
    if not refused:
        return
    publishers = [msgspec.structs.replace(one, status=Status.PUBLISHING) for one in refused if one.listens]
    still = await admission.staying(tx, channel, publishers, now)
    kept = [one.subscriber_nhi for one, refusal in zip(publishers, still, strict=True) if not refusal]
    dropped = [one.subscriber_nhi for one in refused if one.subscriber_nhi not in kept]
    await store.become(tx, channel.channel_id, kept, Status.PUBLISHING, now)
    await store.become(tx, channel.channel_id, dropped, Status.DELETED, now)
    await store.count_subscribers(tx, channel.channel_id, -len(publishers))
    await store.close_epoch(tx, channel.channel_id, now)
    removals = [
        channel_event("unsubscribed", channel, channel.owner_nhi, now, {"removed": one.subscriber_nhi})
        for one in refused
    ]
    await audit.record(tx, removals)


def channel_event(kind: str, channel: Channel, actor: str, now: datetime, detail: Detail | None = None) -> Event:
    said = {"channel_id": str(channel.channel_id), "name": channel.name, **(detail or {})}
    return audit.event(kind, now, actor=actor, object=channel.owner_nhi, detail=said)
