"""Finds and stops store processes that a killed server left behind; never by their name alone."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from angelia.stores.embedded.process import Steps, exists, wait_for_death


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What identifies a store process of ours: pid file, executable, working directory, and a part of its command."""

    pid_file: Path
    executable: str
    directory: Path
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
                return executable == self.executable and (process / "cwd").readlink() == self.directory
            except PermissionError:  # root in a container may not follow the links of another user's process
                command = (process / "cmdline").read_bytes()
                return self._command_is_ours((process / "comm").read_text().strip(), command)
        except OSError:
            return False

    def _command_is_ours(self, name: str, command: bytes) -> bool:
        # The kernel truncates names to 15 bytes.
        return name == self.executable[:15] and os.fsencode(self.title) in command


def stop_orphan(pid: int, steps: Steps) -> None:
    """Stops the process, signal by signal, and returns when it has ended."""
    for number, seconds in steps:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            break
        if wait_for_death(pid, seconds):
            break


def _ps(pid: int, column: str) -> str:
    command = ("ps", "-ww", "-o", f"{column}=", "-p", str(pid))
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
