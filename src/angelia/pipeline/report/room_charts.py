"""The charts about rooms."""

from __future__ import annotations

from matplotlib.axes import Axes

from angelia.pipeline.report.charts import by_day, draw_lines, draw_stacked, from_zero, place
from angelia.pipeline.report.room_figures import RoomFigures


def room_messages(rooms: RoomFigures, axes: Axes, narrow: bool) -> None:
    """How many messages were posted a day, and how many of them answer another."""
    columns = {
        "first messages": by_day(rooms.period, {day.day: day.messages - day.replies for day in rooms.days}),
        "replies": by_day(rooms.period, {day.day: day.replies for day in rooms.days}),
    }
    draw_stacked(axes, rooms.period, columns, narrow)


def room_agents(rooms: RoomFigures, axes: Axes, narrow: bool) -> None:
    """How many agents posted, in how many rooms, and how many rooms were made."""
    drawn = {
        "agents": by_day(rooms.period, {day.day: day.agents for day in rooms.days}),
        "rooms": by_day(rooms.period, {day.day: day.rooms for day in rooms.days}),
        "made": by_day(rooms.period, {day.day: day.rooms_made for day in rooms.days}),
    }
    draw_lines(axes, [place(day) for day in rooms.period], drawn, narrow)
    from_zero(axes, lambda value: f"{value:,.0f}")


def reply_depth(rooms: RoomFigures, axes: Axes, narrow: bool) -> None:
    """How deep replies were nested."""
    drawn = {
        "deepest": by_day(rooms.period, {day.day: day.depth_max for day in rooms.days}),
        "mean": by_day(rooms.period, {day.day: day.depth_mean for day in rooms.days}),
    }
    draw_lines(axes, [place(day) for day in rooms.period], drawn, narrow)
    from_zero(axes, lambda value: f"{value:g}")
