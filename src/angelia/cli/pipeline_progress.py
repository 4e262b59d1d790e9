"""How far a job of the pipeline has come: one line for each of its stages, and movement while Spark works in one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from angelia.cli.output import Output
from angelia.cli.progress import BAR, QUIET_SECONDS, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ASK_SECONDS = 0.5
NEARLY = 0.99  # more than the tasks of a stage is known only when its rows are
Tasks = Callable[[], tuple[int, int]]


class Stage:
    """One thing that a job does: the rows that are done of it, and those that Spark's tasks let expect."""

    def __init__(self, out: Output, doing: str, rows: int | None, clock: Callable[[], float]) -> None:
        self._out, self._doing, self._total, self._clock = out, doing, rows, clock
        self._line = Progress(out, doing, "rows", rows, clock)
        self._began = clock()
        self._done = self._shown = self._step = 0

    def advance(self, rows: int) -> None:
        self._done, self._step = self._done + rows, rows
        self._show(self._done)

    def expect(self, done: int, tasks: int) -> None:
        """So many of Spark's tasks are done: that share of what is left, or of as much as the step before had. A line
        never goes back."""
        if self._total and tasks:
            left = max(0, min(self._total - self._done, self._step or self._total))
            self._show(self._done + int(left * min(done / tasks, NEARLY)))
        else:
            self._show(self._shown)

    def end(self) -> None:
        """Wipe the line; what took its time leaves a word behind."""
        seconds = self._clock() - self._began
        self._line.__exit__(None, None, None)
        if self._done and seconds >= QUIET_SECONDS:
            bar = "█" * BAR + f"  {self._done:,} / {self._done:,}"
            self._out.note(f"{self._doing}  {bar}   {self._done / seconds:,.0f} rows/s")

    def _show(self, rows: int) -> None:
        step = max(0, rows - self._shown)
        self._shown += step
        self._line.advance(step)


class Shown:
    """The progress of a job, as `jobs.work` wants it; a thread of its own asks Spark."""

    def __init__(self, out: Output, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._job, self._clock = out, job, clock
        self._lock = threading.Lock()
        self._stage: Stage | None = None
        self._starting: float | None = None
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
            if doing.startswith("starting Spark"):  # in the middle of another stage, which goes on when it is there
                self._announce(doing)
                return
            if self._stage is not None:
                self._stage.end()
            self._stage = Stage(self._out, doing, rows, self._clock)

    def advance(self, rows: int) -> None:
        with self._lock:
            if self._stage is not None:
                self._stage.advance(rows)

    def started(self, spark: SparkSession) -> None:
        from angelia.pipeline.session import tasks_of

        self.watch(tasks_of(spark))

    def watch(self, tasks: Tasks) -> None:
        """Spark is there: ask it again and again how many tasks are done, until the job is over."""
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

    def _announce(self, doing: str) -> None:
        self._starting = self._clock()
        if not self._out.manner.quiet:
            self._out.stderr.write(f"{self._job}   {doing} … ")
            self._out.stderr.flush()

    def _end_start(self) -> None:
        if self._starting is None:
            return
        seconds, self._starting = self._clock() - self._starting, None
        if not self._out.manner.quiet:
            self._out.stderr.write(f"{seconds:.0f} s\n" if seconds >= 1 else f"{seconds:.1f} s\n")
            self._out.stderr.flush()
