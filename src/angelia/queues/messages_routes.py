"""Single messages, dead letters and traces over HTTP, as Queen's clients ask for them."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from angelia.api import Answer, Call, Route
from angelia.errors import InvalidArgument, NotFound
from angelia.queues import messages_api as api
from angelia.queues.admin_api import Pagination
from angelia.queues.asked import QueryParameters
from angelia.queues.dead_letters import LetterFilter, QueueDeadLetters, error_pattern
from angelia.queues.messages import MessageFilter, QueueMessages
from angelia.queues.model import DEFAULT, QUEUE_MODE, check_id, check_name, parse_time
from angelia.queues.stamps import stamp
from angelia.queues.traces import NewTrace, ShownTrace, Traces

_STATUSES = frozenset({"pending", "processing", "completed", "dead_letter", "evicted"})
_MOST = 1_000
_WINDOW = timedelta(hours=1)


def routes(messages: QueueMessages, letters: QueueDeadLetters, traces: Traces) -> list[Route]:
    return [*_message_routes(messages, letters), *_trace_routes(traces)]


def _message_routes(messages: QueueMessages, letters: QueueDeadLetters) -> list[Route]:
    async def list_messages(call: Call) -> Answer:
        asked = QueryParameters(call)
        chosen = _filter(asked, call.now)
        limit, offset = asked.number("limit", 200, 1, _MOST), asked.number("offset", 0)
        return Answer(body=await messages.page(chosen, limit, offset, call.now))

    async def show(call: Call) -> Answer:
        return Answer(body=await messages.show(*_place(call), call.now))

    async def delete(call: Call) -> Answer:
        await messages.delete(*_place(call), call.now, by=call.caller.known_as)
        return Answer(
            body=api.DeletedQueueMessage(
                success=True,
                partition_id=call.path("partition"),
                transaction_id=call.path("transaction"),
                message="Message deleted",
            )
        )

    async def retry(call: Call) -> Answer:
        await letters.retry(*_place(call), call.now, by=call.caller.known_as)
        return _moved(call)

    async def give_up(call: Call) -> Answer:
        await letters.give_up(*_place(call), call.now, by=call.caller.known_as)
        return _moved(call)

    async def list_letters(call: Call) -> Answer:
        asked = QueryParameters(call)
        limit, offset = asked.number("limit", 100, 1, _MOST), asked.number("offset", 0)
        partition = asked.text("partition")
        chosen = LetterFilter(
            queue=asked.text("queue"),
            group=asked.text("consumerGroup"),
            # Clients send the name of the partition that callers of theirs have when they name none.
            partition=None if partition == DEFAULT else partition,
            since=_time(asked, "from"),
            until=_time(asked, "to"),
            error=error_pattern(asked.text("error")),
        )
        found, total = await letters.page(chosen, limit, offset)
        return Answer(
            body=api.LetterEntries(
                messages=found,
                total=total,
                pagination=Pagination(limit=limit, offset=offset),
            )
        )

    return [
        Route(api.MESSAGES, list_messages),
        Route(api.MESSAGE, show),
        Route(api.DELETE_MESSAGE, delete),
        Route(api.RETRY_MESSAGE, retry),
        Route(api.GIVE_UP_MESSAGE, give_up),
        Route(api.LETTERS, list_letters),
    ]


def _trace_routes(traces: Traces) -> list[Route]:
    async def add(call: Call) -> Answer:
        body = call.json(api.TraceBody)
        new = NewTrace(
            partition_id=_partition_id(body.partition_id),
            transaction_id=check_id(body.transaction_id, "transactionId"),
            group=check_name(body.consumer_group or QUEUE_MODE, "consumerGroup"),
            names=body.trace_names or [],
            event_type=body.event_type,
            data=body.data,
            worker=call.caller.known_as,
        )
        return Answer(201, api.TraceAnswer(success=True, trace_id=await traces.add(new, call.now)))

    async def of_message(call: Call) -> Answer:
        found = await traces.of_message(*_place(call))
        return Answer(body=api.TraceRecords(traces=[_trace(one) for one in found]))

    async def named(call: Call) -> Answer:
        asked = QueryParameters(call)
        limit, offset = asked.number("limit", 100, 1, _MOST), asked.number("offset", 0)
        found, total = await traces.named(call.path("name"), limit, offset)
        records = [_named_trace(one) for one in found]
        page = Pagination(limit=limit, offset=offset)
        return Answer(body=api.NamedTraceRecords(traces=records, total=total, pagination=page))

    async def names(call: Call) -> Answer:
        asked = QueryParameters(call)
        found, total = await traces.names(asked.number("limit", 100, 1, _MOST), asked.number("offset", 0))
        records = [
            api.TraceNameRecord(
                trace_name=one.trace_name,
                trace_count=one.trace_count,
                message_count=one.message_count,
                last_seen=stamp(one.last_seen),
            )
            for one in found
        ]
        return Answer(body=api.TraceNameRecords(trace_names=records, total=total))

    return [
        Route(api.TRACE, add),
        Route(api.TRACES, of_message),
        Route(api.NAMED_TRACES, named),
        Route(api.TRACE_NAMES, names),
    ]


def _filter(asked: QueryParameters, now: datetime) -> MessageFilter:
    status = asked.text("status")
    if status is not None and status not in _STATUSES:
        raise InvalidArgument(f"status is one of {', '.join(sorted(_STATUSES))}")
    until = _time(asked, "to") or now
    return MessageFilter(
        queue=asked.text("queue"),
        partition=asked.text("partition"),
        namespace=asked.text("ns") or asked.text("namespace"),
        task=asked.text("task"),
        status=status,
        since=_time(asked, "from") or until - _WINDOW,
        until=until,
    )


def _trace(one: ShownTrace) -> api.TraceRecord:
    return api.TraceRecord(
        id=one.row.trace_id,
        event_type=one.row.event_type,
        data=one.data,
        consumer_group=one.row.group_name,
        worker_id=one.row.worker,
        created_at=stamp(one.row.created_at),
        trace_names=list(one.row.names),
    )


def _named_trace(one: ShownTrace) -> api.NamedTraceRecord:
    return api.NamedTraceRecord(
        **msgspec.structs.asdict(_trace(one)),
        transaction_id=one.row.transaction_id,
        partition_id=one.partition.partition_id,
        queue_name=one.partition.queue.name,
        partition_name=one.partition.name,
        message_payload=one.message,
    )


def _moved(call: Call) -> Answer:
    return Answer(
        body=api.MovedMessage(
            success=True, partition_id=call.path("partition"), transaction_id=call.path("transaction")
        )
    )


def _place(call: Call) -> tuple[UUID, str]:
    """The id of the partition and the transaction id in a path."""
    return _partition_id(call.path("partition")), call.path("transaction")


def _partition_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("Message not found") from None


def _time(asked: QueryParameters, name: str) -> datetime | None:
    text = asked.text(name)
    return None if text is None else parse_time(text, name)
