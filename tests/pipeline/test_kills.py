"""Wherever a run of the audit's archive or of retention ends, nothing is lost by it, and the next one finishes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from deltalake import DeltaTable

from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.retention import retained_from, retention
from angelia.pipeline.jobs.verify_audit import verify_audit
from angelia.pipeline.lake.audit_chain import archive_floor
from angelia.pipeline.lake.tables import AUDIT
from angelia.settings import Settings
from angelia.stores.objects import Objects
from audit_chains import chained, positions
from killed_jobs import Died, dies_at, dying, killed
from receipt_rows import NOW, archived, fill

OLD, YOUNG = NOW - timedelta(days=40), NOW - timedelta(days=3)
PAST, KEPT = retained_from(NOW.date()) - timedelta(days=1), retained_from(NOW.date())


async def in_ledger(database_url: str) -> list[int]:
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch(
        """SELECT position FROM audit_chain AS c JOIN audit_events AS e ON e.event_id = c.event_id
           WHERE event_type = 'message_sent' ORDER BY position"""
    )
    await connection.close()
    return [row["position"] for row in rows]


def on_disk(objects: Objects, day: date) -> list[Path]:
    return list(Path(objects.root).rglob(f"day={day}/*.parquet"))


async def acts(database_url: str, job: str) -> int:
    connection = await asyncpg.connect(database_url)
    found: int = await connection.fetchval(
        "SELECT count(*) FROM audit_events WHERE event_type = 'archive_run' AND detail->>'job' = $1", job
    )
    await connection.close()
    return found


@killed
async def test_killed_at_a_step_the_audit_is_archived_once_and_leaves_the_ledger_only_when_it_is(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path, killed: bool
) -> None:
    settings = Settings(data_dir=tmp_path)
    await chained(database_url, tmp_path, OLD, 30)
    last = await chained(database_url, tmp_path, YOUNG, 20)
    every = list(range(1, last + 1))
    with pytest.raises(Died):
        archive_audit(work(settings=settings, step=dies_at("planned")))
    for step in ("committed", "verified", "purging"):
        if killed:
            await dying(database_url, objects, "archive audit", step)
        else:
            with pytest.raises(Died):
                archive_audit(work(settings=settings, step=dies_at(step)))
        assert (await in_ledger(database_url), positions(objects)) == (every, every), step
    with pytest.raises(Died):
        archive_audit(work(settings=settings, step=dies_at("trimmed")))
    assert (await in_ledger(database_url), positions(objects)) == (every[30:], every)
    report = archive_audit(work(settings=settings))
    assert (report.figures["trimmed"], await acts(database_url, "archive audit")) == (0, 1)
    assert verify_audit(work(settings=settings)).figures["broken"] == []


async def test_killed_at_a_step_retention_takes_out_what_is_due_and_records_it_once(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    for day, rows in ((PAST, 12), (KEPT, 7)):
        await fill(database_url, day, rows)
        await chained(database_url, tmp_path, datetime(day.year, day.month, day.day, 12, tzinfo=UTC), rows)
    archive_receipts(work())
    archive_audit(work(settings=settings))
    for step in ("planned", "removed delivery_receipts", "removed audit_events", "recording"):
        with pytest.raises(Died):
            retention(work(settings=settings, step=dies_at(step)))
        assert (len(archived(objects)) >= 7, set(range(13, 20)) <= set(positions(objects))) == (True, True), step
        assert await acts(database_url, "retention") == 0, step
    report = retention(work(settings=settings))
    assert (report.rows, len(archived(objects)), positions(objects)) == (24, 7, list(range(13, 20)))
    assert (archive_floor(objects).position, await acts(database_url, "retention")) == (12, 2)
    assert DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "true"
    assert on_disk(objects, PAST) == []
    assert verify_audit(work(settings=settings)).figures["broken"] == []
