"""Maintains the archive: joins small files, and removes files that are no longer needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from angelia.errors import Conflict
from angelia.pipeline import runs
from angelia.pipeline.jobs import analytics, erase, retention, verify_logs
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.jobs.table_locks import BY_FILES
from angelia.pipeline.lake import listing, maintenance
from angelia.pipeline.lake.maintenance import KEPT
from angelia.pipeline.lake.tables import ANALYTICS, AUDIT, LOG_CHECKS, TABLES, Table
from angelia.runs.model import RunState

JOB = "maintain"
# These jobs remove every file that no commit names, so they must not run while compaction writes one.
_REMOVERS = (erase.JOB, retention.JOB)
# The job that replaces files of a table. The audit has none: it is only appended to, which goes on meanwhile.
WRITERS = {
    AUDIT.name: None,
    **BY_FILES,
    **{table.name: analytics.JOB for table in ANALYTICS},
    **{table.name: verify_logs.JOB for table in LOG_CHECKS},
}


def maintain(work: JobContext) -> JobReport:
    """Maintains every table that no other job works on; names the others, which the next run maintains."""
    report = JobReport(job=JOB)
    kept = timedelta(hours=work.options.get("kept_hours", KEPT / timedelta(hours=1)))
    report.figures |= {"compacted": {}, "removed": {}, "skipped": {}}
    with runs.only_one(work.database_url, *_REMOVERS):
        if work.dry_run:
            _all(work, kept, report)
            report.state = "dry run"
        else:
            with runs.one_run(work.database_url, JOB, work.clock, job=work.titled(JOB)) as (database, run):
                _all(work, kept, report)
                now = work.clock()
                runs.advance(database, run, RunState.DONE, now, row_count=report.rows, report=report.figures)
            report.runs.append(run.run_id)
    report.summary = _summary(report)
    return report


def _all(work: JobContext, kept: timedelta, report: JobReport) -> None:
    work.progress.stage("maintaining")
    for table in TABLES.values():
        if listing.find(work.objects, table) is None:
            continue
        try:
            with _undisturbed(work.database_url, table):
                _table(work, table, kept, report)
        except Conflict as busy:
            report.figures["skipped"][table.name] = busy.message


@contextmanager
def _undisturbed(url: str, table: Table) -> Iterator[None]:
    writer = WRITERS[table.name]
    if writer is None:
        yield
        return
    with runs.only_one(url, writer) as database:
        if table.name in BY_FILES and (dead := runs.open_run(database, writer)) is not None:
            raise Conflict(f"run {dead.run_id[:8]} of {writer} died half way", hint=f"angelia pipeline run {writer}")
        yield


def _table(work: JobContext, table: Table, kept: timedelta, report: JobReport) -> None:
    crowded = maintenance.crowded(work.objects, table)
    files = sum(map(len, crowded.values()))
    if not work.dry_run:
        files -= sum(maintenance.compact(work.objects, table, day) for day in crowded)
        rows = sum(file.rows for day in crowded.values() for file in day)
        report.rows += rows
        work.progress.advance(rows)
    if crowded:
        report.figures["compacted"][table.name] = {"days": len(crowded), "files": files}
    gone = maintenance.vacuum(work.objects, table, kept, dry_run=work.dry_run)
    if gone:
        report.figures["removed"][table.name] = len(gone)


def _summary(report: JobReport) -> str:
    would = "would be " if report.state == "dry run" else ""
    days = sum(one["days"] for one in report.figures["compacted"].values())
    said = f"{days:,} days {would}compacted, {sum(report.figures['removed'].values()):,} files {would}removed"
    skipped = ", ".join(report.figures["skipped"])
    return f"{said}; skipped {skipped}" if skipped else said
