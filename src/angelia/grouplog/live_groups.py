"""The groups of a node in memory: those used last, and all that a request or a stream still holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

from angelia.errors import NoGroup
from angelia.grouplog import store
from angelia.grouplog.commit import CommitThread
from angelia.grouplog.live_group import LiveGroup
from angelia.stores.rocks import Rocks, RocksBatch

MOST_KEPT = 4_096


class LiveGroups:
    """Finds groups. One group is one object as long as anything uses it, so that floors have one truth."""

    def __init__(self, rocks: Rocks, commits: CommitThread) -> None:
        self._rocks = rocks
        self._commits = commits
        self._used: WeakValueDictionary[bytes, LiveGroup] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, LiveGroup] = OrderedDict()
        self._changing = threading.Lock()
        self.count = 0  # groups of the node that are not dropped

    async def find(self, id: bytes) -> LiveGroup:
        """Returns a group that may be dropped; NoGroup if the node never had it."""
        found = self._used.get(id)
        if found is None:
            return await self._commits.run(_Load(self, id))
        self._keep(found)
        return found

    async def live(self, id: bytes) -> LiveGroup:
        """Returns a group that exists; NoGroup or GroupDropped otherwise."""
        found = await self.find(id)
        found.check_live()
        return found

    def load(self, id: bytes) -> LiveGroup | None:
        """Called in the commit section, so that nothing changes meanwhile."""
        found = self._used.get(id)
        if found is not None:
            return found
        row = store.group(self._rocks, id)
        return None if row is None else self.add(LiveGroup(self._rocks, id, row))

    def add(self, group: LiveGroup) -> LiveGroup:
        self._used[group.id] = group
        self._keep(group)
        return group

    def _keep(self, group: LiveGroup) -> None:
        with self._changing:
            self._kept[group.id] = group
            self._kept.move_to_end(group.id)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)


class _Load:
    """Reads a group that is not in memory."""

    alone, messages, size = False, 0, 0

    def __init__(self, groups: LiveGroups, id: bytes) -> None:
        self._groups = groups
        self._id = id

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        found = self._groups.load(self._id)
        if found is None:
            raise NoGroup
        self._found = found

    def finish(self) -> LiveGroup:
        return self._found

    def undo(self) -> None:
        return None
