"""Status and statistics of queues, as Queen's clients ask for them."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec

from angelia.queues.admin_api import QUEUE_NAME, OffsetQuery, Pagination, Stamp, Wire, reading
from angelia.queues.listings_api import MessageFigures, PartitionEntry, QueueEntry


class SpanQuery(Wire, frozen=True, kw_only=True):
    """A time span, and the queues that are counted; without times, the last hour."""

    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    queue: str | None = None
    namespace: str | None = None
    task: str | None = None


class AnalyticsQuery(SpanQuery, frozen=True, kw_only=True):
    """A time span, by default the last day, in steps."""

    interval: Annotated[str, msgspec.Meta(description="minute, hour or day")] = "hour"


class RetentionQuery(SpanQuery, frozen=True, kw_only=True):
    """A time span, by default the last day, and a page of what was removed in it."""

    limit: int = 100
    offset: int = 0


class StatusQueuesQuery(OffsetQuery, frozen=True, kw_only=True):
    """A page of queues."""

    namespace: str | None = None
    task: str | None = None


class TimeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A time span."""

    from_: Stamp = msgspec.field(name="from")
    to: Stamp


class ThroughputPoint(Wire, frozen=True, kw_only=True):
    """What happened in one step of time. Lags are the time from the push of a message to its delivery."""

    timestamp: Stamp
    ingested: int
    processed: int
    ingested_per_second: float
    processed_per_second: float
    ingested_bytes: int
    delivered: int
    failed: int
    dead_lettered: int
    evicted: int
    avg_lag_ms: int
    max_lag_ms: int


class LeaseFigures(Wire, frozen=True, kw_only=True):
    """The leases in force. Of their messages, those before the first that is not settled are not counted."""

    active: int
    partitions_with_leases: int
    total_batch_size: int
    total_acked: int


class ErrorCount(Wire, frozen=True, kw_only=True):
    """How many dead letters have an error."""

    error: str
    count: int


class LetterFigures(Wire, frozen=True, kw_only=True):
    """The dead letters, and their most frequent errors."""

    total_messages: int
    affected_partitions: int
    top_errors: list[ErrorCount]


class ErrorFigures(Wire, frozen=True, kw_only=True):
    """What went wrong in the time span."""

    ack_failed: int
    dlq_messages: int
    evicted: int


class ConsumedQueue(Wire, frozen=True, kw_only=True):
    """A queue, and how many messages its consumer groups have ever settled."""

    id: UUID
    name: str
    namespace: str
    task: str
    partitions: int
    total_consumed: int


class WorkerFigures(Wire, frozen=True, kw_only=True):
    """What a process did and used in the last minutes."""

    hostname: str
    worker_id: int
    pid: int
    pushed: int
    popped: int
    completed: int
    cpu_percent: float
    memory_bytes: int
    avg_event_loop_ms: float
    max_event_loop_ms: float
    last_seen: Stamp


class QueuesStatus(Wire, frozen=True, kw_only=True):
    """The state of all queues, or of some, and what happened in a time span."""

    time_range: TimeSpan
    throughput: list[ThroughputPoint]
    messages: MessageFigures
    leases: LeaseFigures
    dead_letter_queue: LetterFigures
    errors: ErrorFigures
    queues: list[ConsumedQueue]
    workers: list[WorkerFigures]
    bucket_minutes: int
    point_count: int
    stats_age: float


class StatusQueues(Wire, frozen=True, kw_only=True):
    """A page of queues, newest first."""

    queues: list[QueueEntry]
    pagination: Pagination


class QueueWithOptions(Wire, frozen=True, kw_only=True):
    """A queue with its options."""

    id: UUID
    name: str
    namespace: str
    task: str
    created_at: Stamp
    config: dict[str, Any]


class QueueStatus(Wire, frozen=True, kw_only=True):
    """A queue with its options and partitions."""

    queue: QueueWithOptions
    totals: MessageFigures
    partitions: list[PartitionEntry]


class ShortMessage(Wire, frozen=True, kw_only=True):
    """A message in short."""

    id: UUID
    transaction_id: str
    partition_id: UUID
    queue_path: str
    queue: str
    partition: str
    status: str
    created_at: Stamp


class AnalyticsPoint(Wire, frozen=True, kw_only=True):
    """How many messages were pushed in one step of time."""

    timestamp: Stamp
    messages: int


class QueueAnalytics(Wire, frozen=True, kw_only=True):
    """How many messages were pushed, over time."""

    from_: Stamp = msgspec.field(name="from")
    to: Stamp
    interval: str
    data_points: list[AnalyticsPoint]


class ProcessorFigures(Wire, frozen=True, kw_only=True):
    """Processor time, in percent of one processor."""

    user_percent: float
    system_percent: float


class MemoryFigures(Wire, frozen=True, kw_only=True):
    """Memory of a process."""

    rss_bytes: int


class LoopFigures(Wire, frozen=True, kw_only=True):
    """How long turns of the event loop took."""

    avg_ms: float
    max_ms: float


class ProcessMetrics(Wire, frozen=True, kw_only=True):
    """What a process used."""

    cpu: ProcessorFigures
    memory: MemoryFigures
    event_loop: LoopFigures


class ProcessPoint(Wire, frozen=True, kw_only=True):
    """What a process used in one step of time."""

    timestamp: Stamp
    metrics: ProcessMetrics


class ProcessSeries(Wire, frozen=True, kw_only=True):
    """What a process used, newest first."""

    hostname: str
    worker_id: int
    pid: int
    time_series: list[ProcessPoint]


class SystemMetrics(Wire, frozen=True, kw_only=True):
    """What the processes of all servers used."""

    time_range: TimeSpan
    bucket_minutes: int
    point_count: int
    replicas: list[ProcessSeries]


class WorkPoint(Wire, frozen=True, kw_only=True):
    """Messages in one step of time."""

    timestamp: Stamp
    push_messages: int
    pop_messages: int
    ack_messages: int
    push_per_second: float
    pop_per_second: float
    ack_per_second: float
    ack_success: int
    ack_failed: int
    dlq_count: int
    avg_lag_ms: int
    max_lag_ms: int


class WorkerMetrics(Wire, frozen=True, kw_only=True):
    """What the processes did, newest first."""

    time_range: TimeSpan
    bucket_minutes: int
    point_count: int
    time_series: list[WorkPoint]
    workers: list[WorkerFigures]


class QueueLagPoint(Wire, frozen=True, kw_only=True):
    """How long messages of a queue waited for their delivery, in one step of time."""

    bucket_time: Stamp
    queue_name: str
    pop_count: int
    avg_lag_ms: int
    max_lag_ms: int


class QueueOpsPoint(Wire, frozen=True, kw_only=True):
    """What happened in a queue in one step of time."""

    bucket_time: Stamp
    queue_name: str
    pushed: int
    pushed_bytes: int
    popped: int
    completed: int
    failed: int
    dead_lettered: int
    evicted: int


class RemovedMessages(Wire, frozen=True, kw_only=True):
    """What a run of retention removed of a partition. `kind` is retention, completed, failed (dead letters) or
    partition."""

    timestamp: Stamp
    queue: str
    partition: str
    kind: str
    count: int


class RetentionHistory(Wire, frozen=True, kw_only=True):
    """What retention removed, newest first."""

    time_range: TimeSpan
    events: list[RemovedMessages]
    pagination: Pagination


class DatabaseFigures(Wire, frozen=True, kw_only=True):
    """PostgreSQL's figures of the database."""

    database: str
    disk_reads: int
    cache_hits: int
    cache_hit_ratio: float
    size_bytes: int
    connections: int
    commits: int
    rollbacks: int
    deadlocks: int


class TableFigures(Wire, frozen=True, kw_only=True):
    """PostgreSQL's figures of a table; of one with a table for each day, of all of them."""

    table: str
    parts: int
    total_bytes: int
    table_bytes: int
    index_bytes: int
    live_rows: int
    dead_rows: int
    last_autovacuum: Stamp | None
    disk_reads: int
    cache_hits: int


class PostgresStats(Wire, frozen=True, kw_only=True):
    """PostgreSQL's figures of the database, and of the tables of queues."""

    timestamp: Stamp
    database: DatabaseFigures
    tables: list[TableFigures]


STATUS = reading("status", "The state of queues, and what happened in a time span", QueuesStatus, query=SpanQuery)
STATUS_QUEUES = reading("status/queues", "A page of queues", StatusQueues, query=StatusQueuesQuery)
STATUS_QUEUE = reading("status/queues/{queue}", "A queue with its options", QueueStatus, parameters=QUEUE_NAME)
STATUS_MESSAGES = reading(
    "status/queues/{queue}/messages",
    "Messages of a queue in short",
    list[ShortMessage],
    parameters=QUEUE_NAME,
    query=OffsetQuery,
)
ANALYTICS = reading("status/analytics", "Pushed messages over time", QueueAnalytics, query=AnalyticsQuery)
SYSTEM_METRICS = reading("analytics/system-metrics", "What processes used", SystemMetrics, query=SpanQuery)
WORKER_METRICS = reading("analytics/worker-metrics", "What processes did", WorkerMetrics, query=SpanQuery)
QUEUE_LAG = reading("analytics/queue-lag", "How long messages waited", list[QueueLagPoint], query=SpanQuery)
QUEUE_OPS = reading("analytics/queue-ops", "What happened in each queue", list[QueueOpsPoint], query=SpanQuery)
RETENTION = reading("analytics/retention", "What retention removed", RetentionHistory, query=RetentionQuery)
POSTGRES = reading("analytics/postgres-stats", "PostgreSQL's figures", PostgresStats)
