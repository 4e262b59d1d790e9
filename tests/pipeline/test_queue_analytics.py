"""What happened in queues is counted by hour, and a day that was counted stays as it was."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.pipeline.analytics.wait_classes import BOUNDS, CLASSES, added, percentile_ms
from angelia.pipeline.jobs.analytics import analytics
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.tables import QUEUE_DAYS, QUEUE_HOURS, TOP_QUEUES, Table
from angelia.queues.activity import WAITED_SECONDS, Activity
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at
from queue_rows import execute, made, opened, pushed, retained
from receipt_rows import NOW

YESTERDAY = datetime(2026, 11, 15, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def rows(objects: Objects, table: Table = QUEUE_HOURS) -> list[dict[str, Any]]:
    return sorted(small_tables.rows(objects, table), key=lambda row: (row["day"], row.get("hour", 0)))


async def happened(
    database_url: str, queue: str, at: datetime, *, count: int = 0, popped: int = 0, waited: float = 0.1, dead: int = 0
) -> None:
    """The server counts pushes and deliveries in a minute, as it does when it serves."""
    async with opened(database_url) as ledger:
        activity = Activity(ledger)
        async with ledger.reading() as tx:
            queue_no = await tx.fetchval("SELECT queue_no FROM queues WHERE name = $1", queue)
        activity.pushed(queue_no, count, count * 200)
        if popped:
            activity.popped(queue_no, popped, waited)
        activity.settled(queue_no, popped - dead, dead, dead)
        await activity.flush(at)


async def test_an_hour_has_what_was_pushed_delivered_and_evicted_and_how_long_it_waited(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await made(database_url, "orders", maxWaitTimeSeconds=3600, archiveEnabled=False)
    await made(database_url, "mail", encryptionEnabled=True)
    await happened(database_url, "orders", YESTERDAY + 9 * HOUR, count=6, popped=3)
    await happened(database_url, "mail", YESTERDAY + 9 * HOUR + MINUTE, count=2, popped=1, waited=7.5, dead=1)
    await happened(database_url, "orders", YESTERDAY + 23 * HOUR, popped=2, waited=40.0)
    await happened(database_url, "orders", YESTERDAY + 24 * HOUR, count=100)  # today is not over
    await pushed(database_url, "orders", ["one", "two", "three"], YESTERDAY + 9 * HOUR)
    await pushed(database_url, "mail", ["sealed"], YESTERDAY + 9 * HOUR, key_id=uuid.uuid4())
    await retained(database_url, YESTERDAY + 11 * HOUR)  # evicts
    report = analytics(work())
    assert report.figures["queues"] == {"days": 1, "pushed": 8, "completed": 5, "dead": 1, "evicted": 3}
    assert report.summary == "0 days, 0 receipts; queues: 1 days, 8 messages"
    nine, eleven, last = rows(objects)
    counted = ("hour", "queues", "pushed", "pushed_bytes", "popped", "completed", "failed", "dead", "evicted")
    assert [nine[name] for name in counted] == [9, 2, 8, 1600, 4, 3, 1, 1, 0]
    assert [eleven[name] for name in counted] == [11, 1, 0, 0, 0, 0, 0, 0, 3]
    assert [last[name] for name in counted] == [23, 1, 0, 0, 2, 2, 0, 0, 0]
    assert (nine["eviction_rate"], eleven["eviction_rate"]) == (0.0, None)
    assert (nine["stored"], nine["encrypted"], eleven["stored"]) == (4, 1, 0)
    assert 50 < nine["wait_p50_ms"] <= 250
    assert (nine["wait_p99_ms"], nine["wait_max_ms"], last["wait_p50_ms"]) == (7500, 7500, 35_000)
    assert (nine["evicted_p50_ms"], eleven["wait_p50_ms"]) == (None, None)
    assert 3_600_000 < eleven["evicted_p50_ms"] < eleven["evicted_p99_ms"] == 7_200_000
    [day] = rows(objects, QUEUE_DAYS)
    assert (day["queues"], day["all_queues"], day["encrypted_queues"], day["computed_at"]) == (2, 2, 1, NOW)
    top = {row["queue"]: row for row in rows(objects, TOP_QUEUES)}
    assert [top["orders"][name] for name in ("pushed", "popped", "evicted", "stored", "encrypted")] == [6, 5, 3, 3, 0]
    assert [top["mail"][name] for name in ("pushed", "dead", "stored", "encrypted")] == [2, 1, 1, 1]
    again = work(now=NOW + HOUR)
    del again.__dict__["spark"]
    assert analytics(again).summary == "nothing changed: 0 days, 0 receipts"
    assert "spark" not in again.__dict__


async def test_a_day_has_what_retention_removed_and_about_how_many_bytes_that_gave_back(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await made(database_url, "orders", archiveEnabled=False, retentionSeconds=3600)
    await happened(database_url, "orders", YESTERDAY, count=3)
    await pushed(database_url, "orders", ["one", "two", "three"], YESTERDAY)
    await retained(database_url, YESTERDAY + 2 * HOUR)
    analytics(work())
    [day] = rows(objects, QUEUE_DAYS)
    assert (day["removed_expired"], day["removed_completed"], day["removed_dead_letters"]) == (3, 0, 0)
    assert (day["reclaimed_bytes"], day["events"]) == (600, 6)


async def test_what_was_counted_stays_when_the_ledger_forgets_and_grows_when_more_is_found(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await made(database_url, "orders")
    for ago in range(3):
        await happened(database_url, "orders", YESTERDAY - ago * 24 * HOUR, count=5)
    with pytest.raises(Died):
        analytics(work(step=dies_at("queues counted")))
    assert analytics(work(dry_run=True)).figures["queue_days"] == 3
    assert analytics(work(since=YESTERDAY)).figures["queues"]["days"] == 1
    assert analytics(work()).figures["queues"]["days"] == 2
    counted = rows(objects)
    await execute(database_url, "DELETE FROM queue_minutes")
    assert analytics(work()).figures["queues"]["days"] == 0
    assert (rows(objects), len(rows(objects, QUEUE_DAYS))) == (counted, 3)
    await happened(database_url, "orders", YESTERDAY - 24 * HOUR, count=7)
    await execute(database_url, "DELETE FROM queues")
    assert analytics(work()).figures["queues"] == {"days": 1, "pushed": 7, "completed": 0, "dead": 0, "evicted": 0}
    assert [row["pushed"] for row in rows(objects)] == [5, 7, 5]
    assert [row["queue"] for row in rows(objects, TOP_QUEUES)] == ["orders", None, "orders"]


def test_the_classes_of_waiting_times_are_those_that_the_server_counts() -> None:
    assert BOUNDS == WAITED_SECONDS


@given(
    st.lists(st.floats(min_value=0.001, max_value=200_000), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 1])
)
def test_a_percentile_lies_in_the_class_of_the_exact_one(waits: list[float], share: float) -> None:
    classes = [0] * CLASSES
    for wait in waits:
        classes[_class(wait)] += 1
    exact = sorted(waits)[max(1, -int(-share * len(waits) // 1)) - 1]
    found = percentile_ms(classes, share, max(waits) * 1000)
    assert found is not None
    assert _class(found / 1000 - 1e-6) <= _class(exact) <= _class(found / 1000 + 1e-6)
    assert found <= max(waits) * 1000 + 1e-3
    assert percentile_ms(added([]), share, 0) is None


def _class(seconds: float) -> int:
    return sum(seconds > bound for bound in BOUNDS)
