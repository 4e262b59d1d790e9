"""The room that the stores have. Writes end while a little is left, so that reads do not end with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from angelia.errors import DiskFull

# PostgreSQL ends when it cannot make the next segment of its log, which has 16 MiB; here are two of them.
RESERVE = 32 << 20
_LOOK_SECONDS = 0.2
_SAID_SECONDS = 15.0  # some tick writes at least this often, so that a ledger which is still full says so again
_MIB = 1 << 20
log = structlog.get_logger(__name__)


class Disk:
    """The file system of our own ledger; without a directory, of one that only the ledger itself can speak for."""

    def __init__(self, directory: Path | None = None, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._stopwatch = stopwatch
        self._left: int | None = None
        self._looked = float("-inf")
        self._said = float("-inf")
        self._told = False

    @property
    def left(self) -> int | None:
        """Bytes that are free, as of a moment ago; None where that cannot be seen."""
        now = self._stopwatch()
        if self._directory is not None and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            try:
                found = os.statvfs(self._directory)
            except OSError:
                self._left = None
            else:
                # Some file systems know no size, and say so by having no blocks at all.
                self._left = found.f_bavail * found.f_frsize if found.f_blocks else None
        return self._left

    @property
    def full(self) -> bool:
        """Whether so little is left that nothing may be written, or the ledger said so a moment ago."""
        full = self._short or self._stopwatch() - self._said < _SAID_SECONDS
        self._tell(full=full)
        return full

    def check(self) -> None:
        """DiskFull while so little is left. What the ledger said is no reason: only a next try can tell otherwise."""
        if self.full and self._short:
            raise self.refusal()

    @property
    def _short(self) -> bool:
        left = self.left
        return left is not None and left < RESERVE

    def _tell(self, *, full: bool) -> None:
        if full and not self._told:
            log.error(
                "the disk is full: nothing is written until there is room",
                directory=str(self._directory) if self._directory else "of the ledger, which runs elsewhere",
                left=self.shown,
                wanted=f"{RESERVE // _MIB} MiB",
            )
        elif self._told and not full:
            log.warning("the disk has room again", left=self.shown)
        self._told = full

    @property
    def shown(self) -> str:
        """What is left, for people."""
        left = self.left
        return "nothing" if left is None else f"{left / _MIB:.1f} MiB"

    def told(self) -> str:
        """That it is full, with the directory: for operators."""
        least = f"{RESERVE // _MIB} MiB"
        return f"the disk of {self._directory} is full: {self.shown} left, and nothing is written below {least}"

    def found_full(self) -> None:
        """The ledger could not write."""
        self._said = self._stopwatch()

    def refusal(self) -> DiskFull:
        return DiskFull(
            "the server's disk is full",
            hint="nothing was stored; try again when its operator made room",
            retry_after=5,
        )
