"""Background work of a node: counting and compacting after deletions, and the scrub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import structlog

from angelia.errors import AngeliaError, NoGroup
from angelia.grouplog import store
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model import records
from angelia.grouplog.spool import Spool
from angelia.grouplog.store import ScrubPosition
from angelia.stores.rocks import Rocks, RocksBatch, RocksIterator, check_iterator

COMPACT_BYTES = 64 << 20  # deleted from a group, before its keys are compacted
SCRUB_EVERY = timedelta(days=7)  # a pass begins; it must be done within another week
SCRUB_RATE = 5 << 20  # bytes a second
_STEP_BYTES = 1 << 20
log = structlog.get_logger(__name__)


class SpoolMaintenance:
    """Runs one thing at a time, so that it takes little from the requests."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._waiting: asyncio.Queue[LiveGroup] = asyncio.Queue()

    def after_deletion(self, group: LiveGroup) -> None:
        """Counts a group again, since a deletion does not read what it removes, and gives its space back."""
        self._waiting.put_nowait(group)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        for group in self._spool.uncounted:
            self.after_deletion(group)
        self._spool.uncounted = []
        while True:
            group = await self._waiting.get()
            try:
                await self.settle(group)
            except AngeliaError as error:
                log.warning("a group could not be counted after a deletion", error=str(error))

    async def settle(self, group: LiveGroup) -> None:
        iterator, before = await self._spool.run(BeginCount(group))
        counted = await self._spool.read(partial(_counted, iterator))
        del iterator  # the database cannot close while it lives
        await self._spool.run(EndCount(group, counted - before))
        if before - counted >= COMPACT_BYTES:
            await asyncio.to_thread(self._spool.rocks.compact, store.MSG, *store.span(group.ordinal))


class BeginCount:
    """Opens an iterator over a group's messages. Returns it with the bytes that the group is thought to have now."""

    alone, messages, size = True, 0, 0

    def __init__(self, group: LiveGroup) -> None:
        self._group = group

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        self._group.check_live()
        self._iterator = store.messages(rocks, self._group.ordinal)

    def finish(self) -> tuple[RocksIterator, int]:
        iterator = self._iterator
        del self._iterator
        return iterator, self._group.stored_bytes

    def undo(self) -> None:
        return None


class EndCount:
    """Corrects the bytes of a group by what a count found. What was stored meanwhile is in the present number."""

    alone, messages, size = True, 0, 0

    def __init__(self, group: LiveGroup, correction: int) -> None:
        self._group = group
        self._correction = correction

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        self._group.check_live()
        self._total = self._group.stored_bytes + self._correction
        store.put_counted(batch, self._group.id, self._total)

    def finish(self) -> None:
        self._group.stored_bytes = self._total

    def undo(self) -> None:
        self._group.reload()


def _counted(iterator: RocksIterator) -> int:
    total = 0
    while iterator.valid():
        total += store.ROW_OVERHEAD + len(iterator.value())
        iterator.next()
    check_iterator(iterator)
    return total


class Scrub:
    """Hashes every stored record again, slowly, and names those that are damaged."""

    def __init__(self, spool: Spool, clock: Callable[[], datetime]) -> None:
        self._spool = spool
        self._clock = clock

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                await self.one_pass()
            except AngeliaError as error:
                log.error("the scrub stopped", error=str(error))
            await asyncio.sleep(3600)

    async def one_pass(self, rate: int = SCRUB_RATE) -> None:
        """Goes on with the pass that is under way, or begins one if it is due."""
        position = await self._spool.read(partial(store.scrub_position, self._spool.rocks))
        now = self._clock()
        if position is not None and position.after is None and now - position.began_at < SCRUB_EVERY:
            return
        if position is None or position.after is None:
            position = ScrubPosition(now, b"")
        groups = await self._spool.read(lambda: {row.ordinal: id_ for id_, row in store.all_groups(self._spool.rocks)})
        after: bytes | None = position.after
        while after is not None:
            began = time.monotonic()
            size, after, corrupt = await self._spool.read(partial(self._step, after))
            await self._note(groups, corrupt)
            await self._spool.run(_NoteScrub(ScrubPosition(position.began_at, after)))
            await asyncio.sleep(max(0.0, size / rate - (time.monotonic() - began)))

    def _step(self, after: bytes) -> tuple[int, bytes | None, list[tuple[int, bytes, int]]]:
        """Checks about a mebibyte of records. Returns how many bytes, the last key or None at the end, and which are
        damaged."""
        iterator = store.all_messages(self._spool.rocks, after)
        size, corrupt = 0, []
        while iterator.valid():
            after, record = iterator.key(), iterator.value()
            size += len(record)
            if not records.is_sound(record):
                corrupt.append((store.ordinal_of(after), *store.message_id(after)))
            if size >= _STEP_BYTES:
                return size, after, corrupt
            iterator.next()
        check_iterator(iterator)
        return size, None, corrupt

    async def _note(self, groups: dict[int, bytes], corrupt: list[tuple[int, bytes, int]]) -> None:
        for ordinal, sender, seq in corrupt:
            log.error("a stored record is damaged", sender=sender.hex()[:4], seq=seq)
            if ordinal in groups:
                try:
                    (await self._spool.groups.find(groups[ordinal])).note_corrupt(sender, seq)
                except NoGroup:
                    log.debug("its group is gone")


class _NoteScrub:
    """Writes down how far the scrub is."""

    alone, messages, size = False, 0, 0

    def __init__(self, position: ScrubPosition) -> None:
        self._position = position

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        store.put_scrub_position(batch, self._position)

    def finish(self) -> None:
        return None

    def undo(self) -> None:
        return None
