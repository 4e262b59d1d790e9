"""Removes what ledger and archive hold about an agent's messages, on a legal request, and records the act.

Receipts, sessions, messages in rooms, direct messages and messages in queues are removed. In audit events the columns
that name an agent are emptied; their hashes stay, so that the chain still verifies. The ledger comes first, so that
nothing of the agent is archived later.
"""

from __future__ import annotations

import functools
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from angelia.audit.model import ERASED
from angelia.errors import InvalidArgument
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.agent_rows import NAMING, AgentNames, about, asked_about, in_ledger, names_of
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.jobs.table_locks import MOVERS, nothing_is_half_moved
from angelia.pipeline.lake import commit, listing, maintenance, simulated, writer
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.tables import (
    AUDIT,
    QUEUE_DEAD_LETTERS,
    QUEUE_MESSAGES,
    RECEIPTS,
    ROOMS,
    SESSIONS,
    Table,
)
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import archive
from angelia.runs.model import RunState

JOB = "erase"
_LONGEST_REASON = 500
_DIRECT, _TRACES, _BUFFERED = "direct_messages", "queue_traces", "queue_buffered"  # which only the ledger has


def erase(work: JobContext) -> JobReport:
    """Erases an agent's rows; finishes a run that died first, also of another agent."""
    asked, reason = _asked(work)
    report = JobReport(job=JOB)
    simulated.only_real(work.objects, work.settings, JOB)
    with nothing_is_half_moved(work.database_url, JOB) as database:
        names = names_of(work, database, asked)
        agent = names.handle
        _refuse_named(reason, names)
        if work.dry_run:
            return _foreseen(work, database, names, report)
        if (dead := runs.open_run(database, JOB)) is not None:
            _finish(work, database, dead, report)
        with database.transaction():
            run = runs.plan(database, JOB, JOB, work.clock())
            # The handle is kept in the run while it is open, so that another process can finish it.
            run = runs.advance(database, run, RunState.PLANNED, work.clock(), report={"agent": agent, "reason": reason})
        _finish(work, database, run, report)
        pending = report.figures["pending"] = _pending(work, database, agent)
    report.summary = f"{report.rows:,} rows erased in ledger and archive"
    if pending:
        report.summary += (
            f"; {pending:,} receipts are of messages under way: run it again when those have come to their end"
        )
    return report


def _asked(work: JobContext) -> tuple[str, str]:
    agent, reason = asked_about(work), str(work.options.get("reason") or "").strip()
    if not reason:
        raise InvalidArgument(
            "why? the reason is recorded", hint='--reason "request 2031-07 of the data protection officer"'
        )
    if len(reason) > _LONGEST_REASON:
        raise InvalidArgument(f"a reason has at most {_LONGEST_REASON} characters")
    return agent, reason


def _refuse_named(reason: str, agent: AgentNames) -> None:
    if any(name.casefold() in reason.casefold() for name in (agent.handle, agent.id) if name):
        raise InvalidArgument(
            "the reason names the agent, and it stays in the audit", hint="say it without the handle and the id"
        )


def _foreseen(work: JobContext, database: Database, names: AgentNames, report: JobReport) -> JobReport:
    agent = names.handle
    pending = _pending(work, database, agent)
    [notes] = database.rows(work.sql("queues")["queue_notes_count"], agent)
    ledger = {
        RECEIPTS.name: _count(database, in_ledger(work, RECEIPTS), agent) - pending,
        SESSIONS.name: _count(database, in_ledger(work, SESSIONS), agent),
        ROOMS.name: _count(database, in_ledger(work, ROOMS), agent),
        _DIRECT: database.rows(work.sql("rooms")["dms_count"], agent)[0]["row_count"],
        QUEUE_MESSAGES.name: _count(database, in_ledger(work, QUEUE_MESSAGES), agent),
        QUEUE_DEAD_LETTERS.name: _count(database, in_ledger(work, QUEUE_DEAD_LETTERS), agent),
        _TRACES: notes["traces"],
        _BUFFERED: notes["buffered"],
        AUDIT.name: _count(database, in_ledger(work, AUDIT), agent, "redacted_at IS NULL"),
    }
    lake = {table.name: sum(_days(work, table, names).values()) for table in NAMING}
    rows = sum(ledger.values()) + sum(lake.values())
    summary = f"{rows:,} rows would be erased in ledger and archive"
    return report.foreseen(rows, summary, ledger=ledger, archive=lake, pending=pending)


def _count(database: Database, projection: str, agent: str, where: str = "true") -> int:
    return int(database.rows(f"SELECT count(*) AS rows FROM ({projection}) AS r WHERE {where}", agent)[0]["rows"])  # noqa: S608


def _pending(work: JobContext, database: Database, agent: str) -> int:
    return int(database.rows(work.sql("mail")["receipts_pending"], agent)[0]["row_count"])


def _finish(work: JobContext, database: Database, run: JobRun, report: JobReport) -> None:
    work.step("planned", run)
    if run.state is RunState.PLANNED:
        run = _from_ledger(work, database, run)
        work.step("ledger", run)
    said = runs.report_of(database, run)
    names, at = names_of(work, database, said["agent"]), datetime.fromisoformat(said["at"])
    lake = {table.name: _from_archive(work, run, table, names, at) for table in NAMING}
    work.step("archive", run)
    for table in NAMING:
        # Before files are removed, since a store may refuse that.
        commit.close_again(work.objects, table)
    work.step("closed", run)
    writing = functools.partial(_writing, database, run)
    for table in NAMING:
        maintenance.delete(work.objects, table, maintenance.leftovers(work.objects, table, writing))
    work.step("swept", run)
    rows = sum(lake.values()) + sum(said["ledger"].values())
    done = {"reason": said["reason"], "ledger": said["ledger"], "archive": lake}
    with database.transaction():
        work.record(database, ERASED, {"run": run.run_id, "reason": said["reason"], "in": "archive", **lake})
        run = runs.advance(database, run, RunState.DONE, work.clock(), row_count=rows, report=done)
    work.step("done", run)
    report.add(run)
    report.figures |= {"ledger": said["ledger"], "archive": lake}


def _from_ledger(work: JobContext, database: Database, run: JobRun) -> JobRun:
    """Erases in the ledger: rows, record of the act and state of the run in one transaction."""
    said = runs.report_of(database, run)
    agent = names_of(work, database, said["agent"]).handle

    def erased_in_ledger() -> JobRun:
        database.execute(work.sql("rooms")["rooms_lock_index"])
        database.rows(work.sql("queues")["queues_lock_days"])
        [queues] = database.rows(work.sql("queues")["queues_erase"], agent)
        erased = {
            RECEIPTS.name: database.rows(work.sql("mail")["receipts_erase"], agent)[0]["erased"],
            SESSIONS.name: database.rows(work.sql("keys")["sessions_erase"], agent)[0]["erased"],
            ROOMS.name: database.rows(work.sql("rooms")["rooms_erase"], agent)[0]["erased"],
            _DIRECT: database.rows(work.sql("rooms")["dms_erase"], agent)[0]["erased"],
            QUEUE_MESSAGES.name: queues["messages"],
            QUEUE_DEAD_LETTERS.name: queues["letters"],
            _TRACES: queues["traces"],
            _BUFFERED: queues["buffered"],
        }
        at = work.clock()  # as late as possible, since it is the time of the audit event
        erased[AUDIT.name] = database.rows(work.sql("audit")["redact"], agent, at)[0]["redacted"]
        work.record(database, ERASED, {"run": run.run_id, "reason": said["reason"], "in": "ledger", **erased}, at)
        work.step("erasing", run)
        done = {**said, "ledger": erased, "at": at.isoformat()}
        return runs.advance(database, run, RunState.PURGED, work.clock(), report=done)

    return database.patiently(erased_in_ledger)


def _from_archive(work: JobContext, run: JobRun, table: Table, agent: AgentNames, at: datetime) -> int:
    """Rewrites the days that name the agent without it, in one commit; returns how many rows it changed."""
    if not commit.is_done_by(work.objects, table, Mark(JOB, run.version), run.run_id):
        days = _days(work, table, agent)
        files = [file for file in listing.files(work.objects, table) if f"{file.day}" in days]
        if files:
            work.progress.stage(f"erasing in {table.name}", sum(days.values()))
            commit.open_up(work.objects, table)
            work.step(f"opened {table.name}", run)
            rows = archive.read(work.spark, work.objects, table, files)
            erased = _without(rows, table, agent, at)
            mark = next_mark(work.objects, table, run)
            writer.write(erased, work.objects, table, mark, run.run_id, files=files, rows=sum(days.values()))
            work.step(f"rewritten {table.name}", run)
    return commit.change(work.objects, table, run.run_id).rows


def _days(work: JobContext, table: Table, agent: AgentNames) -> dict[str, int]:
    """The number of rows to be erased by day, for days that have some."""
    files = listing.files(work.objects, table)
    if not files:
        return {}
    named = archive.read(work.spark, work.objects, table, files).where(about(table, agent))
    if table is AUDIT:
        named = named.where(f.col("redacted_at").isNull())
    return {f"{row['day']}": row["count"] for row in named.groupBy("day").count().collect()}


def _without(rows: DataFrame, table: Table, agent: AgentNames, at: datetime) -> DataFrame:
    named = about(table, agent)
    if table is not AUDIT:
        return rows.where(~named)
    emptied = named & f.col("redacted_at").isNull()
    columns = {
        "actor_nhi": f.when(~emptied, f.col("actor_nhi")),
        "object_nhi": f.when(~emptied, f.col("object_nhi")),
        "detail": f.when(emptied, f.lit("{}")).otherwise(f.col("detail")),
        "redacted_at": f.when(emptied, f.lit(at)).otherwise(f.col("redacted_at")),
    }
    return rows.withColumns(columns)


def _writing(database: Database, run: JobRun) -> list[str]:
    """The runs whose files may not be committed yet. Runs that move rows are locked out, so files of theirs are old."""
    found = database.rows(runs.SQL["open_ids"])
    return [row["run_id"] for row in found if row["job"] not in MOVERS and row["run_id"] != run.run_id]
