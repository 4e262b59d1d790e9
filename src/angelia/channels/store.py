"""Every SQL statement about channels."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID, uuid4

from angelia.channels.model import (
    AllowlistEntry,
    Channel,
    ChannelLimits,
    ChannelPolicy,
    ChannelPublication,
    Epoch,
    PublishedMessage,
    StoredChannelMessage,
    Subscription,
    SubscriptionStatus,
    no_channel,
)
from angelia.envelope.rosters import Member, Roster, decode_roster, encode_roster
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, record_of, statements

R = TypeVar("R")

SQL = statements(__file__)
Known = tuple[UUID, str, UUID]  # channel, sender, message id
# Ten thousand members take 30 ms to read, and all of them ask for the roster when it changes.
_decoded = functools.lru_cache(maxsize=16)(decode_roster)
_FEW = 4  # channels whose locks a tick waits for at once


async def add(
    tx: Tx, channel_id: UUID, owner: str, name: str, policy: ChannelPolicy, limits: ChannelLimits, now: datetime
) -> Channel | None:
    """Returns the new channel, or None if one has that id, or the owner has one of that name."""
    return _found(await tx.fetchrow(SQL["add"], channel_id, owner, name, policy, *limits, now), Channel)


async def channel(tx: Tx, channel_id: UUID) -> Channel:
    row = await tx.fetchrow(SQL["channel"], channel_id)
    if row is None:
        raise no_channel(channel_id)
    return record_of(Channel, row)


async def locked(tx: Tx, channel_id: UUID) -> Channel:
    """Returns one channel, under a lock until the transaction ends."""
    held = (await lock(tx, [channel_id])).get(channel_id)
    if held is None:
        raise no_channel(channel_id)
    return held


async def lock(tx: Tx, channel_ids: Sequence[UUID]) -> dict[UUID, Channel]:
    """Returns those of the channels that exist, under locks until the transaction ends."""
    return {row["channel_id"]: record_of(Channel, row) for row in await tx.fetch(SQL["lock"], channel_ids)}


async def page(
    tx: Tx,
    nhi: str,
    after: tuple[datetime, UUID] | None,
    limit: int,
    owner: str | None,
    name: str | None,
    *,
    subscribed: bool,
) -> list[tuple[Channel, bool]]:
    """Returns channels that an agent uses or may find; the flag is False where policy rules decide whether it may."""
    at, id_ = after or (None, None)
    statement = SQL["subscribed_page" if subscribed else "page"]
    return [
        (record_of(Channel, row), row["known"]) for row in await tx.fetch(statement, nhi, at, id_, owner, name, limit)
    ]


async def update(tx: Tx, channel_id: UUID, policy: ChannelPolicy, limits: ChannelLimits, now: datetime) -> None:
    await tx.execute(SQL["update"], channel_id, policy, *limits, now)


async def recheck_from(tx: Tx, channel_id: UUID, after: str | None) -> None:
    """Sets the name after which the check of all key holders goes on; None ends it."""
    await tx.execute(SQL["recheck_from"], channel_id, after)


async def recheck_due(tx: Tx) -> UUID | None:
    found: UUID | None = await tx.fetchval(SQL["recheck_due"])
    return found


async def recheck_after(tx: Tx, channel_id: UUID) -> str | None:
    found: str | None = await tx.fetchval(SQL["recheck_after"], channel_id)
    return found


async def recheck_behind(tx: Tx, version: int, limit: int) -> None:
    """Schedules a check of all key holders for some channels whose policy rules have changed."""
    found = [row["channel_id"] for row in await tx.fetch(SQL["rules_behind"], version, limit)]
    if found:
        await lock(tx, sorted(found))
        await tx.execute(SQL["recheck_under"], found, version)


async def close_epoch(tx: Tx, channel_id: UUID, now: datetime) -> None:
    """Leaves the channel without a key: nothing is published until a publisher sets the next one."""
    await tx.execute(SQL["close_epoch"], channel_id, now)


async def set_epoch(tx: Tx, channel_id: UUID, epoch: int, key_id: UUID, by: str, now: datetime) -> Channel:
    await tx.execute(SQL["replace_epoch"], channel_id, now)
    await tx.execute(SQL["add_epoch"], channel_id, epoch, key_id, by, now)
    return _changed(await tx.fetchrow(SQL["set_epoch"], channel_id, epoch, key_id, now), Channel)


async def epoch(tx: Tx, channel_id: UUID, number: int) -> Epoch | None:
    return _found(await tx.fetchrow(SQL["epoch"], channel_id, number), Epoch)


async def note_leave(tx: Tx, channel_id: UUID, now: datetime) -> None:
    await tx.execute(SQL["note_leave"], channel_id, now)


async def count_subscribers(tx: Tx, channel_id: UUID, more: int) -> None:
    await tx.execute(SQL["count_subscribers"], channel_id, more)


async def remove(tx: Tx, channel_id: UUID, now: datetime) -> None:
    """Deletes a channel at once; its messages, subscriptions, allowlist and epochs are left to `drop_remains`."""
    await tx.execute(SQL["remove"], channel_id)
    await tx.execute(SQL["remove_roster"], channel_id)
    await tx.execute(SQL["add_remains"], channel_id, now)


async def listed(tx: Tx, channel_id: UUID, nhis: Sequence[str]) -> dict[str, AllowlistEntry]:
    """Returns the allowlist entries of these agents, by name."""
    return {one.nhi: one for one in _records(await tx.fetch(SQL["listed"], channel_id, nhis), AllowlistEntry)}


async def allowlist(tx: Tx, channel_id: UUID, after: str, limit: int) -> list[AllowlistEntry]:
    return _records(await tx.fetch(SQL["allowlist"], channel_id, after, limit), AllowlistEntry)


async def put_listed(tx: Tx, channel_id: UUID, members: Sequence[Member], now: datetime) -> list[AllowlistEntry]:
    """Puts agents on the allowlist, or changes their rights. Returns their entries."""
    nhis, subscribe, publish = columns([(one.nhi, one.may_subscribe, one.may_publish) for one in members], 3)
    return _records(await tx.fetch(SQL["put_listed"], channel_id, nhis, subscribe, publish, now), AllowlistEntry)


async def remove_listed(tx: Tx, channel_id: UUID, nhis: Sequence[str]) -> list[AllowlistEntry]:
    """Takes agents off the allowlist. Returns the entries that they had."""
    return _records(await tx.fetch(SQL["remove_listed"], channel_id, nhis), AllowlistEntry)


async def roster(tx: Tx, channel_id: UUID) -> Roster | None:
    """Returns the roster that the owner signed last."""
    found = await tx.fetchval(SQL["roster"], channel_id)
    return None if found is None else _decoded(found)


async def put_roster(tx: Tx, roster: Roster, now: datetime) -> Channel:
    """Replaces the channel's roster, and sets the channel's policy to the roster's. Returns the channel."""
    content = encode_roster(roster)
    await tx.execute(SQL["put_roster"], roster.channel_id, roster.version, roster.hash, content, now)
    row = await tx.fetchrow(SQL["set_roster_version"], roster.channel_id, roster.version, roster.policy, now)
    return _changed(row, Channel)


async def subscription(tx: Tx, channel_id: UUID, nhi: str) -> Subscription | None:
    return (await subscriptions(tx, channel_id, [nhi])).get(nhi)


async def subscriptions(tx: Tx, channel_id: UUID, nhis: Sequence[str]) -> dict[str, Subscription]:
    """Returns the subscriptions of several agents, by name; also deleted ones."""
    found = _records(await tx.fetch(SQL["subscriptions"], channel_id, nhis), Subscription)
    return {one.subscriber_nhi: one for one in found}


async def put_subscription(tx: Tx, channel_id: UUID, nhi: str, last_offset: int, now: datetime) -> Subscription:
    row = await tx.fetchrow(SQL["put_subscription"], uuid4(), channel_id, nhi, last_offset, now)
    return _changed(row, Subscription)


async def set_status(
    tx: Tx, channel_id: UUID, nhi: str, status: SubscriptionStatus, now: datetime
) -> Subscription | None:
    """Pauses or resumes a subscription; returns None if the agent is no subscriber."""
    return _found(await tx.fetchrow(SQL["set_status"], channel_id, nhi, status, now), Subscription)


async def hold_key(tx: Tx, channel_id: UUID, nhi: str, epoch: int, now: datetime) -> None:
    """Notes that an agent has the key of an epoch; the next ones are sent to it, whether it subscribes or not."""
    await tx.execute(SQL["hold_key"], uuid4(), channel_id, nhi, epoch, now)


async def become(tx: Tx, channel_id: UUID, nhis: Sequence[str], status: SubscriptionStatus, now: datetime) -> None:
    """Sets the status of several key holders."""
    await tx.execute(SQL["become"], channel_id, nhis, status, now)


async def commit(tx: Tx, channel_id: UUID, nhi: str, offset: int, now: datetime) -> Subscription | None:
    return _found(await tx.fetchrow(SQL["commit"], channel_id, nhi, offset, now), Subscription)


async def subscribers(tx: Tx, channel_id: UUID, after: str, limit: int) -> list[Subscription]:
    return _records(await tx.fetch(SQL["subscribers"], channel_id, after, limit), Subscription)


async def holders(tx: Tx, channel_id: UUID, after: str, limit: int) -> list[Subscription]:
    """Returns subscribers, and publishers that hold the key, by name."""
    return _records(await tx.fetch(SQL["holders"], channel_id, after, limit), Subscription)


async def without_key(tx: Tx, channel_id: UUID, epoch: int, after: str, limit: int) -> list[Subscription]:
    """Returns the key holders to which the key of that epoch was not sent yet, by name."""
    return _records(await tx.fetch(SQL["without_key"], channel_id, after, limit, epoch), Subscription)


async def count_without_key(tx: Tx, channel_id: UUID, epoch: int, most: int) -> int:
    return int(await tx.fetchval(SQL["count_without_key"], channel_id, epoch, most))


async def key_sent(tx: Tx, channel_id: UUID, nhis: Sequence[str], epoch: int, *, by_anybody: bool) -> int:
    """Notes that the key of an epoch was sent to these agents. Returns for how many that is new."""
    return len(await tx.fetch(SQL["key_sent"], channel_id, nhis, epoch, by_anybody))


async def key_taken(tx: Tx, channel_id: UUID, nhi: str, epoch: int, now: datetime) -> Subscription | None:
    return _found(await tx.fetchrow(SQL["key_taken"], channel_id, nhi, epoch, now), Subscription)


async def key_lost(tx: Tx, channel_id: UUID, nhi: str, now: datetime, asked_before: datetime) -> Subscription | None:
    return _found(await tx.fetchrow(SQL["key_lost"], channel_id, nhi, now, asked_before), Subscription)


async def known(tx: Tx, ids: Sequence[Known]) -> dict[Known, PublishedMessage]:
    """Returns the answers for the messages that were published under these ids."""
    rows = await tx.fetch(SQL["known"], *columns(ids, 3))
    return {(row["channel_id"], row["sender_nhi"], row["message_id"]): record_of(PublishedMessage, row) for row in rows}


async def append(tx: Tx, placed: Sequence[tuple[ChannelPublication, PublishedMessage]]) -> None:
    """Writes messages at the offsets that they were given, and moves the ends of their channels."""
    await tx.execute(
        SQL["append"],
        [one.channel_id for one, _ in placed],
        [at.offset for _, at in placed],
        [one.sender for one, _ in placed],
        [one.message_id for one, _ in placed],
        [one.replay_key for one, _ in placed],
        [one.envelope.header.key_id for one, _ in placed],
        [one.created_at for one, _ in placed],
        [at.accepted_at for _, at in placed],
        [at.expires_at for _, at in placed],
        [one.envelope.header.correlation_id for one, _ in placed],
        [one.envelope.wire for one, _ in placed],
    )
    counts = Counter(one.channel_id for one, _ in placed)
    await tx.execute(SQL["advance"], list(counts), list(counts.values()))


async def read(
    tx: Tx, channel_id: UUID, after: int, now: datetime, limit: int, most_bytes: int
) -> list[StoredChannelMessage]:
    return _records(await tx.fetch(SQL["read"], channel_id, after, now, limit, most_bytes), StoredChannelMessage)


async def drop_expired(tx: Tx, now: datetime, limit: int) -> bool:
    """Deletes one small batch of expired messages. Returns whether there may be more.

    It waits for the locks of a few channels: a channel with constant publishing is never found unlocked."""
    due = [row["channel_id"] for row in await tx.fetch(SQL["expired"], now, limit, _FEW + 1)]
    held = list(await lock(tx, sorted(due[:_FEW])))
    if not held:
        return False  # messages of deleted channels are left to `drop_remains`
    dropped = await tx.fetch(SQL["drop_expired"], held, now, limit)
    await tx.execute(SQL["move_first"], held)
    return len(dropped) == limit or len(due) > _FEW


async def forget_epochs(tx: Tx, replaced_before: datetime, limit: int) -> None:
    await tx.execute(SQL["forget_epochs"], replaced_before, limit)


async def drop_remains(tx: Tx, limit: int) -> bool:
    """Deletes one small batch of what a deleted channel left. Returns whether there was such a channel."""
    channel_id = await tx.fetchval(SQL["remains"])
    if channel_id is None:
        return False
    for statement in ("drop_messages", "drop_subscriptions", "drop_listed", "drop_epochs"):
        if await tx.execute(SQL[statement], channel_id, limit) != "DELETE 0":
            return True
    await tx.execute(SQL["remove_remains"], channel_id)
    return True


def _records(rows: Sequence[Row], kind: type[R]) -> list[R]:
    return [record_of(kind, row) for row in rows]


def _found(row: Row | None, kind: type[R]) -> R | None:
    return None if row is None else record_of(kind, row)


def _changed(row: Row | None, kind: type[R]) -> R:
    assert row is not None, "the caller holds the channel's lock"
    return record_of(kind, row)
