"""Every SQL statement about envelopes that wait, and about the ids under which they were sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from angelia.envelope.ids import bucket_of
from angelia.mail.model import (
    REMEMBER_IDS,
    Accepted,
    DeliverableRow,
    DeliveryStatus,
    EnvelopeRow,
    MessageId,
    NewEnvelope,
    QueueLoad,
    QueuePlace,
    ReceiptStep,
    SettledEvents,
    rooms,
)
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__)


async def admission(tx: Tx, offers: Sequence[tuple[NewEnvelope, bool]]) -> Sequence[Row]:
    """What must be known of each envelope before its signatures are verified; the second value says whether the bytes
    of its signing pair are known."""
    values = [
        (
            offer.sender,
            offer.envelope.header.message_id,
            offer.recipient,
            offer.envelope.header.key_id,
            offer.created_at,
            offer.envelope.header.sender_key_id,
            pair_known,
        )
        for offer, pair_known in offers
    ]
    return await tx.fetch(SQL["admission"], *columns(values, 7))


async def known_ids(tx: Tx, wanted: Sequence[MessageId]) -> dict[MessageId, tuple[bytes, Accepted]]:
    """What was sent under these ids: the replay key, and the answer that the sender got."""
    rows = await tx.fetch(SQL["known_ids"], *columns(wanted, 2))
    return {
        (row["sender_nhi"], row["message_id"]): (row["replay_key"], msgspec.convert(row["answer"], Accepted))
        for row in rows
    }


async def forget_ids(tx: Tx, ids: Sequence[MessageId]) -> None:
    await tx.execute(SQL["forget_ids"], *columns(ids, 2))


async def forget_old_ids(tx: Tx, now: datetime, limit: int) -> int:
    """Deletes ids whose time is over; returns how many."""
    done = await tx.execute(SQL["forget_old_ids"], now, limit)
    return int(done.rpartition(" ")[2])


async def add(
    tx: Tx, new: Sequence[NewEnvelope], events: Sequence[tuple[UUID, Mapping[str, Any], bytes]], issued_since: datetime
) -> list[QueuePlace | QueueLoad | None]:
    """Stores envelopes with distinct ids and one-time keys, with their receipts and audit events (id, detail and hash
    of each).

    Returns the place of each in its queue; what the queue held, if it may be too full; None if its id is taken, or its
    one-time key is not free or was issued before `issued_since`."""
    ways = {
        way: number for number, way in enumerate(dict.fromkeys((one.recipient, one.sender) for one in new), start=1)
    }
    values = [
        (
            ways[one.recipient, one.sender],
            *room,
            bucket_of(one.recipient),
            one.recipient,
            one.mref,
            one.sender,
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
            one.answer,
            *event,
            one.one_time,
        )
        for one, room, event in zip(new, rooms(new), events, strict=True)
    ]
    counted = [(bucket_of(recipient), recipient, sender) for recipient, sender in ways]
    given = (*columns(values, 25), *columns(counted, 3), REMEMBER_IDS)
    if any(one.one_time for one in new):
        rows = await tx.fetch(SQL["add_one_time"], *given, issued_since)
    else:
        rows = await tx.fetch(SQL["add"], *given)
    found = {row["mref"]: row for row in rows}
    return [_stored(one, found.get(one.mref)) for one in new]


def _stored(one: NewEnvelope, row: Row | None) -> QueuePlace | QueueLoad | None:
    if row is None:
        return None
    if row["seq"] is None:
        return QueueLoad(row["messages"], row["bytes"], row["of_sender"], row["bytes_of_sender"])
    return QueuePlace(
        recipient=one.recipient,
        mref=one.mref,
        replay_key=one.replay_key,
        priority=one.envelope.header.priority,
        seq=row["seq"],
        queued_at=one.accepted_at,
    )


async def claimable(
    tx: Tx,
    recipient: str,
    mrefs: Sequence[bytes],
    without_copy: Sequence[bytes],
    now: datetime,
    last: int = 0,
    out: Sequence[bytes] = (),
) -> tuple[dict[bytes, DeliverableRow], bool]:
    """Those of a recipient's messages that are queued and have not expired, by mref; with the bytes of those that have
    no copy in the hot tier. The second value says whether the queue has a message before the place `last` that is
    neither among these nor among those that are known to be leased."""
    rows = await tx.fetch(SQL["claimable"], bucket_of(recipient), recipient, mrefs, without_copy, now, last, out)
    return {row["mref"]: _deliverable(row) for row in rows}, bool(rows) and rows[0]["passes"]


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


async def one(tx: Tx, recipient: str, replay_key: bytes) -> DeliverableRow | None:
    row = await tx.fetchrow(SQL["one"], bucket_of(recipient), replay_key)
    return None if row is None else _deliverable(row)


async def lock(tx: Tx, wanted: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], EnvelopeRow]:
    """Rows by recipient and replay key, locked until the transaction ends."""
    values = [(bucket_of(recipient), recipient, replay_key) for recipient, replay_key in wanted]
    rows = [record_of(EnvelopeRow, row) for row in await tx.fetch(SQL["lock"], *columns(values, 3))]
    return {(row.recipient, row.replay_key): row for row in rows}


async def lock_one(tx: Tx, recipient: str, replay_key: bytes) -> EnvelopeRow | None:
    return (await lock(tx, [(recipient, replay_key)])).get((recipient, replay_key))


async def acknowledged(
    tx: Tx, recipient: str, acks: Sequence[tuple[bytes, UUID | None, bool]]
) -> tuple[list[EnvelopeRow | None], Sequence[Row]]:
    """For the mref of each acknowledgment its envelope, and how the pair of its receipt stands; the last value of an
    acknowledgment says whether the bytes of that pair are known."""
    rows = await tx.fetch(SQL["acknowledged"], *columns([(recipient, *ack) for ack in acks], 4))
    return [None if row["mref"] is None else record_of(EnvelopeRow, row) for row in rows], rows


async def settle(
    tx: Tx, steps: Sequence[tuple[EnvelopeRow, ReceiptStep, SettledEvents]]
) -> dict[bytes, DeliveryStatus | None]:
    """Ends messages that are in their queues, with their receipts and audit events; no message may be there twice.
    Returns the replay keys of those that it ended, and the status that their receipts have now."""
    values = [
        (bucket_of(row.recipient), row.mref, row.replay_key, *step.columns(), *events) for row, step, events in steps
    ]
    rows = await tx.fetch(SQL["settle"], *columns(values, 21))
    return {row["replay_key"]: DeliveryStatus(row["status"]) if row["status"] else None for row in rows}


async def remove(tx: Tx, rows: Sequence[EnvelopeRow]) -> None:
    await tx.execute(SQL["remove"], *columns([(bucket_of(row.recipient), row.mref) for row in rows], 2))


async def bury(tx: Tx, rows: Sequence[tuple[EnvelopeRow, str]], now: datetime) -> None:
    """Makes dead letters of messages."""
    values = [(bucket_of(row.recipient), row.mref, reason) for row, reason in rows]
    await tx.execute(SQL["bury"], *columns(values, 3), now)


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


def _deliverable(row: Row) -> DeliverableRow:
    return DeliverableRow(record_of(EnvelopeRow, row), row["rules_version"], row["blocked"], row["revoked"])
