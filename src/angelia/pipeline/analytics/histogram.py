"""Times as histograms whose buckets grow by 1 %: they can be added, and say a percentile within half a percent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

GROWTH = 1.01
# The middle of a bucket is so far from its ends, at most: sqrt(1.01) - 1.
ERROR = 0.005
_LOG = math.log(GROWTH)
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def bucket(micros: int) -> int:
    """The bucket of a time in microseconds. What is shorter than one counts as one."""
    return int(math.log(max(micros, 1)) / _LOG)


def bucket_column(micros: Column) -> Column:
    """The same, of a column."""
    from pyspark.sql import functions as f

    return (f.log(f.greatest(micros, f.lit(1))) / _LOG).cast("int")


def middle(of: int) -> float:
    """The time that stands for a bucket, in microseconds: the geometric middle of its ends."""
    return math.exp(_LOG * (of + 0.5))


def added(histograms: Iterable[tuple[Iterable[int], Iterable[int]]]) -> Counter[int]:
    """One histogram of many: counts by bucket."""
    total: Counter[int] = Counter()
    for buckets, counts in histograms:
        for one, count in zip(buckets, counts, strict=True):
            total[one] += count
    return total


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """The time, in microseconds, within which this share came to its end; None where there is none.

    It is at most half a percent off the time that stands at place ceil(share · n) among all of them in order: that
    one lies in the bucket whose middle is given."""
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
