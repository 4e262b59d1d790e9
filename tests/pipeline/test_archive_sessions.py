"""Idle rotation schedules leave the ledger for the archive; one that is used again, at whatever moment, stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import asyncpg
import pytest

from angelia.pipeline import runs
from angelia.pipeline.jobs.archive_sessions import IDLE, archive_sessions
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake.tables import SESSIONS
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at, dying, killed
from receipt_rows import NOW
from schedule_rows import scheduled, sessions_in

AGED = NOW - IDLE - timedelta(days=3)
FRESH = NOW - IDLE + timedelta(hours=1)


async def use(database_url: str, pairs: str, at: datetime) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE ratchet_states SET last_used_at = $2 WHERE agent_a_nhi LIKE $1", pairs, at)
    await connection.close()


async def test_an_idle_schedule_moves_to_the_archive_without_what_was_encrypted_in_it(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    idle = await scheduled(database_url, 300, AGED)
    fresh = await scheduled(database_url, 20, FRESH, prefix="fresh")
    report = archive_sessions(work())
    after = await sessions_in(database_url, objects)
    assert report.rows == 300
    assert (after.ledger, after.archive) == (sorted(fresh), sorted(idle))
    assert {"state_ciphertext", "grace_period_keys"}.isdisjoint(SESSIONS.schema.names)
    assert after.days == {AGED.date()}


async def test_a_rotation_that_became_due_lately_keeps_a_schedule_and_one_that_nobody_answers_does_not(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    waiting = await scheduled(database_url, 5, AGED, prefix="waiting", due_since=FRESH)
    forsaken = await scheduled(database_url, 5, AGED, prefix="forsaken", due_since=AGED + timedelta(hours=1))
    archive_sessions(work())
    after = await sessions_in(database_url, objects)
    assert (after.ledger, after.archive) == (sorted(waiting), sorted(forsaken))


async def test_a_schedule_that_is_used_while_it_is_archived_stays_and_leaves_the_archive_again(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    idle = await scheduled(database_url, 40, AGED)
    used = await scheduled(database_url, 3, AGED, prefix="used")

    def step(name: str, _run: runs.JobRun) -> None:
        if name == "verified":
            meanwhile = threading.Thread(target=lambda: asyncio.run(use(database_url, "used%", NOW)))
            meanwhile.start()
            meanwhile.join()

    report = archive_sessions(work(step=step))
    after = await sessions_in(database_url, objects)
    assert (after.ledger, after.archive) == (sorted(used), sorted(idle))
    assert report.rows == 40
    # Idle once more, a schedule is archived once more: the archive has it once.
    await use(database_url, "used%", AGED)
    assert archive_sessions(work()).rows == 3
    again = await sessions_in(database_url, objects)
    assert (again.ledger, again.archive) == ([], sorted([*idle, *used]))


async def test_a_dry_run_says_how_many_and_moves_none(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await scheduled(database_url, 7, AGED)
    report = archive_sessions(work(dry_run=True))
    assert (report.state, report.rows) == ("dry run", 7)
    assert len((await sessions_in(database_url, objects)).ledger) == 7


@killed
async def test_killed_at_a_step_the_next_run_finishes_the_work_and_no_session_is_twice_or_nowhere(
    work: Callable[..., JobContext], database_url: str, objects: Objects, killed: bool
) -> None:
    every = set(await scheduled(database_url, 50, AGED))
    for step in ("written", "committed", "purging", "purged"):
        if killed:
            await dying(database_url, objects, "archive sessions", step)
        else:
            with pytest.raises(Died):
                archive_sessions(work(step=dies_at(step)))
        await nothing_is_lost(database_url, objects, every, step)
    assert archive_sessions(work()).rows == 50
    now = await sessions_in(database_url, objects)
    assert (now.ledger, now.archive) == ([], sorted(every))


async def nothing_is_lost(database_url: str, objects: Objects, every: set[str], step: str) -> None:
    now = await sessions_in(database_url, objects)
    assert len(set(now.archive)) == len(now.archive), step
    assert set(now.ledger) | set(now.archive) == every, step
