"""Appends: the order of the checks, what is stored once, what is refused, and how requests share a sync."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from angelia.errors import (
    AngeliaError,
    BadLevel,
    GroupDropped,
    InvalidArgument,
    MessageConflict,
    NoMessage,
    Quota,
    SenderMismatch,
    TooLarge,
)
from angelia.grouplog import store
from angelia.grouplog.appending import Append, Incoming
from angelia.grouplog.group_changes import Drop
from angelia.grouplog.maintenance import SpoolMaintenance
from angelia.grouplog.model.frames import Hello, LogMessage, Status
from angelia.grouplog.model.groups import GroupConfig
from angelia.grouplog.model.records import Kind
from angelia.grouplog.subscriptions import Begin, LogSubscriber
from angelia.http.answers import STATUS
from angelia.stores.rocks import Rocks, RocksBatch, RocksIterator
from grouplog.open_logs import Log, check_families, full, opened

QUOTA = 1 << 20  # the smallest that a group may have
MOST = 256  # messages of one commit


class Gate:
    """A work that keeps the commit section busy until it is let go."""

    alone, messages, size = True, 0, 0

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        assert self.let_go.wait(30)

    def finish(self) -> None:
        return None

    def undo(self) -> None:
        return None


class WatchedAppend(Append):
    """Remembers the batch that it was written with."""

    batch: RocksBatch

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        super().stage(rocks, batch)
        self.batch = batch


class WatchedRocks(Rocks):
    """The database of a log. Remembers from which families it was read."""

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self.reads: list[str] = []

    def get(self, family: str, key: bytes) -> bytes | None:
        self.reads.append(family)
        return self._rocks.get(family, key)

    def iterator(self, family: str, first: bytes, end: bytes) -> RocksIterator:
        self.reads.append(family)
        return self._rocks.iterator(family, first, end)


def of_seq(log: Log, seq: int, data: bytes = b"data") -> Incoming:
    return Incoming(log.senders[0], seq, full(seq, data=data), 0, Kind.FULL)


def watched(log: Log, *messages: Incoming) -> WatchedAppend:
    return WatchedAppend(log.group, log.senders[0], messages, log.spool.subscriptions)


async def together(log: Log, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Sends requests so that all of them wait while another commit is under way. Returns results and errors."""
    gate = Gate()
    held = asyncio.create_task(log.spool.commits.run(gate))
    sent = [asyncio.create_task(request) for request in requests]
    await asyncio.sleep(0)  # each has reached the queue
    gate.let_go.set()
    await held
    return await asyncio.gather(*sent, return_exceptions=True)


def own(log: Log, seq: int, level: int = 0, data: bytes | None = None) -> LogMessage:
    return LogMessage(log.senders[0], seq, full(seq, level, data))


async def send(log: Log, *messages: LogMessage) -> list[Status]:
    """Appends as the first member, as a request does."""
    return [result.status for result in await log.service.append(log.group, log.members[0], messages)]


# The order of the checks.


async def test_whose_message_it_is_is_checked_before_its_size(log: Log) -> None:
    foreign = LogMessage(log.senders[1], 1, full(1, data=bytes((1 << 20) + 1)))
    with pytest.raises(SenderMismatch):
        await send(log, foreign)


async def test_the_size_is_checked_before_the_floor(log: Log) -> None:
    await log.delete(1, {log.senders[0]: 5})
    with pytest.raises(TooLarge):
        await send(log, own(log, 5, data=bytes((1 << 20) + 1)))


async def test_the_floor_is_checked_before_what_is_stored_under_the_id(log: Log) -> None:
    await log.put(log.senders[0], 3, level=2, data=b"the snapshot that stays")
    await log.delete(2, {log.senders[0]: 5})
    assert await send(log, own(log, 3, level=1, data=b"something else")) == [Status.SUPERSEDED]
    assert log.rows() == {(log.senders[0], 3): full(3, 2, b"the snapshot that stays")}


async def test_a_dropped_group_is_named_before_anything_else_of_the_store(log: Log) -> None:
    sender = log.senders[0]
    await log.put(sender, 1)
    await log.spool.run(Drop(log.spool.groups, log.group, sender, log.spool.subscriptions))
    with pytest.raises(GroupDropped):
        await log.put(sender, 1, data=b"it would be a conflict")


# Floors.


async def test_a_message_under_a_floor_is_superseded_and_not_stored(log: Log) -> None:
    await log.delete(2, {log.senders[0]: 5})
    assert await send(log, own(log, 5), own(log, 4, level=1)) == [Status.SUPERSEDED] * 2
    assert log.rows() == {}


async def test_a_message_above_a_floor_or_of_its_level_or_of_another_sender_is_stored(log: Log) -> None:
    await log.delete(2, {log.senders[0]: 5})
    assert await send(log, own(log, 6), own(log, 5, level=2), own(log, 4, level=3)) == [Status.STORED] * 3
    assert await log.put(log.senders[1], 1) is Status.STORED


async def test_a_floor_of_an_earlier_run_still_supersedes(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.delete(1, {log.senders[0]: 5})
    async with opened(tmp_path) as log:
        assert await log.put(log.senders[0], 5) is Status.SUPERSEDED
        assert await log.put(log.senders[0], 6) is Status.STORED


# The same id again.


async def test_the_same_message_again_is_a_duplicate_also_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        assert await log.put(log.senders[0], 7) is Status.STORED
        assert await log.put(log.senders[0], 7) is Status.DUPLICATE
    async with opened(tmp_path) as log:
        assert await log.put(log.senders[0], 7) is Status.DUPLICATE
        assert await log.put(log.senders[0], 3) is Status.STORED  # below the highest, and not there


@pytest.mark.parametrize(("level", "data"), [(0, b"other"), (1, b"first"), (3, b"other")], ids=str)
async def test_other_bytes_or_another_level_under_an_id_are_a_conflict_and_the_first_stays(
    log: Log, level: int, data: bytes
) -> None:
    first, second = full(1, 0, b"first"), full(1, level, data)
    await log.append((log.senders[0], 1, first))
    with pytest.raises(MessageConflict) as caught:
        await log.append((log.senders[0], 1, second))
    assert caught.value.members == {
        "at": 0,
        "stored_digest": hashlib.sha256(first).hexdigest(),
        "sent_digest": hashlib.sha256(second).hexdigest(),
    }
    assert check_families(log.rocks, log.group.ordinal) == {(log.senders[0], 1): first}


async def test_a_message_twice_in_one_request_is_stored_once(log: Log) -> None:
    assert await send(log, own(log, 1), own(log, 1)) == [Status.STORED, Status.DUPLICATE]
    assert len(log.rows()) == 1


async def test_two_messages_of_one_id_in_one_request_are_a_conflict_and_neither_is_stored(log: Log) -> None:
    with pytest.raises(MessageConflict) as caught:
        await send(log, own(log, 1, data=b"one"), own(log, 1, data=b"two"))
    assert caught.value.members["at"] == 1
    assert log.rows() == {}


async def test_of_two_requests_in_one_commit_the_first_has_the_id(log: Log) -> None:
    stored, same, other = await together(
        log,
        log.put(log.senders[0], 1, data=b"one"),
        log.put(log.senders[0], 1, data=b"one"),
        log.put(log.senders[0], 1, data=b"two"),
    )
    assert (stored, same) == (Status.STORED, Status.DUPLICATE)
    assert isinstance(other, MessageConflict)
    assert log.rows() == {(log.senders[0], 1): full(1, data=b"one")}


async def test_what_is_a_duplicate_or_superseded_is_not_published(log: Log) -> None:
    await log.delete(1, {log.senders[0]: 5})
    await log.put(log.senders[0], 6)
    subscriber = LogSubscriber(log.group, log.members[1], Hello({}, {}))
    await log.spool.run(Begin(log.spool.subscriptions, subscriber))
    await send(log, own(log, 5), own(log, 6), own(log, 7))
    assert list(subscriber.queue) == [(log.senders[0], 7)]
    assert log.spool.subscriptions.position(log.group.id) == 2
    subscriber.iterator = None


# A request as a whole.


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (lambda log: own(log, 1, data=b"other"), MessageConflict),
        (lambda log: own(log, 9, data=bytes((1 << 20) + 1)), TooLarge),
        (lambda log: LogMessage(log.senders[0], 9, b"\2\0\x10\0" + bytes(16)), BadLevel),
        (lambda log: LogMessage(log.senders[0], 9, full(9)[:-1]), InvalidArgument),
        (lambda log: LogMessage(log.senders[1], 9, full(9)), SenderMismatch),
    ],
    ids=["conflict", "too large", "level", "damaged", "sender"],
)
async def test_a_request_with_one_refused_message_stores_none_and_says_which(
    log: Log, refused: Any, error: type[AngeliaError]
) -> None:
    await log.put(log.senders[0], 1)
    with pytest.raises(error) as caught:
        await send(log, own(log, 2), own(log, 3, level=1), refused(log), own(log, 4))
    assert caught.value.members["at"] == 2
    assert set(log.rows()) == {(log.senders[0], 1)}


async def test_a_refused_request_takes_nothing_from_others_in_its_commit(log: Log) -> None:
    await log.put(log.senders[0], 1)
    refused, stored = await together(
        log,
        log.append((log.senders[0], 2, full(2)), (log.senders[0], 1, full(1, data=b"other"))),
        log.put(log.senders[0], 3),
    )
    assert isinstance(refused, MessageConflict)
    assert stored is Status.STORED
    assert set(log.rows()) == {(log.senders[0], 1), (log.senders[0], 3)}


# Sizes and levels.


@pytest.mark.parametrize(("level", "most"), [(0, 1 << 20), (1, 16 << 20)], ids=["update", "piece"])
async def test_a_message_has_at_most_the_bytes_of_its_level(log: Log, level: int, most: int) -> None:
    assert await send(log, own(log, 1, level, bytes(most))) == [Status.STORED]
    with pytest.raises(TooLarge):
        await send(log, own(log, 2, level, bytes(most + 1)))


@pytest.mark.parametrize("level", range(16))
async def test_every_level_up_to_15_is_stored_and_read_again(log: Log, level: int) -> None:
    assert await send(log, own(log, 1, level)) == [Status.STORED]
    assert (await log.service.message(log.group, log.senders[0], 1)).record == full(1, level)
    check_families(log.rocks, log.group.ordinal)


@pytest.mark.parametrize("level", [16, 17, 255])
async def test_no_level_over_15_is_stored(log: Log, level: int) -> None:
    record = bytearray(full(1))
    record[2] = level
    with pytest.raises(BadLevel) as caught:
        await send(log, LogMessage(log.senders[0], 1, bytes(record)))
    assert STATUS[caught.value.code] == 422
    with pytest.raises(NoMessage):
        await log.service.message(log.group, log.senders[0], 1)


async def test_a_message_without_data_is_a_message(log: Log) -> None:
    assert await send(log, own(log, 1, data=b"")) == [Status.STORED]
    assert await send(log, own(log, 1, data=b"")) == [Status.DUPLICATE]


async def test_the_largest_seq_is_stored_and_leaves_room_below(log: Log) -> None:
    highest = (1 << 53) - 1
    assert await send(log, own(log, highest), own(log, 1)) == [Status.STORED] * 2
    assert await log.all_ids() == [(log.senders[0], 1), (log.senders[0], highest)]


async def test_a_shard_has_a_route_of_its_own(log: Log) -> None:
    shard = bytes((2, 1, 1, 0)) + hashlib.sha256(b"x").digest()[:16] + bytes((0, 1, 2, 0, 0, 0)) + b"x"
    with pytest.raises(InvalidArgument, match="route"):
        await send(log, LogMessage(log.senders[0], 1, shard))


async def test_a_stored_snapshot_is_answered_with_a_receipt_and_an_update_without(log: Log) -> None:
    results = await log.service.append(log.group, log.members[0], [own(log, 1), own(log, 2, level=1)])
    assert [len(result.receipt) for result in results] == [0, 64]
    again = await log.service.append(log.group, log.members[0], [own(log, 2, level=1)])
    assert again[0].receipt == results[1].receipt


async def test_a_superseded_snapshot_has_no_receipt(log: Log) -> None:
    await log.delete(2, {log.senders[0]: 5})
    (result,) = await log.service.append(log.group, log.members[0], [own(log, 5, level=1)])
    assert (result.status, result.receipt) == (Status.SUPERSEDED, b"")


# The quota.


async def filled(log: Log) -> int:
    """Appends until less than 100 bytes are left of the quota. Returns the next free seq."""
    for seq, size in ((1, QUOTA // 2), (2, QUOTA // 2 - 200)):
        await log.put(log.senders[0], seq, data=bytes(size))
    return 3


async def test_over_its_quota_a_group_takes_snapshots_up_to_a_tenth_more_and_no_updates(tmp_path: Path) -> None:
    async with opened(tmp_path, config=GroupConfig(min_copies=1, quota_bytes=QUOTA)) as log:
        seq = await filled(log)
        with pytest.raises(Quota) as caught:
            await log.put(log.senders[0], seq, data=bytes(200))
        assert STATUS[caught.value.code] == 507
        assert caught.value.retry_after
        assert await log.put(log.senders[0], seq, level=1, data=bytes(QUOTA // 20)) is Status.STORED
        with pytest.raises(Quota):
            await log.put(log.senders[0], seq + 1, level=1, data=bytes(QUOTA // 10))
        assert set(log.rows()) == {(log.senders[0], number) for number in range(1, seq + 1)}


async def test_a_request_with_an_update_has_no_headroom_for_its_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path, config=GroupConfig(min_copies=1, quota_bytes=QUOTA)) as log:
        seq = await filled(log)
        sender = log.senders[0]
        with pytest.raises(Quota):
            await log.append((sender, seq, full(seq, 1, bytes(1_000))), (sender, seq + 1, full(seq + 1)))
        assert len(log.rows()) == 2


async def test_a_full_group_still_answers_duplicates_and_what_is_superseded(tmp_path: Path) -> None:
    async with opened(tmp_path, config=GroupConfig(min_copies=1, quota_bytes=QUOTA)) as log:
        await filled(log)
        await log.delete(1, {log.senders[1]: 9})
        assert await log.put(log.senders[0], 1, data=bytes(QUOTA // 2)) is Status.DUPLICATE
        assert await log.put(log.senders[1], 9, data=bytes(500)) is Status.SUPERSEDED


async def test_a_full_group_deletes_and_then_takes_messages_again(tmp_path: Path) -> None:
    async with opened(tmp_path, config=GroupConfig(min_copies=1, quota_bytes=QUOTA)) as log:
        seq = await filled(log)
        await log.put(log.senders[0], seq, level=1, data=bytes(500))
        await log.delete(1, {log.senders[0]: seq - 1})
        await SpoolMaintenance(log.spool).settle(log.group)
        assert await log.put(log.senders[0], seq + 1, data=bytes(QUOTA // 2)) is Status.STORED


async def test_the_quota_holds_over_a_restart_and_within_one_commit(tmp_path: Path) -> None:
    config = GroupConfig(min_copies=1, quota_bytes=QUOTA)
    async with opened(tmp_path, config=config) as log:
        await log.put(log.senders[0], 1, data=bytes(QUOTA // 2))
    async with opened(tmp_path, config=config) as log:
        outcomes = await together(log, *(log.put(log.senders[0], seq, data=bytes(QUOTA // 5)) for seq in range(2, 6)))
    assert outcomes[:2] == [Status.STORED] * 2
    assert [type(outcome) for outcome in outcomes[2:]] == [Quota] * 2


# Commits.


async def test_requests_that_wait_share_a_commit_of_at_most_256_messages(log: Log) -> None:
    works = [watched(log, of_seq(log, seq)) for seq in range(1, 601)]
    statuses = await together(log, *(log.spool.append(work) for work in works))
    assert statuses == [[Status.STORED]] * 600
    sizes: dict[int, int] = {}
    for work in works:
        sizes[id(work.batch)] = sizes.get(id(work.batch), 0) + 1
    assert list(sizes.values()) == [MOST, MOST, 600 - 2 * MOST]


async def test_a_request_is_never_cut_to_fill_a_commit(log: Log) -> None:
    works = [watched(log, *(of_seq(log, 100 * number + seq) for seq in range(1, 101))) for number in range(6)]
    await together(log, *(log.spool.append(work) for work in works))
    batches = [work.batch for work in works]
    assert [batches.index(batch) for batch in batches] == [0, 0, 2, 2, 4, 4]


async def test_a_commit_has_at_most_four_mebibytes(log: Log) -> None:
    works = [watched(log, of_seq(log, seq, bytes(1 << 20))) for seq in range(1, 8)]
    await together(log, *(log.spool.append(work) for work in works))
    batches = [work.batch for work in works]
    assert [batches.index(batch) for batch in batches] == [0, 0, 0, 3, 3, 3, 6]


async def test_an_append_above_the_highest_seq_reads_nothing(log: Log) -> None:
    await log.put(log.senders[0], 5)
    rocks = WatchedRocks(log.rocks)
    watched(log, of_seq(log, 6), of_seq(log, 9)).stage(rocks, log.rocks.batch())
    assert rocks.reads == []
    log.group.reload()


async def test_an_append_below_the_highest_seq_is_one_look_up(log: Log) -> None:
    await log.put(log.senders[0], 5)
    rocks = WatchedRocks(log.rocks)
    watched(log, of_seq(log, 4)).stage(rocks, log.rocks.batch())
    assert rocks.reads == [store.MSG]
    log.group.reload()


async def test_a_caller_that_hangs_up_does_not_take_its_message_back(log: Log) -> None:
    gate = Gate()
    held = asyncio.create_task(log.spool.commits.run(gate))
    sent = asyncio.create_task(log.put(log.senders[0], 1))
    await asyncio.sleep(0)
    sent.cancel()
    gate.let_go.set()
    await held
    assert await log.put(log.senders[0], 1) is Status.DUPLICATE
