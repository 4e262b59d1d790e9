"""Imports an AICQ server: its agents and rooms from its database, messages and direct messages from its Redis.

It may run again, to fetch what came since, and while servers of both kinds are at work: each row comes once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from angelia.errors import InvalidArgument
from angelia.pipeline import runs
from angelia.pipeline.aicq import database, sorted_sets
from angelia.pipeline.aicq.agents import import_agents
from angelia.pipeline.aicq.conversations import import_dms, import_messages
from angelia.pipeline.aicq.database import AicqDatabase
from angelia.pipeline.aicq.importing import Import
from angelia.pipeline.aicq.rooms import import_rooms
from angelia.pipeline.aicq.sorted_sets import AicqRedis
from angelia.pipeline.import_source import SourceOption
from angelia.pipeline.import_tally import MOST_LISTED
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.runs.model import RunState

JOB = "import aicq"
_DATABASE = SourceOption("database", "AICQ_DATABASE_URL", "as in postgres://user@host/aicq, or the path of a file")
_REDIS = SourceOption("redis", "AICQ_REDIS_URL", "as in redis://host:6379")
_SAID = {"dms": "direct message(s)"}


@dataclass(frozen=True, slots=True)
class _Aicq:
    """An AICQ server that can be read. Closing the snapshot ends the transaction in which its tables are read."""

    tables: AicqDatabase
    snapshot: ExitStack
    sets: AicqRedis | None


def import_aicq(work: JobContext) -> JobReport:
    """Imports what is new; a run that died has left whole batches, and the next one goes on behind them."""
    report = JobReport(job=JOB)
    source, messages = _DATABASE.asked(work), _REDIS.asked(work)
    if source is None:
        raise InvalidArgument("which AICQ?", hint="--database aicq.db, or AICQ_DATABASE_URL=postgres://…")
    if work.dry_run:
        with _opened(source, messages) as aicq, runs.only_one(work.database_url, JOB) as ledger:
            done = Import(work=work, database=ledger, run=None)
            _import(done, aicq)
        return report.foreseen(_rows(done), _summary(done, "would be imported"), **_figures(done))
    with _opened(source, messages) as aicq, runs.one_run(work.database_url, JOB, work.clock) as (ledger, run):
        work.step("planned", run)
        done = Import(work=work, database=ledger, run=run)
        _import(done, aicq)
        report.figures = _figures(done)
        with ledger.transaction():
            work.record_run(ledger, run, {what: tally.imported for what, tally in done.tallies.items()})
            work.step("recording", run)
            run = runs.advance(ledger, run, RunState.DONE, work.clock(), row_count=_rows(done), report=report.figures)
        work.step("done", run)
        report.add(run)
    report.summary = _summary(done, "imported")
    return report


@contextmanager
def _opened(source: str, messages: str | None) -> Iterator[_Aicq]:
    """Opens both sources before a run is planned: if one cannot be read, nothing is written."""
    with ExitStack() as stack:
        sets = None if messages is None else stack.enter_context(sorted_sets.opened(messages))
        snapshot = stack.enter_context(ExitStack())
        yield _Aicq(snapshot.enter_context(database.opened(source)), snapshot, sets)


def _import(into: Import, aicq: _Aicq) -> None:
    import_agents(into, aicq.tables)
    import_rooms(into, aicq.tables)
    aicq.snapshot.close()  # messages take long, and an open transaction keeps a database from cleaning up
    if aicq.sets is not None:
        import_messages(into, aicq.sets)
        import_dms(into, aicq.sets)


def _rows(done: Import) -> int:
    return sum(tally.imported for tally in done.tallies.values())


def _figures(done: Import) -> dict[str, Any]:
    counts = {what: tally.document() for what, tally in done.tallies.items()}
    changed = {"mapped": done.mapped, "renamed": done.renamed}
    return counts | {what: dict(islice(ids.items(), MOST_LISTED)) for what, ids in changed.items()}


def _summary(done: Import, said: str) -> str:
    made = ", ".join(f"{tally.imported:,} {_SAID.get(what, what)}" for what, tally in done.tallies.items())
    there = sum(tally.there for tally in done.tallies.values())
    skipped = sum(tally.skipped.total() for tally in done.tallies.values())
    return f"{made} {said}; {there:,} were there, {skipped:,} left out"
