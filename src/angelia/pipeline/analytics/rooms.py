"""Counts the messages of rooms by day, from ledger and archive together.

Messages leave the ledger when they expire, so a day is counted once it is over, and what was counted stays: a later run
replaces it only if it finds more messages of that day.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from angelia.envelope.times import unix_ms
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs import archive_rooms
from angelia.pipeline.jobs.job_context import JobContext, midnight
from angelia.pipeline.lake import listing, small_tables
from angelia.pipeline.lake.listing import TableFile
from angelia.pipeline.lake.tables import DAY, ROOM_DAYS, ROOMS, TOP_ROOMS
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import archive, ledger
from angelia.pipeline.sources.ledger import Snapshot

PRIVATE = "private"  # stands for all private rooms, whose ids and names are in no result
_MOST_ROOMS = 100  # of each day
_NEEDED = ("room_id", "room_name", "is_private", "message_id", "author", "depth")
_NARROW = replace(ROOMS, columns=tuple(one for one in ROOMS.columns if one.name in _NEEDED))
_NOTHING = {
    "messages": 0, "private_messages": 0, "replies": 0, "agents": 0, "rooms": 0, "depth_mean": None, "depth_max": None,
}  # fmt: skip

RoomDay = dict[str, Any]  # a row of the table of days


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsPresent:
    """What there is of past days: messages by day, rooms that were made, and what was counted before."""

    days: Mapping[date, int]  # at most so many messages: some may be in both places
    made: Mapping[date, int]
    counted: Mapping[date, RoomDay]
    files: Sequence[TableFile]
    dead: str | None  # the run of the archive that died, if one did: messages in its files may be in the ledger, too

    @property
    def to_count(self) -> list[date]:
        """Days of which there are more messages than were counted before."""
        known = {day: row["messages"] for day, row in self.counted.items()}
        return sorted(day for day, messages in self.days.items() if messages > known.get(day, -1))

    @property
    def rows(self) -> int:
        return sum(self.days[day] for day in self.to_count)


def present(work: JobContext, then: Database) -> RoomsPresent:
    """What there is of past days; of a simulated archive, nothing. The caller holds the lock of `archive rooms`, so
    that no message moves meanwhile."""
    if work.simulated:
        return RoomsPresent(days={}, made={}, counted={}, files=(), dead=None)
    today = midnight(work.now.astimezone(UTC).date())
    sql, dead = work.sql("rooms"), runs.open_run(then, archive_rooms.JOB)
    found: dict[date, int] = {row[DAY]: row["row_count"] for row in then.rows(sql["rooms_by_day"], unix_ms(today))}
    files = [file for file in listing.files(work.objects, ROOMS) if file.day < today.date()]
    for file in files:
        found[file.day] = found.get(file.day, 0) + file.rows
    made = {row[DAY]: row["row_count"] for row in then.rows(sql["rooms_made_by_day"], today)}
    return RoomsPresent(
        days={day: count for day, count in found.items() if work.covers(day)},
        made={day: count for day, count in made.items() if work.covers(day)},
        counted={row[DAY]: row for row in small_tables.rows(work.objects, ROOM_DAYS)},
        files=files,
        dead=None if dead is None else dead.run_id,
    )


def count(work: JobContext, run: JobRun, rooms: RoomsPresent, snapshot: Snapshot) -> list[RoomDay]:
    """Counts the days that have more messages than were counted before, and writes the results; returns the days that
    changed. The days are written last: after a crash before that, they are counted again."""
    days: dict[date, RoomDay] = {}
    top: list[dict[str, Any]] = []
    if rooms.to_count:
        with _messages(work, rooms, snapshot) as frame:
            days = {row[DAY]: row for row in _days(frame) if _more(row, rooms.counted.get(row[DAY]))}
            top = [row for row in _top(frame) if row[DAY] in days]
    changed = [row for row in _rows(work, rooms, days) if _differs(row, rooms.counted.get(row[DAY]))]
    small_tables.put_days(work.objects, TOP_ROOMS, top, days.keys(), run)
    work.step("rooms counted", run)
    small_tables.put_days(work.objects, ROOM_DAYS, changed, [row[DAY] for row in changed], run)
    return changed


@contextmanager
def _messages(work: JobContext, rooms: RoomsPresent, snapshot: Snapshot) -> Iterator[DataFrame]:
    """The messages of the days to count, each once. A run of the archive that died has left messages in both places, or
    has purged some of them already."""
    wanted = rooms.to_count
    first, end = _span(wanted)
    bounds = (unix_ms(midnight(first)), unix_ms(midnight(end)))
    statement = f"SELECT * FROM ({work.sql('rooms')['rooms']}) AS m WHERE ts >= {bounds[0]} AND ts < {bounds[1]}"  # noqa: S608
    here = ledger.read(work, statement, _NARROW.schema, snapshot).where(f.col(DAY).isin(wanted)).persist()
    files = [file for file in rooms.files if file.day in wanted]
    half_moved = [file for file in files if rooms.dead is not None and file.name.startswith(rooms.dead)]
    frame = here
    if moved := [file for file in files if file not in half_moved]:
        frame = frame.unionByName(archive.read(work.spark, work.objects, _NARROW, moved))
    if half_moved:
        twice = archive.read(work.spark, work.objects, _NARROW, half_moved)
        frame = frame.unionByName(twice.join(here.select("message_id"), "message_id", "left_anti"))
    try:
        yield frame
    finally:
        here.unpersist()


def _days(frame: DataFrame) -> list[RoomDay]:
    answers, depth = f.col("depth") > 0, f.col("depth")
    found = frame.groupBy(DAY).agg(
        f.count("*").alias("messages"),
        _how_many(f.col("is_private")).alias("private_messages"),
        _how_many(answers).alias("replies"),
        f.countDistinct("author").alias("agents"),
        f.countDistinct("room_id").alias("rooms"),
        f.avg(f.when(answers, depth)).alias("depth_mean"),
        f.max(f.when(answers, depth)).alias("depth_max"),
    )
    days: list[RoomDay] = found.toArrow().to_pylist()
    return days


def _top(frame: DataFrame) -> list[dict[str, Any]]:
    """The public rooms with the most messages of each day, and all private ones together."""
    room = f.when(f.col("is_private"), PRIVATE).otherwise(f.col("room_id")).alias("room_id")
    counted = frame.groupBy(DAY, room).agg(
        f.max("room_name").alias("room_name"),
        f.count("*").alias("messages"),
        _how_many(f.col("depth") > 0).alias("replies"),
        f.countDistinct("author").alias("agents"),
    )
    private = f.col("room_id") == PRIVATE
    place = f.row_number().over(Window.partitionBy(DAY, private).orderBy(f.desc("messages"), "room_id"))
    first = counted.withColumn("place", place).where(f.col("place") <= _MOST_ROOMS).drop("place")
    top: list[dict[str, Any]] = first.toArrow().to_pylist()
    return top


def _how_many(condition: Column) -> Column:
    return f.sum(condition.cast("long"))


def _more(row: RoomDay, before: RoomDay | None) -> bool:
    return before is None or row["messages"] > before["messages"]


def _rows(work: JobContext, rooms: RoomsPresent, new: Mapping[date, RoomDay]) -> list[RoomDay]:
    """Every day that has messages or a new room, as it is known now."""
    known = {**rooms.counted, **new}
    made = {day: row.get("rooms_made", 0) for day, row in rooms.counted.items()} | dict(rooms.made)
    return [
        {**_NOTHING, **known.get(day, {}), DAY: day, "computed_at": work.now, "rooms_made": made.get(day, 0)}
        for day in sorted(known.keys() | made.keys())
    ]


def _differs(row: RoomDay, before: RoomDay | None) -> bool:
    return before is None or any(row[name] != before[name] for name in (*_NOTHING, "rooms_made"))


def _span(days: Collection[date]) -> tuple[date, date]:
    """The first of the days, and the day after the last."""
    return min(days), max(days) + timedelta(days=1)
