"""What the report says of rooms, read from what analytics wrote."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow.compute as pc

from angelia.pipeline.lake import small_tables as lake
from angelia.pipeline.lake.tables import DAY, ROOM_DAYS, TOP_ROOMS
from angelia.stores.objects import Objects

_TOP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomDayFigures:
    """A day of the period on which a message was posted or a room was made."""

    day: date
    messages: int
    private_messages: int
    replies: int
    agents: int
    rooms: int
    depth_mean: float | None
    depth_max: int | None
    rooms_made: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRoom:
    """One room over the whole period; without a name, all private rooms."""

    name: str | None
    messages: int
    replies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomFigures:
    """Everything about rooms that is on the page."""

    days: list[RoomDayFigures]
    top: list[TopRoom]

    @property
    def period(self) -> list[date]:
        """Every day from the first to the last, also those without messages."""
        first, last = self.days[0].day, self.days[-1].day
        return [first + timedelta(days=offset) for offset in range((last - first).days + 1)]

    @property
    def days_with_messages(self) -> int:
        return sum(day.messages > 0 for day in self.days)

    @property
    def messages(self) -> int:
        return sum(day.messages for day in self.days)

    def before(self, day: RoomDayFigures) -> int:
        """How many messages were posted on the day before."""
        return next((one.messages for one in self.days if one.day == day.day - timedelta(days=1)), 0)


def read(objects: Objects) -> RoomFigures:
    """All that was counted of rooms; no days if nothing was."""
    names = [one.name for one in ROOM_DAYS.columns if one.name != "computed_at"]
    known = sorted(lake.rows(objects, ROOM_DAYS), key=lambda row: row[DAY])
    days = [RoomDayFigures(day=row[DAY], **{name: row[name] for name in names}) for row in known]
    return RoomFigures(days=days, top=_top(objects))


def _top(objects: Objects) -> list[TopRoom]:
    """The rooms with the most messages, among those that were counted by themselves."""
    columns = {name: pc.field(name) for name in ("messages", "replies")}
    summed = lake.sums(objects, TOP_ROOMS, "room_id", columns, pc.field("messages") > 0)
    names = {row["room_id"]: row["room_name"] for row in lake.rows(objects, TOP_ROOMS)}
    top = pc.select_k_unstable(summed, _TOP, [("messages", "descending"), ("room_id", "ascending")])
    return [
        TopRoom(name=names[row["room_id"]], messages=row["messages"], replies=row["replies"])
        for row in summed.take(top).to_pylist()
    ]
