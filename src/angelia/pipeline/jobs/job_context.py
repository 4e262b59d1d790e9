"""What a job works with, and its report."""

from __future__ import annotations

import functools
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import angelia
from angelia.audit.model import ARCHIVE_RUN, Detail, Event
from angelia.pipeline.database import Database
from angelia.pipeline.lake import listing
from angelia.pipeline.lake.commit import is_simulated
from angelia.pipeline.lake.tables import AUDIT, QUEUE_MESSAGES, RECEIPTS, ROOMS, SESSIONS
from angelia.pipeline.runs import JobRun
from angelia.pipeline.session import Where, session
from angelia.settings import Settings
from angelia.stores.objects import Objects
from angelia.stores.sql import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READERS_ELSEWHERE = 16
# Rows of the ledger are larger, with their indexes: a receipt has 1,252 bytes.
_LEAST_ROW_BYTES = 250
_PACKAGE = Path(angelia.__file__).parent


class JobProgress(Protocol):
    """Gets the progress of a job; these methods ignore it."""

    def stage(self, doing: str, rows: int | None = None) -> None:
        """A new stage begins, of so many rows if that is known."""

    def advance(self, rows: int) -> None:
        """More rows of the stage are done."""

    def started(self, spark: SparkSession) -> None:
        """Spark has started; its tasks can be watched."""


class _Silent(JobProgress):
    pass


@dataclass(kw_only=True)
class JobContext:
    """One call of a job. Spark is started when it is first needed, so not at all when there is nothing to do."""

    settings: Settings = field(repr=False)
    database_url: str = field(repr=False)
    objects: Objects
    now: datetime
    stack: ExitStack
    where: Where = field(default_factory=Where)
    since: datetime | None = None
    until: datetime | None = None
    dry_run: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # those of this job alone
    rows: float | None = None  # how many the job is about, if it knows that before it starts Spark
    progress: JobProgress = field(default_factory=_Silent)
    began: float = field(default_factory=time.monotonic)
    step: Callable[[str, JobRun], None] = lambda _name, _run: None  # called at each step after which a crash may come

    def clock(self) -> datetime:
        """The present time; `now` is when the job began, which decides what it covers."""
        return self.now + timedelta(seconds=time.monotonic() - self.began)

    @functools.cached_property
    def spark(self) -> SparkSession:
        self.progress.stage(f"starting Spark, {self.where}")
        rows = self._most_rows() if self.rows is None else self.rows
        spark = self.stack.enter_context(session(self.where, "pipeline", rows))
        self.progress.started(spark)
        return spark

    def _most_rows(self) -> float | None:
        """How many rows a job can be about, at most: those of the archive, and those of the ledger by its size."""
        if not self.where.embedded:
            return None
        tables = (RECEIPTS, SESSIONS, ROOMS, QUEUE_MESSAGES, AUDIT)
        archived = sum(listing.row_count(self.objects, table) for table in tables)
        if self.simulated:
            return archived
        with Database.open(self.database_url) as database:
            (size,) = database.rows("SELECT pg_database_size(current_database())::bigint AS bytes")
        return archived + int(size["bytes"]) / _LEAST_ROW_BYTES

    @property
    def simulated(self) -> bool:
        """Whether `simulate` made the archive; then the ledger has nothing to do with it."""
        return is_simulated(self.objects)

    def titled(self, job: str) -> str:
        """The name of a run. On a simulated archive it is another one, so that a schedule does not count it."""
        return f"{job}, simulated" if self.simulated else job

    def covers(self, day: date) -> bool:
        """Whether a day is of the period that was asked for."""
        after = self.since is None or day >= self.since.astimezone(UTC).date()
        return after and (self.until is None or day < self.until.astimezone(UTC).date())

    @property
    def readers(self) -> int:
        """How many readers Spark gets: one a core where it is embedded, since each more was slower."""
        return (os.cpu_count() or 1) if self.where.embedded else _READERS_ELSEWHERE

    def sql(self, slice_name: str) -> Mapping[str, str]:
        """The statements by which a slice lets the pipeline read and purge its tables."""
        return _archive_sql(slice_name)

    def record(self, database: Database, kind: str, detail: Detail, at: datetime | None = None) -> None:
        """Writes an audit event into the transaction of the act that it records. `at` is at most a moment ago: an event
        that commits much later than it says looks forged."""
        event = Event(event_id=uuid.uuid4(), occurred_at=at or self.clock(), event_type=kind, detail=detail)
        about = (event.actor, event.object, json.dumps(detail), event.hash())
        database.execute(self.sql("audit")["record"], str(event.event_id), event.occurred_at, kind, *about)

    def record_run(self, database: Database, run: JobRun, detail: Detail) -> None:
        """Writes an audit event that a run has moved, removed or exported rows."""
        self.record(database, ARCHIVE_RUN, {"run": run.run_id, "job": run.job, **detail})


@functools.cache
def _archive_sql(slice_name: str) -> Mapping[str, str]:
    return statements(str(_PACKAGE / slice_name / "model.py"), "archive.sql")


@dataclass(kw_only=True)
class JobReport:
    """The result of a job: its runs, how many rows they moved or read, and figures of its own."""

    job: str
    runs: list[str] = field(default_factory=list)
    state: str = "done"
    rows: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    summary: str = ""

    def add(self, run: JobRun) -> None:
        self.runs.append(run.run_id)
        self.rows += run.row_count or 0

    def foreseen(self, rows: int, summary: str, **figures: Any) -> JobReport:
        """Makes this the report of a dry run, which would be about so many rows; returns it."""
        self.state, self.rows, self.summary = "dry run", rows, summary
        self.figures |= figures
        return self

    def document(self) -> dict[str, Any]:
        """The report as JSON members: the run that ended last, then the rest."""
        last = self.runs[-1] if self.runs else None
        more = {"runs": self.runs} if len(self.runs) > 1 else {}
        return {"run_id": last, "job": self.job, "state": self.state, "rows": self.rows, **self.figures, **more}


Job = Callable[[JobContext], JobReport]


def midnight(day: date) -> datetime:
    """The beginning of a day, UTC."""
    return datetime.combine(day, time_of_day(), UTC)
