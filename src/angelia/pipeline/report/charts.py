"""The charts of the report, one for each question. Axes begin at 0 unless they are logarithmic; days without data are
gaps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DateFormatter, DayLocator
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from angelia.pipeline.analytics.histogram import SHARES
from angelia.pipeline.report import formatting
from angelia.pipeline.report.figures import OUTCOMES, TIERS, Contents, DayFigures
from angelia.pipeline.report.svg import COLOURS

_SERIES = [COLOURS[f"series-{number}"] for number in (1, 2, 3, 4)]
_OF = {"delivered": _SERIES[0], "failed": _SERIES[1], "pending": _SERIES[2], "expired": _SERIES[3]}
_DASHES: list[Any] = ["-", (0, (5, 1.5)), (0, (1.5, 1.2)), "-."]
_ROWS = 4
_GAP = float("nan")
_FEW_DAYS = 28
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def volume(contents: Contents, axes: Axes, narrow: bool) -> None:
    """How many messages a day, by what became of them."""
    counts = {name: {day.day: day.outcomes[name] for day in contents.days} for name in OUTCOMES}
    columns = {name: by_day(contents.period, count) for name, count in counts.items()}
    draw_stacked(axes, contents.period, columns, narrow)


def latency(contents: Contents, axes: Axes, narrow: bool) -> None:
    """How long delivery took."""
    places = reversed([*enumerate(SHARES)])
    lines = {name: by_day(contents.period, {day.day: day.times[n] for day in contents.days}) for n, name in places}
    axes.set_yscale("log")
    draw_lines(axes, [place(day) for day in contents.period], lines, narrow)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.duration(value)))
    known = [one for line in lines.values() for one in line if one and not math.isnan(one)]
    if known:
        axes.set_ylim(10 ** math.floor(math.log10(min(known))), 10 ** math.ceil(math.log10(max(known) * 1.01)))


def losses(contents: Contents, axes: Axes, narrow: bool) -> None:
    """The share of a day's messages that was not delivered."""
    shares = {name: {day.day: _percent(day, name) for day in contents.days} for name in ("failed", "expired")}
    lines = {name: by_day(contents.period, share) for name, share in shares.items()}
    draw_lines(axes, [place(day) for day in contents.period], lines, narrow)
    from_zero(axes, lambda value: f"{value:g} %")


def buckets(contents: Contents, axes: Axes, narrow: bool) -> None:
    """How full each of the 256 buckets is, against the fullest."""
    most, width = max(contents.buckets) or 1, len(contents.buckets) // _ROWS
    for number, load in enumerate(contents.buckets):
        place = (number % width, _ROWS - 1 - number // width)
        axes.add_patch(
            Rectangle(place, 1, 0.86, color=COLOURS["accent"], alpha=max(load / most, 0.01) ** 0.6, linewidth=0)
        )
    axes.set(xlim=(0, width), ylim=(0, _ROWS))
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    starts = [width * row for row in range(_ROWS)]
    axes.set_yticks([_ROWS - 0.57 - row for row in range(_ROWS)], [f"{one}–{one + width - 1}" for one in starts])
    axes.set_xticks([])


def storage(contents: Contents, axes: Axes, narrow: bool) -> None:
    """The size of each tier: over time, once it was measured on several days."""
    if contents.measured_once:
        _sizes(axes, [*contents.storage.values()][-1])
        return
    values = {tier: [tiers.get(tier, _GAP) for tiers in contents.storage.values()] for tier in TIERS}
    places = [(moment - _EPOCH) / timedelta(days=1) for moment in contents.storage]
    # Not stacked: a gap of one tier would be a gap of those above it.
    draw_lines(axes, places, values, narrow)
    from_zero(axes, formatting.size)


def rotations(contents: Contents, axes: Axes, narrow: bool) -> None:
    """How many keys were replaced a day, and why."""
    reasons = sorted({row["reason"] for row in contents.rotations})
    days = sorted({row["day"] for row in contents.rotations})
    counts: Counter[tuple[str, date]] = Counter()
    for row in contents.rotations:
        counts[row["reason"], row["day"]] += row["rotations"]
    columns = {reason.replace("_", " "): [float(counts[reason, day]) for day in days] for reason in reasons}
    draw_stacked(axes, days, columns, narrow)


def by_day(period: Sequence[date], known: Mapping[date, float | None]) -> list[float]:
    """A value for each day of the period; a day without one is a gap."""
    values = [known.get(day) for day in period]
    return [_GAP if value is None else float(value) for value in values]


def _percent(day: DayFigures, outcome: str) -> float | None:
    return 100 * day.outcomes[outcome] / day.sent if day.sent else None


def place(day: date) -> float:
    """Where a day stands on an axis of dates."""
    return float((day - _EPOCH.date()).days)


def draw_stacked(axes: Axes, days: Sequence[date], columns: Mapping[str, Sequence[float]], narrow: bool) -> None:
    below = [0.0] * len(days)
    places = [place(day) for day in days]
    for (name, values), other in zip(columns.items(), _SERIES, strict=False):
        colour = _OF.get(name, other)
        if any(value and not math.isnan(value) for value in values):
            axes.bar(places, values, 0.82, bottom=below, color=colour, label=name, linewidth=0)
            below = [low + (0 if math.isnan(value) else value) for low, value in zip(below, values, strict=True)]
    axes.xaxis_date()
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _dated(axes, narrow)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4,
        frameon=False,
        handlelength=1,
        columnspacing=1.4,
        borderaxespad=0,
    )


def draw_lines(axes: Axes, places: Sequence[float], lines: Mapping[str, Sequence[float]], narrow: bool) -> None:
    """Lines that differ by dashes and by the names at their ends, not by colour alone. A value between two gaps is a
    point."""
    for (name, values), other, dashes in zip(lines.items(), _SERIES, _DASHES, strict=False):
        colour = _OF.get(name, other)
        axes.plot(places, values, color=colour, linestyle=dashes, marker="o", markersize=4, markevery=_lonely(values))
        known = [(place, value) for place, value in zip(places, values, strict=True) if not math.isnan(value)]
        if known:
            axes.annotate(
                name,
                known[-1],
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                annotation_clip=False,
            )
    axes.xaxis_date()
    axes.margins(x=0.01)
    _dated(axes, narrow)


def _lonely(values: Sequence[float]) -> list[int]:
    """The places of values with a gap or nothing on both sides, which a line would not show."""
    padded = [_GAP, *values, _GAP]
    return [
        place
        for place, (before, value, after) in enumerate(zip(padded, values, padded[2:], strict=False))
        if math.isnan(before) and not math.isnan(value) and math.isnan(after)
    ]


def from_zero(axes: Axes, said: Callable[[float], str]) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: said(value)))


def _sizes(axes: Axes, tiers: Mapping[str, int]) -> None:
    known = [tier for tier in reversed(TIERS) if tier in tiers]
    sizes = [tiers[tier] for tier in known]
    axes.barh(known, sizes, 0.55, color=COLOURS["series-1"], linewidth=0)
    for place, size in enumerate(sizes):
        axes.annotate(formatting.size(size), (size, place), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, max(sizes) * 1.25)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _dated(axes: Axes, narrow: bool) -> None:
    first, last = axes.get_xlim()
    most = 4 if narrow else 9
    if last - first < _FEW_DAYS:
        interval = max(1, math.ceil((last - first) / most))
        axes.xaxis.set_major_locator(DayLocator(interval=interval))  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(DateFormatter("%b %d"))  # type: ignore[no-untyped-call]
        return
    locator = AutoDateLocator(minticks=2, maxticks=most)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]
