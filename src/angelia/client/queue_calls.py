"""Queues: push, pop, settle, extend a lease, and configure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import msgspec

from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.operation_requests import ask, request_for
from angelia.client.queue_messages import (
    ClaimedMessages,
    PushedMessage,
    QueueItem,
    QueueMessage,
    error_text,
    item_body,
    push_refusal,
    pushed_message,
)
from angelia.errors import AngeliaError, InvalidArgument, LeaseLost, NotFound
from angelia.queues import api
from angelia.queues.model import AckStatus, Options

# Where a consumer group begins that is new: at the oldest message, after the newest, or after a time.
Start: TypeAlias = Literal["all", "new"] | datetime
Messages: TypeAlias = QueueMessage | Iterable[QueueMessage]
Settlement: TypeAlias = tuple[QueueMessage, AckStatus, str | None]
MOST_ITEMS, MOST_BYTES = 1_000, 8 << 20  # of one request
_LOST = "Invalid or expired lease"


class QueueOptions(TypedDict, total=False):
    """The options of a queue. Times are in seconds, but for `retry_delay`, which is in milliseconds."""

    lease_time: int
    retry_limit: int
    retry_delay: int
    priority: int
    delayed_processing: int
    window_buffer: int
    max_size: int
    ttl: int
    dead_letter_queue: bool
    dlq_after_max_retries: bool
    encryption_enabled: bool
    retention_enabled: bool
    retention_seconds: int
    completed_retention_seconds: int
    partition_retention_seconds: int
    max_wait_time_seconds: int
    archive_enabled: bool


class ConfiguredQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, and the options that are in effect."""

    name: str
    id: str
    namespace: str
    task: str
    options: Options


class SettledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was settled: whether its partition's lease ended by that, and whether it became a dead letter."""

    transaction_id: str
    lease_released: bool
    dead_letter: bool


# Push.


def push(
    queue: str,
    payload: Any,
    *,
    partition: str | None = None,
    transaction_id: str | None = None,
    trace_id: str | None = None,
) -> Exchange[PushedMessage]:
    """Pushes one message: anything that JSON can say. The queue is made if it does not exist. A second push with the
    same `transaction_id` is a duplicate, and stores nothing."""
    item = QueueItem(payload=payload, partition=partition, transaction_id=transaction_id, trace_id=trace_id)
    [pushed] = yield from _pushed([item], [item_body(item, queue, None)], [])
    return pushed


def push_many(
    queue: str | None, payloads: Iterable[Any | QueueItem], *, partition: str | None = None
) -> Exchange[list[PushedMessage]]:
    """Pushes messages in their order, a thousand a request. A `QueueItem` has its own queue, partition or id beside its
    payload. If some are refused, the error's `members["pushed"]` are those before."""
    pushed: list[PushedMessage] = []
    for items, bodies in _requests(payloads, queue, partition):
        pushed += yield from _pushed(items, bodies, pushed)
    return pushed


def _requests(
    payloads: Iterable[Any | QueueItem], queue: str | None, partition: str | None
) -> Iterator[tuple[list[QueueItem], list[api.PushItemBody]]]:
    """Yields messages in portions, each small enough for one request."""
    items: list[QueueItem] = []
    bodies: list[api.PushItemBody] = []
    size = 0
    for payload in payloads:
        item = payload if isinstance(payload, QueueItem) else QueueItem(payload=payload)
        body = item_body(item, queue, partition)
        if items and (len(items) == MOST_ITEMS or size + len(bytes(body.payload)) > MOST_BYTES):
            yield items, bodies
            items, bodies, size = [], [], 0
        items.append(item)
        bodies.append(body)
        size += len(bytes(body.payload))
    if items:
        yield items, bodies


def _pushed(
    items: Sequence[QueueItem], bodies: list[api.PushItemBody], before: Sequence[PushedMessage]
) -> Exchange[list[PushedMessage]]:
    records = yield from ask(api.PUSH, body=api.PushBody(bodies))
    if len(records) != len(items):
        raise BadAnswer(f"{len(items)} messages were pushed, and the server answered about {len(records)}")
    results = [pushed_message(item, record) for item, record in zip(items, records, strict=True)]
    taken = [one for one in results if one is not None]
    if len(taken) != len(results):
        raise push_refusal(records, [*before, *taken])
    return taken


# Pop.


class PopOptions(TypedDict, total=False):
    """What a pop takes beside the queue: one `partition` of it, or in place of a queue a `namespace` and `task`; the
    consumer `group`; at most `batch` messages (1) of so many `partitions` (1); `wait` seconds; whether the messages are
    settled at once (`auto_ack`); and where the group begins if it is new (`start`)."""

    partition: str | None
    group: str | None
    batch: int
    partitions: int
    wait: float
    auto_ack: bool
    start: Start | None
    namespace: str | None
    task: str | None


def pop(queue: str | None = None, **options: Unpack[PopOptions]) -> Exchange[list[QueueMessage]]:
    """Claims messages of a queue, of one of its partitions, or of all queues of a namespace and task, and waits up to
    `wait` seconds for some. They are leased until they are settled or the lease time is over, and then delivered
    again; with `auto_ack` they are settled at once."""
    return (yield from claim(queue, **options)).messages


def claim(
    queue: str | None,
    *,
    partition: str | None = None,
    group: str | None = None,
    batch: int = 1,
    partitions: int = 1,
    wait: float = 0.0,
    auto_ack: bool = False,
    start: Start | None = None,
    namespace: str | None = None,
    task: str | None = None,
) -> Exchange[ClaimedMessages]:
    """Claims messages. Returns them with their lease."""
    if queue is None and namespace is None and task is None:
        raise InvalidArgument("a pop names a queue, a namespace or a task")
    if queue is None and partition is not None:
        raise InvalidArgument("a partition is popped together with its queue")
    query = api.PopQuery(
        batch=batch,
        wait=wait > 0,
        timeout=round(wait * 1000) if wait > 0 else 30_000,
        consumerGroup=group,
        autoAck=auto_ack,
        subscriptionMode=start if isinstance(start, str) else None,
        subscriptionFrom=wire_time(start) if isinstance(start, datetime) else None,
        partitions=partitions,
        namespace=namespace,
        task=task,
    )
    if queue is None:
        request = request_for(api.POP_ANY, query=query, waits=wait)
    elif partition is None:
        request = request_for(api.POP, queue, query=query, waits=wait)
    else:
        request = request_for(api.POP_PARTITION, queue, partition, query=query, waits=wait)
    response = yield request
    return ClaimedMessages(messages=[]) if response.status == 204 else response.read(ClaimedMessages)


def wire_time(at: datetime) -> str:
    """Returns a time as these routes take it; without a zone it is UTC."""
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)).isoformat()


# Settle.


def ack(messages: Messages) -> Exchange[list[SettledMessage]]:
    """Completes a message, or several. Raises LeaseLost if the lease of one is over: it is delivered again, and the
    others are completed."""
    return _settled(messages, "completed")


def nack(messages: Messages, error: str | None = None) -> Exchange[list[SettledMessage]]:
    """Gives up on a message: it is delivered again, or becomes a dead letter if it failed too often. The lease of its
    partition ends, so messages of the same batch behind it are delivered again as well."""
    return _settled(messages, "failed", error)


def retry(messages: Messages) -> Exchange[list[SettledMessage]]:
    """Gives a message back, to be delivered again at once; that does not count as a failure. The lease of its partition
    ends."""
    return _settled(messages, "retry")


def dead_letter(messages: Messages, error: str | None = None) -> Exchange[list[SettledMessage]]:
    """Makes a message a dead letter at once."""
    return _settled(messages, "dlq", error)


def settle_all(settlements: Sequence[Settlement]) -> Exchange[list[api.AckRecord]]:
    """Settles messages of one consumer group in one request. Returns for each whether that was taken."""
    body = api.AckBatchBody(
        [
            api.AckBatchItem(one.transaction_id, one.partition_id, one.lease_id or None, status, error_text(error))
            for one, status, error in settlements
        ],
        settlements[0][0].group or None,
    )
    records = yield from ask(api.ACK_BATCH, body=body)
    if len(records) != len(settlements):
        raise BadAnswer(f"{len(settlements)} messages were settled, and the server answered about {len(records)}")
    for (message, status, _), record in zip(settlements, records, strict=True):
        if record.success:
            message.settled_as = status
    return records


def _settled(messages: Messages, status: AckStatus, error: str | None = None) -> Exchange[list[SettledMessage]]:
    named = [messages] if isinstance(messages, QueueMessage) else list(messages)
    by_group: dict[str, list[QueueMessage]] = {}
    for one in named:
        by_group.setdefault(one.group, []).append(one)
    records: dict[int, api.AckRecord] = {}
    for of_group in by_group.values():
        rest = iter(of_group)
        while some := list(islice(rest, MOST_ITEMS)):
            answers = yield from settle_all([(one, status, error) for one in some])
            records.update((id(one), record) for one, record in zip(some, answers, strict=True))
    answered = [records[id(one)] for one in named]
    refused = [one for one in answered if not one.success]
    if refused:
        raise _refusal(refused, len(named))
    return [
        SettledMessage(transaction_id=one.transactionId, lease_released=one.leaseReleased, dead_letter=one.dlq)
        for one in answered
    ]


def _refusal(refused: Sequence[api.AckRecord], of: int) -> AngeliaError:
    many = f"{len(refused)} of {of} messages were not settled: " if of > 1 else ""
    ids = [one.transactionId for one in refused]
    error: AngeliaError
    if any(one.error == _LOST for one in refused):
        error = LeaseLost(f"{many}the lease is over, or the message is another consumer's by now")
        error.hint = "it is delivered again; extend the lease in time, or give the queue a longer lease time"
    else:
        error = NotFound(f"{many}{refused[0].error or 'the server did not say why'}")
    error.members = {"refused": ids}
    return error


# Leases.


def extend(message: QueueMessage | str, *, seconds: int | None = None) -> Exchange[datetime]:
    """Extends the lease of a message, given by the message or the lease's id, and of all others that were popped with
    it: by the queue's lease time, or to so many seconds from now. Returns its end; raises LeaseLost if it is over."""
    ends, _ = yield from extend_lease(message if isinstance(message, str) else message.lease_id, seconds)
    return ends


def extend_lease(lease_id: str, seconds: int | None = None) -> Exchange[tuple[datetime, float]]:
    """Extends a lease. Returns its end, and how many seconds that is away by the server's clock."""
    response = yield request_for(api.EXTEND, lease_id, body=api.ExtendBody(seconds))
    answer = response.read(api.ExtendAnswer)
    if not answer.success or answer.expiresAt is None:
        raise LeaseLost(answer.error or "the lease is over", hint="its messages are delivered again")
    ends = msgspec.convert(answer.expiresAt, datetime)
    at = response.headers.get("date", "")
    now = parsedate_to_datetime(at) if at else datetime.now(UTC)
    return ends, (ends - now).total_seconds()


# Options.


def configure(
    queue: str,
    *,
    namespace: str | None = None,
    task: str | None = None,
    partition: str | None = None,
    **options: Unpack[QueueOptions],
) -> Exchange[ConfiguredQueue]:
    """Makes a queue or changes its options; those that are not named stay as they are. With `partition`, they are those
    of one partition."""
    names = dict(zip(Options.__struct_fields__, Options.__struct_encode_fields__, strict=True))
    unknown = [name for name in options if name not in names]
    if unknown:
        raise InvalidArgument(f"a queue has no option {unknown[0]}", hint=f"it has {', '.join(names)}")
    body = api.ConfigureBody(queue, namespace, task, partition, {names[name]: value for name, value in options.items()})
    answer = yield from ask(api.CONFIGURE, body=body)
    return ConfiguredQueue(
        name=answer.queue,
        id=answer.queueId,
        namespace=answer.namespace,
        task=answer.task,
        options=options_of(answer.options),
    )


def options_of(options: Mapping[str, Any]) -> Options:
    """Returns the options of a queue from those of the wire; what is missing has its default."""
    return msgspec.convert(options, Options)
