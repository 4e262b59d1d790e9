"""Moves receipts of closed days from the ledger to the archive: read, committed, verified, and only then removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from angelia.mail.model import closed_before
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport, midnight
from angelia.pipeline.jobs.ledger_to_archive import Move, NotTheSame, archived_ids, copy, end_of, finish, resumed_first
from angelia.pipeline.lake import commit, simulated
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.pipeline.runs import JobRun
from angelia.runs.model import RunState

JOB = "archive receipts"
_MOST_DAYS = 7  # of one run: what a crash makes the next run repeat
_MOST_ROWS = 5_000_000
_EVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LedgerDay:
    """The receipts of a day in the ledger."""

    day: date
    row_count: int
    pending: int


def archive_receipts(work: JobContext) -> JobReport:
    """Archives every closed day that has receipts; finishes a run that died first."""
    report = JobReport(job=JOB)
    with runs.only_one(work.database_url, JOB) as database:
        simulated.only_real(work.objects, work.settings, JOB)
        simulated.only_one_kind(work.objects, work.settings, RECEIPTS)
        run = runs.open_run(database, JOB)
        ready = _ready(_days(work, database))
        work.progress.stage("archiving", sum(day.row_count for days in ready for day in days))
        if work.dry_run:
            return _foreseen(report, run, ready)
        if run is not None:
            finish(work, database, run, MOVE, report)
            ready = _ready(_days(work, database))
        while ready:
            lo, hi = midnight(ready[0][0].day), midnight(ready[0][-1].day) + timedelta(days=1)
            behind = commit.version_of(work.objects, RECEIPTS, JOB)
            run = runs.plan(database, JOB, JOB, work.clock(), lo=lo, hi=hi, cutoff=cutoff(work), behind=behind)
            finish(work, database, run, MOVE, report)
            before, ready = ready, _ready(_days(work, database))
            if ready == before:
                raise NotTheSame(
                    f"what was archived of {ready[0][0].day} is still in the ledger", hint="angelia doctor"
                )
        report.figures["waiting"] = sum(day.pending for day in _days(work, database))
    report.summary = f"{report.rows:,} receipts archived in {len(report.runs)} runs"
    return report


def cutoff(work: JobContext) -> datetime:
    """The time before which receipts no longer change: every message of then has expired."""
    latest = closed_before(work.now, work.settings.max_ttl_seconds)
    return midnight(end_of(work, "receipts", latest, "may still change").astimezone(UTC).date())


def _days(work: JobContext, database: Database) -> list[LedgerDay]:
    since = _EVER if work.since is None else midnight(work.since.astimezone(UTC).date())  # a day is moved as a whole
    found = database.rows(work.sql("mail")["receipts_days"], since, cutoff(work))
    return [LedgerDay(**row) for row in found]


def _ready(days: Sequence[LedgerDay]) -> list[list[LedgerDay]]:
    """Days without pending messages, as ranges of neighbours of a bounded length."""
    ranges: list[list[LedgerDay]] = []
    for day in days:
        if day.pending:
            continue
        last = ranges[-1] if ranges else []
        neighbour = bool(last) and day.day - last[-1].day == timedelta(days=1) and len(last) < _MOST_DAYS
        if neighbour and sum(one.row_count for one in last) + day.row_count <= _MOST_ROWS:
            last.append(day)
        else:
            ranges.append([day])
    return ranges


def _foreseen(report: JobReport, run: JobRun | None, ready: Sequence[Sequence[LedgerDay]]) -> JobReport:
    rows = sum(day.row_count for days in ready for day in days)
    summary = f"{rows:,} receipts would be archived in {len(ready)} runs{resumed_first(run)}"
    return report.foreseen(rows, summary, ranges=[[f"{days[0].day}", f"{days[-1].day}"] for days in ready])


def _commit(work: JobContext, database: Database, run: JobRun) -> None:
    if database.rows(work.sql("mail")["receipts_sum"], *_bounds(run))[0]["row_count"] == 0:
        return  # the days have empty partitions only
    copy(work, RECEIPTS, run, work.sql("mail")["receipts"], {"sent_at": _bounds(run)})


def _purge(work: JobContext, database: Database, run: JobRun) -> JobRun:
    """Removes from the ledger exactly the rows that the archive has and records it, in one transaction."""
    here = database.rows(work.sql("mail")["receipts_sum"], *_bounds(run))[0]
    same = (here["row_count"], int(here["id_hash_sum"])) == (run.row_count, run.id_hash_sum)

    def purge() -> JobRun:
        if not (same and _drop_days(work, database, run)):
            _purge_ids(work, database, run)
        return _conclude(work, database, run)

    return database.patiently(purge)


def _drop_days(work: JobContext, database: Database, run: JobRun) -> bool:
    """Drops the partitions of the days; returns False if rows were added since they were summed up. Mail waits while
    the tables are locked, so the sums come before: closed days get no rows from servers, and the count would show
    one."""
    sql = work.sql("mail")
    partitions = _partitions(work, database, run)
    database.execute(sql["receipts_patience"])
    database.execute(sql["receipts_lock"])
    if database.rows(sql["receipts_count"], *_bounds(run))[0]["row_count"] != run.row_count:
        return False
    for name in partitions:
        database.execute(sql["receipts_drop_day"].format(partition=name))
    database.execute(sql["receipts_purge_default"], *_bounds(run))
    return True


def _conclude(work: JobContext, database: Database, run: JobRun) -> JobRun:
    lo, hi = _bounds(run)
    work.record_run(database, run, {"rows": run.row_count, "from": f"{lo:%F}", "to": f"{hi:%F}"})
    work.step("purging", run)
    return runs.advance(database, run, RunState.DONE, work.clock(), report={"rows": run.row_count})


def _partitions(work: JobContext, database: Database, run: JobRun) -> list[str]:
    """The partitions of a run's days that exist. Their names are computed, never taken from the ledger."""
    lo, hi = _bounds(run)
    there = {row["partition"] for row in database.rows(work.sql("mail")["receipts_partitions"])}
    days = (lo + timedelta(days=offset) for offset in range((hi - lo).days))
    return [name for day in days if (name := f"delivery_receipts_{day:%Y%m%d}") in there]


def _purge_ids(work: JobContext, database: Database, run: JobRun) -> None:
    """Removes the archived rows one by one, where rows were added to the days since: those stay for the next run."""
    lo, hi = _bounds(run)
    archived_ids(work, database, RECEIPTS, run)
    removed = database.rows(work.sql("mail")["receipts_purge_ids"], lo, hi)[0]["purged"]
    if removed != run.row_count:
        raise NotTheSame(
            f"the archive has {run.row_count:,} receipts of this run, the ledger {removed:,} of them",
            hint="nothing was removed from the ledger; was it changed by hand?",
        )


def _bounds(run: JobRun) -> tuple[datetime, datetime]:
    assert run.lo is not None
    assert run.hi is not None
    return run.lo.astimezone(UTC), run.hi.astimezone(UTC)


MOVE = Move(table=RECEIPTS, commit=_commit, purge=_purge)
