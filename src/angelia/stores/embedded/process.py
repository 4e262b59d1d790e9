"""Child processes that do not outlive us: started as another user, told of our death, ended with a bound."""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from angelia.stores.embedded.system_user import SystemUser

_PR_SET_PDEATHSIG = 1
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
Steps = tuple[tuple[signal.Signals, float], ...]

_WATCHDOG = 'read -r _ || kill -s "$0" "$1"'


class ParentDeath(enum.Enum):
    """How a child learns that we are gone."""

    KERNEL = "the kernel signals it (Linux)"
    WATCHDOG = "a shell that waits on a pipe signals it"
    UNNOTICED = "it does not, and stays behind"

    @staticmethod
    def best() -> ParentDeath:
        return ParentDeath.KERNEL if sys.platform == "linux" else ParentDeath.WATCHDOG


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start, as whom, and the signal it gets when we die."""

    command: Sequence[str]
    environ: Mapping[str, str]
    death_signal: signal.Signals
    owner: SystemUser | None = None
    cwd: str | None = None
    pass_fds: Sequence[int] = ()


class Child:
    """A process we started and have to wait for."""

    def __init__(self, process: subprocess.Popen[bytes], watchdog: subprocess.Popen[bytes] | None) -> None:
        self._process = process
        self._watchdog = watchdog

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def died(self) -> str | None:
        """How it ended, in words, or None while it lives."""
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
        """Whether a signal from outside ended it; else it gave up, or crashed."""
        code = self._process.poll()
        return code is not None and code < 0 and -code not in _CRASHES

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return False
        self._disarm()
        return True

    def _disarm(self) -> None:
        # After our wait the pid may go to another process, which the watchdog must not hit.
        if self._watchdog is not None:
            watchdog, self._watchdog = self._watchdog, None
            watchdog.communicate(b"\n")


def start(program: Program, *, log: int | None = None, stdin: bytes = b"", notice: ParentDeath | None = None) -> Child:
    """Start a program in a session of its own, so that the Ctrl-C of a terminal reaches us alone.

    `log` takes its output; None leaves it ours. `stdin` must fit a pipe.
    """
    if threading.current_thread() is not threading.main_thread():
        # The kernel's parent-death signal is sent when the starting thread ends.
        raise RuntimeError("child processes are started from the main thread only")
    notice = notice or ParentDeath.best()
    lent = program.owner if program.owner is not None and not program.owner.is_us else None
    process = subprocess.Popen(
        program.command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=dict(program.environ),
        cwd=program.cwd,
        user=lent.uid if lent else None,
        group=lent.gid if lent else None,
        extra_groups=[] if lent else None,
        start_new_session=True,
        umask=0o077,
        pass_fds=program.pass_fds,
        preexec_fn=_die_with_us(program.death_signal) if notice is ParentDeath.KERNEL else None,
    )
    watchdog = _watch(process.pid, program.death_signal) if notice is ParentDeath.WATCHDOG else None
    _feed(process, stdin)
    return Child(process, watchdog)


def end(child: Child, steps: Steps) -> None:
    """Send each signal in turn until one has ended the child within its seconds."""
    for number, seconds in steps:
        child.send(number)
        if child.wait(seconds):
            return


class Backoff:
    """When to try again: 0.1 s, twice as long each time, at most 5 s; a long life forgives."""

    FIRST, LONGEST, FORGIVEN = 0.1, 5.0, 30.0

    def __init__(self) -> None:
        self._delay = self.FIRST
        self.failures = 0

    def next(self, lived: float) -> float:
        if lived >= self.FORGIVEN:
            self._delay, self.failures = self.FIRST, 0
        delay, self._delay = self._delay, min(self._delay * 2, self.LONGEST)
        self.failures += 1
        return delay


def wait_for_death(pid: int, seconds: float) -> bool:
    """Wait for a process that is not our child."""
    deadline = time.monotonic() + seconds
    while exists(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def exists(pid: int) -> bool:
    """Whether a process lives; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (PermissionError, FileNotFoundError):  # somebody else's, or not Linux
        return True
    return state != b"Z"


def _die_with_us(number: signal.Signals) -> Callable[[], None]:
    # Looked up before the fork; it runs after the change of user, which would clear the setting. Safe beside the
    # sealer's thread: Python and the C library keep their own locks (GIL, imports, allocator) whole across a fork, and
    # these calls take no other. The kernel counts the death of the thread that forked, which is always the main one.
    prctl, getppid, leave = ctypes.CDLL(None).prctl, os.getppid, os._exit
    parent, wanted = os.getpid(), int(number)

    def between_fork_and_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, wanted, 0, 0, 0)
        if getppid() != parent:  # we died before the kernel was told
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
        process.poll()  # it is gone already, which its caller finds out
