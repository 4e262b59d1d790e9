"""The commit section: a batch is written as a whole or not at all, memory never says more than the disk, and its end is
told to everybody who waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from angelia.errors import AngeliaError, DiskFull, NoGroup, RateLimited, ReadOnly, Unavailable
from angelia.grouplog import commit, store
from angelia.grouplog.group_changes import Drop, RosterChange
from angelia.grouplog.model.frames import Hello, Status
from angelia.grouplog.model.groups import RosterEntry
from angelia.grouplog.subscriptions import Begin, LogSubscriber
from angelia.http.answers import STATUS
from angelia.stores.rocks import Rocks, RocksBatch
from grouplog.open_logs import Log, check_families, opened


class Held:
    """A work that keeps the commit section busy until it is let go."""

    alone, messages, size = True, 0, 0

    def __init__(self, fault: BaseException | None = None) -> None:
        """If there is a fault, it is raised in the end."""
        self.let_go = threading.Event()
        self._fault = fault

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        assert self.let_go.wait(30)
        if self._fault is not None:
            raise self._fault

    def finish(self) -> None:
        return None

    def undo(self) -> None:
        return None


class Shared(Held):
    """One that others share a batch with."""

    alone, messages = False, 1


async def behind(log: Log, held: Held, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Sends requests that wait behind a work, and then lets it go. Returns results and errors, those of the work
    first."""
    first = asyncio.create_task(log.spool.commits.run(held))
    sent = [asyncio.create_task(request) for request in requests]
    await asyncio.sleep(0)  # each has reached the queue
    held.let_go.set()
    return await asyncio.gather(first, *sent, return_exceptions=True)


async def together(log: Log, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Sends requests that share a commit as far as they may."""
    return (await behind(log, Held(), *requests))[1:]


@contextmanager
def failing(error: AngeliaError) -> Iterator[None]:
    """Each write of a batch fails during the block, and nothing of it reaches the disk."""

    def write(rocks: Rocks, batch: RocksBatch) -> None:
        if batch.operations:
            raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Rocks, "write", write)
        yield


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operations of each batch that was written."""
    found: list[int] = []
    write = Rocks.write

    def counted(rocks: Rocks, batch: RocksBatch) -> None:
        if batch.operations:
            found.append(batch.operations)
        write(rocks, batch)

    monkeypatch.setattr(Rocks, "write", counted)
    return found


def check_memory(log: Log) -> None:
    """Asserts that memory says what the disk says."""
    group = log.group
    rows = check_families(log.rocks, group.ordinal)
    assert group.staged == {}
    assert group.row == store.group(log.rocks, group.id)
    assert set(group.floors()) == set(store.floors(log.rocks, group.ordinal))
    assert group.stored_bytes == store.stored_bytes(log.rocks, group.id) == log.true_bytes()
    for sender in log.senders:
        assert group.highest(sender) == max((seq for owner, seq in rows if owner == sender), default=0)


FAULT = Unavailable("the write of this test failed")
FULL = DiskFull("the disk of this test is full")
BROKEN = ReadOnly("the disk of this test is broken")


# A batch that cannot be written.


async def test_a_batch_that_cannot_be_written_fails_every_request_in_it_and_stores_none(log: Log) -> None:
    first, second, third = log.senders
    with failing(FAULT):
        outcomes = await together(log, log.put(first, 1), log.put(second, 1, level=2), log.put(third, 7))
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
    assert log.rows() == {}
    check_memory(log)


async def test_an_append_that_could_not_be_written_is_no_duplicate_when_it_comes_again(log: Log) -> None:
    with failing(FAULT):
        await together(log, log.put(log.senders[0], 1), log.put(log.senders[0], 2))
    assert await log.put(log.senders[0], 1) is Status.STORED
    assert await log.put(log.senders[0], 2, data=b"other bytes") is Status.STORED
    check_memory(log)


async def test_a_deletion_that_could_not_be_written_supersedes_nothing(log: Log) -> None:
    sender = log.senders[0]
    await log.put(sender, 1)
    with failing(FAULT), pytest.raises(Unavailable):
        await log.delete(1, {sender: 5})
    check_memory(log)
    assert await log.put(sender, 2) is Status.STORED
    assert set(log.rows()) == {(sender, 1), (sender, 2)}


async def test_a_drop_or_a_roster_that_could_not_be_written_changes_nothing(log: Log) -> None:
    founder, subscriptions = log.founder, log.spool.subscriptions
    alone = [RosterEntry(binding=1, public_key=log.keys[0].public, admin=True)]
    for work in (
        Drop(log.spool.groups, log.group, founder, subscriptions),
        RosterChange(log.group, founder, subscriptions, log.group.row.roster.epoch, alone),
    ):
        with failing(FAULT), pytest.raises(Unavailable):
            await log.spool.run(work)
        check_memory(log)
    assert await log.put(log.senders[2], 1) is Status.STORED


async def test_what_could_not_be_written_is_not_published_and_its_subscriber_has_not_begun(log: Log) -> None:
    earlier, later = (LogSubscriber(log.group, member, Hello({}, {})) for member in log.members[:2])
    await log.spool.run(Begin(log.spool.subscriptions, earlier))
    with failing(FAULT):
        await together(log, log.put(log.senders[0], 1), log.spool.run(Begin(log.spool.subscriptions, later)))
    assert list(earlier.queue) == []
    assert log.spool.subscriptions.of(log.group.id) == [earlier]
    assert log.spool.subscriptions.position(log.group.id) == 0
    earlier.iterator = later.iterator = None


async def test_a_fault_in_one_request_fails_its_commit_and_leaves_memory_as_the_disk(log: Log) -> None:
    held = Shared(fault=ZeroDivisionError("a fault of this test"))
    outcomes = await behind(log, held, log.put(log.senders[0], 1))
    assert isinstance(outcomes[0], Unavailable)
    stored = log.rows()
    assert outcomes[1] is Status.STORED if stored else isinstance(outcomes[1], Unavailable)
    check_memory(log)
    assert await log.put(log.senders[0], 2) is Status.STORED


# The sync.


async def test_stored_is_answered_only_after_the_sync(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, synced = threading.Event(), threading.Event()
    write = Rocks.write

    def slow(rocks: Rocks, batch: RocksBatch) -> None:
        writing.set()
        assert synced.wait(30)
        write(rocks, batch)

    monkeypatch.setattr(Rocks, "write", slow)
    sent = asyncio.create_task(log.put(log.senders[0], 1))
    await asyncio.to_thread(writing.wait, 30)
    done, _ = await asyncio.wait([sent], timeout=0)
    assert not done
    synced.set()
    assert await sent is Status.STORED


async def test_look_ups_of_unknown_groups_end_no_commit(log: Log, syncs: list[int]) -> None:
    requests: list[Coroutine[Any, Any, Any]] = []
    for seq in range(1, 257):
        requests += [log.put(log.senders[0], seq), log.spool.groups.find(seq.to_bytes(32))]
    outcomes = await together(log, *requests)
    assert outcomes[::2] == [Status.STORED] * 256
    assert {type(outcome) for outcome in outcomes[1::2]} == {NoGroup}
    assert len(syncs) == 1


async def test_look_ups_write_nothing(log: Log, syncs: list[int]) -> None:
    for number in range(10):
        with pytest.raises(NoGroup):
            await log.spool.groups.find(number.to_bytes(32))
    assert syncs == []
    assert [id_ for id_, _ in store.all_groups(log.rocks)] == [log.group.id]


async def test_subscriptions_that_begin_end_no_commit(log: Log, syncs: list[int]) -> None:
    subscribers = [LogSubscriber(log.group, log.members[number % 3], Hello({}, {})) for number in range(20)]
    requests: list[Coroutine[Any, Any, Any]] = []
    for seq, subscriber in enumerate(subscribers, 1):
        requests += [log.put(log.senders[0], seq), log.spool.run(Begin(log.spool.subscriptions, subscriber))]
    await together(log, *requests)
    assert len(syncs) == 1
    for subscriber in subscribers:
        subscriber.iterator = None


async def test_a_deletion_sees_what_was_sent_before_it_and_nothing_of_what_was_sent_after(log: Log) -> None:
    sender = log.senders[0]
    before, deleted, after = await together(
        log, log.put(sender, 1, level=1), log.delete(2, {sender: 5}), log.put(sender, 2)
    )
    assert (before, deleted.points, after) == (Status.STORED, 1, Status.SUPERSEDED)
    assert log.rows() == {}


# A node that only reads.


async def test_after_a_write_error_the_node_reads_and_refuses_every_write(log: Log) -> None:
    sender = log.senders[0]
    await log.put(sender, 1)
    with failing(BROKEN), pytest.raises(ReadOnly):
        await log.put(sender, 2)
    # The disk may be well again, but what the log holds is not known before it is opened again.
    for refused in (log.put(sender, 2), log.delete(1, {sender: 1})):
        with pytest.raises(ReadOnly) as caught:
            await refused
        assert STATUS[caught.value.code] == 503
        assert caught.value.retry_after
    assert await log.all_ids() == [(sender, 1)]
    assert (await log.service.message(log.group, sender, 1)).seq == 1
    assert (await log.service.vector(log.group)).highest == {sender.hex(): 1}


async def test_a_subscription_still_begins_on_a_node_that_only_reads(log: Log) -> None:
    await log.put(log.senders[0], 1)
    with failing(BROKEN), pytest.raises(ReadOnly):
        await log.put(log.senders[0], 2)
    stream = await log.service.subscribe(log.group, log.members[1], Hello({}, {}))
    assert await anext(stream)
    await stream.aclose()


async def test_the_health_of_a_node_that_only_reads_is_bad(log: Log) -> None:
    await log.spool.check()
    with failing(BROKEN), pytest.raises(ReadOnly):
        await log.put(log.senders[0], 1)
    with pytest.raises(Unavailable):
        await log.spool.check()


async def test_an_error_of_the_disk_makes_every_request_of_its_commit_fail_as_read_only(log: Log) -> None:
    with failing(BROKEN):
        outcomes = await together(log, *(log.put(sender, 1) for sender in log.senders))
    assert [type(outcome) for outcome in outcomes] == [ReadOnly] * 3
    check_memory(log)


async def test_a_node_that_is_started_again_writes_and_has_what_it_acknowledged(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.put(log.senders[0], 1)
        with failing(BROKEN), pytest.raises(ReadOnly):
            await log.put(log.senders[0], 2)
    async with opened(tmp_path) as log:
        assert await log.all_ids() == [(log.senders[0], 1)]
        assert await log.put(log.senders[0], 2) is Status.STORED
        await log.spool.check()


async def test_a_write_that_had_no_room_is_answered_as_a_full_disk_and_reads_go_on(log: Log) -> None:
    sender = log.senders[0]
    await log.put(sender, 1)
    with failing(FULL), pytest.raises(DiskFull) as caught:
        await log.put(sender, 2)
    assert STATUS[caught.value.code] == 507
    assert await log.all_ids() == [(sender, 1)]
    check_memory(log)


# The end of the writer.


class Panic(BaseException):
    """As RocksDB's binding raises it."""


@pytest.mark.parametrize("kind", [Held, Shared], ids=["alone", "in a batch"])
async def test_when_the_writer_dies_all_that_wait_get_an_error_and_later_requests_are_refused(
    log: Log, kind: type[Held]
) -> None:
    waiting = [log.put(log.senders[0], seq) for seq in range(1, 300)]  # more than one commit
    async with asyncio.timeout(10):
        outcomes = await behind(log, kind(fault=Panic()), *waiting, log.delete(1, {log.senders[0]: 1}))
        assert {type(outcome) for outcome in outcomes} == {Unavailable}
        with pytest.raises(Unavailable):
            await log.put(log.senders[0], 1)
    assert log.rows() == {}


async def test_the_health_of_a_node_whose_writer_died_is_bad_and_it_still_reads(log: Log) -> None:
    await log.put(log.senders[0], 1)
    await behind(log, Held(fault=Panic()))
    with pytest.raises(Unavailable):
        await log.spool.check()
    assert await log.all_ids() == [(log.senders[0], 1)]


async def test_a_node_whose_writer_died_stops_cleanly_and_starts_again(tmp_path: Path) -> None:
    async with asyncio.timeout(20):
        async with opened(tmp_path) as log:
            await log.put(log.senders[0], 1)
            await behind(log, Held(fault=Panic()))
        async with opened(tmp_path) as log:
            assert await log.put(log.senders[0], 2) is Status.STORED


async def test_a_node_that_stops_writes_what_waits_and_refuses_what_comes_later(log: Log) -> None:
    held = Held()
    first = asyncio.create_task(log.spool.commits.run(held))
    sent = asyncio.create_task(log.put(log.senders[0], 1))
    await asyncio.sleep(0)
    closing = asyncio.create_task(log.spool.commits.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await log.put(log.senders[0], 2)
    held.let_go.set()
    await asyncio.gather(first, closing)
    assert await sent is Status.STORED
    assert set(log.rows()) == {(log.senders[0], 1)}


# Back-pressure.


async def test_more_than_may_wait_is_rate_limited_until_it_is_written(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MOST_WAITING", 10_000)
    sender = log.senders[0]
    outcomes = await together(log, *(log.put(sender, seq, data=bytes(4_000)) for seq in (1, 2, 3)))
    assert outcomes[:2] == [Status.STORED] * 2
    assert isinstance(outcomes[2], RateLimited)
    assert STATUS[outcomes[2].code] == 429
    assert outcomes[2].retry_after
    assert await log.put(sender, 3, data=bytes(4_000)) is Status.STORED


async def test_one_request_is_taken_however_large_if_none_waits(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "MOST_WAITING", 10_000)
    assert await log.put(log.senders[0], 1, data=bytes(20_000)) is Status.STORED


async def test_refused_and_abandoned_requests_give_their_room_back(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "MOST_WAITING", 10_000)
    sender = log.senders[0]
    with failing(FAULT):
        await together(log, log.put(sender, 1, data=bytes(4_000)))
    held = Held()
    first = asyncio.create_task(log.spool.commits.run(held))
    sent = asyncio.create_task(log.put(sender, 2, data=bytes(4_000)))
    await asyncio.sleep(0)
    sent.cancel()
    held.let_go.set()
    await first
    await log.put(sender, 3)  # behind the abandoned one, which is written nevertheless
    for seq in range(4, 9):
        outcomes = await together(log, *(log.put(sender, 10 * seq + n, data=bytes(4_000)) for n in (1, 2)))
        assert outcomes == [Status.STORED] * 2


async def test_reads_are_never_rate_limited_by_what_waits_to_be_written(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MOST_WAITING", 5_000)
    sender = log.senders[0]
    await log.put(sender, 1)
    held = Held()
    first = asyncio.create_task(log.spool.commits.run(held))
    sent = asyncio.create_task(log.put(sender, 2, data=bytes(4_000)))
    await asyncio.sleep(0)
    assert await log.all_ids() == [(sender, 1)]
    assert await log.spool.groups.find(log.group.id) is log.group
    held.let_go.set()
    await asyncio.gather(first, sent)
