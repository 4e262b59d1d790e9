"""A small file system of its own, which a test may fill to the last byte."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system; `filled` takes what is left of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def left(self) -> int:
        return shutil.disk_usage(self.path).free

    @contextmanager
    def filled(self, leaving: int = 0) -> Iterator[None]:
        """Full but for some bytes, as long as this lasts."""
        filler = self.path / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.left - leaving)
        try:
            yield
        finally:
            filler.unlink()


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A file system in memory of this size; tests that need one are left out where it cannot be mounted."""
    path = directory / f"disk-{os.urandom(4).hex()}"
    path.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(path))
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode != 0:
        pytest.skip("a small file system (only root can mount one)")
    try:
        yield SmallDisk(path)
    finally:
        # What a dying server still has open goes with it.
        subprocess.run(("umount", "--lazy", str(path)), check=True)
