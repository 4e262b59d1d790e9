"""Audit events, their canonical bytes, the hash chain over them, and the verifier, which needs only public keys."""

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

from angelia.api import Moment, PageQuery

GENESIS = bytes(32)
# How long after its own time a genuine event can commit; an event that is older than that was inserted afterwards.
LATEST_COMMIT = timedelta(minutes=5)
ERASED = "erased"  # the type of the event that records an erasure; its time equals that of the redactions
ARCHIVE_RUN = "archive_run"
CHECKPOINT_LABEL = b"angelia/v1/audit-checkpoint\0"
_EVENT_LABEL = b"angelia/v1/audit-event\0"
_MOST_SPANS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Since = Annotated[Moment, msgspec.Meta(description="Events of this time or later")]
Until = Annotated[Moment, msgspec.Meta(description="Events before this time")]
# No floats: jsonb of PostgreSQL and JSON text may write them differently, and the hash must be the same for both.
Detail = Mapping[str, str | int | bool | None]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded act: metadata only, never content, keys or tokens."""

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
        """The event as bytes, which are hashed: big-endian, each part with its length, absent parts marked."""
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
    """An event as the ledger has it. Redaction empties actor, object and detail and keeps the hash."""

    event_id: UUID
    occurred_at: datetime
    event_type: str
    actor: str | None
    object: str | None
    message_id: UUID | None
    replay_key: str | None
    detail: Any  # also what a forger wrote must be readable, so that the verifier can report it
    event_hash: str
    redacted_at: datetime | None
    position: int | None = None
    ahead: bool = False  # it claims a later transaction than the one that wrote it, so Angelia did not write it

    def fault(self) -> str | None:
        """What is wrong with the event on its own, or None."""
        if self.ahead:
            return "claims a transaction beyond its neighbours'"
        if self.redacted_at is not None:
            return "is redacted and still carries content" if self.actor or self.object or self.detail else None
        members = {name: getattr(self, name) for name in Event.__struct_fields__}
        if self.replay_key is not None:
            members["replay_key"] = bytes.fromhex(self.replay_key)
        return None if Event(**members).hash().hex() == self.event_hash else "does not match its hash"


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


class SignedEntry(msgspec.Struct, frozen=True):
    """The last entry that a node signed. The node remembers it outside the ledger, where SQL cannot change it."""

    position: int
    entry_hash: str


class Floor(msgspec.Struct, frozen=True):
    """The last entry that was moved from the ledger to the archive; the ledger's chain goes on from there. Position 0
    means that none was moved."""

    position: int = 0
    entry_hash: str = GENESIS.hex()


class ChainPage(msgspec.Struct, frozen=True):
    """A page of the chain, the position up to which the sealer has sealed, and the floor of the ledger."""

    entries: list[ChainEntry]
    sealed_to: int
    floor: Floor


class EventQuery(PageQuery, frozen=True, kw_only=True):
    """Filters of the event list; newest first."""

    type: Annotated[str, msgspec.Meta(description="Only events of this type")] | None = None
    actor: Annotated[str, msgspec.Meta(description="Only what this agent, operator or address did")] | None = None
    message_id: Annotated[UUID, msgspec.Meta(description="Only events about this message")] | None = None
    since: Since | None = msgspec.field(default=None, name="from")
    until: Until | None = msgspec.field(default=None, name="to")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a chain: the entry or event that has it, and what is wrong."""

    position: int | None
    event_id: UUID | None
    what: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification; `broken` is empty for a sound chain."""

    sealed: int
    archived: int
    redacted: list[int]
    checkpoints: int
    foreign_checkpoints: int
    witnessed: int
    broken: list[Fault]
    unsealed: list[StoredEvent]
    witness_behind: int = 0  # how many entries the node signed beyond the witness's newest checkpoint
    unproven: str | None = None  # why the archive does not prove the entries that were moved to it, if it does not


def entry_hash(previous: bytes, position: int, event_hash: bytes) -> bytes:
    """The hash of an entry, which binds its event to the position and to all entries before it."""
    return hashlib.sha256(previous + position.to_bytes(8, "big") + event_hash).digest()


def checkpoint_bytes(position: int, head: bytes, signed_at: datetime) -> bytes:
    """The bytes that the node key signs for a checkpoint."""
    return CHECKPOINT_LABEL + position.to_bytes(8, "big") + head + _micros(signed_at).to_bytes(8, "big")


class Verifier:
    """Verifies a chain page by page, from its floor. Collects all faults instead of stopping at the first.

    `remembered` is the last entry that the node signed, by its own memory outside the ledger.
    """

    def __init__(self, node_key_id: UUID, node_public_key: bytes, remembered: SignedEntry | None = None) -> None:
        self._node_key_id = node_key_id
        self._public_key = node_public_key
        self._previous = GENESIS
        self._position = 0
        self._broken: list[Fault] = []
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
        """The time span of the events so far, day by day and open at both ends: the spans to search for strays."""
        if self._span is None:
            return [(None, None)]
        first, last = self._span
        step = max(timedelta(days=1), (last - first) / _MOST_SPANS)
        bounds = [first + n * step for n in range((last - first) // step + 1)]
        return list(pairwise([None, *bounds, None]))

    def expect(self, checkpoints: Iterable[Checkpoint], tail: Iterable[StoredEvent] = ()) -> None:
        """Takes checkpoints, before the entries that they cover; and once, the unsealed tail of that time."""
        self._checkpoints |= {checkpoint.position: checkpoint for checkpoint in checkpoints}
        for event in tail:
            self._note_trim(event)

    def compare(self, witnessed: Iterable[Checkpoint]) -> None:
        """Takes the checkpoints that the node's witness keeps, before the entries that they cover."""
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
        """Checks the next entries, in order of position. `floor` was read after them: it may rise meanwhile."""
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
        """The verdict, after the last page. `sealed_to` is the sealer's own position; `strays` are events that no entry
        explains, `tail` are events that wait for the sealer."""
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
            # Where entries are missing, a forged event cannot be told from one that lost its entry.
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
            redacted=[position for position, _, _ in self._redactions],
            checkpoints=self._checked,
            foreign_checkpoints=self._foreign,
            witnessed=self._compared,
            witness_behind=self._witness_behind,
            broken=self._broken,
            unsealed=unsealed,
        )

    def _check_redactions(self, unsealed: Iterable[StoredEvent]) -> None:
        """A redacted event no longer matches its hash, so an erasure of the same time must be on record."""
        recorded = self._erasures | {event.occurred_at for event in unsealed if event.event_type == ERASED}
        for position, event_id, at in self._redactions:
            if at not in recorded:
                self._fault(position, event_id, "is redacted, and no erasure of that time is on record")

    def _begin_behind(self, floor: Floor) -> None:
        """Begins behind the floor: the archive proves the entries up to it, and a checkpoint vouches for the floor."""
        if floor.position not in self._checkpoints:
            self._fault(floor.position, None, "is where the ledger begins, and no checkpoint vouches for it")
        up_to_floor = sorted(position for position in self._checkpoints if position <= floor.position)
        vouched = {position: self._checkpoints.pop(position) for position in up_to_floor}
        for position, checkpoint in vouched.items():
            if self._witnessed.get(position, checkpoint.entry_hash) != checkpoint.entry_hash:
                self._fault(position, None, "is not what the witness was shown")
            head = floor.entry_hash if position == floor.position else checkpoint.entry_hash
            self._check_signature(checkpoint, head)
        if self._remembered is not None and self._remembered.position <= floor.position:
            signed = vouched.get(self._remembered.position)
            if signed is None or signed.entry_hash != self._remembered.entry_hash:
                self._fault(self._remembered.position, None, "is not what this node remembers to have signed")
            self._remembered = None
        self._archived = self._position = floor.position
        self._previous = bytes.fromhex(floor.entry_hash)

    def _note_trim(self, event: StoredEvent) -> None:
        """Remembers up to which entry an archive run trimmed the ledger; the event of the run comes after them."""
        detail = event.detail if isinstance(event.detail, dict) else {}
        if event.event_type == ARCHIVE_RUN and detail.get("job") == "archive audit":
            self._trims.add(detail.get("to"))

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
        # Going on from the stored hash keeps one bad entry from making all later ones look broken.
        self._previous = stored
        if self._remembered is not None and self._remembered.position == entry.position:
            if self._remembered.entry_hash != entry.entry_hash:
                self._fault(entry.position, entry.event_id, "is not what this node remembers to have signed")
            self._remembered = None
        if checkpoint := self._checkpoints.pop(entry.position, None):
            self._check_signature(checkpoint, entry.entry_hash)

    def _check_signature(self, checkpoint: Checkpoint, head: str) -> None:
        # The signed hash can be compared also where the signing node's key is not known.
        same = checkpoint.entry_hash == head
        if not same:
            self._fault(checkpoint.position, None, "is not what its checkpoint signed")
        if checkpoint.node_key_id != self._node_key_id:
            self._foreign += 1
            return
        self._checked += 1
        if same and checkpoint.is_signed_by(self._public_key):
            self._last_signed_at = checkpoint.signed_at
        elif same:
            self._fault(checkpoint.position, None, "carries a checkpoint with a wrong signature")

    def _fault(self, position: int | None, event_id: UUID | None, what: str) -> None:
        self._broken.append(Fault(position=position, event_id=event_id, what=what))


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _part(value: bytes | None) -> bytes:
    return b"\0" if value is None else b"\1" + len(value).to_bytes(4, "big") + value
