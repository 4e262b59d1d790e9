"""What is past seven years leaves the archive on purpose, and nothing younger does."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from deltalake import DeltaTable

from angelia.errors import Conflict
from angelia.pipeline import runs
from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.archive_receipts import JOB as RECEIPTS_JOB
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.replay_audit import replay_audit
from angelia.pipeline.jobs.retention import JOB, retained_from, retention
from angelia.pipeline.lake.audit_chain import archive_floor
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS
from angelia.settings import Settings
from angelia.stores.objects import Objects
from audit_chains import chained, positions
from killed_jobs import Died, dies_at
from lake_tables import put
from receipt_rows import NOW, archived, fill, held

PAST = retained_from(NOW.date()) - timedelta(days=1)
KEPT = retained_from(NOW.date())


def on_disk(objects: Objects, table: str) -> set[str]:
    return {f"{path.relative_to(objects.root)}" for path in Path(objects.root, table).rglob("day=*/*.parquet")}


def leave_a_file(objects: Objects) -> str:
    """One of an old day that is not in the table: a run at work may be about to add it."""
    path = Path(objects.root, RECEIPTS.name, f"day={PAST}", "of-a-run-at-work.parquet")
    path.write_bytes(b"not ours")
    return f"{path.relative_to(objects.root)}"


def test_seven_years_are_counted_by_the_calendar() -> None:
    assert retained_from(date(2026, 11, 16)) == date(2019, 11, 16)
    assert retained_from(date(2031, 2, 28)) == date(2024, 2, 28)
    assert retained_from(date(2028, 2, 29)) == date(2021, 2, 28)


async def test_a_dry_run_lists_what_would_go_and_touches_nothing(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, PAST, 40)
    archive_receipts(work())
    before = on_disk(objects, RECEIPTS.name)
    report = retention(work(dry_run=True))
    [table] = report.figures["tables"]
    assert (table["table"], table["days"], table["from"], table["rows"]) == (RECEIPTS.name, 1, f"{PAST}", 40)
    assert table["bytes"] > 0
    assert on_disk(objects, RECEIPTS.name) == before


async def test_a_day_past_its_time_leaves_the_table_and_the_disk_and_the_next_day_stays(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, PAST, 40)
    await fill(database_url, KEPT, 30)
    archive_receipts(work())
    stray = leave_a_file(objects)
    report = retention(work())
    assert report.rows == 40
    assert len(archived(objects)) == 30
    left = on_disk(objects, RECEIPTS.name)
    assert stray in left, "only files that this run took out are removed"
    assert {path.split("/")[1] for path in left - {stray}} == {f"day={KEPT}"}
    connection = await asyncpg.connect(database_url)
    said = json.loads(
        await connection.fetchval(
            "SELECT detail FROM audit_events WHERE event_type = 'archive_run' AND detail->>'job' = 'retention'"
        )
    )
    await connection.close()
    assert (said["table"], said["rows"], said["from"], said["to"]) == (RECEIPTS.name, 40, f"{PAST}", f"{PAST}")
    assert retention(work()).runs == []


async def test_a_ledger_that_knows_of_no_runs_removes_from_an_archive_that_has_seen_many(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    put(objects, RECEIPTS, PAST, 40, mark=Mark(JOB, 9))
    assert retention(work()).rows == 40
    assert (archived(objects), on_disk(objects, RECEIPTS.name)) == ([], set())


async def test_the_ledger_is_never_touched(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, PAST, 10)
    assert retention(work()).rows == 0
    assert len((await held(database_url, objects)).ledger) == 10


async def test_the_chain_goes_on_from_the_last_event_that_left_and_an_old_one_behind_a_young_one_waits(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    midnight = datetime(KEPT.year, KEPT.month, KEPT.day, tzinfo=UTC)
    await chained(database_url, tmp_path, midnight - timedelta(minutes=5), 20)
    await chained(database_url, tmp_path, midnight + timedelta(seconds=1), 5)
    await chained(database_url, tmp_path, midnight - timedelta(seconds=1), 1)  # late: its day is over, its place is not
    await chained(database_url, tmp_path, midnight + timedelta(seconds=9), 4)
    settings = Settings(data_dir=tmp_path)
    archive_audit(work(settings=settings))
    report = retention(work(settings=settings))
    assert report.rows == 20
    assert positions(objects) == list(range(21, 31))
    floor = archive_floor(objects)
    [table] = report.figures["tables"]
    assert floor.position == 20
    assert (table["position"], table["entry_hash"]) == (floor.position, floor.entry_hash)
    assert DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "true"
    found = replay_audit(work(settings=settings))
    assert found.figures["chain_faults"] == 0, found.figures


async def test_killed_before_it_is_recorded_the_next_run_puts_everything_right(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    await chained(database_url, tmp_path, datetime(PAST.year, PAST.month, PAST.day, 12, tzinfo=UTC), 10)
    settings = Settings(data_dir=tmp_path)
    archive_audit(work(settings=settings))

    with pytest.raises(Died):
        retention(work(settings=settings, step=dies_at(f"removed {AUDIT.name}")))
    assert DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "false"
    report = retention(work(settings=settings))
    assert (report.rows, positions(objects), on_disk(objects, AUDIT.name)) == (10, [], set())
    assert DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "true"


async def test_while_a_run_that_moves_rows_is_half_done_nothing_is_removed(
    work: Callable[..., JobContext], database_url: str
) -> None:
    with runs.only_one(database_url, RECEIPTS_JOB) as database:
        runs.plan(database, RECEIPTS_JOB, RECEIPTS_JOB, NOW)
    with pytest.raises(Conflict, match="died half way") as refusal:
        retention(work())
    assert refusal.value.hint == "angelia pipeline run archive receipts"
