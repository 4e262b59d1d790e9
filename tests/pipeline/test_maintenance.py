"""Maintenance makes tables quicker to read and takes nothing from anybody: not a row, not a mark, not an open file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable

from angelia.errors import Conflict, InvalidArgument
from angelia.pipeline import runs
from angelia.pipeline.jobs import archive_receipts, erase
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.maintain import JOB, WRITERS, maintain
from angelia.pipeline.lake import listing, maintenance
from angelia.pipeline.lake.commit import Mark, opened
from angelia.pipeline.lake.maintenance import RowsDiffer
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS, TABLES, Table
from angelia.settings import Settings
from angelia.stores.objects import Objects
from lake_tables import put
from receipt_rows import NOW

DAY = date(2026, 10, 1)
NEXT = DAY + timedelta(days=1)
MARKS = "a job"


@pytest.fixture
def begun(database_url: str, objects: Objects) -> Iterator[Callable[..., JobContext]]:
    """Work that no Spark is started for."""
    with ExitStack() as stack:

        def begin(**values: Any) -> JobContext:
            return JobContext(
                settings=Settings(), database_url=database_url, objects=objects, now=NOW, stack=stack, **values
            )

        yield begin


def crowd(objects: Objects, table: Table) -> None:
    """Two days, one of many files and one of one."""
    put(objects, table, DAY, 60, files=3, mark=Mark(MARKS, 1))
    put(objects, table, DAY, 40, files=2, mark=Mark(MARKS, 2))
    put(objects, table, NEXT, 10, mark=Mark(MARKS, 3))


def content(objects: Objects, table: Table) -> list[dict[str, Any]]:
    found = DeltaTable(objects.table(table.name)).to_pyarrow_table()
    ordered: list[dict[str, Any]] = found.sort_by([(table.id, "ascending")]).to_pylist()
    return ordered


def per_day(objects: Objects, table: Table) -> dict[date, int]:
    days = [file.day for file in listing.files(objects, table)]
    return {day: days.count(day) for day in days}


@pytest.mark.parametrize("table", [RECEIPTS, AUDIT], ids=lambda table: table.name)
async def test_files_of_a_day_become_one_and_rows_and_marks_stay(
    begun: Callable[..., JobContext], objects: Objects, table: Table
) -> None:
    crowd(objects, table)
    before = content(objects, table)
    report = maintain(begun())
    assert per_day(objects, table) == {DAY: 1, NEXT: 1}
    assert content(objects, table) == before
    assert opened(objects, table).transaction_version(MARKS) == 3
    assert opened(objects, table).metadata().configuration == dict(table.configuration)
    assert report.figures["compacted"] == {table.name: {"days": 1, "files": 4}}


async def test_who_has_begun_to_read_finds_the_old_files(begun: Callable[..., JobContext], objects: Objects) -> None:
    crowd(objects, RECEIPTS)
    reading = [file.uri for file in listing.files(objects, RECEIPTS)]
    maintain(begun())
    assert sum(pq.ParquetFile(uri).metadata.num_rows for uri in reading) == 110


def test_who_appends_meanwhile_loses_nothing_and_is_not_counted(objects: Objects) -> None:
    """A compaction that read the table before others wrote it, and is compared after others wrote it again."""
    crowd(objects, AUDIT)
    handle = opened(objects, AUDIT)
    before = handle.version()
    put(objects, AUDIT, DAY, 5, mark=Mark(MARKS, 4))
    handle.optimize.compact(commit_properties=CommitProperties(custom_metadata={maintenance.MADE_BY: "this one"}))
    put(objects, AUDIT, DAY, 7, mark=Mark(MARKS, 5))
    maintenance.compare(objects, AUDIT, "this one", before)
    assert (len(content(objects, AUDIT)), opened(objects, AUDIT).transaction_version(MARKS)) == (122, 5)
    assert per_day(objects, AUDIT)[DAY] == 3


def test_a_compaction_that_does_not_put_back_what_it_took_out_is_an_error(objects: Objects) -> None:
    crowd(objects, RECEIPTS)
    handle = opened(objects, RECEIPTS)
    before = handle.version()
    handle.delete("wire_bytes < 70", commit_properties=CommitProperties(custom_metadata={maintenance.MADE_BY: "it"}))
    with pytest.raises(RowsDiffer) as differ:
        maintenance.compare(objects, RECEIPTS, "it", before)
    assert "restore" not in differ.value.hint


async def test_a_second_run_finds_nothing_to_do(begun: Callable[..., JobContext], objects: Objects) -> None:
    crowd(objects, RECEIPTS)
    maintain(begun())
    version = opened(objects, RECEIPTS).version()
    report = maintain(begun())
    assert (report.rows, report.figures["compacted"], report.figures["removed"]) == (0, {}, {})
    assert opened(objects, RECEIPTS).version() == version


async def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    begun: Callable[..., JobContext], objects: Objects, connection: Any
) -> None:
    crowd(objects, RECEIPTS)
    report = maintain(begun(dry_run=True))
    assert report.figures["compacted"] == {RECEIPTS.name: {"days": 1, "files": 5}}
    assert per_day(objects, RECEIPTS) == {DAY: 5, NEXT: 1}
    assert await connection.fetchval("SELECT count(*) FROM pipeline_runs") == 0


async def test_what_a_crash_left_goes_when_it_is_old_and_stays_while_a_job_may_commit_it(
    begun: Callable[..., JobContext], objects: Objects
) -> None:
    crowd(objects, RECEIPTS)
    place = Path(objects.table(RECEIPTS.name)) / f"day={DAY}"
    old, young = place / "died-0-0-1.parquet", place / "runs-0-0-1.parquet"
    for path, age in ((old, timedelta(days=8)), (young, timedelta(days=6))):
        path.write_bytes(b"half a file")
        made = path.stat().st_mtime - age.total_seconds()
        os.utime(path, (made, made))
    report = maintain(begun())
    assert report.figures["removed"] == {RECEIPTS.name: 1}
    assert (old.exists(), young.exists()) == (False, True)


async def test_files_that_were_joined_just_now_stay_however_old_they_are(
    begun: Callable[..., JobContext], objects: Objects
) -> None:
    crowd(objects, RECEIPTS)
    files = [Path(file.uri) for file in listing.files(objects, RECEIPTS)]
    for path in files:
        os.utime(path, (0, 0))
    maintain(begun())
    assert all(path.exists() for path in files)


async def test_a_retention_that_a_job_could_outlast_is_refused(
    begun: Callable[..., JobContext], objects: Objects
) -> None:
    crowd(objects, RECEIPTS)
    with pytest.raises(InvalidArgument, match="1 day at least"):
        maintenance.vacuum(objects, RECEIPTS, timedelta(hours=23), dry_run=False)


async def test_files_of_a_run_that_is_not_done_keep_their_names(
    begun: Callable[..., JobContext], objects: Objects, database_url: str
) -> None:
    crowd(objects, RECEIPTS)
    crowd(objects, AUDIT)
    with runs.only_one(database_url, archive_receipts.JOB) as database:
        run = runs.plan(database, archive_receipts.JOB, archive_receipts.JOB, NOW)
        at_work = maintain(begun())
    died = maintain(begun())
    assert list(at_work.figures["skipped"]) == [RECEIPTS.name]
    assert died.figures["skipped"] == {RECEIPTS.name: f"run {run.run_id[:8]} of archive receipts died half way"}
    assert (per_day(objects, RECEIPTS)[DAY], per_day(objects, AUDIT)[DAY]) == (5, 1)


async def test_an_erasure_that_is_at_work_is_left_alone(begun: Callable[..., JobContext], database_url: str) -> None:
    with runs.only_one(database_url, erase.JOB), pytest.raises(Conflict):
        maintain(begun())


async def test_the_run_is_written_down(begun: Callable[..., JobContext], objects: Objects, connection: Any) -> None:
    crowd(objects, RECEIPTS)
    report = maintain(begun())
    row = await connection.fetchrow("SELECT run_id::text, state, row_count FROM pipeline_runs WHERE job = $1", JOB)
    assert tuple(row) == (report.runs[0], "done", 100)


def test_every_table_has_somebody_who_is_waited_for_or_nobody_on_purpose() -> None:
    assert WRITERS.keys() == TABLES.keys()
