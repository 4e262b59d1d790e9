"""Moves expired messages of rooms to the archive, of rooms whose creator wants that.

A room may change while its messages are archived: what was committed is removed from the ledger by its ids, whatever
the room says by then. What the server has removed meanwhile needs no purge.
"""

from __future__ import annotations

import functools
from datetime import UTC, timedelta

from angelia.envelope.times import unix_ms
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.jobs.ledger_to_archive import Move, copy, finish, hand_over, resumed_first
from angelia.pipeline.lake import commit, simulated
from angelia.pipeline.lake.tables import ROOMS
from angelia.pipeline.runs import JobRun
from angelia.runs.model import RunState

JOB = "archive rooms"
# A deletion that began just before its message expired must be over when the message is read.
_MARGIN = timedelta(minutes=1)
# Purged in one transaction: a sweep of the same rooms waits for its end, and posts wait for the sweep.
_AT_ONCE = 2_000


def archive_rooms(work: JobContext) -> JobReport:
    """Archives every expired message of archived rooms; finishes a run that died first."""
    report = JobReport(job=JOB)
    cutoff = work.now - _MARGIN
    with runs.only_one(work.database_url, JOB) as database:
        simulated.only_real(work.objects, work.settings, JOB)
        run, expired = runs.open_run(database, JOB), _expired(work, database, unix_ms(cutoff))
        work.progress.stage("archiving", expired)
        if work.dry_run:
            return report.foreseen(expired, f"{expired:,} messages would be archived{resumed_first(run)}")
        if run is not None:
            finish(work, database, run, MOVE, report)
            expired = _expired(work, database, unix_ms(cutoff))
        if expired:
            behind = commit.version_of(work.objects, ROOMS, JOB)
            run = runs.plan(database, JOB, JOB, work.clock(), cutoff=cutoff, behind=behind)
            finish(work, database, run, MOVE, report)
    report.summary = f"{report.rows:,} messages archived in {len(report.runs)} runs"
    return report


def _expired(work: JobContext, database: Database, cutoff: int) -> int:
    return int(database.rows(work.sql("rooms")["rooms_waiting"], cutoff)[0]["row_count"])


def _commit(work: JobContext, database: Database, run: JobRun) -> None:
    copy(work, ROOMS, run, work.sql("rooms")["rooms_expired"].replace("$1", str(_cutoff_of(run))), {})


def _purge(work: JobContext, database: Database, run: JobRun) -> JobRun:
    """Removes from the ledger exactly the rows that the archive has, with their words, a batch at a time; after a crash
    the next run repeats it."""
    sql, rows = work.sql("rooms"), run.row_count or 0
    if rows:
        with database.transaction():
            hand_over(work, database, ROOMS, run, sql["rooms_given"])
            for statement in ("rooms_numbered_before", "rooms_numbered", "rooms_numbered_key"):
                database.execute(sql[statement])
    for first in range(0, rows, _AT_ONCE):
        database.patiently(functools.partial(_purge_batch, work, database, run, first))
    with database.transaction():
        work.record_run(database, run, {"rows": rows})
        return runs.advance(database, run, RunState.DONE, work.clock(), report={"rows": rows})


def _purge_batch(work: JobContext, database: Database, run: JobRun, first: int) -> None:
    database.rows(work.sql("rooms")["rooms_by_key"])
    database.rows(work.sql("rooms")["rooms_purge_ids"], first, first + _AT_ONCE)
    work.step("purging", run)


def _cutoff_of(run: JobRun) -> int:
    assert run.cutoff is not None
    return unix_ms(run.cutoff.astimezone(UTC))


MOVE = Move(table=ROOMS, commit=_commit, purge=_purge)
