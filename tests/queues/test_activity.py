"""Counts by the minute: gathered in process, added up in the ledger by all processes, kept for a week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from angelia.errors import InvalidArgument, Unavailable
from angelia.queues.activity import KEPT, WAITED_SECONDS
from angelia.queues.slice import QueuesSlice
from angelia.queues.statistics import CountedSpan
from angelia.stores.disk import Disk
from queues.conftest import Another
from queues.traffic import consume, pop, push, settle

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def span(since: datetime, until: datetime, **chosen: str) -> CountedSpan:
    return CountedSpan(since=since, until=until, **chosen)


async def test_what_happens_is_added_to_the_minute_by_every_process(
    queues: QueuesSlice, another: Another, connection: asyncpg.Connection
) -> None:
    other = await another()
    at = NOON + timedelta(seconds=10)
    await push(queues, "orders", NOON, 1, 2, 3, 4)
    await consume(queues, "orders", at, batch=2)
    await settle(queues, await pop(queues, "orders", at, batch=1), at, "dlq")
    await settle(queues, await pop(queues, "orders", at, batch=1), at, "failed")
    await queues.activity.flush(at)
    await push(other, "orders", at, 5)
    await other.activity.flush(at + timedelta(seconds=20))
    (row,) = await connection.fetch("SELECT * FROM queue_minutes")
    assert (row["minute"], row["pushed"], row["popped"]) == (NOON, 5, 4)
    assert (row["completed"], row["failed"], row["dead"], row["evicted"]) == (2, 1, 1, 0)
    assert (row["waited_ms"], row["waited_most_ms"]) == (40_000, 10_000)
    assert sum(row["waited"]) == 4
    assert row["waited"][WAITED_SECONDS.index(30.0)] == 4, "they waited for 5 to 30 seconds"


async def test_a_message_that_is_acknowledged_at_delivery_counts_as_completed(
    queues: QueuesSlice, connection: asyncpg.Connection
) -> None:
    await push(queues, "orders", NOON, 1, 2)
    await pop(queues, "orders", NOON, auto_ack=True)
    await queues.activity.flush(NOON)
    assert await connection.fetchval("SELECT completed FROM queue_minutes") == 2


async def test_counts_that_could_not_be_added_are_added_later(
    queues: QueuesSlice, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(queues, "orders", NOON, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(Disk, "check", _full)
        with pytest.raises(Unavailable):
            await queues.activity.flush(NOON)
    await push(queues, "orders", NOON, 3)
    await queues.activity.flush(NOON)
    assert await connection.fetchval("SELECT pushed FROM queue_minutes") == 3


def _full(disk: Disk) -> None:
    raise Unavailable("the disk is full")


async def test_old_counts_are_deleted(queues: QueuesSlice, connection: asyncpg.Connection) -> None:
    for at in (NOON, NOON + timedelta(days=1)):
        await push(queues, "orders", at, 1)
        await queues.activity.flush(at)
    assert await queues.activity.delete_old(NOON + KEPT + timedelta(hours=1)) is False
    assert await connection.fetchval("SELECT count(*) FROM queue_minutes") == 1
    assert await connection.fetchval("SELECT count(*) FROM queue_workers") == 1


async def test_analytics_show_each_step_also_those_without_messages(queues: QueuesSlice) -> None:
    for hours, messages in ((0, 2), (2, 3)):
        at = NOON + timedelta(hours=hours)
        await push(queues, "orders", at, *range(messages))
        await queues.activity.flush(at)
    await push(queues, "other", NOON, 1)
    await queues.activity.flush(NOON)
    shown = await queues.statistics.analytics(span(NOON, NOON + timedelta(hours=3), queue="orders"), "hour")
    assert [one.messages for one in shown.data_points] == [2, 0, 3, 0]
    assert shown.data_points[1].timestamp == "2026-03-04T13:00:00.000Z"
    days = await queues.statistics.analytics(span(NOON, NOON + timedelta(hours=3)), "day")
    assert [one.messages for one in days.data_points] == [6]
    with pytest.raises(InvalidArgument, match="interval"):
        await queues.statistics.analytics(span(NOON, NOON), "week")
    with pytest.raises(InvalidArgument, match="too many steps"):
        await queues.statistics.analytics(span(NOON, NOON + timedelta(days=300)), "minute")


async def test_the_status_tells_what_happened_and_what_is_there(queues: QueuesSlice) -> None:
    await push(queues, "orders", NOON, *range(6))
    await push(queues, "other", NOON, 1)
    await consume(queues, "orders", NOON, "g", batch=2)
    await settle(queues, await pop(queues, "orders", NOON, "g", batch=1), NOON, "dlq", "no such customer")
    await settle(queues, await pop(queues, "orders", NOON, "g", batch=3), NOON, most=1)
    await queues.activity.flush(NOON)
    chosen = span(NOON - timedelta(hours=1), NOON, queue="orders")
    status = await queues.statistics.status(chosen, NOON)
    (point,) = status.throughput
    assert (point.ingested, point.processed, point.delivered, point.dead_lettered) == (6, 4, 6, 1)
    assert (point.ingested_per_second, status.bucket_minutes, status.point_count) == (0.1, 1, 1)
    assert (status.messages.total, status.messages.processing, status.messages.completed) == (6, 2, 3)
    leases = status.leases
    assert (leases.active, leases.partitions_with_leases, leases.total_batch_size, leases.total_acked) == (1, 1, 2, 0)
    letters = status.dead_letter_queue
    assert (letters.total_messages, letters.affected_partitions) == (1, 1)
    assert [(one.error, one.count) for one in letters.top_errors] == [("no such customer", 1)]
    assert [(one.name, one.total_consumed) for one in status.queues] == [("orders", 4)]
    (worker,) = status.workers
    assert (worker.pushed, worker.completed) == (7, 3)
    assert worker.memory_bytes > 1_000_000
    whole = await queues.statistics.status(span(NOON - timedelta(hours=1), NOON), NOON)
    assert (whole.messages.total, {one.name for one in whole.queues}) == (7, {"orders", "other"})


async def test_processes_and_queues_are_shown_over_time(queues: QueuesSlice) -> None:
    await push(queues, "orders", NOON, 1, 2)
    await consume(queues, "orders", NOON + timedelta(seconds=30), batch=1)
    await queues.activity.flush(NOON + timedelta(seconds=30))
    chosen = span(NOON - timedelta(minutes=30), NOON + timedelta(minutes=1))
    (replica,) = (await queues.statistics.system_metrics(chosen)).replicas
    (point,) = replica.time_series
    assert point.metrics.memory.rss_bytes > 1_000_000
    assert point.metrics.cpu.user_percent >= 0
    work = await queues.statistics.worker_metrics(chosen, NOON + timedelta(minutes=1))
    (step,) = work.time_series
    assert (step.push_messages, step.pop_messages, step.ack_success, step.max_lag_ms) == (2, 1, 1, 30_000)
    (lag,) = await queues.statistics.queue_lag(chosen)
    assert (lag.queue_name, lag.pop_count, lag.avg_lag_ms) == ("orders", 1, 30_000)
    (ops,) = await queues.statistics.queue_ops(chosen)
    assert (ops.pushed, ops.popped, ops.completed, ops.pushed_bytes > 0) == (2, 1, 1, True)


async def test_the_figures_of_postgresql_are_those_of_the_tables_of_queues(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 1)
    shown = await queues.statistics.postgres(now)
    tables = {one.table: one for one in shown.tables}
    assert {"queues", "queue_chunks", "queue_cursors", "queue_dead_letters"} <= set(tables)
    assert tables["queue_chunks"].total_bytes > 0
    assert shown.database.size_bytes > 1_000_000


async def test_what_retention_removed_is_shown(queues: QueuesSlice) -> None:
    await queues.catalog.configure("orders", NOON, {"retentionEnabled": True, "retentionSeconds": 60})
    await push(queues, "orders", NOON, 1, 2)
    later = NOON + timedelta(hours=1)
    await queues.retention.run(later)
    shown = await queues.statistics.retention(span(NOON, later + timedelta(seconds=1), queue="orders"), 10, 0)
    assert [(one.queue, one.partition, one.kind, one.count) for one in shown.events] == [
        ("orders", "Default", "retention", 2)
    ]
