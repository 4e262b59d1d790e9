"""Every SQL statement about envelopes that wait, and about the ids under which they were sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.envelope.ids import bucket_of
from angelia.mail.model import Accepted, EnvelopeRow, MessageId, NewEnvelope, QueueLoad, QueuePlace
from angelia.stores.ledger import Tx
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__)


async def known_ids(tx: Tx, wanted: Sequence[MessageId]) -> dict[MessageId, tuple[bytes, Accepted]]:
    """What was sent under these ids: the replay key, and the answer that the sender got."""
    rows = await tx.fetch(SQL["known_ids"], *columns(wanted, 2))
    return {
        (row["sender_nhi"], row["message_id"]): (row["replay_key"], msgspec.convert(row["answer"], Accepted))
        for row in rows
    }


async def remember_ids(tx: Tx, new: Sequence[tuple[str, UUID, bytes, Accepted, datetime]]) -> set[MessageId]:
    """Takes ids for messages; returns those that were free."""
    rows = await tx.fetch(SQL["remember_ids"], *columns(new, 5))
    return {(row["sender_nhi"], row["message_id"]) for row in rows}


async def forget_ids(tx: Tx, ids: Sequence[MessageId]) -> None:
    await tx.execute(SQL["forget_ids"], *columns(ids, 2))


async def forget_old_ids(tx: Tx, now: datetime, limit: int) -> int:
    """Deletes ids whose time is over; returns how many."""
    done = await tx.execute(SQL["forget_old_ids"], now, limit)
    return int(done.rpartition(" ")[2])


async def waiting(
    tx: Tx, ways: Iterable[tuple[str, str]]
) -> tuple[dict[str, QueueLoad], dict[tuple[str, str], QueueLoad]]:
    """What waits for each recipient in all, and from each sender, by recipient and sender."""
    ways = set(ways)
    wanted = [(bucket_of(one), one) for one in {recipient for recipient, _ in ways}]
    rows = await tx.fetch(SQL["waiting"], *columns(wanted, 2), list({sender for _, sender in ways}))
    queues, shares = {recipient: QueueLoad() for _, recipient in wanted}, dict.fromkeys(ways, QueueLoad())
    for row in rows:
        recipient, load = row["recipient"], QueueLoad(row["messages"], row["bytes"])
        shares[recipient, row["sender"]] = load
        queues[recipient] = QueueLoad(*map(sum, zip(queues[recipient], load, strict=True)))
    return queues, shares


async def add(tx: Tx, new: Sequence[NewEnvelope]) -> list[QueuePlace]:
    """Stores envelopes; returns their places in the queues."""
    values = [
        (
            bucket_of(one.envelope.header.recipient_nhi),
            one.envelope.header.recipient_nhi,
            one.mref,
            one.envelope.header.sender_nhi,
            one.envelope.header.message_id,
            one.replay_key,
            one.envelope.header.key_id,
            one.envelope.header.sender_key_id,
            int(one.envelope.header.priority),
            one.envelope.header.channel_id,
            one.envelope.header.correlation_id,
            one.created_at,
            one.accepted_at,
            one.expires_at,
            one.envelope.wire,
        )
        for one in new
    ]
    rows = await tx.fetch(SQL["add"], *columns(values, 15))
    places = {row["mref"]: record_of(QueuePlace, row) for row in rows}
    return [places[one.mref] for one in new]


async def claimable(
    tx: Tx, recipient: str, mrefs: Sequence[bytes], without_copy: Sequence[bytes], now: datetime
) -> dict[bytes, EnvelopeRow]:
    """Those of a recipient's messages that are queued and have not expired, by mref; with the bytes of those that have
    no copy in the hot tier."""
    return (await claimable_in_order(tx, recipient, mrefs, without_copy, now, 0, []))[0]


async def claimable_in_order(
    tx: Tx,
    recipient: str,
    mrefs: Sequence[bytes],
    without_copy: Sequence[bytes],
    now: datetime,
    last: int,
    out: Sequence[bytes],
) -> tuple[dict[bytes, EnvelopeRow], bool]:
    """The same. The second value says whether the queue has a message before the place `last` that is neither among
    these nor among those that are known to be leased."""
    rows = await tx.fetch(SQL["claimable"], bucket_of(recipient), recipient, mrefs, without_copy, now, last, out)
    return {row["mref"]: record_of(EnvelopeRow, row) for row in rows}, bool(rows) and rows[0]["passes"]


async def passed(
    tx: Tx, recipient: str, last: int, now: datetime, known: Sequence[bytes], limit: int
) -> list[QueuePlace]:
    """The first messages of a queue before the place `last` that are not among the known ones."""
    rows = await tx.fetch(SQL["passed"], bucket_of(recipient), recipient, last, now, known, limit)
    return [record_of(QueuePlace, row) for row in rows]


async def matching(
    tx: Tx,
    recipient: str,
    now: datetime,
    limit: int,
    *,
    correlation_id: UUID | None,
    channel_id: UUID | None,
    min_priority: int,
    after: QueuePlace | None,
) -> list[QueuePlace]:
    """The messages of a conversation or a channel, in the order of the queue."""
    name, value = ("correlated", correlation_id) if correlation_id is not None else ("in_channel", channel_id)
    priority, seq = (after.priority, after.seq) if after else (None, None)
    rows = await tx.fetch(SQL[name], bucket_of(recipient), recipient, value, now, min_priority, limit, priority, seq)
    return [record_of(QueuePlace, row) for row in rows]


async def one(tx: Tx, recipient: str, replay_key: bytes) -> EnvelopeRow | None:
    row = await tx.fetchrow(SQL["one"], bucket_of(recipient), replay_key)
    return None if row is None else record_of(EnvelopeRow, row)


async def lock(tx: Tx, wanted: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], EnvelopeRow]:
    """Rows by recipient and replay key, locked until the transaction ends."""
    values = [(bucket_of(recipient), recipient, replay_key) for recipient, replay_key in wanted]
    rows = [record_of(EnvelopeRow, row) for row in await tx.fetch(SQL["lock"], *columns(values, 3))]
    return {(row.recipient, row.replay_key): row for row in rows}


async def lock_one(tx: Tx, recipient: str, replay_key: bytes) -> EnvelopeRow | None:
    return (await lock(tx, [(recipient, replay_key)])).get((recipient, replay_key))


async def remove(tx: Tx, rows: Sequence[EnvelopeRow]) -> None:
    await tx.execute(SQL["remove"], *columns([(bucket_of(r.recipient), r.recipient, r.mref) for r in rows], 3))


async def bury(tx: Tx, rows: Sequence[tuple[EnvelopeRow, str]], now: datetime) -> None:
    """Makes dead letters of messages."""
    values = [(bucket_of(row.recipient), row.recipient, row.mref, reason) for row, reason in rows]
    await tx.execute(SQL["bury"], *columns(values, 4), now)


async def requeue(tx: Tx, recipient: str, replay_key: bytes, now: datetime) -> EnvelopeRow | None:
    """Puts a dead letter back at the end of its queue."""
    row = await tx.fetchrow(SQL["requeue"], bucket_of(recipient), replay_key, now)
    return None if row is None else record_of(EnvelopeRow, row)


async def dead_of(tx: Tx, recipient: str, before: tuple[datetime, UUID] | None, limit: int) -> list[EnvelopeRow]:
    """A page of dead letters, newest first, before one that is named by its time and its mref as a UUID."""
    at, mref = (before[0], before[1].bytes) if before else (None, None)
    return [
        record_of(EnvelopeRow, row)
        for row in await tx.fetch(SQL["dead_of"], recipient, at, mref, limit, bucket_of(recipient))
    ]


async def expired(tx: Tx, now: datetime, limit: int) -> list[EnvelopeRow]:
    return [record_of(EnvelopeRow, row) for row in await tx.fetch(SQL["expired"], now, limit)]


async def sealed_to(tx: Tx, recipient: str, key_id: UUID, limit: int) -> list[EnvelopeRow]:
    return [
        record_of(EnvelopeRow, row)
        for row in await tx.fetch(SQL["sealed_to"], bucket_of(recipient), recipient, key_id, limit)
    ]


async def signed_by(tx: Tx, sender: str, signer_id: UUID, since: datetime, limit: int) -> list[EnvelopeRow]:
    return [record_of(EnvelopeRow, row) for row in await tx.fetch(SQL["signed_by"], sender, signer_id, since, limit)]


async def queued_between(
    tx: Tx, after: QueuePlace | None, since: datetime, until: datetime, limit: int
) -> list[QueuePlace]:
    at, mref = (after.queued_at, after.mref) if after else (None, None)
    return [record_of(QueuePlace, row) for row in await tx.fetch(SQL["queued_between"], since, until, at, mref, limit)]


async def in_bucket(tx: Tx, after: QueuePlace | None, bucket: int, limit: int) -> list[QueuePlace]:
    """A page of a bucket, by replay key."""
    rows = await tx.fetch(SQL["in_bucket"], bucket, after.replay_key if after else b"", limit)
    return [record_of(QueuePlace, row) for row in rows]


async def mark(tx: Tx, name: str) -> str | None:
    """How far a tick has come, in its own words."""
    found: str | None = await tx.fetchval(SQL["mark"], name)
    return found


async def set_mark(tx: Tx, name: str, value: str) -> None:
    await tx.execute(SQL["set_mark"], name, value)
