"""The list of the pipeline's runs: what operators see of it, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from angelia.audit.failures import Failures
from angelia.audit.failures_store import FailureCounts
from angelia.audit.service import Audit
from angelia.mail.hot_store import HotMail
from angelia.mail.receipts import Receipts
from angelia.runs.model import RunState
from angelia.runs.service import Runs
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from assembled_slices import assembled
from http_agents import Server
from receipt_rows import NOW, OLD, fill
from room_rows import KEPT, made, posted

HOUR = timedelta(hours=1)
RECEIPTS, AUDIT = "archive receipts", "archive audit"

_ADD = """
INSERT INTO pipeline_runs (run_id, job, app_id, version, state, row_count, report, started_at, updated_at)
SELECT gen_random_uuid(), $1::text, $1, coalesce(max(version), 0) + 1, $2, 7, '{"rows": 7}', $3,
  $3::timestamptz + interval '1 minute'
FROM pipeline_runs WHERE app_id = $1 RETURNING run_id
"""


@pytest.fixture
def add(connection: asyncpg.Connection) -> Callable[..., Any]:
    """`await add(job, state, began)` gives the new run's id."""

    async def added(job: str, state: str = "done", at: datetime = NOW) -> str:
        return str(await connection.fetchval(_ADD, job, state, at))

    return added


@pytest.fixture
def runs(ledger: Ledger) -> Runs:
    return Runs(ledger)


async def test_an_operator_pages_through_them_newest_first(start: Any, add: Callable[..., Any]) -> None:
    server: Server = await start()
    ids = [await add(RECEIPTS, at=NOW + n * HOUR) for n in range(3)]
    first = (await server.get("/v1/runs?limit=2", headers=server.admin)).json()
    second = (await server.get(f"/v1/runs?limit=2&cursor={first['next']}", headers=server.admin)).json()
    assert [run["run_id"] for run in (*first["runs"], *second["runs"])] == ids[::-1]
    assert second["next"] is None
    assert (first["runs"][0]["rows"], first["runs"][0]["from"]) == (7, None)


async def test_they_are_filtered_by_job_and_state(start: Any, add: Callable[..., Any]) -> None:
    server: Server = await start()
    failed = await add(AUDIT, "failed")
    await add(AUDIT)
    await add(RECEIPTS, "failed")
    found = (await server.get("/v1/runs?job=archive%20audit&state=failed", headers=server.admin)).json()
    assert [run["run_id"] for run in found["runs"]] == [failed]
    refused = await server.get("/v1/runs?state=lost", headers=server.admin)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")


async def test_nobody_but_an_operator_sees_them(start: Any) -> None:
    server: Server = await start()
    agent = await server.register()
    answer = await server.send_signed(agent, "GET", "/v1/runs")
    assert (answer.status_code, answer.json()["code"]) == (403, "authorization_denied")


async def test_a_run_is_at_work_as_long_as_somebody_holds_its_lock(
    runs: Runs, connection: asyncpg.Connection, add: Callable[..., Any]
) -> None:
    await add(RECEIPTS, "committed")
    lock = "SELECT pg_{}(hashtextextended('angelia/pipeline archive receipts', 0))"
    await connection.execute(lock.format("advisory_lock"))
    (run,) = await runs.unfinished()
    assert (run.at_work, run.standing) == (True, "at work, committed")
    await connection.execute(lock.format("advisory_unlock"))
    (run,) = await runs.unfinished()
    assert (run.at_work, run.standing) == (False, "died, committed")


async def test_a_run_is_found_by_the_beginning_of_its_id(runs: Runs, add: Callable[..., Any]) -> None:
    wanted = await add(RECEIPTS)
    await add(RECEIPTS)
    assert [str(run.run_id) for run in await runs.beginning_with(wanted[:13], 2)] == [wanted]


async def test_of_each_job_it_is_known_how_it_stands(runs: Runs, add: Callable[..., Any]) -> None:
    done = await add(RECEIPTS, at=NOW)
    await add(RECEIPTS, "failed", NOW + HOUR)
    await add(AUDIT, "planned", NOW)
    stands = {one.job: (one.state, one.started_at, one.done_at) for one in await runs.latest()}
    assert stands == {
        RECEIPTS: (RunState.FAILED, NOW + HOUR, NOW + timedelta(minutes=1)),
        AUDIT: (RunState.PLANNED, NOW, None),
    }
    assert [str(run.run_id) for run in await runs.last_done()] == [done]


async def test_what_waits_and_when_a_job_was_done_is_measured(
    start: Any, add: Callable[..., Any], ledger: Ledger, hot: HotTier, database_url: str, tmp_path: Path
) -> None:
    server: Server = await start()
    await fill(database_url, OLD, 12)
    await posted(database_url, await made(database_url, "talk"), ["a1", "b2", "c3"], NOW - 2 * KEPT)
    await posted(database_url, await made(database_url, "fleeting", archive=False), ["d4"], NOW - 2 * KEPT)
    await add(RECEIPTS, at=NOW)
    await add(AUDIT, "planned")
    async with assembled(ledger, hot, tmp_path) as process:
        for tick in process.slices.runs.ticks():
            assert not await tick.run(NOW)
    lines = (await server.get("/metrics")).text.splitlines()
    shown = dict(line.rsplit(" ", 1) for line in lines if line.startswith("angelia_pipeline"))
    done = (NOW + timedelta(minutes=1)).timestamp()
    assert float(shown['angelia_pipeline_rows_waiting{table="delivery_receipts"}']) == 12
    assert float(shown['angelia_pipeline_rows_waiting{table="audit_events"}']) == 0
    assert float(shown['angelia_pipeline_rows_waiting{table="rooms"}']) == 3
    assert float(shown['angelia_pipeline_last_done_timestamp_seconds{job="archive receipts"}']) == done
    assert float(shown["angelia_pipeline_runs_open"]) == 1


async def test_receipts_are_counted_no_further_than_wanted(ledger: Ledger, hot: HotTier, database_url: str) -> None:
    await fill(database_url, OLD, 12)
    receipts = Receipts(ledger, HotMail(hot, Wake(hot)), Failures(ledger, FailureCounts(hot)))
    assert [await receipts.count_waiting(NOW, most) for most in (5, 100)] == [5, 12]


async def test_entries_of_the_audit_that_are_past_their_time_are_counted(
    ledger: Ledger, connection: asyncpg.Connection
) -> None:
    add = "INSERT INTO audit_chain (position, event_id, occurred_at, entry_hash) VALUES ($1, gen_random_uuid(), $2, $3)"
    await connection.executemany(add, [(n, NOW + n * HOUR, bytes(32)) for n in range(1, 4)])
    assert [await Audit(ledger).count_before(NOW + n * HOUR, 100) for n in (0, 3, 9)] == [0, 2, 3]
    assert await Audit(ledger).count_before(NOW + 9 * HOUR, 2) == 2
