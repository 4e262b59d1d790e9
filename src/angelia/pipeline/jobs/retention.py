"""Removes days older than seven years from the archive, and records it. The ledger stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from angelia.audit.model import Floor
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport, midnight
from angelia.pipeline.jobs.table_locks import nothing_is_half_moved
from angelia.pipeline.lake import commit, listing, maintenance, simulated, writer
from angelia.pipeline.lake.audit_chain import archive_floor, properties
from angelia.pipeline.lake.commit import CommittedChange, Mark
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.listing import TableFile
from angelia.pipeline.lake.tables import AUDIT, TABLES, Table
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import archive
from angelia.runs.model import RunState

JOB = "retention"
RETAINED_YEARS = 7


@dataclass(frozen=True, slots=True)
class OverdueFiles:
    """The files of a table whose retention has ended."""

    table: Table
    files: list[TableFile]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def figures(self) -> dict[str, object]:
        days = sorted({file.day for file in self.files})
        span = {"from": f"{days[0]}", "to": f"{days[-1]}"} if days else {}
        size = sum(file.size for file in self.files)
        return {"table": self.table.name, "days": len(days), **span, "rows": self.rows, "bytes": size}


def retention(work: JobContext) -> JobReport:
    """Removes every day whose retention has ended from every table; finishes a run that died first."""
    report = JobReport(job=JOB)
    simulated.only_real(work.objects, work.settings, JOB)
    with nothing_is_half_moved(work.database_url, JOB) as database:
        run = runs.open_run(database, JOB)
        if run is not None and not work.dry_run:
            _finish(work, database, run, report)
        due = [one for one in _due(work, retained_from(work.now.date())) if one.files]
        if work.dry_run:
            rows, tables = sum(one.rows for one in due), [one.figures() for one in due]
            return report.foreseen(rows, f"{rows:,} rows of {len(due)} tables would leave the archive", tables=tables)
        if due:
            run = runs.plan(database, JOB, JOB, work.clock(), cutoff=midnight(retained_from(work.now.date())))
            _finish(work, database, run, report)
    report.summary = f"{report.rows:,} rows left the archive, all from before {retained_from(work.now.date())}"
    return report


def retained_from(today: date) -> date:
    """The first day that is retained: the same date, seven years ago."""
    try:
        return today.replace(year=today.year - RETAINED_YEARS)
    except ValueError:  # the 29th of February
        return today.replace(year=today.year - RETAINED_YEARS, day=28)


def _due(work: JobContext, first: date) -> list[OverdueFiles]:
    return [
        OverdueFiles(table, [file for file in listing.files(work.objects, table) if file.day < first])
        for table in TABLES.values()
    ]


def _finish(work: JobContext, database: Database, run: JobRun, report: JobReport) -> None:
    work.step("planned", run)
    tables = []
    for due in _due(work, _first(run)):
        work.progress.stage(f"removing from {due.table.name}", due.rows)
        _remove(work, run, due)
        work.step(f"removed {due.table.name}", run)
        commit.close_again(work.objects, due.table)
        change = commit.change(work.objects, due.table, run.run_id)
        maintenance.delete(work.objects, due.table, change.gone)
        if change.gone:
            tables.append(_removed(work, due.table, change))
    rows = sum(int(one["rows"]) for one in tables)
    with database.transaction():
        for one in tables:
            work.record_run(database, run, {"before": f"{_first(run)}", **one})
        work.step("recording", run)
        run = runs.advance(database, run, RunState.DONE, work.clock(), row_count=rows, report={"tables": tables})
    report.add(run)
    report.figures["tables"] = [*report.figures.get("tables", []), *tables]


def _remove(work: JobContext, run: JobRun, due: OverdueFiles) -> None:
    """Removes the files of a table, in one commit."""
    if not due.files or commit.is_done_by(work.objects, due.table, Mark(JOB, run.version), run.run_id):
        return
    if due.table is AUDIT:
        _remove_events(work, run, due)
    else:
        gone = [file.path for file in due.files]
        mark = next_mark(work.objects, due.table, run)
        commit.replace(work.objects, due.table, mark, run.run_id, gone, [], due.rows)


def _remove_events(work: JobContext, run: JobRun, due: OverdueFiles) -> None:
    """Removes old events. The last entry that leaves is written into the table's properties first: the chain continues
    from it."""
    old = archive.read(work.spark, work.objects, AUDIT, due.files)
    rest = [file.least for file in listing.files(work.objects, AUDIT) if file.day >= _first(run)]
    floor = _floor_above(old, min(rest, default=None))
    if floor is None:
        return
    late = old.where(f.col("position") > floor.position)
    leaving = due.rows - late.count()
    commit.open_up(work.objects, AUDIT, properties(floor))
    mark = next_mark(work.objects, AUDIT, run)
    writer.write(late, work.objects, AUDIT, mark, run.run_id, files=due.files, rows=leaving)


def _floor_above(old: DataFrame, first: int | None) -> Floor | None:
    """The last entry of old days that comes before the first of the rest; None if there is none.

    Events are sealed in the order of their commits, so around midnight an old event may come after a younger one. It
    stays until that one goes, so that the chain has no gap."""
    before = old if first is None else old.where(f.col("position") < first)
    found = before.agg(f.max("position").alias("position"), f.max_by("entry_hash", "position").alias("hash"))
    last = found.collect()[0]
    return None if last["position"] is None else Floor(last["position"], bytes(last["hash"]).hex())


def _removed(work: JobContext, table: Table, change: CommittedChange) -> dict[str, str | int]:
    days = sorted({path.partition("/")[0].partition("=")[2] for path in change.gone})
    said: dict[str, str | int] = {"table": table.name, "days": len(days), "from": days[0], "to": days[-1]}
    said["rows"] = change.rows
    if table is AUDIT:
        floor = archive_floor(work.objects)
        said |= {"position": floor.position, "entry_hash": floor.entry_hash}
    return said


def _first(run: JobRun) -> date:
    assert run.cutoff is not None
    return run.cutoff.astimezone(UTC).date()
