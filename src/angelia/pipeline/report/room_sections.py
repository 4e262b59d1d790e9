"""The sections of the report about rooms."""

from __future__ import annotations

from collections.abc import Iterator

from angelia.pipeline.report import formatting
from angelia.pipeline.report.markup import chart, html_table
from angelia.pipeline.report.room_charts import reply_depth, room_agents, room_messages
from angelia.pipeline.report.room_figures import RoomDayFigures, RoomFigures

_COUNTED = (
    '<p class="muted">Rooms are counted when a day is over. Messages that were deleted, or that a room keeps for less'
    " than a day, are in it as far as they were still there.</p>"
)


def sections(rooms: RoomFigures) -> Iterator[str]:
    """The sections; none if nothing was counted of rooms."""
    if not rooms.days:
        return
    yield chart(rooms, room_messages, _messages_title, _messages_table)
    yield chart(rooms, room_agents, _agents_title, _agents_table)
    if any(day.replies for day in rooms.days):
        yield chart(rooms, reply_depth, _depth_title, _depth_table)
    yield _top(rooms)


def _messages_title(rooms: RoomFigures) -> str:
    most = max(rooms.days, key=lambda day: day.messages)
    replies = formatting.share(sum(day.replies for day in rooms.days), rooms.messages)
    return (
        f"{rooms.messages:,} messages in rooms in {rooms.days_with_messages} days, {replies} of them replies;"
        f" the most on {most.day}: {most.messages:,}"
    )


def _messages_table(rooms: RoomFigures) -> str:
    rows = (
        [f"{day.day}", f"{day.messages:,}", _growth(rooms, day), f"{day.private_messages:,}", f"{day.replies:,}"]
        for day in rooms.days
    )
    columns = ["day", "messages", "against the day before", "private", "replies"]
    return html_table("Messages in rooms a day", columns, rows) + _COUNTED


def _growth(rooms: RoomFigures, day: RoomDayFigures) -> str:
    before = rooms.before(day)
    if not before:
        return "-"
    growth = 100 * (day.messages - before) / before
    return f"{'+' if growth >= 0 else '−'}{abs(growth):,.0f} %"


def _agents_title(rooms: RoomFigures) -> str:
    most = max(rooms.days, key=lambda day: day.agents)
    made = sum(day.rooms_made for day in rooms.days)
    return f"Up to {most.agents:,} agents a day posted in rooms; {made:,} rooms were made"


def _agents_table(rooms: RoomFigures) -> str:
    rows = ([f"{day.day}", f"{day.agents:,}", f"{day.rooms:,}", f"{day.rooms_made:,}"] for day in rooms.days)
    return html_table("Agents and rooms a day", ["day", "agents", "rooms with messages", "rooms made"], rows)


def _depth_title(rooms: RoomFigures) -> str:
    replies = sum(day.replies for day in rooms.days)
    mean = sum(day.replies * (day.depth_mean or 0) for day in rooms.days) / replies
    deepest = max(day.depth_max or 0 for day in rooms.days)
    return f"A reply is nested {mean:.1f} deep on average, and {deepest:,} deep at most"


def _depth_table(rooms: RoomFigures) -> str:
    rows = (
        [
            f"{day.day}",
            f"{day.replies:,}",
            "-" if day.depth_mean is None else f"{day.depth_mean:.2f}",
            "-" if day.depth_max is None else f"{day.depth_max:,}",
        ]
        for day in rooms.days
    )
    return html_table("How deep replies are nested", ["day", "replies", "mean", "deepest"], rows)


def _top(rooms: RoomFigures) -> str:
    busiest = next((one for one in rooms.top if one.name is not None), None)
    title = (
        f"The busiest public room has {formatting.share(busiest.messages, rooms.messages)} of the messages in rooms"
        if busiest
        else "No message was posted in a public room"
    )
    rows = (
        [
            "private" if one.name is None else formatting.foreign(one.name),
            f"{one.messages:,}",
            formatting.share(one.messages, rooms.messages),
            f"{one.replies:,}",
        ]
        for one in rooms.top
    )
    table = html_table("Rooms with the most messages", ["room", "messages", "share", "replies"], rows)
    return f"<section><h2>{title}</h2>{table}</section>"
