"""Finds and stops store processes that a killed server left behind; never by their name alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from angelia.stores.embedded.process import Steps, exists


@dataclass(frozen=True, slots=True)
class Trace:
    """What identifies a store process of ours: its pid file, which lies in its working directory, its executable, and a
    part of its command."""

    pid_file: Path
    executable: str
    title: str

    def pid(self) -> int | None:
        """The pid in the file; another process may have it by now."""
        try:
            first = self.pid_file.read_text("ascii", "replace").split("\n", 1)[0].strip()
        except OSError:
            return None
        return int(first) if first.isdecimal() and int(first) > 1 else None

    def orphan(self) -> int | None:
        """The pid of a running store of this directory, or None."""
        pid = self.pid()
        return pid if pid is not None and exists(pid) and self._is_ours(pid) else None

    def _is_ours(self, pid: int) -> bool:
        process = Path("/proc") / str(pid)
        if not process.exists():  # not Linux
            return Path(_ps(pid, "comm")).name == self.executable and self.title in _ps(pid, "args")
        try:
            try:
                executable = (process / "exe").readlink().name.removesuffix(" (deleted)")
                return executable == self.executable and (process / "cwd").readlink() == self.pid_file.parent
            except PermissionError:  # root in a container may not follow the links of another user's process
                name = (process / "comm").read_text().strip()  # the kernel truncates it to 15 bytes
                command = (process / "cmdline").read_bytes()
                return name == self.executable[:15] and os.fsencode(self.title) in command
        except OSError:
            return False


def stop_orphan(pid: int, steps: Steps) -> None:
    """Stops the process, signal by signal, and returns when it has ended."""
    for number, seconds in steps:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while exists(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not exists(pid):
            return


def _ps(pid: int, column: str) -> str:
    command = ("ps", "-ww", "-o", f"{column}=", "-p", str(pid))
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
