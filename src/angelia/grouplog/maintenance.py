"""Background work of a node: counting and compacting after deletions, and the scrub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import structlog

from angelia.errors import DamagedRecord, GroupDropped, NoGroup
from angelia.grouplog import store
from angelia.grouplog.damage import DamagedPart
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model import records
from angelia.grouplog.model.frames import Hello
from angelia.grouplog.spool import Spool
from angelia.grouplog.store import ScrubPosition
from angelia.grouplog.walk import Lacking, lacking_rows
from angelia.stores.rocks import Rocks, RocksBatch, RocksIterator, check_iterator, reads_at

COMPACT_BYTES = 64 << 20  # deleted from a group, before its keys are compacted
FLUSH_RANGES = 5_000  # deleted in all groups: while they are in memory only, each one slows every new iterator
SCRUB_EVERY = timedelta(days=7)  # a pass begins; it must be done within another week
SCRUB_RATE = 5_000_000  # bytes a second
NOTE_SECONDS = 10.0  # between two notes of how far the scrub is
_STEP_BYTES = 1 << 20
_EVERYTHING = Lacking(Hello({}, {}))
log = structlog.get_logger(__name__)


class SpoolMaintenance:
    """Runs one thing at a time, so that it takes little from the requests."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._changed: dict[bytes, LiveGroup] = {}  # groups in which something was deleted, in the order of that
        self._dropped: list[LiveGroup] = []
        self._damaged: dict[bytes, LiveGroup] = {}
        self._ranges = 0  # deleted, since what is in memory was written to the disk
        self._wake = asyncio.Event()

    def after_deletion(self, group: LiveGroup, ranges: int) -> None:
        """Counts a group again, since a deletion does not read what it removes, and gives its space back."""
        self._changed[group.id] = group
        self._ranges += ranges
        self._wake.set()

    def after_damage(self, group: LiveGroup) -> None:
        """Writes down what was found to be damaged, if that is new."""
        if group.damage_changed:
            self._damaged[group.id] = group
            self._wake.set()

    def after_drop(self, group: LiveGroup) -> None:
        """Gives the space of a group back."""
        self._changed.pop(group.id, None)
        self._dropped.append(group)
        self._wake.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        for group in self._spool.uncounted:
            self.after_deletion(group, 0)
        self._spool.uncounted = []
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._changed or self._dropped or self._damaged:
                try:
                    await self._next()
                except Exception as error:
                    log.exception("the maintenance of a group failed", error=str(error))

    async def _next(self) -> None:
        if self._ranges >= FLUSH_RANGES:
            self._ranges = 0
            await _to_its_end(partial(self._spool.rocks.flush, store.MSG))
        if self._dropped:
            await self._compact(self._dropped.pop())
            return
        if self._damaged:
            await self._spool.run(SaveDamage(self._damaged.pop(next(iter(self._damaged)))))
            return
        id_ = next(iter(self._changed))
        await self.settle(self._changed.pop(id_))

    async def settle(self, group: LiveGroup) -> None:
        deletions = group.deletions
        iterator, before = await self._spool.run(BeginCount(group))
        counted = await self._spool.read(partial(_counted, self._spool.rocks, group, iterator))
        del iterator  # the database cannot close while it lives
        await self._spool.run(EndCount(group, counted - before, deletions))
        if before - counted >= COMPACT_BYTES:
            await self._compact(group)

    async def _compact(self, group: LiveGroup) -> None:
        for family in (store.MSG, store.HI):
            await _to_its_end(partial(self._spool.rocks.compact, family, *store.span(group.ordinal)))


async def _to_its_end(work: Callable[[], None]) -> None:
    """Runs work in a thread, and waits for its end also when it is cancelled: the database must not close before."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


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

    def __init__(self, group: LiveGroup, correction: int, deletions: int) -> None:
        """`deletions` is how many there were before the count began: one that came since is to be counted again."""
        self._group = group
        self._correction = correction
        self._deletions = deletions

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        self._group.check_live()
        self._total = self._group.stored_bytes + self._correction
        store.put_stored_bytes(batch, self._group.id, self._total)
        if self._group.deletions == self._deletions:
            store.put_counted(batch, self._group.id)

    def finish(self) -> None:
        self._group.stored_bytes = self._total

    def undo(self) -> None:
        self._group.reload()


def _counted(rocks: Rocks, group: LiveGroup, iterator: RocksIterator) -> int:
    """The bytes of all messages that can be read."""
    rows = lacking_rows(iterator, group.ordinal, _EVERYTHING, damage=DamagedPart(rocks, group))
    return sum(store.ROW_OVERHEAD + len(record or b"") for _, record in rows)


class SaveDamage:
    """Writes down which messages of a group are damaged, so that a restart does not forget it."""

    alone, messages, size = False, 0, 0

    def __init__(self, group: LiveGroup) -> None:
        self._group = group

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        self._group.check_live()
        self._group.damage_changed = False
        store.put_corrupt(batch, self._group.id, sorted(self._group.corrupt))

    def finish(self) -> None:
        return None

    def undo(self) -> None:
        self._group.damage_changed = True


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
            except Exception as error:
                log.exception("the scrub stopped", error=str(error))
            await asyncio.sleep(3600)

    async def one_pass(self, rate: int = SCRUB_RATE) -> None:
        """Goes on with the pass that is under way, or begins one if it is due."""
        position = await self._spool.read(partial(store.scrub_position, self._spool.rocks))
        now = self._clock()
        if position is not None and position.after is None:
            if now - position.began_at < SCRUB_EVERY:
                return
            position = None
        began_at, after = (now, b"") if position is None else (position.began_at, position.after)
        noted_at = time.monotonic()
        while after is not None:
            began = time.monotonic()
            size, after, corrupt, unread = await self._spool.read(partial(self._step, after))
            await self._note(corrupt, unread)
            if after is None or began - noted_at >= NOTE_SECONDS:
                noted_at = began
                await self._spool.run(_NoteScrub(ScrubPosition(began_at, after)))
            await asyncio.sleep(max(0.0, size / rate - (time.monotonic() - began)))

    def _step(self, after: bytes) -> tuple[int, bytes | None, list[tuple[int, bytes, int]], int | None]:
        """Checks about a mebibyte of records. Returns how many bytes, the last key or None at the end, which are
        damaged, and the ordinal of a group that the disk does not let read through: then it went on behind that."""
        iterator = store.all_messages(self._spool.rocks, after)
        size, corrupt = 0, []
        while iterator.valid():
            after, record = iterator.key(), iterator.value()
            size += len(record)
            if not records.is_sound(record):
                corrupt.append((store.ordinal_of(after), *store.message_id(after)))
            if size >= _STEP_BYTES:
                return size, after, corrupt, None
            iterator.next()
        try:
            check_iterator(iterator)
        except DamagedRecord:
            unread = self._unread_ordinal(after)
            return size, store.behind(unread), corrupt, unread
        return size, None, corrupt, None

    def _unread_ordinal(self, after: bytes) -> int:
        """The group of the first message behind a key that cannot be read."""
        rocks = self._spool.rocks
        known = store.ordinal_of(after) if after else 0
        ordinals = sorted(row.ordinal for _, row in store.all_groups(rocks) if row.ordinal >= known)
        for ordinal in ordinals:
            first = store.span(ordinal)[0]
            if not reads_at(store.messages(rocks, ordinal), max(first, after + b"\0")):
                return ordinal
        return known

    async def _note(self, corrupt: list[tuple[int, bytes, int]], unread: int | None) -> None:
        if not corrupt and unread is None:
            return
        groups = await self._spool.read(lambda: {row.ordinal: id_ for id_, row in store.all_groups(self._spool.rocks)})
        changed = {}
        for ordinal, sender, seq in corrupt:
            log.error("a stored record is damaged", sender=sender.hex()[:4], seq=seq)
            if (group := await self._group(groups.get(ordinal))) is not None:
                group.note_corrupt(sender, seq)
                changed[group.id] = group
        if unread is not None and (group := await self._group(groups.get(unread))) is not None:
            log.error("a part of the disk is damaged", group_ordinal=unread)
            await self._spool.read(partial(self._find_damage, group))
            changed[group.id] = group
        for group in changed.values():
            await self._spool.run(SaveDamage(group))

    async def _group(self, id_: bytes | None) -> LiveGroup | None:
        try:
            return None if id_ is None else await self._spool.groups.live(id_)
        except (NoGroup, GroupDropped):
            return None

    def _find_damage(self, group: LiveGroup) -> None:
        """Notes every message of a group that cannot be read."""
        rocks = self._spool.rocks
        iterator = store.messages(rocks, group.ordinal)
        for id_, record in lacking_rows(iterator, group.ordinal, _EVERYTHING, damage=DamagedPart(rocks, group)):
            if record is None or not records.is_sound(record):
                group.note_corrupt(*store.message_id(id_))


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
