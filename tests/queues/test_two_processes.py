"""Two processes on the same stores are one service: what one was told, the other knows at once."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

import msgspec
import pytest

from angelia.queues import store
from angelia.queues.model import Ack, PopRequest, PushItem, QueueDelivery
from angelia.queues.slice import QueuesSlice
from queues.conftest import Another

QUEUE = "orders"
numbers = count(1)


@pytest.fixture
async def other(another: Another, queues: QueuesSlice) -> QueuesSlice:
    return await another()


async def push(queues: QueuesSlice, now: datetime, partition: str = "Default", items: int = 1) -> list[str]:
    """Pushes items with ids of their own. Returns the ids."""
    ids = [f"message {next(numbers)}" for _ in range(items)]
    sent = [PushItem(queue=QUEUE, partition=partition, payload=msgspec.Raw(b"{}"), transaction_id=id_) for id_ in ids]
    assert [one.status for one in await queues.pushes.push(sent, None, now)] == ["queued"] * items
    return ids


async def pop(queues: QueuesSlice, now: datetime, wait: float = 0.0, **how: object) -> QueueDelivery | None:
    request = PopRequest(**{"queue": QUEUE, "batch": 100, **how})  # type: ignore[arg-type]
    return await queues.claims.pop(request, now, wait)


def ids(delivery: QueueDelivery | None) -> list[str]:
    return [] if delivery is None else [one.transaction_id for one in delivery.messages]


async def ack(
    queues: QueuesSlice, delivery: QueueDelivery, now: datetime, status: str = "completed"
) -> list[str | None]:
    """Acknowledges a whole delivery. Returns the errors."""
    acks = [
        Ack(
            transaction_id=one.transaction_id,
            partition_id=one.partition.partition_id,
            group=delivery.group,
            lease_id=UUID(delivery.lease_id) if delivery.lease_id else None,
            status=status,  # type: ignore[arg-type]
        )
        for one in delivery.messages
    ]
    return [one.error for one in await queues.settlement.ack(acks, now)]


async def test_a_pop_that_starts_after_a_push_was_answered_sees_the_message_in_any_process(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    sides = (queues, other)
    for number in range(200):
        pushing, popping = sides[number % 2], sides[number // 2 % 2]
        partition = f"partition {number % 7}"
        sent = await push(pushing, now, partition)
        named = {"partition": partition} if number % 3 == 0 else {}
        got = await pop(popping, now, **named)
        assert ids(got) == sent, f"push {number}"
        assert got is not None
        assert await ack(sides[number % 3 % 2], got, now) == [None]


async def test_an_acknowledgment_in_one_process_frees_the_partition_in_the_other(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    for round_ in range(50):
        first, second = (queues, other) if round_ % 2 else (other, queues)
        (one,) = await push(first, now)
        (two,) = await push(second, now)
        delivery = await pop(first, now, batch=1)
        assert ids(delivery) == [one]
        assert await pop(second, now, batch=1) is None
        assert delivery is not None
        assert await ack(second, delivery, now) == [None]
        delivery = await pop(second, now, batch=1)
        assert ids(delivery) == [two]
        assert delivery is not None
        assert await ack(first, delivery, now) == [None]


async def test_a_failed_acknowledgment_in_one_process_gives_the_message_to_the_other_after_its_delay(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    sent = await push(queues, now)
    delivery = await pop(queues, now)
    assert delivery is not None
    assert await ack(queues, delivery, now, "failed") == [None]
    assert await pop(other, now) is None
    assert ids(await pop(other, now + timedelta(seconds=2))) == sent


async def test_a_lease_holds_in_every_process_until_it_ends(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    sent = await push(queues, now, items=3)
    first = await pop(queues, now)
    assert first is not None
    for at in (now, now + timedelta(seconds=299)):
        assert await pop(queues, at) is None
        assert await pop(other, at) is None
    late = now + timedelta(seconds=301)
    second = await pop(other, late)
    assert ids(second) == sent
    assert second is not None
    assert await ack(queues, first, late) == ["Invalid or expired lease"] * 3
    assert await pop(queues, late) is None
    assert await ack(queues, second, late) == [None] * 3
    assert await pop(other, late) is None


async def test_a_lease_that_one_process_extended_holds_in_the_other(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    await push(queues, now)
    delivery = await pop(queues, now)
    assert delivery is not None
    extended = await other.settlement.extend(UUID(delivery.lease_id), 600, now)
    assert (extended.renewed, extended.expires_at) == (1, now + timedelta(seconds=600))
    assert await pop(queues, now + timedelta(seconds=500)) is None
    assert await pop(other, now + timedelta(seconds=500)) is None
    assert await ack(queues, delivery, now + timedelta(seconds=500)) == [None]


async def test_of_pops_at_the_same_time_in_two_processes_one_gets_a_partition(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    for _ in range(20):
        sent = await push(queues, now, items=5)
        got = await asyncio.gather(*(pop(side, now, batch=2) for side in (queues, other) * 4))
        (delivery,) = [one for one in got if one is not None]
        assert ids(delivery) == sent[:2]
        assert await ack(other, delivery, now) == [None] * 2
        rest = await pop(queues, now)
        assert ids(rest) == sent[2:]
        assert rest is not None
        assert await ack(queues, rest, now) == [None] * 3


async def test_pops_at_the_same_time_share_the_partitions_without_a_message_twice(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    sent = {id_ for number in range(8) for id_ in await push(queues, now, f"p{number}", 3)}
    got = await asyncio.gather(*(pop(side, now, partitions=2) for side in (queues, other) * 4))
    delivered = [id_ for one in got for id_ in ids(one)]
    assert len(delivered) == len(set(delivered))
    while delivery := await pop(other, now, partitions=10):  # a pop that met another at a partition may have passed it
        delivered += ids(delivery)
    assert sorted(delivered) == sorted(sent)


async def test_concurrent_pushes_of_one_id_in_two_processes_store_one_message(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    for number in range(20):
        item = PushItem(queue=QUEUE, transaction_id=f"once {number}")
        answers = await asyncio.gather(*(side.pushes.push([item], None, now) for side in (queues, other) * 3))
        assert sorted(one.status for (one,) in answers) == ["duplicate"] * 5 + ["queued"]
        assert len({one.message_id for (one,) in answers}) == 1
        assert ids(await pop(queues, now, auto_ack=True)) == [item.transaction_id]


async def test_a_waiting_pop_is_woken_by_a_push_in_another_process(
    queues: QueuesSlice, other: QueuesSlice, now: datetime, waits: asyncio.Queue[float]
) -> None:
    await push(queues, now)
    assert await pop(other, now, auto_ack=True) is not None
    for number in range(5):
        waiting = asyncio.create_task(pop(other, now, wait=30, auto_ack=True))
        await waits.get()
        began = time.monotonic()
        sent = await push(queues, now, f"new {number}")
        assert ids(await waiting) == sent
        assert time.monotonic() - began < 1


async def test_a_waiting_pop_is_woken_by_the_first_push_to_a_queue_that_did_not_exist(
    queues: QueuesSlice, other: QueuesSlice, now: datetime, waits: asyncio.Queue[float]
) -> None:
    waiting = asyncio.create_task(pop(other, now, wait=30))
    await waits.get()
    began = time.monotonic()
    sent = await push(queues, now)
    assert ids(await waiting) == sent
    assert time.monotonic() - began < 1


async def test_a_waiting_pop_is_woken_by_an_acknowledgment_that_frees_the_partition_in_another_process(
    queues: QueuesSlice, other: QueuesSlice, now: datetime, waits: asyncio.Queue[float]
) -> None:
    _, second = await push(queues, now, items=2)
    delivery = await pop(queues, now, batch=1)
    assert delivery is not None
    waiting = asyncio.create_task(pop(other, now, wait=30))
    await waits.get()
    began = time.monotonic()
    assert await ack(queues, delivery, now) == [None]
    assert ids(await waiting) == [second]
    assert time.monotonic() - began < 1


async def test_a_consumer_that_hangs_up_while_it_waits_gets_no_lease(
    queues: QueuesSlice, other: QueuesSlice, now: datetime, waits: asyncio.Queue[float]
) -> None:
    await push(queues, now)
    assert await pop(other, now, auto_ack=True) is not None
    gone = asyncio.create_task(pop(other, now, wait=30))
    await waits.get()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    sent = await push(queues, now)
    assert ids(await pop(queues, now)) == sent


async def test_a_consumer_that_hangs_up_as_a_message_arrives_leaves_no_lease(
    queues: QueuesSlice, other: QueuesSlice, now: datetime, waits: asyncio.Queue[float]
) -> None:
    """It hangs up so and so many turns of the event loop after the push: before, within and after the claim."""
    await push(queues, now)
    assert await pop(other, now, auto_ack=True) is not None
    delivered = 0
    for turns in range(0, 10_000, 3):
        gone = asyncio.create_task(pop(other, now, wait=30))
        await waits.get()
        sent = await push(queues, now, f"new {turns}")
        for _ in range(turns):
            await asyncio.sleep(0)
        gone.cancel()
        (left,) = await asyncio.gather(gone, return_exceptions=True)
        if not isinstance(left, asyncio.CancelledError):
            assert isinstance(left, QueueDelivery)
            assert ids(left) == sent
            assert await ack(queues, left, now) == [None]
            delivered += 1
            if delivered == 5:
                return
        else:
            got = await pop(queues, now, wait=3, auto_ack=True)
            assert ids(got) == sent, f"it hung up after {turns} turns"
    raise AssertionError("the pop never came to its end")


async def test_a_queue_that_one_process_configures_is_so_in_the_other_at_once(
    queues: QueuesSlice, other: QueuesSlice, now: datetime
) -> None:
    for lease in (10, 20):
        await queues.catalog.configure(QUEUE, now, {"leaseTime": lease})
        await push(other, now)
        assert await pop(other, now) is not None
        assert await pop(other, now + timedelta(seconds=lease - 1)) is None
        delivery = await pop(other, now + timedelta(seconds=lease + 1))
        assert delivery is not None
        assert await ack(other, delivery, now + timedelta(seconds=lease + 2)) == [None]
    await queues.catalog.configure(QUEUE, now, {"maxSize": 1})
    items = [PushItem(queue=QUEUE, transaction_id=f"full {n}") for n in range(2)]
    assert [one.status for one in await other.pushes.push(items, None, now)] == ["queued", "failed"]


async def test_queues_with_more_partitions_than_one_statement_looks_at_are_read_whole(
    queues: QueuesSlice, another: Another, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PARTITIONS", 3)
    for number in range(7):
        await push(queues, now, f"p{number}")
    assert await pop(queues, now, group="late", mode="new", partitions=10) is None
    sent = {id_ for number in range(9) for id_ in await push(queues, now, f"p{number}")}
    other = await another()  # it knows of no message yet
    assert set(ids(await pop(other, now, group="late", partitions=10))) == sent
    assert len(ids(await pop(other, now, group="all", partitions=10))) == 7 + 9
