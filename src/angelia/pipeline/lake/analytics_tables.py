"""The tables that analytics writes; they can always be computed again."""

from __future__ import annotations

import pyarrow as pa

from angelia.pipeline.lake.table import TIME, Table, always, column

_COUNT = pa.int64()

HOURS = Table(
    name="receipt_hours",
    about="Receipts by the hour that they were sent in and by priority.",
    id="hour",
    columns=(
        always("hour", pa.int16(), "hour of the day, UTC"),
        always("priority", pa.int16(), "0 low, 1 normal, 2 high, 3 critical"),
        always("sent", _COUNT, "messages"),
        always("delivered", _COUNT, "of these, delivered"),
        always("expired", _COUNT, "of these, expired"),
        always("failed", _COUNT, "of these, failed"),
        always("pending", _COUNT, "of these, neither yet"),
        always("attempts", _COUNT, "how often they were handed out, together"),
        always("wire_bytes", _COUNT, "size of their envelopes, together"),
    ),
)

LATENCIES = Table(
    name="receipt_latencies",
    about="How long delivered messages took, from accepted to delivered, by day and priority.",
    id="priority",
    columns=(
        always("priority", pa.int16(), "0 low, 1 normal, 2 high, 3 critical"),
        always("p50_ms", pa.float64(), "half of them came within so many milliseconds; at most 0.5 % off"),
        always("p95_ms", pa.float64(), "95 % of them did"),
        always("p99_ms", pa.float64(), "99 % of them did"),
        always("buckets", pa.list_(pa.int16()), "bucket b is 1.01^b up to 1.01^(b+1) microseconds"),
        always("counts", pa.list_(pa.int64()), "messages of each of these buckets"),
    ),
)

AGENTS = Table(
    name="receipt_agents",
    about="What each agent sent and received on a day.",
    id="agent",
    columns=(
        always("agent", pa.string(), "handle"),
        always("sent", _COUNT, "messages that it sent"),
        always("sent_bytes", _COUNT, "size of these"),
        always("delivered", _COUNT, "of these, delivered"),
        always("expired", _COUNT, "of these, expired"),
        always("failed", _COUNT, "of these, failed"),
        always("received", _COUNT, "messages that were sent to it, whatever became of them"),
        always("received_bytes", _COUNT, "size of these"),
    ),
)

BUCKETS = Table(
    name="receipt_buckets",
    about="How the load of a day spread over the 256 buckets.",
    id="bucket",
    columns=(
        always("bucket", pa.int16(), "0 to 255, by hash of the recipient"),
        always("receipts", _COUNT, "messages"),
        always("wire_bytes", _COUNT, "size of these"),
    ),
)

DAYS = Table(
    name="analytics_days",
    about="What analytics computed of each day, and from what: a day is computed again when its fingerprint changes.",
    id="fingerprint",
    columns=(
        always("fingerprint", pa.string(), "SHA-256 over what the day was computed from"),
        always("computed_at", TIME, "when it was computed"),
        always("receipts", _COUNT, "messages of the day"),
        always("senders", _COUNT, "different agents that sent"),
        always("recipients", _COUNT, "different agents that were sent to"),
        column("bucket_peak", pa.float64(), "messages of the fullest bucket, divided by the mean of all 256"),
        column("bucket_gini", pa.float64(), "0 when all buckets are equally full, near 1 when one has everything"),
    ),
)

KEY_DAYS = Table(
    name="key_days",
    about="Rotations of keys, by day, reason and type.",
    id="reason",
    columns=(
        always("reason", pa.string(), "scheduled, on_demand, emergency or revoked"),
        always("key_type", pa.string(), "ml_kem_768, ed25519, ml_dsa_65, x25519 or xwing"),
        always("rotations", _COUNT, "keys that were replaced or revoked"),
        always("agents", _COUNT, "different agents whose keys these were"),
    ),
)

KEY_GRACE = Table(
    name="key_grace",
    about="Keys in their grace period, each time that it was measured.",
    id="key_type",
    columns=(
        always("measured_at", TIME, "when it was measured; its day is the partition"),
        always("key_type", pa.string(), "type of the keys"),
        always("keys", _COUNT, "keys in their grace period"),
        always("oldest_seconds", _COUNT, "how long the oldest has been in it"),
        always("mean_seconds", _COUNT, "how long they have been in it, in the mean"),
    ),
)

STORAGE = Table(
    name="storage",
    about="How large each store is, each time that it was measured.",
    id="name",
    columns=(
        always("measured_at", TIME, "when it was measured; its day is the partition"),
        always("tier", pa.string(), "hot, ledger or archive"),
        always("name", pa.string(), "the table; of the hot tier, its memory"),
        column("row_count", _COUNT, "rows; of the ledger as its planner estimates them"),
        column("files", _COUNT, "files that count"),
        always("bytes", _COUNT, "size, with indexes"),
    ),
)

ANALYTICS = (HOURS, LATENCIES, AGENTS, BUCKETS, DAYS, KEY_DAYS, KEY_GRACE, STORAGE)
