"""The CPU time of processes and of process trees, also of processes that have ended meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


def of_process(pid: int) -> float:
    """The seconds that a running process has spent, all its threads together; 0 if there is no such process."""
    if sys.platform == "linux":
        # The CPU clock of another process, as clock_getcpuclockid gives it: in nanoseconds, where /proc/PID/stat has
        # hundredths of a second.
        try:
            return time.clock_gettime((~pid << 3) | 2)
        except OSError:
            return 0.0
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def of_ended_children(process: psutil.Process) -> float:
    """The seconds of the children that this process has waited for, such as PostgreSQL's closed connections."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.children_user + times.children_system


def of_tree(root: psutil.Process) -> float:
    """The seconds of a process and of all its descendants, running and ended."""
    members = [root, *root.children(recursive=True)]
    return sum(of_process(one.pid) + of_ended_children(one) for one in members)


def of_command(*command: str, environ: Mapping[str, str] | None = None) -> float:
    """Runs a command. Returns the CPU seconds of all processes that it started; it must succeed.

    Python may keep the bytecode of modules, as it does unless it is told not to: compiling takes longer than most
    commands do."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    told = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("reaped.py")), *command],
        env={**kept, **(environ or {})},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    return float(told.stdout)


@dataclass
class Spent:
    """What a step cost, in seconds: CPU time of all processes together, and wall time."""

    cpu: float = 0.0
    wall: float = 0.0


@contextmanager
def spent(*others: int) -> Iterator[Spent]:
    """Measures what this process, its children and the process trees of `others` spend during the block."""
    roots = [psutil.Process(), *(psutil.Process(pid) for pid in others)]
    result = Spent()
    began, before = time.perf_counter(), sum(map(of_tree, roots))
    yield result
    result.wall = time.perf_counter() - began
    result.cpu = sum(map(of_tree, roots)) - before
