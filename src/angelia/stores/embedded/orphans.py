"""Stores that a dead server left behind: recognised beyond doubt, then stopped. Never by name alone."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from angelia.stores.embedded.process import Steps, exists, wait_for_death


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What identifies a store of ours: pid file, executable, working directory, and a word of its command."""

    pid_file: Path
    executable: str
    directory: Path
    title: str

    def pid(self) -> int | None:
        """The pid that the file names, whoever has it now."""
        try:
            first = self.pid_file.read_text("ascii", "replace").split("\n", 1)[0].strip()
        except OSError:
            return None
        return int(first) if first.isdecimal() and int(first) > 1 else None

    def orphan(self) -> int | None:
        """The pid of a living store of this directory, or None."""
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
            except PermissionError:  # root in a container may signal another user's process and not follow its links
                command = (process / "cmdline").read_bytes()
                return self._command_is_ours((process / "comm").read_text().strip(), command)
        except OSError:
            return False

    def _command_is_ours(self, name: str, command: bytes) -> bool:
        # The kernel cuts names at 15 bytes.
        return name == self.executable[:15] and os.fsencode(self.title) in command


def stop_orphan(pid: int, steps: Steps) -> None:
    """Stop a store that this directory's last server left behind, and return when it is gone."""
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
