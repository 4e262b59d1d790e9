"""The audit of a simulated fleet: a valid hash chain, made by one task in the order of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from angelia.audit.model import GENESIS, Event, entry_hash
from angelia.pipeline.lake.tables import AUDIT

_SUITE = 1


def chained(receipts: DataFrame) -> DataFrame:
    """The events of the receipts: sent, and acknowledged if it was."""
    sent = _of_kind(receipts, "message_sent", "accepted_at", "sender_nhi", "recipient_nhi")
    acknowledged = _of_kind(receipts, "message_acknowledged", "acknowledged_at", "recipient_nhi", "sender_nhi")
    ordered = sent.unionAll(acknowledged).repartition(1).sortWithinPartitions("occurred_at", "message_id", "event_type")
    return ordered.mapInArrow(_chain, from_arrow_schema(AUDIT.schema))


def _of_kind(receipts: DataFrame, kind: str, at: str, actor: str, object: str) -> DataFrame:
    """One kind of event, of the receipts that have its time."""
    columns = {"occurred_at": at, "actor": actor, "object": object}
    return receipts.where(f.col(at).isNotNull()).select(
        f.lit(kind).alias("event_type"),
        *(f.col(column).alias(name) for name, column in columns.items()),
        *("message_id", "replay_key", "wire_bytes", "priority"),
    )


def _chain(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    previous, position = GENESIS, 0
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            position += 1
            event = _event(row)
            digest = event.hash()
            previous = entry_hash(previous, position, digest)
            rows.append(_row(position, event, digest, previous))
        yield pa.RecordBatch.from_pylist(rows, AUDIT.schema)


def _event(row: dict[str, object]) -> Event:
    message, kind = UUID(str(row["message_id"])), str(row["event_type"])
    # Its own id, the same in every run: that of the message, with another end for each kind.
    own = UUID(int=message.int ^ (1 if kind == "message_sent" else 2))
    detail = {"bytes": int(str(row["wire_bytes"])), "priority": int(str(row["priority"])), "suite": _SUITE}
    return Event(
        event_id=own,
        occurred_at=row["occurred_at"],  # type: ignore[arg-type]
        event_type=kind,
        actor=str(row["actor"]),
        object=str(row["object"]),
        message_id=message,
        replay_key=bytes.fromhex(str(row["replay_key"])),
        detail=detail if kind == "message_sent" else {},
    )


def _row(position: int, event: Event, digest: bytes, entry: bytes) -> dict[str, object]:
    return {
        "position": position,
        "event_id": str(event.event_id),
        "occurred_at": event.occurred_at,
        "event_type": event.event_type,
        "actor_nhi": event.actor,
        "object_nhi": event.object,
        "message_id": str(event.message_id),
        "replay_key": event.replay_key.hex() if event.replay_key else None,
        "detail": json.dumps(event.detail),
        "event_hash": digest,
        "entry_hash": entry,
        "redacted_at": None,
        "day": event.occurred_at.date(),
    }
