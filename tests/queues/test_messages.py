"""Single messages: listed with their status, shown, deleted, and read without a cursor or lease."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from angelia.errors import Conflict, InvalidArgument, NotFound
from angelia.queues import messages, messages_store
from angelia.queues.messages import MessageFilter, ReadPlace, ShownMessage
from angelia.queues.messages_tail import WaitingTail
from angelia.queues.slice import QueuesSlice
from queues.conftest import Another, queue_process
from queues.traffic import consume, pop, push, settle, taken
from statement_plans import generic_plan, unbounded

HOUR = timedelta(hours=1)


def last_hour(now: datetime, **chosen: str) -> MessageFilter:
    return MessageFilter(**{"queue": "orders", "since": now - HOUR, "until": now, **chosen})


async def listed(queues: QueuesSlice, now: datetime, limit: int = 100, offset: int = 0, **chosen: str) -> list[str]:
    """The transaction ids of a list."""
    found = await queues.messages.page(last_hour(now, **chosen), limit, offset, now)
    return [one.transaction_id for one in found.messages]


def data(found: list[ShownMessage]) -> list[object]:
    return [msgspec.json.decode(one.data) for one in found]


async def test_messages_are_listed_newest_first_in_pages(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now - timedelta(minutes=2), 1, 2, 3, ids=["a", "b", "c"])
    await push(queues, "orders", now - timedelta(minutes=1), 4, partition="p", ids=["d"])
    await push(queues, "orders", now, 5, 6, ids=["e", "f"])
    assert await listed(queues, now) == ["f", "e", "d", "c", "b", "a"]
    assert await listed(queues, now, 2, 1) == ["e", "d"]
    assert await listed(queues, now, 3, 3) == ["c", "b", "a"]
    assert await listed(queues, now, partition="p") == ["d"]
    assert await listed(queues, now, queue="other") == []
    assert await listed(queues, now - timedelta(seconds=30)) == ["d", "c", "b", "a"]


async def test_messages_are_listed_by_status(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, *range(5), ids=list("abcde"))
    delivery = await pop(queues, "orders", now, batch=3)
    await settle(queues, delivery, now, most=1)
    assert delivery is not None
    delivery.messages = delivery.messages[1:]
    await settle(queues, delivery, now, "dlq", most=1)
    for status, expected in (
        ("completed", ["a"]),
        ("dead_letter", ["b"]),
        ("processing", ["c"]),
        ("pending", ["e", "d"]),
        ("evicted", []),
    ):
        assert await listed(queues, now, status=status) == expected
    found = await queues.messages.page(last_hour(now), 10, 0, now)
    assert {one.transaction_id: one.status for one in found.messages} == {
        "a": "completed",
        "b": "dead_letter",
        "c": "processing",
        "d": "pending",
        "e": "pending",
    }


async def test_a_list_says_what_groups_have_done_with_each_message(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 1, ids=["a"])
    assert (await queues.messages.page(last_hour(now), 10, 0, now)).mode.type == "none"
    await consume(queues, "orders", now, "g")
    await pop(queues, "orders", now, "h")
    found = await queues.messages.page(last_hour(now), 10, 0, now)
    assert (found.mode.has_queue_mode, found.mode.bus_groups_count, found.mode.type) == (False, 2, "bus")
    (one,) = found.messages
    assert (one.bus_status.consumed_by, one.bus_status.total_groups, one.queue_status) == (1, 2, None)
    assert (one.status, one.queue_path, one.queue_priority) == ("processing", "orders/Default", 0)
    assert one.lease_expires_at is not None
    await consume(queues, "orders", now)
    found = await queues.messages.page(last_hour(now), 10, 0, now)
    assert (found.mode.type, found.messages[0].queue_status) == ("hybrid", "completed")


async def test_a_message_is_shown_with_its_payload_and_its_readers(queues: QueuesSlice, now: datetime) -> None:
    (pushed,) = await push(queues, "orders", now, {"n": 1}, ids=["a/b c"])
    partition = UUID(pushed.partition_id)
    await settle(queues, await pop(queues, "orders", now, "g"), now, "failed", "not now")
    shown = await queues.messages.show(partition, "a/b c", now)
    assert (msgspec.json.decode(shown.payload), shown.is_encrypted, shown.retry_count) == ({"n": 1}, False, 1)
    assert (shown.id, shown.error_message, shown.queue_config["leaseTime"]) == (UUID(pushed.message_id), None, 300)
    assert [(one.name, one.consumed) for one in shown.consumer_groups] == [("g", False)]
    later = now + timedelta(seconds=10)
    await settle(queues, await pop(queues, "orders", later, "g"), later, "dlq", "never")
    shown = await queues.messages.show(partition, "a/b c", later)
    assert (shown.status, shown.error_message, shown.retry_count) == ("dead_letter", "never", 1)
    for place in ((partition, "unknown"), (uuid4(), "a/b c")):
        with pytest.raises(NotFound, match="Message not found"):
            await queues.messages.show(*place, now)


async def test_a_letter_whose_message_was_removed_is_still_shown(queues: QueuesSlice, now: datetime) -> None:
    (pushed,) = await push(queues, "orders", now, 1, ids=["a"])
    await settle(queues, await pop(queues, "orders", now, "g"), now, "dlq", "never")
    await queues.groups.clear("orders", None, now)
    shown = await queues.messages.show(UUID(pushed.partition_id), "a", now)
    assert (shown.status, shown.error_message, bytes(shown.payload)) == ("dead_letter", "never", b"1")


async def test_payloads_of_an_encrypted_queue_are_shown_decrypted(queues: QueuesSlice, now: datetime) -> None:
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    (pushed, _) = await push(queues, "orders", now, "secret", "other", ids=["a", "b"])
    shown = await queues.messages.show(UUID(pushed.partition_id), "a", now)
    assert (bytes(shown.payload), shown.is_encrypted) == (b'"secret"', True)
    found, _ = await queues.messages.read("orders", None, ReadPlace(), 10, 0.0)
    assert data(found) == ["secret", "other"]


async def test_payloads_whose_key_is_refused_are_null_and_the_others_are_shown(
    queues: QueuesSlice, now: datetime, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    await push(queues, "orders", now, "plain")
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    (pushed,) = await push(queues, "orders", now, "secret", ids=["a"])
    elsewhere = tmp_path / "another master key"
    elsewhere.mkdir()
    async with queue_process(database_url, redis_url, elsewhere) as stranger:
        sees = stranger.slices.queues.messages
        assert data((await sees.read("orders", None, ReadPlace(), 10, 0.0))[0]) == ["plain", None]
        assert bytes((await sees.show(UUID(pushed.partition_id), "a", now)).payload) == b"null"


async def test_a_deleted_message_is_delivered_to_nobody_and_its_id_is_free(queues: QueuesSlice, now: datetime) -> None:
    first, *_ = await push(queues, "orders", now, 1, 2, 3, ids=["a", "b", "c"])
    partition = UUID(first.partition_id)
    await queues.messages.delete(partition, "b", now)
    with pytest.raises(NotFound, match="Message not found"):
        await queues.messages.delete(partition, "b", now)
    assert await consume(queues, "orders", now) == [1, 3]
    assert (await push(queues, "orders", now, 4, ids=["b"]))[0].status == "queued"
    assert await taken(queues, "orders", now) == [4]
    assert await listed(queues, now) == ["b", "c", "a"]


async def test_a_message_under_a_lease_is_not_deleted(queues: QueuesSlice, now: datetime) -> None:
    (pushed,) = await push(queues, "orders", now, 1, ids=["a"])
    delivery = await pop(queues, "orders", now)
    with pytest.raises(Conflict, match="being processed"):
        await queues.messages.delete(UUID(pushed.partition_id), "a", now)
    await settle(queues, delivery, now)
    await queues.messages.delete(UUID(pushed.partition_id), "a", now)


async def test_a_letter_goes_with_its_message(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    (pushed,) = await push(queues, "orders", now, 1, ids=["a"])
    partition = UUID(pushed.partition_id)
    await settle(queues, await pop(queues, "orders", now), now, "dlq")
    await queues.letters.retry(partition, "a", now)
    await settle(queues, await pop(queues, "orders", now), now, "dlq")
    await queues.messages.delete(partition, "a", now, by="alice")
    assert await connection.fetchval("SELECT count(*) FROM queue_dead_letters") == 0
    assert (await queues.listings.queue("orders", now)).totals.total == 0
    events = await connection.fetch("SELECT actor_nhi FROM audit_events WHERE event_type = 'queue_message_deleted'")
    assert [row["actor_nhi"] for row in events] == ["alice"]


# Reading without a cursor.


async def test_messages_are_read_in_the_order_of_their_times_page_by_page(queues: QueuesSlice, now: datetime) -> None:
    for number in range(7):
        await push(queues, "orders", now + timedelta(seconds=number), number, partition=f"p{number % 3}")
    place, read = ReadPlace(), []
    for _ in range(4):
        found, place = await queues.messages.read("orders", None, place, 2, 0.0)
        read += data(found)
        place = ReadPlace.parse(place.text())
    assert read == list(range(7))
    found, place = await queues.messages.read("orders", None, place, 2, 0.0)
    assert found == []
    await push(queues, "orders", now + timedelta(seconds=8), 7, partition="p9")
    assert data((await queues.messages.read("orders", None, place, 2, 0.0))[0]) == [7]
    assert await taken(queues, "orders", now + timedelta(seconds=9), partitions=4) != [], "no cursor was moved"


async def test_a_message_that_was_committed_late_is_read_nevertheless(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 1, partition="a")
    found, place = await queues.messages.read("orders", None, ReadPlace(), 10, 0.0)
    assert data(found) == [1]
    await push(queues, "orders", now - timedelta(seconds=5), 0, partition="b")
    found, place = await queues.messages.read("orders", None, place, 10, 0.0)
    assert data(found) == [0]
    assert (await queues.messages.read("orders", None, place, 10, 0.0))[0] == []


async def test_many_partitions_at_once_are_read_once_each(queues: QueuesSlice, now: datetime) -> None:
    for number in range(400):
        await push(queues, "orders", now, number, partition=f"p{number}")
    place, read = ReadPlace(), []
    while True:
        found, place = await queues.messages.read("orders", None, place, 150, 0.0)
        if not found:
            break
        read += data(found)
    assert sorted(map(int, map(str, read))) == list(range(400))


async def test_one_partition_is_read_alone(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 1, 2, partition="a")
    await push(queues, "orders", now, 3, partition="b")
    found, place = await queues.messages.read("orders", "a", ReadPlace(), 1, 0.0)
    assert data(found) == [1]
    assert data((await queues.messages.read("orders", "a", place, 10, 0.0))[0]) == [2]


async def test_the_newest_messages_are_read_and_then_those_that_come(queues: QueuesSlice, now: datetime) -> None:
    for number in range(6):
        await push(queues, "orders", now + timedelta(milliseconds=number), number, partition=f"p{number}")
    found, place = await queues.messages.newest("orders", None, 2)
    assert data(found) == [4, 5]
    assert (await queues.messages.read("orders", None, place, 10, 0.0))[0] == []
    await push(queues, "orders", now + timedelta(seconds=1), 6, partition="p0")
    assert data((await queues.messages.read("orders", None, place, 10, 0.0))[0]) == [6]
    found, place = await queues.messages.newest("orders", None, 0)
    assert (found, (await queues.messages.read("orders", None, place, 10, 0.0))[0]) == ([], [])


async def test_a_reader_waits_for_the_first_message(queues: QueuesSlice, another: Another, now: datetime) -> None:
    other = await another()
    await queues.catalog.configure("orders", now, {})
    _, place = await queues.messages.newest("orders", None, 0)
    await push(other, "orders", now, 1)
    assert data((await queues.messages.read("orders", None, place, 10, 30.0))[0]) == [1]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[float]:
    """Has an entry for each time that a reader waits for news."""
    begun: asyncio.Queue[float] = asyncio.Queue()
    wait = WaitingTail.wait

    async def noted(tail: WaitingTail, seconds: float) -> list[int]:
        begun.put_nowait(seconds)
        return await wait(tail, seconds)

    monkeypatch.setattr(WaitingTail, "wait", noted)
    return begun


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Has an entry for each look at all partitions of a queue."""
    begun: list[object] = []
    after = messages_store.after

    async def noted(*args: Any) -> Any:
        begun.append(args)
        return await after(*args)

    monkeypatch.setattr(messages_store, "after", noted)
    return begun


@pytest.fixture
def no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only news wakes a reader."""
    monkeypatch.setattr(messages, "RECHECK_SECONDS", 60.0)


async def hears(queues: QueuesSlice) -> None:
    """Returns when a process hears the news of the others."""
    while await queues.news.mark() is None:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("no_recheck")
async def test_a_waiting_reader_is_woken_by_a_push_in_its_own_and_in_another_process(
    queues: QueuesSlice, another: Another, now: datetime, waits: asyncio.Queue[float]
) -> None:
    await push(queues, "orders", now, 0, partition="a")
    _, place = await queues.messages.newest("orders", None, 0)
    await hears(queues)
    async with asyncio.timeout(20):
        for number, process in enumerate((queues, await another(), queues), 1):
            reading = asyncio.create_task(queues.messages.read("orders", None, place, 10, 50.0))
            await waits.get()
            await push(process, "orders", now, number, partition=f"p{number}")
            found, place = await reading
            assert data(found) == [number]


@pytest.mark.usefixtures("no_recheck")
async def test_a_reader_is_woken_by_a_push_between_its_look_and_its_wait(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queues.catalog.configure("orders", now, {})
    after = messages_store.after

    async def push_afterwards(*args: Any) -> Any:
        monkeypatch.setattr(messages_store, "after", after)
        read = await after(*args)
        await push(queues, "orders", now, 1)
        return read

    monkeypatch.setattr(messages_store, "after", push_afterwards)
    async with asyncio.timeout(20):
        assert data((await queues.messages.read("orders", None, ReadPlace(), 10, 50.0))[0]) == [1]


@pytest.mark.usefixtures("no_recheck")
async def test_a_reader_of_one_partition_is_not_woken_by_others(
    queues: QueuesSlice, now: datetime, waits: asyncio.Queue[float], looks: list[object]
) -> None:
    await queues.catalog.configure("orders", now, {})
    reading = asyncio.create_task(queues.messages.read("orders", "a", ReadPlace(), 10, 50.0))
    await waits.get()
    await push(queues, "orders", now, 1, partition="b")
    await push(queues, "other", now, 2, partition="a")
    await push(queues, "orders", now, 3, partition="a")
    async with asyncio.timeout(20):
        assert data((await reading)[0]) == [3]
    assert len(looks) == 2


@pytest.mark.usefixtures("no_recheck")
async def test_a_lease_that_ends_makes_a_reader_look_at_its_partition_only(
    queues: QueuesSlice, now: datetime, waits: asyncio.Queue[float], looks: list[object]
) -> None:
    await push(queues, "orders", now, 1, 2)
    _, place = await queues.messages.newest("orders", None, 0)
    reading = asyncio.create_task(queues.messages.read("orders", None, place, 10, 50.0))
    await waits.get()
    await consume(queues, "orders", now, "g", batch=1)
    async with asyncio.timeout(20):
        await waits.get()
    assert len(looks) == 1
    reading.cancel()


async def test_a_reader_that_waits_does_not_look_at_all_partitions_every_second(
    queues: QueuesSlice, now: datetime, looks: list[object]
) -> None:
    await queues.catalog.configure("orders", now, {})
    assert (await queues.messages.read("orders", None, ReadPlace(), 10, 2.2))[0] == []
    assert len(looks) == 2, "at its beginning and at its end"


async def test_a_reader_sees_what_no_news_told_of_after_a_while(
    queues: QueuesSlice, now: datetime, waits: asyncio.Queue[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    await queues.catalog.configure("orders", now, {})
    monkeypatch.setattr(messages, "RECHECK_SECONDS", 0.1)
    reading = asyncio.create_task(queues.messages.read("orders", None, ReadPlace(), 10, 50.0))
    await waits.get()
    monkeypatch.setattr(queues.news, "_tell", lambda told: None)
    await push(queues, "orders", now, 1)
    async with asyncio.timeout(20):
        assert data((await reading)[0]) == [1]


async def test_a_queue_that_was_deleted_and_made_anew_is_read_on(
    queues: QueuesSlice, now: datetime, waits: asyncio.Queue[float]
) -> None:
    await queues.catalog.configure("orders", now, {})
    reading = asyncio.create_task(queues.messages.read("orders", None, ReadPlace(), 10, 50.0))
    await waits.get()
    await queues.groups.delete_queue("orders", now)
    await push(queues, "orders", now, 1)
    async with asyncio.timeout(20):
        assert data((await reading)[0]) == [1]


@pytest.mark.usefixtures("no_recheck")
async def test_a_reader_ends_when_the_server_stops(
    database_url: str, redis_url: str, tmp_path: Path, now: datetime, waits: asyncio.Queue[float]
) -> None:
    async with queue_process(database_url, redis_url, tmp_path) as process:
        queues = process.slices.queues
        await queues.catalog.configure("orders", now, {})
        reading = asyncio.create_task(queues.messages.read("orders", None, ReadPlace(), 10, 50.0))
        await waits.get()
        process.stores.wake.stop()
        async with asyncio.timeout(20):
            assert (await reading)[0] == []


async def test_a_look_for_news_reads_no_whole_table(connection: asyncpg.Connection) -> None:
    plan = await generic_plan(connection, messages_store.SQL["any_after"])
    assert unbounded(plan) == [], plan


async def test_a_page_ends_before_its_payloads_grow_too_large(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, *["x" * 3_000_000] * 4)
    found, place = await queues.messages.read("orders", None, ReadPlace(), 100, 0.0)
    assert len(found) == 3
    assert len((await queues.messages.read("orders", None, place, 100, 0.0))[0]) == 1


@pytest.mark.parametrize("text", ["", "!", "AAAA", "ä", "kw"])
def test_a_place_that_was_not_given_out_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="no place"):
        ReadPlace.parse(text)
