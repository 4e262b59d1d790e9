"""Audit events, their canonical bytes, the hash chain over them, and the verifier that anybody can run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

GENESIS = bytes(32)
# How long after its own time an honest event can commit; an event older than that was written in afterwards.
LATEST_COMMIT = timedelta(minutes=5)
ERASED = "erased"  # the type of the event that an erasure leaves; its time is that of the redactions
ARCHIVE_RUN = "archive_run"
CHECKPOINT_LABEL = b"angelia/v1/audit-checkpoint\0"
_EVENT_LABEL = b"angelia/v1/audit-event\0"
_MOST_SPANS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# No floats: PostgreSQL's jsonb and JSON's text forms need not agree on them, and a hash must.
Detail = Mapping[str, str | int | bool | None]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened: metadata only, never content, keys or tokens."""

    event_id: UUID
    occurred_at: datetime
    event_type: str
    actor: str | None = None
    object: str | None = None
    message_id: UUID | None = None
    replay_key: bytes | None = None
    detail: Detail = {}

    def hash(self) -> bytes:
        return hashlib.sha256(self.canonical()).digest()

    def canonical(self) -> bytes:
        """One byte string per event: big-endian, each part with its length, absent parts marked as such."""
        detail = json.dumps(self.detail, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return b"".join(
            (
                _EVENT_LABEL,
                self.event_id.bytes,
                _micros(self.occurred_at).to_bytes(8, "big"),
                _part(self.event_type.encode()),
                _part(self.actor.encode() if self.actor is not None else None),
                _part(self.object.encode() if self.object is not None else None),
                _part(self.message_id.bytes if self.message_id is not None else None),
                _part(self.replay_key),
                _part(detail.encode()),
            )
        )


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the ledger holds it. Redaction empties actor, object and detail and keeps the hash."""

    event_id: UUID
    occurred_at: datetime
    event_type: str
    actor: str | None
    object: str | None
    message_id: UUID | None
    replay_key: str | None
    detail: Any  # whatever a forger wrote must be readable, to be named
    event_hash: str
    redacted_at: datetime | None
    position: int | None = None
    ahead: bool = False  # its transaction id is later than the transaction that wrote it: it was not written by ours

    def fault(self) -> str | None:
        """What is wrong with the event by itself, if anything."""
        if self.ahead:
            return "claims a transaction beyond its neighbours'"
        if self.redacted_at is not None:
            return "is redacted and still carries content" if self.actor or self.object or self.detail else None
        event = Event(
            event_id=self.event_id,
            occurred_at=self.occurred_at,
            event_type=self.event_type,
            actor=self.actor,
            object=self.object,
            message_id=self.message_id,
            replay_key=None if self.replay_key is None else bytes.fromhex(self.replay_key),
            detail=self.detail,
        )
        return None if event.hash().hex() == self.event_hash else "does not match its hash"


class ChainEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed position; `event` is missing when the ledger no longer has it."""

    position: int
    event_id: UUID
    entry_hash: str
    event: StoredEvent | None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The node's signature under the chain up to a position."""

    position: int
    entry_hash: str
    node_key_id: UUID
    signed_at: datetime
    signature: str

    def is_signed_by(self, public_key: bytes) -> bool:
        try:
            signed = checkpoint_bytes(self.position, bytes.fromhex(self.entry_hash), self.signed_at)
            Ed25519PublicKey.from_public_bytes(public_key).verify(bytes.fromhex(self.signature), signed)
        except (InvalidSignature, ValueError, OverflowError):
            return False
        return True


class Checkpoints(msgspec.Struct, frozen=True):
    """Some of them, in order of position."""

    checkpoints: list[Checkpoint]


class Newest(msgspec.Struct, frozen=True):
    """The position of the newest checkpoint that is kept of a node; 0 for none."""

    position: int


class Testimony(msgspec.Struct, frozen=True, kw_only=True):
    """What a node hands to its witness: checkpoints in order, and the key that signed them, in base64."""

    public_key: str
    checkpoints: Annotated[list[Checkpoint], msgspec.Meta(max_length=100)]


class Signed(msgspec.Struct, frozen=True):
    """How far a node has signed the chain, kept by the node itself: a ledger cannot make it forget."""

    position: int
    entry_hash: str


class Floor(msgspec.Struct, frozen=True):
    """The last entry that left the ledger for the archive: its chain goes on from there. Position 0: none has left."""

    position: int = 0
    entry_hash: str = GENESIS.hex()


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a sound chain does not have, named exactly."""

    position: int | None
    event_id: UUID | None
    what: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What verification found; `broken` is empty for a sound chain."""

    sealed: int
    archived: int
    redacted: list[int]
    checkpoints: int
    foreign_checkpoints: int
    witnessed: int
    broken: list[Fault]
    unsealed: list[StoredEvent]
    witness_behind: int = 0  # how many of the entries that the node signed the witness was not shown
    unproven: str | None = None  # why the archive does not vouch for the entries that left for it, if it does not


def entry_hash(previous: bytes, position: int, event_hash: bytes) -> bytes:
    """Binds an event to its place and to everything before it."""
    return hashlib.sha256(previous + position.to_bytes(8, "big") + event_hash).digest()


def checkpoint_bytes(position: int, head: bytes, signed_at: datetime) -> bytes:
    """What the node key signs."""
    return CHECKPOINT_LABEL + position.to_bytes(8, "big") + head + _micros(signed_at).to_bytes(8, "big")


class Verifier:
    """Checks a chain page by page, from its floor. Collects every fault instead of stopping at the first.

    `remembered` is the last entry that the node itself remembers to have signed, outside the ledger.
    """

    def __init__(self, node_key_id: UUID, node_public_key: bytes, remembered: Signed | None = None) -> None:
        self._node_key_id = node_key_id
        self._public_key = node_public_key
        self._node_key = Ed25519PublicKey.from_public_bytes(node_public_key)
        self._previous = GENESIS
        self._position = 0
        self._broken: list[Fault] = []
        self._redacted: list[int] = []
        self._redactions: list[tuple[int, UUID, datetime]] = []
        self._erasures: set[datetime] = set()
        self._checkpoints: dict[int, Checkpoint] = {}
        self._checked = self._foreign = 0
        self._gaps = False
        self._last_signed_at = _EPOCH
        self._remembered = remembered
        self._span: tuple[datetime, datetime] | None = None
        self._archived = 0
        self._unexplained = 0
        self._trims: set[object] = set()
        self._witnessed: dict[int, str] = {}
        self._compared = self._witness_behind = 0

    @property
    def position(self) -> int:
        return self._position

    def days(self) -> list[tuple[datetime | None, datetime | None]]:
        """The time that the fed events span, day by day and open at both ends: where to look for strays."""
        if self._span is None:
            return [(None, None)]
        first, last = self._span
        step = max(timedelta(days=1), (last - first) / _MOST_SPANS)
        bounds = [first + n * step for n in range((last - first) // step + 1)]
        return list(pairwise([None, *bounds, None]))

    def expect(self, checkpoints: Iterable[Checkpoint], tail: Iterable[StoredEvent] = ()) -> None:
        """Hand over the checkpoints before the entries that they cover; and once, what waited for its seal then."""
        self._checkpoints |= {checkpoint.position: checkpoint for checkpoint in checkpoints}
        for event in tail:
            self._note_trim(event)

    def compare(self, witnessed: Iterable[Checkpoint]) -> None:
        """Hand over what the node's witness was shown, before the entries that it is about."""
        signed = self._remembered.position if self._remembered else 0
        newest = 0
        for checkpoint in witnessed:
            if not checkpoint.is_signed_by(self._public_key):
                self._fault(checkpoint.position, None, "is kept by the witness with a wrong signature")
                continue
            newest = max(newest, checkpoint.position)
            if self._witnessed.setdefault(checkpoint.position, checkpoint.entry_hash) != checkpoint.entry_hash:
                self._fault(checkpoint.position, None, "was shown to the witness in two forms")
        self._witness_behind = max(0, signed - newest)

    def feed(self, entries: Iterable[ChainEntry], floor: Floor | None = None) -> None:
        """The next entries, in order of position, and the floor that was read after them: it may rise on the way."""
        if floor is not None and floor.position > self._position:
            if not self._position:
                self._unexplained = floor.position
            self._begin_behind(floor)
        for entry in entries:
            if entry.position <= self._archived:
                continue
            self._expect_no_gap(entry.position - 1)
            self._position = entry.position
            self._check(entry)

    def finish(self, sealed_to: int, strays: Iterable[StoredEvent], tail: Iterable[StoredEvent]) -> Verdict:
        """After the last page: what the sealer says it sealed, rows that no seal explains, and the open tail."""
        self._expect_no_gap(sealed_to)
        if self._position and not (self._checked or self._foreign or self._checkpoints):
            self._fault(self._position, None, "and all before it are covered by no signed checkpoint")
        if self._unexplained and self._unexplained not in self._trims:
            self._fault(self._unexplained, None, "is where the ledger begins, and no archive run says so")
        if self._remembered is not None:
            self._fault(self._remembered.position, None, "was signed by this node, but the chain ends before it")
        for position in sorted(self._checkpoints):
            self._fault(position, None, "is signed by a checkpoint, but the chain ends before it")
        for position in sorted(position for position in self._witnessed if position > self._archived):
            self._fault(position, None, "was shown to the witness, but the chain ends before it")
        for stray in strays:
            # Where entries are missing, nobody can tell a forged event from one that lost its entry.
            what = "is in no entry of the chain" if self._gaps else "was inserted among the sealed events"
            self._fault(None, stray.event_id, what)
        unsealed = list(tail)
        self._check_redactions(unsealed)
        for event in unsealed:
            if fault := event.fault():
                self._fault(None, event.event_id, fault)
        return Verdict(
            sealed=self._position,
            archived=self._archived,
            redacted=self._redacted,
            checkpoints=self._checked,
            foreign_checkpoints=self._foreign,
            witnessed=self._compared,
            witness_behind=self._witness_behind,
            broken=self._broken,
            unsealed=unsealed,
        )

    def _check_redactions(self, unsealed: Iterable[StoredEvent]) -> None:
        """No hash covers what is left of a redacted event, so an erasure of the same time must be on record."""
        recorded = self._erasures | {event.occurred_at for event in unsealed if event.event_type == ERASED}
        for position, event_id, at in self._redactions:
            if at not in recorded:
                self._fault(position, event_id, "is redacted, and no erasure of that time is on record")

    def _begin_behind(self, floor: Floor) -> None:
        """What left is the archive's to prove. That it was what it was, a checkpoint of the node vouches for."""
        if floor.position not in self._checkpoints:
            self._fault(floor.position, None, "is where the ledger begins, and no checkpoint vouches for it")
        vouched = {position: self._checkpoints.pop(position) for position in self._positions_to(floor.position)}
        for position, checkpoint in vouched.items():
            if self._witnessed.get(position, checkpoint.entry_hash) != checkpoint.entry_hash:
                self._fault(position, None, "is not what the witness was shown")
            head = floor.entry_hash if position == floor.position else checkpoint.entry_hash
            self._check_signature(checkpoint, bytes.fromhex(head))
        if self._remembered is not None and self._remembered.position <= floor.position:
            signed = vouched.get(self._remembered.position)
            if signed is None or signed.entry_hash != self._remembered.entry_hash:
                self._fault(self._remembered.position, None, "is not what this node remembers to have signed")
            self._remembered = None
        self._archived = self._position = floor.position
        self._previous = bytes.fromhex(floor.entry_hash)

    def _note_trim(self, event: StoredEvent) -> None:
        """An archive run that let entries go says up to where, and stays behind them."""
        detail = event.detail if isinstance(event.detail, dict) else {}
        if event.event_type == ARCHIVE_RUN and detail.get("job") == "archive audit":
            self._trims.add(detail.get("to"))

    def _positions_to(self, last: int) -> list[int]:
        return sorted(position for position in self._checkpoints if position <= last)

    def _expect_no_gap(self, to: int) -> None:
        missing = to - self._position
        if missing > 0:
            self._gaps = True
            more = f", with the {missing - 1:,} after it" if missing > 1 else ""
            self._fault(self._position + 1, None, f"is missing from the chain{more}")
            self._position = to

    def _check(self, entry: ChainEntry) -> None:
        stored = bytes.fromhex(entry.entry_hash)
        if entry.event is None:
            self._fault(entry.position, entry.event_id, "has lost its event")
        else:
            if fault := entry.event.fault():
                self._fault(entry.position, entry.event_id, fault)
            self._note_trim(entry.event)
            at = entry.event.occurred_at
            first, last = self._span or (at, at)
            self._span = min(first, at), max(last, at)
            if entry.event.redacted_at is not None:
                self._redacted.append(entry.position)
                self._redactions.append((entry.position, entry.event_id, entry.event.redacted_at))
            elif entry.event.event_type == ERASED:
                self._erasures.add(at)
            if entry.event.occurred_at < self._last_signed_at - LATEST_COMMIT:
                self._fault(entry.position, entry.event_id, "claims a time that was already sealed")
            event_hash = bytes.fromhex(entry.event.event_hash)
            if entry_hash(self._previous, entry.position, event_hash) != stored:
                self._fault(entry.position, entry.event_id, "does not follow from the entry before it")
        shown = self._witnessed.pop(entry.position, None)
        self._compared += shown is not None
        if shown is not None and shown != entry.entry_hash:
            self._fault(entry.position, entry.event_id, "is not what the witness was shown")
        # Going on from the stored hash keeps one bad entry from condemning all that come after it.
        self._previous = stored
        if self._remembered is not None and self._remembered.position == entry.position:
            if self._remembered.entry_hash != entry.entry_hash:
                self._fault(entry.position, entry.event_id, "is not what this node remembers to have signed")
            self._remembered = None
        if checkpoint := self._checkpoints.pop(entry.position, None):
            self._check_signature(checkpoint, stored)

    def _check_signature(self, checkpoint: Checkpoint, head: bytes) -> None:
        # What was signed can be compared without the key of whoever signed it.
        same = checkpoint.entry_hash == head.hex()
        if not same:
            self._fault(checkpoint.position, None, "is not what its checkpoint signed")
        if checkpoint.node_key_id != self._node_key_id:
            self._foreign += 1
            return
        self._checked += 1
        if not same:
            return
        try:
            signed = checkpoint_bytes(checkpoint.position, head, checkpoint.signed_at)
            self._node_key.verify(bytes.fromhex(checkpoint.signature), signed)
        except InvalidSignature:
            self._fault(checkpoint.position, None, "carries a checkpoint with a wrong signature")
        else:
            self._last_signed_at = checkpoint.signed_at

    def _fault(self, position: int | None, event_id: UUID | None, what: str) -> None:
        self._broken.append(Fault(position=position, event_id=event_id, what=what))


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _part(value: bytes | None) -> bytes:
    return b"\0" if value is None else b"\1" + len(value).to_bytes(4, "big") + value
