"""The log as a machine: whatever is done in whatever order, also over crashes, it does what a dictionary does."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from angelia.errors import GroupDropped, MessageConflict
from angelia.grouplog import store
from angelia.grouplog.group_changes import Drop
from angelia.grouplog.model.frames import Backfill, Hello, Status
from angelia.grouplog.model.groups import LogFloor
from grouplog.open_logs import Id, Log, check_families, full, opened

T = TypeVar("T")
HIGHEST = 12
which = st.integers(0, 2)
seqs = st.integers(1, HIGHEST)
levels = st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3))
messages = st.tuples(which, seqs, levels, st.sampled_from((b"", b"", b"", b"other")))
watermarks = st.dictionaries(which, st.integers(0, HIGHEST + 2), min_size=1, max_size=3)
numbers = count(1)


class LogMachine(RuleBasedStateMachine):
    directory: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.place = self.directory / f"log-{next(numbers)}"
        self.rows: dict[Id, bytes] = {}
        self.deletions: list[tuple[int, dict[bytes, int]]] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    @initialize()
    def open(self) -> None:
        self.place.mkdir(exist_ok=True)
        self.log: Log = self.run(self.stack.enter_async_context(opened(self.place)))
        self.senders = self.log.senders

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()

    # What the model says.

    def is_superseded(self, sender: bytes, seq: int, level: int) -> bool:
        return any(level < above and seq <= mark.get(sender, 0) for above, mark in self.deletions)

    def expected(self, batch: list[tuple[bytes, int, int, bytes]]) -> list[Status] | None:
        """What becomes of a request; None if it is a conflict. Stores what it stores."""
        rows, statuses = dict(self.rows), []
        for sender, seq, level, record in batch:
            there = rows.get((sender, seq))
            if self.is_superseded(sender, seq, level):
                statuses.append(Status.SUPERSEDED)
            elif there is None:
                rows[sender, seq] = record
                statuses.append(Status.STORED)
            elif there == record:
                statuses.append(Status.DUPLICATE)
            else:
                return None
        self.rows = rows
        return statuses

    def lowest_floors(self) -> set[LogFloor]:
        every = {
            LogFloor(sender, level, seq) for level, mark in self.deletions for sender, seq in mark.items() if seq > 0
        }
        return {
            one
            for one in every
            if not any(
                other != one and other.sender == one.sender and other.level >= one.level and other.seq >= one.seq
                for other in every
            )
        }

    # What is done.

    @rule(batch=st.lists(messages, min_size=1, max_size=5))
    def append(self, batch: list[tuple[int, int, int, bytes]]) -> None:
        sent = [
            (self.senders[who], seq, level, full(seq, level, b"%d %d" % (who, seq) + more))
            for who, seq, level, more in batch
        ]
        expected = self.expected(sent)
        request = self.log.append(*((sender, seq, record) for sender, seq, _, record in sent))
        if expected is None:
            with pytest.raises(MessageConflict):
                self.run(request)
        else:
            assert self.run(request) == expected

    @rule(level=st.integers(1, 4), watermark=watermarks)
    def delete(self, level: int, watermark: dict[int, int]) -> None:
        self.forget(level, {self.senders[who]: seq for who, seq in watermark.items()})

    @rule(number=st.integers(0, 30))
    def delete_again(self, number: int) -> None:
        if self.deletions:
            self.forget(*self.deletions[number % len(self.deletions)])

    def forget(self, level: int, watermark: dict[bytes, int]) -> None:
        kept = {id_ for id_, record in self.log.rows().items() if record[2] >= level}
        self.run(self.log.delete(level, watermark))
        self.deletions.append((level, watermark))
        assert kept <= set(self.log.rows()), "a row of the level or a higher one is gone"
        self.rows = {id_: record for id_, record in self.rows.items() if not self.is_superseded(*id_, record[2])}

    @rule(
        vector=st.dictionaries(which, st.integers(0, HIGHEST), max_size=3),
        have=st.dictionaries(which, st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=2),
        exclude=st.none() | which,
        limit=st.integers(1, 6),
        max_bytes=st.sampled_from((1, 60, 150, 1 << 20)),
    )
    def backfill(
        self,
        vector: dict[int, int],
        have: dict[int, tuple[int, int]],
        exclude: int | None,
        limit: int,
        max_bytes: int,
    ) -> None:
        ranges = {who: (vector.get(who, 0) + gap, vector.get(who, 0) + gap + more) for who, (gap, more) in have.items()}
        hello = Hello(
            {self.senders[who]: seq for who, seq in vector.items()},
            {self.senders[who]: [found] for who, found in ranges.items()},
            None if exclude is None else self.senders[exclude],
        )
        lacking = [
            (sender, seq)
            for sender, seq in sorted(self.rows)
            if sender != hello.exclude
            and seq > hello.vector.get(sender, 0)
            and not any(first <= seq <= last for first, last in hello.have.get(sender, []))
        ]
        found: list[Id] = []
        cursor, has_more = b"", True
        while has_more:
            page, holes, end = self.run(self.log.page(Backfill(hello, limit, max_bytes, cursor)))
            assert not holes
            assert all(message.record == self.rows[message.sender, message.seq] for message in page)
            assert len(page) <= limit
            assert len(page) == 1 or sum(len(message.record) for message in page) <= max_bytes
            found += [(message.sender, message.seq) for message in page]
            cursor, has_more = end.cursor, end.has_more
            assert page or not lacking, "a page without a row has nothing behind it"
            assert has_more == (len(found) < len(lacking))
            assert set(end.floors) == self.lowest_floors()
        assert found == lacking

    @rule()
    def reopen(self) -> None:
        self.run(self.stack.aclose())
        self.open()

    @rule()
    def crash(self) -> None:
        """What a node that dies now leaves on its disk is opened, and what it had in memory is gone."""
        before, self.place = self.place, self.directory / f"log-{next(numbers)}"
        copy_at_rest(before, self.place)
        (self.place / "log" / "LOCK").unlink()
        self.run(self.stack.aclose())
        self.open()

    # What always holds.

    @invariant()
    def the_families_agree_with_the_model(self) -> None:
        assert check_families(self.log.rocks, self.log.group.ordinal) == self.rows
        assert set(store.floors(self.log.rocks, self.log.group.ordinal)) == self.lowest_floors()

    @invariant()
    def memory_agrees_with_the_disk(self) -> None:
        group = self.log.group
        assert set(group.floors()) == self.lowest_floors()
        assert group.staged == {}
        assert group.stored_bytes == store.stored_bytes(self.log.rocks, group.id)
        assert group.stored_bytes >= self.log.true_bytes()

    @invariant()
    def the_held_vector_is_the_highest_seq_of_each_sender(self) -> None:
        held = dict(sorted(self.rows))  # of the pairs of one sender the last stays
        assert dict(store.held(self.log.rocks, self.log.group.ordinal)) == held


def copy_at_rest(before: Path, after: Path) -> None:
    """Copies a directory as it is at one moment: RocksDB may be about to replace files by compacted ones."""
    while True:
        found = files_of(before)
        with contextlib.suppress(shutil.Error):
            shutil.copytree(before, after)
            if files_of(before) == found:
                return
        shutil.rmtree(after)


def files_of(directory: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_size) for path in (directory / "log").iterdir()}


def test_the_log_does_what_a_dictionary_does(tmp_path: Path) -> None:
    LogMachine.directory = tmp_path
    run_state_machine_as_test(LogMachine, settings=settings(max_examples=25, stateful_step_count=30))


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_the_log_does_what_a_dictionary_does_for_long(tmp_path: Path) -> None:
    LogMachine.directory = tmp_path
    run_state_machine_as_test(LogMachine, settings=settings(max_examples=2_000, stateful_step_count=60))


async def test_a_dropped_group_leaves_nothing_in_any_family_and_its_neighbour_everything(tmp_path: Path) -> None:
    async with opened(tmp_path, id=b"a" * 32) as log:
        other_group = log.group
        await log.put(log.senders[0], 1)
        await log.put(log.senders[0], 2, level=1)
    async with opened(tmp_path) as log:
        sender = log.senders[0]
        for seq in range(1, 6):
            await log.put(sender, seq, level=seq % 2)
        await log.delete(1, {sender: 2})
        await log.spool.run(Drop(log.spool.groups, log.group, sender, log.spool.subscriptions))
        for family in (store.MSG, store.HI, store.FLOOR):
            assert not log.rocks.iterator(family, *store.span(log.group.ordinal)).valid()
        with pytest.raises(GroupDropped):
            await log.put(sender, 9)
        assert len(check_families(log.rocks, other_group.ordinal)) == 2
    async with opened(tmp_path, id=b"c" * 32) as log:
        assert log.group.ordinal == other_group.ordinal + 2, "an ordinal is never given again"
