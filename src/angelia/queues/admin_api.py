"""Operations on queues for operators, as Queen's clients send them; and what all declarations for them share."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from angelia.api import Access, Operation

TAG = "queues"
Stamp = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]  # UTC, in milliseconds
QUEUE_NAME = {"queue": "The queue's name"}
GROUP_NAME = {"group": "The consumer group's name"}
PARTITION_NAME = {"partition": "The partition's name"}


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A record with the names that Queen's clients know."""


class OffsetQuery(Wire, frozen=True, kw_only=True):
    """A page of a list."""

    limit: int = 100
    offset: int = 0


class Pagination(Wire, frozen=True, kw_only=True):
    """Which part of a list this is."""

    limit: int
    offset: int


class PartitionQuery(Wire, frozen=True, kw_only=True):
    """One partition, in place of all."""

    partition: str | None = None


class GroupDeletionQuery(Wire, frozen=True, kw_only=True):
    """Whether the consumer group is forgotten, or begins again where its first pop began."""

    delete_metadata: bool = True


class SwitchBody(msgspec.Struct, frozen=True):
    """A mode to turn on or off."""

    enabled: bool


class SubscriptionBody(Wire, frozen=True, kw_only=True):
    """When a consumer group begins."""

    subscription_timestamp: str


class SeekBody(Wire, frozen=True, kw_only=True):
    """Where a consumer group goes: to the end, or to the first message after a time. With `dryRun`, nothing is
    moved."""

    to_end: bool = False
    timestamp: str | None = None
    dry_run: bool = False


class PartitionSeekBody(Wire, frozen=True, kw_only=True):
    """Where a consumer group goes in one partition: to the first message after a time; to the end, if it does not
    say."""

    to_end: bool | None = None
    timestamp: str | None = None


class ClearedQueue(Wire, frozen=True, kw_only=True):
    """How many messages were removed."""

    cleared: int
    queue: str


class DeletedQueue(Wire, frozen=True, kw_only=True):
    """A queue that is not there any more, and whether it was."""

    deleted: bool
    queue: str
    existed: bool


class DeletedGroupAnswer(Wire, frozen=True, kw_only=True):
    """A consumer group that was deleted, with its dead letters, or begins again."""

    success: bool
    consumer_group: str
    queue_name: str | None
    deleted_partitions: int
    deleted_dead_letters: int
    metadata_deleted: bool


class SubscriptionAnswer(Wire, frozen=True, kw_only=True):
    """When a consumer group begins, and in how many queues."""

    success: bool
    consumer_group: str
    new_timestamp: Stamp
    rows_updated: int


class SeekAnswer(Wire, frozen=True, kw_only=True):
    """Where a consumer group went: messages that it reads again, and messages that it skips."""

    success: bool
    consumer_group: str
    queue_name: str
    seek_to_end: bool
    target_timestamp: Stamp | None
    partitions_updated: int
    read_again: int
    skipped: int


class PartitionSeekAnswer(Wire, frozen=True, kw_only=True):
    """Where a consumer group went in one partition."""

    success: bool
    consumer_group: str
    queue_name: str
    partition_name: str
    updated: bool
    cursor_moved_to: int | None
    read_again: int
    skipped: int


class RefreshedStats(Wire, frozen=True, kw_only=True):
    """All queues were counted again."""

    success: bool
    timestamp: Stamp


class MaintenanceAnswer(Wire, frozen=True, kw_only=True):
    """Whether pushes are buffered and pops paused, and what waits in the buffer."""

    maintenance_mode: bool
    pop_maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    message: str


class PopMaintenanceAnswer(Wire, frozen=True, kw_only=True):
    """Whether pops are paused."""

    pop_maintenance_mode: bool
    message: str


class BufferAnswer(Wire, frozen=True, kw_only=True):
    """Messages that were pushed during maintenance: how many wait, and how many could not be stored."""

    pending: int
    failed: int
    db_healthy: bool
    worker: int


def operation(
    method: str, path: str, access: Access, about: str, answer: Any, *, ids: tuple[str, ...] = (), **more: Any
) -> Operation[Any]:
    """An operation on queues. All parameters of its path are names, which may contain slashes, but for the ids."""
    spanning = tuple(name for name in more.get("parameters", ()) if name not in ids)
    return Operation(TAG, method, path, access, about, answer, spanning=spanning, open_locally=True, **more)


def acting(method: str, path: str, access: Access, about: str, answer: Any, **more: Any) -> Operation[Any]:
    """An operation of Queen's surface."""
    return operation(method, f"/api/v1/{path}", access, about, answer, **more)


def reading(path: str, about: str, answer: Any, **more: Any) -> Operation[Any]:
    return acting("GET", path, Access.READ, about, answer, **more)


DELETE_QUEUE = acting(
    "DELETE",
    "resources/queues/{queue}",
    Access.ADMIN,
    "Delete a queue with all that it has",
    DeletedQueue,
    parameters=QUEUE_NAME,
)
CLEAR = acting(
    "DELETE",
    "queues/{queue}/clear",
    Access.ADMIN,
    "Remove all messages of a queue or partition",
    ClearedQueue,
    parameters=QUEUE_NAME,
    query=PartitionQuery,
)
DELETE_GROUP = acting(
    "DELETE",
    "consumer-groups/{group}",
    Access.ADMIN,
    "Delete a consumer group of all queues",
    DeletedGroupAnswer,
    parameters=GROUP_NAME,
    query=GroupDeletionQuery,
)
DELETE_GROUP_OF_QUEUE = acting(
    "DELETE",
    "consumer-groups/{group}/queues/{queue}",
    Access.ADMIN,
    "Delete a consumer group of a queue",
    DeletedGroupAnswer,
    parameters=GROUP_NAME | QUEUE_NAME,
    query=GroupDeletionQuery,
)
SUBSCRIPTION = acting(
    "POST",
    "consumer-groups/{group}/subscription",
    Access.WRITE,
    "Let a consumer group begin at a time, where it has read nothing yet",
    SubscriptionAnswer,
    parameters=GROUP_NAME,
    body=SubscriptionBody,
)
SEEK = acting(
    "POST",
    "consumer-groups/{group}/queues/{queue}/seek",
    Access.WRITE,
    "Move a consumer group to a time or to the end",
    SeekAnswer,
    parameters=GROUP_NAME | QUEUE_NAME,
    body=SeekBody,
)
SEEK_PARTITION = acting(
    "POST",
    "consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
    Access.WRITE,
    "Move a consumer group in one partition",
    PartitionSeekAnswer,
    parameters=GROUP_NAME | QUEUE_NAME | PARTITION_NAME,
    body=PartitionSeekBody,
)
REFRESH = acting("POST", "stats/refresh", Access.ADMIN, "Count all queues again", RefreshedStats)
MAINTENANCE = reading("system/maintenance", "Whether pushes are buffered", MaintenanceAnswer)
SET_MAINTENANCE = acting(
    "POST", "system/maintenance", Access.ADMIN, "Buffer pushes, or take them again", MaintenanceAnswer, body=SwitchBody
)
POP_MAINTENANCE = reading("system/maintenance/pop", "Whether pops are paused", PopMaintenanceAnswer)
SET_POP_MAINTENANCE = acting(
    "POST", "system/maintenance/pop", Access.ADMIN, "Pause pops, or resume them", PopMaintenanceAnswer, body=SwitchBody
)
BUFFERS = reading("status/buffers", "Messages that were pushed during maintenance", BufferAnswer)
