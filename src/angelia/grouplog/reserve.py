"""Free space under the log. Appends stop while some is left, and a reserve is given up then: reading goes on, and so do
deletions, which need room before they give any back."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from angelia.errors import DiskFull

RESERVE = 256 << 20
_PART = 200  # of a small disk, what the reserve takes
_CHECK_SECONDS = 0.5
log = structlog.get_logger(__name__)


class DiskReserve:
    """A file that only takes space, in the directory of the log. The first write takes it, so that a node without
    groups takes none."""

    def __init__(
        self,
        directory: Path,
        size: int | None = None,
        least: int | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        """With less than `least` bytes free nothing is appended: a quarter of the reserve, if it is not given."""
        self._directory = directory
        self._file = directory / "reserve"
        self._size = min(RESERVE, shutil.disk_usage(directory).total // _PART) if size is None else size
        self._least = self._size // 4 if least is None else least
        self._stopwatch = stopwatch
        self._checked_at = float("-inf")
        self.full = False

    def check(self) -> None:
        """Raises DiskFull while there is no room to append."""
        now = self._stopwatch()
        if now - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = now
            if self._is_kept() and self._left() < self._least:
                self.give_up()
            self._keep()
        if self.full:
            raise DiskFull("the node's disk is full", hint="nothing was stored; reading works", retry_after=30)

    def shown(self) -> str | None:
        """How little room is left while the disk is full, else None."""
        if self.full:
            self._keep()
        return f"{self._left() >> 20:,} MiB" if self.full else None

    def give_up(self) -> None:
        """Gives the reserve back to the file system: a write failed, or little is left."""
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()
        if not self.full:
            log.error("the disk is full: the log takes no messages until there is room", directory=str(self._directory))
        self.full = True

    def _keep(self) -> None:
        """Takes the reserve where there is none, if there is room. It is given up when an append needs it, not before:
        whatever else shares the disk would use it up."""
        if self._is_kept():
            return
        if self._left() < self._size + 2 * self._least:
            self.full = True
            return
        try:
            self._make()
        except OSError:  # others were faster
            self.give_up()
            return
        if self.full:
            log.warning("the disk has room again", directory=str(self._directory))
        self.full = False

    def _is_kept(self) -> bool:
        """Whether the reserve is there with all its bytes: a crash may have left a file without them."""
        try:
            return self._file.stat().st_blocks * 512 >= self._size
        except FileNotFoundError:
            return False

    def _left(self) -> int:
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def _make(self) -> None:
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # Zeros are no reserve where the file system keeps holes; allocated blocks are.
            os.posix_fallocate(descriptor, 0, self._size)
        finally:
            os.close(descriptor)
