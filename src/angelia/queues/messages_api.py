"""Single messages, dead letters and traces, as Queen's clients ask for them."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec

from angelia.api import Access
from angelia.queues.admin_api import OffsetQuery, Pagination, Stamp, Wire, acting, reading

MESSAGE_PLACE = {
    "partition": "The partition's id",
    "transaction": "The message's transaction id; it may contain slashes",
}


class MessagesQuery(Wire, frozen=True, kw_only=True):
    """Which messages a list shows; without times, those of the last hour."""

    queue: str | None = None
    partition: str | None = None
    ns: str | None = None
    namespace: str | None = None
    task: str | None = None
    status: (
        Annotated[str, msgspec.Meta(description="pending, processing, completed, dead_letter or evicted")] | None
    ) = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    limit: int = 200
    offset: int = 0


class LettersQuery(Wire, frozen=True, kw_only=True):
    """Which dead letters a list shows."""

    queue: str | None = None
    consumer_group: str | None = None
    partition: str | None = None
    error: Annotated[str, msgspec.Meta(description="Only errors like this; `*` stands for any text")] | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    limit: int = 100
    offset: int = 0


class TraceBody(Wire, frozen=True, kw_only=True):
    """What a consumer notes about a message."""

    transaction_id: Annotated[str, msgspec.Meta(min_length=1)]
    partition_id: Annotated[str, msgspec.Meta(min_length=1)]
    data: msgspec.Raw
    consumer_group: str | None = None
    trace_names: (
        Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]], msgspec.Meta(max_length=100)] | None
    ) = None
    event_type: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = "info"


class BusStatus(Wire, frozen=True, kw_only=True):
    """How many of the named consumer groups have consumed a message."""

    consumed_by: int
    total_groups: int


class MessageEntry(Wire, frozen=True, kw_only=True):
    """A message in a list."""

    id: UUID
    transaction_id: str
    partition_id: UUID
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: str
    queue_status: str | None
    bus_status: BusStatus
    trace_id: str | None
    producer_sub: str | None
    queue_priority: int
    created_at: Stamp
    lease_expires_at: Stamp | None


class ReadersMode(Wire, frozen=True, kw_only=True):
    """How queues are read: by consumers without a group (queue), by named groups (bus), both (hybrid), or not yet."""

    has_queue_mode: bool
    bus_groups_count: int
    type: str


class MessageEntries(Wire, frozen=True, kw_only=True):
    """Messages, newest first."""

    messages: list[MessageEntry]
    mode: ReadersMode


class MessageReader(Wire, frozen=True, kw_only=True):
    """What a consumer group has done with a message."""

    name: str
    consumed: bool
    lease_expires_at: Stamp | None


class MessageDetails(MessageEntry, frozen=True, kw_only=True):
    """A message with its payload."""

    payload: msgspec.Raw
    is_encrypted: bool
    error_message: str | None
    retry_count: int
    queue_config: dict[str, Any]
    consumer_groups: list[MessageReader]


class DeletedQueueMessage(Wire, frozen=True, kw_only=True):
    """A message that was deleted."""

    success: bool
    partition_id: str
    transaction_id: str
    message: str


class MovedMessage(Wire, frozen=True, kw_only=True):
    """A message that was put back, or became a dead letter."""

    success: bool
    partition_id: str
    transaction_id: str


class LetterEntry(Wire, frozen=True, kw_only=True):
    """A dead letter."""

    id: UUID
    transaction_id: str
    trace_id: str | None
    partition_id: UUID
    queue: str
    partition: str
    consumer_group: str
    error_message: str
    retry_count: int
    data: msgspec.Raw
    producer_sub: str | None
    created_at: Stamp
    failed_at: Stamp


class LetterEntries(Wire, frozen=True, kw_only=True):
    """Dead letters, newest first, and how many there are in all."""

    messages: list[LetterEntry]
    total: int
    pagination: Pagination


class TraceAnswer(Wire, frozen=True, kw_only=True):
    """A trace that was noted."""

    success: bool
    trace_id: UUID


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer noted about a message."""

    id: UUID
    event_type: str
    data: msgspec.Raw
    consumer_group: str
    worker_id: str
    created_at: Stamp
    trace_names: list[str]


class TraceRecords(msgspec.Struct, frozen=True, kw_only=True):
    """What was noted about a message, in order."""

    traces: list[TraceRecord]


class NamedTraceRecord(TraceRecord, frozen=True, kw_only=True):
    """A trace with its message."""

    transaction_id: str
    partition_id: UUID
    queue_name: str
    partition_name: str
    message_payload: msgspec.Raw


class NamedTraceRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Traces of a name, newest first, and how many there are in all."""

    traces: list[NamedTraceRecord]
    total: int
    pagination: Pagination


class TraceNameRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A name of traces."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: Stamp


class TraceNameRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The names of traces, those that were used last first, and how many there are in all."""

    trace_names: list[TraceNameRecord]
    total: int


MESSAGES = reading("messages", "Messages with their status", MessageEntries, query=MessagesQuery)
MESSAGE = reading(
    "messages/{partition}/{transaction}",
    "A message with its payload",
    MessageDetails,
    parameters=MESSAGE_PLACE,
    ids=("partition",),
)
DELETE_MESSAGE = acting(
    "DELETE",
    "messages/{partition}/{transaction}",
    Access.ADMIN,
    "Delete a message and its dead letters",
    DeletedQueueMessage,
    parameters=MESSAGE_PLACE,
    ids=("partition",),
)
RETRY_MESSAGE = acting(
    "POST",
    "messages/{partition}/{transaction}/retry",
    Access.WRITE,
    "Put a dead letter back for its consumer group",
    MovedMessage,
    parameters=MESSAGE_PLACE,
    ids=("partition",),
    repeatable=False,
)
GIVE_UP_MESSAGE = acting(
    "POST",
    "messages/{partition}/{transaction}/dlq",
    Access.WRITE,
    "Move a message that waits to the dead letters",
    MovedMessage,
    parameters=MESSAGE_PLACE,
    ids=("partition",),
    repeatable=False,
)
LETTERS = reading("dlq", "Dead letters", LetterEntries, query=LettersQuery)
TRACE = acting(
    "POST",
    "traces",
    Access.WRITE,
    "Note a trace about a message",
    TraceAnswer,
    statuses=(201,),
    body=TraceBody,
    repeatable=False,
)
TRACES = reading(
    "traces/{partition}/{transaction}",
    "The traces of a message",
    TraceRecords,
    parameters=MESSAGE_PLACE,
    ids=("partition",),
)
NAMED_TRACES = reading(
    "traces/by-name/{name}", "Traces of a name", NamedTraceRecords, parameters={"name": "The name"}, query=OffsetQuery
)
TRACE_NAMES = reading("traces/names", "The names of traces", TraceNameRecords, query=OffsetQuery)
