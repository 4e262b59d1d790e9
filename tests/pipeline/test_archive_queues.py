"""Messages and dead letters of archived queues leave the ledger for the archive after their retention, each once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

import asyncpg
import pytest

from angelia.errors import Conflict
from angelia.pipeline.jobs import archive_queues as job
from angelia.pipeline.jobs.archive_queues import archive_queues
from angelia.pipeline.jobs.erase import erase
from angelia.pipeline.jobs.job_context import JobContext
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at, dies_at_the_second, dying, killed, meanwhile
from queue_rows import EXPIRED, consumed, execute, held_in_queues, made, pushed, retained
from receipt_rows import NOW

LATER = EXPIRED + timedelta(minutes=1)


async def test_a_message_moves_to_the_archive_with_all_that_is_known_of_it_and_its_payload_as_it_was_stored(
    work: Callable[..., JobContext], database_url: str, objects: Objects, connection: asyncpg.Connection
) -> None:
    key_id = uuid.uuid4()
    await made(database_url, "orders", "eu")
    await made(database_url, "fleeting", archiveEnabled=False)
    [plain] = await pushed(database_url, "orders", ['{"n": "ünï"}'], partition="eu", producer="ann")
    [sealed] = await pushed(database_url, "orders", ["ciphertext"], LATER, partition="eu", key_id=key_id)
    fresh = await pushed(database_url, "orders", ["still there"], NOW - timedelta(hours=1), partition="eu")
    await pushed(database_url, "fleeting", ["not archived"])
    await retained(database_url)
    assert (await held_in_queues(database_url, objects)).ledger == sorted([plain, sealed, *fresh])
    report = archive_queues(work())
    assert (report.rows, report.summary) == (2, "2 messages and 0 dead letters archived in 1 runs")
    after = await held_in_queues(database_url, objects)
    assert after.ledger == fresh
    queue_id, partition_id = await connection.fetchrow(
        "SELECT queue_id::text, partition_id::text FROM queue_partitions JOIN queues USING (queue_no) "
        "WHERE queue_partitions.name = 'eu'"
    )
    known = {
        "queue_id": queue_id, "queue": "orders", "partition_id": partition_id, "partition": "eu", "ended": "expired",
        "day": EXPIRED.date(),
    }  # fmt: skip
    assert sorted(after.rows, key=lambda row: row["position"]) == [
        {**known, "message_id": plain, "position": 0, "transaction_id": 't-{"n": "ünï"}', "created_at": EXPIRED,
         "trace_id": 'trace of {"n": "ünï"}', "producer": "ann", "key_id": None, "payload": '{"n": "ünï"}'.encode()},
        {**known, "message_id": sealed, "position": 1, "transaction_id": "t-ciphertext", "created_at": LATER,
         "trace_id": "trace of ciphertext", "producer": None, "key_id": str(key_id), "payload": b"ciphertext"},
    ]  # fmt: skip
    assert await connection.fetchval("SELECT count(*) FROM queue_hidden") == 0


async def test_the_archive_says_how_each_message_ended(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await made(database_url, "orders", maxWaitTimeSeconds=3600)
    await made(database_url, "kept", retryLimit=0)
    late = await pushed(database_url, "orders", ["nobody came"])
    one, two, three, four = await pushed(database_url, "kept", ["one", "two", "three", "four"])
    await consumed(database_url, "kept", 3)
    await consumed(database_url, "kept", 1, group="other")
    await consumed(database_url, "kept", 1, group="other", status="failed")
    await retained(database_url)
    await consumed_to_the_floor(database_url)
    archive_queues(work())
    ended = {row["message_id"]: row["ended"] for row in (await held_in_queues(database_url, objects)).rows}
    assert ended == {late[0]: "evicted", one: "completed", two: "dead", three: "expired", four: "expired"}


async def consumed_to_the_floor(database_url: str) -> None:
    """What a pop after retention does to a cursor: it goes on at the floor."""
    await execute(database_url, "UPDATE queue_cursors SET position = 4")


async def test_deleted_messages_are_not_archived_and_the_archive_does_not_wait_for_them(
    work: Callable[..., JobContext], database_url: str, objects: Objects, connection: asyncpg.Connection
) -> None:
    await made(database_url, "orders", "mixed", "all gone")
    a, _, c, _ = await pushed(database_url, "orders", ["a1", "b2", "c3", "d4"], partition="mixed")
    await pushed(database_url, "orders", ["e5", "f6"], partition="all gone")
    await execute(database_url, "UPDATE queue_partitions SET removed = '{[0,2)}' WHERE name = 'all gone'")
    await execute(database_url, "UPDATE queue_partitions SET removed = '{[1,2), [3,4)}' WHERE name = 'mixed'")
    await retained(database_url)
    assert archive_queues(work()).rows == 2
    after = await held_in_queues(database_url, objects)
    assert (after.ledger, after.archive) == ([], sorted([a, c]))
    assert await connection.fetchval("SELECT count(*) FROM queue_hidden") == 0
    assert await connection.fetchval("SELECT count(purge_floor) FROM queue_partitions") == 0


async def test_dead_letters_are_archived_after_their_retention_and_noted_as_removed(
    work: Callable[..., JobContext], database_url: str, objects: Objects, connection: asyncpg.Connection
) -> None:
    await made(database_url, "orders", retryLimit=0)
    await made(database_url, "fleeting", retryLimit=0, archiveEnabled=False)
    [first, _, fresh] = await pushed(database_url, "orders", ["one", "two", "three"], producer="ann")
    await consumed(database_url, "orders", 1, status="failed")
    await consumed(database_url, "orders", 1)
    await consumed(database_url, "orders", 1, NOW - timedelta(minutes=5), status="failed")
    await pushed(database_url, "fleeting", ["elsewhere"])
    await consumed(database_url, "fleeting", 1, status="failed")
    report = archive_queues(work())
    assert (report.rows, report.figures) == (1, {"messages": 0, "dead_letters": 1})
    after = await held_in_queues(database_url, objects)
    assert (len(after.letters), fresh in after.letters, after.rows) == (2, True, [])
    [row] = after.letter_rows
    assert (row["queue"], row["consumer_group"], row["message_id"], row["payload"], row["error"], row["attempts"]) == (
        "orders", "__QUEUE_MODE__", first, b"one", "it broke", 0,
    )  # fmt: skip
    assert (row["failed_at"], row["day"], row["producer"]) == (EXPIRED, EXPIRED.date(), "ann")
    noted = await connection.fetch("SELECT kind, count FROM queue_retention_history")
    assert [tuple(row) for row in noted] == [("failed", 1)]
    assert archive_queues(work()).rows == 0


async def test_what_was_committed_is_let_go_and_nothing_else_whatever_the_queue_does_meanwhile(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    """Retention goes on in one partition; another queue wants no archive any more."""
    await made(database_url, "orders")
    await made(database_url, "off")
    expired = [*await pushed(database_url, "orders", ["a1", "b2"]), *await pushed(database_url, "off", ["c3"])]
    await retained(database_url)
    next_ = await pushed(database_url, "orders", ["d4"], NOW - timedelta(hours=23))

    async def change() -> None:
        await execute(
            database_url, """UPDATE queues SET options = options || '{"archiveEnabled": false}' WHERE name = 'off'"""
        )
        await retained(database_url, NOW + timedelta(hours=2))

    report = archive_queues(work(step=meanwhile("verified", change)))
    after = await held_in_queues(database_url, objects)
    assert (report.rows, after.ledger, after.archive) == (3, next_, sorted(expired))
    assert archive_queues(work(dry_run=True)).figures["messages"] == 1
    assert archive_queues(work()).rows == 1
    assert (await held_in_queues(database_url, objects)).archive == sorted([*expired, *next_])


async def test_a_run_that_finds_nothing_records_none_and_needs_no_spark_and_a_dry_run_moves_nothing(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await made(database_url, "orders")
    kept = await pushed(database_url, "orders", ["a1", "b2"])
    begun = work()
    del begun.__dict__["spark"]
    report = archive_queues(begun)
    assert (report.rows, report.runs) == (0, [])
    assert "spark" not in begun.__dict__
    await retained(database_url)
    foreseen = archive_queues(work(dry_run=True))
    assert (foreseen.state, foreseen.rows) == ("dry run", 2)
    assert (await held_in_queues(database_url, objects)).ledger == sorted(kept)


@killed
async def test_killed_at_a_step_the_next_run_finishes_the_work_and_each_message_is_archived_once(
    work: Callable[..., JobContext], database_url: str, objects: Objects, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_AT_ONCE", 2)
    partitions = [f"p{n}" for n in range(3)]
    await made(database_url, "orders", *partitions)
    every: list[str] = []
    for name in partitions:
        every += await pushed(database_url, "orders", ["a1", "b2", "c3"], partition=name)
    await retained(database_url)
    for step in ("planned", "written", "committed", "verified", "purging"):
        if killed:
            await dying(database_url, objects, "archive queues", step)
        else:
            with pytest.raises(Died):
                archive_queues(work(step=dies_at(step)))
        now = await held_in_queues(database_url, objects)
        assert now.ledger == sorted(every), step
        assert now.archive == ([] if step == "planned" else sorted(every)), step
    with pytest.raises(Died):
        archive_queues(work(step=dies_at_the_second("purging")))
    assert len((await held_in_queues(database_url, objects)).ledger) == 3
    with pytest.raises(Conflict, match="of archive queues died half way"):
        erase(work(options={"agent": "ann", "reason": "asked"}))
    # What retention hides meanwhile is of the next run.
    later = await pushed(database_url, "orders", ["d4"], LATER, partition="p0")
    await retained(database_url)
    assert archive_queues(work()).rows == 10
    now = await held_in_queues(database_url, objects)
    assert (now.ledger, now.archive) == ([], sorted([*every, *later]))
