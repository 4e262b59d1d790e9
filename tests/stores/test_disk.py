"""The room of the stores: seen where the disk is ours, believed where the ledger says so, told once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import structlog

from angelia.errors import DiskFull
from angelia.stores import disk as disk_module
from angelia.stores.disk import Disk


class Stopwatch:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch()


def test_a_disk_with_room_is_not_full(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.check()
    assert not disk.full
    assert disk.left is not None


def test_a_short_disk_refuses_and_says_so_once_until_it_has_room(
    tmp_path: Path, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, stopwatch)
    with structlog.testing.capture_logs() as lines:
        with monkeypatch.context() as short:
            short.setattr(disk_module, "RESERVE", 1 << 60)
            for _ in range(3):
                stopwatch.now += 1
                with pytest.raises(DiskFull, match="disk is full"):
                    disk.check()
        stopwatch.now += 1
        disk.check()
    assert [(line["log_level"], line.get("directory")) for line in lines] == [
        ("error", str(tmp_path)),
        ("warning", None),
    ]
    assert all(line["left"].endswith("MiB") for line in lines)


def test_what_a_ledger_elsewhere_says_is_believed_for_a_while_and_refuses_nothing(stopwatch: Stopwatch) -> None:
    disk = Disk(stopwatch=stopwatch)
    assert not disk.full
    disk.report_full()
    assert disk.full
    disk.check()
    stopwatch.now += 20
    assert not disk.full


def test_a_file_system_that_knows_no_size_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsized = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: unsized)
    disk = Disk(tmp_path)
    disk.check()
    assert (disk.full, disk.left) == (False, None)


def test_a_directory_that_cannot_be_seen_is_no_reason_to_refuse(tmp_path: Path) -> None:
    disk: Any = Disk(tmp_path / "none")
    disk.check()
    assert (disk.full, disk.left) == (False, None)
