"""What all jobs share that move rows from the ledger to the archive: commit, read again and count, only then purge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import functions as f

from angelia.errors import AngeliaError, InvalidArgument
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake import commit, listing, writer
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.listing import TableFile
from angelia.pipeline.lake.tables import Table
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import archive, ledger
from angelia.runs.model import RunState

_CHANGED = "nothing was removed from the ledger; was the archive changed by hand?"


class NotTheSame(AngeliaError, code="archive_differs"):
    """What the archive has is not what the ledger had"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The two steps that differ from table to table. Each is idempotent for a run, so that it can be repeated after a
    crash."""

    table: Table
    commit: Callable[[JobContext, Database, JobRun], None]  # puts the rows of the run into the archive
    purge: Callable[[JobContext, Database, JobRun], JobRun]  # removes the archived rows from the ledger; ends the run


def finish(work: JobContext, database: Database, run: JobRun, move: Move, report: JobReport) -> None:
    """Finishes a run from whatever state it is in."""
    work.step("planned", run)
    if run.state is RunState.PLANNED:
        # A crash may have come right after the commit.
        if not _is_committed(work, move.table, run):
            move.commit(work, database, run)
        work.step("written", run)
        written = sum(file.rows for file in files_of(work, move.table, run))
        run = runs.advance(database, run, RunState.COMMITTED, work.clock(), row_count=written)
        work.step("committed", run)
    if run.state is RunState.COMMITTED:
        rows, total = archived(work, move.table, run)
        if rows != run.row_count:
            raise NotTheSame(
                f"{run.row_count:,} rows were written to {move.table.name}, and {rows:,} are there",
                hint=_CHANGED,
            )
        commit.settle(work.objects, move.table, files_of(work, move.table, run))
        run = runs.advance(database, run, RunState.VERIFIED, work.clock(), row_count=rows, id_hash_sum=total)
        work.step("verified", run)
    run = move.purge(work, database, run)
    work.step("done", run)
    work.progress.advance(run.row_count or 0)
    report.add(run)


def resumed_first(run: JobRun | None) -> str:
    """What a dry run adds to its summary if the last run died."""
    return f"; run {run.run_id[:8]}, which died, would be finished first" if run else ""


def end_of(work: JobContext, what: str, latest: datetime, why: str) -> datetime:
    """The time up to which rows are archived: `--to`, or the latest; raises InvalidArgument if `--to` is later, and
    says `why` younger rows stay."""
    if work.until is not None and work.until > latest:
        raise InvalidArgument(
            f"{what} are archived up to {latest:%Y-%m-%d}: younger ones {why}",
            hint=f"leave --to out, or say --to {latest:%Y-%m-%d}",
        )
    return work.until or latest


def _is_committed(work: JobContext, table: Table, run: JobRun) -> bool:
    found = listing.find(work.objects, table)
    return found is not None and commit.is_done(found, Mark(run.app_id, run.version))


def copy(
    work: JobContext, table: Table, run: JobRun, statement: str, within: Mapping[str, tuple[datetime, datetime]]
) -> None:
    """Copies what a statement selects in the ledger to the archive, from one snapshot and in one commit."""
    with ledger.one_snapshot(work.database_url) as (_, snapshot):
        frame = ledger.read(work, statement, table.schema, snapshot, within)
        writer.write(frame, work.objects, table, Mark(run.app_id, run.version), run.run_id)


def archived(work: JobContext, table: Table, run: JobRun) -> tuple[int, int]:
    """How many rows of a run the archive has, and the sum of the hashes of their ids, both read from the files."""
    files = files_of(work, table, run)
    if not files:
        return 0, 0
    rows = archive.read(work.spark, work.objects, table, files)
    hashed = f.conv(f.substring(f.md5(f.col(table.id)), 1, 15), 16, 10).cast("decimal(38,0)")
    found = rows.agg(f.count("*").alias("rows"), f.coalesce(f.sum(hashed), f.lit(0)).alias("total")).collect()[0]
    return int(found["rows"]), int(found["total"])


def files_of(work: JobContext, table: Table, run: JobRun) -> list[TableFile]:
    """The files that a run wrote into a table; they are not rewritten before the run is done."""
    return [file for file in listing.files(work.objects, table) if file.name.startswith(run.run_id)]


def hand_over(work: JobContext, database: Database, table: Table, run: JobRun, given: str) -> None:
    """Puts the archived ids into a temporary table; raises NotTheSame if they are not those that were counted. `given`
    is the statement that counts and sums them."""
    archived_ids(work, database, table, run)
    found = database.rows(given)[0]
    if (found["row_count"], int(found["id_hash_sum"])) != (run.row_count, run.id_hash_sum):
        raise NotTheSame(
            f"the archive had {run.row_count:,} rows of this run in {table.name}, and now {found['row_count']:,}, "
            "or others",
            hint=_CHANGED,
        )


def archived_ids(work: JobContext, database: Database, table: Table, run: JobRun) -> None:
    """Puts the ids of the rows that a run archived into the temporary table `archived_ids` of the ledger."""
    database.ingest("archived_ids", archive.ids(work.objects, table, files_of(work, table, run)))
