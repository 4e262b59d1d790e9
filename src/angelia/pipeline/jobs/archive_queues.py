"""Moves messages and dead letters whose retention is over to the archive, of queues that are archived.

Retention hides messages by the floor of their partition, and keeps their chunks until the archive has them. So a run
does not delete messages: it raises the floor below which retention may drop chunks. Dead letters are deleted one by
one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta

from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.jobs.ledger_to_archive import Move, copy, finish, hand_over, resumed_first
from angelia.pipeline.lake import commit, simulated
from angelia.pipeline.lake.tables import QUEUE_DEAD_LETTERS, QUEUE_MESSAGES, Table
from angelia.pipeline.runs import JobRun
from angelia.runs.model import RunState

JOB = "archive queues"
LETTERS = "archive queues, dead letters"  # the app id of its runs about dead letters
# A dead letter that is put back just before its time is over must be gone when it is read.
_MARGIN = timedelta(minutes=1)
# Partitions whose floors are raised in one transaction, or dead letters that are deleted in one.
_AT_ONCE = 2_000


def archive_queues(work: JobContext) -> JobReport:
    """Archives every message and dead letter that waits; finishes runs that died first."""
    report = JobReport(job=JOB)
    with runs.only_one(work.database_url, JOB, LETTERS) as database:
        simulated.only_real(work.objects, work.settings, JOB)
        dead = [run for app_id in (JOB, LETTERS) if (run := runs.open_run(database, app_id)) is not None]
        messages, letters = _waiting(work, database), _due_letters(work, database)
        work.progress.stage("archiving", messages + letters)
        if work.dry_run:
            said = f"{messages:,} messages and {letters:,} dead letters would be archived"
            figures = {"messages": messages, "dead_letters": letters}
            return report.foreseen(messages + letters, said + resumed_first(dead[0] if dead else None), **figures)
        database.patiently(functools.partial(database.execute, work.sql("queues")["queues_pass_deleted"]))
        moved = {
            "messages": _archive(work, database, JOB, MESSAGES_MOVE, _waiting, report),
            "dead_letters": _archive(work, database, LETTERS, LETTERS_MOVE, _due_letters, report),
        }
    report.figures |= moved
    report.summary = (
        f"{moved['messages']:,} messages and {moved['dead_letters']:,} dead letters archived in {len(report.runs)} runs"
    )
    return report


def _archive(
    work: JobContext,
    database: Database,
    app_id: str,
    move: Move,
    waiting: Callable[[JobContext, Database], int],
    report: JobReport,
) -> int:
    """Finishes a run that died, and does another if rows wait then; returns how many were archived."""
    before = report.rows
    if (run := runs.open_run(database, app_id)) is not None:
        finish(work, database, run, move, report)
    if waiting(work, database):
        behind = commit.version_of(work.objects, move.table, app_id)
        run = runs.plan(database, JOB, app_id, work.clock(), cutoff=work.now - _MARGIN, behind=behind)
        finish(work, database, run, move, report)
    return report.rows - before


def _waiting(work: JobContext, database: Database) -> int:
    return int(database.rows(work.sql("queues")["queue_messages_waiting"])[0]["row_count"])


def _due_letters(work: JobContext, database: Database) -> int:
    found = database.rows(work.sql("queues")["queue_dead_letters_waiting"], work.now - _MARGIN)
    return int(found[0]["row_count"])


def _commit_messages(work: JobContext, database: Database, run: JobRun) -> None:
    copy(work, QUEUE_MESSAGES, run, work.sql("queues")["queue_messages_hidden"], {})


def _commit_letters(work: JobContext, database: Database, run: JobRun) -> None:
    assert run.cutoff is not None
    cutoff = f"'{run.cutoff.isoformat()}'"
    copy(work, QUEUE_DEAD_LETTERS, run, work.sql("queues")["queue_dead_letters_due"].replace("$1", cutoff), {})


def _purge(table: Table, work: JobContext, database: Database, run: JobRun) -> JobRun:
    """Lets go in the ledger of exactly the rows that the archive has, a batch at a time; after a crash the next run
    repeats it."""
    sql, rows, count = work.sql("queues"), run.row_count or 0, 0
    if rows:
        with database.transaction():
            hand_over(work, database, table, run, sql[f"{table.name}_given"])
            for statement in ("queues_numbered_before", f"{table.name}_numbered", "queues_numbered_key"):
                database.execute(sql[statement])
        count = int(database.rows(sql["queues_numbered_count"])[0]["row_count"])
    for first in range(0, count, _AT_ONCE):
        database.patiently(functools.partial(_purge_batch, table, work, database, run, first))
    with database.transaction():
        work.record_run(database, run, {"table": table.name, "rows": rows})
        return runs.advance(database, run, RunState.DONE, work.clock(), report={"rows": rows})


def _purge_batch(table: Table, work: JobContext, database: Database, run: JobRun, first: int) -> None:
    sql = work.sql("queues")
    database.rows(sql["queues_by_key"])
    noted = [work.clock()] if table is QUEUE_DEAD_LETTERS else []  # the time of the note about removed dead letters
    database.execute(sql[f"{table.name}_purge"], first, first + _AT_ONCE, *noted)
    work.step("purging", run)


MESSAGES_MOVE = Move(table=QUEUE_MESSAGES, commit=_commit_messages, purge=functools.partial(_purge, QUEUE_MESSAGES))
LETTERS_MOVE = Move(
    table=QUEUE_DEAD_LETTERS, commit=_commit_letters, purge=functools.partial(_purge, QUEUE_DEAD_LETTERS)
)
