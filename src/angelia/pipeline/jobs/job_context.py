"""What a job is given, and what it says in the end."""

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
from angelia.audit.model import Detail, Event
from angelia.pipeline.database import Database
from angelia.pipeline.lake.commit import is_simulated
from angelia.pipeline.runs import JobRun
from angelia.pipeline.session import Where, session
from angelia.settings import Settings
from angelia.stores.objects import Objects
from angelia.stores.sql import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READERS_ELSEWHERE = 16
_PACKAGE = Path(angelia.__file__).parent


class JobProgress(Protocol):
    """What a job tells of how far it has come; these methods show nothing."""

    def stage(self, doing: str, rows: int | None = None) -> None:
        """What is done now, and of how many rows, where that is known."""

    def advance(self, rows: int) -> None:
        """So many rows more are done."""

    def started(self, spark: SparkSession) -> None:
        """Spark has started, and can be watched."""


class _Silent(JobProgress):
    pass


@dataclass(kw_only=True)
class JobContext:
    """One call of a job. Spark is started when it is first needed, and not at all when there is nothing to do."""

    settings: Settings = field(repr=False)
    database_url: str = field(repr=False)
    objects: Objects
    now: datetime
    stack: ExitStack
    where: Where = field(default_factory=Where)
    since: datetime | None = None
    until: datetime | None = None
    dry_run: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # what only this job takes
    progress: JobProgress = field(default_factory=_Silent)
    began: float = field(default_factory=time.monotonic)
    step: Callable[[str, JobRun], None] = lambda _name, _run: None  # told at each step that a crash may follow

    def clock(self) -> datetime:
        """The time by now, while `now` is that of the job's beginning, which decides what it is about."""
        return self.now + timedelta(seconds=time.monotonic() - self.began)

    @functools.cached_property
    def spark(self) -> SparkSession:
        self.progress.stage(f"starting Spark, {self.where}")
        spark = self.stack.enter_context(session(self.where, "pipeline"))
        self.progress.started(spark)
        return spark

    @property
    def simulated(self) -> bool:
        """Whether the archive is one that `simulate` made: the ledger has nothing to do with it."""
        return is_simulated(self.objects)

    def titled(self, job: str) -> str:
        """What a run goes by. One on a simulated archive is not what a schedule waits for, so it has another name."""
        return f"{job}, simulated" if self.simulated else job

    @property
    def readers(self) -> int:
        """One a core, where we know how many there are: each more costs what a process costs, and was slower."""
        return (os.cpu_count() or 1) if self.where.embedded else _READERS_ELSEWHERE

    def sql(self, slice_name: str) -> Mapping[str, str]:
        """What a slice lets the pipeline read and purge."""
        return _archive_sql(slice_name)

    def record(self, database: Database, kind: str, detail: Detail, at: datetime | None = None) -> None:
        """Writes an audit event into the transaction of the act that it is about, by the audit's own statement. `at` is
        now or a moment ago: an event that commits much later than it says looks like one that was slipped in."""
        event = Event(event_id=uuid.uuid4(), occurred_at=at or self.clock(), event_type=kind, detail=detail)
        about = (event.actor, event.object, json.dumps(detail), event.hash())
        database.execute(self.sql("audit")["record"], str(event.event_id), event.occurred_at, kind, *about)


@functools.cache
def _archive_sql(slice_name: str) -> Mapping[str, str]:
    return statements(str(_PACKAGE / slice_name / "model.py"), "archive.sql")


@dataclass(kw_only=True)
class JobReport:
    """What came of a job: its runs, how many rows they moved or read, and figures of its own."""

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
        """The report of a dry run: how many rows it would be about."""
        self.state, self.rows, self.summary = "dry run", rows, summary
        self.figures |= figures
        return self

    def document(self) -> dict[str, Any]:
        """As programs read it: the run that ended last, then the rest."""
        last = self.runs[-1] if self.runs else None
        more = {"runs": self.runs} if len(self.runs) > 1 else {}
        return {"run_id": last, "job": self.job, "state": self.state, "rows": self.rows, **self.figures, **more}


Job = Callable[[JobContext], JobReport]


def midnight(day: date) -> datetime:
    """The beginning of a day, UTC."""
    return datetime.combine(day, time_of_day(), UTC)
