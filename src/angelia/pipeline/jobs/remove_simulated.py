"""Removes simulated rows from an archive of real ones, where an earlier release put them by default.

What analytics counted with them is removed too, and counted again by its next run. Rows of real messages stay.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import date

from angelia.errors import Conflict
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs import analytics, archive_receipts, erase, retention
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.jobs.table_locks import MOVERS
from angelia.pipeline.lake import commit, listing, maintenance, simulated, writer
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.listing import TableFile
from angelia.pipeline.lake.tables import AGENTS, AUDIT, BUCKETS, DAY, DAYS, HOURS, LATENCIES, RECEIPTS, Table
from angelia.pipeline.runs import JobRun
from angelia.pipeline.simulation import simulated_ids
from angelia.pipeline.sources import archive, audit
from angelia.runs.model import RunState

JOB = simulated.REMOVED
# The other jobs that write these tables; maintain holds the locks of two of them.
_WRITERS = (*MOVERS, analytics.JOB, erase.JOB, retention.JOB)
_REAL = {RECEIPTS.name: archive_receipts.JOB, AUDIT.name: audit.APP_ID}  # the app id of commits of real rows
# Counts can always be computed again. The days come first: one that is missing there is counted again.
_COUNTED = (DAYS, HOURS, LATENCIES, AGENTS, BUCKETS)


def remove_simulated(work: JobContext) -> JobReport:
    """Removes every simulated row of an archive of real ones; finishes a run that died first."""
    report = JobReport(job=JOB)
    with runs.only_one(work.database_url, *_WRITERS, JOB) as database:
        _refuse_all_simulated(work)
        tables = simulated.mixed(work.objects)
        if work.dry_run:
            return _foreseen(work, database, report, tables)
        run = runs.open_run(database, JOB)
        if run is None and tables:
            run = runs.plan(database, JOB, JOB, work.clock())
        if run is not None:
            _finish(work, database, run, report)
    report.summary = f"{report.rows:,} simulated rows taken out of {work.objects.root}"
    if report.figures.get("uncounted"):
        report.summary += "; `angelia pipeline run analytics` counts the rest again"
    return report


def _refuse_all_simulated(work: JobContext) -> None:
    if not work.simulated:
        return
    root = work.objects.root
    raise Conflict(
        f"the archive at {root} is a simulated one: there is nothing else in it",
        hint="remove all objects below it" if work.objects.remote else f"rm -r {shlex.quote(root)}",
    )


def _foreseen(work: JobContext, database: Database, report: JobReport, tables: Sequence[Table]) -> JobReport:
    found = {table.name: sum(_days(work, table, _files(work, database, table)).values()) for table in tables}
    rows = sum(found.values())
    return report.foreseen(rows, f"{rows:,} simulated rows would be taken out of {work.objects.root}", archive=found)


def _finish(work: JobContext, database: Database, run: JobRun, report: JobReport) -> None:
    work.step("planned", run)
    if simulated.mixed(work.objects):  # if not, a crash came after the rows were removed, and the counts are new
        for table in _COUNTED:
            if counted := listing.files(work.objects, table):
                _take_out(work, run, table, next_mark(work.objects, table, run), counted)
    work.step("uncounted", run)
    for table in (AUDIT, RECEIPTS):
        _remove(work, database, run, table)
        work.step(f"removed {table.name}", run)
    changes = {table.name: commit.change(work.objects, table, run.run_id) for table in (AUDIT, RECEIPTS, *_COUNTED)}
    for table in (AUDIT, RECEIPTS, *_COUNTED):
        commit.close_again(work.objects, table)
        # Readers no longer see the rows; that must survive a power cut before the files are removed.
        commit.settle(work.objects, table, [])
        maintenance.delete(work.objects, table, changes[table.name].gone)
    work.step("deleted", run)
    removed = {table.name: changes[table.name].rows for table in (AUDIT, RECEIPTS) if changes[table.name].gone}
    said = {"archive": removed, "uncounted": sum(changes[table.name].rows for table in _COUNTED)}
    with database.transaction():
        work.record_run(database, run, removed)
        work.step("recording", run)
        run = runs.advance(database, run, RunState.DONE, work.clock(), row_count=sum(removed.values()), report=said)
    report.add(run)
    report.figures |= said


def _remove(work: JobContext, database: Database, run: JobRun, table: Table) -> None:
    """Removes the simulated rows of a table in one commit, whose version is that of the last simulated commit."""
    version = simulated.left_in(work.objects, table)
    if version is None:
        return
    mark, there = Mark(JOB, version), _files(work, database, table)
    commit.open_up(work.objects, table)
    days = _days(work, table, there)
    files = [file for file in there if file.day in days]
    if _all_simulated(work, table) or not files:
        _take_out(work, run, table, mark, files)
        return
    work.progress.stage(f"removing from {table.name}", sum(days.values()))
    real = archive.read(work.spark, work.objects, table, files).where(~simulated_ids.simulated(table))
    writer.write(real, work.objects, table, mark, run.run_id, files=files, rows=sum(days.values()))


def _take_out(work: JobContext, run: JobRun, table: Table, mark: Mark, files: Sequence[TableFile]) -> None:
    rows, paths = sum(file.rows for file in files), [file.path for file in files]
    commit.replace(work.objects, table, mark, run.run_id, paths, [], rows)


def _days(work: JobContext, table: Table, files: Sequence[TableFile]) -> Counter[date]:
    """The number of simulated rows by day, for days that have some."""
    if _all_simulated(work, table):
        return sum((Counter({file.day: file.rows}) for file in files), Counter())
    found = archive.read(work.spark, work.objects, table, files).where(simulated_ids.simulated(table))
    return Counter({row[DAY]: row["count"] for row in found.groupBy(DAY).count().collect()})


def _all_simulated(work: JobContext, table: Table) -> bool:
    """Whether only `simulate` ever added rows."""
    return commit.version_of(work.objects, table, _REAL[table.name]) is None


def _files(work: JobContext, database: Database, table: Table) -> list[TableFile]:
    """Files that may hold simulated rows: not those of a run that died, which are real and which it finds by their
    names."""
    dead = runs.open_run(database, _REAL[table.name])
    there = listing.files(work.objects, table)
    return [file for file in there if dead is None or not file.name.startswith(dead.run_id)]
