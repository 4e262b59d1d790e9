"""Deletion before a watermark: what goes, what stays, what it costs, and what a crash in its middle leaves."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path

import pytest

from angelia.errors import GroupDropped, NoMessage
from angelia.grouplog import deleting, store
from angelia.grouplog.deleting import Deletion
from angelia.grouplog.group_changes import Drop
from angelia.grouplog.model.frames import Backfill, Hello, Status
from angelia.grouplog.model.groups import LogFloor
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.store import PendingDeletion
from angelia.grouplog.subscriptions import Begin, LogSubscriber
from angelia.stores.rocks import Rocks, RocksBatch, RocksIterator
from grouplog.open_logs import Id, Log, check_families, full, opened, rows_of

LEVELS = {3: 2, 4: 2, 7: 1, 9: 3, 12: 1, 15: 2}  # of the messages 1 to 16; the others have level 0


class WatchedRocks(Rocks):
    """The database of a log. Remembers from which families it was read, and keeps an image of the files after each
    write that is not part of a commit: what a node that dies there leaves on its disk."""

    def __init__(self, rocks: Rocks, directory: Path) -> None:
        self._rocks = rocks
        self._handles = rocks._handles
        self._directory = directory
        self.reads: list[str] = []
        self.images: list[Path] = []

    def get(self, family: str, key: bytes) -> bytes | None:
        self.reads.append(family)
        return self._rocks.get(family, key)

    def iterator(self, family: str, first: bytes, end: bytes) -> RocksIterator:
        self.reads.append(family)
        return self._rocks.iterator(family, first, end)

    def write(self, batch: RocksBatch) -> None:
        self._rocks.write(batch)
        image = self._directory.with_name(f"image-{len(self.images)}")
        shutil.copytree(self._directory, image)
        (image / "log" / "LOCK").unlink()
        self.images.append(image)


class WatchedDeletion(Deletion):
    """A deletion that works on a watched database."""

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        super().stage(self.watched, batch)

    watched: WatchedRocks


@pytest.fixture
async def mixed(log: Log) -> Log:
    """A log with 16 messages of two senders each, of several levels."""
    for sender in log.senders[:2]:
        await log.append(*((sender, seq, full(seq, LEVELS.get(seq, 0))) for seq in range(1, 17)))
    return log


def left(log: Log, sender: int = 0) -> list[int]:
    return sorted(seq for owner, seq in check_families(log.rocks, log.group.ordinal) if owner == log.senders[sender])


def floors(log: Log) -> set[LogFloor]:
    found = set(store.floors(log.rocks, log.group.ordinal))
    assert found == set(log.group.floors())
    return found


# What goes and what stays.


async def test_what_is_below_the_level_and_the_watermark_goes_and_nothing_else(mixed: Log) -> None:
    await mixed.delete(2, {mixed.senders[0]: 12})
    assert left(mixed) == [3, 4, 9, 13, 14, 15, 16]
    await mixed.delete(3, {mixed.senders[0]: 10})
    assert left(mixed) == [9, 13, 14, 15, 16]


async def test_a_sender_that_the_watermark_does_not_name_is_untouched(mixed: Log) -> None:
    await mixed.delete(5, {mixed.senders[0]: 16})
    assert (left(mixed, 0), left(mixed, 1)) == ([], list(range(1, 17)))
    assert {floor.sender for floor in floors(mixed)} == {mixed.senders[0]}


async def test_another_group_with_the_same_senders_is_untouched(tmp_path: Path) -> None:
    async with opened(tmp_path, id=b"a" * 32) as log:
        sender, other = log.senders[0], log.group.ordinal
        await log.append((sender, 1, full(1)), (sender, 2, full(2, level=1)))
    async with opened(tmp_path, id=b"b" * 32) as log:
        # Only an import stores messages of a sender that is no member here.
        await log.append((sender, 1, full(1)), (sender, 2, full(2, level=1)), (log.founder, 1, full(1)))
        await log.delete(9, {sender: 2, log.founder: 1})
        assert len(rows_of(log.rocks, other)) == 2
        assert set(rows_of(log.rocks, log.group.ordinal)) == {(sender, 1), (sender, 2)}


async def test_the_messages_next_to_a_range_stay_up_to_the_largest_seq(log: Log) -> None:
    sender = log.senders[0]
    await log.append(*((sender, seq, full(seq)) for seq in (1, 2, 3, MAX_SEQ - 1, MAX_SEQ)))
    await log.delete(1, {sender: 2})
    assert left(log) == [3, MAX_SEQ - 1, MAX_SEQ]
    await log.delete(1, {sender: MAX_SEQ})
    assert left(log) == []


async def test_snapshots_that_an_earlier_deletion_kept_go_with_a_higher_level(mixed: Log) -> None:
    await mixed.delete(1, {mixed.senders[0]: 16})
    assert left(mixed) == [3, 4, 7, 9, 12, 15]
    deleted = await mixed.delete(3, {mixed.senders[0]: 8})
    assert left(mixed) == [9, 12, 15]
    assert (deleted.ranges, deleted.points) == (0, 3)  # no range: of level 0 nothing was left there


async def test_a_floor_above_all_that_the_node_has_supersedes_what_comes_late(log: Log) -> None:
    sender = log.senders[0]
    await log.put(sender, 1)
    await log.delete(2, {sender: 500_000})
    assert await log.put(sender, 500_000, level=1) is Status.SUPERSEDED
    assert await log.put(sender, 500_001) is Status.STORED
    assert left(log) == [500_001]


async def test_a_deleted_message_is_not_read_any_more(mixed: Log) -> None:
    await mixed.delete(1, {mixed.senders[0]: 16})
    with pytest.raises(NoMessage):
        await mixed.service.message(mixed.group, mixed.senders[0], 1)
    messages, holes, _ = await mixed.page(Backfill(Hello({}, {}, exclude=mixed.senders[1])))
    assert ([message.seq for message in messages], holes) == ([3, 4, 7, 9, 12, 15], [])


async def test_a_watermark_of_0_does_nothing(mixed: Log) -> None:
    deleted = await mixed.delete(5, {mixed.senders[0]: 0})
    assert (deleted.floors, deleted.ranges, deleted.points) == ([], 0, 0)
    assert floors(mixed) == set()


async def test_a_dropped_group_has_nothing_to_delete(log: Log) -> None:
    sender = log.senders[0]
    await log.spool.run(Drop(log.spool.groups, log.group, sender, log.spool.subscriptions))
    with pytest.raises(GroupDropped):
        await log.delete(1, {sender: 1})


async def test_a_damaged_record_is_forgotten_with_its_message_and_one_that_stays_is_not(mixed: Log) -> None:
    sender = mixed.senders[0]
    for seq in (2, 3, 13):
        mixed.damage(sender, seq)
        mixed.group.note_corrupt(sender, seq)
    await mixed.delete(2, {sender: 12})
    assert [corrupt.seq for corrupt in (await mixed.service.storage(mixed.group)).corrupt] == [3, 13]


# What is told.


async def test_the_answer_has_the_new_floors_and_a_range_for_each_stretch_between_snapshots(mixed: Log) -> None:
    first, second = sorted(mixed.senders[:2])
    deleted = await mixed.delete(2, {first: 10, second: 2})
    assert sorted(deleted.floors) == [LogFloor(first, 2, 10), LogFloor(second, 2, 2)]
    assert deleted.ranges == 3 + 1  # 1 to 2, 5 to 8, 10; and 1 to 2
    assert deleted.points == 1  # the snapshot 7 of level 1


async def test_subscribers_are_told_each_new_floor_once(mixed: Log) -> None:
    subscriber = LogSubscriber(mixed.group, mixed.members[2], Hello({}, {}))
    await mixed.spool.run(Begin(mixed.spool.subscriptions, subscriber))
    sender = mixed.senders[0]
    await mixed.delete(2, {sender: 10})
    await mixed.delete(2, {sender: 10})
    await mixed.delete(1, {sender: 9})
    await mixed.delete(1, {sender: 12})
    assert list(subscriber.queue) == [LogFloor(sender, 2, 10), LogFloor(sender, 1, 12)]
    subscriber.iterator = None


# Floors.


async def test_a_floor_that_a_higher_one_covers_is_removed_and_one_that_reaches_further_stays(log: Log) -> None:
    sender = log.senders[0]
    await log.delete(1, {sender: 20})
    await log.delete(2, {sender: 10})
    assert floors(log) == {LogFloor(sender, 1, 20), LogFloor(sender, 2, 10)}
    await log.delete(3, {sender: 10})
    assert floors(log) == {LogFloor(sender, 1, 20), LogFloor(sender, 3, 10)}
    await log.delete(4, {sender: 30})
    assert floors(log) == {LogFloor(sender, 4, 30)}


async def test_the_same_deletion_again_changes_and_tells_nothing(mixed: Log) -> None:
    sender = mixed.senders[0]
    await mixed.delete(2, {sender: 12})
    before = mixed.rows(), floors(mixed)
    for level, seq in ((2, 12), (2, 5), (1, 12), (1, 1)):
        deleted = await mixed.delete(level, {sender: seq})
        assert (deleted.floors, deleted.ranges, deleted.points) == ([], 0, 0)
    assert (mixed.rows(), floors(mixed)) == before


async def test_deletions_in_any_order_leave_the_same(tmp_path: Path) -> None:
    found: list[tuple[dict[Id, bytes], set[tuple[int, int]]]] = []
    for number, order in enumerate(permutations([(1, 16), (2, 9), (3, 12), (2, 14)])):
        async with opened(tmp_path, id=bytes((number,)) * 32, members=1) as log:
            sender = log.senders[0]
            await log.append(*((sender, seq, full(seq, LEVELS.get(seq, 0))) for seq in range(1, 17)))
            for level, seq in order:
                await log.delete(level, {sender: seq})
            rows = {(b"", seq): record for (_, seq), record in check_families(log.rocks, log.group.ordinal).items()}
            found.append((rows, {(floor.level, floor.seq) for floor in floors(log)}))
    assert all(one == found[0] for one in found)
    assert found[0][1] == {(1, 16), (2, 14), (3, 12)}


# What it costs.


async def test_a_deletion_reads_no_message(mixed: Log, tmp_path: Path) -> None:
    work = WatchedDeletion(mixed.group, 2, dict.fromkeys(mixed.senders[:2], 12), mixed.spool.subscriptions)
    work.watched = WatchedRocks(mixed.rocks, tmp_path)
    await mixed.spool.run(work)
    assert left(mixed) == [3, 4, 9, 13, 14, 15, 16]
    assert set(work.watched.reads) <= {store.HI, store.GROUPS}
    assert work.watched.reads.count(store.HI) == 1  # one iterator for all senders


async def test_the_operations_of_a_deletion_do_not_depend_on_how_many_updates_it_removes(log: Log) -> None:
    sizes = []
    for sender, rows in zip(log.senders[:2], (20, 2_000), strict=True):
        await log.append(*((sender, seq, full(seq, int(seq == 7))) for seq in range(1, rows + 1)))
        batch = log.rocks.batch()
        Deletion(log.group, 1, {sender: rows}, log.spool.subscriptions).stage(log.rocks, batch)
        sizes.append(batch.operations)
    assert sizes[0] == sizes[1]


async def test_nothing_is_deleted_before_the_one_batch_is_written(mixed: Log) -> None:
    batch, before = mixed.rocks.batch(), mixed.rows()
    work = Deletion(mixed.group, 2, dict.fromkeys(mixed.senders[:2], 16), mixed.spool.subscriptions)
    work.stage(mixed.rocks, batch)
    assert (mixed.rows(), floors(mixed)) == (before, set())
    mixed.rocks.write(batch)
    work.finish()
    assert (left(mixed, 0), left(mixed, 1)) == ([3, 4, 9, 15], [3, 4, 9, 15])


# Deletions of several batches.


async def large(log: Log, each: int) -> dict[bytes, int]:
    """Stores so many snapshots of level 1 of each sender. Returns a watermark over all of them."""
    batch = log.rocks.batch()
    for sender in log.senders:
        for seq in range(1, each + 1):
            store.put_message(batch, log.group.ordinal, sender, seq, 1, full(seq, 1, b""))
    log.rocks.write(batch)
    log.group.reload()
    return dict.fromkeys(log.senders, each)


async def test_a_deletion_over_50000_operations_is_one_batch_a_sender_and_resumes_after_a_crash_between_them(
    tmp_path: Path,
) -> None:
    place = tmp_path / "log"
    place.mkdir()
    async with opened(place) as log:
        watermark = await large(log, 9_000)  # two operations each
        work = WatchedDeletion(log.group, 2, watermark, log.spool.subscriptions)
        work.watched = WatchedRocks(log.rocks, place)
        deleted = await log.spool.run(work)
        assert (len(deleted.floors), left(log), store.pending_deletion(log.rocks, log.group.id)) == (3, [], None)
        ordinal, expected = log.group.ordinal, floors(log)
    assert len(work.watched.images) == 2  # the last one is the commit's own
    for number, image in enumerate(work.watched.images, 1):
        rocks = Rocks(image / "log", store.FAMILIES)
        done = {floor.sender for floor in store.floors(rocks, ordinal)}
        assert done == set(sorted(watermark)[:number])  # in the order of senders, each whole
        assert {sender for sender, _ in check_families(rocks, ordinal)} == set(watermark) - done
        rocks.close()
        async with opened(image) as log:
            assert (check_families(log.rocks, ordinal), floors(log)) == ({}, expected)
            assert store.pending_deletion(log.rocks, log.group.id) is None


async def test_a_deletion_of_50000_operations_is_one_batch(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        watermark = await large(log, 8_000)
        work = WatchedDeletion(log.group, 2, watermark, log.spool.subscriptions)
        work.watched = WatchedRocks(log.rocks, tmp_path)
        await log.spool.run(work)
        assert (work.watched.images, left(log)) == ([], [])


async def test_a_pending_deletion_is_done_when_the_node_starts(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        sender, other = log.senders[:2]
        for owner in (sender, other):
            await log.append(*((owner, seq, full(seq, LEVELS.get(seq, 0))) for seq in range(1, 17)))
        await log.delete(2, {sender: 12})  # its batch was written, that of the other was not
        batch = log.rocks.batch()
        store.put_pending_deletion(batch, log.group.id, PendingDeletion(2, {sender.hex(): 12, other.hex(): 12}))
        log.rocks.write(batch)
    async with opened(tmp_path) as log:
        assert left(log, 0) == left(log, 1) == [3, 4, 9, 13, 14, 15, 16]
        assert floors(log) == {LogFloor(sender, 2, 12), LogFloor(other, 2, 12)}
        assert store.pending_deletion(log.rocks, log.group.id) is None
        assert log.group in log.spool.uncounted


async def test_a_large_deletion_announces_all_its_floors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "MOST_OPERATIONS", 10)
    async with opened(tmp_path) as log:
        watermark = await large(log, 20)
        subscriber = LogSubscriber(log.group, log.members[0], Hello({}, {}))
        await log.spool.run(Begin(log.spool.subscriptions, subscriber))
        deleted = await log.delete(2, watermark)
        expected = [LogFloor(sender, 2, 20) for sender in sorted(watermark)]
        assert (deleted.floors, list(subscriber.queue), left(log)) == (expected, expected, [])
        assert deleted.points == 60
        subscriber.iterator = None
