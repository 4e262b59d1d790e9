"""Figures of a period, summed up from the days that analytics computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date

from angelia.envelope.wire import Priority
from angelia.pipeline.analytics.histogram import SHARES, added, percentile_ms
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.tables import DAY, HOURS, LATENCIES
from angelia.stores.objects import Objects

Times = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How many messages of a period were sent and delivered, and the percentiles of their times in milliseconds: of
    all, and by priority."""

    days: int
    sent: int
    delivered: int
    times: Times
    by_priority: dict[str, Times]

    @property
    def delivered_share(self) -> float | None:
        return self.delivered / self.sent if self.sent else None


def figures(objects: Objects, first: date | None, end: date | None) -> Figures:
    """The figures of the days from `first` up to, but not including, `end`."""
    rows = small_tables.rows(objects, HOURS, first, end)
    late = small_tables.rows(objects, LATENCIES, first, end)
    by_priority = {
        one: added((row["buckets"], row["counts"]) for row in late if row["priority"] == one) for one in Priority
    }
    return Figures(
        days=len({row[DAY] for row in rows}),
        sent=sum(row["sent"] for row in rows),
        delivered=sum(row["delivered"] for row in rows),
        times=_times(sum(by_priority.values(), Counter())),
        by_priority={one.name.lower(): _times(found) for one, found in by_priority.items() if found},
    )


def said(milliseconds: float | None) -> str:
    """A time with its unit, for people."""
    if milliseconds is None:
        return "unknown"
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else f"{milliseconds / 60_000:.1f} min"


def _times(histogram: Counter[int]) -> Times:
    return {f"{name}_ms": percentile_ms(histogram, share) for name, share in SHARES.items()}
