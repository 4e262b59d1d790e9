"""A group log in this process: one group with a hundred senders, whose values are 1 KiB that cannot be compressed.

A log that takes long to fill is filled once, and cloned for each measurement: its tables never change, so a clone links
to them. All directories are on a disk, since what is measured are mostly syncs.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from angelia.grouplog import store
from angelia.grouplog.append_rate import AppendRate
from angelia.grouplog.appending import Append, Incoming
from angelia.grouplog.group_changes import Creation
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.maintenance import SpoolMaintenance
from angelia.grouplog.model import frames
from angelia.grouplog.model.frames import Backfill, End, Hello, LogMessage
from angelia.grouplog.model.groups import GroupConfig, GroupMember, GroupRoster, Node, NodeList, RosterEntry
from angelia.grouplog.model.records import Kind, Record
from angelia.grouplog.reserve import DiskReserve
from angelia.grouplog.service import GroupLog
from angelia.grouplog.spool import Spool
from angelia.stores.rocks import Rocks, RocksBatch

SENDERS, VALUE = 100, 1024
SNAPSHOTS = 50  # of each sender in a filled log, of level 1
_FILL = 1_000  # messages of one commit while a log is filled
_NODE = bytes(32)
_NO_LIMIT = 1e12
_GROUP = hashlib.sha256(b"the group of a benchmark").digest()
Request = tuple[GroupMember, Sequence[LogMessage]]


@dataclass
class OpenLog:
    """An open log with its group."""

    spool: Spool
    group: LiveGroup
    service: GroupLog
    maintenance: SpoolMaintenance
    _seqs: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def rocks(self) -> Rocks:
        return self.spool.rocks

    @property
    def members(self) -> Sequence[GroupMember]:
        return self.group.row.roster.members

    def requests(self, count: int, batch: int) -> list[Request]:
        """So many new messages, in requests of one sender after the other."""
        made: list[Request] = []
        senders = itertools.cycle(self.members)
        for _ in range(count // batch):
            member = next(senders)
            # A seq that another sender has too is no matter; each one's own rise.
            made.append((member, [message(member.sender, next(self._seqs)) for _ in range(batch)]))
        return made

    def slow_down(self, seconds: float) -> None:
        """Makes every synced write take so much longer, as on a slower disk."""
        write = self.rocks.write

        def slowly(batch: RocksBatch) -> None:
            write(batch)
            time.sleep(seconds)

        self.rocks.write = slowly  # type: ignore[method-assign]

    def vector(self, each: int) -> dict[bytes, int]:
        return {member.sender: each for member in self.members}

    async def fill(self, each: int) -> None:
        """Stores so many messages of each sender, as they would arrive: all senders' first ones, then the second."""
        snapshots = each // SNAPSHOTS
        ids = ((member.sender, seq) for seq in range(1, each + 1) for member in self.members)
        under_way: asyncio.Task[object] | None = None
        while taken := list(itertools.islice(ids, _FILL)):
            made = [_incoming(sender, seq, int(seq % snapshots == 0)) for sender, seq in taken]
            work = Append(self.group, self.members[0].sender, made, self.spool.subscriptions)
            if under_way is not None:
                await under_way
            under_way = asyncio.create_task(self.spool.append(work))
        if under_way is not None:
            await under_way

    async def pages(self, hello: Hello, limit: int) -> tuple[list[Backfill], int]:
        """The requests by which a device gets all that it lacks, and how many messages that is."""
        wanted, messages = [Backfill(hello, limit)], 0
        while True:
            *rows, (_, last) = frames.FrameReader().feed(await self.service.backfill(self.group, wanted[-1]))
            end = End.decode(last)
            messages += len(rows)
            if not end.has_more:
                return wanted, messages
            wanted.append(Backfill(hello, limit, cursor=end.cursor))


def message(sender: bytes, seq: int) -> LogMessage:
    return LogMessage(sender, seq, Record(0, os.urandom(VALUE)).encode())


def _incoming(sender: bytes, seq: int, level: int) -> Incoming:
    return Incoming(sender, seq, Record(level, os.urandom(VALUE)).encode(), level, Kind.FULL)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[OpenLog]:
    """Opens the log in a directory, which is made if there is none. Members may append as fast as they can."""
    await asyncio.to_thread(directory.mkdir, exist_ok=True)
    keys = [hashlib.sha256(b"member %d" % number).digest() for number in range(SENDERS)]
    roster = [RosterEntry(binding=at, public_key=key, admin=at == 1) for at, key in enumerate(keys, 1)]
    nodes = NodeList(epoch=0, nodes=()).replaced([Node(id=_NODE, url="http://node.example")])
    config = GroupConfig(min_copies=1, quota_bytes=1 << 40)
    async with Spool.opened(directory, DiskReserve(directory, size=4096, least=4096)) as spool:
        creation = Creation(spool.groups, _GROUP, config, GroupRoster.first(_GROUP, roster), nodes)
        group, _ = await spool.run(creation)
        maintenance = SpoolMaintenance(spool)
        rate = AppendRate(_NO_LIMIT, _NO_LIMIT)
        yield OpenLog(spool, group, GroupLog(spool, maintenance, _NODE, bytes, rate), maintenance)


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory on the disk that servers of benchmarks have their data on."""
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-", dir="/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def filled(directory: Path, each: int) -> None:
    """Makes a log with so many messages of each sender, which has nothing left to compact."""
    async with opened(directory) as log:
        await log.fill(each)
        for family in (store.MSG, store.HI):
            log.rocks.flush(family)
            log.rocks.compact(family, *store.span(log.group.ordinal))


@asynccontextmanager
async def cloned(source: Path) -> AsyncIterator[OpenLog]:
    """Opens a clone of a log that is closed. It is gone afterwards."""
    target = source.with_name(f"{source.name}-clone")
    shutil.copytree(source, target, copy_function=_link_table)
    try:
        async with opened(target) as log:
            yield log
    finally:
        shutil.rmtree(target)


def bytes_on_disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _link_table(source: str, target: str) -> str:
    if source.endswith(".sst"):
        os.link(source, target)
        return target
    return shutil.copy2(source, target)
