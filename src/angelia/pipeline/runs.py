"""Runs of jobs in the ledger: one at a time of each job, and a run that died is resumed by the next."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from angelia.errors import Conflict, Unavailable
from angelia.pipeline.database import Database
from angelia.pipeline.spark_errors import telling
from angelia.runs.model import RunState
from angelia.stores.sql import statements

SQL = statements(__file__, "runs.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run. Its version makes its commit to the archive unique."""

    run_id: str
    job: str
    app_id: str
    version: int
    lo: datetime | None
    hi: datetime | None
    cutoff: datetime | None
    state: RunState
    row_count: int | None
    id_hash_sum: int | None
    started_at: datetime


@contextmanager
def only_one(url: str, *app_ids: str) -> Iterator[Database]:
    """A connection that holds the locks of app ids; raises AtWork if another process holds one of them."""
    with Database.open(url) as database:
        for app_id in app_ids:
            if not database.rows(SQL["try_lock"], app_id)[0]["locked"]:
                raise _at_work(app_id, open_run(database, app_id))
        yield database


def open_run(database: Database, app_id: str) -> JobRun | None:
    row = database.row(SQL["open_run"], app_id)
    return None if row is None else _run(row)


def plan(
    database: Database,
    job: str,
    app_id: str,
    now: datetime,
    *,
    lo: datetime | None = None,
    hi: datetime | None = None,
    cutoff: datetime | None = None,
    behind: int | None = None,
) -> JobRun:
    """Begins a run, with the next version of its app id: after those of the ledger and the one in the archive, which a
    restored ledger may not know."""
    return _run(database.rows(SQL["plan"], str(uuid.uuid4()), job, app_id, lo, hi, cutoff, now, behind or 0)[0])


def advance(
    database: Database,
    run: JobRun,
    state: RunState,
    now: datetime,
    *,
    row_count: int | None = None,
    id_hash_sum: int | None = None,
    report: Mapping[str, Any] | None = None,
) -> JobRun:
    """Records the state of a run; in the transaction of what it did, if that was in the ledger."""
    total = None if id_hash_sum is None else str(id_hash_sum)
    said = None if report is None else json.dumps(report)
    return _run(database.rows(SQL["advance"], run.run_id, state.value, row_count, total, said, now)[0])


def report_of(database: Database, run: JobRun) -> dict[str, Any]:
    """The report of a run so far."""
    row = database.row(SQL["report"], run.run_id)
    return {} if row is None or row["report"] is None else json.loads(row["report"])


@contextmanager
def one_run(
    url: str,
    app_id: str,
    clock: Callable[[], datetime],
    *,
    job: str | None = None,
    lo: datetime | None = None,
    hi: datetime | None = None,
) -> Iterator[tuple[Database, JobRun]]:
    """A run of a job that starts over after a crash; a run that died before is recorded as failed. The job is named
    like its app id unless `job` says otherwise.

    The caller ends the run with `advance`; an exception is recorded as its failure."""
    with only_one(url, app_id) as database:
        if (dead := open_run(database, app_id)) is not None:
            _failed(database, dead, clock(), "it died")
        run = plan(database, job or app_id, app_id, clock(), lo=lo, hi=hi)
        try:
            yield database, run
        except Exception as error:
            with suppress(Unavailable):  # an unreachable ledger must not hide the error
                _failed(database, run, clock(), telling(error))
            raise


def _failed(database: Database, run: JobRun, now: datetime, why: str) -> None:
    advance(database, run, RunState.FAILED, now, report={"error": why})


class AtWork(Conflict):
    """Somebody is at work on it already"""


def _at_work(app_id: str, run: JobRun | None) -> AtWork:
    if run is None:
        return AtWork(f"{app_id} is at work somewhere else", hint="angelia pipeline status")
    return AtWork(
        f"run {run.run_id[:8]} of this job has been open since {run.started_at:%H:%M:%SZ} and is at work",
        hint=f"follow it with `angelia pipeline status {run.run_id[:8]}`; a dead run is resumed by the next one",
    )


def _run(row: Mapping[str, Any]) -> JobRun:
    return msgspec.convert(row, JobRun, strict=False)  # the sum is text, since it may need more than 64 bits
