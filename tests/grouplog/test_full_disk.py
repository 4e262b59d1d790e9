"""A node whose disk fills: appends end with 507 while some room is left, reads and deletions go on, and room is all it
takes to go on appending."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from angelia.errors import DiskFull
from angelia.grouplog.model.frames import Status
from angelia.grouplog.model.groups import LogFloor
from angelia.grouplog.reserve import RESERVE, DiskReserve
from angelia.http.answers import STATUS
from angelia.stores.rocks import Rocks, RocksBatch
from grouplog.open_logs import Log, check_families, opened
from small_disks import SmallDisk, small_disk

SIZE, LEAST = 4 << 20, 1 << 20
MEGABYTES = 64


class Stopwatch:
    """Each look at it is a second later, so that the room is measured each time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = True

    def __call__(self) -> float:
        self.now += self.runs
        return self.now


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, MEGABYTES) as disk:
        yield disk


def reserve_of(directory: Path) -> DiskReserve:
    return DiskReserve(directory, SIZE, LEAST, Stopwatch())


def kept(directory: Path) -> int:
    """The bytes that the reserve takes from the disk."""
    file = directory / "reserve"
    return file.stat().st_blocks * 512 if file.exists() else 0


async def refused(log: Log, seq: int) -> None:
    with pytest.raises(DiskFull) as caught:
        await log.put(log.senders[0], seq)
    assert STATUS[caught.value.code] == 507
    assert caught.value.retry_after


# What a node does on a full disk.


async def test_appends_are_refused_while_little_is_left_and_taken_when_there_is_room(disk: SmallDisk) -> None:
    async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
        assert await log.put(log.senders[0], 1) is Status.STORED
        with disk.filled(leaving=LEAST // 2):
            await refused(log, 2)
            await refused(log, 2)
        assert await log.put(log.senders[0], 2) is Status.STORED
        assert set(check_families(log.rocks, log.group.ordinal)) == {(log.senders[0], seq) for seq in (1, 2)}


async def test_reads_and_deletions_go_on_while_appends_are_refused(disk: SmallDisk) -> None:
    async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
        sender = log.senders[0]
        for seq in (1, 2, 3):
            await log.put(sender, seq)
        with disk.filled(leaving=LEAST // 2):
            await refused(log, 4)
            assert await log.all_ids() == [(sender, seq) for seq in (1, 2, 3)]
            assert (await log.service.message(log.group, sender, 1)).seq == 1
            assert (await log.delete(1, {sender: 2})).floors == [LogFloor(sender, 1, 2)]
            assert await log.all_ids() == [(sender, 3)]
            await log.spool.check()
    async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
        assert await log.all_ids() == [(sender, 3)]


async def test_a_message_that_a_write_had_no_room_for_is_not_there_and_is_taken_after_a_restart(
    disk: SmallDisk,
) -> None:
    stopwatch = Stopwatch()
    async with opened(disk.path, reserve=DiskReserve(disk.path, SIZE, LEAST, stopwatch)) as log:
        sender = log.senders[0]
        await log.put(sender, 1)
        stopwatch.runs = False  # the room was measured just before
        with disk.filled(leaving=0):
            with pytest.raises(DiskFull):
                await log.put(sender, 2, data=bytes(1 << 20))
            assert log.group.highest(sender) == 1
            assert await log.all_ids() == [(sender, 1)]
            assert kept(disk.path) == 0
            await refused(log, 2)
    async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
        assert set(check_families(log.rocks, log.group.ordinal)) == {(sender, 1)}
        assert await log.put(sender, 2, data=b"other bytes") is Status.STORED
        await log.spool.check()


async def test_a_log_that_is_opened_anew_after_a_write_had_no_room_deletes_in_the_room_of_the_reserve(
    disk: SmallDisk,
) -> None:
    stopwatch = Stopwatch()
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(opened(disk.path, reserve=DiskReserve(disk.path, SIZE, LEAST, stopwatch)))
        sender = log.senders[0]
        await log.put(sender, 1)
        stopwatch.runs = False
        with disk.filled(leaving=0):
            with pytest.raises(DiskFull):
                await log.put(sender, 2, data=bytes(1 << 20))
            assert log.spool.must_reopen.is_set(), "the process opens it anew"
            await stack.aclose()
            log = await stack.enter_async_context(opened(disk.path, reserve=reserve_of(disk.path)))
            assert (await log.delete(1, {sender: 1})).floors == [LogFloor(sender, 1, 1)]
            assert await log.all_ids() == []
            await refused(log, 2)


async def test_a_node_starts_on_a_full_disk_and_gives_its_reserve_up_for_that(disk: SmallDisk) -> None:
    async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
        sender = log.senders[0]
        await log.put(sender, 1)
        assert kept(disk.path) >= SIZE
    with disk.filled(leaving=0):
        async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
            assert await log.all_ids() == [(sender, 1)]
            await log.delete(1, {sender: 1})
            assert kept(disk.path) == 0
            await refused(log, 2)
    async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
        assert await log.put(sender, 2) is Status.STORED


# The reserve.


async def test_the_reserve_is_given_up_when_little_is_left_and_taken_again_with_the_next_append(
    disk: SmallDisk,
) -> None:
    async with opened(disk.path, reserve=reserve_of(disk.path)) as log:
        await log.put(log.senders[0], 1)
        assert kept(disk.path) >= SIZE
        with disk.filled(leaving=LEAST // 2):
            assert kept(disk.path) >= SIZE, "it is given up when an append needs it"
            await refused(log, 2)
            assert kept(disk.path) == 0
        await log.put(log.senders[0], 2)
        assert kept(disk.path) >= SIZE


def test_room_for_the_reserve_alone_is_not_enough_to_take_it_again(disk: SmallDisk) -> None:
    reserve = reserve_of(disk.path)
    with disk.filled(leaving=SIZE + LEAST // 2):
        with pytest.raises(DiskFull):
            reserve.check()
        assert kept(disk.path) == 0


def test_a_full_disk_is_shown_with_what_is_left_until_it_has_room(disk: SmallDisk) -> None:
    reserve = reserve_of(disk.path)
    reserve.check()
    assert reserve.shown() is None
    with disk.filled(leaving=LEAST // 2):
        with pytest.raises(DiskFull):
            reserve.check()
        shown = reserve.shown()
        assert shown is not None
        assert shown.endswith(" MiB")
    assert reserve.shown() is None


def test_the_reserve_is_256_mebibytes_and_less_on_a_small_disk(tmp_path: Path, disk: SmallDisk) -> None:
    assert RESERVE == 256 << 20
    reserve = DiskReserve(disk.path)
    reserve.check()
    assert 0 < kept(disk.path) <= MEGABYTES << 20 >> 4


def test_a_node_without_groups_takes_no_reserve(tmp_path: Path) -> None:
    assert reserve_of(tmp_path).shown() is None
    assert kept(tmp_path) == 0


@pytest.mark.parametrize("left", [0, 1, SIZE // 2], ids=["empty", "a byte", "half"])
def test_a_reserve_that_a_crash_left_without_its_bytes_is_made_anew(tmp_path: Path, left: int) -> None:
    (tmp_path / "reserve").write_bytes(bytes(left))
    reserve_of(tmp_path).check()
    assert kept(tmp_path) >= SIZE


def test_a_reserve_of_zeros_that_takes_no_room_is_made_anew(tmp_path: Path) -> None:
    with (tmp_path / "reserve").open("wb") as file:
        file.truncate(SIZE)
    reserve_of(tmp_path).check()
    assert kept(tmp_path) >= SIZE


@pytest.mark.parametrize("written", [0, SIZE // 2], ids=["at once", "halfway"])
def test_a_reserve_that_cannot_be_allocated_leaves_no_file_and_refuses_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    allocate = os.posix_fallocate

    def fail(descriptor: int, offset: int, length: int) -> None:
        if written:
            allocate(descriptor, offset, written)
        raise OSError(errno.ENOSPC, "No space left on device")

    reserve = reserve_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", fail)
        for _ in range(2):
            with pytest.raises(DiskFull):
                reserve.check()
            assert not (tmp_path / "reserve").exists()
    reserve.check()
    assert kept(tmp_path) >= SIZE


def test_the_room_is_measured_at_most_twice_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[float] = []
    statvfs = os.statvfs
    stopwatch = Stopwatch()
    stopwatch.runs = False

    def counted(path: Path) -> os.statvfs_result:
        measured.append(stopwatch.now)
        return statvfs(path)

    reserve = DiskReserve(tmp_path, SIZE, LEAST, stopwatch)
    reserve.check()
    monkeypatch.setattr(os, "statvfs", counted)
    for _ in range(100):
        reserve.check()
        stopwatch.now += 0.01
    assert len(measured) <= 2


async def test_a_write_that_says_the_disk_is_full_gives_the_reserve_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(rocks: Rocks, batch: RocksBatch) -> None:
        raise DiskFull("the disk of this test is full", retry_after=5)

    async with opened(tmp_path, reserve=reserve_of(tmp_path)) as log:
        await log.put(log.senders[0], 1)
        assert kept(tmp_path) >= SIZE
        with monkeypatch.context() as patched:
            patched.setattr(Rocks, "write", write)
            await refused(log, 2)
        assert kept(tmp_path) == 0
