"""Progress of long work on stderr: after 2 s, a line that repaints; without a terminal one every 30 s.

A job of the pipeline has a line for each of its stages, which moves while Spark's tasks end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from angelia.cli.escaping import cut
from angelia.cli.output import Output
from angelia.cli.times import age

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET_SECONDS, REPAINT_SECONDS, PLAIN_SECONDS = 2.0, 0.2, 30.0
ASK_SECONDS = 0.5
BAR = 20
NEARLY = 0.99  # a stage is complete when its rows are, not when its tasks are
Tasks = Callable[[], tuple[int, int]]  # of Spark: done, and all


class ProgressBar:
    """Counts units of work that are done, and shows them; work that ends within 2 s shows nothing."""

    def __init__(
        self, out: Output, doing: str, unit: str, total: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._doing, self._unit, self._total = doing, unit, total
        self._clock = clock
        self._done = 0
        self._began = self._said = clock()
        self._painted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._painted:
            self._out.prompt("\r\x1b[K")

    def advance(self, by: int = 1, *, total: int | None = None) -> None:
        """Counts `by` more units; the total may become known on the way."""
        self._done += by
        self._total = self._total if total is None else total
        now, terminal = self._clock(), self._out.stderr.isatty()
        pause = REPAINT_SECONDS if terminal else PLAIN_SECONDS
        if self._out.manner.quiet or now - self._began < QUIET_SECONDS or now - self._said < pause:
            return
        self._said = now
        line = self._line(now - self._began)
        self._out.prompt(f"\r\x1b[K{cut(line, 79)}" if terminal else f"{line}\n")
        self._painted = terminal

    def _line(self, seconds: float) -> str:
        rate = self._done / seconds
        speed = f"{rate:,.0f} {self._unit}/s"
        if not self._total:
            return f"{self._doing}  {self._done:,} {self._unit}   {speed}"
        filled = min(BAR, BAR * self._done // self._total)
        bar = "█" * filled + "░" * (BAR - filled)
        left = age(timedelta(seconds=max(0, self._total - self._done) / rate)) if rate else "?"
        return f"{self._doing}  {bar}  {self._done:,} / {self._total:,}   {speed}   {left} left"


class Stage(ProgressBar):
    """The line of one stage of a job: its rows that are done, and an estimate of more from Spark's tasks."""

    def __init__(self, out: Output, doing: str, rows: int | None, clock: Callable[[], float]) -> None:
        super().__init__(out, doing, "rows", rows, clock)
        self._rows = self._step = 0

    def add(self, rows: int) -> None:
        """Counts rows that are done."""
        self._rows, self._step = self._rows + rows, rows
        self._show(self._rows)

    def expect(self, done: int, tasks: int) -> None:
        """Estimates rows from the share of tasks that are done: of the rows left, or of as many as the last step had.
        The count shown never goes back."""
        share = min(done / tasks, NEARLY) if tasks else 0
        left = max(0, min(self._total - self._rows, self._step or self._total)) if self._total else 0
        self._show(self._rows + int(left * share))

    def end(self) -> None:
        """Clears the line; a stage of 2 s or more leaves a line with its rows and its rate."""
        seconds = self._clock() - self._began
        self.__exit__()
        if self._rows and seconds >= QUIET_SECONDS:
            bar = "█" * BAR + f"  {self._rows:,} / {self._rows:,}"
            self._out.note(f"{self._doing}  {bar}   {self._rows / seconds:,.0f} rows/s")

    def _show(self, rows: int) -> None:
        self.advance(max(0, rows - self._done))


class JobProgressDisplay:
    """Shows the progress of a job (`pipeline.jobs.job_context.JobProgress`); a thread of its own asks Spark."""

    def __init__(self, out: Output, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._job, self._clock = out, job, clock
        self._lock = threading.Lock()
        self._stage: Stage | None = None
        self._starting: float | None = None
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join(ASK_SECONDS * 4)
        with self._lock:
            self._end_start()
            if self._stage is not None:
                self._stage.end()
                self._stage = None

    def stage(self, doing: str, rows: int | None = None) -> None:
        with self._lock:
            if doing.startswith("starting Spark"):  # in the middle of a stage, which then goes on
                self._starting = self._clock()
                self._say(f"{self._job}   {doing} … ")
                return
            if self._stage is not None:
                self._stage.end()
            self._stage = Stage(self._out, doing, rows, self._clock)

    def advance(self, rows: int) -> None:
        with self._lock:
            if self._stage is not None:
                self._stage.add(rows)

    def started(self, spark: SparkSession) -> None:
        from angelia.pipeline.session import tasks_of

        self.watch(tasks_of(spark))

    def watch(self, tasks: Tasks) -> None:
        """Asks Spark twice a second how many tasks are done, until the job ends."""
        with self._lock:
            self._end_start()
        if not self._out.manner.quiet:
            self._watcher = threading.Thread(target=self._watch, args=(tasks,), daemon=True)
            self._watcher.start()

    def _watch(self, tasks: Tasks) -> None:
        while not self._over.wait(ASK_SECONDS):
            done, all_ = tasks()
            with self._lock:
                if self._stage is not None and not self._over.is_set():
                    self._stage.expect(done, all_)

    def _end_start(self) -> None:
        if self._starting is not None:
            seconds, self._starting = self._clock() - self._starting, None
            self._say(f"{seconds:.0f} s\n" if seconds >= 1 else f"{seconds:.1f} s\n")

    def _say(self, text: str) -> None:
        if not self._out.manner.quiet:
            self._out.prompt(text)
