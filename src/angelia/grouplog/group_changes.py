"""What changes a group itself: creation, roster, node list, drop, and the import of an old log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from angelia.errors import AlreadyExists, Denied, EpochConflict, InvalidArgument, Unprocessable
from angelia.grouplog import store
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.live_groups import LiveGroups
from angelia.grouplog.model.groups import (
    MAX_GROUPS,
    GroupConfig,
    GroupRoster,
    GroupState,
    LogGroupRow,
    Node,
    NodeList,
    RosterEntry,
)
from angelia.grouplog.subscriptions import Subscriptions
from angelia.stores.rocks import Rocks, RocksBatch


class Creation:
    """Creates a group. The same group again is no error: its answer may have been lost."""

    alone, messages = True, 0

    def __init__(
        self, groups: LiveGroups, id: bytes, config: GroupConfig, roster: GroupRoster, nodes: NodeList
    ) -> None:
        self._groups = groups
        self._id = id
        self._wanted = LogGroupRow(ordinal=0, state=GroupState.LIVE, config=config, roster=roster, nodes=nodes)
        self.size = 100 * len(roster.members)
        self._group: LiveGroup | None = None
        self._made: LogGroupRow | None = None

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        self._group = self._groups.load(self._id)
        if self._group is not None:
            self._group.check_live()
            if msgspec.structs.replace(self._group.row, ordinal=0) != self._wanted:
                raise AlreadyExists("the node has a group of this id", hint="a new group gets a new random id")
            return
        if self._groups.count >= MAX_GROUPS:
            raise Unprocessable(f"the node has {MAX_GROUPS:,} groups")
        ordinal = store.last_ordinal(rocks) + 1
        self._made = msgspec.structs.replace(self._wanted, ordinal=ordinal)
        store.put_last_ordinal(batch, ordinal)
        store.put_group(batch, self._id, self._made)
        self._rocks = rocks

    def finish(self) -> tuple[LiveGroup, bool]:
        """Returns the group, and whether it is new."""
        if self._made is None:
            assert self._group is not None, "a group is there or made"
            return self._group, False
        self._groups.count += 1
        return self._groups.add(LiveGroup(self._rocks, self._id, self._made)), True

    def undo(self) -> None:
        return None


class _Change(ABC):
    """A change of a group's row by one of its admins."""

    alone, messages, size = True, 0, 0

    def __init__(self, group: LiveGroup, by: bytes, subscriptions: Subscriptions) -> None:
        self._group = group
        self._by = by
        self._subscriptions = subscriptions

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        self._group.check_live()
        caller = self._group.row.roster.by_sender(self._by)
        if caller is None or not caller.admin:
            raise Denied("this needs a member that is marked admin", hint="the group shows which members are")
        self._row = self._changed(self._group.row)
        store.put_group(batch, self._group.id, self._row)

    def finish(self) -> LogGroupRow:
        self._group.row = self._row
        self._subscriptions.stir(self._group.id)
        return self._row

    def undo(self) -> None:
        self._group.reload()

    @abstractmethod
    def _changed(self, row: LogGroupRow) -> LogGroupRow:
        """Returns the row as it is to be."""


class RosterChange(_Change):
    def __init__(
        self,
        group: LiveGroup,
        by: bytes,
        subscriptions: Subscriptions,
        epoch: int,
        entries: Sequence[RosterEntry],
        past: Sequence[RosterEntry] = (),
    ) -> None:
        super().__init__(group, by, subscriptions)
        self._epoch = epoch
        self._entries = entries
        self._past = past

    def _changed(self, row: LogGroupRow) -> LogGroupRow:
        _check_epoch(self._epoch, row.roster.epoch)
        return msgspec.structs.replace(row, roster=row.roster.replaced(self._group.id, self._entries, self._past))


class NodeChange(_Change):
    def __init__(
        self, group: LiveGroup, by: bytes, subscriptions: Subscriptions, epoch: int, nodes: Sequence[Node]
    ) -> None:
        super().__init__(group, by, subscriptions)
        self._epoch = epoch
        self._nodes = nodes

    def _changed(self, row: LogGroupRow) -> LogGroupRow:
        _check_epoch(self._epoch, row.nodes.epoch)
        check_copies(row.config, len(self._nodes))
        return msgspec.structs.replace(row, nodes=row.nodes.replaced(self._nodes))


class Drop(_Change):
    """Removes a group with all it has. Its id is never used again."""

    def __init__(self, groups: LiveGroups, group: LiveGroup, by: bytes, subscriptions: Subscriptions) -> None:
        super().__init__(group, by, subscriptions)
        self._groups = groups

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        super().stage(rocks, batch)
        store.drop(batch, self._group.id, self._row)

    def finish(self) -> LogGroupRow:
        self._groups.count -= 1
        return super().finish()

    def _changed(self, row: LogGroupRow) -> LogGroupRow:
        without_members = GroupRoster(epoch=row.roster.epoch, members=())
        return msgspec.structs.replace(row, state=GroupState.DROPPED, roster=without_members)


def check_copies(config: GroupConfig, nodes: int) -> None:
    if config.min_copies > nodes:
        raise InvalidArgument(f"min_copies is {config.min_copies}, and there are {nodes} nodes")


def _check_epoch(named: int, present: int) -> None:
    if named != present:
        error = EpochConflict(f"the present epoch is {present}", hint="read the group again, and change that")
        error.members = {"epoch": present}
        raise error
