"""Pushes of many partitions, of chunks, and beside each other."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import msgspec
import pytest

from angelia.queues import catalog, pushing
from angelia.queues.model import CHUNK_BYTES, CHUNK_MESSAGES, PushItem
from angelia.queues.slice import QueuesSlice
from queues.traffic import consume, pop, push, settle

QUEUE = "orders"


def numbered(numbers: range, partition: str = "Default") -> list[PushItem]:
    """Messages whose payload and transaction id is their number."""
    return [
        PushItem(
            queue=QUEUE, partition=partition, payload=msgspec.Raw(str(number).encode()), transaction_id=str(number)
        )
        for number in numbers
    ]


async def test_a_push_and_a_pop_of_more_partitions_than_a_process_remembers_leave_none_out(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_MOST_KNOWN", 3)
    names = [f"p{number}" for number in range(8)]
    items = [PushItem(queue=QUEUE, partition=name, transaction_id=name) for name in names]
    assert {one.status for one in await queues.pushes.push(items, None, now)} == {"queued"}
    delivery = await pop(queues, QUEUE, now, partitions=8)
    assert delivery is not None
    assert sorted(one.partition.name for one in delivery.messages) == names
    await settle(queues, delivery, now)  # raises if one of them is refused


async def test_more_partitions_than_one_statement_takes_are_all_stored_and_settled(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "_MOST_PARTITIONS", 3)
    items = [PushItem(queue=QUEUE, partition=f"p{n % 8}", transaction_id=str(n)) for n in range(32)]
    assert {one.status for one in await queues.pushes.push(items, None, now)} == {"queued"}
    delivery = await pop(queues, QUEUE, now, partitions=8)
    assert delivery is not None
    got: dict[str, list[int]] = {}
    for one in delivery.messages:
        got.setdefault(one.partition.name, []).append(int(one.transaction_id))
    assert got == {f"p{first}": list(range(first, 32, 8)) for first in range(8)}
    await settle(queues, delivery, now)


async def test_duplicates_in_the_first_chunk_of_a_push_do_not_let_the_second_pass_the_first(
    queues: QueuesSlice, now: datetime
) -> None:
    count = 3 * CHUNK_MESSAGES
    assert [one.status for one in await push(queues, QUEUE, now, "known", ids=["7"])] == ["queued"]
    results = await queues.pushes.push(numbered(range(count)), None, now)
    assert [at for at, one in enumerate(results) if one.status != "queued"] == [7]
    assert results[7].status == "duplicate"
    got = await consume(queues, QUEUE, now, batch=10_000)
    assert got == ["known", *(number for number in range(count) if number != 7)]


async def test_a_push_into_a_busy_partition_is_not_held_up_by_duplicates_of_others(
    queues: QueuesSlice, now: datetime
) -> None:
    """Pushes of one moment share a chunk; if one of them has a duplicate, the chunk is refused."""
    assert {one.status for one in await push(queues, QUEUE, now, *range(50), ids=list(map(str, range(50))))} == {
        "queued"
    }
    mixed = [queues.pushes.push(numbered(range(n, n + 1)), None, now) for n in range(100)]
    results = await asyncio.gather(*mixed)
    assert [one.status for (one,) in results] == ["duplicate"] * 50 + ["queued"] * 50
    assert sorted(await consume(queues, QUEUE, now, batch=1000)) == list(range(100))


async def test_messages_as_large_as_a_chunk_are_stored_one_by_one(queues: QueuesSlice, now: datetime) -> None:
    large = "x" * (CHUNK_BYTES + 1)
    results = await push(queues, QUEUE, now, large, 1, large, 2)
    assert {one.status for one in results} == {"queued"}
    assert await consume(queues, QUEUE, now) == [large, 1, large, 2]


async def test_a_repeated_push_tells_consumers_again(queues: QueuesSlice, now: datetime) -> None:
    """The server that stored the first one may have died before it told any consumer."""
    assert await pop(queues, QUEUE, now) is None
    tell = queues.news.tell
    queues.news.tell = lost  # type: ignore[method-assign,assignment]
    await push(queues, QUEUE, now, "once", ids=["once"])
    queues.news.tell = tell  # type: ignore[method-assign]
    assert [one.status for one in await push(queues, QUEUE, now, "once", ids=["once"])] == ["duplicate"]
    assert await consume(queues, QUEUE, now) == ["once"]


async def lost(partitions: object) -> None:
    """News that no process hears."""


async def test_messages_that_were_deleted_make_room_in_a_full_queue(queues: QueuesSlice, now: datetime) -> None:
    await queues.catalog.configure(QUEUE, now, {"maxSize": 2})
    results = await push(queues, QUEUE, now, 1, 2, 3, ids=["1", "2", "3"])
    assert [one.status for one in results] == ["queued", "queued", "failed"]
    await queues.messages.delete(UUID(results[0].partition_id), "1", now)
    assert [one.status for one in await push(queues, QUEUE, now, 3, 4)] == ["queued", "failed"]
