"""Counts what became of messages. A day is computed once, and again only when its receipts have changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, date

import pyarrow as pa
import pyarrow.compute as pc

from angelia.pipeline import runs
from angelia.pipeline.analytics import fingerprints, measurements, receipts, skew
from angelia.pipeline.analytics.figures import figures, said
from angelia.pipeline.analytics.fingerprints import DayRange
from angelia.pipeline.analytics.receipts import ReceiptCounts
from angelia.pipeline.database import Database
from angelia.pipeline.jobs import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake import simulated, small_tables, writer
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.tables import AGENTS, BUCKETS, DAY, DAYS, HOURS, LATENCIES, RECEIPTS
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import ledger
from angelia.pipeline.sources.ledger import Snapshot
from angelia.runs.model import RunState

JOB = "analytics"


def analytics(work: JobContext) -> JobReport:
    """Computes every day that changed, from archive and ledger together; a simulated archive is counted alone."""
    report = JobReport(job=JOB)
    with ExitStack() as held:
        # Under this lock no row moves from the ledger to the archive: none is missed or counted twice.
        held.enter_context(runs.only_one(work.database_url, archive_receipts.JOB))
        simulated.only_one_kind(work.objects, work.settings, RECEIPTS)
        snapshot = held.enter_context(ledger.one_snapshot(work.database_url))
        then = held.enter_context(ledger.seeing(work.database_url, snapshot))
        there = fingerprints.present(work, then)
        changed = fingerprints.changed(there, fingerprints.computed(work), (work.since, work.until))
        ranges = fingerprints.ranges(changed)
        if work.dry_run:
            return _foreseen(report, ranges)
        begun = runs.one_run(work.database_url, JOB, work.clock, job=work.titled(JOB))
        database, run = held.enter_context(begun)
        work.step("planned", run)
        work.progress.stage("reading", sum(days.rows for days in ranges))
        for days in ranges:
            _compute(work, run, days, snapshot)
            work.progress.advance(days.rows)
        work.progress.stage("measuring the stores")
        if not work.simulated:
            measurements.rotations(work, database, run)
        report.figures["storage"] = measurements.measure(work, database, run)
        _conclude(work, database, run, report, ranges)
    return report


def _foreseen(report: JobReport, ranges: Sequence[DayRange]) -> JobReport:
    days = sum(len(one.days) for one in ranges)
    bounds = [[f"{one.days[0].day}", f"{one.days[-1].day}"] for one in ranges]
    spans = ", ".join(f"{first} .. {last}" for first, last in bounds)
    summary = f"{days} days would be computed" + (f": {spans}" if spans else "")
    return report.foreseen(sum(one.rows for one in ranges), summary, days=days, ranges=bounds)


def _compute(work: JobContext, run: JobRun, days: DayRange, snapshot: Snapshot) -> None:
    """Writes the results first and the fingerprints in the last commit: after a crash between them, the days are
    computed again."""
    replaced = (days.first, days.end)
    if days.rows:
        with receipts.reading(work, days, snapshot) as frame:
            counts = receipts.count(frame)
            mark = next_mark(work.objects, AGENTS, run)
            writer.write(receipts.agents(frame), work.objects, AGENTS, mark, run.run_id, replacing=replaced)
    else:  # their receipts are gone
        counts = receipts.nothing()
        small_tables.put(work.objects, AGENTS, AGENTS.schema.empty_table(), run, replacing=replaced)
    small_tables.put(work.objects, HOURS, counts.hours, run, replacing=replaced)
    small_tables.put(work.objects, LATENCIES, counts.latencies, run, replacing=replaced)
    small_tables.put(work.objects, BUCKETS, counts.buckets, run, replacing=replaced)
    work.step("computed", run)
    small_tables.put(work.objects, DAYS, _summaries(work, days, counts), run, replacing=replaced)
    work.step("fingerprinted", run)


def _summaries(work: JobContext, days: DayRange, counts: ReceiptCounts) -> pa.Table:
    sent = {row[DAY]: row["sent_sum"] for row in counts.hours.group_by(DAY).aggregate([("sent", "sum")]).to_pylist()}
    loads = {
        row[DAY]: row["receipts_list"]
        for row in counts.buckets.group_by(DAY).aggregate([("receipts", "list")]).to_pylist()
    }
    agents = _different_agents(work, days)
    made = [
        {
            DAY: one.day,
            "fingerprint": one.fingerprint,
            "computed_at": work.now,
            "receipts": sent[one.day],
            "senders": agents[one.day][0],
            "recipients": agents[one.day][1],
            "bucket_peak": skew.peak(loads[one.day]),
            "bucket_gini": skew.gini(loads[one.day]),
        }
        for one in days.days
        if one.rows
    ]
    return pa.Table.from_pylist(made, DAYS.schema)


def _different_agents(work: JobContext, days: DayRange) -> dict[date, tuple[int, int]]:
    """The numbers of senders and recipients of each day, counted in the table that was just written."""
    within = (pc.field(DAY) >= days.first) & (pc.field(DAY) < days.end)
    counted = small_tables.sums(
        work.objects, AGENTS, DAY, {name: pc.field(name) > 0 for name in ("sent", "received")}, within
    )
    return {row[DAY]: (row["sent"], row["received"]) for row in counted.to_pylist()}


def _conclude(work: JobContext, database: Database, run: JobRun, report: JobReport, ranges: Sequence[DayRange]) -> None:
    first, end = (None if one is None else one.astimezone(UTC).date() for one in (work.since, work.until))
    found = figures(work.objects, first, end)
    share = found.delivered_share
    report.figures |= {
        "days": sum(len(days.days) for days in ranges),
        "receipts": found.sent,
        "simulated": work.simulated,
        "delivered_share": share and round(share, 6),
        **found.times,
        "priorities": found.by_priority,
    }
    row_count = sum(days.rows for days in ranges)
    report.add(runs.advance(database, run, RunState.DONE, work.clock(), row_count=row_count, report=report.figures))
    unchanged = "" if ranges else "nothing changed: "
    came = f", delivered {share:.1%}".replace("%", " %") if share is not None else ""
    p99 = found.times["p99_ms"]
    late = f", p99 {said(p99)}" if p99 is not None else ""
    kind = "simulated " if work.simulated else ""
    report.summary = f"{unchanged}{found.days} days, {found.sent:,} {kind}receipts{came}{late}"
