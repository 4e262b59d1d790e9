"""Every SQL statement about channels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid4

import msgspec

from angelia.channels.model import (
    Channel,
    Epoch,
    Listed,
    Policy,
    Publication,
    Status,
    Stored,
    Subscription,
    no_channel,
)
from angelia.envelope.rosters import Member, Roster, decode_roster, encode_roster
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, statements

SQL = statements(__file__)
Known = tuple[UUID, str, UUID]  # channel, sender, message id
# Ten thousand members take 30 ms to read, and all of them ask for the roster when it changes.
_decoded = functools.lru_cache(maxsize=16)(decode_roster)
_FEW = 4  # channels whose locks a tick waits for at once


async def add(
    tx: Tx,
    channel_id: UUID,
    owner: str,
    name: str,
    policy: Policy,
    retention: int,
    size: int,
    subscribers: int,
    now: datetime,
) -> Channel | None:
    """A new channel, or None where there is one of that id, or the owner has one of that name."""
    row = await tx.fetchrow(SQL["add"], channel_id, owner, name, policy, retention, size, subscribers, now)
    return None if row is None else _channel(row)


async def channel(tx: Tx, channel_id: UUID) -> Channel:
    row = await tx.fetchrow(SQL["channel"], channel_id)
    if row is None:
        raise no_channel(channel_id)
    return _channel(row)


async def locked(tx: Tx, channel_id: UUID) -> Channel:
    """One channel as it is, and stays until the transaction ends."""
    held = (await lock(tx, [channel_id])).get(channel_id)
    if held is None:
        raise no_channel(channel_id)
    return held


async def lock(tx: Tx, channel_ids: Sequence[UUID]) -> dict[UUID, Channel]:
    """These channels as they are, and stay until the transaction ends."""
    return {row["channel_id"]: _channel(row) for row in await tx.fetch(SQL["lock"], channel_ids)}


async def page(
    tx: Tx,
    nhi: str,
    after: tuple[datetime, UUID] | None,
    limit: int,
    *,
    owner: str | None,
    name: str | None,
    subscribed: bool,
) -> list[tuple[Channel, bool]]:
    """Channels that an agent has to do with or may find; False where it is for the rules to say whether it may."""
    at, id_ = after or (None, None)
    statement = SQL["subscribed_page" if subscribed else "page"]
    return [(_channel(row), row["known"]) for row in await tx.fetch(statement, nhi, at, id_, owner, name, limit)]


async def update(
    tx: Tx, channel_id: UUID, policy: Policy, retention: int, size: int, subscribers: int, now: datetime
) -> Channel:
    return _changed(await tx.fetchrow(SQL["update"], channel_id, policy, retention, size, subscribers, now))


async def recheck_from(tx: Tx, channel_id: UUID, after: str | None) -> None:
    """From where the check of all subscribers goes on; None ends it."""
    await tx.execute(SQL["recheck_from"], channel_id, after)


async def recheck_due(tx: Tx) -> UUID | None:
    found: UUID | None = await tx.fetchval(SQL["recheck_due"])
    return found


async def recheck_after(tx: Tx, channel_id: UUID) -> str | None:
    found: str | None = await tx.fetchval(SQL["recheck_after"], channel_id)
    return found


async def recheck_behind(tx: Tx, version: int, limit: int) -> bool:
    """Have the members of some channels looked at again whose rules have changed; whether there were any."""
    found = [row["channel_id"] for row in await tx.fetch(SQL["rules_behind"], version, limit)]
    if found:
        await lock(tx, sorted(found))
        await tx.execute(SQL["recheck_under"], found, version)
    return bool(found)


async def close_epoch(tx: Tx, channel_id: UUID, now: datetime) -> Channel:
    return _changed(await tx.fetchrow(SQL["close_epoch"], channel_id, now))


async def set_epoch(tx: Tx, channel_id: UUID, epoch: int, key_id: UUID, by: str, now: datetime) -> Channel:
    await tx.execute(SQL["replace_epoch"], channel_id, now)
    await tx.execute(SQL["add_epoch"], channel_id, epoch, key_id, by, now)
    return _changed(await tx.fetchrow(SQL["set_epoch"], channel_id, epoch, key_id, now))


async def epoch(tx: Tx, channel_id: UUID, number: int) -> Epoch | None:
    row = await tx.fetchrow(SQL["epoch"], channel_id, number)
    return None if row is None else msgspec.convert(dict(row), Epoch)


async def note_leave(tx: Tx, channel_id: UUID, now: datetime) -> None:
    await tx.execute(SQL["note_leave"], channel_id, now)


async def count_subscribers(tx: Tx, channel_id: UUID, more: int) -> None:
    await tx.execute(SQL["count_subscribers"], channel_id, more)


async def remove(tx: Tx, channel_id: UUID, now: datetime) -> None:
    """The channel is gone at once; what is left of it goes bit by bit."""
    await tx.execute(SQL["remove"], channel_id)
    await tx.execute(SQL["remove_roster"], channel_id)
    await tx.execute(SQL["add_remains"], channel_id, now)


async def listed(tx: Tx, channel_id: UUID, nhis: Sequence[str]) -> dict[str, Listed]:
    return {row["nhi"]: _listed(row) for row in await tx.fetch(SQL["listed"], channel_id, nhis)}


async def allowlist(tx: Tx, channel_id: UUID, after: str, limit: int) -> list[Listed]:
    return [_listed(row) for row in await tx.fetch(SQL["allowlist"], channel_id, after, limit)]


async def put_listed(
    tx: Tx, channel_id: UUID, nhi: str, now: datetime, *, may_subscribe: bool, may_publish: bool
) -> Listed:
    row = await tx.fetchrow(SQL["put_listed"], channel_id, nhi, may_subscribe, may_publish, now)
    assert row is not None
    return _listed(row)


async def put_all_listed(tx: Tx, channel_id: UUID, members: Sequence[Member], now: datetime) -> None:
    nhis, subscribe, publish = columns([(one.nhi, one.may_subscribe, one.may_publish) for one in members], 3)
    await tx.execute(SQL["put_all_listed"], channel_id, nhis, subscribe, publish, now)


async def remove_listed(tx: Tx, channel_id: UUID, nhis: Sequence[str]) -> list[Listed]:
    return [_listed(row) for row in await tx.fetch(SQL["remove_listed"], channel_id, nhis)]


async def roster(tx: Tx, channel_id: UUID) -> Roster | None:
    """The roster that the owner signed last."""
    found = await tx.fetchval(SQL["roster"], channel_id)
    return None if found is None else _decoded(found)


async def put_roster(tx: Tx, roster: Roster, now: datetime) -> Channel:
    """Store a roster in the place of the one before; the channel has its policy from now on."""
    content = encode_roster(roster)
    await tx.execute(SQL["put_roster"], roster.channel_id, roster.version, roster.hash, content, now)
    row = await tx.fetchrow(SQL["set_roster_version"], roster.channel_id, roster.version, roster.policy, now)
    return _changed(row)


async def subscription(tx: Tx, channel_id: UUID, nhi: str) -> Subscription | None:
    row = await tx.fetchrow(SQL["subscription"], channel_id, nhi)
    return None if row is None else _subscription(row)


async def subscriptions(tx: Tx, channel_id: UUID, nhis: Sequence[str]) -> dict[str, Subscription]:
    """The subscriptions of several agents, by name."""
    rows = [_subscription(row) for row in await tx.fetch(SQL["subscriptions"], channel_id, nhis)]
    return {row.subscriber_nhi: row for row in rows}


async def put_subscription(tx: Tx, channel_id: UUID, nhi: str, last_offset: int, now: datetime) -> Subscription:
    row = await tx.fetchrow(SQL["put_subscription"], uuid4(), channel_id, nhi, last_offset, now)
    assert row is not None
    return _subscription(row)


async def set_status(tx: Tx, channel_id: UUID, nhi: str, status: Status, now: datetime) -> Subscription | None:
    """Pause or resume a subscription; None where there is none, or not any more."""
    row = await tx.fetchrow(SQL["set_status"], channel_id, nhi, status, now)
    return None if row is None else _subscription(row)


async def hold_key(tx: Tx, channel_id: UUID, nhi: str, epoch: int, now: datetime) -> None:
    """Somebody has the key of an epoch, and is sent the next ones, whether it listens or not."""
    await tx.execute(SQL["hold_key"], uuid4(), channel_id, nhi, epoch, now)


async def become(tx: Tx, channel_id: UUID, nhis: Sequence[str], status: Status, now: datetime) -> None:
    """Make those who listen or hold the key something else."""
    await tx.execute(SQL["become"], channel_id, nhis, status, now)


async def commit(tx: Tx, channel_id: UUID, nhi: str, offset: int, now: datetime) -> Subscription | None:
    row = await tx.fetchrow(SQL["commit"], channel_id, nhi, offset, now)
    return None if row is None else _subscription(row)


async def subscribers(tx: Tx, channel_id: UUID, after: str, limit: int) -> list[Subscription]:
    return [_subscription(row) for row in await tx.fetch(SQL["subscribers"], channel_id, after, limit)]


async def holders(tx: Tx, channel_id: UUID, after: str, limit: int) -> list[Subscription]:
    """Who listens, and who holds the key to publish, by name."""
    return [_subscription(row) for row in await tx.fetch(SQL["holders"], channel_id, after, limit)]


async def without_key(tx: Tx, channel_id: UUID, epoch: int, after: str, limit: int) -> list[Subscription]:
    """Subscribers and publishers to whom nobody has sent the key of that epoch."""
    return [_subscription(row) for row in await tx.fetch(SQL["without_key"], channel_id, after, limit, epoch)]


async def count_without_key(tx: Tx, channel_id: UUID, epoch: int, most: int) -> int:
    return int(await tx.fetchval(SQL["count_without_key"], channel_id, epoch, most))


async def key_sent(tx: Tx, channel_id: UUID, nhis: Sequence[str], epoch: int, *, by_anybody: bool) -> int:
    """Note that the key of an epoch was sent to these; of how many that is new."""
    return len(await tx.fetch(SQL["key_sent"], channel_id, nhis, epoch, by_anybody))


async def key_taken(tx: Tx, channel_id: UUID, nhi: str, epoch: int, now: datetime) -> Subscription | None:
    row = await tx.fetchrow(SQL["key_taken"], channel_id, nhi, epoch, now)
    return None if row is None else _subscription(row)


async def key_lost(tx: Tx, channel_id: UUID, nhi: str, now: datetime, asked_before: datetime) -> Subscription | None:
    row = await tx.fetchrow(SQL["key_lost"], channel_id, nhi, now, asked_before)
    return None if row is None else _subscription(row)


async def known(tx: Tx, ids: Sequence[Known]) -> dict[Known, Stored]:
    """What was published under these ids, without its bytes."""
    rows = await tx.fetch(SQL["known"], *columns(ids, 3))
    return {
        (row["channel_id"], row["sender_nhi"], row["message_id"]): Stored(
            offset=row["channel_offset"],
            replay_key=row["replay_key"],
            accepted_at=row["accepted_at"],
            expires_at=row["expires_at"],
            wire=b"",
        )
        for row in rows
    }


async def append(tx: Tx, placed: Sequence[tuple[Publication, Stored]]) -> None:
    """Write messages at the offsets that they were given, and move the ends of their channels."""
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
    counts: dict[UUID, int] = {}
    for one, _ in placed:
        counts[one.channel_id] = counts.get(one.channel_id, 0) + 1
    await tx.execute(SQL["advance"], list(counts), list(counts.values()))


async def read(tx: Tx, channel_id: UUID, after: int, now: datetime, limit: int, most_bytes: int) -> list[Stored]:
    rows = await tx.fetch(SQL["read"], channel_id, after, now, limit, most_bytes)
    return [
        Stored(
            offset=row["channel_offset"],
            replay_key=row["replay_key"],
            accepted_at=row["accepted_at"],
            expires_at=row["expires_at"],
            wire=row["wire"],
        )
        for row in rows
    ]


async def drop_expired(tx: Tx, now: datetime, limit: int) -> bool:
    """Take away one small batch of messages whose time is over; whether there may be more.

    It waits for the locks of a few channels: one that is published in without a pause is never found free."""
    due = [row["channel_id"] for row in await tx.fetch(SQL["expired"], now, limit, _FEW + 1)]
    held = list(await lock(tx, sorted(due[:_FEW])))
    if not held:
        return False  # what is left of deleted channels goes with them
    dropped = await tx.fetch(SQL["drop_expired"], held, now, limit)
    await tx.execute(SQL["move_first"], held)
    return len(dropped) == limit or len(due) > _FEW


async def forget_epochs(tx: Tx, replaced_before: datetime, limit: int) -> None:
    await tx.execute(SQL["forget_epochs"], replaced_before, limit)


async def drop_remains(tx: Tx, limit: int) -> bool:
    """Take away one small batch of what is left of a channel that is gone; whether there was one."""
    channel_id = await tx.fetchval(SQL["remains"])
    if channel_id is None:
        return False
    for statement in ("drop_messages", "drop_subscriptions", "drop_listed", "drop_epochs"):
        if await tx.execute(SQL[statement], channel_id, limit) != "DELETE 0":
            return True
    await tx.execute(SQL["remove_remains"], channel_id)
    return True


def _channel(row: Row) -> Channel:
    return msgspec.convert({name: row[name] for name in Channel.__struct_fields__}, Channel)


def _changed(row: Row | None) -> Channel:
    assert row is not None, "the caller holds the channel's lock"
    return _channel(row)


def _listed(row: Row) -> Listed:
    return msgspec.convert(dict(row), Listed)


def _subscription(row: Row) -> Subscription:
    return msgspec.convert({name: row[name] for name in Subscription.__struct_fields__}, Subscription)
