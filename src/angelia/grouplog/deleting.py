"""Deletion before a watermark: ranges between the snapshots that stay, so no message is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from angelia import metrics
from angelia.errors import AbsurdWatermark, AngeliaError
from angelia.grouplog import store
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model.groups import LogFloor
from angelia.grouplog.subscriptions import Subscriptions
from angelia.stores.rocks import Rocks, RocksBatch, RocksIterator

MOST_OPERATIONS = 50_000  # of one batch
MOST_UNSEEN = 1_000_000  # messages above what the node knows of a sender


class Deleted(msgspec.Struct, frozen=True):
    """The new floors, and how many ranges and single rows were removed. Messages are not counted: that would mean to
    read them."""

    floors: list[LogFloor]
    ranges: int
    points: int


class Deletion:
    """Forgets every message below a level up to the watermark of its sender. Doing it twice changes nothing."""

    alone = True
    messages = 0

    def __init__(
        self, group: LiveGroup, level: int, watermark: Mapping[bytes, int], subscriptions: Subscriptions
    ) -> None:
        self._group = group
        self._level = level
        # Strangers' ids have nothing here that could be deleted, and their floors would only take room.
        self._watermark = {sender: seq for sender, seq in watermark.items() if group.knows(sender)}
        self._subscriptions = subscriptions
        self.size = 24 * len(self._watermark)
        self._floors: list[LogFloor] = []
        self._untold: list[LogFloor] = []  # floors that are not in memory yet, nor told to subscribers
        self._ranges = self._points = 0
        self._gone_corrupt: set[tuple[bytes, int]] = set()

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        self._group.check_live()
        self._check_watermark()
        every = store.all_levels(rocks, self._group.ordinal)
        corrupt: dict[bytes, set[int]] = {}
        for sender, seq in list(self._group.corrupt):
            corrupt.setdefault(sender, set()).add(seq)
        parts = [
            part
            for sender in sorted(self._watermark)
            if (part := self._part(every, sender, corrupt.get(sender, set()))) is not None
        ]
        if sum(part.operations for part in parts) > MOST_OPERATIONS:
            self._write_ahead(rocks, parts[:-1])
            parts = parts[-1:]
        for part in parts:
            part.write(batch, self._group)
        if parts:
            store.put_must_be_counted(batch, self._group.id)
        if store.pending_deletion(rocks, self._group.id) == self._as_pending():
            store.put_pending_deletion(batch, self._group.id, None)

    def finish(self) -> Deleted:
        for floor in self._untold:
            self._tell(floor)
        self._group.corrupt -= self._gone_corrupt
        self._group.deletions += bool(self._floors)
        metrics.LOG_DELETED_RANGES.inc(self._ranges)
        return Deleted(self._floors, self._ranges, self._points)

    def undo(self) -> None:
        self._group.reload()

    def _check_watermark(self) -> None:
        """A node may rightly not have seen the newest messages, but a floor near the largest seq would swallow all that
        a sender will ever write."""
        for sender, seq in self._watermark.items():
            known = self._group.highest(sender)
            if seq > known + MOST_UNSEEN:
                raise AbsurdWatermark(
                    f"the watermark of sender {sender.hex()[:4]}… is {seq:,}, and this node has seen {known:,}",
                    hint=f"it may be at most {MOST_UNSEEN:,} above",
                )

    def _write_ahead(self, rocks: Rocks, parts: Sequence[_Part]) -> None:
        """Writes all senders but the last, each in a batch of its own. The first batch says what is under way, so that
        a node that dies in between does it again."""
        for number, part in enumerate(parts):
            batch = rocks.batch()
            if number == 0:
                store.put_pending_deletion(batch, self._group.id, self._as_pending())
                store.put_must_be_counted(batch, self._group.id)
            part.write(batch, self._group)
            try:
                rocks.write(batch)
            except AngeliaError:
                self._group.reload()
                raise
            self._tell(part.floor)
            self._untold.remove(part.floor)

    def _tell(self, floor: LogFloor) -> None:
        self._group.set_floors([floor])
        self._subscriptions.announce(self._group.id, floor)

    def _as_pending(self) -> store.PendingDeletion:
        return store.PendingDeletion(self._level, {sender.hex(): seq for sender, seq in self._watermark.items()})

    def _part(self, every: RocksIterator, sender: bytes, corrupt: set[int]) -> _Part | None:
        """What is to be removed of one sender; None if a floor covers it already. `every` goes over all levels, and
        `corrupt` names the sender's messages that are damaged."""
        group, up_to = self._group, self._watermark[sender]
        if up_to <= group.floor_above(sender, self._level):
            return None
        gone = group.floor_above(sender, 0)  # of level 0 nothing is left up to here
        part = _Part(LogFloor(sender, self._level, up_to))
        first = gone + 1
        corrupt = {seq for seq in corrupt if seq <= up_to}
        for seq, level in store.levels(every, group.ordinal, sender, up_to):
            if level < self._level:
                part.snapshots.append((seq, seq > gone))
                continue
            corrupt.discard(seq)
            if seq > gone:
                part.add_range(first, seq - 1)
                first = seq + 1
        part.add_range(first, up_to)
        self._gone_corrupt.update((sender, seq) for seq in corrupt)
        self._floors.append(part.floor)
        self._untold.append(part.floor)
        self._ranges += len(part.ranges)
        self._points += len(part.snapshots)
        return part


class _Part:
    """What is removed of one sender."""

    def __init__(self, floor: LogFloor) -> None:
        self.floor = floor
        self.ranges: list[tuple[int, int]] = []
        self.snapshots: list[tuple[int, bool]] = []  # seq, and whether a range removes the message

    @property
    def operations(self) -> int:
        return len(self.ranges) + 2 * len(self.snapshots) + 2

    def add_range(self, first: int, last: int) -> None:
        if first <= last:
            self.ranges.append((first, last))

    def write(self, batch: RocksBatch, group: LiveGroup) -> None:
        ordinal, sender = group.ordinal, self.floor.sender
        for first, last in self.ranges:
            store.delete_messages(batch, ordinal, sender, first, last)
        for seq, in_range in self.snapshots:
            if in_range:
                store.delete_level(batch, ordinal, sender, seq)
            else:
                store.delete_snapshot(batch, ordinal, sender, seq)
        for level in group.lower_floors(self.floor):
            store.delete_floor(batch, ordinal, sender, level)
        store.put_floor(batch, ordinal, self.floor, group.highest(sender))
