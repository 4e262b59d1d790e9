"""`angelia pipeline`: bulk work on ledger and archive, and what came of it."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from angelia.cli.command_context import Session
from angelia.cli.errors import INTERRUPTED, Usage
from angelia.cli.flags import Needs, moment
from angelia.cli.grammar import Noun

if TYPE_CHECKING:
    from angelia.pipeline.jobs.job_context import Job, Report, Work

command = Noun("pipeline", "archive, analyse, export and erase in bulk, with Spark")

_lake = click.option("--lake", metavar="URL", help="the archive: a directory, or s3://bucket/prefix")
_simulated = click.option("--simulated", is_flag=True, help="the archive of simulated fleets")
_master = click.option("--master", metavar="URL", help="run on a Spark cluster, as spark://host:7077")
_remote = click.option("--remote", metavar="URL", help="run on a Spark Connect server, as sc://host:15002")
_conf = click.option("--conf", multiple=True, metavar="K=V", help="a setting of Spark's own; repeatable")


@command.verb(example="angelia pipeline run archive receipts", needs=Needs.YES)
@click.argument("job", nargs=-1, required=True, metavar="JOB")
@click.option("--from", "since", type=moment, metavar="T", help="only data from then on: 2026-11-15, 7d")
@click.option("--to", "until", type=moment, metavar="T", help="only data before then")
@click.option("--agent", metavar="HANDLE", help="export, erase: whose rows")
@click.option("--out", type=click.Path(), metavar="PATH", help="export: the new directory")
@click.option("--format", type=click.Choice(["parquet", "jsonl"]), metavar="F", help="export: parquet or jsonl")
@click.option("--reason", metavar="TEXT", help="erase: why, for the audit; without the handle")
@click.option("--agents", type=click.IntRange(2, 1_000_000), metavar="N", help="simulate: how many agents (1,000)")
@click.option("--months", type=click.IntRange(1, 1200), metavar="N", help="simulate: up to yesterday (3)")
@click.option("--messages-per-day", type=float, metavar="X", help="simulate: of each agent (4.5)")
@click.option("--seed", type=int, metavar="N", help="simulate: the same seed gives the same rows (1)")
@click.option("--audit", is_flag=True, help="simulate: a chain of audit events, too")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="simulate: another option; repeatable")
@_lake
@_simulated
@_master
@_remote
@_conf
def run(session: Session, /, job: tuple[str, ...], **said: Any) -> int:
    """Run a job, here or on a cluster. Its report is one line of JSON on stdout.

    JOB is one of:
      archive receipts  move receipts of closed days from the ledger to the archive
      archive sessions  move rotation schedules that nobody used for 90 days
      archive audit     copy the sealed audit, and trim what the ledger need not keep
      retention         remove from the archive what is older than seven years
      analytics         volume, latency, skew, keys and storage, day by day
      replay audit      look for messages that are there twice, and gaps in the chain
      verify audit      check every archived event, the chain and its signatures
      export            write down all that is held about one agent
      erase             remove what is held about one agent's messages, on a legal request
      simulate          make an archive of the receipts of a fleet that never was
      remove simulated  take simulated rows out of an archive of real ones
      maintain          join small files of the archive, and clear away what crashes left
    """
    from angelia.cli import pipeline_run

    shared = ("lake", "simulated", "master", "remote", "conf")
    own = {name: value for name, value in said.items() if name not in (*shared, "settings")}
    given = {name: value for name, value in own.items() if value is not None and value is not False}
    if "messages_per_day" in given:
        given["messages_per_agent_per_day"] = given.pop("messages_per_day")
    given |= dict(map(_setting, said["settings"]))
    if "out" in given:
        given["out"] = Path(given["out"])
    where = {name: said[name] for name in shared}
    wish = pipeline_run.Wish(since=session.shared.since, until=session.shared.until, options=given, **where)
    return pipeline_run.run(session, pipeline_run.entry_of(job), wish)


@command.verb(example="angelia pipeline stream audit")
@click.argument("what", type=click.Choice(["audit"]), metavar="WHAT")
@_lake
@_master
@_remote
@_conf
def stream(
    session: Session, what: str, lake: str | None, master: str | None, remote: str | None, conf: tuple[str, ...]
) -> int:
    """Archive the audit as it is sealed, until Ctrl-C.

    What was committed is safe, and the rest comes again with the next one. A second Ctrl-C does
    not wait."""
    from angelia.cli import pipeline_place, pipeline_run

    pipeline_place.require_pipeline()
    stop, signals = threading.Event(), []

    def asked_to_stop(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        signals.append(number)
        stop.set()

    def load() -> Job:
        from angelia.pipeline.jobs.stream_audit import stream_audit

        def until_stopped(work: Work) -> Report:
            work.spark.version  # noqa: B018 - Spark takes Ctrl-C for itself when it starts
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, asked_to_stop)
            session.out.note("archiving what is sealed; Ctrl-C stops it")
            return stream_audit(work)

        return until_stopped

    wish = pipeline_run.Wish(lake=lake, master=master, remote=remote, conf=conf, options={"stop": stop})
    pipeline_run.watched(session, "archive audit", wish, load)
    return INTERRUPTED if signal.SIGINT in signals else 0


@command.verb(example="angelia pipeline status")
@click.argument("run_id", required=False, metavar="[RUN]")
def status(session: Session, run_id: str | None) -> None:
    """Show what runs now, what was done last and how much waits; or one RUN in full.

    RUN is a run's id or its first 8 characters or more."""
    from angelia.cli import pipeline_runs

    if run_id is None:
        pipeline_runs.show_status(session)
    else:
        pipeline_runs.show_run(session, run_id)


@command.verb(example="angelia pipeline history --job 'archive receipts'", needs=Needs.PAGES)
@click.option("--job", metavar="JOB", help="only runs of this job")
@click.option("--state", metavar="STATE", help="planned, committed, verified, purged, done or failed")
def history(session: Session, job: str | None, state: str | None) -> None:
    """List runs, newest first."""
    from angelia.cli import pipeline_runs

    pipeline_runs.list_runs(session, job, state)


@command.verb(example="angelia pipeline report --open")
@click.option(
    "--out", type=click.Path(dir_okay=False), default="report.html", metavar="PATH", help="the page (report.html)"
)
@click.option("--open", "open_", is_flag=True, help="show it in the browser")
@_lake
@_simulated
def report(session: Session, out: str, open_: bool, lake: str | None, simulated: bool) -> None:
    """Make one page of what analytics found. It needs nothing but itself, and no Spark."""
    from angelia.cli import pipeline_archive

    pipeline_archive.write_report(session, Path(out), lake, simulated=simulated, browse=open_)


@command.verb(example="angelia pipeline tables")
@_lake
@_simulated
def tables(session: Session, lake: str | None, simulated: bool) -> None:
    """List the tables of the archive: how large they are, and from when to when."""
    from angelia.cli import pipeline_archive

    pipeline_archive.list_tables(session, lake, simulated=simulated)


@command.verb(example='angelia pipeline sql "SELECT day, count(*) FROM delivery_receipts GROUP BY day"')
@click.argument("query", metavar="QUERY")
@click.option("-n", "--limit", type=click.IntRange(1, 100_000), metavar="N", help="so many rows at most (50)")
@_lake
@_simulated
@_master
@_remote
@_conf
def sql(
    session: Session,
    query: str,
    lake: str | None,
    simulated: bool,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
) -> None:
    """Ask the archive in Spark's SQL. Its tables have the names that `angelia pipeline tables` shows."""
    from angelia.cli import pipeline_archive

    pipeline_archive.query(session, query, lake, master, remote, conf, simulated=simulated)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Usage(f"--set {text} is no option", hint="as in --set failure_share=0.02")
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise Usage(f"--set {text}: the value is a number, true, false, or a list such as [1,2]") from error
