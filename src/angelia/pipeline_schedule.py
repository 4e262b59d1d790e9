"""The pipeline's schedule in a running server: jobs that are due are started as processes of their own, one at a time.

Several servers may do so: a job's own lock lets one work, and the others are told so and wait for their next turn.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import queue
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from angelia.errors import Unavailable
from angelia.runs.model import Latest, RunState
from angelia.runs.service import Runs
from angelia.settings import Settings, period
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.private_files import open_log
from angelia.stores.embedded.process import Child, Program, Steps, end, start
from angelia.stores.ledger import Ledger, StatementError

FIRST_LOOK = 600.0  # seconds after a start: a server that has just started serves requests first
LOOK_EVERY, JITTER = 60.0, 10.0
RETRY = timedelta(hours=1)
LOG, LOG_MOST = "pipeline.log", 1 << 20
_STOP: Steps = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))
_REPORT_MOST = 1 << 16  # of what a job wrote, the end is read
# -P: a directory named angelia where the server was started must not be taken for the package.
COMMAND = (sys.executable, "-P", "-c", "import os; os.nice(10); from angelia.cli.main import main; main()")


@dataclass(frozen=True, slots=True)
class Attempt:
    """When this server started a job last, and whether the job succeeded. A job that finds nothing to do leaves no run
    in the ledger."""

    at: datetime
    good: bool


def due(
    schedule: Mapping[str, str], stands: Mapping[str, Latest], tried: Mapping[str, Attempt], now: datetime
) -> str | None:
    """The job that should have been started longest ago, if any should."""
    lengths = {job: length for job, text in schedule.items() if (length := period(text)) is not None}
    turns = {job: _next(length, stands.get(job), tried.get(job)) for job, length in lengths.items()}
    first = min(turns, key=lambda job: turns[job], default=None)
    return first if first is not None and turns[first] <= now else None


def _next(length: timedelta, stands: Latest | None, tried: Attempt | None) -> datetime:
    """The time of a job's next turn: its period after a run; at most an hour after one that failed or died."""
    again = min(length, RETRY)
    turns = [datetime.min.replace(tzinfo=UTC)]
    if stands is not None:
        turns.append(stands.started_at + (length if stands.state is RunState.DONE else again))
    if tried is not None:
        turns.append(tried.at + (length if tried.good else again))
    return max(turns)


class PipelineSchedule:
    """Looks for jobs that are due. The main process tends it; only the look at the ledger has a thread."""

    def __init__(
        self,
        settings: Settings,
        data_dir: DataDir,
        now: float,
        *,
        command: Sequence[str] = COMMAND,
        first_look: float = FIRST_LOOK,
    ) -> None:
        self._settings, self._data_dir, self._command = settings, data_dir, tuple(command)
        self._next_look = now + first_look
        self._looks: queue.SimpleQueue[Mapping[str, Latest]] = queue.SimpleQueue()
        self.running: str | None = None  # the job that runs now
        self._child: Child | None = None
        self._log_began = 0
        self._overdue: float | None = None  # when what runs should be over
        self._stopping = False
        self._tried: dict[str, Attempt] = {}
        wanted = any(period(text) for text in settings.pipeline_schedule.values())
        self._on = wanted and importlib.util.find_spec("pyspark") is not None

    def tend(self, now: float) -> Iterator[str]:
        """Starts the job that is due and notices one that has ended, without waiting. Yields errors as lines to log."""
        if self._child is not None and self._child.died is not None:
            yield from self._ended(self._child)
        if self._child is not None and self._overdue is not None and now > self._overdue:
            self._overdue = None
            yield f"the job {self.running} takes longer than its period; nothing else is started until it is over"
        if not self._on or self._stopping or self._child is not None:
            return
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY + secrets.SystemRandom().uniform(0, JITTER)
            threading.Thread(target=self.look, name="schedule", daemon=True).start()
        while not self._looks.empty():
            stands = self._looks.get()
            job = due(self._settings.pipeline_schedule, stands, self._tried, datetime.now(UTC))
            if job is not None and self._child is None:
                yield from self._start(job, now)

    def ask_to_stop(self) -> None:
        """Starts no more jobs, and tells the running one to end."""
        self._stopping = True
        if self._child is not None:
            self._child.send(_STOP[0][0])

    def stop(self) -> None:
        """Ends the running job; returns when it has ended."""
        self._stopping = True
        if self._child is not None:
            end(self._child, _STOP)
            self._child = self.running = None

    def look(self) -> None:
        """Asks the ledger for the state of each job, for the next `tend`."""
        try:
            self._looks.put(asyncio.run(_stands(self._settings)))
        except (Unavailable, StatementError):
            return  # the ledger is unreachable, which is logged elsewhere; the next look comes by itself

    def _start(self, job: str, now: float) -> Iterator[str]:
        self._tried[job] = Attempt(datetime.now(UTC), good=False)
        program = Program(
            command=(*self._command, "pipeline", "run", *job.split(), "-q"),
            environ={**os.environ, "ANGELIA_DATA_DIR": str(self._data_dir.path)},
            death_signal=signal.SIGTERM,
        )
        length = period(self._settings.pipeline_schedule[job])
        try:
            log = self._open_log()
            try:
                self._child, self.running = start(program, log=log), job
            finally:
                os.close(log)
        except OSError as error:
            yield f"{job} cannot be started: {error}"
        else:
            self._overdue = None if length is None else now + length.total_seconds()

    def _ended(self, child: Child) -> Iterator[str]:
        job, self._child, self.running = self.running, None, None
        assert job is not None, "it ran"
        good = child.exit_code == 0
        self._tried[job] = Attempt(self._tried[job].at, good=good)
        report = self._report()
        if good or self._stopping or report.get("at_work"):  # at work elsewhere, that is
            return
        why = f"failed: {report['error']}" if report.get("error") else f"ended with {child.died}"
        yield f"the job {job} {why}; {self._log} says more"

    @property
    def _log(self) -> Path:
        return self._data_dir.logs / LOG

    def _open_log(self) -> int:
        if self._log.exists() and self._log.stat().st_size > LOG_MOST:
            self._log.replace(self._log.with_name("pipeline.1.log"))
        self._log_began = self._log.stat().st_size if self._log.exists() else 0
        return open_log(self._data_dir.logs, LOG, self._data_dir.owner)

    def _report(self) -> dict[str, Any]:
        """The report of the job that ended last: the last line of JSON that it wrote."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log_began, log.seek(0, os.SEEK_END) - _REPORT_MOST))
                lines = log.read(_REPORT_MOST).splitlines()
        except OSError:
            return {}
        for line in reversed(lines):
            if line.startswith(b"{"):
                with suppress(ValueError):
                    report: dict[str, Any] = json.loads(line)
                    return report
        return {}


async def _stands(settings: Settings) -> Mapping[str, Latest]:
    assert settings.database_url, "the server has given or embedded stores by now"
    ledger = await Ledger.open(settings.database_url, 1)
    try:
        return {one.job: one for one in await Runs(ledger).latest()}
    finally:
        await ledger.close()
