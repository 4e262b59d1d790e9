"""Child processes that do not outlive the server: started as another user, signalled at our death, stopped in bounded
time."""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from angelia.stores.system_user import SystemUser, store_environment

_PR_SET_PDEATHSIG = 1
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
Steps = tuple[tuple[signal.Signals, float], ...]

_WATCHDOG = 'read -r _ || kill -s "$0" "$1"'


class ParentDeath(enum.Enum):
    """How a child learns that its parent died."""

    KERNEL = "the kernel signals it (Linux)"
    WATCHDOG = "a shell that waits on a pipe signals it"
    UNNOTICED = "it does not, and keeps running"

    @staticmethod
    def best() -> ParentDeath:
        return ParentDeath.KERNEL if sys.platform == "linux" else ParentDeath.WATCHDOG


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start, as which user, and the signal that it gets when we die."""

    command: Sequence[str]
    environ: Mapping[str, str]
    death_signal: signal.Signals
    owner: SystemUser | None = None
    cwd: str | None = None
    pass_fds: Sequence[int] = ()

    @classmethod
    def of_store(cls, owner: SystemUser, death_signal: signal.Signals, *command: str | Path) -> Program:
        """A program that runs as the user of the stores, without our environment and working directory."""
        words = tuple(map(str, command))
        return cls(command=words, environ=store_environment(), death_signal=death_signal, owner=owner, cwd="/")


class Child:
    """A process that we started and must wait for."""

    def __init__(self, process: subprocess.Popen[bytes], watchdog: subprocess.Popen[bytes] | None) -> None:
        self._process = process
        self._watchdog = watchdog

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def died(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._disarm()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def was_killed(self) -> bool:
        """Whether a signal from outside ended it; False if it exited or crashed."""
        code = self._process.poll()
        return code is not None and code < 0 and -code not in _CRASHES

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Waits for its end; returns whether it came within that time."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return False
        self._disarm()
        return True

    def _disarm(self) -> None:
        # Once we have waited for it, the pid may go to another process, which the watchdog must not signal.
        if self._watchdog is not None:
            watchdog, self._watchdog = self._watchdog, None
            watchdog.communicate(b"\n")


def start(program: Program, *, log: int | None = None, stdin: bytes = b"", notice: ParentDeath | None = None) -> Child:
    """Starts a program in a session of its own, so that Ctrl-C in a terminal reaches only us.

    `log` gets its output; with None it shares ours. `stdin` must fit into a pipe.
    """
    if threading.current_thread() is not threading.main_thread():
        # The kernel sends the parent-death signal when the thread that started the child ends.
        raise RuntimeError("child processes are started from the main thread only")
    notice = notice or ParentDeath.best()
    process = subprocess.Popen(
        program.command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=dict(program.environ),
        cwd=program.cwd,
        start_new_session=True,
        umask=0o077,
        pass_fds=program.pass_fds,
        preexec_fn=_die_with_us(program.death_signal) if notice is ParentDeath.KERNEL else None,
        **(program.owner.popen_options if program.owner else {}),
    )
    watchdog = _watch(process.pid, program.death_signal) if notice is ParentDeath.WATCHDOG else None
    _feed(process, stdin)
    return Child(process, watchdog)


def end(child: Child, steps: Steps) -> None:
    """Sends each signal in turn, until the child ends within the seconds of that signal."""
    for number, seconds in steps:
        child.send(number)
        if child.wait(seconds):
            return


class Backoff:
    """Back-off between restarts: 0.1 s, doubled each time up to 5 s; reset after a process that ran for 30 s."""

    FIRST, LONGEST, RESET_AFTER = 0.1, 5.0, 30.0

    def __init__(self) -> None:
        self._delay = self.FIRST
        self.failures = 0

    def next(self, lived: float) -> float:
        if lived >= self.RESET_AFTER:
            self._delay, self.failures = self.FIRST, 0
        delay, self._delay = self._delay, min(self._delay * 2, self.LONGEST)
        self.failures += 1
        return delay


def exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (PermissionError, FileNotFoundError):  # another user's, or not Linux
        return True
    return state != b"Z"


def _die_with_us(number: signal.Signals) -> Callable[[], None]:
    # The functions are looked up before the fork. The call runs after the change of user, which would clear the
    # setting. It is safe beside the sealer's thread: Python and the C library protect their own locks (GIL, imports,
    # allocator) across a fork, and these calls take no other. The signal comes when the forking thread ends: always the
    # main one.
    prctl, getppid, leave = ctypes.CDLL(None).prctl, os.getppid, os._exit
    parent, wanted = os.getpid(), int(number)

    def between_fork_and_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, wanted, 0, 0, 0)
        if getppid() != parent:  # the parent died before prctl
            leave(1)

    return between_fork_and_exec


def _watch(pid: int, number: signal.Signals) -> subprocess.Popen[bytes]:
    name = number.name.removeprefix("SIG")
    return subprocess.Popen(
        ("/bin/sh", "-c", _WATCHDOG, name, str(pid)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.close()
    except BrokenPipeError:
        process.poll()  # it has ended already; the caller sees its exit code
