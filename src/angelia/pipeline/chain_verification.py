"""Verifies the audit's hash chain in the archive: Spark checks pieces in parallel, the driver checks that they join."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from angelia.audit.model import ERASED, LATEST_COMMIT, Floor, StoredEvent, checkpoint_bytes, entry_hash
from angelia.pipeline.lake import listing
from angelia.pipeline.lake.audit_chain import files_within
from angelia.pipeline.lake.tables import AUDIT
from angelia.pipeline.redactions import Redactions
from angelia.pipeline.sources import archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from angelia.stores.objects import Objects

MOST_FAULTS = 100
SPAN_ROWS = 2_000_000  # verified together; the driver holds their checkpoints, which are no more than the entries
_PIECE_ROWS = 100_000
_PIECE = (
    "first long, last long, rows long, checkpoints long, foreign long, first_event_hash binary, "
    "first_entry_hash binary, last_entry_hash binary, redactions string, faults string"
)
# Returns the checkpoints after one position, up to another.
Signed = Callable[[int, int], pa.Table]
CHECKPOINTS = pa.schema(
    [
        pa.field("position", pa.int64()),
        pa.field("signed_hash", pa.binary()),
        pa.field("node_key_id", pa.string()),
        pa.field("signed_at", pa.timestamp("us", tz="UTC")),
        pa.field("signature", pa.binary()),
    ]
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
class ChainResult:
    """The result of a verification; `head` is the hash of the last entry."""

    first: int = 0
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
    result = ChainResult(first=floor.position + 1, last=floor.position, head=bytes.fromhex(floor.entry_hash))
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
    from pyspark.sql import functions as f

    open_times = {at: said for at, said in redactions.times.items() if at not in recorded}
    days = {at.astimezone(UTC).date() for at in open_times}
    uris = [file.uri for file in listing.files(objects, AUDIT) if file.day in days]
    if uris:
        rows = archive.read(spark, objects, AUDIT, uris)
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
    from pyspark.sql import functions as f

    rows = archive.read(spark, objects, AUDIT, files_within(objects, after, last))
    rows = rows.where((f.col("position") > after) & (f.col("position") <= last)).drop("day")
    signed = spark.createDataFrame(checkpoints.select(CHECKPOINTS.names).cast(CHECKPOINTS))
    pieces = max(1, (last - after) // _PIECE_ROWS)
    return (
        rows.join(f.broadcast(signed), "position", "left")
        .repartitionByRange(pieces, "position")
        .sortWithinPartitions("position")
    )


def _pieces(ordered: DataFrame, node: NodePublicKey | None) -> list[dict[str, Any]]:
    found = ordered.mapInArrow(functools.partial(_check, node=node), _PIECE).collect()
    return sorted((row.asDict() for row in found), key=lambda piece: int(piece["first"]))


def _join(result: ChainResult, pieces: Iterable[dict[str, Any]]) -> None:
    """Adds pieces in order to a result; each must begin where the one before it ends."""
    for piece in pieces:
        first = piece["first"]
        if first > result.last + 1:
            result.add(result.last + 1, _missing(first - result.last - 1))
        elif first <= result.last:
            result.add(first, "is in the archive twice")
        elif entry_hash(result.head, first, bytes(piece["first_event_hash"])) != bytes(piece["first_entry_hash"]):
            result.add(first, "does not follow from the entry before it")
        for position, what in json.loads(piece["faults"]):
            result.add(position, what)
        result.last, result.head = piece["last"], bytes(piece["last_entry_hash"])
        result.redactions.join(Redactions.heard(piece["redactions"]))
        for name in ("rows", "checkpoints", "foreign"):
            setattr(result, name, getattr(result, name) + piece[name])


def _missing(count: int) -> str:
    return "is missing from the archive" + (f", with the {count - 1:,} after it" if count > 1 else "")


def _check(batches: Iterator[pa.RecordBatch], node: NodePublicKey | None) -> Iterator[pa.RecordBatch]:
    """Checks one piece, in order of position; its first entry is checked when the pieces are joined."""
    piece = _Piece(node)
    for batch in batches:
        for row in batch.to_pylist():
            piece.add(row)
    if piece.first is not None:
        yield pa.RecordBatch.from_pylist([piece.told()])


class _Piece:
    def __init__(self, node: NodePublicKey | None) -> None:
        self._node = node
        self._key = None if node is None else Ed25519PublicKey.from_public_bytes(node.public_key)
        self._result = ChainResult()
        self._last_signed_at = datetime.fromtimestamp(0, UTC)
        self.first: dict[str, Any] | None = None

    def add(self, row: dict[str, Any]) -> None:
        result, position = self._result, row["position"]
        if self.first is None:
            self.first = row
        elif position > result.last + 1:
            result.add(result.last + 1, _missing(position - result.last - 1))
        elif position <= result.last:
            result.add(position, "is in the archive twice")
        elif entry_hash(result.head, position, row["event_hash"]) != row["entry_hash"]:
            result.add(position, "does not follow from the entry before it")
        event = _event(row)
        if fault := "cannot be read" if event is None else event.fault():
            result.add(position, fault)
        if row["occurred_at"] < self._last_signed_at - LATEST_COMMIT:
            result.add(position, "claims a time that was already sealed")
        result.rows += 1
        if row["redacted_at"] is not None:
            result.redactions.add(row)
        result.last, result.head = position, row["entry_hash"]
        if row["signature"] is not None:
            self._check_signature(row)

    def told(self) -> dict[str, Any]:
        result, first = self._result, self.first
        assert first is not None
        return {
            "first": first["position"],
            "last": result.last,
            "rows": result.rows,
            "checkpoints": result.checkpoints,
            "foreign": result.foreign,
            "first_event_hash": first["event_hash"],
            "first_entry_hash": first["entry_hash"],
            "last_entry_hash": result.head,
            "redactions": result.redactions.told(),
            "faults": json.dumps([[fault.position, fault.what] for fault in result.faults]),
        }

    def _check_signature(self, row: dict[str, Any]) -> None:
        result, position = self._result, row["position"]
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
