"""Percentiles of the time to delivery by day and priority, over simulated receipts.

Angelia, DuckDB and Polars read the same files. CPU is the time of all processes of a side together. DuckDB's and
Polars' percentiles are exact, ours within half a percent. The whole job also counts hours, agents and buckets, and
commits its tables; DuckDB computes the same counts and keeps them in memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import polars as pl

from angelia.pipeline.analytics.receipts import latencies
from angelia.pipeline.jobs.analytics import analytics
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.simulate import simulate
from angelia.pipeline.lake import listing
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.pipeline.session import Where, session
from angelia.pipeline.sources import archive
from angelia.settings import Settings
from angelia.stores.objects import Objects
from cpu_time import Spent, spent
from duckdb_counts import PERCENTILES, WHOLE, asked
from harness import Result, stores
from ledger_rows import NOW

DAYS = 90
AGENTS = 10_000


def main(*, quick: bool) -> list[Result]:
    counts = [250_000, 500_000, 1_000_000, 2_000_000] if quick else [1_000_000, 10_000_000, 50_000_000, 100_000_000]
    compared = counts[-1] if quick else 50_000_000
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-"))
    results: list[Result] = []
    growth: dict[int, Spent] = {}
    try:
        with stores() as (url, _), ExitStack() as stack:
            spark = stack.enter_context(session(Where(conf={"spark.driver.memory": "4g"}), "bench"))
            for size in counts:
                lake = Objects.at(f"{directory}/{size}")
                work = JobContext(settings=Settings(), database_url=url, objects=lake, now=NOW, stack=stack)
                work.__dict__["spark"] = spark
                work.options = {"agents": AGENTS, "messages_per_agent_per_day": size / AGENTS / DAYS}
                work.since, work.until = NOW - timedelta(days=DAYS), NOW
                simulate(work)
                if size == counts[0]:
                    results.append(_cold(work))
                growth[size] = min((_once(lambda work=work: _ours(work)) for _ in range(3)), key=lambda one: one.cpu)
                if size == compared:
                    results += _compared(work, growth[size])
                shutil.rmtree(lake.root)
    finally:
        shutil.rmtree(directory)
    return [*results, _growth(growth)]


def _cold(work: JobContext) -> Result:
    """The first query of a session, on the smallest set: Java has compiled nothing yet."""
    ours, peer = _once(lambda: _ours(work)), _once(lambda: _duckdb(work))
    return Result("percentiles, cold / DuckDB", _cpu(ours), _cpu(peer), ours.cpu / peer.cpu, "CPU; a session's first")


def _compared(work: JobContext, warm: Spent) -> list[Result]:
    rows = listing.size(work.objects, RECEIPTS).rows
    note = f"CPU, {rows:,} rows; lower is better"
    results = []
    for name, peer in (("DuckDB", _duckdb), ("Polars", _polars)):
        theirs = min((_once(lambda peer=peer: peer(work)) for _ in range(3)), key=lambda one: one.cpu)
        results.append(Result(f"percentiles, warm / {name}", _cpu(warm), _cpu(theirs), warm.cpu / theirs.cpu, note))
    whole, theirs = _once(lambda: analytics(work)), _once(lambda: _duckdb_whole(work))
    results.append(Result("the whole job / DuckDB", _cpu(whole), _cpu(theirs), whole.cpu / theirs.cpu, note))
    return results


def _growth(growth: dict[int, Spent]) -> Result:
    smallest, largest = min(growth), max(growth)
    each = [growth[size].cpu / size * 1e6 for size in (largest, smallest)]
    said = ", ".join(f"{size:,}: {spent.cpu:.1f} s" for size, spent in growth.items())
    what = f"CPU a row at {largest:,} / at {smallest:,}"
    return Result(what, f"{each[0]:.2f} µs", f"{each[1]:.2f} µs", each[0] / each[1], f"1 is linear; {said}")


def _ours(work: JobContext) -> None:
    files = listing.files(work.objects, RECEIPTS)
    assert latencies(archive.read(work.spark, work.objects, RECEIPTS, files)).num_rows


def _duckdb(work: JobContext) -> None:
    asked(_files(work), PERCENTILES)


def _duckdb_whole(work: JobContext) -> None:
    for question in WHOLE:
        asked(_files(work), question)


def _files(work: JobContext) -> list[str]:
    return [file.uri for file in listing.files(work.objects, RECEIPTS)]


def _polars(work: JobContext) -> None:
    latency = (pl.col("delivered_at") - pl.col("accepted_at")).dt.total_microseconds()
    rows = pl.scan_parquet(_files(work), hive_partitioning=True)
    grouped = rows.filter(pl.col("status") == "delivered").group_by("day", "priority")
    figures = grouped.agg(pl.len(), *(latency.quantile(q, "higher").alias(f"p{q}") for q in (0.5, 0.95, 0.99)))
    assert figures.collect(engine="streaming").height


def _once(act: Callable[[], object]) -> Spent:
    with spent() as cost:
        act()
    return cost


def _cpu(cost: Spent) -> str:
    return f"{cost.cpu:.2f} s"
