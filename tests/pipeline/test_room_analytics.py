"""What was posted in rooms is counted by day, each message once, and a day that was counted stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from angelia.errors import Conflict
from angelia.pipeline import runs
from angelia.pipeline.jobs import archive_rooms as archiving
from angelia.pipeline.jobs.analytics import analytics
from angelia.pipeline.jobs.archive_rooms import archive_rooms
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.tables import ROOM_DAYS, TOP_ROOMS, Table
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at
from receipt_rows import NOW
from room_rows import agent, deleted, execute, made, posted

YESTERDAY = datetime(2026, 11, 15, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 11, 15, tzinfo=UTC)
OLDER = YESTERDAY - timedelta(days=2)
A_MS = timedelta(milliseconds=1)


def rows(objects: Objects, table: Table = ROOM_DAYS) -> list[dict[str, Any]]:
    return sorted(small_tables.rows(objects, table), key=lambda row: (row["day"], -row["messages"]))


def by_day(objects: Objects) -> dict[str, int]:
    return {f"{row['day']}": row["messages"] for row in rows(objects)}


async def test_a_day_has_its_messages_agents_replies_depths_and_rooms_and_today_is_not_over(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    ann, bob = await agent(database_url, "ann"), await agent(database_url, "bob")
    talk = await made(database_url, "talk", archive=False, at=YESTERDAY)
    quiet = await made(database_url, "quiet", archive=False, at=YESTERDAY - timedelta(days=3))
    await posted(database_url, quiet, ["the day before"], MIDNIGHT - A_MS, author=ann)
    await posted(database_url, quiet, ["midnight"], MIDNIGHT, author=ann)
    [first, unsaid] = await posted(database_url, talk, ["first", "unsaid"], YESTERDAY, author=ann)
    [second] = await posted(database_url, talk, ["second"], YESTERDAY, author=bob, parent=first, depth=1)
    await posted(database_url, talk, ["third"], YESTERDAY, author=ann, parent=second, depth=2)
    await deleted(database_url, talk, unsaid, ann, YESTERDAY)
    for name in ("hidden", "secret"):
        room = await made(database_url, name, archive=False, private=True, at=YESTERDAY)
        await posted(database_url, room, ["psst", "pssst"], YESTERDAY, author=bob)
    await posted(database_url, talk, ["today"], MIDNIGHT + timedelta(days=1), author=ann)
    report = analytics(work())
    assert report.figures["rooms"] == {"days": 3, "messages": 9}
    assert report.summary == "0 days, 0 receipts; rooms: 3 days, 9 messages"
    made_then, before, day = rows(objects)
    assert (made_then["messages"], made_then["rooms_made"], made_then["depth_mean"]) == (0, 1, None)
    assert (before["messages"], before["rooms_made"], before["depth_max"]) == (1, 0, None)
    assert day == {
        "day": MIDNIGHT.date(), "computed_at": NOW, "messages": 8, "private_messages": 4, "replies": 2, "agents": 2,
        "rooms": 4, "depth_mean": 1.5, "depth_max": 2, "rooms_made": 3,
    }  # fmt: skip
    top = [row for row in rows(objects, TOP_ROOMS) if row["day"] == MIDNIGHT.date()]
    assert [(row["room_id"], row["room_name"], row["messages"], row["replies"], row["agents"]) for row in top] == [
        ("private", None, 4, 0, 1),
        (str(talk.room_id), "talk", 3, 2, 2),
        (str(quiet.room_id), "quiet", 1, 0, 1),
    ]
    again = work(now=NOW + timedelta(hours=1))
    del again.__dict__["spark"]
    unchanged = analytics(again)
    assert unchanged.figures["rooms"] == {"days": 0, "messages": 0}
    assert unchanged.summary == "nothing changed: 0 days, 0 receipts"
    assert "spark" not in again.__dict__, "nothing has changed"


async def test_a_room_that_was_imported_was_not_made_here(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await made(database_url, "here", archive=False, at=YESTERDAY)
    old = await made(database_url, "imported", archive=False, at=YESTERDAY)
    await execute(database_url, "INSERT INTO aicq_rooms VALUES ($1, $2, 0)", old.room_id, YESTERDAY)
    analytics(work())
    assert [row["rooms_made"] for row in rows(objects)] == [1]


async def test_what_was_counted_stays_when_the_ledger_forgets_and_grows_when_more_is_found(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    room = await made(database_url, "talk", archive=False, at=OLDER)
    await posted(database_url, room, ["a1", "b2", "c3"], OLDER)
    await posted(database_url, room, ["d4", "e5"], YESTERDAY)
    analytics(work())
    counted = rows(objects), rows(objects, TOP_ROOMS)
    await execute(database_url, "DELETE FROM room_entries WHERE body IN ('a1', 'b2', 'd4', 'e5')")
    assert analytics(work(now=NOW + timedelta(hours=1))).figures["rooms"]["days"] == 0
    assert (rows(objects), rows(objects, TOP_ROOMS)) == counted
    await posted(database_url, room, ["f6", "g7", "h8"], YESTERDAY)
    assert analytics(work(now=NOW + timedelta(hours=2))).figures["rooms"] == {"days": 1, "messages": 3}
    assert by_day(objects) == {"2026-11-13": 3, "2026-11-15": 3}
    assert [row["messages"] for row in rows(objects, TOP_ROOMS)] == [3, 3]


async def test_messages_that_moved_or_died_on_their_way_to_the_archive_are_counted_once(
    work: Callable[..., JobContext], database_url: str, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_AT_ONCE", 2)
    room = await made(database_url, "talk", at=OLDER)
    await posted(database_url, room, ["a1", "b2", "c3"], OLDER)
    archive_rooms(work())
    await posted(database_url, room, ["d4", "e5", "f6"], OLDER + timedelta(hours=1))
    seen: list[str] = []

    def in_the_middle(name: str, run: runs.JobRun) -> None:
        seen.append(name)
        if seen.count("purging") == 2:
            raise Died

    with pytest.raises(Died):
        archive_rooms(work(step=in_the_middle))  # of the last three, one is in the ledger as well
    assert analytics(work()).figures["rooms"]["messages"] == 6
    archive_rooms(work())
    foreseen = analytics(work(dry_run=True))
    assert (foreseen.figures["room_days"], by_day(objects)) == (0, {"2026-11-13": 6})


async def test_a_run_that_died_before_it_wrote_the_days_counts_them_again(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await posted(database_url, await made(database_url, "talk", archive=False), ["a1"], YESTERDAY)
    with pytest.raises(Died):
        analytics(work(step=dies_at("rooms counted")))
    assert analytics(work()).figures["rooms"]["messages"] == 1
    assert (by_day(objects)["2026-11-15"], len(rows(objects, TOP_ROOMS))) == (1, 1)


async def test_only_the_days_that_were_asked_for_are_counted_and_a_dry_run_counts_none(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    room = await made(database_url, "talk", archive=False, at=YESTERDAY)
    await posted(database_url, room, ["a1"], YESTERDAY - timedelta(days=2))
    await posted(database_url, room, ["b2", "c3"], YESTERDAY)
    assert analytics(work(dry_run=True)).figures["room_days"] == 2
    assert analytics(work(since=MIDNIGHT)).figures["rooms"] == {"days": 1, "messages": 2}
    assert by_day(objects) == {"2026-11-15": 2}
    with runs.only_one(database_url, archiving.JOB), pytest.raises(Conflict):
        analytics(work())
