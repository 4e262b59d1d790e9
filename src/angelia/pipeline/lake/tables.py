"""The tables of the archive. `dictionary` makes docs/tables from them."""

from __future__ import annotations

import pyarrow as pa

from angelia.pipeline.lake.analytics_tables import ANALYTICS
from angelia.pipeline.lake.table import DAY as DAY
from angelia.pipeline.lake.table import TIME as _TIME
from angelia.pipeline.lake.table import Table as Table
from angelia.pipeline.lake.table import always as _always
from angelia.pipeline.lake.table import column as _column

RECEIPTS = Table(
    name="delivery_receipts",
    about="What became of each message: one row a message, after it left the ledger.",
    id="receipt_id",
    columns=(
        _always("receipt_id", pa.string(), "the receipt's own id, a UUID", unique=True),
        _always("message_id", pa.string(), "the id that the sender gave the message, a UUID", unique=True),
        _always("replay_key", pa.string(), "SHA-256 of the envelope, in hex", unique=True),
        _always("sender_nhi", pa.string(), "handle of the sender"),
        _always("recipient_nhi", pa.string(), "handle of the recipient"),
        _column("channel_id", pa.string(), "the channel that the message is about, a UUID"),
        _always("priority", pa.int16(), "0 low, 1 normal, 2 high, 3 critical"),
        _always("wire_bytes", pa.int32(), "size of the envelope"),
        _always("status", pa.string(), "pending, delivered, expired or failed"),
        _always("attested_by", pa.string(), "whose word the status is: relay or recipient"),
        _always("delivery_attempts", pa.int32(), "how often it was handed out"),
        _column("last_attempt_at", _TIME, "when it was handed out last"),
        _always("sent_at", _TIME, "when the sender made it; its day is the partition"),
        _always("accepted_at", _TIME, "when the relay took it"),
        _always("expires_at", _TIME, "when it would have expired"),
        _column("delivered_at", _TIME, "when the recipient was first handed it"),
        _column("acknowledged_at", _TIME, "when the recipient said that it has it"),
        _column("read_at", _TIME, "when the recipient said that it was read"),
        _column("failure_reason", pa.string(), "why it failed"),
        _column("receipt_wire", pa.binary(), "the recipient's signed receipt"),
        _always("bucket", pa.int16(), "0 to 255, by hash of the recipient"),
    ),
)

AUDIT = Table(
    name="audit_events",
    about="Everything that happened, in the order of the chain. Rows are added, and changed by an erasure alone.",
    id="event_id",
    ordered="position",
    columns=(
        _always("position", pa.int64(), "place in the chain, from 1 without a gap"),
        _always("event_id", pa.string(), "the event's own id, a UUID", unique=True),
        _always("occurred_at", _TIME, "when it happened; its day is the partition"),
        _always("event_type", pa.string(), "what happened"),
        _column("actor_nhi", pa.string(), "handle of whoever did it"),
        _column("object_nhi", pa.string(), "handle of whom or what it was done to"),
        _column("message_id", pa.string(), "the message that it is about, a UUID", unique=True),
        _column("replay_key", pa.string(), "SHA-256 of the message's envelope, in hex", unique=True),
        _column("detail", pa.string(), "more about it, as JSON", unique=True),
        _always("event_hash", pa.binary(), "SHA-256 of the event"),
        _always("entry_hash", pa.binary(), "SHA-256 over the entry before, the position and the event's hash"),
        _column("redacted_at", _TIME, "when personal columns were emptied on a legal request"),
    ),
    configuration={"delta.appendOnly": "true"},
)

SESSIONS = Table(
    name="sessions",
    about="Rotation schedules of pairs of agents that were unused for 90 days. What was encrypted in them is not kept: "
    "neither the state nor the list of keys in grace, which had all run out.",
    id="session_id",
    columns=(
        _always("session_id", pa.string(), "the schedule's own id, a UUID", unique=True),
        _always("agent_a_nhi", pa.string(), "handle of the one of the two that comes first"),
        _always("agent_b_nhi", pa.string(), "handle of the other"),
        _always("current_key_id", pa.string(), "the key that the pair used last, a UUID"),
        _always("current_key_version", pa.int32(), "how many keys it has had"),
        _always("rotation_policy", pa.string(), "hourly, daily, weekly or on_demand"),
        _column("rotation_interval_secs", pa.int32(), "seconds between rotations; none on demand"),
        _always("last_rotated_at", _TIME, "when a new key was last reported"),
        _column("next_rotation_at", _TIME, "when the next one would have been announced"),
        _column("due_since", _TIME, "since when an announced rotation was not answered"),
        _always("last_used_at", _TIME, "when either of the two last changed or used it; its day is the partition"),
        _always("created_at", _TIME, "when it was made"),
        _always("updated_at", _TIME, "when it last changed"),
        _always("bucket", pa.int16(), "0 to 255, by hash of the first agent"),
    ),
)

TABLES = {table.name: table for table in (RECEIPTS, AUDIT, SESSIONS, *ANALYTICS)}
