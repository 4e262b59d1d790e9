"""A fleet that never was: the same options give the same receipts, and they are distributed as was asked."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from angelia.audit.model import GENESIS, Event, entry_hash
from angelia.errors import Conflict, InvalidArgument
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.simulate import simulate
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS, Table
from angelia.pipeline.simulation.capacity import OPTIONS, Assumptions, Load, needed
from angelia.pipeline.simulation.fleet import Fleet
from angelia.stores.objects import Objects
from receipt_rows import OLD, fill

SINCE = datetime(2026, 11, 12, tzinfo=UTC)
SMALL = {"agents": 50, "messages_per_agent_per_day": 40.0}


def table(objects: Objects, of: Table) -> pa.Table:
    return DeltaTable(objects.table(of.name)).to_pyarrow_table().sort_by(of.id)


def rows(objects: Objects, of: Table = RECEIPTS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(objects, of).to_pylist()
    return found


def test_a_fleet_has_as_many_messages_in_a_week_as_it_was_asked_for() -> None:
    fleet = Fleet(agents=10_000, messages_per_agent_per_day=7.0)
    week = [fleet.messages(date(2026, 11, 2) + timedelta(days=offset)) for offset in range(7)]
    assert sum(week) == pytest.approx(7 * 70_000, rel=0.04)
    assert max(week[5:]) < min(week[:5])


def test_what_makes_no_fleet_is_refused() -> None:
    for wrong in (
        {"agents": 1},
        {"agents": "many"},
        {"sizes": 800},
        {"skew": [0.1]},
        {"priorities": [0.5, 0.5, 0.5, 0.0]},
        {"failure_share": 0.9, "expiry_share": 0.2},
    ):
        with pytest.raises(InvalidArgument) as refusal:
            Fleet.of(wrong)
        assert refusal.value.hint


async def test_the_same_options_give_the_same_rows_and_another_seed_gives_others(
    work: Callable[..., JobContext], tmp_path: Any
) -> None:
    lakes = [Objects.at(str(tmp_path / name)) for name in ("one", "two", "three")]
    for lake, seed in zip(lakes, (7, 7, 8), strict=True):
        simulate(work(objects=lake, since=SINCE, options={**SMALL, "seed": seed}))
    one, two, three = (table(lake, RECEIPTS) for lake in lakes)
    assert one == two
    assert one["receipt_id"].to_pylist() != three["receipt_id"].to_pylist()


async def test_a_second_simulation_takes_the_place_of_the_first(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    first = simulate(work(since=SINCE, options=SMALL))
    second = simulate(work(since=SINCE, options=SMALL))
    assert first.rows == second.rows == len(rows(objects))


async def test_the_rows_are_distributed_as_was_asked(work: Callable[..., JobContext], objects: Objects) -> None:
    asked = Fleet(agents=200, messages_per_agent_per_day=60.0, failure_share=0.05, expiry_share=0.02)
    report = simulate(work(since=SINCE, options={"agents": 200, "messages_per_agent_per_day": 60.0,
                                                 "failure_share": 0.05, "expiry_share": 0.02}))  # fmt: skip
    found = rows(objects)
    days = [date(2026, 11, 12) + timedelta(days=offset) for offset in range(4)]
    assert Counter(row["day"] for row in found) == {day: asked.messages(day) for day in days}
    assert report.rows == len(found)
    shares = Counter(row["status"] for row in found)
    assert shares["failed"] / len(found) == pytest.approx(0.05, abs=0.005)
    assert shares["expired"] / len(found) == pytest.approx(0.02, abs=0.004)
    priorities = Counter(row["priority"] for row in found)
    for number, share in enumerate(asked.priorities):
        assert priorities[number] / len(found) == pytest.approx(share, abs=0.01)
    normal = [row["delivered_at"] - row["accepted_at"] for row in found if row["delivered_at"] and row["priority"] == 1]
    logs = [math.log(one / timedelta(milliseconds=1)) for one in normal]
    assert statistics.mean(logs) == pytest.approx(math.log(80), abs=0.03)
    assert statistics.stdev(logs) == pytest.approx(1.1, abs=0.03)
    night = sum(row["sent_at"].hour < 6 for row in found) / len(found)
    assert night == pytest.approx(sum(asked.hours[:6]) / sum(asked.hours), abs=0.01)
    senders = Counter(row["sender_nhi"] for row in found)
    most = sum(count for _, count in senders.most_common(2)) / len(found)
    assert most == pytest.approx(0.01**0.4, abs=0.02)  # the share of the first percent, by the law that was asked for


async def test_a_simulated_receipt_is_one_that_the_ledger_would_take(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    simulate(work(since=SINCE, options=SMALL))
    found = rows(objects)
    assert len({row["receipt_id"] for row in found}) == len(found)
    for row in found:
        assert row["bucket"] == hashlib.sha256(row["recipient_nhi"].encode()).digest()[0]
        assert row["sender_nhi"] != row["recipient_nhi"]
        assert (row["sender_nhi"].startswith("sim-"), row["recipient_nhi"].startswith("sim-")) == (True, True)
        assert row["day"] == row["sent_at"].date()
        assert row["sent_at"] < row["accepted_at"] < row["expires_at"]
        assert (row["delivered_at"] is not None) == (row["status"] == "delivered")
        assert (row["failure_reason"] is not None) == (row["status"] == "failed")
        assert row["sent_at"] < datetime(2026, 11, 16, tzinfo=UTC)
        assert UUID(row["message_id"]).version == 4


async def test_an_archive_with_real_receipts_is_refused_and_stays_as_it_is(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 20)
    archive_receipts(work())
    with pytest.raises(Conflict, match="is not a simulated one, and its rows may be real") as refusal:
        simulate(work(since=SINCE, options=SMALL))
    assert refusal.value.hint == "leave --lake out: angelia pipeline run simulate"
    assert len(rows(objects)) == 20


async def test_the_audit_of_a_simulation_is_a_sound_chain_and_is_made_once(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    options = {"agents": 20, "messages_per_agent_per_day": 10.0, "audit": True}
    report = simulate(work(since=SINCE + timedelta(days=2), options=options))
    previous = GENESIS
    chain = sorted(rows(objects, AUDIT), key=lambda row: int(row["position"]))
    assert len(chain) == report.figures["events"] > report.rows
    for position, row in enumerate(chain, 1):
        event = Event(
            event_id=UUID(row["event_id"]), occurred_at=row["occurred_at"], event_type=row["event_type"],
            actor=row["actor_nhi"], object=row["object_nhi"], message_id=UUID(row["message_id"]),
            replay_key=bytes.fromhex(row["replay_key"]), detail=json.loads(row["detail"]),
        )  # fmt: skip
        previous = entry_hash(previous, position, event.hash())
        assert (row["position"], row["event_hash"], row["entry_hash"]) == (position, event.hash(), previous)
    assert [row["occurred_at"] for row in chain] == sorted(row["occurred_at"] for row in chain)
    with pytest.raises(Conflict, match="audit chain already"):
        simulate(work(since=SINCE, options=options))


async def test_a_dry_run_says_how_much_it_would_be_and_writes_nothing(
    work: Callable[..., JobContext], objects: Objects
) -> None:
    report = simulate(work(dry_run=True, options={"months": 3}))
    assert (report.state, report.figures["days"], report.figures["to"]) == ("dry run", 92, "2026-11-15")
    assert report.rows == pytest.approx(412_000, rel=0.02)
    assert not DeltaTable.is_deltatable(objects.table(RECEIPTS.name))


async def test_months_and_a_first_day_are_not_both_taken(work: Callable[..., JobContext]) -> None:
    with pytest.raises(InvalidArgument, match="both say from when"):
        simulate(work(since=SINCE, dry_run=True, options={"months": 1}))


def test_capacity_follows_from_the_load_and_the_measured_size_of_a_receipt() -> None:
    load = Load(agents=0, messages_per_second=10.0, mean_wire_bytes=1000.0, ttl_share=0.0, settled_seconds=5.0,
                signed_share=0.0)  # fmt: skip
    assumed = Assumptions(load=load)
    sizes, found = assumed.sizes, needed(assumed, archived_receipt=100.0)
    assert found["waiting_messages"] == 50
    assert found["hot_bytes"] == 50 * (1000 + sizes.hot_envelope)
    assert found["ledger_receipt_bytes"] == 10 * 86_400 * 30 * sizes.ledger_receipt
    assert found["archive_bytes"] == round(10 * 86_400 * 365.25 * 7 * 100)
    assert found["bandwidth_bits_per_second"] == 2 * 8 * 10 * 1000


def test_every_figure_that_capacity_is_computed_from_can_be_given_and_is_told() -> None:
    assumed = Assumptions.of({"capacity_messages_per_second": 500, "capacity_api_messages_per_second": 50})
    found = needed(assumed, archived_receipt=100.0)
    assert (found["api_processes"], found["nodes"]["api_messages_per_second"]) == (10, 50)
    told = {f"capacity_{name}" for group in ("load", "sizes", "nodes") for name in found[group]}
    assert told == {*OPTIONS, "capacity_archived_receipt"}


@pytest.mark.parametrize(
    "wrong", [{"capacity_ttl_share": 2}, {"capacity_agents": -1}, {"capacity_hot_bytes": 0}, {"capacity_copies": "x"}]
)
async def test_what_cannot_be_computed_with_is_refused_before_anything_is_simulated(
    work: Callable[..., JobContext], wrong: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument, match="cannot be"):
        simulate(work(dry_run=True, options={"months": 3, **wrong}))
