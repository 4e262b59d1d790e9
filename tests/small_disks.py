"""A small file system of one test, which it may fill to the last byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system in memory. It is filled by shrinking it, which costs no time and no memory."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size

    @contextmanager
    def filled(self, leaving: int = 0) -> Iterator[None]:
        """Leaves only some bytes free during the block."""
        while not self._resize(shutil.disk_usage(self.path).used + leaving):
            pass  # something was written meanwhile, and it cannot be smaller than its content
        try:
            yield
        finally:
            assert self._resize(self._size)

    def _resize(self, size: int) -> bool:
        command = ("mount", "-o", f"remount,size={size}", str(self.path))
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mounts a file system of this size. Skips the test where that is not possible."""
    if not can_mount():
        pytest.skip("a small file system (only root can mount one)")
    path, size = directory / f"disk-{os.urandom(4).hex()}", megabytes << 20
    path.mkdir()
    _mount(path, size)
    try:
        yield SmallDisk(path, size)
    finally:
        _unmount(path)


@cache
def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        if not shutil.which("mount") or not _mount(Path(directory), 1 << 20):
            return False
        _unmount(Path(directory))
        return True


def _mount(path: Path, size: int) -> bool:
    command = ("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(path))
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unmount(path: Path) -> None:
    # A dying server may still have files open.
    subprocess.run(("umount", "--lazy", str(path)), check=True)
