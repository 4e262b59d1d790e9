"""What operators do with queues: look at them, move consumer groups, put dead letters back, pause, clear and delete.

Reading without a lease is in `queue_reading`."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import msgspec

from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask, request_for
from angelia.client.queue_calls import wire_time
from angelia.client.queue_messages import QueueMessage, json_of
from angelia.errors import InvalidArgument
from angelia.queues import admin_api as admin
from angelia.queues import listings_api as listings
from angelia.queues import messages_api as messages
from angelia.queues import operator_api as operator
from angelia.queues.model import QUEUE_MODE

# Where a consumer group goes: before the oldest message, behind the newest, or after a time.
Place: TypeAlias = Literal["beginning", "end"] | datetime
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class QueueDeadLetter(msgspec.Struct, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A message on which a consumer group gave up: the last error, and how often it was tried again."""

    id: str
    transaction_id: str
    trace_id: str | None
    partition_id: str
    queue: str
    partition: str
    group: str = msgspec.field(name="consumerGroup")
    error: str = msgspec.field(name="errorMessage")
    retries: int = msgspec.field(name="retryCount")
    payload: msgspec.Raw = msgspec.field(name="data")
    producer: str | None = msgspec.field(name="producerSub")
    created_at: datetime
    failed_at: datetime

    @cached_property
    def data(self) -> Any:
        """The payload: dict, list, text, number, bool or None."""
        return msgspec.json.decode(self.payload)


class QueueDeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of dead letters, the newest first, and how many there are in all."""

    letters: list[QueueDeadLetter] = msgspec.field(name="messages")
    total: int


def dead_letters(
    queue: str | None = None,
    *,
    group: str | None = None,
    partition: str | None = None,
    error: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
    offset: int = 0,
) -> Exchange[QueueDeadLetterPage]:
    """Returns a page of dead letters, the newest first: of a queue, a consumer group, a partition, with errors like
    `timeout*`, that failed in a time."""
    query = messages.LettersQuery(
        queue=queue,
        consumer_group=group,
        partition=partition,
        error=error,
        from_=None if since is None else wire_time(since),
        to=None if until is None else wire_time(until),
        limit=limit,
        offset=offset,
    )
    response = yield request_for(messages.LETTERS, query=query)
    return response.read(QueueDeadLetterPage)


class LetterOptions(TypedDict, total=False):
    """Which dead letters of a queue are meant: those of a consumer `group`, of a `partition`, with an `error` like
    `timeout*`, of one message (`transaction_id`), or that failed in a time; all, if nothing is said."""

    group: str | None
    partition: str | None
    error: str | None
    transaction_id: str | None
    since: datetime | None
    until: datetime | None


def requeue_dead_letters(
    queue: str, *, dry_run: bool = False, **letters: Unpack[LetterOptions]
) -> Exchange[operator.LettersDone]:
    """Puts dead letters back at the end of their partitions, each for its consumer group. Returns how many, and how
    many the queue has left."""
    return ask(operator.REQUEUE, queue, body=_choice(dry_run, letters))


def purge_dead_letters(
    queue: str, *, dry_run: bool = False, **letters: Unpack[LetterOptions]
) -> Exchange[operator.LettersDone]:
    """Deletes dead letters for good. Returns how many, and how many the queue has left. For operators."""
    return ask(operator.PURGE, queue, body=_choice(dry_run, letters))


def _choice(dry_run: bool, letters: LetterOptions) -> operator.LetterChoice:
    return operator.LetterChoice(
        consumer_group=letters.get("group"),
        partition=letters.get("partition"),
        error=letters.get("error"),
        transaction_id=letters.get("transaction_id"),
        since=letters.get("since"),
        until=letters.get("until"),
        dry_run=dry_run,
    )


# Consumer groups.


def groups(queue: str | None = None) -> Exchange[list[listings.GroupEntry]]:
    """Returns the consumer groups of a queue, or of all, and how far each is behind; one entry for each queue."""
    found: list[listings.GroupEntry] = yield from ask(listings.GROUPS)
    return [one for one in found if queue is None or one.queue_name == queue]


def seek(
    queue: str, to: Place, *, group: str | None = None, partition: str | None = None, dry_run: bool = False
) -> Exchange[admin.SeekAnswer | admin.PartitionSeekAnswer]:
    """Moves a consumer group: the next message that it gets is the first after a time, or of all, or the next one to be
    pushed. Its leases end. Returns how many messages it reads again and how many it skips."""
    at = None if to == "end" else wire_time(_BEGINNING if to == "beginning" else to)
    if partition is None:
        body = admin.SeekBody(to_end=at is None, timestamp=at, dry_run=dry_run)
        return ask(admin.SEEK, group or QUEUE_MODE, queue, body=body)
    if dry_run:
        raise InvalidArgument("a dry run is about all partitions of a queue")
    in_one = admin.PartitionSeekBody(to_end=at is None, timestamp=at)
    return ask(admin.SEEK_PARTITION, group or QUEUE_MODE, queue, partition, body=in_one)


def delete_group(
    group: str, queue: str | None = None, *, delete_metadata: bool = True
) -> Exchange[admin.DeletedGroupAnswer]:
    """Deletes a consumer group, of one queue or of all, with its dead letters. A later pop by its name starts anew;
    without `delete_metadata` it begins again where its first pop began."""
    query = admin.GroupDeletionQuery(delete_metadata=delete_metadata)
    if queue is None:
        return ask(admin.DELETE_GROUP, group, query=query)
    return ask(admin.DELETE_GROUP_OF_QUEUE, group, queue, query=query)


def subscribe_from(group: str, at: datetime) -> Exchange[admin.SubscriptionAnswer]:
    """Lets a consumer group begin at a time, in all partitions that it has not read yet."""
    return ask(admin.SUBSCRIPTION, group, body=admin.SubscriptionBody(subscription_timestamp=wire_time(at)))


# Queues.


def clear(queue: str, *, partition: str | None = None) -> Exchange[admin.ClearedQueue]:
    """Removes all messages of a queue or of one partition. The queue, its options and its consumer groups stay."""
    return ask(admin.CLEAR, queue, query=admin.PartitionQuery(partition=partition))


def partitions(queue: str | None = None) -> Exchange[list[listings.PartitionEntry]]:
    """Returns the partitions of a queue, or of all, with their figures."""
    found: listings.PartitionEntries = yield from ask(listings.PARTITIONS, query=listings.PartitionsQuery(queue=queue))
    return found.partitions


def depth(queue: str, *, group: str | None = None) -> Exchange[listings.QueueDepth]:
    """Returns how many messages wait for a consumer group, by partition."""
    return ask(listings.DEPTH, queue, query=listings.DepthQuery(group=group))


def pause_pops() -> Exchange[admin.PopMaintenanceAnswer]:
    """Lets all pops return nothing, of all queues, until `resume_pops`. For operators."""
    return ask(admin.SET_POP_MAINTENANCE, body=admin.SwitchBody(True))


def resume_pops() -> Exchange[admin.PopMaintenanceAnswer]:
    """Lets pops return messages again. For operators."""
    return ask(admin.SET_POP_MAINTENANCE, body=admin.SwitchBody(False))


def pause_pushes() -> Exchange[admin.MaintenanceAnswer]:
    """Buffers what is pushed to any queue, until `resume_pushes`. For operators."""
    return ask(admin.SET_MAINTENANCE, body=admin.SwitchBody(True))


def resume_pushes() -> Exchange[admin.MaintenanceAnswer]:
    """Stores what was buffered, in its order, and stores pushes at once again. For operators."""
    return ask(admin.SET_MAINTENANCE, body=admin.SwitchBody(False))


# Single messages.


def message(partition_id: str, transaction_id: str) -> Exchange[messages.MessageDetails]:
    """Returns a message with its status, its payload and what each consumer group did with it."""
    return ask(messages.MESSAGE, partition_id, transaction_id)


def delete_message(partition_id: str, transaction_id: str) -> Exchange[Any]:
    """Deletes a message and its dead letters. For operators."""
    return ask(messages.DELETE_MESSAGE, partition_id, transaction_id)


def give_up(partition_id: str, transaction_id: str) -> Exchange[messages.MovedMessage]:
    """Moves a message that waits to the dead letters."""
    return ask(messages.GIVE_UP_MESSAGE, partition_id, transaction_id)


# Traces.


def trace(
    message: QueueMessage, data: Any, *, names: list[str] | None = None, event_type: str = "info"
) -> Exchange[messages.TraceAnswer]:
    """Notes something about a message: any JSON, under the names of the traces that it belongs to."""
    body = messages.TraceBody(
        transaction_id=message.transaction_id,
        partition_id=message.partition_id,
        data=json_of(data, "the note"),
        consumer_group=message.group or None,
        trace_names=names,
        event_type=event_type,
    )
    return ask(messages.TRACE, body=body)


def traces(message: QueueMessage) -> Exchange[list[messages.TraceRecord]]:
    """Returns what was noted about a message, in order."""
    found: messages.TraceRecords = yield from ask(messages.TRACES, message.partition_id, message.transaction_id)
    return found.traces


def traces_named(name: str, *, limit: int = 100, offset: int = 0) -> Exchange[messages.NamedTraceRecords]:
    """Returns what was noted under a name, about all messages, the newest first."""
    return ask(messages.NAMED_TRACES, name, query=admin.OffsetQuery(limit=limit, offset=offset))
