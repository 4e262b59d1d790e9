"""Counts what became of messages, what was posted in rooms, and what happened in queues. A day is computed once, and
again only when its receipts have changed or more is found of its rooms or queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, date

import pyarrow as pa
import pyarrow.compute as pc

from angelia.envelope import ids
from angelia.envelope.wire import Priority
from angelia.pipeline import runs
from angelia.pipeline.analytics import fingerprints, measurements, queues, receipts, rooms
from angelia.pipeline.analytics.fingerprints import DayRange
from angelia.pipeline.analytics.histogram import SHARES, added, percentile_ms
from angelia.pipeline.analytics.queues import QueuesPresent
from angelia.pipeline.analytics.receipts import ReceiptCounts
from angelia.pipeline.analytics.rooms import RoomsPresent
from angelia.pipeline.database import Database
from angelia.pipeline.jobs import archive_receipts, archive_rooms
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake import simulated, small_tables, writer
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.tables import AGENTS, BUCKETS, DAY, DAYS, HOURS, LATENCIES, RECEIPTS
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import ledger
from angelia.pipeline.sources.ledger import Snapshot
from angelia.runs.model import RunState

JOB = "analytics"
# So many receipts have at most twice as many counts of agents, 50 MB: the driver writes those, since Spark would start
# four kinds of Python processes for it, which is a quarter of the CPU time of such a run.
_FEW_RECEIPTS = 250_000


def analytics(work: JobContext) -> JobReport:
    """Computes every day that changed, from archive and ledger together; a simulated archive is counted alone."""
    report = JobReport(job=JOB)
    with ExitStack() as held:
        # Under these locks no row moves from the ledger to the archive: none is missed or counted twice.
        held.enter_context(runs.only_one(work.database_url, archive_receipts.JOB, archive_rooms.JOB))
        simulated.only_one_kind(work.objects, work.settings, RECEIPTS)
        then, snapshot = held.enter_context(ledger.one_snapshot(work.database_url))
        there = fingerprints.present(work, then)
        changed = fingerprints.changed(there, fingerprints.computed(work), (work.since, work.until))
        ranges, in_rooms = fingerprints.ranges(changed), rooms.present(work, then)
        in_queues = queues.present(work, then)
        if work.dry_run:
            return _foreseen(report, ranges, in_rooms, in_queues)
        begun = runs.one_run(work.database_url, JOB, work.clock, job=work.titled(JOB))
        database, run = held.enter_context(begun)
        work.step("planned", run)
        work.rows = sum(days.rows for days in ranges) + in_rooms.rows
        work.progress.stage("reading", work.rows)
        for days in ranges:
            _compute(work, run, days, snapshot)
            work.progress.advance(days.rows)
        posted = rooms.count(work, run, in_rooms, snapshot)
        report.figures["rooms"] = {"days": len(posted), "messages": sum(row["messages"] for row in posted)}
        hours = queues.count(work, run, then, in_queues, snapshot)
        report.figures["queues"] = {
            "days": len(in_queues.to_count),
            **{name: sum(row[name] for row in hours) for name in ("pushed", "completed", "dead", "evicted")},
        }
        work.progress.stage("measuring the stores")
        if not work.simulated:
            measurements.rotations(work, database, run)
        report.figures["storage"] = measurements.measure(work, database, run)
        _conclude(work, database, run, report, ranges)
    return report


def _foreseen(
    report: JobReport, ranges: Sequence[DayRange], in_rooms: RoomsPresent, in_queues: QueuesPresent
) -> JobReport:
    days = sum(len(one.days) for one in ranges)
    bounds = [[f"{one.days[0].day}", f"{one.days[-1].day}"] for one in ranges]
    spans = ", ".join(f"{first} .. {last}" for first, last in bounds)
    summary = f"{days} days would be computed" + (f": {spans}" if spans else "")
    if in_rooms.to_count:
        summary += f"; of rooms {len(in_rooms.to_count)}"
    if in_queues.to_count:
        summary += f"; of queues {len(in_queues.to_count)}"
    rows = sum(one.rows for one in ranges) + in_rooms.rows
    more = {"room_days": len(in_rooms.to_count), "queue_days": len(in_queues.to_count)}
    return report.foreseen(rows, summary, days=days, ranges=bounds, **more)


def _compute(work: JobContext, run: JobRun, days: DayRange, snapshot: Snapshot) -> None:
    """Writes the results first and the fingerprints in the last commit: after a crash between them, the days are
    computed again."""
    replaced = (days.first, days.end)
    if days.rows:
        with receipts.reading(work, days, snapshot) as frame:
            counts = receipts.count(frame)
            agents = receipts.agents(frame)
            if days.rows <= _FEW_RECEIPTS:
                small_tables.put(work.objects, AGENTS, agents.toArrow(), run, replacing=replaced)
            else:
                mark, a_file_a_day = next_mark(work.objects, AGENTS, run), agents.repartition(DAY)
                writer.write(a_file_a_day, work.objects, AGENTS, mark, run.run_id, replacing=replaced)
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
            "bucket_peak": peak(loads[one.day]),
            "bucket_gini": gini(loads[one.day]),
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
    """Ends the run, with the figures of the period that was asked for."""
    first, end = (None if one is None else one.astimezone(UTC).date() for one in (work.since, work.until))
    hours = small_tables.rows(work.objects, HOURS, first, end)
    late = small_tables.rows(work.objects, LATENCIES, first, end)
    histograms = {
        one: added((row["buckets"], row["counts"]) for row in late if row["priority"] == one) for one in Priority
    }
    sent = sum(row["sent"] for row in hours)
    share = sum(row["delivered"] for row in hours) / sent if sent else None
    times = _times(sum(histograms.values(), Counter()))
    report.figures |= {
        "days": sum(len(days.days) for days in ranges),
        "receipts": sent,
        "simulated": work.simulated,
        "delivered_share": share and round(share, 6),
        **times,
        "priorities": {one.name.lower(): _times(found) for one, found in histograms.items() if found},
    }
    row_count = sum(days.rows for days in ranges)
    report.add(runs.advance(database, run, RunState.DONE, work.clock(), row_count=row_count, report=report.figures))
    in_rooms, in_queues = report.figures["rooms"], report.figures["queues"]
    unchanged = "" if ranges or in_rooms["days"] or in_queues["days"] else "nothing changed: "
    came = f", delivered {share:.1%}".replace("%", " %") if share is not None else ""
    late_by = "" if times["p99_ms"] is None else f", p99 {_said(times['p99_ms'])}"
    kind = "simulated " if work.simulated else ""
    report.summary = f"{unchanged}{len({row[DAY] for row in hours})} days, {sent:,} {kind}receipts{came}{late_by}"
    if in_rooms["days"]:
        report.summary += f"; rooms: {in_rooms['days']} days, {in_rooms['messages']:,} messages"
    if in_queues["days"]:
        report.summary += f"; queues: {in_queues['days']} days, {in_queues['pushed']:,} messages"


def _times(histogram: Counter[int]) -> dict[str, float | None]:
    return {f"{name}_ms": percentile_ms(histogram, share) for name, share in SHARES.items()}


def _said(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else f"{milliseconds / 60_000:.1f} min"


def peak(loads: Sequence[int]) -> float | None:
    """The load of the fullest bucket, divided by the mean of all; None without load."""
    total = sum(loads)
    return max(loads) * ids.BUCKETS / total if total else None


def gini(loads: Sequence[int]) -> float | None:
    """Gini's coefficient: 0 when all buckets are equally full, near 1 when one has all the load. Buckets that are not
    listed are empty."""
    total = sum(loads)
    if not total:
        return None
    ordered = [0] * (ids.BUCKETS - len(loads)) + sorted(loads)
    weighted = sum(place * load for place, load in enumerate(ordered, 1))
    return 2 * weighted / (ids.BUCKETS * total) - (ids.BUCKETS + 1) / ids.BUCKETS
