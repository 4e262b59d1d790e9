"""After an erasure nothing of the agent's old rows is left, not even in files, and the chain still verifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import queue_rows
from agent_rows import AGENT, IN_ARCHIVE, IN_LEDGER, YOUNG, known, queued, talked
from angelia.audit.service import Audit, event
from angelia.errors import Conflict, InvalidArgument
from angelia.keys.node_key import load_or_make
from angelia.pipeline import runs
from angelia.pipeline.jobs.archive_audit import JOB as AUDIT_JOB
from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.archive_queues import archive_queues
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.archive_rooms import archive_rooms
from angelia.pipeline.jobs.erase import erase
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.simulate import simulate
from angelia.pipeline.jobs.verify_audit import verify_audit
from angelia.pipeline.lake import maintenance
from angelia.pipeline.lake.maintenance import StoreRefuses
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS, ROOMS
from angelia.rooms.words import word_hash
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.objects import Objects
from audit_chains import sealed
from killed_jobs import Died, dies_at, dying, killed
from receipt_rows import NOW, OLD, fill, held
from room_rows import agent, deleted, made, packed, posted

ASKED = {"agent": AGENT, "reason": "request 7 of the data protection officer"}


def traces(objects: Objects, agent: str = AGENT) -> list[str]:
    """Files of the archive, those among them that no table has any more, with a value that names the agent."""
    return [
        f"{path}"
        for path in Path(objects.root).rglob("day=*/*.parquet")
        if any(agent in str(row.values()) for row in pq.ParquetFile(path).read().to_pylist())
    ]


def leave_an_orphan(objects: Objects) -> None:
    """What a run that died before its commit leaves: a file that no table has, with rows of the agent."""
    orphan = Path(objects.root, AUDIT.name, "day=2026-10-01", "of-a-run-that-died.parquet")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(Path(traces(objects)[0]).read_bytes())


async def rows_about(database_url: str) -> list[int]:
    connection = await asyncpg.connect(database_url)
    counts = [
        await connection.fetchval(f"SELECT count(*) FROM {table} AS r WHERE r::text LIKE $1", f"%{AGENT}%")  # noqa: S608
        for table in ("delivery_receipts", "audit_events", "ratchet_states", "pipeline_runs")
    ]
    await connection.close()
    return counts


async def test_an_erasure_takes_the_agent_out_of_ledger_and_archive_and_the_chain_still_verifies(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    begun = await known(work, database_url, tmp_path)
    others = await held(database_url, objects)
    leave_an_orphan(objects)
    assert len(traces(objects)) >= 3
    begun.options = ASKED
    report = erase(begun)
    assert (report.figures["ledger"], report.figures["archive"]) == (IN_LEDGER, IN_ARCHIVE)
    assert (await rows_about(database_url), traces(objects)) == ([0, 0, 0, 0], [])
    left = await held(database_url, objects)
    assert (len(others.ledger) - len(left.ledger), len(others.archive) - len(left.archive)) == (9, 11)
    assert DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "true"
    ledger = await Ledger.open(database_url)
    await Audit(ledger).seal(load_or_make(tmp_path / "node.key"), NOW)
    await ledger.close()
    archive_audit(begun)
    proof = verify_audit(begun)
    assert (proof.figures["broken"], proof.figures["redacted"]) == ([], IN_ARCHIVE["audit_events"])


async def test_of_rooms_and_inboxes_nothing_is_left_of_the_agent_and_everything_of_others(
    work: Callable[..., JobContext], database_url: str, objects: Objects, connection: asyncpg.Connection
) -> None:
    await talked(database_url)
    alice = await agent(database_url, AGENT)
    room = await made(database_url, "hers")
    await connection.execute("UPDATE rooms SET created_by = $1 WHERE room_id = $2", alice, room.room_id)
    [noted, _] = await posted(database_url, room, ["alicemark six", "alicemark seven"], NOW, author=alice)
    await deleted(database_url, room, noted, alice, NOW)
    archive_rooms(work())
    await packed(database_url)
    await posted(database_url, room, ["alicemark eight"], NOW, author=alice)
    report = erase(work(options=ASKED))
    assert (report.figures["ledger"]["rooms"], report.figures["ledger"]["direct_messages"]) == (4, 2)
    assert report.figures["archive"]["rooms"] == 3
    for mark in ("alicemark", str(alice)):
        assert traces(objects, mark) == []
        for table in ("room_entries", "dms"):
            assert await connection.fetchval(f"SELECT count(*) FROM {table} AS r WHERE r::text ~ $1", mark) == 0  # noqa: S608
    assert await connection.fetchval("SELECT count(*) FROM room_unpacked") == 0
    words = "SELECT octet_length(places) FROM room_words WHERE word = $1"
    assert await connection.fetchval(words, word_hash("alicemark")) is None
    assert await connection.fetchval(words, word_hash("othermark")) == 2, "one place"
    bodies = await connection.fetch("SELECT body FROM room_entries UNION ALL SELECT body FROM dms")
    assert sorted(row["body"] for row in bodies) == ["othermark sealed", "othermark two"]
    [archived] = DeltaTable(objects.table(ROOMS.name)).to_pyarrow_table().to_pylist()
    assert (archived["body"], archived["parent_id"] is None) == ("othermark one", False)
    held = {row["handle"]: row["held"] for row in await connection.fetch(
        "SELECT handle, held FROM dm_inboxes JOIN agents ON id = agent_id"
    )}  # fmt: skip
    assert held == {AGENT: 0, "other": 1}
    assert await connection.fetchval("SELECT created_by FROM rooms WHERE room_id = $1", room.room_id) == alice


async def test_of_queues_nothing_is_left_of_the_agent_and_consumers_pass_over_what_it_pushed(
    work: Callable[..., JobContext], database_url: str, objects: Objects, connection: asyncpg.Connection
) -> None:
    await queued(database_url)
    archive_queues(work())
    await connection.execute(
        """INSERT INTO queue_traces (trace_id, queue_no, partition_no, position, transaction_id, group_name, worker,
             event_type, names, data, created_at)
           SELECT gen_random_uuid(), queue_no, partition_no, p, 't', 'group', w, 'x', '{}', '"alicemark"', $1
           FROM queue_partitions, (VALUES (3, 'worker'), (5, 'alice-1')) AS t (p, w)""",
        NOW,
    )
    await connection.execute(
        """INSERT INTO queue_buffered (queue_name, partition_name, message_id, transaction_id, producer, body,
             buffered_at, retry_at) VALUES ('orders', 'Default', gen_random_uuid(), 't', $1, '"alicemark"', $2, $2)""",
        AGENT, NOW,
    )  # fmt: skip
    await queue_rows.pushed(database_url, "orders", ["othermark last"], NOW, producer="other")
    wanted = {"queue_messages": 3, "queue_dead_letters": 1, "queue_traces": 2, "queue_buffered": 1}
    foreseen = erase(work(options=ASKED, dry_run=True))
    assert {name: foreseen.figures["ledger"][name] for name in wanted} == wanted
    report = erase(work(options=ASKED))
    assert {name: report.figures["ledger"][name] for name in wanted} == wanted
    assert {name: report.figures["archive"][name] for name in ("queue_messages", "queue_dead_letters")} == {
        "queue_messages": 2, "queue_dead_letters": 1,
    }  # fmt: skip
    for mark in ("alicemark", AGENT):
        assert traces(objects, mark) == []
        for table in ("queue_chunks", "queue_dead_letters", "queue_traces", "queue_buffered"):
            rows = str(await connection.fetch(f"SELECT r::text FROM {table} AS r"))  # noqa: S608 - payloads are in hex
            assert (mark in rows, mark.encode().hex() in rows) == (False, False), table
    held = await queue_rows.held_in_queues(database_url, objects)
    assert (len(held.ledger), [row["payload"][:9] for row in held.rows]) == (2, [b"othermark"])
    await queue_rows.consumed(database_url, "orders", 1, NOW)
    again = await queue_rows.pushed(database_url, "orders", ["alicemark waits"], NOW)
    assert len(again) == 1, "the transaction id is free"
    assert erase(work(options=ASKED)).figures["ledger"]["queue_messages"] == 0


async def test_an_agent_that_is_asked_for_by_its_id_is_erased_with_what_names_it_by_either(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    alice = str(await agent(database_url, AGENT))
    await sealed(database_url, tmp_path, YOUNG, [
        event("agent_registered", YOUNG, actor=alice, object=alice, detail={"n": 1}),
        event("handle_claimed", YOUNG, actor=AGENT, object=AGENT, detail={"id": alice}),
        event("room_created", YOUNG, actor="other", object="room", detail={"by": alice}),
        event("room_created", YOUNG, actor="other", object="room", detail={"by": None}),
    ])  # fmt: skip
    begun = work(settings=Settings(data_dir=tmp_path), options={**ASKED, "agent": alice.upper()})
    archive_audit(begun)
    begun.dry_run = True
    assert erase(begun).figures["archive"]["audit_events"] == 3
    begun.dry_run = False
    report = erase(begun)
    assert (report.figures["ledger"]["audit_events"], report.figures["archive"]["audit_events"]) == (3, 3)
    connection = await asyncpg.connect(database_url)
    for table in ("audit_events", "pipeline_runs"):
        named = f"SELECT count(*) FROM {table} AS r WHERE r::text LIKE ANY ($1)"  # noqa: S608
        assert await connection.fetchval(named, [f"%{alice}%", f"%{AGENT}%"]) == 0
    await connection.close()
    assert traces(objects) == traces(objects, alice) == []
    archive_audit(begun)
    proof = verify_audit(begun)
    assert (proof.figures["broken"], proof.figures["redacted"]) == ([], 3)
    with pytest.raises(InvalidArgument, match="the reason names the agent"):
        erase(work(options={"agent": AGENT, "reason": f"wish of {alice}"}))


async def test_the_act_is_recorded_without_the_name(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 8)
    report = erase(work(options={**ASKED, "agent": "sender-3"}))
    connection = await asyncpg.connect(database_url)
    acts = await connection.fetch("SELECT * FROM audit_events WHERE event_type = 'erased' ORDER BY detail->>'in' DESC")
    run = await connection.fetchrow("SELECT state, row_count, report FROM pipeline_runs")
    await connection.close()
    details = [json.loads(act["detail"]) for act in acts]
    assert [(one["in"], one["delivery_receipts"], one["reason"]) for one in details] == [
        ("ledger", 1, ASKED["reason"]),
        ("archive", 0, ASKED["reason"]),
    ]
    assert {one["run"] for one in details} == set(report.runs)
    assert all(act["actor_nhi"] is act["object_nhi"] is None for act in acts)
    assert (run["state"], run["row_count"], "sender-3" in run["report"]) == ("done", 1, False)


async def test_a_ledger_that_knows_of_no_runs_erases_in_an_archive_that_has_seen_many(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 70)
    archive_receipts(work())
    erase(work(options={**ASKED, "agent": "sender-1"}))
    connection = await asyncpg.connect(database_url)
    await connection.execute("DELETE FROM pipeline_runs")  # restored, or new
    await connection.close()
    assert len(traces(objects, "sender-2")) > 0
    assert erase(work(options={**ASKED, "agent": "sender-2"})).figures["archive"][RECEIPTS.name] == 10
    assert traces(objects, "sender-2") == []


async def test_messages_under_way_stay_and_the_report_says_so(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, NOW.date(), 14, status="pending")
    report = erase(work(options={**ASKED, "agent": "sender-3"}))
    assert report.figures["pending"] == 2
    assert "run it again" in report.summary
    assert len((await held(database_url, objects)).ledger) == 14


async def test_a_dry_run_counts_and_erases_nothing(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 14)
    report = erase(work(options={**ASKED, "agent": "sender-3"}, dry_run=True))
    assert (report.state, report.rows, len((await held(database_url, objects)).ledger)) == ("dry run", 2, 14)


@pytest.mark.parametrize("options", [{"agent": "ann"}, {"reason": "why"}, {"agent": "ann", "reason": "as Ann wished"}])
async def test_what_is_asked_wrongly_is_refused(work: Callable[..., JobContext], options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        erase(work(options=options))


async def test_while_rows_are_on_the_move_nothing_is_erased(work: Callable[..., JobContext], database_url: str) -> None:
    with runs.only_one(database_url, AUDIT_JOB), pytest.raises(Conflict):
        erase(work(options=ASKED))


async def test_an_audit_that_is_simulated_waits_for_whoever_holds_the_real_one(
    work: Callable[..., JobContext], database_url: str
) -> None:
    asked = {"agents": 5, "months": 1, "audit": True}
    with runs.only_one(database_url, AUDIT_JOB), pytest.raises(Conflict):
        simulate(work(options=asked, dry_run=True))
    assert simulate(work(options=asked, dry_run=True)).state == "dry run"


def test_a_store_that_keeps_its_files_is_an_error_that_says_where_to_read_on(objects: Objects) -> None:
    kept = Path(objects.root, AUDIT.name, "day=2026-10-01")  # what cannot be removed as a file, whoever tries
    kept.mkdir(parents=True)
    with pytest.raises(StoreRefuses, match="audit_events") as refusal:
        maintenance.delete(objects, AUDIT, ["day=2026-10-02/gone-already.parquet", kept.name])
    assert "docs/retention.md" in refusal.value.hint


@killed
async def test_killed_at_a_step_the_next_call_finishes_and_the_same_agent_twice_is_harmless(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path, killed: bool
) -> None:
    begun = await known(work, database_url, tmp_path)
    begun.options = ASKED
    at_rest = ("erasing", "rewritten delivery_receipts", "closed", "swept")
    for step in (*at_rest[:2], "opened audit_events", "rewritten audit_events", *at_rest[2:]):
        if killed:
            await dying(database_url, objects, "erase", step, **ASKED)
        else:
            begun.step = dies_at(step)
            with pytest.raises(Died):
                erase(begun)
        closed = DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "true"
        assert closed == (step in at_rest), "before files are removed, which a store may refuse"
    begun.step = dies_at("never")
    report = erase(begun)
    assert (report.figures["ledger"], report.figures["archive"]) == (
        dict.fromkeys(IN_LEDGER, 0),
        dict.fromkeys(IN_ARCHIVE, 0),
    )
    assert (await rows_about(database_url), traces(objects)) == ([0, 0, 0, 0], [])
    assert DeltaTable(objects.table(AUDIT.name)).metadata().configuration["delta.appendOnly"] == "true"
