"""Histograms of times whose buckets grow by 1 %: they can be added, and give percentiles within half a percent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_LOG = math.log(1.01)
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def bucket_column(micros: Column) -> Column:
    """The bucket of a time in microseconds; a shorter time counts as one microsecond."""
    from pyspark.sql import functions as f  # here, because the report needs no Spark

    return (f.log(f.greatest(micros, f.lit(1))) / _LOG).cast("int")


def middle(of: int) -> float:
    """The time that stands for a bucket, in microseconds: the geometric middle of its ends."""
    return math.exp(_LOG * (of + 0.5))


def added(histograms: Iterable[tuple[Iterable[int], Iterable[int]]]) -> Counter[int]:
    """The sum of histograms: counts by bucket."""
    total: Counter[int] = Counter()
    for buckets, counts in histograms:
        for one, count in zip(buckets, counts, strict=True):
            total[one] += count
    return total


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """The time, in microseconds, within which this share of the messages was delivered; None for an empty histogram.

    It is the middle of the bucket that holds the time at place ceil(share · n) in order, so at most half a percent
    off."""
    wanted = math.ceil(share * sum(histogram.values()))
    passed = 0
    for one in sorted(histogram):
        passed += histogram[one]
        if passed >= max(wanted, 1):
            return middle(one)
    return None


def percentile_ms(histogram: Mapping[int, int], share: float) -> float | None:
    """The same in milliseconds, to the microsecond."""
    found = percentile(histogram, share)
    return None if found is None else round(found / 1000, 3)
