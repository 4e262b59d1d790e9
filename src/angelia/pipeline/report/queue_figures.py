"""What the report says of queues, read from what analytics wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow.compute as pc

from angelia.pipeline.analytics import wait_classes
from angelia.pipeline.analytics.histogram import SHARES
from angelia.pipeline.lake import small_tables as lake
from angelia.pipeline.lake.tables import DAY, QUEUE_DAYS, QUEUE_HOURS, TOP_QUEUES
from angelia.stores.objects import Objects

_TOP = 10
_COUNTED = ("pushed", "popped", "completed", "failed", "dead", "evicted", "stored", "encrypted")
_SUMMED = ("pushed", "popped", "completed", "failed", "dead", "evicted")

Waits = tuple[float | None, ...]  # p50, p95 and p99 in microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDayFigures:
    """A day of the period on which something happened in queues."""

    day: date
    pushed: int
    popped: int
    completed: int
    failed: int
    dead: int
    evicted: int
    stored: int
    encrypted: int
    waits: Waits
    evicted_waits: Waits
    removed: int  # messages and dead letters
    reclaimed_bytes: int
    queues: int
    all_queues: int
    encrypted_queues: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHourFigures:
    """One hour of one day."""

    day: date
    hour: int
    pushed: int
    popped: int
    evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopQueue:
    """One queue over the whole period; without a name, one that was deleted."""

    name: str | None
    pushed: int
    popped: int
    completed: int
    failed: int
    dead: int
    evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """Everything about queues that is on the page."""

    days: list[QueueDayFigures]
    busiest: list[QueueHourFigures]
    waits: Waits
    evicted_waits: Waits
    top: list[TopQueue]

    @property
    def period(self) -> list[date]:
        """Every day from the first to the last, also those on which nothing happened."""
        first, last = self.days[0].day, self.days[-1].day
        return [first + timedelta(days=offset) for offset in range((last - first).days + 1)]

    def total(self, name: str) -> int:
        return sum(getattr(day, name) for day in self.days)


def read(objects: Objects) -> QueueFigures:
    """All that was counted of queues; no days if nothing was."""
    hours = sorted(lake.rows(objects, QUEUE_HOURS), key=lambda row: (row[DAY], row["hour"]))
    by_day: dict[date, list[dict[str, Any]]] = defaultdict(list)
    for row in hours:
        by_day[row[DAY]].append(row)
    known = sorted(lake.rows(objects, QUEUE_DAYS), key=lambda row: row[DAY])
    return QueueFigures(
        days=[_day(row, by_day[row[DAY]]) for row in known],
        busiest=[_hour(row) for row in sorted(hours, key=lambda row: -row["pushed"] - row["popped"])[:_TOP]],
        waits=_waits(hours, "waits", "wait_max_ms"),
        evicted_waits=_waits(hours, "evicted_waits", "evicted_p99_ms"),
        top=_top(objects),
    )


def _day(row: dict[str, Any], hours: Sequence[dict[str, Any]]) -> QueueDayFigures:
    return QueueDayFigures(
        day=row[DAY],
        **{name: sum(hour[name] for hour in hours) for name in _COUNTED},
        waits=_waits(hours, "waits", "wait_max_ms"),
        evicted_waits=_waits(hours, "evicted_waits", "evicted_p99_ms"),
        removed=row["removed_expired"] + row["removed_completed"] + row["removed_dead_letters"],
        reclaimed_bytes=row["reclaimed_bytes"],
        queues=row["queues"],
        all_queues=row["all_queues"],
        encrypted_queues=row["encrypted_queues"],
    )


def _hour(row: dict[str, Any]) -> QueueHourFigures:
    counted = {name: row[name] for name in ("hour", "pushed", "popped", "evicted")}
    return QueueHourFigures(day=row[DAY], **counted)


def _waits(hours: Sequence[dict[str, Any]], classes: str, longest: str) -> Waits:
    """The percentiles of the waiting times of several hours together."""
    counts = wait_classes.added(hour[classes] for hour in hours)
    most = max((hour[longest] or 0 for hour in hours), default=0)
    found = (wait_classes.percentile_ms(counts, share, most) for share in SHARES.values())
    return tuple(None if one is None else one * 1000 for one in found)


def _top(objects: Objects) -> list[TopQueue]:
    """The queues with the most messages, among those that were counted by themselves."""
    columns = {name: pc.field(name) for name in _SUMMED}
    summed = lake.sums(objects, TOP_QUEUES, "queue_no", columns, pc.field("queue_no") >= 0)
    known = sorted(lake.rows(objects, TOP_QUEUES), key=lambda row: row[DAY])
    names = {row["queue_no"]: row["queue"] for row in known if row["queue"] is not None}
    top = pc.select_k_unstable(summed, _TOP, [("pushed", "descending"), ("queue_no", "ascending")])
    return [
        TopQueue(name=names.get(row["queue_no"]), **{name: row[name] for name in _SUMMED})
        for row in summed.take(top).to_pylist()
    ]
