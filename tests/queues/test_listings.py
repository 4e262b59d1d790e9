"""What operators see of queues: figures by status, lags of consumer groups, states and rates. All of it is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from angelia.errors import NotFound
from angelia.queues.listings import QueueOverview
from angelia.queues.listings_api import GroupEntry, MessageFigures, PartitionsQuery, QueueDetails, QueuesQuery
from angelia.queues.model import QUEUE_MODE
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger, Tx
from queues.traffic import consume, pop, push, settle

ALL = QueuesQuery()


def figures(**counts: int) -> MessageFigures:
    return MessageFigures(**(dict.fromkeys(MessageFigures.__struct_fields__, 0) | counts))


async def totals(queues: QueuesSlice, now: datetime, queue: str = "orders") -> MessageFigures:
    return (await queues.listings.queue(queue, now)).totals


async def test_a_message_counts_by_what_became_of_it(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, *range(10))
    assert await totals(queues, now) == figures(total=10, pending=10)
    delivery = await pop(queues, "orders", now, batch=4)
    assert await totals(queues, now) == figures(total=10, pending=6, processing=4)
    await settle(queues, delivery, now, most=2)
    assert await totals(queues, now) == figures(total=10, pending=6, processing=2, completed=2)
    later = now + timedelta(seconds=301)
    assert await totals(queues, later) == figures(total=10, pending=8, completed=2)
    await settle(queues, await pop(queues, "orders", later, batch=1), later, "dlq")
    assert await totals(queues, later) == figures(total=10, pending=7, completed=2, dead_letter=1)
    await settle(queues, await pop(queues, "orders", later, batch=2), later, "failed")
    assert await totals(queues, later) == figures(total=10, pending=7, completed=2, dead_letter=1, failed=1)


async def test_a_message_is_completed_when_every_group_is_done_with_it(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 0, 1, 2)
    await consume(queues, "orders", now, "a")
    await consume(queues, "orders", now, "b", batch=1)
    assert await totals(queues, now) == figures(total=3, pending=2, completed=1)
    await consume(queues, "orders", now, "b")
    assert await totals(queues, now) == figures(total=3, completed=3)


async def test_messages_from_before_a_group_began_do_not_wait_for_it(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 0, 1, 2)
    await consume(queues, "orders", now, "old")
    await consume(queues, "orders", now, "new", mode="new")
    assert await totals(queues, now) == figures(total=3, completed=3)
    await queues.groups.seek("old", "orders", now - timedelta(days=1), now)
    assert await totals(queues, now) == figures(total=3, pending=3)


async def test_a_letter_that_was_put_back_waits_for_its_group_only(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 0, ids=["a"])
    for group in ("g", "h"):
        await settle(queues, await pop(queues, "orders", now, group), now, "dlq" if group == "g" else "completed")
    assert await totals(queues, now) == figures(total=1, dead_letter=1)
    (partition,) = (await queues.listings.queue("orders", now)).partitions
    await queues.letters.retry(partition.id, "a", now)
    assert await totals(queues, now) == figures(total=2, pending=1, completed=1)
    assert {one.name: one.total_lag for one in await queues.listings.groups(now)} == {"g": 1, "h": 0}
    await consume(queues, "orders", now, "g")
    assert await totals(queues, now) == figures(total=2, completed=2)


async def test_a_queue_is_shown_with_its_partitions_and_their_times(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now - timedelta(hours=2), 0, partition="b")
    await push(queues, "orders", now, 1, 2, partition="b")
    await push(queues, "orders", now, 1, partition="a")
    shown = await queues.listings.queue("orders", now)
    assert [(one.name, one.queue, one.stats.total) for one in shown.partitions] == [
        ("a", "orders", 1),
        ("b", "orders", 3),
    ]
    oldest = f"{now - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}"
    assert (shown.partitions[1].oldest_message or "").startswith(oldest)
    assert (shown.partitions[1].newest_message or "").startswith(f"{now:%Y-%m-%dT%H:%M:%S}")
    with pytest.raises(NotFound, match="Queue not found"):
        await queues.listings.queue("nothing", now)


async def test_queues_are_listed_newest_first_searched_and_paged(queues: QueuesSlice, now: datetime) -> None:
    for number, name in enumerate(("orders.new", "orders.old", "invoices")):
        await queues.catalog.configure(name, now + timedelta(seconds=number), {}, namespace="shop", task=name)
    await push(queues, "orders.old", now, 1, 2)
    await pop(queues, "orders.old", now, batch=1)
    listed = (await queues.listings.queues(ALL, now)).queues
    assert [one.name for one in listed] == ["invoices", "orders.old", "orders.new"]
    counts = listed[1].messages
    assert (counts.total, counts.pending, counts.processing, listed[1].partitions) == (2, 1, 1, 1)
    found = (await queues.listings.queues(QueuesQuery(search="ORDERS", limit=1, offset=1), now)).queues
    assert [one.name for one in found] == ["orders.new"]
    assert (await queues.listings.queues(QueuesQuery(task="invoices"), now)).queues[0].name == "invoices"
    (partition,) = (await queues.listings.partitions(PartitionsQuery(queue="orders.old"), now)).partitions
    assert (partition.queue, partition.stats.pending) == ("orders.old", 1)


async def test_namespaces_and_tasks_are_counted(queues: QueuesSlice, now: datetime) -> None:
    for name, namespace, task in (("a", "x", "t"), ("b", "x", "u"), ("c", "y", "u")):
        await queues.catalog.configure(name, now, {}, namespace=namespace, task=task)
        await push(queues, name, now, 1, 2)
    await consume(queues, "a", now)
    namespaces = {one.namespace: one for one in (await queues.listings.namespaces(now)).namespaces}
    assert (namespaces["x"].queues, namespaces["x"].partitions) == (2, 2)
    assert (namespaces["x"].messages.total, namespaces["x"].messages.pending) == (4, 2)
    tasks = {one.task: one.messages.pending for one in (await queues.listings.tasks(now)).tasks}
    assert tasks == {"t": 0, "u": 4}


async def test_the_overview_adds_all_queues_up(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "a", now - timedelta(seconds=40), 1, 2, 3)
    await push(queues, "b", now, 1)
    await consume(queues, "a", now, "g", batch=1)
    await consume(queues, "b", now, "g")
    await queues.activity.flush(now)
    await queues.listings.refresh(now)
    seen = await queues.listings.overview(now)
    assert (seen.queues, seen.partitions, seen.messages) == (2, 2, figures(total=4, pending=2, completed=2))
    assert (seen.lag.time.max, seen.lag.time.min, seen.lag.time.median) == (40, 0, 20)
    assert (seen.lag.offset.max, seen.lag.offset.avg) == (2, 1)
    assert seen.throughput.ingested_per_second == round(4 / (60 + now.second + now.microsecond / 1e6), 2)
    assert seen.throughput.processed_per_second > 0


async def test_the_depth_is_what_a_group_has_still_to_consume(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 1, 2, 3, partition="a")
    await push(queues, "orders", now, 1, partition="b")
    await consume(queues, "orders", now, "g", partition="b")
    await consume(queues, "orders", now, "g", partition="a", batch=1)
    depth = await queues.listings.depth("orders", "g")
    assert (depth.pending, depth.partitions_pending, depth.effective_pending) == (2, 1, 2)
    assert [(one.partition, one.pending) for one in depth.partitions] == [("a", 2)]
    assert (await queues.listings.depth("orders", QUEUE_MODE)).pending == 4


async def test_groups_are_listed_with_lags_members_and_where_they_began(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now - timedelta(seconds=400), *range(3), partition="a")
    await push(queues, "orders", now, *range(2), partition="b")
    await consume(queues, "orders", now, "done", partitions=2)
    await pop(queues, "orders", now, "at work", partition="a")
    await consume(queues, "orders", now, "late", mode="new")
    groups = {one.name: one for one in await queues.listings.groups(now)}
    assert (groups["done"].total_lag, groups["done"].state, groups["done"].members) == (0, "Stable", 0)
    at_work = groups["at work"]
    assert (at_work.total_lag, at_work.max_time_lag, at_work.partitions_with_lag) == (5, 400, 2)
    assert (at_work.members, at_work.state, at_work.topics) == (1, "Lagging", ["orders"])
    late = groups["late"]
    assert (late.total_lag, late.state, late.subscription_mode) == (0, "Dead", "new")


async def test_a_group_is_shown_by_queue_and_partition(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "a", now - timedelta(seconds=30), 1, 2)
    await push(queues, "b", now, 1)
    delivery = await pop(queues, "a", now, "g", consumer="worker 1")
    await settle(queues, delivery, now, most=1)
    await consume(queues, "b", now, "g")
    shown = await queues.listings.group("g", now)
    (a,), (b,) = shown["a"].partitions, shown["b"].partitions
    assert (a.partition, a.worker_id, a.lease_active, a.offset_lag, a.time_lag_seconds) == (
        "Default",
        "worker 1",
        True,
        1,
        30,
    )
    assert (a.total_consumed, b.total_consumed, b.offset_lag, b.worker_id) == (1, 1, 0, None)
    assert a.last_consumed_at is not None


async def test_partitions_that_are_behind_are_found_the_oldest_first(queues: QueuesSlice, now: datetime) -> None:
    for minutes, partition in ((5, "a"), (90, "b"), (200, "c")):
        await push(queues, "orders", now - timedelta(minutes=minutes), 1, partition=partition)
    await pop(queues, "orders", now - timedelta(minutes=199), "g", partition="c", batch=1)
    found = await queues.listings.lagging(3600, now)
    assert [(one.partition_name, one.time_lag_seconds, one.lag_hours) for one in found] == [
        ("c", 12_000, 3.33),
        ("b", 5_400, 1.5),
    ]
    assert [one.partition_name for one in await queues.listings.lagging(0, now)] == ["c", "b", "a"]


async def state(queues: QueuesSlice, now: datetime) -> str:
    (one,) = await queues.listings.overviews(now, name="orders")
    return one.state


async def test_a_queue_is_behind_when_its_oldest_message_waits_and_more_come_in(
    queues: QueuesSlice, now: datetime
) -> None:
    await push(queues, "orders", now - timedelta(seconds=50), 1, 2)
    await consume(queues, "orders", now, batch=1)
    await queues.activity.flush(now)
    assert await state(queues, now) == "ok"
    assert await state(queues, now + timedelta(seconds=20)) == "behind"
    (one,) = await queues.listings.overviews(now + timedelta(seconds=20), name="orders")
    assert (one.lag_seconds, one.queue["pending"], one.queue["leased"]) == (70, 1, 0)


async def test_a_queue_that_settles_more_than_comes_in_is_not_behind(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now - timedelta(minutes=20), *range(10))
    await queues.activity.flush(now - timedelta(minutes=20))
    await consume(queues, "orders", now, batch=5)
    await queues.activity.flush(now)
    assert await state(queues, now) == "ok"


async def test_a_queue_is_stuck_when_nothing_was_settled_for_five_minutes(queues: QueuesSlice, now: datetime) -> None:
    before = now - timedelta(minutes=10)
    await push(queues, "orders", before, 1, 2)
    await queues.activity.flush(before)
    assert await state(queues, now) == "stuck"
    await consume(queues, "orders", now, batch=1)
    await queues.activity.flush(now)
    assert await state(queues, now) == "ok"


async def test_a_queue_is_paused_while_pops_are(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 1)
    await queues.maintenance.pause_pops(now)
    assert await state(queues, now) == "paused"
    await queues.maintenance.resume_pops(now)
    assert await state(queues, now) == "ok"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has each statement that a listing asks the ledger."""
    statements: list[str] = []
    reading = Ledger.reading

    @asynccontextmanager
    async def noted(ledger: Ledger) -> AsyncIterator[Noted]:
        async with reading(ledger) as tx:
            yield Noted(tx, statements)

    monkeypatch.setattr(Ledger, "reading", noted)
    return statements


class Noted:
    """A connection whose statements are noted."""

    def __init__(self, tx: Tx, statements: list[str]) -> None:
        self._tx = tx
        self._statements = statements

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def ask(query: str, *args: object) -> Any:
            self._statements.append(query)
            return await getattr(self._tx, name)(query, *args)

        return ask


async def test_ten_thousand_partitions_are_counted_by_as_many_statements_as_one(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection, asked: list[str]
) -> None:
    async def listed() -> tuple[QueueDetails, QueueOverview, list[GroupEntry], int]:
        """What is listed, and how many statements that took."""
        asked.clear()
        shown = await queues.listings.queue("orders", now)
        (one,) = await queues.listings.overviews(now, name="orders")
        return shown, one, await queues.listings.groups(now), len(asked)

    names = [f"group {number}" for number in range(4)]
    await push(queues, "orders", now, 0)
    await consume(queues, "orders", now, names[0])
    *_, of_one = await listed()
    for group in names[1:]:
        await consume(queues, "orders", now, group)
    await connection.execute(
        """
        INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
        SELECT gen_random_uuid(), queue_no, 'p' || n, $1 FROM queues, generate_series(1, 9999) AS n
        """,
        now,
    )
    await connection.execute(
        """
        INSERT INTO queue_chunks (
          partition_no, end_position, count, stored_at, created_at, first_id, transaction_ids, ends, body
        )
        SELECT partition_no, 2, 2, $1, $1, gen_random_uuid(), '{a,b}', '{1,2}', '11'
        FROM queue_partitions WHERE name LIKE 'p%'
        """,
        now,
    )
    await connection.execute("ANALYZE")
    shown, one, groups, statements = await listed()
    assert statements == of_one
    assert shown.totals == figures(total=19_999, pending=19_998, completed=1)
    assert one.queue["pending"] == 19_998
    assert {group.name: group.total_lag for group in groups} == dict.fromkeys(names, 19_998)


async def test_a_group_exists_in_any_queue_also_in_one_without_partitions(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await push(queues, "orders", now, 1)
    await consume(queues, "orders", now, "g")
    await connection.execute("DELETE FROM queue_partitions")
    assert (await queues.listings.group("g", now), await queues.listings.group_exists("g")) == ({}, True)
    assert await queues.listings.group_exists("nobody") is False
