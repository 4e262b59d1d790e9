"""What never happened stays apart from what did: in an archive that says so, and out of the server's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import lake_tables
from angelia.errors import Conflict
from angelia.pipeline import report
from angelia.pipeline.jobs.analytics import analytics
from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.archive_sessions import archive_sessions
from angelia.pipeline.jobs.erase import erase
from angelia.pipeline.jobs.export import export
from angelia.pipeline.jobs.job_context import Job, JobContext
from angelia.pipeline.jobs.maintain import maintain
from angelia.pipeline.jobs.remove_simulated import remove_simulated
from angelia.pipeline.jobs.replay_audit import replay_audit
from angelia.pipeline.jobs.retention import retention
from angelia.pipeline.jobs.simulate import simulate
from angelia.pipeline.jobs.verify_audit import verify_audit
from angelia.pipeline.lake import archive_locations, commit, listing, writer
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import AUDIT, DAYS, HOURS, RECEIPTS, STORAGE, TABLES, Table
from angelia.pipeline.lake.writer import Files
from angelia.pipeline.simulation.events import chained as chained_events
from angelia.pipeline.simulation.fleet import Fleet
from angelia.pipeline.simulation.receipts import receipts
from angelia.pipeline.sources import archive
from angelia.settings import Settings
from angelia.stores.objects import Objects
from audit_chains import chained, positions
from killed_jobs import Died, dies_at, dying, killed
from receipt_rows import NOW, OLD, archived, fill, held

SINCE = NOW - timedelta(days=2)
FLEET = Fleet(agents=20, messages_per_agent_per_day=10.0)
SMALL = {"agents": 20, "messages_per_agent_per_day": 10.0}


@pytest.fixture
def mix(spark: SparkSession, objects: Objects) -> Callable[..., int]:
    """Simulated rows in an archive that is not marked, as the release before wrote them; how many."""

    def mixed(*days: date, fleet: Fleet = FLEET, audit: bool = False) -> int:
        version = (commit.version_of(objects, RECEIPTS, "simulate") or 0) + 1
        writer.write(receipts(spark, fleet, days), objects, RECEIPTS, Mark("simulate", version), str(uuid4()))
        if audit:
            rows = archive.read(spark, objects, RECEIPTS, listing.files(objects, RECEIPTS))
            writer.write(chained_events(rows), objects, AUDIT, Mark("simulate", 1), str(uuid4()))
        return sum(map(fleet.messages, days))

    return mixed


def rows(objects: Objects, table: Table) -> int:
    return listing.size(objects, table).rows


def on_disk(objects: Objects) -> list[Path]:
    return list(Path(objects.root).rglob("day=*/*"))


async def renamed(database_url: str, day: date, handle: str) -> None:
    """Let the ledger's receipts of a day be between agents that are called like simulated ones, and unsigned."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "UPDATE delivery_receipts SET sender_nhi = $2, receipt_wire = NULL WHERE sent_at::date = $1", day, handle
    )
    await connection.close()


async def acts(database_url: str) -> int:
    connection = await asyncpg.connect(database_url)
    found: int = await connection.fetchval(
        "SELECT count(*) FROM audit_events WHERE event_type = 'archive_run' AND detail->>'job' = 'remove simulated'"
    )
    await connection.close()
    return found


# An archive of its own.


async def test_every_table_of_a_simulated_archive_says_so_to_every_reader(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 5)
    simulated = simulate(work(since=SINCE, options={**SMALL, "audit": True}))
    counted = analytics(work())
    written = [table for table in TABLES.values() if listing.find(objects, table) is not None]
    assert {RECEIPTS.name, AUDIT.name, DAYS.name, HOURS.name} < {table.name for table in written}
    for table in written:
        uri = objects.table(table.name)
        metadata = DeltaTable(uri).metadata()
        assert metadata.configuration["angelia.simulated"] == "true"
        assert metadata.description.startswith("Simulated, none of this happened.")
        assert pl.scan_delta(uri).select(pl.col("simulated").all()).collect().item()
        files = DeltaTable(uri).file_uris()
        found = duckdb.sql("SELECT DISTINCT simulated FROM read_parquet($files)", params={"files": files})
        assert found.fetchall() == [(True,)]
    assert (counted.rows, counted.figures["simulated"]) == (simulated.rows, True), "and none of the ledger's five"
    assert counted.figures["storage"].keys() == {"archive"}, "a fleet that never was has no ledger"
    page = report.page(objects, Settings(), NOW)
    assert "<title>Simulated messages, 2026-11-14 to 2026-11-15</title>" in page
    assert '<p class="banner" role="note"><strong>Simulated.</strong>' in page


async def test_compaction_keeps_the_mark_of_every_row(work: Callable[..., JobContext], objects: Objects) -> None:
    commit.opened(objects, RECEIPTS.marked())
    for number in (1, 2):
        with Files(objects, commit.as_in(objects, STORAGE), f"{number}") as files:
            files.add(lake_tables.rows(STORAGE, OLD, 3))
        commit.commit(objects, STORAGE, files.written, Mark("a job", number))
    assert maintain(work()).figures["compacted"] == {STORAGE.name: {"days": 1, "files": 1}}
    assert pl.scan_delta(objects.table(STORAGE.name)).select(pl.col("simulated").all()).collect().item()


async def test_a_run_on_a_simulated_archive_is_not_what_the_schedule_waits_for(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    commit.opened(objects, RECEIPTS.marked())
    analytics(work())
    maintain(work())
    connection = await asyncpg.connect(database_url)
    found = await connection.fetch("SELECT job FROM pipeline_runs ORDER BY job")
    await connection.close()
    assert [row["job"] for row in found] == ["analytics, simulated", "maintain, simulated"]


JOBS: list[Job] = [archive_receipts, archive_sessions, archive_audit, retention, replay_audit, verify_audit]
NAMED = {job.__name__: job.__name__.replace("_", " ") for job in JOBS}


@pytest.mark.parametrize("job", JOBS, ids=NAMED.values())
async def test_a_job_about_what_happened_refuses_a_simulated_archive(
    work: Callable[..., JobContext], objects: Objects, job: Job
) -> None:
    commit.opened(objects, RECEIPTS.marked())
    with pytest.raises(Conflict, match="is a simulated one") as refusal:
        job(work())
    assert refusal.value.hint == f"leave --lake out: angelia pipeline run {NAMED[job.__name__]}"


@pytest.mark.parametrize(("job", "options"), [(erase, {"reason": "x"}), (export, {"format": "jsonl"})])
async def test_nobody_is_looked_for_in_a_simulated_archive(
    work: Callable[..., JobContext], objects: Objects, tmp_path: Path, job: Job, options: dict[str, str]
) -> None:
    commit.opened(objects, RECEIPTS.marked())
    with pytest.raises(Conflict, match="is a simulated one"):
        job(work(options={"agent": "ann", "out": tmp_path / "out", **options}))


async def test_a_server_whose_own_archive_is_a_simulated_one_is_told_to_name_another(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    commit.opened(objects, RECEIPTS.marked())
    with pytest.raises(Conflict) as refusal:
        archive_receipts(work(settings=Settings(lake=objects.root)))
    assert "ANGELIA_LAKE" in refusal.value.hint


async def test_the_servers_own_archive_takes_no_simulated_row_even_while_it_is_empty(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    with pytest.raises(Conflict, match="is the server's own") as refusal:
        simulate(work(settings=Settings(lake=objects.root), since=SINCE, options=SMALL))
    assert refusal.value.hint == "leave --lake out: angelia pipeline run simulate"
    assert listing.find(objects, RECEIPTS) is None


def test_the_flag_of_a_hint_leads_to_the_archive_that_it_is_about(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert archive_locations.flag(archive_locations.own(settings), settings) == ""
    assert archive_locations.flag(archive_locations.simulated(settings), settings) == " --simulated"
    assert archive_locations.flag(Objects("/a b/lake"), settings) == " --lake '/a b/lake'"


# An archive that has both.


async def test_what_the_release_before_mixed_is_taken_apart_and_every_receipt_is_archived_once(
    work: Callable[..., JobContext], database_url: str, objects: Objects, mix: Callable[..., int]
) -> None:
    await fill(database_url, OLD, 30)
    real = (await held(database_url, objects)).ledger
    made_up = mix(OLD, SINCE.date())
    for job in (archive_receipts, analytics):
        with pytest.raises(Conflict, match="holds simulated rows in delivery_receipts") as refusal:
            job(work())
        assert refusal.value.hint == f"angelia pipeline run remove simulated --lake {objects.root}"
    assert remove_simulated(work(dry_run=True)).rows == made_up == rows(objects, RECEIPTS)
    assert remove_simulated(work()).rows == made_up
    assert (rows(objects, RECEIPTS), on_disk(objects)) == (0, [])
    assert archive_receipts(work()).rows == 30
    assert (await held(database_url, objects)).ledger == []
    assert sorted(archived(objects)) == sorted(real)
    again = remove_simulated(work())
    assert (again.rows, again.runs, await acts(database_url)) == (0, [], 1)


async def test_what_was_counted_together_is_counted_again_without_what_never_happened(
    work: Callable[..., JobContext], database_url: str, objects: Objects, mix: Callable[..., int]
) -> None:
    await fill(database_url, OLD, 30)
    analytics(work())
    mix(OLD)  # the page of now was made from both
    page = report.page(objects, Settings(lake=objects.root), NOW)
    assert "<strong>Not to be trusted.</strong>" in page
    assert "<code>angelia pipeline run remove simulated</code>" in page
    done = remove_simulated(work())
    assert done.summary.endswith("; `angelia pipeline run analytics` counts the rest again")
    assert (rows(objects, DAYS), rows(objects, HOURS)) == (0, 0)
    assert analytics(work()).figures["receipts"] == 30
    page = report.page(objects, Settings(), NOW)
    assert ("banner" in page.split("</style>")[1], "<title>Messages," in page) == (False, True)


async def test_of_rows_in_one_table_exactly_the_simulated_ones_go_whatever_agents_are_called(
    work: Callable[..., JobContext], database_url: str, objects: Objects, mix: Callable[..., int]
) -> None:
    await fill(database_url, OLD, 40)
    await renamed(database_url, OLD, "sim-000001")
    await fill(database_url, OLD + timedelta(days=1), 15)
    archive_receipts(work())
    real = DeltaTable(objects.table(RECEIPTS.name)).to_pyarrow_table().sort_by("receipt_id")
    made_up = mix(OLD, SINCE.date()) + mix(OLD, fleet=Fleet(agents=7, seed=-99))
    maintain(work())  # files tell no longer whose they are
    assert remove_simulated(work()).rows == made_up
    left = DeltaTable(objects.table(RECEIPTS.name)).to_pyarrow_table().sort_by("receipt_id")
    assert left == real.select(left.column_names)
    await fill(database_url, OLD + timedelta(days=2), 3)
    assert archive_receipts(work()).rows == 3


async def test_a_chain_that_was_simulated_makes_room_for_the_real_one(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path, mix: Callable[..., int]
) -> None:
    settings = Settings(data_dir=tmp_path)
    last = await chained(database_url, tmp_path, datetime(2026, 11, 13, tzinfo=UTC), 12)
    mix(SINCE.date(), audit=True)
    with pytest.raises(Conflict, match="holds simulated rows in audit_events"):
        archive_audit(work(settings=settings))
    events = rows(objects, AUDIT)
    assert remove_simulated(work()).figures["archive"][AUDIT.name] == events > 0
    assert DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "true"
    archive_audit(work(settings=settings))
    assert positions(objects)[:last] == list(range(1, last + 1))


async def test_a_simulated_archive_is_removed_whole_and_not_row_by_row(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    commit.opened(objects, RECEIPTS.marked())
    with pytest.raises(Conflict) as refusal:
        remove_simulated(work())
    assert refusal.value.hint == f"rm -r {objects.root}"


@killed
async def test_killed_at_a_step_simulated_rows_go_and_every_real_one_is_there_once(
    work: Callable[..., JobContext], database_url: str, objects: Objects, mix: Callable[..., int], killed: bool
) -> None:
    await fill(database_url, OLD, 25)
    archive_receipts(work())
    analytics(work())
    real = sorted(archived(objects))
    made_up = mix(OLD, SINCE.date(), audit=True)
    events = rows(objects, AUDIT)
    for step in ("planned", "uncounted", "removed audit_events", "removed delivery_receipts", "deleted", "recording"):
        if killed:
            await dying(database_url, objects, "remove simulated", step)
        else:
            with pytest.raises(Died):
                remove_simulated(work(step=dies_at(step)))
        assert set(real) <= set(archived(objects)), step
        assert await acts(database_url) == 0, step
    done = remove_simulated(work())
    assert done.figures["archive"] == {RECEIPTS.name: made_up, AUDIT.name: events}
    assert (sorted(archived(objects)), rows(objects, AUDIT), await acts(database_url)) == (real, 0, 1)


async def test_what_was_counted_after_a_crash_is_not_forgotten_by_the_run_that_goes_on(
    work: Callable[..., JobContext], objects: Objects, database_url: str, mix: Callable[..., int]
) -> None:
    await fill(database_url, OLD, 10)
    mix(OLD)
    with pytest.raises(Died):
        remove_simulated(work(step=dies_at("removed delivery_receipts")))
    analytics(work())
    counted = rows(objects, HOURS)
    remove_simulated(work())
    assert (rows(objects, DAYS), rows(objects, HOURS)) == (1, counted)


async def test_a_run_that_died_while_it_archived_is_finished_after_the_simulated_rows_are_gone(
    work: Callable[..., JobContext], database_url: str, objects: Objects, mix: Callable[..., int]
) -> None:
    await fill(database_url, OLD, 10)
    real = sorted((await held(database_url, objects)).ledger)
    with pytest.raises(Died):
        archive_receipts(work(step=dies_at("committed")))
    mix(OLD)
    remove_simulated(work())
    archive_receipts(work())
    found = await held(database_url, objects)
    assert (found.ledger, sorted(found.archive)) == ([], real)
