"""Imports a Queen: its queues, messages, consumer groups with their cursors, and dead letters, from its database.

It may run again, to fetch what came since, and while servers of both kinds are at work: each message comes once.
"""

from __future__ import annotations

from typing import Any

from angelia.errors import InvalidArgument
from angelia.pipeline import runs
from angelia.pipeline.import_source import SourceOption
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.queen.database import QueenDatabase, opened
from angelia.pipeline.queen.dead_letters import import_letters
from angelia.pipeline.queen.groups import import_groups
from angelia.pipeline.queen.importing import QueenImport
from angelia.pipeline.queen.messages import import_messages
from angelia.pipeline.queen.payloads import ImportedPayloads
from angelia.pipeline.queen.queues import import_queues
from angelia.runs.model import RunState

JOB = "import queen"
_DATABASE = SourceOption("database", "QUEEN_DATABASE_URL", "as in postgres://user@host/queen")


def import_queen(work: JobContext) -> JobReport:
    """Imports what is new; a run that died has left whole batches, and the next one goes on behind them."""
    report, source = JobReport(job=JOB), _DATABASE.asked(work)
    if source is None:
        raise InvalidArgument("which Queen?", hint="--database postgres://…, or QUEEN_DATABASE_URL=postgres://…")
    payloads = ImportedPayloads(work.settings)
    if work.dry_run:
        with opened(source) as queen, runs.only_one(work.database_url, JOB) as ledger:
            done = QueenImport(work=work, database=ledger, run=None, payloads=payloads)
            _import(done, queen)
        return report.foreseen(_rows(done), _summary(done, "would be imported"), **_figures(done))
    with opened(source) as queen, runs.one_run(work.database_url, JOB, work.clock) as (ledger, run):
        work.step("planned", run)
        done = QueenImport(work=work, database=ledger, run=run, payloads=payloads)
        _import(done, queen)
        report.figures = _figures(done)
        with ledger.transaction():
            work.record_run(ledger, run, {what: tally.imported for what, tally in done.tallies.items()})
            work.step("recording", run)
            run = runs.advance(ledger, run, RunState.DONE, work.clock(), row_count=_rows(done), report=report.figures)
        work.step("done", run)
        report.add(run)
    report.summary = _summary(done, "imported")
    return report


def _import(into: QueenImport, queen: QueenDatabase) -> None:
    import_queues(into, queen)
    import_messages(into, queen)
    # After the messages: a cursor is at one of them.
    import_groups(into, queen)
    import_letters(into, queen)


def _rows(done: QueenImport) -> int:
    return sum(tally.imported for tally in done.tallies.values())


def _figures(done: QueenImport) -> dict[str, Any]:
    return {what: tally.document() for what, tally in done.tallies.items()}


def _summary(done: QueenImport, said: str) -> str:
    made = ", ".join(f"{tally.imported:,} {what.replace('_', ' ')}" for what, tally in done.tallies.items())
    there = sum(tally.there for tally in done.tallies.values())
    skipped = sum(tally.skipped.total() for tally in done.tallies.values())
    return f"{made} {said}; {there:,} were there, {skipped:,} left out"
