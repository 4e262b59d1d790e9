"""Free space on the ledger's disk. Writes are refused while some is left, because a full disk would also stop reads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from angelia.errors import DiskFull

# PostgreSQL stops when it cannot create the next WAL segment, which has 16 MiB; this is room for two.
RESERVE = 32 << 20
_CHECK_SECONDS = 0.2
# How long an error of a full ledger counts. Some tick writes at least this often, and meets the error again.
_REPORTED_SECONDS = 15.0
_MIB = 1 << 20
log = structlog.get_logger(__name__)


class Disk:
    """The file system under our own ledger. Without a directory the ledger runs elsewhere, and only its errors tell
    that its disk is full."""

    def __init__(self, directory: Path | None = None, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._stopwatch = stopwatch
        self._left: int | None = None
        self._checked_at = float("-inf")
        self._reported_at = float("-inf")
        self._logged_full = False

    @property
    def left(self) -> int | None:
        """Free bytes, at most 0.2 s old; None where they cannot be read."""
        now = self._stopwatch()
        if self._directory is not None and now - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = now
            try:
                found = os.statvfs(self._directory)
            except OSError:
                self._left = None
            else:
                # A file system without a size reports no blocks at all.
                self._left = found.f_bavail * found.f_frsize if found.f_blocks else None
        return self._left

    @property
    def full(self) -> bool:
        """Whether less than the reserve is left, or a write failed for want of space a moment ago."""
        full = self._short or self._stopwatch() - self._reported_at < _REPORTED_SECONDS
        self._log_change(full=full)
        return full

    def check(self) -> None:
        """Raises DiskFull while less than the reserve is left. A failed write alone does not count: only the next write
        can show that there is room again."""
        if self.full and self._short:
            raise self.refusal()

    @property
    def _short(self) -> bool:
        left = self.left
        return left is not None and left < RESERVE

    def _log_change(self, *, full: bool) -> None:
        if full and not self._logged_full:
            log.error(
                "the disk is full: nothing is written until there is room",
                directory=str(self._directory) if self._directory else "of the ledger, which runs elsewhere",
                left=self.shown,
                wanted=f"{RESERVE // _MIB} MiB",
            )
        elif self._logged_full and not full:
            log.warning("the disk has room again", left=self.shown)
        self._logged_full = full

    @property
    def shown(self) -> str:
        """The free space, formatted for people."""
        left = self.left
        return "nothing" if left is None else f"{left / _MIB:.1f} MiB"

    def explanation(self) -> str:
        """Why nothing is written, with the directory: for operators."""
        least = f"{RESERVE // _MIB} MiB"
        return f"the disk of {self._directory} is full: {self.shown} left, and nothing is written below {least}"

    def report_full(self) -> None:
        """Records that a write of the ledger failed for want of space."""
        self._reported_at = self._stopwatch()

    def refusal(self) -> DiskFull:
        return DiskFull(
            "the server's disk is full",
            hint="nothing was stored; try again when its operator made room",
            retry_after=5,
        )
