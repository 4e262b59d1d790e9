"""Backfill: exactly what a device lacks, in order, page by page, with damaged records named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.errors import DamagedRecord
from angelia.grouplog import store
from angelia.grouplog.model.frames import Backfill, Hello, Hole
from angelia.grouplog.model.groups import LogFloor
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.walk import Lacking, lacking_rows
from angelia.http.answers import STATUS
from angelia.stores.rocks import RocksIterator
from grouplog.open_logs import Id, Log, full, opened

NOTHING = Hello({}, {})


def lacking(rows: Mapping[Id, bytes], hello: Hello) -> list[Id]:
    """What a device lacks of these rows, as the contract says it."""
    return [
        (sender, seq)
        for sender, seq in sorted(rows)
        if sender != hello.exclude
        and seq > hello.vector.get(sender, 0)
        and not any(first <= seq <= last for first, last in hello.have.get(sender, []))
    ]


async def stored(log: Log, *seqs: int, sender: int = 0) -> bytes:
    """Appends these seqs of a sender, and returns it."""
    await log.append(*((log.senders[sender], seq, full(seq)) for seq in seqs))
    return log.senders[sender]


async def seqs(log: Log, hello: Hello) -> list[int]:
    return [seq for _, seq in await log.all_ids(hello)]


# Which messages.


async def test_only_what_lies_above_the_vector_is_sent(log: Log) -> None:
    sender = await stored(log, 1, 2, 3, 5)
    assert await seqs(log, Hello({sender: 2}, {})) == [3, 5]
    assert await seqs(log, Hello({sender: 4}, {})) == [5]
    assert await seqs(log, Hello({sender: 5}, {})) == []


async def test_a_sender_that_the_vector_does_not_name_is_sent_from_its_first(log: Log) -> None:
    first, second = await stored(log, 1, 2), await stored(log, 7, sender=1)
    assert set(await log.all_ids(Hello({first: 2}, {}))) == {(second, 7)}


async def test_a_sender_that_the_node_does_not_know_changes_nothing(log: Log) -> None:
    sender = await stored(log, 1, 2)
    for stranger in (bytes(8), b"\xff" * 8, sender[:7] + bytes((sender[7] ^ 1,))):
        hello = Hello({stranger: MAX_SEQ}, {stranger: [(1, 5)]} if stranger == b"\xff" * 8 else {}, exclude=stranger)
        assert await seqs(log, hello) == [1, 2]


async def test_ranges_that_the_device_has_are_left_out(log: Log) -> None:
    sender = await stored(log, *range(1, 13))
    assert await seqs(log, Hello({sender: 2}, {sender: [(4, 5), (8, 8), (11, 20)]})) == [3, 6, 7, 9, 10]


async def test_a_range_without_a_stored_message_changes_nothing(log: Log) -> None:
    sender = await stored(log, 1, 9)
    assert await seqs(log, Hello({}, {sender: [(3, 5)]})) == [1, 9]


async def test_the_excluded_sender_is_left_out_and_no_other(log: Log) -> None:
    for number in range(3):
        await stored(log, 1, 2, sender=number)
    for out in log.senders:
        assert {sender for sender, _ in await log.all_ids(Hello({}, {}, exclude=out))} == set(log.senders) - {out}


async def test_the_largest_seq_in_a_vector_or_range_leaves_nothing_of_its_sender_alone(log: Log) -> None:
    first, second = sorted(log.senders)[:2]
    for sender in (first, second):
        await log.append((sender, MAX_SEQ, full(1)), (sender, 1, full(1)))
    assert await log.all_ids(Hello({first: MAX_SEQ}, {})) == [(second, 1), (second, MAX_SEQ)]
    assert await log.all_ids(Hello({}, {first: [(2, MAX_SEQ)]})) == [(first, 1), (second, 1), (second, MAX_SEQ)]


async def test_the_order_is_that_of_the_sender_bytes_and_then_of_the_seqs(log: Log) -> None:
    for seq in (300, 2, 255, 256, 1, 1 << 40):
        for sender in (2, 0, 1):
            await log.put(log.senders[sender], seq)
    assert await log.all_ids() == [
        (sender, seq) for sender in sorted(log.senders) for seq in (1, 2, 255, 256, 300, 1 << 40)
    ]


async def test_a_group_sends_nothing_of_its_neighbours(tmp_path: Path) -> None:
    for id_ in (b"a" * 32, b"b" * 32, b"c" * 32):
        async with opened(tmp_path, id=id_) as log:
            await stored(log, 1, 2, 3)
    async with opened(tmp_path, id=b"b" * 32) as log:
        assert await log.all_ids() == [(log.senders[0], seq) for seq in (1, 2, 3)]
        _, _, end = await log.page(Backfill(Hello({log.senders[0]: 3}, {})))
        assert not end.has_more


async def test_an_empty_group_gives_an_empty_page(log: Log) -> None:
    messages, holes, end = await log.page(Backfill(NOTHING))
    assert (messages, holes, end.has_more, end.floors) == ([], [], False, [])


# Pages.


async def test_a_page_has_at_most_its_limit_and_the_cursor_goes_on_behind_it(log: Log) -> None:
    sender = await stored(log, 1, 2, 3)
    messages, _, end = await log.page(Backfill(NOTHING, limit=2))
    assert ([message.seq for message in messages], end.has_more) == ([1, 2], True)
    messages, _, end = await log.page(Backfill(NOTHING, limit=2, cursor=end.cursor))
    assert ([(message.sender, message.seq) for message in messages], end.has_more) == ([(sender, 3)], False)


async def test_a_page_that_holds_the_last_message_says_that_no_more_follows(log: Log) -> None:
    await stored(log, 1, 2, 3)
    assert not (await log.page(Backfill(NOTHING, limit=3)))[2].has_more


async def test_rows_that_the_device_does_not_lack_are_not_more(log: Log) -> None:
    first, second = sorted(log.senders)[:2]
    for sender in (first, second):
        await log.append(*((sender, seq, full(seq)) for seq in (1, 2)))
    for hello in (
        Hello({second: 2}, {}),
        Hello({}, {second: [(1, 2)]}),
        Hello({}, {}, exclude=second),
    ):
        messages, _, end = await log.page(Backfill(hello, limit=2))
        assert [message.sender for message in messages] == [first, first]
        assert not end.has_more


async def test_a_page_stops_before_its_bytes_are_passed(log: Log) -> None:
    for seq in (1, 2, 3):
        await log.put(log.senders[0], seq, data=bytes(1_000))
    size = len(full(1, data=bytes(1_000)))
    for most, rows in ((2 * size, 2), (2 * size - 1, 1), (3 * size, 3)):
        messages, _, end = await log.page(Backfill(NOTHING, max_bytes=most))
        assert (len(messages), end.has_more) == (rows, rows < 3)


async def test_a_page_has_a_message_however_large_it_is(log: Log) -> None:
    for seq in (1, 2):
        await log.put(log.senders[0], seq, data=bytes(100_000))
    messages, _, end = await log.page(Backfill(NOTHING, max_bytes=1))
    assert ([message.seq for message in messages], end.has_more) == ([1], True)


async def test_by_default_a_page_has_500_messages(log: Log) -> None:
    await stored(log, *range(1, 502))
    messages, _, end = await log.page(Backfill(NOTHING))
    assert (len(messages), end.has_more) == (500, True)


async def test_a_cursor_whose_message_is_gone_still_goes_on_behind_it(log: Log) -> None:
    sender = await stored(log, 1, 2, 3, 4)
    _, _, end = await log.page(Backfill(NOTHING, limit=2))
    await log.delete(1, {sender: 3})
    messages, _, _ = await log.page(Backfill(NOTHING, cursor=end.cursor))
    assert [message.seq for message in messages] == [4]


async def test_a_cursor_at_the_largest_seq_goes_on_with_the_next_sender(log: Log) -> None:
    first, second = sorted(log.senders)[:2]
    await log.append((first, MAX_SEQ, full(1)), (second, 1, full(1)))
    _, _, end = await log.page(Backfill(NOTHING, limit=1))
    messages, _, end = await log.page(Backfill(NOTHING, limit=1, cursor=end.cursor))
    assert ([(message.sender, message.seq) for message in messages], end.has_more) == ([(second, 1)], False)


async def test_what_is_stored_behind_the_cursor_meanwhile_is_on_a_later_page_or_in_the_next_backfill(log: Log) -> None:
    sender = await stored(log, 3, 4, 6)
    _, _, end = await log.page(Backfill(NOTHING, limit=1))
    await stored(log, 1, 5)
    messages, _, _ = await log.page(Backfill(NOTHING, cursor=end.cursor))
    assert [message.seq for message in messages] == [4, 5, 6]
    assert await seqs(log, Hello({}, {sender: [(3, 6)]})) == [1]


async def test_every_page_tells_the_floors(log: Log) -> None:
    sender = await stored(log, 1, 2, 3, 4)
    await log.delete(2, {sender: 1, log.senders[1]: 8})
    await log.delete(1, {sender: 2})
    expected = sorted([LogFloor(sender, 2, 1), LogFloor(sender, 1, 2), LogFloor(log.senders[1], 2, 8)])
    _, _, end = await log.page(Backfill(NOTHING, limit=1))
    assert (sorted(end.floors), end.has_more) == (expected, True)
    _, _, end = await log.page(Backfill(NOTHING, limit=1, cursor=end.cursor))
    assert (sorted(end.floors), end.has_more) == (expected, False)


# Damaged records.


@pytest.mark.parametrize("at", [0, 1, 3, 4, 19, 20, -1], ids=lambda at: f"byte {at}")
async def test_a_damaged_record_is_a_hole_with_its_id_in_its_place(log: Log, at: int) -> None:
    sender = await stored(log, 1, 2, 3)
    log.damage(sender, 2, at)
    messages, holes, end = await log.page(Backfill(NOTHING))
    assert [message.seq for message in messages] == [1, 3]
    assert (holes, end.has_more) == ([Hole(sender, 2)], False)


async def test_a_record_that_is_cut_short_is_a_hole(log: Log) -> None:
    sender = await stored(log, 1, 2)
    batch = log.rocks.batch()
    batch.put(store.MSG, store.message_key(log.group.ordinal, sender, 1), b"\2\0\0")
    batch.put(store.MSG, store.message_key(log.group.ordinal, sender, 2), b"")
    log.rocks.write(batch)
    messages, holes, _ = await log.page(Backfill(NOTHING))
    assert (messages, holes) == ([], [Hole(sender, 1), Hole(sender, 2)])


async def test_a_hole_counts_as_a_row_of_its_page(log: Log) -> None:
    sender = await stored(log, 1, 2, 3)
    log.damage(sender, 1)
    messages, holes, end = await log.page(Backfill(NOTHING, limit=1))
    assert (messages, holes, end.has_more) == ([], [Hole(sender, 1)], True)
    messages, holes, _ = await log.page(Backfill(NOTHING, cursor=end.cursor))
    assert ([message.seq for message in messages], holes) == ([2, 3], [])


async def test_a_damaged_record_that_the_device_has_is_no_hole_for_it(log: Log) -> None:
    sender = await stored(log, 1, 2)
    log.damage(sender, 1)
    _, holes, _ = await log.page(Backfill(Hello({sender: 1}, {})))
    assert holes == []


async def test_a_damaged_record_that_a_backfill_met_is_listed_by_storage(log: Log) -> None:
    sender = await stored(log, 1, 2)
    log.damage(sender, 2)
    await log.page(Backfill(NOTHING))
    (corrupt,) = (await log.service.storage(log.group)).corrupt
    assert (corrupt.sender, corrupt.seq) == (sender.hex(), 2)


async def test_a_damaged_record_is_an_error_that_names_its_id_where_it_is_read_alone(log: Log) -> None:
    sender = await stored(log, 1)
    log.damage(sender, 1)
    with pytest.raises(DamagedRecord) as caught:
        await log.service.message(log.group, sender, 1)
    assert (STATUS[caught.value.code], caught.value.members) == (500, {"sender": sender.hex(), "seq": 1})


# What it costs.


class CountedIterator:
    """An iterator of the log. Counts its seeks and steps."""

    def __init__(self, iterator: RocksIterator) -> None:
        self._iterator = iterator
        self.seeks = self.steps = 0

    def seek(self, key: bytes) -> None:
        self.seeks += 1
        self._iterator.seek(key)

    def next(self) -> None:
        self.steps += 1
        self._iterator.next()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


async def test_a_backfill_costs_two_seeks_a_sender_and_a_step_a_row_however_much_the_device_has(log: Log) -> None:
    for number in range(3):
        await stored(log, *range(1, 1_001), sender=number)
    first, second, third = sorted(log.senders)
    hello = Hello({first: 995, second: 900}, {second: [(903, 950), (960, 1_000)]}, exclude=third)
    iterator: Any = CountedIterator(store.messages(log.rocks, log.group.ordinal))
    found = len(list(lacking_rows(iterator, log.group.ordinal, Lacking(hello))))
    assert found == 5 + 2 + 9
    assert iterator.seeks <= 2 * 3 + 2
    assert iterator.steps == found


# Any rows, any request.

which = st.integers(0, 2)
numbers = st.integers(1, 30)


@st.composite
def ranges_above(draw: st.DrawFn, above: int) -> list[tuple[int, int]]:
    found = []
    for gap, length in draw(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), max_size=4)):
        first = above + gap
        found.append((first, first + length))
        above = first + length + 1
    return found


@st.composite
def hellos(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, list[tuple[int, int]]], int | None]:
    vector = draw(st.dictionaries(which, st.integers(0, 32), max_size=3))
    have = {who: draw(ranges_above(vector.get(who, 0))) for who in draw(st.sets(which))}
    return vector, {who: ranges for who, ranges in have.items() if ranges}, draw(st.none() | which)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """One log for all examples: each replaces its rows."""
    opening = opened(tmp_path_factory.mktemp("log"))
    yield runner.run(opening.__aenter__())
    runner.run(opening.__aexit__(None, None, None))


@settings(max_examples=150)
@given(
    ids=st.sets(st.tuples(which, numbers), max_size=40),
    damaged=st.sets(st.tuples(which, numbers), max_size=4),
    asked=hellos(),
    limit=st.integers(1, 12),
    max_bytes=st.sampled_from((1, 100, 400, 1 << 20)),
)
def test_the_pages_together_are_what_a_dictionary_says_whatever_is_stored_and_asked(
    runner: asyncio.Runner,
    shared: Log,
    ids: set[tuple[int, int]],
    damaged: set[tuple[int, int]],
    asked: tuple[dict[int, int], dict[int, list[tuple[int, int]]], int | None],
    limit: int,
    max_bytes: int,
) -> None:
    senders = shared.senders
    rows = {(senders[who], seq): full(seq) for who, seq in ids}
    _replace_rows(shared, rows)
    broken = {(senders[who], seq) for who, seq in damaged & ids}
    for id_ in broken:
        shared.damage(*id_)
    vector, have, exclude = asked
    hello = Hello(
        {senders[who]: seq for who, seq in vector.items()},
        {senders[who]: ranges for who, ranges in have.items()},
        None if exclude is None else senders[exclude],
    )
    expected = lacking(rows, hello)
    found: list[Id] = []
    cursor, has_more = b"", True
    while has_more:
        messages, holes, end = runner.run(shared.page(Backfill(hello, limit, max_bytes, cursor)))
        page = sorted([(one.sender, one.seq) for one in (*messages, *holes)])
        assert [(one.sender, one.seq) for one in messages] == [id_ for id_ in page if id_ not in broken]
        assert all(one.record == rows[one.sender, one.seq] for one in messages)
        assert {(one.sender, one.seq) for one in holes} == broken & set(page)
        assert 1 <= len(page) <= limit or not expected
        assert len(page) <= 1 or sum(len(rows[id_]) for id_ in page) <= max_bytes
        found += page
        cursor, has_more = end.cursor, end.has_more
        assert has_more == (len(found) < len(expected))
    assert found == expected


def _replace_rows(log: Log, rows: Mapping[Id, bytes]) -> None:
    batch = log.rocks.batch()
    batch.delete_range(store.MSG, *store.span(log.group.ordinal))
    for (sender, seq), record in rows.items():
        store.put_message(batch, log.group.ordinal, sender, seq, 0, record)
    log.rocks.write(batch)
