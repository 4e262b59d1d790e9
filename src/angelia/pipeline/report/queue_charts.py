"""The charts about queues."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from angelia.pipeline.analytics.histogram import SHARES
from angelia.pipeline.report import formatting
from angelia.pipeline.report.charts import by_day, draw_lines, from_zero, place
from angelia.pipeline.report.queue_figures import QueueFigures


def queue_messages(queues: QueueFigures, axes: Axes, narrow: bool) -> None:
    """How many messages were pushed and completed a day."""
    drawn = {
        "pushed": by_day(queues.period, {day.day: day.pushed for day in queues.days}),
        "completed": by_day(queues.period, {day.day: day.completed for day in queues.days}),
    }
    draw_lines(axes, [place(day) for day in queues.period], drawn, narrow)
    from_zero(axes, lambda value: f"{value:,.0f}")


def queue_waits(queues: QueueFigures, axes: Axes, narrow: bool) -> None:
    """How long messages waited before they were delivered."""
    places = reversed([*enumerate(SHARES)])
    lines = {name: by_day(queues.period, {day.day: day.waits[n] for day in queues.days}) for n, name in places}
    axes.set_yscale("log")
    draw_lines(axes, [place(day) for day in queues.period], lines, narrow)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.duration(value)))
    known = [one for line in lines.values() for one in line if one and not math.isnan(one)]
    if known:
        axes.set_ylim(10 ** math.floor(math.log10(min(known))), 10 ** math.ceil(math.log10(max(known) * 1.01)))


def queue_losses(queues: QueueFigures, axes: Axes, narrow: bool) -> None:
    """The share of a day's messages that became dead letters or were evicted."""
    shares = {
        name: {day.day: 100 * getattr(day, name) / day.pushed for day in queues.days if day.pushed}
        for name in ("dead", "evicted")
    }
    lines = {name: by_day(queues.period, share) for name, share in shares.items()}
    draw_lines(axes, [place(day) for day in queues.period], lines, narrow)
    from_zero(axes, lambda value: f"{value:g} %")


def queue_storage(queues: QueueFigures, axes: Axes, narrow: bool) -> None:
    """How many bytes retention gave back a day, about."""
    drawn = {"reclaimed": by_day(queues.period, {day.day: day.reclaimed_bytes for day in queues.days})}
    draw_lines(axes, [place(day) for day in queues.period], drawn, narrow)
    from_zero(axes, formatting.size)


def queue_encryption(queues: QueueFigures, axes: Axes, narrow: bool) -> None:
    """The share of messages, and of queues, that are encrypted."""
    shares = {
        "messages": {day.day: 100 * day.encrypted / day.stored if day.stored else None for day in queues.days},
        "queues": {
            day.day: 100 * day.encrypted_queues / day.all_queues if day.all_queues else None for day in queues.days
        },
    }
    lines = {name: by_day(queues.period, share) for name, share in shares.items()}
    draw_lines(axes, [place(day) for day in queues.period], lines, narrow)
    from_zero(axes, lambda value: f"{value:g} %")
