"""Reads queues without a cursor or a lease: looking changes nothing."""

from __future__ import annotations

import msgspec

from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask
from angelia.client.queue_messages import QueueMessage
from angelia.queues import operator_api as api


class QueueMessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the order of their times, and the place behind them, where the next page begins."""

    messages: list[QueueMessage]
    next: str


def read_messages(
    queue: str,
    *,
    partition: str | None = None,
    after: str | None = None,
    newest: int | None = None,
    limit: int = 50,
    wait: float = 0.0,
) -> Exchange[QueueMessagePage]:
    """Returns messages of a queue without consuming them, and whether they were consumed or not: after the `next` of
    another page, the `newest` ones, or from the oldest on. Waits up to `wait` seconds for some."""
    query = api.ReadQuery(partition=partition, after=after, newest=newest, limit=limit, wait=wait)
    page: api.QueueMessageList = yield from ask(api.READ, queue, query=query, waits=wait)
    return QueueMessagePage(messages=[_message(queue, one) for one in page.messages], next=page.next)


def _message(queue: str, record: api.ReadQueueMessage) -> QueueMessage:
    return QueueMessage(
        id=str(record.id),
        transaction_id=record.transaction_id,
        queue=queue,
        partition=record.partition,
        partition_id=str(record.partition_id),
        created_at=record.created_at,
        payload=record.data,
        trace_id=record.trace_id,
        producer=record.producer,
    )
