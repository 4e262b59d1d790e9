"""Expired messages of archived rooms leave the ledger for the archive, each once, whatever the room does meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest

from angelia.envelope.times import unix_ms
from angelia.errors import Conflict
from angelia.pipeline.jobs import archive_rooms as job
from angelia.pipeline.jobs.archive_rooms import archive_rooms
from angelia.pipeline.jobs.erase import erase
from angelia.pipeline.jobs.job_context import JobContext
from angelia.rooms.model import Room
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at, dies_at_the_second, dying, killed, meanwhile
from receipt_rows import NOW
from room_rows import EXPIRED, KEPT, agent, deleted, execute, held_messages, made, packed, posted

MIDNIGHT = datetime(2026, 11, 14, tzinfo=UTC)
A_MS = timedelta(milliseconds=1)


async def retain(database_url: str, room: Room, kept: timedelta) -> None:
    seconds = int(kept.total_seconds())
    await execute(database_url, "UPDATE rooms SET retention_seconds = $2 WHERE room_id = $1", room.room_id, seconds)


async def test_an_expired_message_moves_to_the_archive_with_all_that_is_known_of_it(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    room, author = await made(database_url, "talk"), await agent(database_url, "ann")
    [first] = await posted(database_url, room, ["Hello, who is there?"], author=author)
    [reply] = await posted(database_url, room, ["It is me, ünïcode"], author=author, parent=first, depth=1)
    fresh = await posted(database_url, room, ["still there"], NOW - KEPT + timedelta(hours=1))
    others = await posted(database_url, await made(database_url, "fleeting", archive=False), ["not archived"])
    report = archive_rooms(work())
    after = await held_messages(database_url, objects)
    assert report.rows == 2
    assert after.ledger == sorted(map(str, [*fresh, *others]))
    known = {
        "room_id": str(room.room_id), "room_name": "talk", "is_private": False, "author": str(author),
        "day": EXPIRED.date(),
    }  # fmt: skip
    told, answer = sorted(after.rows, key=lambda row: row["ts"])
    assert json.loads(told.pop("proof"))["signature"] == "proof of Hello, who is there?"
    assert json.loads(answer.pop("proof"))["signature"] == "proof of It is me, ünïcode"
    assert told == {**known, "message_id": str(first), "ts": first.ts, "body": "Hello, who is there?",
                    "parent_id": None, "depth": 0}  # fmt: skip
    assert answer == {**known, "message_id": str(reply), "ts": reply.ts, "body": "It is me, ünïcode",
                      "parent_id": str(first), "depth": 1}  # fmt: skip


async def test_a_message_expires_to_the_millisecond_and_belongs_to_the_day_on_which_it_was_posted(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    room, due = await made(database_url, "talk"), NOW - job._MARGIN - KEPT
    for at in (MIDNIGHT - A_MS, MIDNIGHT, due, due + A_MS):
        await posted(database_url, room, ["said"], at)
    assert archive_rooms(work()).rows == 3
    after = await held_messages(database_url, objects)
    assert {(row["ts"], row["day"]) for row in after.rows} == {
        (unix_ms(MIDNIGHT - A_MS), date(2026, 11, 13)),
        (unix_ms(MIDNIGHT), date(2026, 11, 14)),
        (unix_ms(due), due.date()),
    }
    assert len(after.ledger) == 1


async def test_the_words_of_archived_messages_leave_the_index_and_those_of_others_stay(
    work: Callable[..., JobContext], database_url: str, objects: Objects, connection: asyncpg.Connection
) -> None:
    room, other = await made(database_url, "talk"), await made(database_url, "fleeting", archive=False)
    await posted(database_url, room, ["one two three", "two three four"])
    await posted(database_url, other, ["one two three", "two three four"])
    await packed(database_url)
    await posted(database_url, room, ["three four five"])
    await posted(database_url, other, ["three four five"])
    assert (await held_messages(database_url, objects)).unpacked == 2
    archive_rooms(work())
    assert (await held_messages(database_url, objects)).unpacked == 1
    left = await connection.fetch("SELECT room_id, count(place) FROM room_entries GROUP BY 1")
    assert [tuple(row) for row in left] == [(other.room_id, 3)], "places of the others are empty"


async def test_private_rooms_are_archived_without_their_names_and_notes_of_deletions_are_not(
    work: Callable[..., JobContext], database_url: str, objects: Objects, connection: asyncpg.Connection
) -> None:
    room, author = await made(database_url, "secret-plans", private=True), await agent(database_url, "ann")
    kept, gone = await posted(database_url, room, ["said", "regretted"], author=author)
    await deleted(database_url, room, gone, author, EXPIRED + timedelta(minutes=1))
    assert archive_rooms(work()).rows == 1
    [row] = (await held_messages(database_url, objects)).rows
    assert (row["room_id"], row["room_name"], row["is_private"], row["message_id"]) == (
        str(room.room_id), None, True, str(kept),
    )  # fmt: skip
    assert await connection.fetchval("SELECT count(*) FROM room_entries WHERE body IS NULL") == 1


async def test_a_run_that_finds_nothing_records_none_and_needs_no_spark(
    work: Callable[..., JobContext], database_url: str
) -> None:
    await posted(database_url, await made(database_url, "fleeting", archive=False), ["not archived"])
    begun = work()
    del begun.__dict__["spark"]
    report = archive_rooms(begun)
    assert (report.rows, report.runs, report.summary) == (0, [], "0 messages archived in 0 runs")
    assert "spark" not in begun.__dict__


async def test_a_dry_run_says_how_many_and_moves_none(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await posted(database_url, await made(database_url, "talk"), ["a1", "b2", "c3"])
    report = archive_rooms(work(dry_run=True))
    assert (report.state, report.rows) == ("dry run", 3)
    assert len((await held_messages(database_url, objects)).ledger) == 3


async def test_what_was_committed_is_purged_and_nothing_else_whatever_the_room_keeps_by_then(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    """One creator keeps messages longer in this moment, another not so long; a third wants no archive any more, and the
    server has removed a message."""
    longer, shorter, off = [await made(database_url, name) for name in ("longer", "shorter", "off")]
    expired = [*await posted(database_url, longer, ["a1", "b2"]), *await posted(database_url, shorter, ["c3"])]
    swept, _ = both = await posted(database_url, off, ["d4", "e5"])
    fresh = await posted(database_url, shorter, ["f6"], NOW - timedelta(hours=2))

    async def change() -> None:
        await retain(database_url, longer, timedelta(days=30))
        await retain(database_url, shorter, timedelta(hours=1))
        await execute(database_url, "UPDATE rooms SET archive = false WHERE room_id = $1", off.room_id)
        await execute(database_url, "DELETE FROM room_entries WHERE ts = $1 AND room_id = $2", swept.ts, off.room_id)

    report = archive_rooms(work(step=meanwhile("verified", change)))
    after = await held_messages(database_url, objects)
    assert (report.rows, len(report.runs)) == (5, 1)
    assert (after.ledger, after.archive) == ([str(fresh[0])], sorted(map(str, [*expired, *both])))
    assert archive_rooms(work(dry_run=True)).rows == 1, "what has expired by the shorter time"


async def test_a_room_that_is_no_longer_archived_when_the_run_reads_it_leaves_nothing_to_do(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await posted(database_url, await made(database_url, "talk"), ["a1"])
    turned_off = meanwhile("planned", lambda: execute(database_url, "UPDATE rooms SET archive = false"))
    report = archive_rooms(work(step=turned_off))
    after = await held_messages(database_url, objects)
    assert (report.rows, len(after.ledger), after.archive) == (0, 1, [])


@killed
async def test_killed_at_a_step_the_next_run_finishes_the_work_and_each_message_is_archived_once(
    work: Callable[..., JobContext], database_url: str, objects: Objects, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_AT_ONCE", 4)
    room = await made(database_url, "talk")
    every = set(map(str, await posted(database_url, room, [f"message {n}" for n in range(10)])))
    for step in ("planned", "written", "committed", "verified", "purging"):
        if killed:
            await dying(database_url, objects, "archive rooms", step)
        else:
            with pytest.raises(Died):
                archive_rooms(work(step=dies_at(step)))
        now = await held_messages(database_url, objects)
        assert set(now.ledger) == every, step
        assert now.archive == ([] if step == "planned" else sorted(every)), step
    with pytest.raises(Died):
        archive_rooms(work(step=dies_at_the_second("purging")))
    assert len((await held_messages(database_url, objects)).ledger) == 6
    with pytest.raises(Conflict, match="died half way"):
        erase(work(options={"agent": "ann", "reason": "asked"}))
    # What is posted meanwhile is of the next run.
    later = await posted(database_url, room, ["later"], EXPIRED + timedelta(hours=1))
    assert archive_rooms(work()).rows == 11
    now = await held_messages(database_url, objects)
    assert (now.ledger, now.unpacked, now.archive) == ([], 0, sorted([*every, *map(str, later)]))
