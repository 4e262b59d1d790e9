"""A group in the memory of its node: its row, floors, and what is known of each sender. The writer thread changes it,
between two commits; others read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from angelia import metrics
from angelia.errors import BadManifest, DamagedRecord, GroupDropped, NotMember
from angelia.grouplog import store
from angelia.grouplog.model import records
from angelia.grouplog.model.groups import GroupMember, GroupState, LogFloor, LogGroupRow
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.pieces import verified_manifest
from angelia.grouplog.model.records import Kind
from angelia.stores.rocks import Rocks

_MOST_CORRUPT = 10_000


class LiveGroup:
    def __init__(self, rocks: Rocks, id: bytes, row: LogGroupRow) -> None:
        self._rocks = rocks
        self.id = id
        self.row = row
        self.corrupt = set(store.corrupt(rocks, id))
        self.damage_changed = False
        self.deletions = 0  # carried out since the group was loaded
        self._load()

    def _load(self) -> None:
        self._highest: dict[bytes, int] = {}
        self.staged: dict[tuple[bytes, int], bytes] = {}  # records of the commit that is under way
        floors: dict[bytes, dict[int, int]] = {}
        seen: dict[bytes, int] = {}
        for floor, highest in store.floor_rows(self._rocks, self.ordinal):
            floors.setdefault(floor.sender, {})[floor.level] = floor.seq
            seen[floor.sender] = max(highest, seen.get(floor.sender, 0))
        self._floors, self._seen = floors, seen
        self.stored_bytes = store.stored_bytes(self._rocks, self.id)

    def reload(self) -> None:
        """Reads again what is stored, after a write that failed: it may be there or not."""
        self.row = store.group(self._rocks, self.id) or self.row
        self._load()

    @property
    def row(self) -> LogGroupRow:
        return self._row

    @row.setter
    def row(self, row: LogGroupRow) -> None:
        self._row = row
        self._members = {member.key_id: member for member in row.roster.members}
        self._senders = {member.sender for member in row.roster.members} if row.state is GroupState.LIVE else set()
        self._known = self._senders | {member.sender for member in row.roster.past}

    @property
    def ordinal(self) -> int:
        return self._row.ordinal

    def check_live(self) -> None:
        if self._row.state is GroupState.DROPPED:
            raise GroupDropped

    def check_member(self, sender: bytes) -> None:
        if sender not in self._senders:
            raise NotMember("you are not a member of the group any more")

    def member(self, key_id: UUID) -> GroupMember | None:
        """The present member with this key."""
        return self._members.get(key_id)

    def is_true_shard(self, sender: bytes, seq: int, record: bytes) -> bool:
        """Whether a stored shard is of the manifest that it comes with; True for a whole message."""
        found = records.decode(record)
        if found.kind is Kind.FULL:
            return True
        try:
            manifest = verified_manifest(found.manifest, self.id, sender, seq, self._row.roster.signer(sender))
        except BadManifest:
            return False
        numbers = (manifest.level, manifest.data_shards, len(manifest.places))
        same = numbers == (found.level, found.data_shards, found.total_shards)
        return same and manifest.fits(found.index, found.data)

    # Floors.

    def is_superseded(self, sender: bytes, seq: int, level: int) -> bool:
        floors = self._floors.get(sender)
        return floors is not None and any(level < above and seq <= up_to for above, up_to in floors.items())

    def floor_above(self, sender: bytes, level: int) -> int:
        """The greatest floor of a sender at this level or a higher one; 0 if there is none."""
        floors = self._floors.get(sender, {})
        return max((seq for above, seq in floors.items() if above >= level), default=0)

    def floors(self) -> list[LogFloor]:
        found = list(self._floors.items())
        return sorted(LogFloor(sender, level, seq) for sender, levels in found for level, seq in levels.items())

    def lower_floors(self, floor: LogFloor) -> Iterator[int]:
        """The levels of a sender's floors that a new floor replaces."""
        for level, seq in self._floors.get(floor.sender, {}).items():
            if level < floor.level and seq <= floor.seq:
                yield level

    def set_floors(self, floors: Iterable[LogFloor]) -> None:
        for floor in floors:
            lower = set(self.lower_floors(floor))
            kept = {level: seq for level, seq in self._floors.get(floor.sender, {}).items() if level not in lower}
            # A new dictionary, since readers in other threads may be walking over the present one.
            self._floors[floor.sender] = {**kept, floor.level: floor.seq}

    # Senders.

    def highest(self, sender: bytes) -> int:
        """The highest seq that was ever stored here of a sender, also if it is deleted by now. The largest there can be
        if the disk is damaged: then nothing is taken for new without a look at what is stored."""
        known = self._highest.get(sender)
        if known is None:
            try:
                known = store.highest(self._rocks, self.ordinal, sender)
            except DamagedRecord:
                known = MAX_SEQ
            known = self._highest[sender] = max(known, self._seen.get(sender, 0))
        return known

    def knows(self, sender: bytes) -> bool:
        """Whether a sender id is of a present or past member."""
        return sender in self._known

    def note_stored(self, sender: bytes, seq: int, size: int) -> None:
        self._highest[sender] = max(seq, self._highest.get(sender, 0))
        self.stored_bytes += size

    def note_corrupt(self, sender: bytes, seq: int) -> None:
        if (sender, seq) in self.corrupt:
            return
        metrics.LOG_CORRUPT.inc()
        if len(self.corrupt) < _MOST_CORRUPT:
            self.corrupt.add((sender, seq))
            self.damage_changed = True
