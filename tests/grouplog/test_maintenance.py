"""Background work of a node: a deletion reads nothing, so what a group takes is counted after it; deleted space comes
back; and groups that are not used leave the memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from angelia.api import clock
from angelia.errors import GroupDropped
from angelia.grouplog import live_groups, maintenance, store
from angelia.grouplog.deleting import Deletion
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.maintenance import Scrub, SpoolMaintenance
from angelia.grouplog.model.frames import Hello, Status
from angelia.grouplog.model.groups import GroupConfig, LogFloor
from angelia.grouplog.subscriptions import LogSubscriber
from angelia.stores.rocks import Rocks
from grouplog.open_logs import Log, creation, full, opened
from grouplog.test_machine import copy_at_rest


@asynccontextmanager
async def working(log: Log) -> AsyncIterator[SpoolMaintenance]:
    """The background work of the node, as it runs in a process."""
    work = SpoolMaintenance(log.spool)
    task = asyncio.create_task(work.run())
    try:
        yield work
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(log: Log, holds: Callable[[], bool]) -> None:
    """Returns when it holds; asked in a thread that reads, so that the node goes on meanwhile."""
    async with asyncio.timeout(10):
        while not await log.spool.read(holds):
            pass


def is_counted(log: Log) -> bool:
    return not store.must_be_counted(log.rocks, log.group.id)


async def delete(log: Log, work: SpoolMaintenance, level: int, up_to: int) -> None:
    """Deletes of the first sender, and tells the background work of it as the service does."""
    deleted = await log.delete(level, {log.senders[0]: up_to})
    if deleted.floors:
        work.after_deletion(log.group, deleted.ranges)


async def with_messages(log: Log, count: int = 10, size: int = 1_000) -> None:
    """Stores messages of the first sender; each third is a snapshot of level 1."""
    sender = log.senders[0]
    await log.append(*((sender, seq, full(seq, int(seq % 3 == 0), bytes(size))) for seq in range(1, count + 1)))


def check_bytes(log: Log) -> None:
    assert log.group.stored_bytes == store.stored_bytes(log.rocks, log.group.id) == log.true_bytes()


# The count.


async def test_after_a_deletion_the_bytes_of_the_group_are_counted_again(log: Log) -> None:
    await with_messages(log)
    async with working(log) as work:
        await delete(log, work, 1, 7)
        assert not is_counted(log)
        await until(log, lambda: is_counted(log))
        check_bytes(log)
        await delete(log, work, 2, 9)
        await until(log, lambda: is_counted(log))
        check_bytes(log)
    assert len(log.rows()) == 1


async def test_the_count_of_a_group_says_nothing_of_its_neighbours(tmp_path: Path) -> None:
    for id_ in (b"a" * 32, b"c" * 32):
        async with opened(tmp_path, id=id_) as log:
            await with_messages(log, size=500)
    async with opened(tmp_path, id=b"b" * 32) as log:
        await with_messages(log)
        async with working(log) as work:
            await delete(log, work, 1, 5)
            await until(log, lambda: is_counted(log))
        check_bytes(log)


async def test_a_count_that_a_crash_came_before_is_made_after_the_restart(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    async with opened(before) as log:
        await with_messages(log)
        await log.delete(1, {log.senders[0]: 7})
        copy_at_rest(before, after)
    (after / "log" / "LOCK").unlink()
    async with opened(after) as log:
        assert log.group.stored_bytes > log.true_bytes()
        async with working(log):
            await until(log, lambda: is_counted(log))
        check_bytes(log)
    async with opened(after) as log:
        assert log.spool.uncounted == []
        check_bytes(log)


async def test_a_crash_after_the_count_leaves_nothing_to_count(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    async with opened(before) as log:
        await with_messages(log)
        await log.delete(1, {log.senders[0]: 7})
        await SpoolMaintenance(log.spool).settle(log.group)
        copy_at_rest(before, after)
    (after / "log" / "LOCK").unlink()
    async with opened(after) as log:
        assert log.spool.uncounted == []
        check_bytes(log)


class PausedCount:
    """Lets a count wait between the moment that it is of and its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()
        self._count = maintenance._counted
        monkeypatch.setattr(maintenance, "_counted", self)

    def __call__(self, *arguments: Any) -> int:
        self.began.set()
        assert self.let_go.wait(30)
        return self._count(*arguments)


async def test_what_is_stored_during_a_count_is_in_its_result(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_messages(log)
    await log.delete(1, {log.senders[0]: 7})
    count = PausedCount(monkeypatch)
    settling = asyncio.create_task(SpoolMaintenance(log.spool).settle(log.group))
    await asyncio.to_thread(count.began.wait, 30)
    await log.put(log.senders[0], 20, data=bytes(3_000))
    count.let_go.set()
    await settling
    assert is_counted(log)
    check_bytes(log)


async def test_a_deletion_during_a_count_is_counted_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_messages(log)
    count = PausedCount(monkeypatch)
    async with working(log) as work:
        await delete(log, work, 1, 4)
        await asyncio.to_thread(count.began.wait, 30)
        await delete(log, work, 1, 8)
        count.let_go.set()
        await until(log, lambda: is_counted(log))
        check_bytes(log)


async def test_a_deletion_during_a_count_is_still_to_be_counted_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    async with opened(before) as log:
        await with_messages(log)
        await log.delete(1, {log.senders[0]: 4})
        count = PausedCount(monkeypatch)
        settling = asyncio.create_task(SpoolMaintenance(log.spool).settle(log.group))
        await asyncio.to_thread(count.began.wait, 30)
        await log.delete(1, {log.senders[0]: 8})
        count.let_go.set()
        await settling
        copy_at_rest(before, after)
    (after / "log" / "LOCK").unlink()
    async with opened(after) as log:
        assert log.group in log.spool.uncounted


async def test_a_deletion_that_does_nothing_starts_no_count(log: Log) -> None:
    await with_messages(log)
    work = SpoolMaintenance(log.spool)
    await delete(log, work, 1, 7)
    await work.settle(log.group)
    for level, up_to in ((1, 7), (1, 3), (1, 0)):
        await delete(log, work, level, up_to)
        assert is_counted(log)


async def test_a_group_that_is_dropped_before_its_count_does_not_stop_those_of_others(tmp_path: Path) -> None:
    async with opened(tmp_path, id=b"a" * 32) as log:
        await with_messages(log)
        await log.delete(1, {log.senders[0]: 5})
    async with opened(tmp_path) as log:
        await with_messages(log)
        dropped = await log.spool.groups.live(b"a" * 32)
        work = SpoolMaintenance(log.spool)
        work.after_deletion(dropped, 1)
        await log.service.drop(dropped, dropped.row.roster.members[0])
        with pytest.raises(GroupDropped):
            await work.settle(dropped)
        await delete(log, work, 1, 5)
        task = asyncio.create_task(work.run())
        await until(log, lambda: is_counted(log))
        task.cancel()
        check_bytes(log)


async def test_a_quota_is_free_again_once_the_count_is_made(tmp_path: Path) -> None:
    quota = 1 << 20
    async with opened(tmp_path, config=GroupConfig(min_copies=1, quota_bytes=quota)) as log:
        async with working(log) as work:
            for turn in range(5):  # twice the quota, over all of them
                await log.put(log.senders[0], turn + 1, data=bytes(quota * 4 // 5))
                await delete(log, work, 1, turn + 1)
                await until(log, lambda: is_counted(log))
        check_bytes(log)


# Space.


def table_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "log").glob("*.sst"))


@pytest.fixture
def compacted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The families that were compacted."""
    found: list[str] = []
    compact = Rocks.compact

    def noted(rocks: Rocks, family: str, first: bytes, end: bytes) -> None:
        compact(rocks, family, first, end)
        found.append(family)

    monkeypatch.setattr(Rocks, "compact", noted)
    return found


async def test_the_space_of_a_dropped_group_comes_back_and_its_neighbour_keeps_everything(
    tmp_path: Path, compacted: list[str]
) -> None:
    async with opened(tmp_path, id=b"a" * 32) as log:
        await with_messages(log, count=40, size=100_000)
        log.rocks.flush(store.MSG)
    async with opened(tmp_path) as log:
        await with_messages(log)
        dropped = await log.spool.groups.live(b"a" * 32)
        before = table_bytes(tmp_path)
        assert before > 4_000_000
        async with working(log) as work:
            service = type(log.service)(log.spool, work, log.node.public, log.node.sign, log.service._rate)
            await service.drop(dropped, dropped.row.roster.members[0])
            await until(log, lambda: compacted == [store.MSG, store.HI])
        assert table_bytes(tmp_path) < before // 10
        assert len(log.rows()) == 10


async def test_a_large_deletion_gives_its_space_back(
    tmp_path: Path, compacted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "COMPACT_BYTES", 1 << 20)
    async with opened(tmp_path) as log:
        await with_messages(log, count=40, size=100_000)
        log.rocks.flush(store.MSG)
        before, kept = table_bytes(tmp_path), {id_ for id_, record in log.rows().items() if record[2]}
        async with working(log) as work:
            await delete(log, work, 1, 40)
            await until(log, lambda: compacted == [store.MSG, store.HI])
        assert table_bytes(tmp_path) < before // 2
        assert set(log.rows()) == kept


async def test_a_small_deletion_compacts_nothing(log: Log, compacted: list[str]) -> None:
    await with_messages(log, count=40, size=1_000)
    work = SpoolMaintenance(log.spool)
    await delete(log, work, 1, 40)
    await work.settle(log.group)
    assert compacted == []


async def test_a_node_that_stops_during_a_compaction_closes_its_database_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    began, let_go, ended = threading.Event(), threading.Event(), threading.Event()
    close = Rocks.close

    def compact(rocks: Rocks, family: str, first: bytes, end: bytes) -> None:
        began.set()
        assert let_go.wait(30)
        events.append("compacted")
        ended.set()

    def noted(rocks: Rocks) -> None:
        events.append("closed")
        close(rocks)

    async def run() -> None:
        async with opened(tmp_path) as log, working(log) as work:
            work.after_drop(log.group)
            await asyncio.to_thread(began.wait, 30)

    monkeypatch.setattr(Rocks, "compact", compact)
    monkeypatch.setattr(Rocks, "close", noted)
    node = asyncio.create_task(run())
    await asyncio.wait([node], timeout=0.3)  # it has closed the database by then, or waits for the compaction
    let_go.set()
    await node
    await asyncio.to_thread(ended.wait, 30)
    assert events == ["compacted", "closed"]


# Groups in memory.


@pytest.fixture
def two_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_groups, "MOST_KEPT", 2)


IDS = [bytes((number,)) * 32 for number in range(1, 7)]


async def with_groups(log: Log) -> list[bytes]:
    """Makes six more groups with the same members."""
    for id_ in IDS:
        await log.spool.run(creation(log.spool, log.keys, (log.node,), GroupConfig(min_copies=1), id_))
    return IDS


async def use_others(log: Log) -> None:
    for id_ in IDS[2:]:
        await log.spool.groups.live(id_)
    gc.collect()


async def test_a_group_that_is_used_stays_one_object_however_many_others_are_used(log: Log, two_kept: None) -> None:
    first, *_ = await with_groups(log)
    held = await log.spool.groups.live(first)
    await use_others(log)
    assert await log.spool.groups.live(first) is held


async def test_requests_for_a_group_at_the_same_time_get_one_object(log: Log, two_kept: None) -> None:
    first, *_ = await with_groups(log)
    await use_others(log)
    found = await asyncio.gather(*(log.spool.groups.live(first) for _ in range(20)))
    assert len({id(group) for group in found}) == 1


async def test_a_group_that_is_not_used_leaves_the_memory_and_comes_back_as_it_was(log: Log, two_kept: None) -> None:
    first, *_ = await with_groups(log)
    group = await log.spool.groups.live(first)
    sender = group.row.roster.members[0].sender
    await log.spool.run(Deletion(group, 2, {sender: 5}, log.spool.subscriptions))
    row, gone = group.row, weakref.ref(group)
    del group
    await use_others(log)
    assert gone() is None
    again = await log.spool.groups.live(first)
    assert again.row == row
    assert again.floors() == [LogFloor(sender, 2, 5)]
    assert again.highest(sender) == 0
    assert await put_into(log, again, sender, 5) is Status.SUPERSEDED
    assert await put_into(log, again, sender, 6) is Status.STORED


async def put_into(log: Log, group: LiveGroup, sender: bytes, seq: int) -> Status:
    there = Log(log.spool, group, log.service, log.node, log.keys, sender)
    return await there.put(sender, seq)


async def test_a_group_with_a_subscriber_is_not_replaced_and_its_floors_are_told(log: Log, two_kept: None) -> None:
    first, *_ = await with_groups(log)
    group = await log.spool.groups.live(first)
    member = group.row.roster.members[0]
    stream = await log.service.subscribe(group, member, Hello({}, {}))
    del group
    await use_others(log)
    again = await log.spool.groups.live(first)
    await log.spool.run(Deletion(again, 1, {member.sender: 3}, log.spool.subscriptions))
    (subscriber,) = log.spool.subscriptions.of(first)
    assert isinstance(subscriber, LogSubscriber)
    assert subscriber.group is again
    assert list(subscriber.queue) == [LogFloor(member.sender, 1, 3)]
    await stream.aclose()


async def test_damage_that_the_scrub_found_is_listed_also_after_the_group_left_the_memory(
    log: Log, two_kept: None
) -> None:
    first, *_ = await with_groups(log)
    group = await log.spool.groups.live(first)
    sender = group.row.roster.members[0].sender
    await put_into(log, group, sender, 1)
    Log(log.spool, group, log.service, log.node, log.keys, sender).damage(sender, 1)
    del group
    await use_others(log)
    await Scrub(log.spool, clock).one_pass(1 << 40)
    await use_others(log)
    (corrupt,) = (await log.service.storage(await log.spool.groups.live(first))).corrupt
    assert (corrupt.sender, corrupt.seq) == (sender.hex(), 1)
