"""The charts about group logs: bars of the present, not of days."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes

from angelia.pipeline.report import formatting
from angelia.pipeline.report.log_figures import LogFigures
from angelia.pipeline.report.svg import COLOURS

_SHOWN = 12  # characters of an id


def log_storage(logs: LogFigures, axes: Axes, narrow: bool) -> None:
    """How many bytes each node stores, of messages and of snapshots."""
    parts = {
        "messages": {short(node.node_id): node.bytes - node.snapshot_bytes for node in logs.fullest},
        "snapshots": {short(node.node_id): node.snapshot_bytes for node in logs.fullest},
    }
    _bars(axes, parts, formatting.size)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, handlelength=1, borderaxespad=0)


def log_levels(logs: LogFigures, axes: Axes, narrow: bool) -> None:
    """How many records of each level all nodes store."""
    _bars(axes, {"records": {f"level {level}": count for level, count in enumerate(logs.levels)}}, _number)


def log_findings(logs: LogFigures, axes: Axes, narrow: bool) -> None:
    """How often each kind of fault was found."""
    _bars(axes, {"found": logs.found}, _number)


def short(text: str) -> str:
    """The beginning of an id."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _bars(axes: Axes, parts: Mapping[str, Mapping[str, int]], said: Callable[[float], str]) -> None:
    """One bar for each name, of one or more parts, with its sum at the end."""
    names = [*next(iter(parts.values()))]
    places, before = range(len(names))[::-1], [0] * len(names)
    for number, (label, values) in enumerate(parts.items(), 1):
        sizes = [values[name] for name in names]
        axes.barh(places, sizes, 0.6, left=before, color=COLOURS[f"series-{number}"], label=label, linewidth=0)
        before = [low + size for low, size in zip(before, sizes, strict=True)]
    for place, total in zip(places, before, strict=True):
        axes.annotate(said(total), (total, place), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, names, parse_math=False)
    axes.set_xlim(0, max(before, default=0) * 1.25 or 1)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _number(value: float) -> str:
    return f"{value:,.0f}"
