"""Fills an archive with receipts of a made-up fleet, to try and measure what reads it."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, date, timedelta

from angelia.errors import Conflict, InvalidArgument
from angelia.pipeline import runs
from angelia.pipeline.jobs import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext, JobReport, midnight
from angelia.pipeline.lake import archive_locations, commit, listing, simulated, writer
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS
from angelia.pipeline.runs import JobRun
from angelia.pipeline.simulation.capacity import Assumptions, needed
from angelia.pipeline.simulation.events import chained
from angelia.pipeline.simulation.fleet import Fleet, days_between, pieces
from angelia.pipeline.simulation.receipts import receipts
from angelia.pipeline.sources import archive, audit
from angelia.runs.model import RunState

JOB = simulated.APP_ID
_MONTHS = 3
_PIECE_ROWS = 5_000_000  # of one commit: what a crash makes the next run repeat
_ELSEWHERE = "simulate into one of its own: angelia pipeline run simulate --lake DIRECTORY"


def simulate(work: JobContext) -> JobReport:
    """Writes receipts up to yesterday into a marked archive; replaces days that were simulated before."""
    fleet, assumed, days = Fleet.of(work.options), Assumptions.of(work.options), _days(work)
    rows = {day: fleet.messages(day) for day in days}
    report = JobReport(job=JOB)
    report.figures |= {"days": len(days), "agents": fleet.agents, "from": f"{days[0]}", "to": f"{days[-1]}"}
    with ExitStack() as held:
        # No job archives real rows into it meanwhile.
        archivers = [archive_receipts.JOB, *([audit.APP_ID] if work.options.get("audit") else [])]
        held.enter_context(runs.only_one(work.database_url, *archivers))
        _refuse_real(work)
        if work.dry_run:
            many, span = sum(rows.values()), f"from {report.figures['from']} to {report.figures['to']}"
            return report.foreseen(many, f"{many:,} receipts would be simulated, {span}")
        commit.opened(work.objects, RECEIPTS.marked())
        lo, hi = midnight(days[0]), midnight(days[-1]) + timedelta(days=1)
        database, run = held.enter_context(runs.one_run(work.database_url, JOB, work.clock, lo=lo, hi=hi))
        work.rows = sum(rows.values())
        work.progress.stage("simulating", work.rows)
        for piece in pieces(days, rows, _PIECE_ROWS):
            _write(work, run, fleet, piece)
            work.progress.advance(sum(rows[day] for day in piece))
        if work.options.get("audit"):
            report.figures["events"] = _write_audit(work, run, days)
        written, total = listing.size(work.objects, RECEIPTS), sum(rows.values())
        report.figures["capacity"] = needed(assumed, written.bytes / written.rows)
        report.add(runs.advance(database, run, RunState.DONE, work.clock(), row_count=total, report=report.figures))
    events = f" and {report.figures['events']:,} audit events" if "events" in report.figures else ""
    report.summary = (
        f"{report.rows:,} receipts{events} of {fleet.agents:,} agents, {len(days)} days, in {work.objects.root};"
        f" next: angelia pipeline run analytics{archive_locations.flag(work.objects, work.settings)}"
    )
    return report


def _days(work: JobContext) -> list[date]:
    today = work.now.astimezone(UTC).date()
    last = min(work.until.astimezone(UTC).date(), today) if work.until else today
    given = work.options.get("months")
    if work.since is not None and given is not None:
        raise InvalidArgument(
            "the months and the first day both say from when", hint="angelia pipeline run simulate --months 3"
        )
    months = _MONTHS if given is None else given
    first = work.since.astimezone(UTC).date() if work.since else _months_before(last, months)
    if first >= last:
        raise InvalidArgument(
            f"there is no day from {first} to {last} that is over", hint="angelia pipeline run simulate --months 3"
        )
    return days_between(first, last)


def _months_before(day: date, months: int) -> date:
    if not 1 <= months <= 1200:
        raise InvalidArgument(f"{months} months cannot be simulated", hint="angelia pipeline run simulate --months 3")
    year, month = divmod(day.year * 12 + day.month - 1 - months, 12)
    _, length = monthrange(year, month + 1)
    return date(year, month + 1, min(day.day, length))


def _refuse_real(work: JobContext) -> None:
    """Raises Conflict for an archive that `simulate` did not begin: its rows may be real."""
    root, place = work.objects.root, archive_locations.simulated(work.settings).root
    hint = _ELSEWHERE if root == place else "leave --lake out: angelia pipeline run simulate"
    if root == archive_locations.own(work.settings).root:
        raise Conflict(f"the archive at {root} is the server's own", hint=hint)
    if not work.simulated and not simulated.is_empty(work.objects):
        raise Conflict(f"the archive at {root} is not a simulated one, and its rows may be real", hint=hint)
    if work.options.get("audit") and listing.size(work.objects, AUDIT).rows:
        raise Conflict(f"the archive at {root} holds an audit chain already", hint=_ELSEWHERE)


def _write(work: JobContext, run: JobRun, fleet: Fleet, days: Sequence[date]) -> None:
    frame = receipts(work.spark, fleet, days)
    replaced = (days[0], days[-1] + timedelta(days=1))
    mark = next_mark(work.objects, RECEIPTS, run)
    writer.write(frame, work.objects, RECEIPTS, mark, run.run_id, replacing=replaced)
    work.step("written", run)


def _write_audit(work: JobContext, run: JobRun, days: Sequence[date]) -> int:
    """Writes the audit chain, in one task, since each entry depends on the one before it; returns its length."""
    work.progress.stage("chaining the audit")
    files = listing.files(work.objects, RECEIPTS, (days[0], days[-1] + timedelta(days=1)))
    frame = chained(archive.read(work.spark, work.objects, RECEIPTS, files))
    writer.write(frame, work.objects, AUDIT, next_mark(work.objects, AUDIT, run), run.run_id)
    return listing.size(work.objects, AUDIT).rows
