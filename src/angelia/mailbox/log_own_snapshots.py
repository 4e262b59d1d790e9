"""Snapshots of this agent in a group: taken at one instant, completed by node receipts; and when the next is due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from angelia.envelope import group_sealing
from angelia.envelope.json_form import from_text
from angelia.errors import TooLarge
from angelia.grouplog.model import coding, placement, snapshots, vectors
from angelia.grouplog.model.documents import CompletionDocument
from angelia.grouplog.model.groups import MAX_PIECE, MAX_SNAPSHOT, LogFloor
from angelia.grouplog.model.pieces import Completion, Manifest, NodeReceipt, ShardPlace
from angelia.grouplog.model.snapshots import Snapshot
from angelia.mailbox import log_progress
from angelia.mailbox.database import MailboxTx
from angelia.mailbox.log_progress import LogProgress
from angelia.mailbox.log_replica import LogReplica, OwnMessage
from angelia.mailbox.log_snapshots import note_snapshot, packed, unpacked

_DUE = "due"


class _Due(msgspec.Struct, frozen=True):
    """Since when a snapshot of a level is due, as far as this device knows."""

    level: int
    since: datetime


class OwnSnapshots:
    """The snapshots that this agent takes of one group."""

    def __init__(self, replica: LogReplica) -> None:
        self._replica = replica

    def capture(self, level: int) -> OwnMessage:
        """Takes a snapshot: content and watermark of one instant, sealed, and durable on this device."""
        replica, edition, me = self._replica, self._replica.edition, self._replica.me
        with self._replica.database.transaction() as tx:
            snapshot = Snapshot(log_progress.received(tx).vector, replica.application.snapshot(tx))
            body = snapshot.encode(group_sealing.OVERHEAD)
            count = placement.copies(edition.config, level, len(edition.nodes))
            shape = placement.shape(count, len(body) + group_sealing.OVERHEAD)
            _check_size(len(body) + group_sealing.OVERHEAD, shape)
            seq = replica.next_seq(tx, 1)
            ciphertext = replica.sealed(seq, level, body)
            nodes = placement.ranked(edition.node_ids, edition.group, me.sender, seq)
            manifest = b""
            if shape is not None:
                manifest = self._manifest(seq, level, snapshot, ciphertext, shape, nodes)
            watermark = packed(snapshot.watermark)
            tx.write("add_log_own", seq, level, ciphertext, manifest, watermark)
        return OwnMessage(seq, level, ciphertext, manifest, watermark)

    def unfinished_snapshots(self) -> list[OwnMessage]:
        """Snapshots of this agent that are not known to be durable, as after a crash."""
        return self._replica.database.records(OwnMessage, "log_queued_snapshots")

    def complete(self, own: OwnMessage, receipts: Sequence[NodeReceipt], now: datetime) -> CompletionDocument:
        """Signs that a snapshot of this agent is durable, by these node receipts, and remembers to tell all nodes."""
        watermark, me = unpacked(own.watermark), self._replica.me
        digest = sha256(own.manifest or own.ciphertext).digest()
        completion = Completion(
            group=self._replica.edition.group,
            level=own.level,
            sender=me.sender,
            seq=own.seq,
            digest=digest,
            watermark_digest=vectors.digest(watermark),
            receipts=receipts,
            signer=me.sender,
        ).signed(self._replica.logs.sign)
        document = CompletionDocument.of(completion, watermark, own.manifest)
        with self._replica.database.transaction() as tx:
            progress = LogProgress(tx)
            tx.write("drop_log_own", own.seq)
            progress.of(me.sender).add(own.seq)
            progress.save(tx)
            note_snapshot(tx, me.sender, own.seq, own.level, watermark)
            tx.write("put_completion", own.level, own.seq, msgspec.json.encode(document), now)
        return document

    def signed_again(self, document: CompletionDocument) -> CompletionDocument:
        """A completion with a signature of the present key: it may have waited over a rotation."""
        watermark = document.watermark_of()
        completion = document.completion(self._replica.edition.group, vectors.digest(watermark))
        signed = completion.signed(self._replica.logs.sign)
        return CompletionDocument.of(signed, watermark, from_text(document.manifest))

    def open_completions(self) -> list[tuple[CompletionDocument, set[bytes]]]:
        """Completions of this agent that some node has not carried out, each with the nodes that have."""
        found = []
        for level, seq, document in self._replica.database.rows("completions"):
            done = {node for (node,) in self._replica.database.rows("completed_by", level, seq)}
            found.append((msgspec.json.decode(document, type=CompletionDocument), done))
        return found

    def completed_by(self, document: CompletionDocument, nodes: Iterable[bytes]) -> None:
        """Nodes have carried out a completion. One that all have is forgotten."""
        place = (document.level, document.seq)
        with self._replica.database.transaction() as tx:
            for node in nodes:
                tx.write("put_completed_by", *place, node)
            if set(self._replica.edition.node_ids) <= {node for (node,) in tx.rows("completed_by", *place)}:
                self._forget_completion(tx, *place)

    def drop_completion(self, document: CompletionDocument) -> None:
        """Gives a completion up: a later one says more."""
        with self._replica.database.transaction() as tx:
            self._forget_completion(tx, document.level, document.seq)

    def _forget_completion(self, tx: MailboxTx, level: int, seq: int) -> None:
        tx.write("drop_completion", level, seq)
        tx.write("drop_completed_by", level, seq)

    def entries_by_level(self) -> dict[int, int]:
        """How many entries of each level no snapshot has replaced yet."""
        rows = self._replica.database.rows("log_snapshots")
        floors = [
            LogFloor(sender, level, seq)
            for _, _, level, watermark in rows
            for sender, seq in unpacked(watermark).items()
            if seq
        ]
        known = [(sender, seq, level) for sender, seq, level, _ in rows]
        return snapshots.entries_by_level(self._replica.received.vector, known, floors)

    def floors(self) -> dict[bytes, tuple[int, int]]:
        """What known snapshots have replaced of each sender: up to which seq, and the highest level that did."""
        found: dict[bytes, tuple[int, int]] = {}
        for _, _, level, watermark in self._replica.database.rows("log_snapshots"):
            for sender, seq in unpacked(watermark).items():
                found[sender] = max((seq, level), found.get(sender, (0, 0)))
        return found

    def due_level_now(self) -> int | None:
        """The level of the snapshot that is due, whichever member takes it."""
        return snapshots.due_level(self.entries_by_level())

    def due_level(self, now: datetime) -> int | None:
        """The level of the snapshot that this agent should take now, or None. Each member waits for those ranked before
        it, 30 seconds for each: so the one ranked first takes it, and others only if that did not."""
        level = self.due_level_now()
        if level is None:
            self._replica.database.write("drop_meta", _DUE)
            return None
        known = self._replica.database.meta(_DUE)
        due = None if known is None else msgspec.json.decode(known, type=_Due)
        if due is None or due.level != level:
            due = _Due(level, now)
            self._replica.database.write("write_meta", _DUE, msgspec.json.encode(due).decode())
        senders = [member.sender for member in self._replica.edition.members]
        rank = snapshots.compactors(senders, level, self._replica.received.vector).index(self._replica.me.sender)
        return level if (now - due.since).total_seconds() >= rank * snapshots.RANK_SECONDS else None

    def _manifest(
        self, seq: int, level: int, snapshot: Snapshot, ciphertext: bytes, shape: placement.Shape, nodes: list[bytes]
    ) -> bytes:
        places = [
            ShardPlace(sha256(piece).digest(), node)
            for piece, node in zip(coding.encode(ciphertext, shape), nodes, strict=False)
        ]
        manifest = Manifest(
            group=self._replica.edition.group,
            sender=self._replica.me.sender,
            seq=seq,
            level=level,
            watermark_digest=vectors.digest(snapshot.watermark),
            length=len(ciphertext),
            digest=sha256(ciphertext).digest(),
            data_shards=shape.data_shards,
            places=tuple(places),
        )
        return manifest.encode(self._replica.logs.sign)


_FRAMING = 64 << 10  # of a request that stores a piece: heads, and the manifest of many shards


def _check_size(length: int, shape: placement.Shape | None) -> None:
    """Raises TooLarge for a snapshot that no node takes: a piece fits into one request."""
    pieces = 1 if shape is None else shape.data_shards
    most = min(MAX_SNAPSHOT, pieces * (MAX_PIECE - _FRAMING))
    if length > most:
        raise TooLarge(
            f"the state is larger than a snapshot may be on these nodes, {most >> 20} MiB",
            hint="with more nodes a snapshot is cut into more shards",
        )
