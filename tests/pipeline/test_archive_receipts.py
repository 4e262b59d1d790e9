"""Receipts leave the ledger for the archive: each is in one of the two, and in one only, whatever dies when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

import asyncpg
import pytest
from pyspark.sql import SparkSession

from angelia.errors import Conflict, Unavailable
from angelia.pipeline import runs
from angelia.pipeline.jobs.archive_receipts import JOB, archive_receipts
from angelia.pipeline.jobs.job_context import JobContext, midnight
from angelia.settings import Settings
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at, dying, killed
from receipt_rows import NOW, OLD, OwnLedger, days_before, fill, held

STEPS = ["planned", "written", "committed", "verified", "purging", "done"]


async def test_a_closed_day_moves_to_the_archive_and_its_partition_is_gone(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 2_000)
    before = await held(database_url, objects)
    report = archive_receipts(work())
    after = await held(database_url, objects)
    assert report.rows == 2_000
    assert after.ledger == []
    assert sorted(after.archive) == sorted(before.ledger)
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("SELECT to_regclass('delivery_receipts_20261001')") is None
    await connection.close()


async def test_what_is_younger_than_thirty_days_stays(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    young = (NOW - timedelta(days=30)).date()
    await fill(database_url, young, 100)
    await fill(database_url, young - timedelta(days=1), 50)
    archive_receipts(work())
    after = await held(database_url, objects)
    assert (len(after.ledger), len(after.archive)) == (100, 50)


async def test_a_day_whose_messages_are_under_way_waits(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 10)
    await fill(database_url, OLD, 3, status="pending")
    report = archive_receipts(work())
    assert (report.rows, report.figures["waiting"]) == (0, 3)
    assert len((await held(database_url, objects)).ledger) == 13


async def test_a_day_is_moved_whole_even_if_somebody_names_a_time_of_it(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 3, status="pending")
    noon = midnight(OLD) + timedelta(hours=12)
    assert archive_receipts(work(since=noon)).figures["waiting"] == 3
    assert len((await held(database_url, objects)).ledger) == 3


async def test_acknowledgements_go_on_while_days_are_purged(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 200)
    await fill(database_url, NOW.date(), 5)
    done, acknowledged = threading.Event(), list[int]()

    async def acknowledge() -> None:
        connection = await asyncpg.connect(database_url)
        while not done.is_set():
            async with connection.transaction():
                # By its replay key, as mail does it: every partition is looked at.
                await connection.execute(
                    """UPDATE delivery_receipts SET delivery_attempts = 2 WHERE replay_key =
                       (SELECT replay_key FROM delivery_receipts ORDER BY sent_at DESC LIMIT 1)"""
                )
                await asyncio.sleep(0.02)
            acknowledged.append(1)
        await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(acknowledge()))
    thread.start()
    try:
        assert archive_receipts(work()).rows == 200
    finally:
        done.set()
        thread.join()
    assert len(acknowledged) > 10
    assert len((await held(database_url, objects)).ledger) == 5


async def test_rows_that_missed_their_partition_are_archived_too(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 20, partition=False)
    assert archive_receipts(work()).rows == 20
    assert (await held(database_url, objects)).ledger == []


async def test_rows_that_come_while_their_day_is_archived_stay_and_are_the_next_runs(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 300)

    def step(name: str, run: runs.JobRun) -> None:
        if name == "committed" and run.version == 1:
            late = threading.Thread(target=lambda: asyncio.run(fill(database_url, OLD, 7)))
            late.start()
            late.join()

    report = archive_receipts(work(step=step))
    after = await held(database_url, objects)
    assert (len(report.runs), report.rows) == (2, 307)
    assert (after.ledger, len(after.archive), len(set(after.archive))) == ([], 307, 307)


async def test_of_two_archivers_the_second_is_told_who_is_at_work(
    work: Callable[..., JobContext], database_url: str
) -> None:
    await fill(database_url, OLD, 5)
    with runs.only_one(database_url, JOB) as database:
        run = runs.plan(database, JOB, JOB, NOW)
        with pytest.raises(Conflict, match=f"run {run.run_id[:8]} of this job has been open") as refusal:
            archive_receipts(work())
    assert refusal.value.hint is not None
    assert "pipeline status" in refusal.value.hint


@killed
async def test_killed_at_each_step_the_next_run_finishes_the_work_and_nothing_is_twice_or_nowhere(
    work: Callable[..., JobContext], database_url: str, objects: Objects, killed: bool
) -> None:
    for day in days_before(2):
        await fill(database_url, day, 500)
    before = (await held(database_url, objects)).ledger
    for step in STEPS:
        if killed or step == "committed":  # one real kill in every run; rows are in both places then
            await dying(database_url, objects, JOB, step)
        else:
            with pytest.raises(Died):
                archive_receipts(work(step=dies_at(step)))
        now = await held(database_url, objects)
        assert len(set(now.archive)) == len(now.archive), step
        assert set(now.ledger) | set(now.archive) == set(before), step
    assert archive_receipts(work()).rows == 0
    assert (now.ledger, sorted(now.archive)) == ([], sorted(before))


def test_postgresql_killed_while_files_are_written_and_while_rows_are_purged(
    spark: SparkSession, own_ledger: OwnLedger, objects: Objects
) -> None:
    def work(step: Callable[[str, runs.JobRun], None] = lambda _name, _run: None) -> JobContext:
        given = JobContext(
            settings=Settings(), database_url=own_ledger.url, objects=objects, now=NOW, stack=ExitStack(), step=step
        )
        given.__dict__["spark"] = spark
        return given

    for day in days_before(2):
        asyncio.run(fill(own_ledger.url, day, 200))
    before = asyncio.run(held(own_ledger.url, objects)).ledger
    for deadly in ["written", "purging"]:

        def step(name: str, run: runs.JobRun, deadly: str = deadly) -> None:
            if name == deadly:
                own_ledger.kill()

        with pytest.raises(Unavailable):
            archive_receipts(work(step))
        own_ledger.restart()
        now = asyncio.run(held(own_ledger.url, objects))
        assert sorted(now.ledger) == sorted(before), "nothing left the ledger"
        assert sorted(now.archive) == sorted(before), "what was written is committed, once"
    assert archive_receipts(work()).rows == 400
    after = asyncio.run(held(own_ledger.url, objects))
    assert (after.ledger, sorted(after.archive)) == ([], sorted(before))
