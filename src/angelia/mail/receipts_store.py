"""Every SQL statement about delivery receipts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.envelope.receipts import decode_receipt, receipt_document
from angelia.mail.model import DeliveryStatus, ReceiptRecord, ReceiptStep, Side
from angelia.stores.ledger import Row, Tx
from angelia.stores.partitions import Daily
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__, "receipts.sql")
DAILY = Daily("delivery_receipts", "sent_at")


async def move(tx: Tx, steps: Sequence[ReceiptStep]) -> dict[bytes, DeliveryStatus]:
    """Takes receipts one step further. Returns the status of each, which is the step's only where that was allowed."""
    rows = await tx.fetch(SQL["move"], *columns([step.columns() for step in steps], 13))
    return {row["replay_key"]: DeliveryStatus(row["status"]) for row in rows}


async def of_messages(tx: Tx, replay_keys: Sequence[bytes]) -> dict[bytes, ReceiptRecord]:
    return {row["replay_key"]: _receipt(row) for row in await tx.fetch(SQL["of_message"], replay_keys)}


async def one(tx: Tx, replay_key: bytes) -> ReceiptRecord | None:
    return (await of_messages(tx, [replay_key])).get(replay_key)


async def lock(tx: Tx, replay_key: bytes) -> ReceiptRecord | None:
    row = await tx.fetchrow(SQL["lock"], replay_key)
    return None if row is None else _receipt(row)


async def count_before(tx: Tx, at: datetime, most: int) -> int:
    """How many receipts there are of messages that were sent before a time; counts up to `most`."""
    return int(await tx.fetchval(SQL["count_before"], at, most))


async def sent_before(tx: Tx, at: datetime) -> tuple[int, datetime | None]:
    """How many receipts there are of messages that were sent before a time, and when the first was sent."""
    row = await tx.fetchrow(SQL["sent_before"], at)
    assert row is not None, "an aggregate has a row"
    return row["row_count"], row["oldest"]


async def page(
    tx: Tx,
    agent: str,
    status: DeliveryStatus | None,
    since: datetime | None,
    before: tuple[datetime, UUID] | None,
    limit: int,
    side: Side | None,
) -> list[ReceiptRecord]:
    at, id_ = before or (None, None)
    # `delivered` and `read` are one status with and without a time of reading.
    read = {DeliveryStatus.READ: True, DeliveryStatus.DELIVERED: False}.get(status) if status else None
    stored = DeliveryStatus.DELIVERED if status is DeliveryStatus.READ else status
    value = None if stored is None else stored.value
    half = None if side is None else side.value
    return [_receipt(row) for row in await tx.fetch(SQL["page"], agent, value, read, since, at, id_, limit, half)]


def _receipt(row: Row) -> ReceiptRecord:
    wire = row["receipt_wire"]
    derived = {
        "replay_key": row["replay_key"].hex(),
        "status": DeliveryStatus.READ if row["status"] == "delivered" and row["read_at"] else row["status"],
        "receipt": None if wire is None else receipt_document(decode_receipt(wire)),
    }
    return record_of(ReceiptRecord, dict(row) | derived)
