"""Damage on the disk, as a bit that fell over in a table of RocksDB or in a record: it is named, and costs no more than
it has hit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from angelia.errors import DamagedRecord, Unavailable
from angelia.grouplog import maintenance, store
from angelia.grouplog.maintenance import Scrub
from angelia.grouplog.model.frames import Backfill, Hello, Status
from angelia.http.answers import STATUS
from angelia.stores.rocks import Rocks, check_iterator, reads_at
from grouplog.open_logs import Id, Log, full, opened

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EACH = 120  # messages of each sender
FAST = 1 << 40  # bytes a second: a scrub that does not wait
Rows = dict[Id, bytes]


def flip(directory: Path, *values: bytes) -> None:
    """Flips a bit of each value, in the table of a closed database that has it."""
    tables = {path: bytearray(path.read_bytes()) for path in directory.glob("*.sst")}
    for value in values:
        (found,) = [(table, at) for table in tables.values() if (at := table.find(value)) >= 0]
        table, at = found
        table[at + len(value) // 2] ^= 1
    for path, table in tables.items():
        path.write_bytes(table)


async def stored(directory: Path, size: int = 1_000, each: int = EACH) -> Rows:
    """Stores messages of three senders, and has them written to a table. Returns the rows, in their order."""
    async with opened(directory) as log:
        for sender in log.senders:
            await log.append(
                *(
                    (sender, seq, full(seq, data=(sender + seq.to_bytes(8)) * (size // 16)))
                    for seq in range(1, each + 1)
                )
            )
        log.rocks.flush(store.MSG)
        return log.rows()


def damage(directory: Path, rows: Rows, *ids: Id) -> None:
    flip(directory / "log", *(rows[id_] for id_ in ids))


def nth(rows: Rows, sender: int, seq: int) -> Id:
    """A message of the first, second or third sender in the order of their bytes."""
    return sorted({sender for sender, _ in rows})[sender], seq


async def read_alone(log: Log, rows: Rows) -> tuple[Rows, set[Id]]:
    """Reads each message by its id. Returns what could be read, and which could not."""
    found, lost = {}, set()
    for id_ in rows:
        try:
            found[id_] = (await log.service.message(log.group, *id_)).record
        except DamagedRecord:
            lost.add(id_)
    return found, lost


async def read_pages(log: Log, limit: int) -> tuple[list[tuple[Id, bytes]], list[Id]]:
    """Messages and holes of a backfill, with all its pages."""
    messages, holes, cursor = [], [], b""
    for _ in range(6 * EACH // limit + 6):
        page, lost, end = await log.page(Backfill(Hello({}, {}), limit=limit, cursor=cursor))
        messages += [((one.sender, one.seq), one.record) for one in page]
        holes += [(one.sender, one.seq) for one in lost]
        if not end.has_more:
            return messages, holes
        cursor = end.cursor
    raise AssertionError(f"the pages of {limit} do not end: the cursor stays at {cursor.hex()}")


async def listed(log: Log) -> set[Id]:
    """The damaged messages that /storage names."""
    return {(bytes.fromhex(one.sender), one.seq) for one in (await log.service.storage(log.group)).corrupt}


# Backfill.


@pytest.mark.parametrize("size", [1_000, 320], ids=lambda size: f"{size} bytes")
@pytest.mark.parametrize(
    "places",
    [[(1, 60)], [(0, EACH)], [(1, 1)], [(0, 30), (0, 70)], [(0, EACH), (2, 2)], [(0, 40), (1, 40), (2, 40)]],
    ids=["middle", "last of a sender", "first of a sender", "two of one sender", "two ends", "each sender"],
)
async def test_a_backfill_has_every_message_that_can_be_read_alone(
    tmp_path: Path, size: int, places: list[tuple[int, int]]
) -> None:
    rows = await stored(tmp_path, size)
    damage(tmp_path, rows, *(nth(rows, *place) for place in places))
    async with opened(tmp_path) as log:
        readable, lost = await read_alone(log, rows)
        messages, _ = await read_pages(log, limit=500)
    assert lost
    assert messages == sorted(readable.items())


@pytest.mark.parametrize("limit", [1, 2, 7, 50, 500])
async def test_pages_of_any_size_pass_the_damage(tmp_path: Path, limit: int) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 1, 50))
    async with opened(tmp_path) as log:
        readable, _ = await read_alone(log, rows)
        messages, _ = await read_pages(log, limit)
    assert messages == sorted(readable.items())


async def test_each_damaged_message_between_two_sound_ones_of_its_sender_is_one_hole(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 0, 50), nth(rows, 2, 70))
    async with opened(tmp_path) as log:
        _, lost = await read_alone(log, rows)
        for limit in (500, 50):
            _, holes = await read_pages(log, limit)
            assert holes == sorted(lost)


async def test_damage_at_the_end_of_the_log_is_a_hole(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 2, EACH))
    async with opened(tmp_path) as log:
        readable, lost = await read_alone(log, rows)
        messages, holes = await read_pages(log, limit=500)
    assert [id_ for id_, _ in messages] == sorted(readable)
    assert holes[0] == min(lost)


async def test_damaged_messages_that_the_device_has_are_no_holes_for_it(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 1, 50))
    async with opened(tmp_path) as log:
        sender, _ = nth(rows, 1, 50)
        messages, holes, _ = await log.page(Backfill(Hello({sender: 90}, {}), limit=5_000))
    assert [message.seq for message in messages if message.sender == sender] == list(range(91, EACH + 1))
    assert holes == []


# One message.


async def test_a_message_in_a_damaged_block_is_a_corrupt_record_with_its_id(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    sender, seq = nth(rows, 0, 50)
    damage(tmp_path, rows, (sender, seq))
    async with opened(tmp_path) as log:
        with pytest.raises(DamagedRecord) as caught:
            await log.service.message(log.group, sender, seq)
    assert (STATUS[caught.value.code], caught.value.members) == (500, {"sender": sender.hex(), "seq": seq})


async def test_storage_lists_what_was_met_in_a_damaged_block(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 0, 50))
    async with opened(tmp_path) as log:
        await read_pages(log, limit=500)
        listed_by_backfill = await listed(log)
        _, lost = await read_alone(log, rows)
        assert listed_by_backfill == await listed(log) == lost


async def test_the_same_message_again_repairs_a_damaged_one(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 0, 50))
    async with opened(tmp_path) as log:
        _, lost = await read_alone(log, rows)
        for id_ in lost:
            assert await log.append((*id_, rows[id_])) == [Status.STORED]
            assert await log.append((*id_, rows[id_])) == [Status.DUPLICATE]
        assert await read_alone(log, rows) == (rows, set())
        assert await listed(log) == set()


async def test_a_backfill_has_the_messages_that_were_repaired(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 0, 50))
    async with opened(tmp_path) as log:
        _, lost = await read_alone(log, rows)
        await log.append(*((*id_, rows[id_]) for id_ in sorted(lost)))
        assert await read_pages(log, limit=500) == (sorted(rows.items()), [])


async def test_a_message_that_came_after_the_damage_is_in_the_backfill(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        sender = log.senders[0]
        await log.append(*((sender, seq, full(seq, data=seq.to_bytes(8) * 100)) for seq in range(2, EACH, 2)))
        log.rocks.flush(store.MSG)
        rows = log.rows()
    damage(tmp_path, rows, (sender, 60))
    async with opened(tmp_path) as log:
        late = {(sender, seq): full(seq, data=b"late") for seq in range(1, EACH, 2)}
        await log.append(*((*id_, record) for id_, record in late.items()))
        messages, _ = await read_pages(log, limit=500)
    assert set(late) <= {id_ for id_, _ in messages}


# The node.


async def test_a_node_that_met_damage_while_reading_still_writes_and_is_sound(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 0, 50), nth(rows, 2, EACH))
    async with opened(tmp_path) as log:
        await read_pages(log, limit=500)
        await read_alone(log, rows)
        assert await log.put(log.senders[0], EACH + 1) is Status.STORED
        await log.spool.check()


async def test_a_sender_whose_last_messages_are_damaged_appends_and_nothing_stored_is_replaced(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    sender, last = nth(rows, 2, EACH)
    damage(tmp_path, rows, (sender, last))
    async with opened(tmp_path) as log:
        assert await log.put(sender, EACH + 1) is Status.STORED
        assert await log.append((sender, 1, rows[sender, 1])) == [Status.DUPLICATE]


async def test_a_deletion_works_over_a_damaged_block_and_takes_its_messages_off_the_list(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    sender, seq = nth(rows, 0, 50)
    damage(tmp_path, rows, (sender, seq))
    async with opened(tmp_path) as log:
        await read_alone(log, rows)
        await log.delete(1, {sender: EACH})
        assert await listed(log) == set()
        messages, _ = await read_pages(log, limit=500)
    assert [id_ for id_, _ in messages] == sorted(id_ for id_ in rows if id_[0] != sender)


async def test_a_node_whose_compaction_met_damage_stops_cleanly_and_starts_again_with_all_that_can_be_read(
    tmp_path: Path,
) -> None:
    rows = await stored(tmp_path)
    damage(tmp_path, rows, nth(rows, 0, 50))
    async with opened(tmp_path) as log:
        readable, _ = await read_alone(log, rows)
        await log.put(log.senders[0], EACH + 1)
        with contextlib.suppress(Unavailable):
            log.rocks.compact(store.MSG, *store.span(log.group.ordinal))
    async with opened(tmp_path) as log:
        messages, _ = await read_pages(log, limit=500)
        assert await log.put(log.senders[0], EACH + 2) is Status.STORED
    assert [id_ for id_, _ in messages] == sorted([*readable, (log.senders[0], EACH + 1)])


# The scrub.


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long the scrub paused each time; it does not."""
    seconds: list[float] = []
    sleep = asyncio.sleep

    async def note(delay: float) -> None:
        seconds.append(delay)
        await sleep(0)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", note)
        yield seconds


class Stopped(Exception):
    """The node was stopped."""


@pytest.fixture
def stops_at_first_pause(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Stops the scrub after its first step, of which it has taken a note; `undo` lets it run again."""
    own, sleep = threading.get_ident(), asyncio.sleep

    async def stop(delay: float) -> None:
        if threading.get_ident() != own:
            return await sleep(delay)  # a server of other tests
        raise Stopped

    monkeypatch.setattr(maintenance, "NOTE_SECONDS", 0.0)
    monkeypatch.setattr(asyncio, "sleep", stop)
    return monkeypatch


def scrub(log: Log, now: datetime = NOW) -> Scrub:
    return Scrub(log.spool, lambda: now)


def position(log: Log) -> store.ScrubPosition | None:
    return store.scrub_position(log.rocks)


def is_finished(log: Log) -> bool:
    found = position(log)
    return found is not None and found.after is None


async def with_mebibytes(log: Log, count: int) -> list[Id]:
    """Stores so many messages of a mebibyte each, which is a step of the scrub."""
    sender = log.senders[0]
    for seq in range(1, count + 1):
        await log.put(sender, seq, data=bytes(1 << 20))
    return [(sender, seq) for seq in range(1, count + 1)]


async def test_the_scrub_lists_records_that_do_not_fit_their_digest(log: Log) -> None:
    for seq in range(1, 10):
        await log.put(log.senders[0], seq)
    for seq in (1, 5, 9):
        log.damage(log.senders[0], seq)
    await scrub(log).one_pass(FAST)
    assert await listed(log) == {(log.senders[0], seq) for seq in (1, 5, 9)}


async def test_the_scrub_lists_damage_in_every_group(tmp_path: Path) -> None:
    ids = [bytes((number,)) * 32 for number in range(3)]
    for id_ in ids:
        async with opened(tmp_path, id=id_) as log:
            await log.put(log.senders[0], 1)
            log.damage(log.senders[0], 1)
    await scrubbed(tmp_path)
    async with opened(tmp_path, id=ids[0]) as log:
        await scrub(log).one_pass(FAST)
        for id_ in ids:
            group = await log.spool.groups.live(id_)
            assert len((await log.service.storage(group)).corrupt) == 1


async def scrubbed(directory: Path) -> None:
    """A pass of an earlier run of the node."""
    async with opened(directory) as log:
        await scrub(log).one_pass(FAST)


@pytest.mark.parametrize("size", [1_600, 1_000, 48], ids=lambda size: f"{size} bytes")
async def test_the_scrub_passes_damaged_blocks_lists_them_and_finishes(tmp_path: Path, size: int) -> None:
    rows = await stored(tmp_path, size)
    damage(tmp_path, rows, nth(rows, 0, 50), nth(rows, 2, 50))
    async with opened(tmp_path) as log:
        log.damage(*nth(rows, 2, EACH))  # only a scrub that comes to the end finds it
        async with asyncio.timeout(20):
            await scrub(log).one_pass(FAST)
        assert is_finished(log)
        found = await listed(log)
        _, lost = await read_alone(log, rows)
    assert found <= lost
    assert nth(rows, 2, EACH) in found
    assert {sender for sender, _ in found} == {nth(rows, 0, 1)[0], nth(rows, 2, 1)[0]}


async def test_the_scrub_goes_on_after_a_restart_where_it_was(
    tmp_path: Path, stops_at_first_pause: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        first, *_, last = await with_mebibytes(log, 4)
        with pytest.raises(Stopped):
            await scrub(log).one_pass(FAST)
        log.damage(*first)  # it was checked before, so this pass does not come to it again
        log.damage(*last)
    stops_at_first_pause.undo()
    async with opened(tmp_path) as log:
        await scrub(log).one_pass(FAST)
        assert is_finished(log)
        assert await listed(log) == {last}


async def test_the_scrub_reads_no_faster_than_its_rate(log: Log, pauses: list[float]) -> None:
    await with_mebibytes(log, 3)
    await scrub(log).one_pass(rate=1_000)
    assert sum(pauses) == pytest.approx((3 << 20) / 1_000, rel=0.01)
    assert len(pauses) >= 3  # not all at once, and a long pause then


async def test_a_pass_that_found_damage_is_repeated_after_a_restart_and_lists_it_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        sender = log.senders[0]
        await log.put(sender, 1)
        log.damage(sender, 1)
        await scrub(log).one_pass(FAST)
    async with opened(tmp_path) as log:
        await scrub(log).one_pass(FAST)
        assert await listed(log) == {(sender, 1)}


async def test_damage_that_was_found_before_a_restart_in_the_middle_of_a_pass_is_listed_in_the_end(
    tmp_path: Path, stops_at_first_pause: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        first, *_ = await with_mebibytes(log, 3)
        log.damage(*first)
        with pytest.raises(Stopped):
            await scrub(log).one_pass(FAST)
        assert await listed(log) == {first}
    stops_at_first_pause.undo()
    async with opened(tmp_path) as log:
        again = scrub(log)
        await again.one_pass(FAST)
        await again.one_pass(FAST)
        assert await listed(log) == {first}


async def test_a_pass_without_damage_is_not_repeated_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.put(log.senders[0], 1)
        await scrub(log).one_pass(FAST)
    async with opened(tmp_path) as log:
        log.damage(log.senders[0], 1)
        await scrub(log, NOW + timedelta(days=1)).one_pass(FAST)
        assert await listed(log) == set()


async def test_every_record_is_hashed_again_within_14_days(log: Log) -> None:
    await log.put(log.senders[0], 1)
    now = NOW
    scrubbing = Scrub(log.spool, lambda: now)
    await scrubbing.one_pass(FAST)
    log.damage(log.senders[0], 1)
    now = NOW + timedelta(days=14)
    await scrubbing.one_pass(FAST)
    assert await listed(log) == {(log.senders[0], 1)}


# Past damage.


def key(number: int) -> bytes:
    return number.to_bytes(8)


def value(number: int, size: int) -> bytes:
    return key(number) * (size // 8)


def damaged_rocks(directory: Path, numbers: range, size: int, *damaged: int) -> Rocks:
    rocks = Rocks(directory, ("one",))
    batch = rocks.batch()
    for number in numbers:
        batch.put("one", key(number), value(number, size))
    rocks.write(batch)
    rocks.flush("one")
    rocks.close()
    flip(directory, *(value(number, size) for number in damaged))
    return Rocks(directory, ("one",))


def test_an_iterator_that_met_damage_reads_again_where_the_disk_is_sound(tmp_path: Path) -> None:
    rocks = damaged_rocks(tmp_path, range(1, 601), 1_000, 300)
    iterator = rocks.iterator("one", bytes(8), b"\xff" * 8)
    while iterator.valid():
        stopped_at = iterator.key()
        iterator.next()
    with pytest.raises(DamagedRecord):
        check_iterator(iterator)
    assert reads_at(iterator, key(500))
    assert iterator.key() == key(500)
    assert not reads_at(iterator, key(int.from_bytes(stopped_at) + 1))
    assert reads_at(iterator, key(1))
    assert iterator.key() == key(1)
    assert reads_at(iterator, key(700)), "behind the last key there is nothing to read"
    assert not iterator.valid()
    del iterator
    rocks.close()
