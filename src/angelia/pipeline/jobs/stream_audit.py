"""Copies the audit to the archive as it is sealed, until it is stopped."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from deltalake.exceptions import DeltaError
from pyspark.sql.streaming.query import StreamingQuery

from angelia.errors import AngeliaError, Unavailable
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.archive_audit import JOB, go_on, trim
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import audit
from angelia.pipeline.spark_errors import raised_by_us, telling
from angelia.runs.model import RunState

_ROWS = 50_000
_TRIGGER = "30 seconds"
_LOOK_SECONDS = 5.0
_TRIM_SECONDS = 3600.0
_FAILURES = 5  # in a row, without an archived event between them


class StreamFailed(AngeliaError, code="stream_failed"):
    """The stream ended by itself"""


def stream_audit(work: JobContext) -> JobReport:
    """Appends entries as they are sealed, until `stop` is set. Transient errors are retried with a back-off."""
    stop: threading.Event = work.options["stop"]
    report = JobReport(job=JOB)
    failures, reached = 0, audit.archived_to(work.objects)
    while not stop.is_set():
        try:
            _stream(work, stop, report)
        except (StreamFailed, Unavailable, DeltaError, OSError):
            at = report.figures.get("archived_to", reached)
            failures, reached = (1, at) if at > reached else (failures + 1, at)
            if failures == _FAILURES:
                raise
            stop.wait(2.0**failures)
    report.summary = f"{report.rows:,} events archived"
    return report


def _stream(work: JobContext, stop: threading.Event, report: JobReport) -> None:
    """One run, until `stop` is set or an error."""
    with runs.one_run(work.database_url, JOB, work.clock) as (database, run):
        go_on(work, database)
        began = audit.archived_to(work.objects)
        query = _started(work, run)
        try:
            _watch(work, database, run, query, stop, report)
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise (raised_by_us(error) or StreamFailed(f"the stream ended: {telling(error)}")) from error
        report.figures["archived_to"] = audit.archived_to(work.objects)
        rows = report.figures["archived_to"] - began
        report.add(runs.advance(database, run, RunState.DONE, work.clock(), row_count=rows, report={"rows": rows}))


def _started(work: JobContext, run: JobRun) -> StreamingQuery:
    given = audit.options(work.objects, work.database_url, work.sql("audit"), run.run_id)
    rows = str(work.options.get("rows", _ROWS))
    checkpoint = work.options.get("checkpoint") or work.settings.data_dir / "checkpoints" / "audit"
    work.spark.dataSource.register(audit.AuditSource)
    frame = work.spark.readStream.format(audit.NAME).options(**given, rows=rows).load()
    return (
        frame.writeStream.format(audit.NAME)
        .options(**given)
        .option("checkpointLocation", str(Path(checkpoint)))
        .trigger(processingTime=str(work.options.get("every", _TRIGGER)))
        .start()
    )


def _watch(
    work: JobContext, database: Database, run: JobRun, query: StreamingQuery, stop: threading.Event, report: JobReport
) -> None:
    """Reports progress, checks that the lock of the job is still held, and trims the ledger once an hour."""
    told, looked, trimmed = audit.archived_to(work.objects), time.monotonic(), 0.0
    while query.isActive and not stop.wait(0.5):
        now = time.monotonic()
        if now - looked >= _LOOK_SECONDS:
            looked = now
            database.rows("SELECT 1 AS here")  # the lock ends with this connection
            at = report.figures["archived_to"] = audit.archived_to(work.objects)
            work.progress.advance(at - told)
            told = at
        if now - trimmed >= _TRIM_SECONDS:
            trimmed = now
            while trim(work, database, run):
                pass
