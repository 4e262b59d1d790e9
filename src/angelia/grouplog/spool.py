"""An open spool: the database, its writer thread, the threads that read, and the groups in memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from angelia.errors import AngeliaError, DiskFull, ReadOnly, Unavailable
from angelia.grouplog import store
from angelia.grouplog.commit import CommitThread, Work
from angelia.grouplog.deleting import Deletion
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.live_groups import LiveGroups
from angelia.grouplog.model.groups import GroupState
from angelia.grouplog.model.ids import parse_sender
from angelia.grouplog.reserve import DiskReserve
from angelia.grouplog.subscriptions import Subscriptions
from angelia.stores.rocks import Rocks

READERS = 4
T = TypeVar("T")


class Spool:
    """The parts of a node that its operations work with."""

    def __init__(self, rocks: Rocks, reserve: DiskReserve) -> None:
        self.rocks = rocks
        self.reserve = reserve
        self.subscriptions = Subscriptions(boot=secrets.token_bytes(16))
        self.commits = CommitThread(rocks, self.subscriptions.wake)
        self.groups = LiveGroups(rocks, self.commits)
        self.failure: AngeliaError | None = None  # why the node only reads
        # A write had no room. With the reserve given up there is some, but RocksDB writes again only when it is opened
        # anew.
        self.must_reopen = asyncio.Event()
        self.uncounted: list[LiveGroup] = []  # a crash came between a deletion and the count after it
        self._readers = ThreadPoolExecutor(READERS, "group-log-reader")

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path, reserve: DiskReserve | None = None) -> AsyncIterator[Spool]:
        """Opens the database in a directory, and finishes what a crash left undone."""
        reserve = reserve or DiskReserve(directory)
        try:
            rocks = await asyncio.to_thread(Rocks, directory / "log", store.FAMILIES)
        except DiskFull:
            reserve.give_up()  # to open the log takes some room
            rocks = await asyncio.to_thread(Rocks, directory / "log", store.FAMILIES)
        spool = cls(rocks, reserve)
        spool.commits.start()
        try:
            await spool._recover()
            yield spool
        finally:
            await spool.commits.close()
            spool._readers.shutdown(wait=True)
            rocks.close()

    async def read(self, function: Callable[[], T]) -> T:
        """Runs a function that reads the disk in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)

    async def append(self, work: Work[T]) -> T:
        """Runs a work that stores messages; DiskFull or ReadOnly while none can be stored."""
        self.reserve.check()
        return await self.run(work)

    async def run(self, work: Work[T]) -> T:
        """Runs a work that writes. After a write that failed the node only reads: what its log holds is not known until
        it is opened again."""
        if isinstance(self.failure, DiskFull):
            raise DiskFull("a write had no room, and the node only reads until it starts again", retry_after=30)
        if self.failure is not None:
            raise ReadOnly("the node cannot write its log, and only reads", retry_after=60) from self.failure
        try:
            return await self.commits.run(work)
        except DiskFull as error:
            self.reserve.give_up()
            self.failure = error
            self.must_reopen.set()
            raise
        except ReadOnly as error:
            self.failure = error
            raise

    async def check(self) -> None:
        """Unavailable while the node only reads, or its writer has failed."""
        if self.failure is not None:
            raise self.failure
        if self.commits.failure is not None:
            raise Unavailable("the node's writer has failed") from self.commits.failure

    def sizes(self) -> dict[str, int]:
        """The bytes of each family."""
        return {family: self.rocks.bytes_of(family) for family in store.FAMILIES}

    async def _recover(self) -> None:
        """Counts the groups, and does again the deletions of which only some batches were written."""
        self.groups.count, unfinished = await self.read(partial(_unfinished, self.rocks))
        for id_, pending in unfinished:
            group = await self.groups.live(id_)
            if pending is not None:
                watermark = {parse_sender(sender): seq for sender, seq in pending.watermark.items()}
                await self.run(Deletion(group, pending.level, watermark, self.subscriptions))
            self.uncounted.append(group)


def _unfinished(rocks: Rocks) -> tuple[int, list[tuple[bytes, store.PendingDeletion | None]]]:
    """How many groups there are, and those in which a deletion was not finished or not followed by a count."""
    count, unfinished = 0, []
    for id_, row in store.all_groups(rocks):
        count += row.state is GroupState.LIVE
        pending = store.pending_deletion(rocks, id_)
        if pending is not None or store.must_be_counted(rocks, id_):
            unfinished.append((id_, pending))
    return count, unfinished
