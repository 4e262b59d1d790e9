"""Moves rotation schedules that were idle for a long time to the archive.

A schedule that is used while it is archived stays in the ledger, and its copy leaves the archive before the run is
done: a schedule is in one of the two.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as f

from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.jobs.ledger_to_archive import (
    Move,
    archived_ids,
    copy,
    end_of,
    files_of,
    finish,
    hand_over,
    resumed_first,
)
from angelia.pipeline.lake import commit, simulated, writer
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import SESSIONS
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import archive
from angelia.runs.model import RunState

JOB = "archive sessions"
IDLE = timedelta(days=90)
_EVER = datetime(1970, 1, 1, tzinfo=UTC)
_CORRECTED = f"{JOB}, corrected"  # the app id of the commit that removes such copies


def archive_sessions(work: JobContext) -> JobReport:
    """Archives every idle schedule; finishes a run that died first."""
    report = JobReport(job=JOB)
    cutoff = end_of(work, "sessions", work.now - IDLE, "are not idle yet")
    with runs.only_one(work.database_url, JOB) as database:
        simulated.only_real(work.objects, work.settings, JOB)
        run, idle = runs.open_run(database, JOB), _idle(work, database, cutoff)
        work.progress.stage("archiving", idle)
        if work.dry_run:
            return report.foreseen(idle, f"{idle:,} sessions would be archived{resumed_first(run)}")
        if run is not None:
            finish(work, database, run, MOVE, report)
            idle = _idle(work, database, cutoff)
        if idle:
            behind = commit.version_of(work.objects, SESSIONS, JOB)
            run = runs.plan(database, JOB, JOB, work.clock(), cutoff=cutoff, behind=behind)
            finish(work, database, run, MOVE, report)
    report.summary = f"{report.rows:,} sessions archived in {len(report.runs)} runs"
    return report


def _idle(work: JobContext, database: Database, cutoff: datetime) -> int:
    return int(database.rows(work.sql("keys")["sessions_idle"], cutoff)[0]["row_count"])


def _commit(work: JobContext, database: Database, run: JobRun) -> None:
    copy(work, SESSIONS, run, work.sql("keys")["sessions"], {"idle_since": (_EVER, _cutoff_of(run))})


def _purge(work: JobContext, database: Database, run: JobRun) -> JobRun:
    """Removes from the ledger what is still idle, then from the archive what is not. The ledger decides in one
    statement: an agent that uses a schedule at this moment keeps it or makes a new one."""
    if run.state is RunState.VERIFIED:
        with database.transaction():
            hand_over(work, database, SESSIONS, run, work.sql("keys")["sessions_given"])
            database.rows(work.sql("keys")["sessions_purge_ids"], _cutoff_of(run))
            work.step("purging", run)
            run = runs.advance(database, run, RunState.PURGED, work.clock())
        work.step("purged", run)
    used = _used(work, database, run)
    if used:
        _take_back(work, run, used)
        work.step("taken back", run)
    rows = sum(file.rows for file in files_of(work, SESSIONS, run))
    done = {"rows": rows, "used_meanwhile": commit.change(work.objects, SESSIONS, _correction(run)).rows}
    with database.transaction():
        work.record_run(database, run, {"to": f"{_cutoff_of(run):%F}", **done})
        return runs.advance(database, run, RunState.DONE, work.clock(), row_count=rows, report=done)


def _used(work: JobContext, database: Database, run: JobRun) -> list[str]:
    """Sessions of a run that are in the ledger after the purge, because they were used since they were read."""
    if not files_of(work, SESSIONS, run):
        return []
    with database.transaction():
        archived_ids(work, database, SESSIONS, run)
        return [row["session_id"] for row in database.rows(work.sql("keys")["sessions_kept"])]


def _take_back(work: JobContext, run: JobRun, used: list[str]) -> None:
    """Rewrites the run's files without these sessions."""
    files = files_of(work, SESSIONS, run)
    rows = archive.read(work.spark, work.objects, SESSIONS, files).where(~f.col(SESSIONS.id).isin(used))
    mark = Mark(_CORRECTED, run.version)
    writer.write(rows, work.objects, SESSIONS, mark, _correction(run), files=files, rows=len(used))


def _correction(run: JobRun) -> str:
    """The prefix of corrected files, which belong to the run as well."""
    return f"{run.run_id}-used"


def _cutoff_of(run: JobRun) -> datetime:
    assert run.cutoff is not None
    return run.cutoff.astimezone(UTC)


MOVE = Move(table=SESSIONS, commit=_commit, purge=_purge)
