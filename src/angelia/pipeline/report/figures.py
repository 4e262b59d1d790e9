"""The contents of the report, read from what analytics wrote: no Spark, no ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow.compute as pc

from angelia.envelope import ids
from angelia.envelope.wire import Priority
from angelia.errors import NotFound
from angelia.pipeline.analytics.histogram import SHARES, added, percentile
from angelia.pipeline.lake import archive_locations
from angelia.pipeline.lake import small_tables as lake
from angelia.pipeline.lake.tables import (
    AGENTS,
    BUCKETS,
    DAY,
    DAYS,
    HOURS,
    KEY_DAYS,
    KEY_GRACE,
    LATENCIES,
    LOG_GROUPS,
    QUEUE_DAYS,
    ROOM_DAYS,
    STORAGE,
)
from angelia.pipeline.report import log_figures, queue_figures, room_figures
from angelia.pipeline.report.log_figures import LogFigures
from angelia.pipeline.report.queue_figures import QueueFigures
from angelia.pipeline.report.room_figures import RoomFigures
from angelia.settings import Settings
from angelia.stores.objects import Objects

OUTCOMES = ("delivered", "pending", "expired", "failed")
TIERS = ("hot", "ledger", "archive")
_TOP = 10


Times = tuple[float | None, ...]  # p50, p95 and p99 in microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFigures:
    """A day of the period that has messages."""

    day: date
    sent: int
    outcomes: dict[str, int]
    wire_bytes: int
    times: Times
    senders: int
    recipients: int
    peak: float | None
    gini: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFigures:
    """One agent over the whole period."""

    handle: str
    messages: int
    wire_bytes: int
    failed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything that is on the page."""

    days: list[DayFigures]
    rooms: RoomFigures
    queues: QueueFigures
    logs: LogFigures
    computed_at: datetime
    overall: Times
    by_priority: dict[str, tuple[int, Times]]  # how many were delivered, and when
    buckets: list[int]  # messages of each of the 256
    senders: list[AgentFigures]
    recipients: list[AgentFigures]
    storage: dict[datetime, dict[str, int]]
    rotations: list[dict[str, Any]]
    grace: list[dict[str, Any]]

    @property
    def covered(self) -> list[date]:
        """The days of which there is something on the page; if of none, those on which group logs were checked."""
        days = {day.day for part in (self.days, self.rooms.days, self.queues.days) for day in part}
        return sorted(days or {group.checked_at.date() for group in self.logs.groups})

    @property
    def days_with_messages(self) -> int:
        """The number of days with messages; on others rooms were only made, or messages of queues removed."""
        in_rooms = {day.day for day in self.rooms.days if day.messages}
        in_queues = {day.day for day in self.queues.days if day.pushed or day.popped}
        return len({day.day for day in self.days} | in_rooms | in_queues)

    @property
    def period(self) -> list[date]:
        """Every day from the first to the last of mail, also those without messages."""
        first, last = self.days[0].day, self.days[-1].day
        return [first + timedelta(days=offset) for offset in range((last - first).days + 1)]

    @property
    def measured_once(self) -> bool:
        """Whether all measurements of the stores are of one day."""
        return len({moment.date() for moment in self.storage}) < 2

    @property
    def sent(self) -> int:
        return sum(day.sent for day in self.days)

    def total(self, outcome: str) -> int:
        return sum(day.outcomes[outcome] for day in self.days)


def read(objects: Objects, settings: Settings) -> Contents:
    """Reads all that was computed; raises NotFound if there is nothing."""
    known = {row[DAY]: row for row in lake.rows(objects, DAYS)}
    of_others = [*lake.rows(objects, ROOM_DAYS), *lake.rows(objects, QUEUE_DAYS)]
    checks = [row["checked_at"] for row in lake.rows(objects, LOG_GROUPS)]
    if not (known or of_others or checks):
        raise NotFound(
            "nothing has been computed yet",
            hint=f"angelia pipeline run analytics{archive_locations.flag(objects, settings)}",
        )
    by_day: dict[date, list[dict[str, Any]]] = defaultdict(list)
    for row in lake.rows(objects, HOURS):
        by_day[row[DAY]].append(row)
    late: dict[date, Counter[int]] = defaultdict(Counter)
    by_priority: dict[int, Counter[int]] = defaultdict(Counter)
    for row in lake.rows(objects, LATENCIES):
        histogram = added([(row["buckets"], row["counts"])])
        late[row[DAY]] += histogram
        by_priority[row["priority"]] += histogram
    storage = _storage(objects)
    return Contents(
        days=[_day(day, by_day[day], late[day], known[day]) for day in sorted(known)],
        rooms=room_figures.read(objects),
        queues=queue_figures.read(objects),
        logs=log_figures.read(objects),
        computed_at=max((*(row["computed_at"] for row in (*known.values(), *of_others)), *checks)),
        overall=_times(sum(by_priority.values(), Counter())),
        by_priority={
            one.name.lower(): (by_priority[one].total(), _times(by_priority[one]))
            for one in reversed(Priority)
            if one in by_priority
        },
        buckets=_buckets(objects),
        senders=_top(objects, "sent", "sent_bytes", "failed"),
        recipients=_top(objects, "received", "received_bytes", None),
        storage=storage,
        rotations=sorted(lake.rows(objects, KEY_DAYS), key=lambda row: (row[DAY], row["reason"], row["key_type"])),
        # A measurement that found no key in grace wrote no rows.
        grace=[row for row in lake.rows(objects, KEY_GRACE) if row["measured_at"] == max(storage, default=None)],
    )


def _times(histogram: Counter[int]) -> Times:
    return tuple(percentile(histogram, share) for share in SHARES.values())


def _day(day: date, rows: Sequence[dict[str, Any]], late: Counter[int], known: dict[str, Any]) -> DayFigures:
    return DayFigures(
        day=day,
        sent=sum(row["sent"] for row in rows),
        outcomes={name: sum(row[name] for row in rows) for name in OUTCOMES},
        wire_bytes=sum(row["wire_bytes"] for row in rows),
        times=_times(late),
        senders=known["senders"],
        recipients=known["recipients"],
        peak=known["bucket_peak"],
        gini=known["bucket_gini"],
    )


def _buckets(objects: Objects) -> list[int]:
    loads = [0] * ids.BUCKETS
    for row in lake.rows(objects, BUCKETS):
        loads[row["bucket"]] += row["receipts"]
    return loads


def _top(objects: Objects, messages: str, size: str, failed: str | None) -> list[AgentFigures]:
    """The agents with the most messages; equal ones in the order of their handles."""
    columns = {name: pc.field(name) for name in (messages, size, *([failed] if failed else []))}
    summed = lake.sums(objects, AGENTS, "agent", columns, pc.field(messages) > 0)
    top = pc.select_k_unstable(summed, _TOP, [(messages, "descending"), ("agent", "ascending")])
    return [
        AgentFigures(
            handle=row["agent"], messages=row[messages], wire_bytes=row[size], failed=row[failed] if failed else None
        )
        for row in summed.take(top).to_pylist()
    ]


def _storage(objects: Objects) -> dict[datetime, dict[str, int]]:
    found: dict[datetime, dict[str, int]] = {}
    for row in sorted(lake.rows(objects, STORAGE), key=lambda one: one["measured_at"]):
        tiers = found.setdefault(row["measured_at"], {})
        tiers[row["tier"]] = tiers.get(row["tier"], 0) + row["bytes"]
    return found
