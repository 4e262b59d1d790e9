"""What a spool node does for the members of a group. It never decrypts anything."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager

import msgspec

from angelia import metrics
from angelia.envelope.ed25519 import verifying_key
from angelia.envelope.json_form import from_text
from angelia.envelope.refusals import Malformed
from angelia.errors import (
    AngeliaError,
    BadLevel,
    BadManifest,
    BadShard,
    DamagedRecord,
    Denied,
    InvalidArgument,
    NoMessage,
    NotDurable,
    NotMember,
    SenderMismatch,
)
from angelia.grouplog import store
from angelia.grouplog.append_rate import AppendRate
from angelia.grouplog.appending import Append, Incoming, incoming
from angelia.grouplog.deleting import Deletion
from angelia.grouplog.group_changes import Creation, Drop, NodeChange, RosterChange, check_copies
from angelia.grouplog.importing import ImportRows
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.maintenance import SpoolMaintenance
from angelia.grouplog.model import records, vectors
from angelia.grouplog.model.documents import (
    CompletionDocument,
    CorruptDocument,
    DeletionResult,
    FloorDocument,
    GroupDocument,
    HeldVector,
    Imported,
    NewGroup,
    NewNodes,
    NewRoster,
    Storage,
)
from angelia.grouplog.model.frames import Backfill, Held, Hello, LogMessage, Result, Status
from angelia.grouplog.model.groups import MAX_LEVEL, GroupMember, GroupRoster, NodeList, Vector
from angelia.grouplog.model.pieces import Completion, Manifest, receipt_bytes, verified_manifest
from angelia.grouplog.model.placement import SMALLEST_SHAPE, Shape
from angelia.grouplog.model.records import Kind, Record, level_of
from angelia.grouplog.paging import page
from angelia.grouplog.spool import Spool
from angelia.grouplog.streaming import Stream
from angelia.grouplog.subscriptions import Begin, LogSubscriber

Sign = Callable[[bytes], bytes]
_SENDERS_A_TOKEN = 50  # of a watermark: a deletion spends of the rate of appends


class GroupLog:
    """The operations of a node. The caller of each is a member that the guard verified."""

    def __init__(
        self, spool: Spool, maintenance: SpoolMaintenance, node_id: bytes, sign: Sign, rate: AppendRate
    ) -> None:
        self.spool = spool
        self._maintenance = maintenance
        self._node_id = node_id
        self._sign = sign
        self._rate = rate

    # Groups.

    async def create(self, new: NewGroup, signer: bytes) -> tuple[GroupDocument, bool]:
        """Creates a group; `signer` is the public key that signed the request. The second value says whether it is
        new."""
        id_ = new.id()
        past = [entry.entry() for entry in new.past]
        roster = GroupRoster.first(id_, [entry.entry() for entry in new.roster], past)
        if not any(member.admin and member.public_key == signer for member in roster.members):
            raise Denied("a group is created by a member that its roster marks admin", hint="sign with that key")
        nodes = NodeList(epoch=0, nodes=()).replaced([node.node() for node in new.nodes])
        check_copies(new.config, len(nodes.nodes))
        group, is_new = await self.spool.append(Creation(self.spool.groups, id_, new.config, roster, nodes))
        return GroupDocument.of(id_, group.row), is_new

    def shown(self, group: LiveGroup) -> GroupDocument:
        return GroupDocument.of(group.id, group.row)

    async def drop(self, group: LiveGroup, member: GroupMember) -> None:
        await self.spool.run(Drop(self.spool.groups, group, member.sender, self.spool.subscriptions))
        self._maintenance.after_drop(group)

    async def replace_roster(self, group: LiveGroup, member: GroupMember, new: NewRoster) -> GroupDocument:
        entries, past = [entry.entry() for entry in new.roster], [entry.entry() for entry in new.past]
        change = RosterChange(group, member.sender, self.spool.subscriptions, new.epoch, entries, past)
        row = await self.spool.run(change)
        return GroupDocument.of(group.id, row)

    async def replace_nodes(self, group: LiveGroup, member: GroupMember, new: NewNodes) -> GroupDocument:
        nodes = [node.node() for node in new.nodes]
        row = await self.spool.run(NodeChange(group, member.sender, self.spool.subscriptions, new.epoch, nodes))
        return GroupDocument.of(group.id, row)

    # Messages.

    async def append(
        self, group: LiveGroup, member: GroupMember, messages: Sequence[LogMessage], now: float | None = None
    ) -> list[Result]:
        """Appends messages of the member; all of them, or none. Whole snapshots come back with a node receipt."""
        accepted, parsed = [], []
        for at, message in enumerate(messages):
            with _at(at):
                if message.sender != member.sender:
                    raise SenderMismatch(hint="your sender id is in the group's roster")
                found = _parsed(message)
                if found.kind is Kind.SHARD:
                    raise InvalidArgument(
                        "a shard is stored by its own route", hint="PUT …/shards/{sender}/{seq}/{index}"
                    )
                accepted.append(incoming(message, found))
                parsed.append(found)
        self._rate.spend(group.id, member.sender, len(accepted), time.monotonic() if now is None else now)
        statuses = await self.spool.append(Append(group, member.sender, accepted, self.spool.subscriptions))
        return [
            Result(message.sender, message.seq, status, self._receipt(group, message, found, status))
            for message, found, status in zip(messages, parsed, statuses, strict=True)
        ]

    async def message(self, group: LiveGroup, sender: bytes, seq: int) -> LogMessage:
        record = await self._record(group, sender, seq)
        return LogMessage(sender, seq, record)

    async def backfill(self, group: LiveGroup, wanted: Backfill) -> bytes:
        """Returns a page of what a device lacks: message frames, holes, and an end frame."""
        began = time.perf_counter()
        body, rows = await self.spool.read(lambda: page(self.spool.rocks, group, wanted))
        self._maintenance.after_damage(group)
        metrics.LOG_BACKFILL_SECONDS.observe(time.perf_counter() - began)
        metrics.LOG_BACKFILL_ROWS.inc(rows)
        metrics.LOG_BACKFILL_BYTES.inc(len(body))
        return body

    async def vector(self, group: LiveGroup) -> HeldVector:
        held = await self.spool.read(lambda: dict(store.held(self.spool.rocks, group.ordinal)))
        return HeldVector(
            highest={sender.hex(): seq for sender, seq in held.items()},
            floors=[FloorDocument.of(floor) for floor in group.floors()],
        )

    async def subscribe(self, group: LiveGroup, member: GroupMember, hello: Hello) -> Stream:
        """Returns the stream of what a device lacks, and then of what comes. It is closed in any case, also if nothing
        was read of it."""
        subscriber = LogSubscriber(group, member, hello)
        try:
            await self.spool.commits.run(Begin(self.spool.subscriptions, subscriber))
        except BaseException:
            self.spool.subscriptions.leave(subscriber)
            raise
        spool = self.spool
        return Stream(subscriber, spool.subscriptions, spool.rocks, spool.commits, spool.read)

    async def delete(self, group: LiveGroup, member: GroupMember, document: CompletionDocument) -> DeletionResult:
        """Forgets what a durable snapshot replaced; NotDurable, and nothing deleted, if it is not proven to be."""
        watermark = document.watermark_of()
        vectors.check(watermark)
        self._rate.spend(group.id, member.sender, 1 + len(watermark) // _SENDERS_A_TOKEN, time.monotonic())
        completion = document.completion(group.id, vectors.digest(watermark))
        await self._check_completion(group, completion, watermark, document)
        deletion = Deletion(group, completion.level, watermark, self.spool.subscriptions)
        deleted = await self.spool.run(deletion)
        if deleted.floors:
            self._maintenance.after_deletion(group, deleted.ranges)
        return DeletionResult(
            floors=[FloorDocument.of(floor) for floor in deleted.floors], ranges=deleted.ranges, points=deleted.points
        )

    async def import_rows(
        self, group: LiveGroup, member: GroupMember, source: str, before: int, messages: Sequence[LogMessage]
    ) -> Imported:
        """Stores rows of an old log, of any sender, as whole messages of level 0."""
        rows: list[Incoming] = []
        for at, message in enumerate(messages):
            with _at(at):
                found = _parsed(message)
                if found.level != 0 or found.kind is not Kind.FULL:
                    raise BadLevel("an old log has whole messages of level 0 only")
                rows.append(incoming(message, found))
        work = ImportRows(group, member.sender, source, before, rows, self.spool.subscriptions)
        position, _ = await self.spool.append(work)
        return Imported(source=position.source, rows=position.rows)

    # Shards.

    async def put_shard(
        self, group: LiveGroup, member: GroupMember, message: LogMessage, index: int
    ) -> tuple[bytes, Status]:
        """Stores a shard of any member's snapshot, if its sender's manifest vouches for it. Returns the signature of
        the node's receipt."""
        found = _parsed(message)
        if found.kind is not Kind.SHARD or found.index != index:
            raise BadShard(f"the body is not shard {index}")
        manifest = self._manifest(group, message.sender, message.seq, found.manifest)
        if (manifest.level, manifest.shape) != (found.level, Shape(found.data_shards, found.total_shards)):
            raise BadShard("the shard has other numbers than its manifest")
        if not manifest.fits(index, found.data):
            raise BadShard("the shard is not the one of its manifest")
        here = [number for number, place in enumerate(manifest.places) if place.node == self._node_id]
        if here not in ([], [index]):
            raise BadShard(f"the manifest has shard {here[0]} for this node, not {index}")
        self._rate.spend(group.id, member.sender, 1, time.monotonic())
        work = Append(group, member.sender, [incoming(message, found)], self.spool.subscriptions)
        (status,) = await self.spool.append(work)
        return self._receipt(group, message, found, status), status

    async def held_shard(self, group: LiveGroup, sender: bytes, seq: int) -> Held:
        found = records.decode(await self._record(group, sender, seq))
        if found.kind is not Kind.SHARD:
            raise NoMessage("the message is stored whole, not as a shard")
        return Held(found.index, found.manifest)

    async def shard(self, group: LiveGroup, sender: bytes, seq: int, index: int) -> LogMessage:
        record = await self._record(group, sender, seq)
        found = records.decode(record)
        if found.index != index:
            raise NoMessage(f"this node does not hold shard {index}")
        return LogMessage(sender, seq, record)

    # Storage.

    async def storage(self, group: LiveGroup) -> Storage:
        await self.spool.read(lambda: self._forget_repaired(group))
        snapshots = await self.spool.read(lambda: sum(1 for _ in store.snapshots(self.spool.rocks, group.ordinal)))
        floors = len(group.floors())
        return Storage(
            bytes={
                store.MSG: group.stored_bytes,
                store.HI: snapshots * (store.ROW_OVERHEAD + 1),
                store.FLOOR: floors * store.FLOOR_BYTES,
            },
            quota_bytes=group.row.config.quota_bytes,
            snapshots=snapshots,
            floors=floors,
            corrupt=[CorruptDocument(sender=sender.hex(), seq=seq) for sender, seq in sorted(group.corrupt)],
        )

    def _forget_repaired(self, group: LiveGroup) -> None:
        """Looks again at the messages that were damaged: some may be stored anew, or gone."""
        for sender, seq in list(group.corrupt):
            record = self._found(group, sender, seq)
            if record is None or self._is_true(group, sender, seq, record):
                group.corrupt.discard((sender, seq))

    # What they share.

    def _found(self, group: LiveGroup, sender: bytes, seq: int) -> bytes | None:
        """What is stored of a message: nothing readable where the disk is damaged."""
        try:
            return store.record(self.spool.rocks, group.ordinal, sender, seq)
        except DamagedRecord:
            return b""

    def _is_true(self, group: LiveGroup, sender: bytes, seq: int, record: bytes) -> bool:
        """Whether a record is sound, and a shard also that of its manifest: its digest covers the data alone."""
        return records.is_sound(record) and group.is_true_shard(sender, seq, record)

    async def _record(self, group: LiveGroup, sender: bytes, seq: int) -> bytes:
        record = await self.spool.read(lambda: self._found(group, sender, seq))
        if record is None:
            raise NoMessage
        if not self._is_true(group, sender, seq, record):
            group.note_corrupt(sender, seq)
            self._maintenance.after_damage(group)
            error = DamagedRecord(f"message {seq} of this sender is damaged here", hint="read it from another node")
            error.members = {"sender": sender.hex(), "seq": seq}
            raise error
        return record

    def _receipt(self, group: LiveGroup, message: LogMessage, found: Record, status: Status) -> bytes:
        """The signature of a node receipt, for a snapshot that is stored here."""
        if found.level == 0 or status is Status.SUPERSEDED:
            return b""
        digest = hashlib.sha256(found.data).digest()
        return self._sign(receipt_bytes(group.id, message.sender, message.seq, found.level, found.index, digest))

    def _manifest(self, group: LiveGroup, sender: bytes, seq: int, data: bytes) -> Manifest:
        return verified_manifest(data, group.id, sender, seq, group.row.roster.signer(sender))

    async def _check_completion(
        self, group: LiveGroup, completion: Completion, watermark: Vector, document: CompletionDocument
    ) -> None:
        """Raises unless the snapshot is durable, and is one that may replace what lies under the watermark."""
        if not 1 <= completion.level <= MAX_LEVEL:
            raise BadLevel(f"a snapshot has a level from 1 to {MAX_LEVEL}")
        signer = group.row.roster.by_sender(completion.signer)
        if signer is None:
            raise NotMember("the completion is not signed by a member")
        if not verifying_key(signer.public_key).holds(completion.signature, completion.signed_bytes()):
            raise Denied("the completion's signature does not hold")
        if watermark.get(completion.sender, 0) >= completion.seq:
            raise InvalidArgument("the watermark covers the snapshot itself")
        manifest = self._completed_manifest(group, completion, document)
        listed = {node.id for node in group.row.nodes.nodes}
        if not group.is_superseded(completion.sender, completion.seq, completion.level):
            await self._check_own_piece(group, completion, manifest, listed)
        known = msgspec.structs.replace(
            completion, receipts=[receipt for receipt in completion.receipts if receipt.node in listed]
        )
        confirmed = known.confirmed(completion.digest, manifest)
        coded = manifest is not None and len(manifest.places) >= SMALLEST_SHAPE  # fewer are no code, but copies
        needed = manifest.shape.needed_receipts if manifest and coded else group.row.config.min_copies
        if confirmed < needed:
            raise NotDurable(
                f"{confirmed} nodes confirm the snapshot, and {needed} must",
                hint="nothing was deleted; store its pieces on more nodes",
            )

    def _completed_manifest(
        self, group: LiveGroup, completion: Completion, document: CompletionDocument
    ) -> Manifest | None:
        if not document.manifest:
            return None
        data = raw_manifest(document.manifest)
        if hashlib.sha256(data).digest() != completion.digest:
            raise BadManifest("the manifest is not the one that the completion names")
        manifest = self._manifest(group, completion.sender, completion.seq, data)
        if manifest.level != completion.level:
            raise BadLevel("the snapshot has another level than the completion")
        if manifest.watermark_digest != completion.watermark_digest:
            raise BadManifest("the manifest is of another watermark")
        return manifest

    async def _check_own_piece(
        self, group: LiveGroup, completion: Completion, manifest: Manifest | None, listed: Set[bytes]
    ) -> None:
        """What this node holds of the snapshot must be of it; and a node that should hold a piece must."""
        mine = [receipt for receipt in completion.receipts if receipt.node == self._node_id]
        places = () if manifest is None or self._node_id not in listed else manifest.places
        should = bool(mine) or any(place.node == self._node_id for place in places)
        try:
            found = records.decode(await self._record(group, completion.sender, completion.seq))
        except (NoMessage, DamagedRecord) as error:
            if not should:
                return
            raise NotDurable("this node does not hold its piece of the snapshot", hint="store it again") from error
        if found.level != completion.level:
            raise BadLevel("the snapshot has another level than the completion")
        digest = hashlib.sha256(found.data).digest()
        named = digest if manifest is None else hashlib.sha256(found.manifest).digest()
        if (found.kind is Kind.SHARD) != (manifest is not None) or named != completion.digest:
            raise NotDurable("this node holds another snapshot under this id than the completion says")
        if mine and not any((one.index, one.digest) == (found.index, digest) for one in mine):
            raise NotDurable("this node holds another piece of the snapshot than the completion says")


def raw_manifest(text: str) -> bytes:
    try:
        return from_text(text)
    except Malformed as error:
        raise BadManifest("the manifest is not base64url") from error


def _parsed(message: LogMessage) -> Record:
    """The record of a message that came from outside; InvalidArgument instead of what would be damage on a disk."""
    if level_of(message.record) > MAX_LEVEL:
        raise BadLevel(f"a level is 0 to {MAX_LEVEL}")
    try:
        return records.decode(message.record)
    except DamagedRecord as error:
        raise InvalidArgument(f"the message cannot be stored: {error.message}") from error


@contextmanager
def _at(place: int) -> Iterator[None]:
    """Says which message of a batch an error is about."""
    try:
        yield
    except AngeliaError as error:
        error.members = {**error.members, "at": place}
        raise
