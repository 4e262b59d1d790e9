"""Our own operations on queues, for operators and for reading without a lease."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from angelia.api import Access, Moment, PageQuery, PageSize
from angelia.queues.admin_api import QUEUE_NAME, operation


class QueueListQuery(PageQuery, frozen=True, kw_only=True):
    """Which queues a list shows."""

    name: Annotated[str, msgspec.Meta(description="Only names that begin like this")] | None = None
    namespace: str | None = None
    task: str | None = None


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: how many messages wait, are leased, or became dead letters, and its rates and lag. `state` is ok;
    behind: its oldest message waits for more than a minute, and no fewer come in than go out; stuck: messages wait, and
    none was settled for five minutes; or paused."""

    name: str
    namespace: str
    task: str
    state: str
    pending: int
    leased: int
    dead: int
    in_per_second: float
    out_per_second: float
    lag_seconds: int
    partitions: int
    created_at: datetime


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of queues by name, and how many there are in all."""

    queues: list[QueueSummary]
    next: str | None
    total: int


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group of a queue, how many messages and seconds it is behind, and how many consumers hold a lease."""

    name: str
    mode: str
    lag: int
    lag_seconds: int
    members: int


class QueueRecord(QueueSummary, frozen=True, kw_only=True):
    """A queue with its options and consumer groups."""

    options: dict[str, Any]
    groups: list[GroupSummary]


class ReadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Where to read: behind a place, by default from the oldest message on; or the newest messages."""

    partition: str | None = None
    after: Annotated[str, msgspec.Meta(description="The `next` of the page before")] | None = None
    newest: (
        Annotated[int, msgspec.Meta(ge=0, le=1000, description="Begin with so many of the newest messages")] | None
    ) = None
    limit: PageSize = 50
    wait: Annotated[float, msgspec.Meta(ge=0, le=60, description="Seconds to wait for a message")] = 0.0


class ReadQueueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is read; it stays where it is."""

    id: UUID
    transaction_id: str
    trace_id: str | None
    partition: str
    partition_id: UUID
    position: int
    producer: str | None
    created_at: datetime
    data: msgspec.Raw


class QueueMessageList(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the order of their times, and the place behind them; it is there also if no message is."""

    messages: list[ReadQueueMessage]
    next: str


class LetterChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Dead letters of a queue; all, if nothing more is said. In `error`, `*` stands for any text. With `dry_run`, they
    are only counted."""

    consumer_group: str | None = None
    partition: str | None = None
    error: str | None = None
    transaction_id: str | None = None
    since: Moment | None = msgspec.field(default=None, name="from")
    until: Moment | None = msgspec.field(default=None, name="to")
    dry_run: bool = False


class LettersDone(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters were meant, and how many the queue has left."""

    count: int
    left: int


LIST = operation("GET", "/v1/queues", Access.READ, "Queues and their states", QueueList, query=QueueListQuery)
SHOW = operation("GET", "/v1/queues/{queue}", Access.READ, "A queue and its state", QueueRecord, parameters=QUEUE_NAME)
READ = operation(
    "GET",
    "/v1/queues/{queue}/messages",
    Access.READ,
    "Messages of a queue, read without a cursor or lease",
    QueueMessageList,
    parameters=QUEUE_NAME,
    query=ReadQuery,
    waits=True,
)
REQUEUE = operation(
    "POST",
    "/v1/queues/{queue}/dead-letters/requeue",
    Access.WRITE,
    "Put dead letters back for their consumer groups",
    LettersDone,
    parameters=QUEUE_NAME,
    body=LetterChoice,
    repeatable=False,
)
PURGE = operation(
    "POST",
    "/v1/queues/{queue}/dead-letters/purge",
    Access.ADMIN,
    "Delete dead letters for good",
    LettersDone,
    parameters=QUEUE_NAME,
    body=LetterChoice,
)
