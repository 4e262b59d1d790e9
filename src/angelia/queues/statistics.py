"""What happened in queues over time, and what processes and PostgreSQL use for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby

import msgspec

from angelia.errors import InvalidArgument
from angelia.queues import listings_store, retention_store, statistics_store
from angelia.queues import statistics_api as api
from angelia.queues.admin_api import Pagination
from angelia.queues.listings import Listings
from angelia.queues.listings_api import MessageFigures, QueuesQuery
from angelia.queues.stamps import stamp, stamp_or_none
from angelia.queues.statistics_store import CountedSpan as CountedSpan  # routes choose by it
from angelia.stores.ledger import Ledger, Row

# Steps of a series: the smallest whose number stays readable in its time span.
_STEPS = ((60, 1), (360, 5), (1_440, 15), (10_080, 60))
_LARGEST_STEP = 360
_INTERVALS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_MOST_POINTS = 10_000
_LATELY = timedelta(minutes=2)


class Statistics:
    """Figures over time. They come from counts by the minute, which are kept for a week."""

    def __init__(self, ledger: Ledger, listings: Listings) -> None:
        self._ledger = ledger
        self._listings = listings

    async def status(self, span: CountedSpan, now: datetime) -> api.QueuesStatus:
        step = _step(span)
        async with self._ledger.reading() as tx:
            series = await statistics_store.series(tx, span, step)
            sums = await statistics_store.sums(tx, span)
            leases = await statistics_store.leases(tx, span, now)
            letters, errors = await statistics_store.letters(tx, span)
            consumed = await statistics_store.consumed(tx, span)
            workers = await statistics_store.workers(tx, now - _LATELY, now, timedelta(hours=1))
            chosen = any(span.names)
            totals = await listings_store.totals(tx, now, *span.names) if chosen else None
        overview = None if chosen else await self._listings.overview(now)
        names = MessageFigures.__struct_fields__
        return api.QueuesStatus(
            time_range=_time_span(span),
            throughput=[_throughput(row, step) for row in series],
            messages=overview.messages if overview is not None else MessageFigures(**_columns(totals or {}, names)),
            leases=api.LeaseFigures(
                active=leases["active"],
                partitions_with_leases=leases["partitions"],
                total_batch_size=leases["messages"],
                total_acked=leases["settled"],
            ),
            dead_letter_queue=api.LetterFigures(
                total_messages=letters["messages"],
                affected_partitions=letters["partitions"],
                top_errors=[api.ErrorCount(error=row["error"], count=row["count"]) for row in errors],
            ),
            errors=api.ErrorFigures(ack_failed=sums["failed"], dlq_messages=sums["dead"], evicted=sums["evicted"]),
            queues=[api.ConsumedQueue(**row) for row in consumed],
            workers=_workers(workers),
            bucket_minutes=_minutes(step),
            point_count=len(series),
            stats_age=overview.stats_age if overview is not None else 0.0,
        )

    async def queues(self, query: QueuesQuery, limit: int, offset: int, now: datetime) -> api.StatusQueues:
        """A page of queues, newest first."""
        query = msgspec.structs.replace(query, limit=limit, offset=offset)
        found = await self._listings.queues(query, now)
        return api.StatusQueues(queues=found.queues, pagination=Pagination(limit=limit, offset=offset))

    async def queue(self, name: str, now: datetime) -> api.QueueStatus:
        found, queue = await self._listings.queue(name, now), await self._listings.existing(name)
        return api.QueueStatus(
            queue=api.QueueWithOptions(
                id=queue.queue_id,
                name=queue.name,
                namespace=queue.namespace,
                task=queue.task,
                created_at=stamp(queue.created_at),
                config=msgspec.to_builtins(queue.options),
            ),
            totals=found.totals,
            partitions=found.partitions,
        )

    async def analytics(self, span: CountedSpan, interval: str) -> api.QueueAnalytics:
        step = _INTERVALS.get(interval)
        if step is None:
            raise InvalidArgument("interval is minute, hour or day")
        if (span.until - span.since) / step > _MOST_POINTS:
            raise InvalidArgument("the time span has too many steps", hint="choose a larger interval")
        async with self._ledger.reading() as tx:
            rows = await statistics_store.points(tx, span, step)
        points = [api.AnalyticsPoint(timestamp=stamp(row["at"]), messages=row["messages"]) for row in rows]
        return api.QueueAnalytics(from_=stamp(span.since), to=stamp(span.until), interval=interval, data_points=points)

    async def system_metrics(self, span: CountedSpan) -> api.SystemMetrics:
        step = _step(span)
        async with self._ledger.reading() as tx:
            rows = await statistics_store.workers(tx, span.since, span.until, step)
        replicas = [
            api.ProcessSeries(
                hostname=server,
                worker_id=worker,
                pid=pid,
                time_series=[_process(row, step) for row in same],
            )
            for (server, worker, pid), same in groupby(rows, key=lambda row: (row["server"], row["worker"], row["pid"]))
        ]
        return api.SystemMetrics(
            time_range=_time_span(span), bucket_minutes=_minutes(step), point_count=len(rows), replicas=replicas
        )

    async def worker_metrics(self, span: CountedSpan, now: datetime) -> api.WorkerMetrics:
        step = _step(span)
        async with self._ledger.reading() as tx:
            series = await statistics_store.series(tx, span, step)
            workers = await statistics_store.workers(tx, now - _LATELY, now, timedelta(hours=1))
        return api.WorkerMetrics(
            time_range=_time_span(span),
            bucket_minutes=_minutes(step),
            point_count=len(series),
            time_series=[_work(row, step) for row in series],
            workers=_workers(workers),
        )

    async def queue_lag(self, span: CountedSpan) -> list[api.QueueLagPoint]:
        """How long messages waited for their delivery, by queue and step."""
        async with self._ledger.reading() as tx:
            rows = await statistics_store.queue_series(tx, span, _step(span))
        return [
            api.QueueLagPoint(
                bucket_time=stamp(row["at"]),
                queue_name=row["queue"],
                pop_count=row["popped"],
                avg_lag_ms=row["waited_ms"],
                max_lag_ms=row["waited_most_ms"],
            )
            for row in rows
            if row["popped"]
        ]

    async def queue_ops(self, span: CountedSpan) -> list[api.QueueOpsPoint]:
        """What happened, by queue and step."""
        names = ("pushed", "pushed_bytes", "popped", "completed", "failed", "evicted")
        async with self._ledger.reading() as tx:
            rows = await statistics_store.queue_series(tx, span, _step(span))
        return [
            api.QueueOpsPoint(
                bucket_time=stamp(row["at"]),
                queue_name=row["queue"],
                dead_lettered=row["dead"],
                **_columns(row, names),
            )
            for row in rows
        ]

    async def retention(self, span: CountedSpan, limit: int, offset: int) -> api.RetentionHistory:
        async with self._ledger.reading() as tx:
            entries = await retention_store.history(tx, span.queue, span.since, span.until, limit, offset)
        events = [
            api.RemovedMessages(
                timestamp=stamp(one.at),
                queue=one.queue_name,
                partition=one.partition_name,
                kind=one.kind,
                count=one.count,
            )
            for one in entries
        ]
        return api.RetentionHistory(
            time_range=_time_span(span), events=events, pagination=Pagination(limit=limit, offset=offset)
        )

    async def postgres(self, now: datetime) -> api.PostgresStats:
        async with self._ledger.reading() as tx:
            database, tables = await statistics_store.database(tx)
        return api.PostgresStats(
            timestamp=stamp(now),
            database=api.DatabaseFigures(**database),
            tables=[
                api.TableFigures(**{**row, "last_autovacuum": stamp_or_none(row["last_autovacuum"])}) for row in tables
            ],
        )


def _step(span: CountedSpan) -> timedelta:
    length = (span.until - span.since) / timedelta(minutes=1)
    return timedelta(minutes=next((minutes for most, minutes in _STEPS if length <= most), _LARGEST_STEP))


def _minutes(step: timedelta) -> int:
    return step // timedelta(minutes=1)


def _time_span(span: CountedSpan) -> api.TimeSpan:
    return api.TimeSpan(from_=stamp(span.since), to=stamp(span.until))


def _columns(row: Row, names: Sequence[str]) -> dict[str, int]:
    return {name: row[name] for name in names}


def _per_second(count: int, step: timedelta) -> float:
    return round(count / step.total_seconds(), 2)


def _throughput(row: Row, step: timedelta) -> api.ThroughputPoint:
    processed = row["completed"] + row["dead"]
    return api.ThroughputPoint(
        timestamp=stamp(row["at"]),
        ingested=row["pushed"],
        processed=processed,
        ingested_per_second=_per_second(row["pushed"], step),
        processed_per_second=_per_second(processed, step),
        ingested_bytes=row["pushed_bytes"],
        delivered=row["popped"],
        failed=row["failed"],
        dead_lettered=row["dead"],
        evicted=row["evicted"],
        avg_lag_ms=row["waited_ms"],
        max_lag_ms=row["waited_most_ms"],
    )


def _work(row: Row, step: timedelta) -> api.WorkPoint:
    acks = row["completed"] + row["failed"]
    return api.WorkPoint(
        timestamp=stamp(row["at"]),
        push_messages=row["pushed"],
        pop_messages=row["popped"],
        ack_messages=acks,
        push_per_second=_per_second(row["pushed"], step),
        pop_per_second=_per_second(row["popped"], step),
        ack_per_second=_per_second(acks, step),
        ack_success=row["completed"],
        ack_failed=row["failed"],
        dlq_count=row["dead"],
        avg_lag_ms=row["waited_ms"],
        max_lag_ms=row["waited_most_ms"],
    )


def _process(row: Row, step: timedelta) -> api.ProcessPoint:
    whole_ms = step.total_seconds() * 1000
    return api.ProcessPoint(
        timestamp=stamp(row["at"]),
        metrics=api.ProcessMetrics(
            cpu=api.ProcessorFigures(
                user_percent=round(100 * row["cpu_user_ms"] / whole_ms, 2),
                system_percent=round(100 * row["cpu_system_ms"] / whole_ms, 2),
            ),
            memory=api.MemoryFigures(rss_bytes=row["memory_bytes"]),
            event_loop=api.LoopFigures(avg_ms=round(row["loop_ms"], 3), max_ms=round(row["loop_most_ms"], 3)),
        ),
    )


def _workers(rows: Sequence[Row]) -> list[api.WorkerFigures]:
    """The processes that were there in the last minutes."""
    return [
        api.WorkerFigures(
            hostname=row["server"],
            worker_id=row["worker"],
            pid=row["pid"],
            pushed=row["pushed"],
            popped=row["popped"],
            completed=row["completed"],
            cpu_percent=round(100 * (row["cpu_user_ms"] + row["cpu_system_ms"]) / (_LATELY.total_seconds() * 1000), 2),
            memory_bytes=row["memory_bytes"],
            avg_event_loop_ms=round(row["loop_ms"], 3),
            max_event_loop_ms=round(row["loop_most_ms"], 3),
            last_seen=stamp(row["seen_at"]),
        )
        for row in rows
    ]
