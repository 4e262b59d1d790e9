"""Lists of queues, partitions and consumer groups, as Queen's clients ask for them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from angelia.queues.admin_api import GROUP_NAME, QUEUE_NAME, Stamp, Wire, reading


class QueuesQuery(Wire, frozen=True, kw_only=True):
    """Which queues a list shows; all, if it does not say."""

    search: Annotated[str, msgspec.Meta(description="Only names that contain this")] | None = None
    namespace: str | None = None
    task: str | None = None
    limit: int | None = None
    offset: int = 0


class PartitionsQuery(Wire, frozen=True, kw_only=True):
    """Which partitions a list shows; all, if it does not say."""

    queue: str | None = None
    limit: int | None = None
    offset: int = 0


class DepthQuery(Wire, frozen=True, kw_only=True):
    """Whose backlog is asked for."""

    group: str | None = None


class LaggingQuery(Wire, frozen=True, kw_only=True):
    """How old the oldest message that waits for a consumer group must be."""

    min_lag_seconds: int = 3600


class QueueCounts(Wire, frozen=True, kw_only=True):
    """How many messages a queue has."""

    total: int
    pending: int
    processing: int
    evicted: int


class QueueEntry(Wire, frozen=True, kw_only=True):
    """A queue."""

    id: UUID
    name: str
    namespace: str
    task: str
    created_at: Stamp
    partitions: int
    messages: QueueCounts


class QueueEntries(Wire, frozen=True, kw_only=True):
    """Queues, newest first."""

    queues: list[QueueEntry]


class MessageFigures(Wire, frozen=True, kw_only=True):
    """How many messages have which status. `failed` are consumer groups that try a message of a partition again."""

    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    dead_letter: int
    evicted: int


class PartitionEntry(Wire, frozen=True, kw_only=True):
    """A partition, its figures, and the times of its oldest and newest message."""

    id: UUID
    name: str
    queue: str
    created_at: Stamp
    stats: MessageFigures
    oldest_message: Stamp | None
    newest_message: Stamp | None


class PartitionEntries(Wire, frozen=True, kw_only=True):
    """Partitions by name."""

    partitions: list[PartitionEntry]


class QueueDetails(Wire, frozen=True, kw_only=True):
    """A queue with its partitions."""

    id: UUID
    name: str
    namespace: str
    task: str
    created_at: Stamp
    partitions: list[PartitionEntry]
    totals: MessageFigures


class ScopeCounts(Wire, frozen=True, kw_only=True):
    """How many messages the queues of a namespace or task have."""

    total: int
    pending: int


class NamespaceEntry(Wire, frozen=True, kw_only=True):
    """A namespace."""

    namespace: str
    queues: int
    partitions: int
    messages: ScopeCounts


class NamespaceEntries(Wire, frozen=True, kw_only=True):
    """Namespaces by name."""

    namespaces: list[NamespaceEntry]


class TaskEntry(Wire, frozen=True, kw_only=True):
    """A task."""

    task: str
    queues: int
    partitions: int
    messages: ScopeCounts


class TaskEntries(Wire, frozen=True, kw_only=True):
    """Tasks by name."""

    tasks: list[TaskEntry]


class Spread(Wire, frozen=True, kw_only=True):
    """How a figure is spread."""

    avg: float
    max: float
    min: float
    median: float


class LagSpread(Wire, frozen=True, kw_only=True):
    """How far consumer groups are behind in their partitions: in seconds, and in messages."""

    time: Spread
    offset: Spread


class ThroughputNow(Wire, frozen=True, kw_only=True):
    """Messages in and out in the last minutes."""

    ingested_per_second: float
    processed_per_second: float


class QueuesOverview(Wire, frozen=True, kw_only=True):
    """All queues together. `statsAge` is how many seconds ago they were counted."""

    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: MessageFigures
    lag: LagSpread
    throughput: ThroughputNow
    stats_age: float
    timestamp: Stamp


class PartitionDepth(Wire, frozen=True, kw_only=True):
    """What waits in a partition."""

    partition: str
    pending: int


class QueueDepth(Wire, frozen=True, kw_only=True):
    """What a consumer group has still to consume. There is no conflation, so all that is pending is effective."""

    queue: str
    group: str
    pending: int
    partitions_pending: int
    conflation: bool
    effective_pending: int
    partitions: list[PartitionDepth]


class GroupEntry(Wire, frozen=True, kw_only=True):
    """A consumer group of a queue. Lags are in messages and in seconds."""

    name: str
    queue_name: str
    topics: list[str]
    members: int
    total_lag: int
    max_time_lag: int
    partitions_with_lag: int
    state: str
    subscription_mode: str
    subscription_timestamp: Stamp | None
    subscription_created_at: Stamp


class LaggingPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition in which a consumer group is behind."""

    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: UUID
    worker_id: str | None
    offset_lag: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: Stamp | None
    last_consumed_at: Stamp | None


class GroupPartition(Wire, frozen=True, kw_only=True):
    """How far a consumer group is in a partition."""

    partition: str
    worker_id: str | None
    lease_active: bool
    lease_expires_at: Stamp | None
    offset_lag: int
    time_lag_seconds: int
    total_consumed: int
    last_consumed_at: Stamp | None


class GroupPartitions(Wire, frozen=True, kw_only=True):
    """How far a consumer group is in a queue."""

    partitions: list[GroupPartition]


QUEUES = reading("resources/queues", "Queues with their figures", QueueEntries, query=QueuesQuery)
QUEUE = reading("resources/queues/{queue}", "A queue with its partitions", QueueDetails, parameters=QUEUE_NAME)
DEPTH = reading(
    "resources/queues/{queue}/depth",
    "What waits for a consumer group",
    QueueDepth,
    parameters=QUEUE_NAME,
    query=DepthQuery,
)
PARTITIONS = reading("resources/partitions", "Partitions with their figures", PartitionEntries, query=PartitionsQuery)
NAMESPACES = reading("resources/namespaces", "Namespaces with their figures", NamespaceEntries)
TASKS = reading("resources/tasks", "Tasks with their figures", TaskEntries)
OVERVIEW = reading("resources/overview", "All queues together", QueuesOverview)
GROUPS = reading("consumer-groups", "Consumer groups with their lags", list[GroupEntry])
LAGGING = reading(
    "consumer-groups/lagging",
    "Partitions in which consumer groups are behind",
    list[LaggingPartition],
    query=LaggingQuery,
)
GROUP = reading(
    "consumer-groups/{group}",
    "How far a consumer group is, by queue",
    dict[str, GroupPartitions],
    parameters=GROUP_NAME,
)
