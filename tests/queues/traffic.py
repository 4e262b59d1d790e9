"""Pushes, pops and acknowledgments in few words, for tests of what operators see and do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import count
from typing import Any, Literal

import msgspec

from angelia.queues.model import QUEUE_MODE, Ack, PopRequest, PushItem, PushResult, QueueDelivery
from angelia.queues.slice import QueuesSlice

_numbers = count(1)


async def push(
    queues: QueuesSlice,
    queue: str,
    now: datetime,
    *payloads: object,
    partition: str = "Default",
    ids: Sequence[str] = (),
) -> list[PushResult]:
    """Pushes payloads, by default with ids of their own."""
    names = list(ids) or [f"message {next(_numbers)}" for _ in payloads]
    items = [
        PushItem(
            queue=queue, partition=partition, payload=msgspec.Raw(msgspec.json.encode(payload)), transaction_id=id_
        )
        for payload, id_ in zip(payloads, names, strict=True)
    ]
    return await queues.pushes.push(items, None, now)


async def pop(
    queues: QueuesSlice, queue: str, now: datetime, group: str = QUEUE_MODE, **how: Any
) -> QueueDelivery | None:
    return await queues.claims.pop(PopRequest(**{"queue": queue, "group": group, "batch": 100, **how}), now)


async def taken(queues: QueuesSlice, queue: str, now: datetime, group: str = QUEUE_MODE, **how: Any) -> list[Any]:
    """The payloads that a pop delivers."""
    delivery = await pop(queues, queue, now, group, **how)
    return [] if delivery is None else [msgspec.json.decode(one.data) for one in delivery.messages]


async def settle(
    queues: QueuesSlice,
    delivery: QueueDelivery | None,
    now: datetime,
    status: Literal["completed", "failed", "retry", "dlq"] = "completed",
    error: str | None = None,
    most: int | None = None,
) -> None:
    """Acknowledges a delivery, or its first messages. ValueError if that is refused."""
    assert delivery is not None
    acks = [
        Ack(
            transaction_id=one.transaction_id,
            partition_id=one.partition.partition_id,
            group=delivery.group,
            lease_id=None if not delivery.lease_id else delivery.lease_id,  # type: ignore[arg-type]
            status=status,
            error=error,
        )
        for one in delivery.messages[:most]
    ]
    errors = [one.error for one in await queues.settlement.ack(acks, now)]
    if any(errors):
        raise ValueError(errors)


async def consume(queues: QueuesSlice, queue: str, now: datetime, group: str = QUEUE_MODE, **how: Any) -> list[Any]:
    """Pops and completes. Returns the payloads."""
    delivery = await pop(queues, queue, now, group, **how)
    if delivery is None:
        return []
    await settle(queues, delivery, now)
    return [msgspec.json.decode(one.data) for one in delivery.messages]
