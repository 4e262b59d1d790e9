"""Subscriptions: each message that a device lacks is sent once, whatever is stored or deleted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from angelia.errors import RateLimited
from angelia.grouplog import streaming, subscriptions
from angelia.grouplog.group_changes import Drop, RosterChange
from angelia.grouplog.model import frames
from angelia.grouplog.model.frames import CaughtUp, Failure, FrameReader, Hello, Hole, LogMessage, Status, Type
from angelia.grouplog.model.groups import GroupConfig, GroupMember, LogFloor, RosterEntry
from angelia.grouplog.subscriptions import Begin, LogSubscriber
from angelia.http.answers import STATUS
from grouplog.open_logs import Id, Key, Log, creation, full, is_under, opened

NOTHING = Hello({}, {})
Frames = AsyncIterator[tuple[int, bytes]]


@asynccontextmanager
async def subscribed(log: Log, hello: Hello = NOTHING, member: int = 0) -> AsyncIterator[Frames]:
    """The frames of a subscription, as they come."""
    stream = await log.service.subscribe(log.group, log.members[member], hello)
    try:
        yield _frames(stream)
    finally:
        await stream.aclose()


async def _frames(stream: AsyncIterator[bytes]) -> Frames:
    reader = FrameReader()
    async for part in stream:
        for frame in reader.feed(part):
            yield frame


async def next_seq(stream: Frames) -> int:
    type_, body = await anext(stream)
    assert type_ == Type.MESSAGE, Type(type_).name
    return LogMessage.decode(body).seq


async def backfilled(stream: Frames) -> list[int]:
    """The seqs up to `caught_up`."""
    found = []
    async for type_, body in stream:
        if type_ == Type.CAUGHT_UP:
            return found
        assert type_ == Type.MESSAGE, Type(type_).name
        found.append(LogMessage.decode(body).seq)
    raise AssertionError("the stream ended before it caught up")


async def ending(stream: Frames) -> str:
    """The code with which a stream ends, if nothing else comes before."""
    (type_, body), *rest = [frame async for frame in stream]
    assert (type_, rest) == (Type.ERROR, [])
    return Failure.decode(body).code


async def store_all(log: Log, *seqs: int, member: int = 0) -> None:
    await log.append(*((log.senders[member], seq, full(seq)) for seq in seqs))


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream stands still after each row until its reader takes the next one."""
    monkeypatch.setattr(streaming, "_PART_BYTES", 1)


@pytest.fixture
def renewing(monkeypatch: pytest.MonkeyPatch, row_by_row: None) -> None:
    """Every iterator is too old as soon as it sent a row."""
    monkeypatch.setattr(streaming, "OLDEST_ITERATOR", -1.0)


# What is there, then what comes.


async def test_what_comes_during_the_backfill_is_sent_behind_it(log: Log, row_by_row: None) -> None:
    await store_all(log, 5, 6, 7)
    async with subscribed(log) as stream:
        assert await next_seq(stream) == 5
        await store_all(log, 4)
        await store_all(log, 9)
        assert await backfilled(stream) == [6, 7]
        assert [await next_seq(stream), await next_seq(stream)] == [4, 9]


async def test_the_position_counts_what_the_node_stored_since_it_started(tmp_path: Path) -> None:
    told = []
    for _ in range(2):
        async with opened(tmp_path) as log:
            for seq in (1, 2, 3, 1):
                await log.put(log.senders[1], seq)
            for _ in range(2):
                async with subscribed(log, Hello({log.senders[1]: 9}, {})) as stream:
                    type_, body = await anext(stream)
                    assert type_ == Type.CAUGHT_UP
                    told.append(CaughtUp.decode(body))
    assert [one.position for one in told] == [3, 3, 0, 0]  # in the second run all of it was there
    assert told[0].boot == told[1].boot != told[2].boot


async def test_two_streams_of_one_member_each_get_everything(log: Log) -> None:
    await store_all(log, 1)
    async with subscribed(log) as one, subscribed(log) as other:
        await store_all(log, 2)
        for stream in (one, other):
            assert await backfilled(stream) == [1]
            assert await next_seq(stream) == 2


async def test_a_stream_gets_nothing_of_another_group(tmp_path: Path) -> None:
    async with opened(tmp_path, id=b"a" * 32) as log, subscribed(log) as stream:
        await backfilled(stream)
        other, _ = await log.spool.run(creation(log.spool, log.keys, [log.node], GroupConfig(min_copies=1), b"b" * 32))
        here, log.group, founder, log.founder = log.group, other, log.founder, other.row.roster.members[0].sender
        await store_all(log, 1)
        log.group, log.founder = here, founder
        await store_all(log, 2)
        assert await next_seq(stream) == 2


@pytest.mark.parametrize("stored", ["before", "after"])
async def test_vector_ranges_and_excluded_sender_filter_what_is_there_and_what_comes_alike(
    log: Log, stored: str
) -> None:
    first, second, third = log.senders
    hello = Hello({first: 3}, {first: [(6, 7)], second: [(2, 2)]}, exclude=third)

    async def fill() -> None:
        for seq in (8, 7, 5, 3, 1):
            await log.put(first, seq)
        await store_all(log, 1, 2, 3, member=1)
        await store_all(log, 1, 9, member=2)

    expected = {(first, 5), (first, 8), (second, 1), (second, 3)}
    if stored == "before":
        await fill()
    async with subscribed(log, hello) as stream:
        found, marked = [], (second, 100)
        if stored == "after":
            assert await backfilled(stream) == []
            await fill()
        await log.put(*marked)
        async for type_, body in stream:
            if type_ == Type.MESSAGE:
                message = LogMessage.decode(body)
                if (message.sender, message.seq) == marked:
                    break
                found.append((message.sender, message.seq))
    assert sorted(found) == sorted(expected)


async def test_a_quiet_stream_pings(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert streaming.PING_SECONDS == 20
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.01)
    async with subscribed(log) as stream:
        assert [type_ for type_, _ in (await anext(stream), await anext(stream))] == [Type.CAUGHT_UP, Type.PING]


# Old iterators.


async def test_a_replaced_iterator_sends_what_came_behind_it_once_and_what_came_before_it_once(
    log: Log, renewing: None
) -> None:
    await store_all(log, 10, 20, 30)
    async with subscribed(log) as stream:
        assert await next_seq(stream) == 10
        await store_all(log, 5, 15, 40)
        assert await next_seq(stream) == 15  # by the new iterator
        await store_all(log, 6, 16)
        assert await backfilled(stream) == [16, 20, 30, 40]
        assert [await next_seq(stream), await next_seq(stream)] == [5, 6]
        await store_all(log, 99)
        assert await next_seq(stream) == 99  # so none came twice


async def test_a_replaced_iterator_keeps_the_floors_that_were_not_told_yet(log: Log, renewing: None) -> None:
    await store_all(log, 1, 2, 3)
    async with subscribed(log) as stream:
        assert await next_seq(stream) == 1
        await log.delete(1, {log.senders[0]: 2})
        assert await backfilled(stream) == [3]
        type_, body = await anext(stream)
        assert (type_, frames.decode_floor(body)) == (Type.FLOOR, LogFloor(log.senders[0], 1, 2))


async def test_the_position_of_a_replaced_iterator_is_that_of_the_new_one(log: Log, renewing: None) -> None:
    await store_all(log, 1, 2, 3)
    async with subscribed(log) as stream:
        await next_seq(stream)
        await store_all(log, 4)
        position = None
        async for type_, body in stream:
            if type_ == Type.CAUGHT_UP:
                position = CaughtUp.decode(body).position
                break
        assert position == 4


# Deletions.


async def test_what_is_deleted_before_it_is_sent_is_left_out_of_the_backfill(log: Log, row_by_row: None) -> None:
    await store_all(log, 1, 2, 3, 4)
    async with subscribed(log) as stream:
        assert await next_seq(stream) == 1
        await log.delete(1, {log.senders[0]: 3})
        assert await backfilled(stream) == [4]


async def test_what_is_deleted_before_it_is_sent_is_left_out_of_what_comes_and_the_floor_is_told(log: Log) -> None:
    async with subscribed(log) as stream:
        await backfilled(stream)
        await store_all(log, 1, 2)
        await log.delete(1, {log.senders[0]: 1})
        await store_all(log, 3)
        assert await next_seq(stream) == 2
        type_, body = await anext(stream)
        assert (type_, frames.decode_floor(body)) == (Type.FLOOR, LogFloor(log.senders[0], 1, 1))
        assert await next_seq(stream) == 3


async def test_a_superseded_message_is_not_sent(log: Log) -> None:
    await log.delete(1, {log.senders[0]: 5})
    async with subscribed(log) as stream:
        await backfilled(stream)
        await store_all(log, 5)
        await store_all(log, 6)
        assert await next_seq(stream) == 6


# Damaged records.


async def test_a_damaged_record_is_a_hole_in_the_backfill_and_in_what_comes(log: Log) -> None:
    await store_all(log, 1)
    log.damage(log.senders[0], 1)
    async with subscribed(log) as stream:
        type_, body = await anext(stream)
        assert (type_, Hole.decode(body)) == (Type.HOLE, Hole(log.senders[0], 1))
        assert await backfilled(stream) == []
        await store_all(log, 2)
        log.damage(log.senders[0], 2)
        type_, body = await anext(stream)
        assert (type_, Hole.decode(body)) == (Type.HOLE, Hole(log.senders[0], 2))


# Ends.


def test_a_queue_holds_65536_messages_and_one_more_is_too_many() -> None:
    member = GroupMember(binding=1, sender=b"a sender", public_key=bytes(32))
    subscriber = LogSubscriber(None, member, NOTHING)  # type: ignore[arg-type]
    for seq in range(65_536):
        subscriber.offer((b"", seq))
    assert (len(subscriber.queue), subscriber.lagged) == (65_536, False)
    subscriber.offer((b"", 0))
    assert subscriber.lagged


@pytest.mark.parametrize("phase", ["backfill", "live"])
async def test_a_stream_that_reads_too_slowly_ends_as_lagged(
    log: Log, monkeypatch: pytest.MonkeyPatch, row_by_row: None, phase: str
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_QUEUED", 10)
    await store_all(log, 1, 2, 3)
    async with subscribed(log) as stream:
        if phase == "live":
            await backfilled(stream)
        else:
            await next_seq(stream)
        await store_all(log, *range(4, 15))
        assert await ending(stream) == "lagged"
        assert len(log.spool.subscriptions) == 0


async def test_a_stream_that_reads_just_fast_enough_goes_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MOST_QUEUED", 10)
    async with subscribed(log) as stream:
        await backfilled(stream)
        for first in (1, 11, 21):
            await store_all(log, *range(first, first + 10))
            assert [await next_seq(stream) for _ in range(10)] == list(range(first, first + 10))


async def test_a_device_that_lagged_connects_again_with_its_vector_and_lacks_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_QUEUED", 10)
    async with subscribed(log) as stream:
        await backfilled(stream)
        await store_all(log, 1, 2, 4)
        got = [await next_seq(stream) for _ in range(3)]
        await store_all(log, 3, *range(5, 20))
        assert await ending(stream) == "lagged"
    assert got == [1, 2, 4]
    async with subscribed(log, Hello({log.senders[0]: 2}, {log.senders[0]: [(4, 4)]})) as stream:
        assert await backfilled(stream) == [3, *range(5, 20)]


def entries(*keys: Key) -> list[RosterEntry]:
    return [RosterEntry(binding=number, public_key=key.public, admin=True) for number, key in enumerate(keys, 1)]


@pytest.mark.parametrize("phase", ["backfill", "live"])
async def test_a_member_that_is_removed_gets_nothing_more(log: Log, row_by_row: None, phase: str) -> None:
    await store_all(log, 1, 2, 3)
    async with subscribed(log, member=1) as stream:
        if phase == "live":
            await backfilled(stream)
        else:
            await next_seq(stream)
        change = RosterChange(log.group, log.senders[0], log.spool.subscriptions, 1, entries(log.keys[0]))
        await log.spool.run(change)
        await store_all(log, 4)
        assert await ending(stream) == "not_member"


async def test_a_stream_ends_with_the_key_that_opened_it(log: Log) -> None:
    async with subscribed(log, member=1) as stream:
        await backfilled(stream)
        rotated = entries(log.keys[0], Key(b"another"), log.keys[2])
        await log.spool.run(RosterChange(log.group, log.senders[0], log.spool.subscriptions, 1, rotated))
        await store_all(log, 1)
        assert await ending(stream) == "not_member"
    async with subscribed(log, member=1) as stream:
        assert await next_seq(stream) == 1


async def test_a_drop_of_the_group_ends_its_streams(log: Log) -> None:
    async with subscribed(log, member=1) as stream:
        await backfilled(stream)
        await log.spool.run(Drop(log.spool.groups, log.group, log.senders[0], log.spool.subscriptions))
        assert await ending(stream) == "group_dropped"


async def test_a_node_that_stops_ends_its_streams(log: Log) -> None:
    async with subscribed(log) as stream:
        await backfilled(stream)
        log.spool.subscriptions.stop()
        assert await ending(stream) == "unavailable"


# Limits.


async def test_a_member_has_eight_streams_and_one_that_ends_makes_room(log: Log) -> None:
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(subscribed(log)) for _ in range(8)]
        for stream in streams:
            await backfilled(stream)
        with pytest.raises(RateLimited):
            await log.service.subscribe(log.group, log.members[0], NOTHING)
        async with subscribed(log, member=1) as stream:  # another member has its own
            await backfilled(stream)
    async with subscribed(log) as stream:
        assert await backfilled(stream) == []


async def test_a_stream_that_ends_before_its_first_frame_makes_room(log: Log) -> None:
    for _ in range(9):
        stream = await log.service.subscribe(log.group, log.members[0], NOTHING)
        await stream.aclose()  # the peer hung up while the answer began
    assert len(log.spool.subscriptions) == 0


async def test_a_group_has_a_thousand_streams(tmp_path: Path) -> None:
    async with opened(tmp_path, members=126) as log:
        entered = [LogSubscriber(log.group, member, NOTHING) for member in log.members[:125] for _ in range(8)]
        for subscriber in entered:
            await log.spool.run(Begin(log.spool.subscriptions, subscriber))
        with pytest.raises(RateLimited) as caught:
            await log.service.subscribe(log.group, log.members[125], NOTHING)
        assert (STATUS[caught.value.code], caught.value.retry_after) == (429, 30)
        log.spool.subscriptions.leave(entered[0])
        async with subscribed(log, member=125) as stream:
            assert await backfilled(stream) == []
        for subscriber in entered:
            subscriber.iterator = None


# Exactness.


class Model:
    """What was stored, and who waits for how much is written."""

    def __init__(self) -> None:
        self.rows: dict[Id, bytes] = {}
        self.written = 0  # with those that were superseded
        self.something_read = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def note(self, sender: bytes, seq: int, record: bytes, status: Status) -> None:
        assert (sender, seq) not in self.rows
        assert status is not Status.DUPLICATE
        if status is Status.STORED:
            self.rows[sender, seq] = record
        self.written += 1
        for wanted, event in self._waiting:
            if self.written >= wanted:
                event.set()

    async def until(self, wanted: int) -> None:
        event = asyncio.Event()
        self._waiting.append((wanted, event))
        if self.written < wanted:
            await event.wait()


class Device:
    """A subscriber, and all that it was sent."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.got: list[Id] = []
        self.floors: list[LogFloor] = []
        self.in_backfill = 0
        self.caught_up = asyncio.Event()

    def lacks(self, sender: bytes, seq: int) -> bool:
        ranges = self.hello.have.get(sender, [])
        return (
            sender != self.hello.exclude
            and seq > self.hello.vector.get(sender, 0)
            and not any(first <= seq <= last for first, last in ranges)
        )

    async def read(self, log: Log, model: Model, member: int, last: Id) -> None:
        async with subscribed(log, self.hello, member) as stream:
            async for type_, body in stream:
                if type_ == Type.CAUGHT_UP:
                    self.in_backfill = len(self.got)
                    self.caught_up.set()
                elif type_ == Type.FLOOR:
                    self.floors.append(frames.decode_floor(body))
                else:
                    assert type_ == Type.MESSAGE, Type(type_).name
                    message = LogMessage.decode(body)
                    id_ = message.sender, message.seq
                    if id_ == last:
                        return
                    level = message.record[2]
                    assert not is_under(self.floors, *id_, level), "sent though its floor was told before"
                    self.got.append(id_)
                    model.something_read.set()


WRITERS = 8


@pytest.mark.parametrize("renews", [False, True], ids=["one iterator", "replaced iterators"])
@pytest.mark.parametrize(
    ("messages", "devices"),
    [
        (10_000, 5),
        pytest.param(100_000, 20, marks=[pytest.mark.chaos, pytest.mark.timeout(3600)]),
    ],
    ids=["10 thousand", "100 thousand"],
)
async def test_each_subscriber_gets_each_message_once_unless_it_is_superseded_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: int, devices: int, renews: bool
) -> None:
    chance = Random(messages + renews)
    if renews:
        monkeypatch.setattr(streaming, "OLDEST_ITERATOR", -1.0)
        monkeypatch.setattr(streaming, "_PART_BYTES", 2_000)
    async with opened(tmp_path, members=WRITERS + 1) as log:
        model, each = Model(), messages // WRITERS
        writers, last = log.senders[:WRITERS], (log.senders[WRITERS], 1)
        readers = [Device(_hello(chance, writers, each)) for _ in range(devices)]

        async def join(number: int, device: Device, when: int) -> None:
            await model.until(when)
            await device.read(log, model, number % WRITERS, last)

        async with asyncio.TaskGroup() as tasks:
            for number, device in enumerate(readers):
                tasks.create_task(join(number, device, chance.randrange(messages * 9 // 10)))
            async with asyncio.TaskGroup() as writing:
                for sender in writers:
                    writing.create_task(_write(log, model, sender, each, Random(chance.random())))
                writing.create_task(_delete(log, model, writers, messages, Random(chance.random())))
            for device in readers:
                await device.caught_up.wait()
            await log.put(*last)
        floors = log.group.floors()
        for device in readers:
            _check(device, model, floors)
        assert sum(device.in_backfill for device in readers) > messages // 10
        assert sum(len(device.got) - device.in_backfill for device in readers) > messages // 10


def _hello(chance: Random, senders: list[bytes], each: int) -> Hello:
    """Every other device has something already."""
    if chance.random() < 0.5:
        return NOTHING
    vector = {sender: chance.randrange(each // 4) for sender in chance.sample(senders, 3)}
    have = {}
    for sender in chance.sample(senders, 3):
        first = vector.get(sender, 0) + chance.randrange(1, each // 4)
        have[sender] = [(first, first + 20), (first + 30, first + 90)]
    return Hello(vector, have, chance.choice([None, chance.choice(senders)]))


async def _write(log: Log, model: Model, sender: bytes, each: int, chance: Random) -> None:
    """Appends all seqs of a sender in any order, several at once, and some of them again."""
    left = list(range(1, each + 1))
    chance.shuffle(left)
    before: list[tuple[bytes, int, bytes]] = []
    while left:
        count = chance.randrange(1, 25)
        now, left = left[:count], left[count:]
        new = [(sender, seq, full(seq, chance.choices((0, 1, 2), (20, 2, 1))[0])) for seq in now]
        again = before if chance.random() < 0.1 else []
        statuses = await log.append(*new, *again)
        for message, status in zip(new, statuses, strict=False):
            model.note(*message, status)
        assert Status.STORED not in statuses[len(new) :]
        before = new
        while log.spool.subscriptions.longest_queue > 30_000:  # readers that lag show nothing here
            model.something_read.clear()
            await model.something_read.wait()


async def _delete(log: Log, model: Model, senders: list[bytes], messages: int, chance: Random) -> None:
    """Deletes as the log grows, up to about half of it."""
    each = messages // len(senders)
    for step in range(1, 41):
        await model.until(step * messages // 80)
        reach = each * step // 80
        watermark = {sender: chance.randrange(reach + 1) for sender in chance.sample(senders, 4)}
        await log.delete(chance.choices((1, 2, 3), (10, 3, 1))[0], watermark)


def _check(device: Device, model: Model, floors: list[LogFloor]) -> None:
    got = set(device.got)
    assert len(got) == len(device.got), "something was sent twice"
    lacked = {id_ for id_ in model.rows if device.lacks(*id_)}
    assert got <= lacked, "something was sent that was not lacking, or never stored"
    kept = {id_ for id_ in lacked if not is_under(floors, *id_, model.rows[id_][2])}
    assert kept <= got, "something that is not superseded was not sent"
