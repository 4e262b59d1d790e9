"""All metrics of a server. Labels take only values that we choose, never values of a client."""

from __future__ import annotations

import os
from functools import cache, partial

from prometheus_client import Counter, Gauge, Histogram, values

if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    # The library asks the kernel at every count whether it is in another process: a quarter of what a request's counts
    # take.
    _process_id = cache(os.getpid)
    os.register_at_fork(after_in_child=_process_id.cache_clear)
    values.ValueClass = values.MultiProcessValue(_process_id)  # type: ignore[no-untyped-call]

# A gauge that one process at a time sets, as ticks do: its newest value counts.
_LatestGauge = partial(Gauge, multiprocess_mode="mostrecent")
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

# The two series that AICQ's monitors read; `path` is the route's template, or `other`.
HTTP_REQUESTS = Counter("aicq_http_requests_total", "HTTP requests answered", ["method", "path", "status"])
HTTP_SECONDS = Histogram(
    "aicq_http_request_duration_seconds", "Time to answer HTTP requests", ["method", "path"], buckets=_BUCKETS
)

AGENTS_REGISTERED = Counter("angelia_agents_registered_total", "Agents that came to exist")
AUTH_REFUSED = Counter("angelia_auth_refused_total", "Requests that did not prove who they are", ["code"])
RATE_LIMITED = Counter("angelia_rate_limited_total", "Requests refused by a rate limit", ["rule"])
POLICY_DENIED = Counter("angelia_policy_denied_total", "Wishes that the rules denied", ["action"])
BLOCKED = Counter("angelia_blocked_requests_total", "Requests refused because their address is blocked")
ADDRESSES_BLOCKED = Counter("angelia_addresses_blocked_total", "Addresses blocked for too many refusals")
LIMITER_FALLBACK = Counter("angelia_limiter_fallback_total", "Requests limited in-process, the hot tier being away")
STORE_UNAVAILABLE = Counter(
    "angelia_store_unavailable_total", "Requests answered 503 or 507: a store was away, or full"
)

AUDIT_SEALED = Gauge("angelia_audit_sealed_position", "Last sealed position", multiprocess_mode="max")
AUDIT_WAITING = _LatestGauge("angelia_audit_unsealed_events", "Events that wait for the sealer")
AUDIT_AGE = _LatestGauge("angelia_audit_unsealed_seconds", "Age of the oldest event that waits for the sealer")
AUDIT_REFUSED = _LatestGauge(
    "angelia_audit_chain_refused",
    "1 while the node refuses to sign the chain, because it is not the one it signed before",
)
AUDIT_UNPARTITIONED = _LatestGauge("angelia_audit_default_partition_rows", "Events that missed their day's partition")
TICK_FAILURES = Counter("angelia_tick_failures_total", "Background ticks that failed", ["tick"])

BUNDLES_PUBLISHED = Counter("angelia_key_bundles_total", "Key bundles accepted, by why they were made", ["reason"])
ONE_TIME_KEYS = Counter("angelia_one_time_keys_total", "Requests for one-time keys: issued, or none left", ["outcome"])
ONE_TIME_KEYS_LOW = Counter(
    "angelia_one_time_keys_low_total", "Hand-outs that left an agent with fewer than ten one-time keys"
)
ROTATIONS_ANNOUNCED = Counter("angelia_rotations_announced_total", "Rotations that the tick announced")
FAILURES = Counter("angelia_failures_total", "What strangers failed at, by the name of its audit event", ["kind"])
SIGNATURE_ALERTS = Counter(
    "angelia_signature_alerts_total", "Senders whose envelopes failed verification too often in an hour", ["level"]
)
MAIL_SENT = Counter("angelia_mail_sent_total", "Messages taken from senders, by priority", ["priority"])
MAIL_REFUSED = Counter("angelia_mail_refused_total", "Messages refused, by the code of the refusal", ["code"])
MAIL_HANDED_OUT = Counter("angelia_mail_leases_total", "Messages handed to recipients, each attempt counted")
MAIL_ENDED = Counter("angelia_mail_ended_total", "Messages that came to their end", ["how"])
MAIL_SECONDS = Histogram(
    "angelia_mail_delivery_seconds",
    "From the acceptance of a message to its first lease",
    buckets=(0.005, 0.01, 0.05, 0.25, 1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0),
)
MAIL_REQUEUED = Counter("angelia_mail_requeued_total", "Messages that the reconcile tick found missing in their queue")
MAIL_REBUILT = Counter("angelia_mail_rebuilds_total", "Times that the queues were rebuilt from the ledger")
RECEIPTS_UNPARTITIONED = _LatestGauge(
    "angelia_receipts_default_partition_rows", "Receipts that missed their day's partition"
)
ONE_TIME_KEYS_LOW_AGENTS = _LatestGauge(
    "angelia_one_time_keys_low_agents", "Agents with fewer than ten one-time keys, when they were last counted"
)
ROOMS_CREATED = Counter("angelia_rooms_created_total", "Rooms made, by kind", ["kind"])
ROOM_MESSAGES = Counter("angelia_room_messages_total", "Messages posted in rooms, by kind of room", ["kind"])
ROOM_SEARCHES = Counter("angelia_room_searches_total", "Searches for messages of rooms")
ROOM_ENTRIES_SWEPT = Counter("angelia_room_entries_swept_total", "Expired entries of rooms that were removed")
ROOM_INDEX_BYTES = _LatestGauge("angelia_room_index_bytes", "Size of the index by which messages of rooms are found")
QUEUE_ENCRYPTION_SECONDS = Histogram(
    "angelia_queue_encryption_seconds",
    "Time to encrypt the payloads of one chunk of messages",
    buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.25),
)
QUEUE_ENCRYPTION_ERRORS = Counter(
    "angelia_queue_encryption_errors_total",
    "Payloads of queues that could not be decrypted, and times that no key was there to encrypt them",
    ["operation"],
)
QUEUE_REMOVED = Counter(
    "angelia_queue_retention_removed_total",
    "What retention removed from queues: messages (retention, completed), dead letters (failed), partitions",
    ["kind"],
)
QUEUE_UNARCHIVED = Counter(
    "angelia_queue_unarchived_total", "Messages of queues that waited a week for the archive and were removed"
)
QUEUE_EVICTED = Counter("angelia_queue_evicted_total", "Messages that waited too long in their queue and were evicted")
QUEUE_EVICTION_SECONDS = _LatestGauge("angelia_queue_eviction_seconds", "How long the last round of eviction took")
QUEUE_DAYS = _LatestGauge("angelia_queue_days", "Days of which the ledger has a table of messages of queues")
QUEUE_DAYS_DROPPED = Counter(
    "angelia_queue_days_dropped_total", "Tables of a day's messages of queues that were dropped"
)
QUEUE_BYTES_COPIED = Counter(
    "angelia_queue_bytes_copied_total", "Bytes of messages that were copied to a later day, to drop their own"
)
QUEUE_UNPARTITIONED = _LatestGauge(
    "angelia_queue_default_partition_rows", "Chunks of messages that missed their day's table"
)
DMS_SENT = Counter("angelia_dms_sent_total", "Direct messages taken from senders")
CHANNEL_MESSAGES = Counter("angelia_channel_messages_total", "Messages that were published in channels")
PIPELINE_WAITING = _LatestGauge(
    "angelia_pipeline_rows_waiting",
    "Rows that may leave the ledger for the archive and have not, by table; counted up to 1,000,001",
    ["table"],
)
PIPELINE_DONE = Gauge(
    "angelia_pipeline_last_done_timestamp_seconds",
    "When a run of a job was done last",
    ["job"],
    multiprocess_mode="max",
)
PIPELINE_OPEN = _LatestGauge(
    "angelia_pipeline_runs_open", "Runs that are not over: somebody is at work on them, or they died"
)
LOG_APPENDS = Counter("angelia_log_appends_total", "Messages sent to the group log, by what became of them", ["status"])
LOG_COMMIT_MESSAGES = Histogram(
    "angelia_log_commit_messages", "Messages of one commit of the group log", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
)
LOG_SYNC_SECONDS = Histogram("angelia_log_sync_seconds", "Time to write and sync one commit", buckets=_BUCKETS)
LOG_BACKFILL_ROWS = Counter("angelia_log_backfill_rows_total", "Messages sent to devices that lacked them")
LOG_BACKFILL_BYTES = Counter("angelia_log_backfill_bytes_total", "Bytes of these messages")
LOG_BACKFILL_SECONDS = Histogram("angelia_log_backfill_seconds", "Time to read one page", buckets=_BUCKETS)
LOG_DELETED_RANGES = Counter("angelia_log_deleted_ranges_total", "Ranges of messages that snapshots replaced")
LOG_SUBSCRIBERS = _LatestGauge("angelia_log_subscribers", "Open subscriptions of the group log")
LOG_LONGEST_QUEUE = _LatestGauge("angelia_log_longest_queue", "Messages that wait for the slowest subscriber")
LOG_LAGGED = Counter("angelia_log_lagged_total", "Subscriptions ended because their peer reads too slowly")
LOG_CORRUPT = Counter("angelia_log_corrupt_records_total", "Times that a damaged record was met")
LOG_BYTES = _LatestGauge("angelia_log_bytes", "Size of the group log's families", ["family"])
LOG_CONNECTIONS = Counter("angelia_log_connections_total", "Connections of the spool process", ["change"])
LOG_TRAFFIC = Counter("angelia_log_traffic_bytes_total", "Bytes of request and answer bodies", ["direction"])
