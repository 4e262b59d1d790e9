"""Counts what happened in queues by hour, from the counts that the server keeps in the ledger for some days.

A day is counted once it is over, and what was counted stays: a later run replaces it only if it finds more of that day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from angelia.pipeline.analytics.wait_classes import CLASSES, percentile_ms
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, midnight
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.tables import DAY, QUEUE_DAYS, QUEUE_HOURS, TOP_QUEUES
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import ledger
from angelia.pipeline.sources.ledger import Snapshot

_MOST_QUEUES = 100  # of each day
_SUMS = ("pushed", "pushed_bytes", "popped", "completed", "failed", "dead", "evicted", "stored", "encrypted")
_REMOVED = ("removed_expired", "removed_completed", "removed_dead_letters")
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SCHEMA = pa.schema(
    [
        pa.field("queue_no", pa.int64(), False),
        pa.field("queue", pa.string()),
        *(pa.field(name, pa.int64(), False) for name in (*_SUMS, "waited_most_ms", "oldest_ms")),
        *(pa.field(name, pa.list_(pa.int64()), False) for name in ("waited", "evicted_waited")),
        pa.field("hour", pa.int16(), False),
        pa.field(DAY, pa.date32(), False),
    ]
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesPresent:
    """What the ledger has counted of past days, and what analytics has counted of them before."""

    events: Mapping[date, int]
    counted: Mapping[date, Row]

    @property
    def to_count(self) -> list[date]:
        """Days of which there is more than was counted before."""
        known = {day: row["events"] for day, row in self.counted.items()}
        return sorted(day for day, events in self.events.items() if events > known.get(day, 0))


def present(work: JobContext, then: Database) -> QueuesPresent:
    """What there is of past days; of a simulated archive, nothing."""
    if work.simulated:
        return QueuesPresent(events={}, counted={})
    today = midnight(work.now.astimezone(UTC).date())
    rows = then.rows(work.sql("queues")["queue_events_by_day"], today)
    return QueuesPresent(
        events={row[DAY]: row["events"] for row in rows if work.covers(row[DAY])},
        counted={row[DAY]: row for row in small_tables.rows(work.objects, QUEUE_DAYS)},
    )


def count(work: JobContext, run: JobRun, then: Database, queues: QueuesPresent, snapshot: Snapshot) -> list[Row]:
    """Counts the days of which there is more than before, and writes the results; returns their hours. The days are
    written last: after a crash before that, they are counted again."""
    days = queues.to_count
    if not days:
        return []
    frame = _activity(work, days, snapshot).persist()
    try:
        hours, top = [_hour(row) for row in _hours(frame)], [_queue(row) for row in _top(frame)]
        different = {row[DAY]: row["queues"] for row in frame.groupBy(DAY).agg(_different().alias("queues")).collect()}
    finally:
        frame.unpersist()
    small_tables.put_days(work.objects, QUEUE_HOURS, hours, days, run)
    small_tables.put_days(work.objects, TOP_QUEUES, top, days, run)
    work.step("queues counted", run)
    small_tables.put_days(work.objects, QUEUE_DAYS, _days(work, then, queues, different), days, run)
    return hours


def _activity(work: JobContext, days: Sequence[date], snapshot: Snapshot) -> DataFrame:
    """What happened on these days, by queue and by minute or hour."""
    first, end = midnight(days[0]), midnight(days[-1] + timedelta(days=1))
    statement = work.sql("queues")["queue_activity"]
    for place, moment in (("$1", first), ("$2", end)):
        statement = statement.replace(place, f"'{moment.isoformat()}'::timestamptz")
    return ledger.read(work, statement, _SCHEMA, snapshot).where(f.col(DAY).isin(list(days)))


def _hours(frame: DataFrame) -> list[Row]:
    found: list[Row] = frame.groupBy(DAY, "hour").agg(_different().alias("queues"), *_sums()).toArrow().to_pylist()
    return found


def _top(frame: DataFrame) -> list[Row]:
    """The queues with the most messages of each day."""
    by_queue = frame.groupBy(DAY, "queue_no").agg(f.max("queue").alias("queue"), *_sums())
    busiest = f.desc(f.col("pushed") + f.col("popped"))
    place = f.row_number().over(Window.partitionBy(DAY).orderBy(busiest, "queue_no"))
    first = by_queue.withColumn("place", place).where(f.col("place") <= _MOST_QUEUES).drop("place")
    found: list[Row] = first.toArrow().to_pylist()
    return found


def _sums() -> list[Column]:
    return [
        *(f.sum(name).alias(name) for name in _SUMS),
        *(f.max(name).alias(name) for name in ("waited_most_ms", "oldest_ms")),
        _by_class("waited").alias("waits"),
        _by_class("evicted_waited").alias("evicted_waits"),
    ]


def _by_class(name: str) -> Column:
    return f.array(*(f.coalesce(f.sum(f.get(name, f.lit(place))), f.lit(0)) for place in range(CLASSES)))


def _different() -> Column:
    """Queues in which something happened; that messages are still there is no event."""
    happened = sum((f.col(name) for name in ("pushed", "popped", "completed", "failed", "evicted")), f.lit(0))
    return f.countDistinct(f.when(happened > 0, f.col("queue_no")))


def _hour(row: Row) -> Row:
    waits, late = row["waits"], row["evicted_waits"]
    return {
        **row,
        "eviction_rate": row["evicted"] / row["pushed"] if row["pushed"] else None,
        "wait_max_ms": row["waited_most_ms"],
        **{f"wait_{name}_ms": percentile_ms(waits, one, row["waited_most_ms"]) for name, one in _SHARES.items()},
        **{f"evicted_{name}_ms": percentile_ms(late, one, row["oldest_ms"]) for name, one in _SHARES.items()},
    }


def _queue(row: Row) -> Row:
    return {**row, "wait_p95_ms": percentile_ms(row["waits"], _SHARES["p95"], row["waited_most_ms"])}


def _days(work: JobContext, then: Database, queues: QueuesPresent, different: Mapping[date, int]) -> list[Row]:
    sql, days = work.sql("queues"), queues.to_count
    [encryption] = then.rows(sql["queue_encryption"])
    bounds = (midnight(days[0]), midnight(days[-1] + timedelta(days=1)))
    removed = {row[DAY]: row for row in then.rows(sql["queue_removals_by_day"], *bounds)}
    mean = _mean_bytes(work)
    rows = []
    for day in days:
        gone = removed.get(day, dict.fromkeys((*_REMOVED, "removed_partitions"), 0))
        rows.append(
            {
                **gone,
                **encryption,
                DAY: day,
                "computed_at": work.now,
                "events": queues.events[day],
                "queues": different.get(day, 0),
                "reclaimed_bytes": round(mean * sum(gone[name] for name in _REMOVED)),
            }
        )
    return rows


def _mean_bytes(work: JobContext) -> float:
    """The mean size of the messages that were pushed on all days that are known."""
    known = small_tables.rows(work.objects, QUEUE_HOURS)
    pushed = sum(row["pushed"] for row in known)
    return sum(row["pushed_bytes"] for row in known) / pushed if pushed else 0.0
