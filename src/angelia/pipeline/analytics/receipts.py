"""Counts the receipts of some days with Spark: few columns, numbers as keys, and results that fit into the driver.

The counts of agents may not fit, so Spark writes those itself where there are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from angelia.pipeline.analytics.fingerprints import DayRange
from angelia.pipeline.analytics.histogram import SHARES, bucket_column, middle
from angelia.pipeline.jobs.job_context import JobContext, midnight
from angelia.pipeline.lake.tables import AGENTS, BUCKETS, DAY, HOURS, LATENCIES, RECEIPTS
from angelia.pipeline.sources import archive, ledger
from angelia.pipeline.sources.ledger import Snapshot

_HOUR = 3_600_000_000
_OUTCOMES = ("delivered", "expired", "failed", "pending")
_PRIORITY_BITS, _OUTCOME_BITS, _BUCKET_BITS, _LATENCY_BITS = 2, 2, 8, 12
_NEEDED = (
    "sender_nhi", "recipient_nhi", "priority", "wire_bytes", "status", "delivery_attempts", "sent_at", "accepted_at",
    "delivered_at", "bucket",
)  # fmt: skip
_NARROW = replace(RECEIPTS, columns=tuple(one for one in RECEIPTS.columns if one.name in _NEEDED))


@dataclass(frozen=True, slots=True)
class ReceiptCounts:
    """The counts of some days, in the driver."""

    hours: pa.Table
    latencies: pa.Table
    buckets: pa.Table


@contextmanager
def reading(work: JobContext, days: DayRange, snapshot: Snapshot) -> Iterator[DataFrame]:
    """The receipts of these days: each is in the archive or in the ledger, never in both."""
    files = [file for day in days.days for file in day.files]
    frame = archive.read(work.spark, work.objects, _NARROW, files)
    if not any(day.ledger_rows for day in days.days):
        yield frame
        return
    within = {"sent_at": (midnight(days.first), midnight(days.end))}
    # It is used several times; the ledger is read once.
    here = ledger.read(work, work.sql("mail")["receipts"], _NARROW.schema, snapshot, within).persist()
    try:
        yield frame.unionByName(here) if files else here
    finally:
        here.unpersist()


def count(frame: DataFrame) -> ReceiptCounts:
    """Counts by hour, by time to delivery and by bucket, in a pass each: keys of all three together would be nearly as
    many as the rows."""
    return ReceiptCounts(hours=_hours(frame), latencies=latencies(frame), buckets=_buckets(frame))


def latencies(frame: DataFrame) -> pa.Table:
    """Histograms of the time to delivery, by day and priority."""
    delivered = frame.where((f.col("status") == "delivered") & f.col("delivered_at").isNotNull())
    latency = f.unix_micros("delivered_at") - f.unix_micros("accepted_at")
    key = _packed(f.unix_date(f.col(DAY)), (f.col("priority"), _PRIORITY_BITS), (bucket_column(latency), _LATENCY_BITS))
    found = _counted(delivered, key)
    keys, counts = found["key"].to_numpy(), found["receipts"].to_numpy()
    buckets = keys & _ones(_LATENCY_BITS)
    group, starts = np.unique(keys >> _LATENCY_BITS, return_index=True)
    offsets = pa.array([*starts, len(keys)], pa.int32())
    made = {
        DAY: _dates(group >> _PRIORITY_BITS),
        "priority": pa.array(group & _ones(_PRIORITY_BITS), pa.int16()),
        "buckets": pa.ListArray.from_arrays(offsets, pa.array(buckets, pa.int16())),
        "counts": pa.ListArray.from_arrays(offsets, pa.array(counts)),
    }
    for name, share in SHARES.items():
        made[f"{name}_ms"] = pa.array(_percentiles(buckets, counts, starts, share))
    return pa.table(made).select(LATENCIES.schema.names)


def nothing() -> ReceiptCounts:
    """The counts of days without receipts."""
    return ReceiptCounts(*(table.schema.empty_table() for table in (HOURS, LATENCIES, BUCKETS)))


def agents(frame: DataFrame) -> DataFrame:
    """What each agent sent and received a day: one aggregation over both sides."""
    one, size = f.lit(1).cast("long"), f.col("wire_bytes").cast("long")
    outcomes = {name: (f.col("status") == name).cast("long") for name in _OUTCOMES[:3]}
    sent = _side(frame, "sender_nhi", {"sent": one, "sent_bytes": size, **outcomes})
    received = _side(frame, "recipient_nhi", {"received": one, "received_bytes": size})
    sums = [f.sum(name).alias(name) for name in AGENTS.file_schema.names[1:]]
    counted = sent.unionAll(received).groupBy(DAY, "agent").agg(*sums)
    return counted.select(*AGENTS.schema.names)


def _side(frame: DataFrame, agent: str, counted: Mapping[str, Column]) -> DataFrame:
    none = f.lit(0).cast("long")
    columns = (counted.get(name, none).alias(name) for name in AGENTS.file_schema.names[1:])
    return frame.select(DAY, f.col(agent).alias("agent"), *columns)


def _counted(frame: DataFrame, key: Column, *summed: str) -> pa.Table:
    """The number of receipts of each key, and sums of columns, in the order of the keys."""
    sums = [f.sum(name).alias(name) for name in summed]
    return frame.groupBy(key.alias("key")).agg(f.count("*").alias("receipts"), *sums).toArrow().sort_by("key")


def _packed(first: Column, *others: tuple[Column, int]) -> Column:
    """Packs several small numbers into one, which is the cheapest key to group by."""
    key = first.cast("long")
    for other, bits in others:
        key = f.shiftleft(key, bits).bitwiseOR(other.cast("long"))
    return key


def _hours(frame: DataFrame) -> pa.Table:
    outcome = f.lit(_OUTCOMES.index("pending"))
    for number, name in enumerate(_OUTCOMES[:-1]):
        outcome = f.when(f.col("status") == name, number).otherwise(outcome)
    hours = f.floor(f.unix_micros("sent_at") / _HOUR)
    key = _packed(hours, (f.col("priority"), _PRIORITY_BITS), (outcome, _OUTCOME_BITS))
    found = _counted(frame, key, "delivery_attempts", "wire_bytes")
    keys, receipts = found["key"].to_numpy(), found["receipts"].to_numpy()
    group, starts = np.unique(keys >> _OUTCOME_BITS, return_index=True)
    hour = group >> _PRIORITY_BITS
    made = {
        DAY: _dates(hour // 24),
        "hour": pa.array(hour % 24, pa.int16()),
        "priority": pa.array(group & _ones(_PRIORITY_BITS), pa.int16()),
        "sent": pa.array(_sums(receipts, starts)),
        "attempts": pa.array(_sums(found["delivery_attempts"].to_numpy(), starts)),
        "wire_bytes": pa.array(_sums(found["wire_bytes"].to_numpy(), starts)),
    }
    for number, name in enumerate(_OUTCOMES):
        of_these = (keys & _ones(_OUTCOME_BITS)) == number
        made[name] = pa.array(_sums(np.where(of_these, receipts, 0), starts))
    return pa.table(made).select(HOURS.schema.names)


def _buckets(frame: DataFrame) -> pa.Table:
    key = _packed(f.unix_date(f.col(DAY)), (f.col("bucket"), _BUCKET_BITS))
    found = _counted(frame, key, "wire_bytes")
    keys = found["key"].to_numpy()
    made = {
        DAY: _dates(keys >> _BUCKET_BITS),
        "bucket": pa.array(keys & _ones(_BUCKET_BITS), pa.int16()),
        "receipts": found["receipts"],
        "wire_bytes": found["wire_bytes"],
    }
    return pa.table(made).select(BUCKETS.schema.names)


def _percentiles(buckets: Any, counts: Any, starts: Any, share: float) -> Any:
    """The percentile of each group, in milliseconds, as `histogram.percentile` computes it."""
    passed = np.cumsum(counts)
    before = np.concatenate(([0], passed))[starts]
    wanted = np.ceil(share * np.add.reduceat(counts, starts)) if len(starts) else before
    places = np.searchsorted(passed, before + np.maximum(wanted, 1))
    return np.round([middle(one) / 1000 for one in buckets[places].tolist()], 3)


def _ones(bits: int) -> int:
    return (1 << bits) - 1


def _sums(values: Any, starts: Any) -> Any:
    return np.add.reduceat(values, starts)


def _dates(days: Any) -> pa.Array:
    return pa.array(np.asarray(days, np.int32)).cast(pa.date32())
