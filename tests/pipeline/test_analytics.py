"""Analytics counts every receipt once, wherever it is, and computes a day again only when it changed."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from angelia.cli.pipeline_environment import with_hot_tier
from angelia.errors import Conflict
from angelia.pipeline import runs
from angelia.pipeline.analytics.histogram import added, percentile
from angelia.pipeline.jobs import archive_receipts
from angelia.pipeline.jobs.analytics import analytics, gini, peak
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.simulate import simulate
from angelia.pipeline.lake.tables import (
    AGENTS,
    BUCKETS,
    DAYS,
    HOURS,
    KEY_DAYS,
    KEY_GRACE,
    LATENCIES,
    RECEIPTS,
    STORAGE,
    Table,
)
from angelia.pipeline.runs import JobRun
from angelia.runtime_file import Runtime
from angelia.settings import Settings
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.objects import Objects
from receipt_rows import NOW, OLD, fill

YOUNG = date(2026, 11, 14)
TIMES = st.lists(st.integers(0, 7 * 86_400 * 1_000_000), min_size=1, max_size=200)
ERROR = 0.005  # how far the middle of a bucket is from its ends, at most: sqrt(1.01) - 1


def bucket(micros: int) -> int:
    """The bucket of a time, as Spark computes it."""
    return int(math.log(max(micros, 1)) / math.log(1.01))


def rows(objects: Objects, table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(objects.table(table.name)).to_pyarrow_table().to_pylist()
    return found


@given(TIMES, st.floats(0.001, 1.0))
def test_a_percentile_is_within_half_a_percent_of_the_exact_one(times: list[int], share: float) -> None:
    exact = max(sorted(times)[max(math.ceil(share * len(times)), 1) - 1], 1)
    found = percentile(Counter(bucket(one) for one in times), share)
    assert found is not None
    assert abs(found - exact) <= ERROR * exact


@given(TIMES, TIMES)
def test_histograms_that_are_added_are_the_histogram_of_all(some: list[int], others: list[int]) -> None:
    parts = [Counter(bucket(one) for one in part) for part in (some, others)]
    whole = Counter(bucket(one) for one in some + others)
    assert added((part.keys(), part.values()) for part in parts) == whole


def test_skew_is_nothing_when_all_buckets_are_alike_and_nearly_one_when_one_has_everything() -> None:
    assert (peak([5] * 256), gini([5] * 256)) == (1.0, pytest.approx(0.0))
    assert (peak([7]), gini([7])) == (256.0, pytest.approx(255 / 256))


async def receipts(url: str) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch("SELECT * FROM delivery_receipts")]
    finally:
        await connection.close()


async def run(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize("few", [0, 1_000_000], ids=["Spark writes the agents", "the driver writes the agents"])
async def test_every_count_is_what_plain_python_counts_and_percentiles_are_within_their_bound(
    work: Callable[..., JobContext], database_url: str, objects: Objects, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr("angelia.pipeline.jobs.analytics._FEW_RECEIPTS", few)
    await fill(database_url, OLD, 400)
    await fill(database_url, YOUNG, 300)
    await fill(database_url, YOUNG, 9, status="failed")
    await fill(database_url, YOUNG, 5, status="expired")
    await fill(database_url, YOUNG, 4, status="pending")
    await run(database_url, "UPDATE delivery_receipts SET delivered_at = accepted_at + wire_bytes * interval '777 us'")
    await run(database_url, "UPDATE delivery_receipts SET sent_at = sent_at + interval '5 h' WHERE wire_bytes % 3 = 0")
    given = await receipts(database_url)
    archive_receipts.archive_receipts(work())
    report = analytics(work())

    expected: dict[tuple[date, int, int], Counter[str]] = defaultdict(Counter)
    latencies: dict[tuple[date, int], list[int]] = defaultdict(list)
    agents: dict[tuple[date, str], Counter[str]] = defaultdict(Counter)
    buckets: Counter[tuple[date, int]] = Counter()
    for row in given:
        day = row["sent_at"].date()
        key = (day, row["sent_at"].hour, row["priority"])
        expected[key].update({"sent": 1, row["status"]: 1, "attempts": row["delivery_attempts"],
                              "wire_bytes": row["wire_bytes"]})  # fmt: skip
        sent = {"sent": 1, "sent_bytes": row["wire_bytes"]} | ({} if row["status"] == "pending" else {row["status"]: 1})
        agents[day, row["sender_nhi"]].update(sent)
        agents[day, row["recipient_nhi"]].update({"received": 1, "received_bytes": row["wire_bytes"]})
        buckets[day, row["bucket"]] += 1
        if row["status"] == "delivered":
            latencies[day, row["priority"]].append(
                (row["delivered_at"] - row["accepted_at"]) // timedelta(microseconds=1)
            )
    hours = {(row["day"], row["hour"], row["priority"]): row for row in rows(objects, HOURS)}
    assert hours.keys() == expected.keys()
    for key, row in hours.items():
        for name in ("sent", "delivered", "expired", "failed", "pending", "attempts", "wire_bytes"):
            assert row[name] == expected[key][name], (key, name)
    assert sum(len(times) for times in latencies.values()) == 700
    for row in rows(objects, LATENCIES):
        counted = added([(row["buckets"], row["counts"])])
        times = sorted(latencies.pop((row["day"], row["priority"])))
        assert sum(counted.values()) == len(times)
        for share in (0.5, 0.95, 0.99):
            exact = times[math.ceil(share * len(times)) - 1]
            found = percentile(counted, share)
            assert found is not None
            assert abs(found - exact) <= ERROR * exact
            assert row[f"p{100 * share:.0f}_ms"] == round(found / 1000, 3)
    assert not latencies
    names = AGENTS.file_schema.names[1:]
    assert {(row["day"], row["agent"]): [row[name] for name in names] for row in rows(objects, AGENTS)} == {
        key: [one[name] for name in names] for key, one in agents.items()
    }
    assert {(row["day"], row["bucket"]): row["receipts"] for row in rows(objects, BUCKETS)} == buckets
    for row in rows(objects, DAYS):
        of_day = [one for one in given if one["sent_at"].date() == row["day"]]
        assert (row["receipts"], row["senders"], row["recipients"]) == (
            len(of_day), len({one["sender_nhi"] for one in of_day}), len({one["recipient_nhi"] for one in of_day})
        )  # fmt: skip
    assert (report.rows, report.figures["days"], report.figures["receipts"]) == (718, 2, 718)
    assert report.figures["delivered_share"] == pytest.approx(700 / 718, abs=1e-6)
    assert report.figures["priorities"].keys() == {"low", "normal", "high", "critical"}
    whole, part = report.figures, report.figures["priorities"]["high"]
    assert whole["p50_ms"] == pytest.approx(part["p50_ms"], rel=0.02)
    assert report.summary.startswith("2 days, 718 receipts, delivered 97.5 %, p99 3.9")


async def test_what_did_not_change_is_not_computed_again_and_starts_no_spark(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, YOUNG, 20)
    analytics(work())
    version = DeltaTable(objects.table(HOURS.name)).version()
    second = work()
    del second.__dict__["spark"]
    report = analytics(second)
    assert "spark" not in second.__dict__
    assert (report.rows, report.figures["days"], report.figures["receipts"]) == (0, 0, 20)
    assert DeltaTable(objects.table(HOURS.name)).version() == version


async def test_late_rows_and_new_states_cause_their_day_to_be_computed_again_and_no_other(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    days = [YOUNG - timedelta(days=offset) for offset in range(3)]
    for day in days:
        await fill(database_url, day, 10)
    await fill(database_url, days[2], 2, status="pending")
    analytics(work())
    await fill(database_url, days[1], 3, status="failed")
    await run(database_url, "UPDATE delivery_receipts SET status = 'expired' WHERE status = 'pending'")
    later = NOW + timedelta(hours=1)
    foreseen = analytics(work(now=later, dry_run=True))
    assert foreseen.figures["ranges"] == [[f"{days[2]}", f"{days[1]}"]]
    report = analytics(work(now=later))
    assert (report.figures["days"], report.rows, report.figures["receipts"]) == (2, 25, 35)
    assert {row["day"]: row["computed_at"] for row in rows(objects, DAYS)} == {
        days[0]: NOW, days[1]: later, days[2]: later
    }  # fmt: skip
    assert sum(row["pending"] for row in rows(objects, HOURS)) == 0


async def test_rows_that_moved_or_died_on_their_way_to_the_archive_are_counted_once(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, OLD, 30)
    await fill(database_url, OLD + timedelta(days=1), 20, partition=False)

    class Died(Exception):
        pass

    def step(name: str, _run: JobRun) -> None:
        if name == "committed":
            raise Died

    with pytest.raises(Died):
        archive_receipts.archive_receipts(work(step=step))
    assert len(rows(objects, RECEIPTS)) == len(await receipts(database_url)) == 50
    assert analytics(work()).figures["receipts"] == 50
    archive_receipts.archive_receipts(work())
    await fill(database_url, OLD, 7, partition=False)
    report = analytics(work())
    assert (report.figures["receipts"], sum(row["sent"] for row in rows(objects, HOURS))) == (57, 57)


async def test_whoever_dies_before_the_fingerprints_is_computed_again(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, YOUNG, 11)

    class Died(Exception):
        pass

    def step(name: str, _run: JobRun) -> None:
        if name == "computed":
            raise Died

    with pytest.raises(Died):
        analytics(work(step=step))
    report = analytics(work())
    assert (report.rows, sum(row["sent"] for row in rows(objects, HOURS))) == (11, 11)


async def test_days_that_are_gone_leave_nothing_behind(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    await fill(database_url, YOUNG, 5)
    await fill(database_url, OLD, 6)
    analytics(work())
    await run(database_url, "DELETE FROM delivery_receipts WHERE sent_at > '2026-11-01'")
    report = analytics(work())
    assert (report.figures["days"], report.figures["receipts"]) == (1, 6)
    for table in (HOURS, LATENCIES, AGENTS, BUCKETS, DAYS):
        assert {row["day"] for row in rows(objects, table)} == {OLD}


async def test_only_the_days_that_were_asked_for_are_computed(
    work: Callable[..., JobContext], database_url: str, objects: Objects
) -> None:
    for offset in range(3):
        await fill(database_url, YOUNG - timedelta(days=offset), 4)
    since, until = (datetime.combine(YOUNG - timedelta(days=n), datetime.min.time(), NOW.tzinfo) for n in (1, 0))
    report = analytics(work(since=since, until=until))
    assert (report.figures["days"], report.figures["receipts"]) == (1, 4)
    assert {row["day"] for row in rows(objects, HOURS)} == {YOUNG - timedelta(days=1)}


async def test_while_receipts_are_archived_nobody_counts_them(
    work: Callable[..., JobContext], database_url: str
) -> None:
    with runs.only_one(database_url, archive_receipts.JOB), pytest.raises(Conflict):
        analytics(work())


def test_the_hot_tier_of_a_running_server_is_measured_where_none_is_named(directory: Path) -> None:
    path = Path(tempfile.mkdtemp(dir=directory))
    data_dir = DataDir(path)
    data_dir.prepare()
    data_dir.lock()
    try:
        assert with_hot_tier(Settings(data_dir=path)).redis_url is None
        its_own = Runtime(pid=os.getpid(), url="", database_url="", redis_url="unix:///its-own", sockets="")
        data_dir.write_runtime(its_own)
        assert with_hot_tier(Settings(data_dir=path)).redis_url == "unix:///its-own"
        assert with_hot_tier(Settings(data_dir=path, redis_url="redis://named")).redis_url == "redis://named"
    finally:
        data_dir.remove_runtime()
        data_dir.release()


async def test_a_simulated_archive_is_counted_whole(work: Callable[..., JobContext], objects: Objects) -> None:
    simulated = simulate(
        work(since=NOW - timedelta(days=3), options={"agents": 30, "messages_per_agent_per_day": 20.0})
    )
    report = analytics(work())
    assert (report.rows, report.figures["days"]) == (simulated.rows, 3)
    assert 0.98 < report.figures["delivered_share"] <= 1


async def test_rotations_keys_in_grace_and_the_size_of_every_tier_are_written_down(
    work: Callable[..., JobContext], database_url: str, redis_url: str, objects: Objects
) -> None:
    await fill(database_url, YOUNG, 3)
    await run(database_url, """
        INSERT INTO rotation_events (event_id, agent_nhi, key_type, old_key_id, rotated_at, reason)
        SELECT gen_random_uuid(), 'a' || i % 2, 'xwing', gen_random_uuid(), '2026-11-13 10:00Z', 'scheduled'
        FROM generate_series(1, 5) AS i;
        INSERT INTO key_records (agent_nhi, key_id, key_type, usage, public_key, status, created_at, rotated_at)
        VALUES ('a1', gen_random_uuid(), 'xwing', 'signed', '', 'grace', '2026-11-01Z', '2026-11-16 08:00Z'),
          ('a2', gen_random_uuid(), 'xwing', 'signed', '', 'grace', '2026-11-01Z', '2026-11-16 06:00Z')
    """)  # fmt: skip
    report = analytics(work(settings=Settings(redis_url=redis_url)))
    assert [
        (row["day"], row["reason"], row["key_type"], row["rotations"], row["agents"]) for row in rows(objects, KEY_DAYS)
    ] == [(date(2026, 11, 13), "scheduled", "xwing", 5, 2)]
    [grace] = rows(objects, KEY_GRACE)
    assert (grace["keys"], grace["oldest_seconds"], grace["mean_seconds"]) == (2, 3 * 3600, 2 * 3600)
    stored = rows(objects, STORAGE)
    assert report.figures["storage"].keys() == {"hot", "ledger", "archive"}
    sizes = {row["name"]: row["bytes"] for row in stored}
    assert sizes["delivery_receipts"] > 0
    assert sizes["receipt_hours"] > 0
    assert {row["measured_at"] for row in stored} == {NOW}
    analytics(work(now=NOW + timedelta(days=1)))
    assert {row["measured_at"] for row in rows(objects, STORAGE)} == {NOW, NOW + timedelta(days=1)}
