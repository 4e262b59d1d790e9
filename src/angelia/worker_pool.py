"""Web processes and the spool process, as the server's main process runs them: started, restarted, drained, killed."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from prometheus_client import multiprocess

from angelia.errors import StartFailed
from angelia.stores.embedded.process import Backoff, Child, Program, start
from angelia.worker import READY, Handover

_FAILED_STARTS = 3
# Time that a worker gets after the drain to close its connections to the stores.
_FAREWELL_SECONDS = 3.0


@dataclass(slots=True)
class _Worker:
    number: int
    child: Child | None = None
    report: int | None = None
    said: bytearray = field(default_factory=bytearray)
    ready: bool = False
    was_ready: bool = False
    backoff: Backoff = field(default_factory=Backoff)
    launched: float = 0.0
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """What a process runs, and its names in the log and in an error."""

    module: str
    label: str
    process: str


WEB = WorkerKind("angelia.worker", "worker", "web process")
SPOOL = WorkerKind("angelia.spool_worker", "spool", "spool process")


class Workers:
    """A fixed number of processes behind one listening socket."""

    def __init__(
        self,
        handover: Handover,
        metrics: Path,
        selector: selectors.BaseSelector,
        kind: WorkerKind = WEB,
        count: int = 1,
    ) -> None:
        """`handover` is what each worker gets, but for its number and the pipe for its report."""
        self._handover = handover
        self._kind = kind
        self._metrics = str(metrics)
        self._selector = selector
        self._workers = [_Worker(number) for number in range(count)]

    @property
    def all_ready(self) -> bool:
        return all(worker.ready for worker in self._workers)

    @property
    def alive(self) -> bool:
        return any(worker.child is not None for worker in self._workers)

    def start(self) -> None:
        for worker in self._workers:
            self._launch(worker, time.monotonic())

    def tend(self, now: float) -> Iterator[str]:
        """Restarts workers that ended. Yields what happened, as lines to log."""
        for worker in self._workers:
            self._listen(worker)
            if worker.child is not None:
                if (how := worker.child.died) is not None:
                    yield self._bury(worker, how, now)
            elif now >= worker.due:
                try:
                    self._launch(worker, now)
                except OSError as error:
                    worker.due = now + worker.backoff.next(0.0)
                    yield f"{self._kind.label} {worker.number} cannot be started: {error}"

    def collect(self) -> None:
        """Forgets the workers that ended, without restarting them."""
        for worker in self._workers:
            if worker.child is not None and worker.child.died is not None:
                self._forget(worker)

    def ask_to_stop(self) -> float:
        """Asks the workers to finish their requests and stop. Returns how many seconds that may take."""
        self._signal(signal.SIGTERM)
        return self._handover.loaded.settings.drain_seconds + _FAREWELL_SECONDS

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        for worker in self._workers:
            if worker.child is not None:
                worker.child.wait(5.0)
                self._forget(worker)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.child is not None:
                worker.child.send(number)

    def _launch(self, worker: _Worker, now: float) -> None:
        worker.launched = now
        reading, writing = os.pipe()
        handover = msgspec.structs.replace(self._handover, worker=worker.number, report=writing)
        program = Program(
            # -P: a directory named angelia in the working directory must not be imported instead of the package.
            command=(sys.executable, "-P", "-m", self._kind.module),
            environ=self._environment(),
            death_signal=signal.SIGTERM,
            pass_fds=(handover.listener, writing),
        )
        try:
            worker.child = start(program, stdin=handover.encode())
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        worker.report, worker.ready = reading, False
        worker.said.clear()
        self._selector.register(reading, selectors.EVENT_READ)

    def _environment(self) -> dict[str, str]:
        ours = ("ANGELIA_", "DATABASE_URL", "REDIS_URL", "PROMETHEUS_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, "PROMETHEUS_MULTIPROC_DIR": self._metrics}

    def _listen(self, worker: _Worker) -> None:
        while worker.report is not None:
            try:
                data = os.read(worker.report, 65536)
            except BlockingIOError:
                return
            worker.said += data
            if worker.said.endswith(READY):
                worker.ready = worker.was_ready = True
            if not data or worker.ready:
                self._close_report(worker)

    def _bury(self, worker: _Worker, how: str, now: float) -> str:
        self._listen(worker)
        said, pid = worker.said.decode("utf-8", "replace"), worker.child.pid if worker.child else 0
        self._forget(worker)
        delay = worker.backoff.next(now - worker.launched)
        worker.due = now + delay
        if not worker.was_ready and worker.backoff.failures >= _FAILED_STARTS:
            last = "\n".join(said.strip().splitlines()[-8:])
            raise StartFailed(
                f"the {self._kind.process} ended {_FAILED_STARTS} times before it was ready, the last time with {how}",
                hint=last or "what it wrote before its end stands above",
            )
        return f"{self._kind.label} {worker.number} (pid {pid}) ended with {how}; next start in {delay:.1f} s"

    def _forget(self, worker: _Worker) -> None:
        if worker.child is not None:
            multiprocess.mark_process_dead(worker.child.pid, self._metrics)  # type: ignore[no-untyped-call]
        worker.child, worker.ready = None, False
        self._close_report(worker)

    def _close_report(self, worker: _Worker) -> None:
        if worker.report is not None:
            self._selector.unregister(worker.report)
            os.close(worker.report)
            worker.report = None
