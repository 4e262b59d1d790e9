"""Everything that is held about an agent, in one place that is complete or not there."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_rows import AGENT, IN_ARCHIVE, IN_LEDGER, known
from angelia.errors import AlreadyExists, InvalidArgument, NotFound
from angelia.pipeline import runs
from angelia.pipeline.jobs.export import export
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.tables import AGENTS
from angelia.stores.objects import Objects
from export_rows import OTHERS, OURS, told
from room_rows import agent
from schedule_rows import scheduled

SECRET = ("wire", "ciphertext", "grace_period_keys", "state_ciphertext", "payload", "secret_hash", "answer")


def beginning_with(directory: Path, name: str) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.startswith(name)]


def exported(begun: JobContext, out: Path, format: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of every kind that an export wrote."""
    begun.options = {"agent": AGENT, "out": str(out), "format": format}
    export(begun)
    kinds = json.loads((out / "manifest.json").read_text())["kinds"]
    if format == "parquet":
        return {kind: pq.read_table(out / one["file"]).to_pylist() for kind, one in kinds.items()}
    return {kind: [json.loads(line) for line in (out / one["file"]).open()] for kind, one in kinds.items()}


async def test_an_export_has_what_ledger_and_archive_hold_once_each_and_nothing_of_others(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    begun = await known(work, database_url, tmp_path)
    begun.options = {"agent": AGENT, "out": str(tmp_path / "out"), "format": "parquet"}
    report = export(begun)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["agent"] == AGENT
    for kind, archived in IN_ARCHIVE.items():
        found = pq.read_table(tmp_path / "out" / f"{kind}.parquet").to_pylist()
        # The younger events are in the archive and still in the ledger.
        wanted = archived if kind == "audit_events" else archived + IN_LEDGER[kind]
        assert (kind, len(found)) == (kind, wanted)
        assert manifest["kinds"][kind]["rows"] == wanted == report.figures["kinds"][kind]
        assert all(AGENT in row.values() or row["body"].startswith("alicemark") for row in found)
    direct = pq.read_table(tmp_path / "out" / "direct_messages.parquet").to_pylist()
    assert {(row["sender"], row["recipient"], row["body"]) for row in direct} == {
        (AGENT, "other", "alicemark sealed"),
        ("other", AGENT, "sealed to alicemark"),
    }
    kinds = [path for path in (tmp_path / "out").glob("*.parquet") if not path.name.startswith("queue_")]
    names = {name for path in kinds for name in pq.read_schema(path).names}
    assert names.isdisjoint(SECRET)
    pushed = pq.read_table(tmp_path / "out" / "queue_messages.parquet").to_pylist()
    assert all(row["payload"].startswith(b"alicemark") for row in pushed)
    assert sorted(row["ended"] or "" for row in pushed) == ["", "", "", "completed", "dead"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert (modes, stat.S_IMODE((tmp_path / "out").stat().st_mode)) == ({0o600}, 0o700)


async def test_of_every_table_of_the_ledger_the_rows_that_name_the_agent_are_there_and_no_others(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await told(database_url, AGENT)
    found = exported(work(), tmp_path / "out", "parquet")
    marks = {kind: sorted(str(row[column]) for row in found[kind]) for kind, (column, _) in OURS.items()}
    assert marks == {kind: sorted(values) for kind, (_, values) in OURS.items()}
    assert {kind for kind, of_kind in found.items() if of_kind} == OURS.keys()
    written = " ".join((tmp_path / "out" / f"{kind}.parquet").read_bytes().decode("latin-1") for kind in found)
    assert not [mark for mark in OTHERS if mark in written or mark in str(found)]


async def test_an_agent_is_exported_by_its_id_as_by_its_handle(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await told(database_url, AGENT)
    id_ = OURS["agents"][1][0]
    export(work(options={"agent": id_, "out": str(tmp_path / "out"), "format": "jsonl"}))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["agent"] == AGENT
    counts = {kind: one["rows"] for kind, one in manifest["kinds"].items() if one["rows"]}
    assert counts == {kind: len(values) for kind, (_, values) in OURS.items()}


async def test_lines_of_json_say_what_parquet_says(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await told(database_url, AGENT)
    await scheduled(database_url, 1, work().now, prefix="alice")
    lines, table = (exported(work(), tmp_path / kind, kind) for kind in ("jsonl", "parquet"))
    plain = {kind: [{name: _plain(value) for name, value in row.items()} for row in of] for kind, of in table.items()}
    assert lines == plain
    assert lines["sessions"][0]["agent_a_nhi"] == AGENT


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, date) else value


async def test_what_analytics_counted_of_the_agent_is_there(
    work: Callable[..., JobContext], objects: Objects, tmp_path: Path
) -> None:
    counted = [
        {"day": date(2026, 11, 10), "agent": agent, "sent": sent}
        | dict.fromkeys(("sent_bytes", "delivered", "expired", "failed", "received", "received_bytes"), 1)
        for agent, sent in ((AGENT, 7), ("other", 8))
    ]
    run = runs.JobRun(
        run_id="r", job="analytics", app_id="analytics", version=1, lo=None, hi=None, cutoff=None,
        state=runs.RunState.PLANNED, row_count=None, id_hash_sum=None, started_at=work().now,
    )  # fmt: skip
    small_tables.put(objects, AGENTS, pa.Table.from_pylist(counted, AGENTS.schema), run)
    found = exported(work(), tmp_path / "out", "jsonl")
    assert found[AGENTS.name] == [{**counted[0], "day": "2026-11-10"}]


async def test_an_export_is_recorded_without_naming_the_agent(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await told(database_url, AGENT)
    report = export(work(options={"agent": AGENT, "out": str(tmp_path / "out")}))
    connection = await asyncpg.connect(database_url)
    [event] = await connection.fetch("SELECT * FROM audit_events WHERE event_type = 'archive_run'")
    await connection.close()
    assert json.loads(event["detail"]) == {"run": report.runs[0], "job": "export", "rows": report.rows}
    assert (event["actor_nhi"], event["object_nhi"]) == (None, None)


async def test_a_long_export_is_recorded_at_its_end_where_an_honest_event_belongs(
    work: Callable[..., JobContext], database_url: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    long = timedelta(hours=1)
    await told(database_url, AGENT)
    begun = work()
    begun.began = time.monotonic() - long.total_seconds()
    exported(begun, tmp_path / "out", "jsonl")
    [event] = await connection.fetch("SELECT * FROM audit_events WHERE event_type = 'archive_run'")
    assert event["occurred_at"] >= begun.now + long


async def test_an_agent_that_nothing_is_held_about_is_not_found(
    work: Callable[..., JobContext], tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="nothing is held about nobody"):
        export(work(options={"agent": "nobody", "out": str(tmp_path / "none")}))
    assert beginning_with(tmp_path, "none") == beginning_with(tmp_path, ".none") == []


async def test_nothing_is_overwritten_and_what_is_asked_wrongly_is_refused(
    work: Callable[..., JobContext], tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(AlreadyExists):
        export(work(options={"agent": "a", "out": str(tmp_path / "there")}))
    for options in ({"out": "x"}, {"agent": "a"}, {"agent": "a", "out": str(tmp_path / "x"), "format": "csv"}):
        with pytest.raises(InvalidArgument) as refusal:
            export(work(options=options))
        assert refusal.value.hint


async def test_an_export_that_dies_leaves_nothing_behind_that_looks_like_one(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await told(database_url, AGENT)
    (tmp_path / ".out.partial-of-one-that-was-killed").mkdir()

    def step(name: str, _run: runs.JobRun) -> None:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError):
        export(work(options={"agent": AGENT, "out": str(tmp_path / "out")}, step=step))
    assert beginning_with(tmp_path, "out") == beginning_with(tmp_path, ".out") == []


async def test_an_agent_that_only_registered_has_an_export_with_empty_files(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await agent(database_url, AGENT)
    found = exported(work(), tmp_path / "out", "parquet")
    assert {kind: len(rows) for kind, rows in found.items() if rows} == {"agents": 1}
    assert (tmp_path / "out" / "direct_messages.parquet").exists()
