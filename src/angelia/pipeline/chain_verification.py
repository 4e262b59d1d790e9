"""Verifies the audit's hash chain in the archive: Spark checks pieces in parallel, the driver checks that they join."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from angelia.audit.model import ERASED, LATEST_COMMIT, Floor, StoredEvent, checkpoint_bytes, entry_hash
from angelia.pipeline.lake import listing
from angelia.pipeline.lake.audit_chain import files_within
from angelia.pipeline.lake.tables import AUDIT
from angelia.pipeline.sources import archive
from angelia.stores.objects import Objects

MOST_FAULTS = MOST_LISTED = 100
SPAN_ROWS = 2_000_000  # verified together; the driver holds their checkpoints, which are no more than the entries
_PIECE_ROWS = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEFT = ("position", "event_id", "event_type", "message_id", "replay_key")  # of a redacted event, beside two times
# Returns the checkpoints after one position, up to another.
Signed = Callable[[int, int], pa.Table]
CHECKPOINTS = pa.schema(
    {
        "position": pa.int64(),
        "signed_hash": pa.binary(),
        "node_key_id": pa.string(),
        "signed_at": pa.timestamp("us", tz="UTC"),
        "signature": pa.binary(),
    }
)


@dataclass(frozen=True, slots=True)
class NodePublicKey:
    """The node whose signatures are checked; those of other nodes are only counted."""

    key_id: str
    public_key: bytes


@dataclass(frozen=True, slots=True)
class ChainFault:
    """A fault of the chain, and its position."""

    position: int
    what: str


@dataclass(slots=True)
class Redactions:
    """The redacted events of some rows. No hash covers what is left of them, so they are listed and summed: the sum is
    equal for equal rows, and the ledger computes the same."""

    count: int = 0
    hash_sum: int = 0
    positions: list[int] = field(default_factory=list)  # the first of them
    times: dict[datetime, tuple[int, int]] = field(default_factory=dict)  # the first of each time, and how many

    def add(self, row: Mapping[str, Any]) -> None:
        position, at = row["position"], row["redacted_at"]
        self.join(Redactions(1, _hash(row), [position], {at: (position, 1)}))

    def join(self, behind: Redactions) -> None:
        """Adds the redactions of the rows that follow."""
        self.count += behind.count
        self.hash_sum += behind.hash_sum
        self.positions += behind.positions[: MOST_LISTED - len(self.positions)]
        for at, (first, number) in behind.times.items():
            before = self.times.get(at, (first, 0))
            self.times[at] = (before[0], before[1] + number)


@dataclass(slots=True)
class ChainResult:
    """The result of a verification; `head` is the hash of the last entry."""

    last: int = 0
    rows: int = 0
    checkpoints: int = 0
    foreign: int = 0
    head: bytes = b""
    redactions: Redactions = field(default_factory=Redactions)
    faults: list[ChainFault] = field(default_factory=list)

    @property
    def redacted(self) -> int:
        return self.redactions.count

    def add(self, position: int, what: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(ChainFault(position, what))

    def follow(self, position: int, event_hash: bytes, found: bytes) -> None:
        """Adds a fault if an entry, whose hash is `found`, does not follow from the last one."""
        if position > self.last + 1:
            self.add(self.last + 1, _missing(position - self.last - 1))
        elif position <= self.last:
            self.add(position, "is in the archive twice")
        elif entry_hash(self.head, position, event_hash) != found:
            self.add(position, "does not follow from the entry before it")


@dataclass(slots=True)
class _Piece:
    """What a task found, and its first entry, which is checked when the pieces are joined."""

    first: int
    event_hash: bytes
    entry_hash: bytes
    result: ChainResult = field(default_factory=ChainResult)


def verify(
    spark: SparkSession,
    objects: Objects,
    floor: Floor,
    last: int,
    signed: Signed,
    node: NodePublicKey | None,
    *,
    span_rows: int = SPAN_ROWS,
) -> ChainResult:
    """Checks the entries after a floor, up to a position: each event against its hash, each entry against the one
    before it, and the signatures under them. At most a span of the chain is in memory at a time. `unexplained` checks
    whether redactions are on record."""
    result = ChainResult(last=floor.position, head=bytes.fromhex(floor.entry_hash))
    for after in range(floor.position, last, span_rows):
        end = min(last, after + span_rows)
        _join(result, _pieces(_ordered(spark, objects, after, end, signed(after, end)), node))
    if result.last < last:
        result.add(result.last + 1, _missing(last - result.last))
    result.faults.sort(key=lambda fault: fault.position)
    return result


def unexplained(
    spark: SparkSession, objects: Objects, redactions: Redactions, recorded: Collection[datetime]
) -> list[ChainFault]:
    """Finds redactions without a recorded erasure: neither among the times that the ledger recorded, nor by an event of
    the archive. Such an event has the exact time of its redactions, so its day is known."""
    open_times = {at: said for at, said in redactions.times.items() if at not in recorded}
    days = {at.astimezone(UTC).date() for at in open_times}
    files = [file for file in listing.files(objects, AUDIT) if file.day in days]
    if files:
        rows = archive.read(spark, objects, AUDIT, files)
        erasures = rows.where((f.col("event_type") == ERASED) & f.col("redacted_at").isNull()).toArrow().to_pylist()
        for row in erasures:
            event = _event(row)
            if event is not None and event.fault() is None:
                open_times.pop(event.occurred_at, None)
    return [ChainFault(first, _by_hand(number)) for first, number in open_times.values()]


def _by_hand(number: int) -> str:
    more = f", like {number - 1:,} more of that time" if number > 1 else ""
    return f"is redacted, and no erasure of that time is on record{more}"


def _ordered(spark: SparkSession, objects: Objects, after: int, last: int, checkpoints: pa.Table) -> DataFrame:
    rows = archive.read(spark, objects, AUDIT, files_within(objects, after, last))
    rows = rows.where((f.col("position") > after) & (f.col("position") <= last)).drop("day")
    signed = spark.createDataFrame(checkpoints.select(CHECKPOINTS.names).cast(CHECKPOINTS))
    pieces = max(1, (last - after) // _PIECE_ROWS)
    return (
        rows.join(f.broadcast(signed), "position", "left")
        .repartitionByRange(pieces, "position")
        .sortWithinPartitions("position")
    )


def _pieces(ordered: DataFrame, node: NodePublicKey | None) -> list[_Piece]:
    found = ordered.mapInArrow(functools.partial(_check, node=node), "piece binary").collect()
    pieces = (msgspec.json.decode(row["piece"], type=_Piece) for row in found)
    return sorted(pieces, key=lambda piece: piece.first)


def _join(result: ChainResult, pieces: Iterable[_Piece]) -> None:
    """Adds pieces in order to a result; each must begin where the one before it ends."""
    for piece in pieces:
        result.follow(piece.first, piece.event_hash, piece.entry_hash)
        found = piece.result
        for fault in found.faults:
            result.add(fault.position, fault.what)
        result.last, result.head = found.last, found.head
        result.redactions.join(found.redactions)
        result.rows += found.rows
        result.checkpoints += found.checkpoints
        result.foreign += found.foreign


def _missing(count: int) -> str:
    return "is missing from the archive" + (f", with the {count - 1:,} after it" if count > 1 else "")


def _check(batches: Iterator[pa.RecordBatch], node: NodePublicKey | None) -> Iterator[pa.RecordBatch]:
    """Checks one piece, in order of position; its first entry is checked when the pieces are joined."""
    check = _PieceCheck(node)
    for batch in batches:
        for row in batch.to_pylist():
            check.add(row)
    if check.piece is not None:
        yield pa.RecordBatch.from_pylist([{"piece": msgspec.json.encode(check.piece)}])


class _PieceCheck:
    def __init__(self, node: NodePublicKey | None) -> None:
        self._node = node
        self._key = None if node is None else Ed25519PublicKey.from_public_bytes(node.public_key)
        self._last_signed_at = _EPOCH
        self.piece: _Piece | None = None

    def add(self, row: dict[str, Any]) -> None:
        position, hashes = row["position"], (row["event_hash"], row["entry_hash"])
        if self.piece is None:
            self.piece = _Piece(position, *hashes)
        else:
            self.piece.result.follow(position, *hashes)
        result, event = self.piece.result, _event(row)
        if fault := "cannot be read" if event is None else event.fault():
            result.add(position, fault)
        if row["occurred_at"] < self._last_signed_at - LATEST_COMMIT:
            result.add(position, "claims a time that was already sealed")
        result.rows += 1
        if row["redacted_at"] is not None:
            result.redactions.add(row)
        result.last, result.head = position, row["entry_hash"]
        if row["signature"] is not None:
            self._check_signature(row, result)

    def _check_signature(self, row: dict[str, Any], result: ChainResult) -> None:
        position = row["position"]
        # The signed hash can be compared also without the signer's key.
        same = row["signed_hash"] == row["entry_hash"]
        if not same:
            result.add(position, "is not what its checkpoint signed")
        if self._node is None or self._key is None or row["node_key_id"] != self._node.key_id:
            result.foreign += 1
            return
        result.checkpoints += 1
        if not same:
            return
        try:
            self._key.verify(row["signature"], checkpoint_bytes(position, row["entry_hash"], row["signed_at"]))
        except InvalidSignature:
            result.add(position, "carries a checkpoint with a wrong signature")
        else:
            self._last_signed_at = row["signed_at"]


def _event(row: dict[str, Any]) -> StoredEvent | None:
    try:
        return StoredEvent(
            event_id=UUID(row["event_id"]),
            occurred_at=row["occurred_at"],
            event_type=row["event_type"],
            actor=row["actor_nhi"],
            object=row["object_nhi"],
            message_id=None if row["message_id"] is None else UUID(row["message_id"]),
            replay_key=row["replay_key"],
            detail={} if row["detail"] is None else json.loads(row["detail"]),
            event_hash=row["event_hash"].hex(),
            redacted_at=row["redacted_at"],
        )
    except ValueError:  # not an event that the audit wrote
        return None


def _hash(row: Mapping[str, Any]) -> int:
    left = ["" if row[name] is None else str(row[name]) for name in _LEFT]
    text = "|".join([*left, str(_micros(row["occurred_at"])), str(_micros(row["redacted_at"]))])
    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
