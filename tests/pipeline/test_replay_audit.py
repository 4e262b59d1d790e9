"""What must not be there is found over ledger and archive together, and named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.replay_audit import replay_audit
from angelia.settings import Settings
from audit_chains import chained
from killed_jobs import Died, dies_at
from receipt_rows import NOW, OLD, fill


async def changed(database_url: str, statement: str, *values: object) -> object:
    connection = await asyncpg.connect(database_url)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()


async def test_sound_rows_have_no_fault_though_a_dead_run_left_some_in_both_places(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await fill(database_url, OLD, 60)
    await chained(database_url, tmp_path, NOW - timedelta(days=40), 30)
    await chained(database_url, tmp_path, NOW - timedelta(days=2), 20)
    with pytest.raises(Died):
        archive_receipts(work(step=dies_at("committed")))
    archive_audit(work(settings=Settings(data_dir=tmp_path)))
    await chained(database_url, tmp_path, NOW - timedelta(days=1), 10)
    figures = replay_audit(work()).figures
    assert (figures["duplicates"], figures["chain_faults"]) == (0, 0)


async def test_a_key_and_an_id_that_come_again_after_the_first_was_archived_are_named(
    work: Callable[..., JobContext], database_url: str
) -> None:
    await fill(database_url, OLD, 30)
    copied = "SELECT receipt_id::text FROM delivery_receipts ORDER BY receipt_id LIMIT 1"
    first = await changed(database_url, copied)
    await changed(
        database_url, "CREATE TABLE kept AS SELECT * FROM delivery_receipts WHERE receipt_id = $1::text::uuid", first
    )
    archive_receipts(work())
    again = await changed(
        database_url,
        """INSERT INTO delivery_receipts SELECT (k).* FROM (
             SELECT jsonb_populate_record(
               k, jsonb_build_object('receipt_id', gen_random_uuid(), 'sent_at', $1::text)) AS k
             FROM kept AS k) AS k RETURNING receipt_id::text""",
        f"{NOW - timedelta(days=1)}",
    )
    report = replay_audit(work())
    assert report.figures["duplicates"] == 2
    for kind in ("replay_key", "message_id"):
        assert report.figures[kind]["count"] == 1
        assert report.figures[kind]["first"][0]["receipts"] == sorted([str(first), str(again)])


async def test_missing_and_swapped_entries_are_found_in_archive_and_ledger(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await chained(database_url, tmp_path, NOW - timedelta(days=3), 30)
    # Whoever owns the ledger swaps two entries before they are archived, and removes one after that.
    await changed(database_url, "UPDATE audit_chain SET entry_hash = sha256('x') WHERE position = 7")
    archive_audit(work(settings=Settings(data_dir=tmp_path)))
    await chained(database_url, tmp_path, NOW - timedelta(days=1), 10)
    await changed(database_url, "DELETE FROM audit_chain WHERE position = 35")
    figures = replay_audit(work()).figures
    assert [one["position"] for one in figures["disorder"]["first"]] == [7, 8]
    assert figures["gap"]["first"] == [{"before": 34, "position": 36}]
    assert (figures["repeat"]["count"], figures["chain_faults"]) == (0, 3)
