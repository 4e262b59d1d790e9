"""The import of an old log: messages of all senders, a thousand in a batch that also says how far the import is."""

from __future__ import annotations

from collections.abc import Sequence

from angelia.errors import Conflict, Denied
from angelia.grouplog import store
from angelia.grouplog.appending import Append, Incoming
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model.frames import Status
from angelia.grouplog.store import ImportPosition
from angelia.grouplog.subscriptions import Subscriptions
from angelia.stores.rocks import Rocks, RocksBatch

MOST_ROWS = 1_000


class ImportRows:
    """Stores rows of a file, if all before them are stored. An interrupted import goes on where it was."""

    alone = True

    def __init__(
        self,
        group: LiveGroup,
        by: bytes,
        source: str,
        before: int,
        rows: Sequence[Incoming],
        subscriptions: Subscriptions,
    ) -> None:
        """`before` is how many rows of the file come before these."""
        self._group = group
        self._by = by
        self._append = Append(group, by, rows, subscriptions)
        self._position = ImportPosition(source, before + len(rows))
        self._before = before
        self.messages, self.size = self._append.messages, self._append.size

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        group = self._group
        group.check_live()
        caller = group.row.roster.by_sender(self._by)
        if caller is None or not caller.admin:
            raise Denied("only a member that is marked admin imports", hint="the group shows which members are")
        there = store.import_position(rocks, group.id)
        done = there.rows if there is not None and there.source == self._position.source else 0
        if done != self._before:
            error = Conflict(f"{done:,} rows of this file are imported", hint="go on behind these")
            error.members = {"rows": done}
            raise error
        self._append.stage(rocks, batch)
        store.put_import_position(batch, group.id, self._position)

    def finish(self) -> tuple[ImportPosition, list[Status]]:
        return self._position, self._append.finish()

    def undo(self) -> None:
        self._append.undo()
