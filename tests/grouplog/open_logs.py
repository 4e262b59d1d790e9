"""A node's log in this process: its database in a directory, one group in it, and what tests ask of both."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.grouplog import store
from angelia.grouplog.append_rate import AppendRate
from angelia.grouplog.appending import Append, incoming
from angelia.grouplog.deleting import Deleted, Deletion
from angelia.grouplog.group_changes import Creation
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.maintenance import SpoolMaintenance
from angelia.grouplog.model import coding, frames, records, vectors
from angelia.grouplog.model.frames import Backfill, End, Hello, Hole, LogMessage, Status
from angelia.grouplog.model.groups import GroupConfig, GroupMember, GroupRoster, LogFloor, Node, NodeList, RosterEntry
from angelia.grouplog.model.pieces import Manifest, NodeReceipt, ShardPlace, receipt_bytes
from angelia.grouplog.model.placement import Shape
from angelia.grouplog.model.records import WHOLE, Record
from angelia.grouplog.reserve import DiskReserve
from angelia.grouplog.service import GroupLog
from angelia.grouplog.spool import Spool
from angelia.stores.rocks import Rocks

GROUP = hashlib.sha256(b"the group of a test").digest()
Id = tuple[bytes, int]


class Key:
    """An Ed25519 key of a member or of a node."""

    def __init__(self, seed: bytes | None = None) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed or secrets.token_bytes(32)).digest())
        self.public = self._private.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def no_reserve(directory: Path) -> DiskReserve:
    """A reserve of almost nothing: tests have small disks, and many logs."""
    return DiskReserve(directory, size=4096, least=4096)


def full(seq: int, level: int = 0, data: bytes | None = None) -> bytes:
    """The record of a whole message; its data depend on the seq unless they are given."""
    return Record(level, b"message %d" % seq if data is None else data).encode()


@dataclass
class Log:
    """An open log with one group in it."""

    spool: Spool
    group: LiveGroup
    service: GroupLog
    node: Key
    keys: tuple[Key, ...]
    founder: bytes  # the sender id of the first member

    @property
    def rocks(self) -> Rocks:
        return self.spool.rocks

    @property
    def members(self) -> tuple[GroupMember, ...]:
        return self.group.row.roster.members

    @property
    def senders(self) -> list[bytes]:
        return [member.sender for member in self.members]

    async def append(self, *messages: tuple[bytes, int, bytes]) -> list[Status]:
        """Appends (sender, seq, record), as one request."""
        parsed = [incoming(LogMessage(sender, seq, record), records.decode(record)) for sender, seq, record in messages]
        return await self.spool.append(Append(self.group, self.founder, parsed, self.spool.subscriptions))

    async def put(self, sender: bytes, seq: int, level: int = 0, data: bytes | None = None) -> Status:
        (status,) = await self.append((sender, seq, full(seq, level, data)))
        return status

    async def delete(self, level: int, watermark: Mapping[bytes, int]) -> Deleted:
        return await self.spool.run(Deletion(self.group, level, watermark, self.spool.subscriptions))

    async def page(self, wanted: Backfill) -> tuple[list[LogMessage], list[Hole], End]:
        return read_page(await self.service.backfill(self.group, wanted))

    async def all_ids(self, hello: Hello | None = None) -> list[Id]:
        """The ids of a backfill with all its pages."""
        found: list[Id] = []
        cursor = b""
        while True:
            messages, _, end = await self.page(Backfill(hello or Hello({}, {}), limit=50, cursor=cursor))
            found += [(message.sender, message.seq) for message in messages]
            if not end.has_more:
                return found
            cursor = end.cursor

    # What lies in the families.

    def rows(self) -> dict[Id, bytes]:
        return rows_of(self.rocks, self.group.ordinal)

    def damage(self, sender: bytes, seq: int, at: int = -1) -> bytes:
        """Flips a bit of a stored record behind the log's back. Returns what was stored."""
        record = store.record(self.rocks, self.group.ordinal, sender, seq)
        assert record is not None
        damaged = bytearray(record)
        damaged[at] ^= 1
        batch = self.rocks.batch()
        batch.put(store.MSG, store.message_key(self.group.ordinal, sender, seq), bytes(damaged))
        self.rocks.write(batch)
        return record

    def true_bytes(self) -> int:
        return sum(store.ROW_OVERHEAD + len(record) for record in self.rows().values())


def rows_of(rocks: Rocks, ordinal: int) -> dict[Id, bytes]:
    """The `msg` rows of a group."""
    iterator, found = store.messages(rocks, ordinal), {}
    while iterator.valid():
        found[store.message_id(iterator.key())] = iterator.value()
        iterator.next()
    return found


def check_families(rocks: Rocks, ordinal: int) -> dict[Id, bytes]:
    """Asserts what must hold at any moment, also after a crash. Returns the `msg` rows.

    `hi` names exactly the snapshots, with their levels; no row lies under a floor; floors fall as levels rise.
    """
    rows = rows_of(rocks, ordinal)
    snapshots = {id_: record[2] for id_, record in rows.items() if record[2] >= 1}
    assert {(sender, seq): level for sender, seq, level in store.snapshots(rocks, ordinal)} == snapshots
    floors = list(store.floors(rocks, ordinal))
    for (sender, seq), record in rows.items():
        assert not any(f.sender == sender and record[2] < f.level and seq <= f.seq for f in floors), "under a floor"
    for one in floors:
        for other in floors:
            if one.sender == other.sender and one.level < other.level:
                assert one.seq > other.seq, "a floor that a higher one covers"
    return rows


def is_under(floors: Sequence[LogFloor], sender: bytes, seq: int, level: int) -> bool:
    return any(floor.sender == sender and level < floor.level and seq <= floor.seq for floor in floors)


def read_page(body: bytes) -> tuple[list[LogMessage], list[Hole], End]:
    reader = frames.FrameReader()
    found = list(reader.feed(body))
    assert reader.empty
    *rows, (type_, last) = found
    assert type_ == frames.Type.END
    messages = [LogMessage.decode(row) for kind, row in rows if kind == frames.Type.MESSAGE]
    holes = [Hole.decode(row) for kind, row in rows if kind == frames.Type.HOLE]
    assert len(messages) + len(holes) == len(rows)
    return messages, holes, End.decode(last)


@dataclass
class Snapshot:
    """A snapshot of one member: whole, or in shards with the manifest that its sender signed."""

    group: bytes
    sender: bytes
    seq: int
    level: int
    watermark: Mapping[bytes, int]
    data: bytes
    shape: Shape | None = None
    manifest: bytes = b""
    shards: Sequence[bytes] = ()

    @classmethod
    def coded(
        cls,
        group: bytes,
        sender: bytes,
        sign: Callable[[bytes], bytes],
        nodes: Sequence[bytes],
        *,
        data_shards: int = 3,
        seq: int = 7,
        level: int = 2,
        watermark: Mapping[bytes, int] | None = None,
        data: bytes = bytes(range(250)) * 20,
    ) -> Snapshot:
        """Cuts it into a shard for each of the nodes."""
        shape, watermark = Shape(data_shards, len(nodes)), watermark or {}
        length = coding.shard_length(len(data), data_shards)
        if data_shards == len(nodes):  # no parity: the shards are the slices
            shards = [data[at : at + length].ljust(length, b"\0") for at in range(0, length * data_shards, length)]
        else:
            shards = coding.encode(data, shape)
        manifest = Manifest(
            group=group,
            sender=sender,
            seq=seq,
            level=level,
            watermark_digest=vectors.digest(watermark),
            length=len(data),
            digest=hashlib.sha256(data).digest(),
            data_shards=data_shards,
            places=tuple(
                ShardPlace(hashlib.sha256(shard).digest(), node) for shard, node in zip(shards, nodes, strict=True)
            ),
        )
        return cls(group, sender, seq, level, watermark, data, shape, manifest.encode(sign), shards)

    @property
    def digest(self) -> bytes:
        """What a completion names: the SHA-256 of the manifest, or of the data if there is none."""
        return hashlib.sha256(self.manifest or self.data).digest()

    def message(self, index: int = WHOLE) -> LogMessage:
        """The message that is stored whole, or that carries a shard."""
        if self.shape is None:
            record = Record(self.level, self.data)
        else:
            record = Record(
                self.level,
                self.shards[index],
                index,
                self.shape.data_shards,
                self.shape.total_shards,
                self.manifest,
            )
        return LogMessage(self.sender, self.seq, record.encode())

    def receipt(self, node: Key, index: int = WHOLE) -> NodeReceipt:
        """The receipt of a node that stored it, or a shard of it."""
        digest = hashlib.sha256(self.data if index == WHOLE else self.shards[index]).digest()
        signed = receipt_bytes(self.group, self.sender, self.seq, self.level, index, digest)
        return NodeReceipt(node.public, index, digest, node.sign(signed))


def creation(spool: Spool, keys: Sequence[Key], nodes: Sequence[Key], config: GroupConfig, id: bytes) -> Creation:
    entries = [
        RosterEntry(binding=number, public_key=key.public, admin=number == 1) for number, key in enumerate(keys, 1)
    ]
    listed = [Node(id=node.public, url=f"https://node{number}.example") for number, node in enumerate(nodes)]
    node_list = NodeList(epoch=0, nodes=()).replaced(listed)
    return Creation(spool.groups, id, config, GroupRoster.first(id, entries), node_list)


@asynccontextmanager
async def opened(
    directory: Path,
    *,
    members: int = 3,
    nodes: Sequence[Key] = (),
    config: GroupConfig | None = None,
    id: bytes = GROUP,
    reserve: DiskReserve | None = None,
) -> AsyncIterator[Log]:
    """Opens the log in a directory, with the group of the test: the same one each time."""
    node = nodes[0] if nodes else Key(b"node")
    keys = tuple(Key(b"member %d" % number) for number in range(members))
    async with Spool.opened(directory, reserve or no_reserve(directory)) as spool:
        work = creation(spool, keys, nodes or (node,), config or GroupConfig(min_copies=1), id)
        group, _ = await spool.run(work)
        service = GroupLog(spool, SpoolMaintenance(spool), node.public, node.sign, AppendRate())
        yield Log(spool, group, service, node, keys, group.row.roster.members[0].sender)
