"""`angelia pipeline`: bulk work on ledger and archive, and the list of its runs, which needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from angelia.cli import pipeline_archive, pipeline_environment, pipeline_run
from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage, nearest
from angelia.cli.flags import Needs, moment
from angelia.cli.grammar import Noun
from angelia.cli.paging import Page, ago, full_id, short, show_list
from angelia.cli.pipeline_environment import PipelineFlags
from angelia.cli.tables import Column, counted
from angelia.cli.times import age, full

if TYPE_CHECKING:
    from angelia.mail.model import ReceiptBacklog
    from angelia.queues.backlog import QueueBacklog
    from angelia.rooms.model import RoomBacklog
    from angelia.runs.model import Run, RunState
    from angelia.stores.ledger import Ledger

F = TypeVar("F", bound=Callable[..., Any])
_FIRST = "angelia pipeline run archive receipts"
_ROOMS = "angelia pipeline run archive rooms"
_QUEUES = "angelia pipeline run archive queues"
_MANY = 100  # ids that begin alike, and are not shown

command = Noun("pipeline", "archive, analyse, export and erase in bulk, with Spark")

_lake = click.option("--lake", metavar="URL", help="the archive: a directory, or s3://bucket/prefix")
_simulated = click.option("--simulated", is_flag=True, help="the archive of simulated fleets")


def _spark(verb: F) -> F:
    """The flags that say where Spark runs."""
    verb = click.option("--conf", multiple=True, metavar="K=V", help="a setting of Spark's own; repeatable")(verb)
    verb = click.option("--remote", metavar="URL", help="run on a Spark Connect server, as sc://host:15002")(verb)
    return click.option("--master", metavar="URL", help="run on a Spark cluster, as spark://host:7077")(verb)


@command.verb(example="angelia pipeline run archive receipts", needs=Needs.YES)
@click.argument("job", nargs=-1, required=True, metavar="JOB")
@click.option("--from", "since", type=moment, metavar="T", help="only data from then on: 2026-11-15, 7d")
@click.option("--to", "until", type=moment, metavar="T", help="only data before then")
@click.option("--agent", metavar="HANDLE", help="export, erase: whose rows; also an id")
@click.option("--out", type=click.Path(path_type=Path), metavar="PATH", help="export: the new directory")
@click.option("--format", type=click.Choice(["parquet", "jsonl"]), metavar="F", help="export: parquet or jsonl")
@click.option("--reason", metavar="TEXT", help="erase: why, for the audit; without the handle")
@click.option("--agents", type=click.IntRange(2, 1_000_000), metavar="N", help="simulate: how many agents (1,000)")
@click.option("--months", type=click.IntRange(1, 1200), metavar="N", help="simulate: up to yesterday (3)")
@click.option(
    "--messages-per-day", "messages_per_agent_per_day", type=float, metavar="X", help="simulate: of each agent (4.5)"
)
@click.option("--seed", type=int, metavar="N", help="simulate: the same seed gives the same rows (1)")
@click.option("--audit", is_flag=True, help="simulate: a chain of audit events, too")
@click.option("--database", metavar="URL|FILE", help="import: PostgreSQL or SQLite (AICQ_, QUEEN_DATABASE_URL)")
@click.option("--redis", metavar="URL", help="import aicq: its messages, too (AICQ_REDIS_URL)")
@click.option("--exports", metavar="DIR", help="verify logs: where `angelia log export` wrote")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="simulate: another option; repeatable")
@_lake
@_simulated
@_spark
def run(session: CommandContext, /, job: tuple[str, ...], settings: tuple[str, ...], **said: Any) -> int:
    """Run a job, here or on a cluster. Its report is one line of JSON on stdout.

    JOB is one of:
      archive receipts  move receipts of closed days from the ledger to the archive
      archive sessions  move rotation schedules that were unused for 90 days
      archive rooms     move expired messages of rooms that are archived
      archive queues    move messages and dead letters of archived queues after their retention
      archive audit     copy the sealed audit, and trim what the ledger need not keep
      retention         remove from the archive what is older than seven years
      analytics         volume, latency, skew, rooms, queues, keys and storage, day by day
      replay audit      look for duplicate messages, and gaps in the chain
      verify audit      check every archived event, the chain and its signatures
      verify logs       check exports of group logs for holes, conflicts and lost shards
      export            write down all that is held about one agent
      erase             remove what is held about one agent's messages, on a legal request
      simulate          make an archive of the receipts of a made-up fleet
      remove simulated  take simulated rows out of an archive of real ones
      maintain          join small files of the archive, and remove what crashes left
      import aicq       take over the agents, rooms and messages of an AICQ server
      import queen      take over the queues, messages, cursors and dead letters of a Queen
    """
    flags = PipelineFlags(**{field.name: said.pop(field.name) for field in fields(PipelineFlags)})
    options = {name: value for name, value in said.items() if value is not None and value is not False}
    return pipeline_run.run(session, job, flags, options | dict(map(_setting, settings)))


@command.verb(example="angelia pipeline stream audit")
@click.argument("what", type=click.Choice(["audit"]), metavar="WHAT")
@_lake
@_spark
def stream(session: CommandContext, /, what: str, **flags: Any) -> int:
    """Archive the audit as it is sealed, until Ctrl-C.

    What was committed stays; the next stream archives the rest. A second Ctrl-C does not wait."""
    return pipeline_run.stream_audit(session, PipelineFlags(**flags))


@command.verb(example="angelia pipeline status")
@click.argument("run_id", required=False, metavar="[RUN]")
def status(session: CommandContext, run_id: str | None) -> None:
    """Show what runs now, what was done last and how much waits; or one RUN in full.

    RUN is a run's id or its first 8 characters or more."""
    if run_id is not None:
        _show_run(session, run_id)
        return

    async def look(ledger: Ledger) -> tuple[list[Run], list[Run], ReceiptBacklog, RoomBacklog, QueueBacklog]:
        from angelia.mail import receipts
        from angelia.queues import backlog as queue_backlog
        from angelia.rooms import backlog as room_backlog
        from angelia.runs.service import Runs

        runs, now = Runs(ledger), datetime.now(UTC)
        async with ledger.reading() as tx:
            waiting = await receipts.waiting(tx, now, session.settings.max_ttl_seconds)
            rooms, queues = await room_backlog.waiting(tx, now), await queue_backlog.waiting(tx, now)
        return await runs.unfinished(), await runs.last_done(), waiting, rooms, queues

    with pipeline_environment.ledger_if_any(session.settings) as url:
        if url is None:
            session.out.note("no runs yet")
            session.out.note(f"hint: {_FIRST}")
            return
        unfinished, done, waiting, rooms, queues = pipeline_environment.ask(url, look)
    if session.shared.json:
        record = {"open": unfinished, "last_done": done, "receipts_waiting": waiting.rows}
        record |= {"oldest_late_seconds": _seconds(waiting.late)}
        record |= {"room_messages_waiting": rooms.rows, "oldest_room_message_late_seconds": _seconds(rooms.late)}
        record |= {"queue_messages_waiting": queues.rows, "oldest_queue_message_late_seconds": _seconds(queues.late)}
        session.out.records([record])
        return
    session.out.rows([*unfinished, *done], _COLUMNS)
    if not (unfinished or done):
        session.out.note("no runs yet")
    session.out.line(_backlog("receipt", waiting))
    if rooms.rows:
        session.out.line(_backlog("message", rooms, " of rooms"))
    if queues.rows:
        session.out.line(_backlog("message", queues, " of queues"))
    for backlog, hint in ((waiting, _FIRST), (rooms, _ROOMS), (queues, _QUEUES)):
        if backlog.rows:
            session.out.note(f"hint: {hint}")


@command.verb(example="angelia pipeline history --job 'archive receipts'", needs=Needs.PAGES)
@click.option("--job", metavar="JOB", help="only runs of this job")
@click.option("--state", metavar="STATE", help="planned, committed, verified, purged, done or failed")
def history(session: CommandContext, job: str | None, state: str | None) -> None:
    """List runs, newest first."""
    from angelia.api import PageQuery, cursor_after, parse_cursor
    from angelia.runs.service import Runs

    wanted = _state(state)
    _check_job(job)
    nothing, hint = "no such runs", "angelia pipeline history"
    if job is None and state is None:
        nothing, hint = "no runs yet", _FIRST

    def fetch(cursor: str | None, limit: int) -> Page[Run]:
        if url is None:
            return Page([], None)
        query, before = PageQuery(limit=limit), parse_cursor(cursor)
        found = pipeline_environment.ask(url, lambda ledger: Runs(ledger).page(job, wanted, before, query.and_one_more))
        return Page(*query.cut(found, lambda run: cursor_after(run.started_at, run.run_id)))

    with pipeline_environment.ledger_if_any(session.settings) as url:
        show_list(session, fetch, _COLUMNS, nothing=nothing, hint=hint)


@command.verb(example="angelia pipeline report --open")
@click.option(
    "--out", type=click.Path(dir_okay=False), default="report.html", metavar="PATH", help="the page (report.html)"
)
@click.option("--open", "open_", is_flag=True, help="show it in the browser")
@_lake
@_simulated
def report(session: CommandContext, /, out: str, open_: bool, **flags: Any) -> None:
    """Make one page of HTML from what analytics computed. It needs no other file, and no Spark."""
    pipeline_archive.write_report(session, Path(out), PipelineFlags(**flags), browse=open_)


@command.verb(example="angelia pipeline tables")
@_lake
@_simulated
def tables(session: CommandContext, /, **flags: Any) -> None:
    """List the tables of the archive: how large they are, and from when to when."""
    pipeline_archive.list_tables(session, PipelineFlags(**flags))


@command.verb(example='angelia pipeline sql "SELECT day, count(*) FROM delivery_receipts GROUP BY day"')
@click.argument("query", metavar="QUERY")
@click.option("-n", "--limit", type=click.IntRange(1, 100_000), metavar="N", help="so many rows at most (50)")
@_lake
@_simulated
@_spark
def sql(session: CommandContext, /, query: str, **flags: Any) -> None:
    """Ask the archive in Spark's SQL. Its tables have the names that `angelia pipeline tables` shows."""
    pipeline_archive.query(session, query, PipelineFlags(**flags))


def _backlog(what: str, waiting: ReceiptBacklog | RoomBacklog | QueueBacklog, whose: str = "") -> str:
    oldest = "" if waiting.late is None else f", the oldest is {age(waiting.late)} late"
    return f"{counted(waiting.rows, what)}{whose} {'waits' if waiting.rows == 1 else 'wait'} for the archive{oldest}"


def _seconds(late: timedelta | None) -> int | None:
    return None if late is None else int(late.total_seconds())


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Usage(f"--set {text} is no option", hint="as in --set failure_share=0.02")
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise Usage(f"--set {text}: the value is a number, true, false, or a list such as [1,2]") from error


def _show_run(session: CommandContext, given: str) -> None:
    """One run in full, found by the beginning of its id."""
    from angelia.runs.service import Runs

    known: dict[str, Run] = {}
    with pipeline_environment.ledger_if_any(session.settings) as url:
        if url is not None:
            found = pipeline_environment.ask(url, lambda ledger: Runs(ledger).beginning_with(given.lower(), _MANY))
            known = {str(run.run_id): run for run in found}
    run = known[full_id(given, known, "run", "angelia pipeline history")]
    times = {"from": run.since, "to": run.until, "cutoff": run.cutoff}
    pairs = [
        ("run", str(run.run_id)),
        ("job", run.job),
        ("state", run.standing),
        ("rows", "" if run.rows is None else f"{run.rows:,}"),
        *((name, "" if at is None else full(at)) for name, at in times.items()),
        ("version", f"{run.version:,}"),
        ("started", full(run.started_at)),
        ("changed", full(run.updated_at)),
        ("report", "" if run.report is None else msgspec.json.encode(run.report).decode()),
    ]
    session.out.thing(run, pairs, quietly=str(run.run_id))


def _state(text: str | None) -> RunState | None:
    from angelia.runs.model import RunState

    try:
        return None if text is None else RunState(text)
    except ValueError as error:
        raise Usage(f"--state: {text!r} is no state of a run", hint=f"one of {', '.join(RunState)}") from error


def _check_job(name: str | None) -> None:
    from angelia.pipeline.jobs.catalog import JOBS

    if name is not None and name not in JOBS:
        near = nearest(name, JOBS)
        hint = f"did you mean --job {near!r}?" if near else f"one of: {', '.join(JOBS)}"
        raise Usage(f"there is no job {name!r}", hint=hint)


_COLUMNS: list[Column[Run]] = [
    Column("RUN", lambda r: short(r.run_id)),
    Column("JOB", lambda r: r.job),
    Column("STATE", lambda r: r.standing),
    Column("ROWS", lambda r: "" if r.rows is None else f"{r.rows:,}", right=True),
    Column("TIME", lambda r: age(r.took) if r.took >= timedelta(seconds=1) else "", right=True),
    Column("STARTED", lambda r: ago(r.started_at), right=True),
    Column("WHY", lambda r: str((r.report or {}).get("error", "")), long=True),
]
