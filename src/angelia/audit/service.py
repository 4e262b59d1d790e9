"""Records what happened, seals it into the chain, and shows it. Everybody hands over their own transaction."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from angelia.audit import store
from angelia.audit.model import (
    GENESIS,
    ChainEntry,
    Checkpoint,
    Detail,
    Event,
    Floor,
    Signed,
    StoredEvent,
    checkpoint_bytes,
    entry_hash,
)
from angelia.envelope.ids import MAX_HANDLE
from angelia.errors import NotFound
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.partitions import Daily, make_ahead

SEAL_BATCH = 1000
# Every round that sealed something is signed. Of older checkpoints one is kept for so many entries, or so much time.
KEPT_ENTRIES = 1000
KEPT_AGE = timedelta(seconds=60)
# How much of what others sealed since it signed last a node looks at in one statement.
_LINKS = 10_000
_DAILY = Daily("audit_events", "occurred_at")


class NodeSigner(Protocol):
    """The node key, and the node's own memory of the last checkpoint that it signed."""

    @property
    def key_id(self) -> UUID: ...
    @property
    def public_key(self) -> bytes: ...
    def sign(self, data: bytes) -> bytes: ...
    def signed(self) -> Signed | None: ...
    def checkpoint(self) -> Checkpoint | None: ...
    def remember(self, checkpoint: Checkpoint) -> None: ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """What one tick did. `refused` says why the node would not sign: this is not what follows from what it signed."""

    entries: int
    position: int
    refused: str | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the sealer is: events that wait and the time of the oldest, the last sealed entry, the time of the first
    one that the node did not sign, and whether the sealer is to go on from a transaction that is still to come."""

    waiting: int
    oldest: datetime | None
    sealed_to: int
    unsigned_since: datetime | None
    ahead: bool

    def is_refused(self, now: datetime) -> bool:
        """Whether a node refuses: entries stay without a signature, which sealing alone never leaves behind."""
        return self.ahead or (self.unsigned_since is not None and now - self.unsigned_since > KEPT_AGE)


def event(
    event_type: str,
    at: datetime,
    *,
    actor: str | None = None,
    object: str | None = None,
    message_id: UUID | None = None,
    replay_key: bytes | None = None,
    detail: Detail | None = None,
) -> Event:
    """An event of now, with an id of its own. A token's subject may be longer than the ledger keeps of a name."""
    return Event(
        event_id=uuid.uuid4(),
        occurred_at=at,
        event_type=event_type,
        actor=actor[:MAX_HANDLE] if actor else None,
        object=object,
        message_id=message_id,
        replay_key=replay_key,
        detail=detail or {},
    )


async def record(tx: Tx, events: Sequence[Event]) -> None:
    """Write events in the transaction of the act that they record, so that neither exists without the other."""
    if events:
        await store.record(tx, events)


@dataclass(frozen=True, slots=True)
class ChainPage:
    """Entries of the chain, how far the sealer says it has come, and from where on the ledger has them."""

    entries: list[ChainEntry]
    sealed_to: int
    floor: Floor


@dataclass(frozen=True, slots=True)
class Page:
    """Which events a listing wants; newest first, before a cursor."""

    event_type: str | None = None
    actor: str | None = None
    message_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: tuple[datetime, UUID] | None = None
    limit: int = 50


class Audit:
    """The sealer's side of the audit, and what operators may read of it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def seal(self, node: NodeSigner, now: datetime) -> Sealed:
        """One tick of the sealer: chain every event whose transaction can have no neighbour any more."""
        async with self._ledger.transaction() as tx:
            end = await store.sealer(tx)
            horizon, next_xid = await store.horizon(tx)
            if end.next_xid > next_xid:
                return Sealed(0, end.position, _ahead(end.next_xid))
            batch = await store.sealable(tx, end.next_xid, horizon, SEAL_BATCH)
            # A full batch may end inside a transaction; what is left of that one comes first in the next.
            next_xid = horizon if len(batch) < SEAL_BATCH else batch[-1].xid
            head, position, entries = end.entry_hash, end.position, []
            for item in batch:
                position += 1
                head = entry_hash(head, position, item.event_hash)
                entries.append((position, item.event_id, item.occurred_at, head))
            if entries:
                await store.append_chain(tx, entries)
                await store.advance(tx, store.Sealer(next_xid, position, head))
            # By the node's own memory: a row in the ledger, which SQL can write, must not keep it from signing.
            signed, made = node.signed(), None
            due = Signed(position, head.hex()) != (signed or Signed(0, GENESIS.hex()))
            # The build before remembered no signature: what it signed last is signed once more.
            due = due or (signed is not None and node.checkpoint() is None)
            refused = await _not_what_was_signed(tx, signed, end) if due else None
            if due and not refused:
                made = _sign(node, position, head, now)
                await store.add_checkpoint(tx, made)
                if signed is not None and signed.position < position:
                    await store.thin_checkpoints(tx, signed.position, node.key_id, KEPT_ENTRIES, KEPT_AGE)
        if made is not None:
            # After the commit: what the node remembers must be in the ledger, or it would never sign again.
            node.remember(made)
        return Sealed(len(entries), position, refused)

    async def progress(self, signed: Signed | None) -> Progress:
        """How far the sealer has come, what waits for it, and what waits for the signature of a node that has signed
        so far."""
        async with self._ledger.reading() as tx:
            return Progress(**await store.progress(tx, signed.position if signed else 0))

    async def make_partitions(self, now: datetime) -> int:
        """Make the daily partitions from yesterday to a week ahead; returns how many rows missed theirs."""
        return await make_ahead(self._ledger, _DAILY, now)

    async def events(self, page: Page) -> list[StoredEvent]:
        async with self._ledger.reading() as tx:
            return await store.events(tx, **dataclasses.asdict(page))

    async def chain(self, after: int, limit: int) -> ChainPage:
        """The sealed entries after a position. The floor is read last: what it hides was still among the entries."""
        async with self._ledger.reading() as tx:
            sealed_to = await store.sealed_to(tx)
            entries = await store.chain(tx, after, limit)
            return ChainPage(entries, sealed_to, await store.floor(tx))

    async def checkpoints(self, after: int, limit: int) -> list[Checkpoint]:
        async with self._ledger.reading() as tx:
            return await store.checkpoints(tx, after, limit)

    async def checkpoint(self, position: int) -> Checkpoint:
        async with self._ledger.reading() as tx:
            found = await store.checkpoint(tx, position)
        if found is None:
            raise NotFound(f"there is no checkpoint at position {position}")
        return found

    async def unsealed(
        self, limit: int, since: datetime | None = None, until: datetime | None = None
    ) -> tuple[list[StoredEvent], list[StoredEvent]]:
        """Rows of that time that no seal explains, and the tail that waits for its seal."""
        async with self._ledger.reading() as tx:
            return await store.strays(tx, since, until, limit), await store.tail(tx, limit)


def _sign(node: NodeSigner, position: int, head: bytes, now: datetime) -> Checkpoint:
    return Checkpoint(
        position=position,
        entry_hash=head.hex(),
        node_key_id=node.key_id,
        signed_at=now,
        signature=node.sign(checkpoint_bytes(position, head, now)).hex(),
    )


def _ahead(next_xid: int) -> str:
    """PostgreSQL counts transactions upwards: the sealer was never there, and would skip all events until it is."""
    return f"the sealer is to go on from transaction {next_xid:,}, which has not begun yet"


async def _not_what_was_signed(tx: Tx, signed: Signed | None, end: store.Sealer) -> str | None:
    """Why the chain up to its end does not go on from what the node signed last, if it does not."""
    if signed is None:
        return None
    # Entries leave up to one that a node signed. Where it was another node, that one's word is the ledger's only.
    floor = await store.floor(tx)
    if floor.position > signed.position:
        return (
            f"the ledger begins behind entry {floor.position:,}, beyond entry {signed.position:,}, the last that this"
            " node signed"
        )
    present = await store.entry_hash(tx, signed.position)
    if present is None:
        return f"entry {signed.position:,}, which this node signed, is gone"
    if present.hex() != signed.entry_hash:
        return f"entry {signed.position:,} is not the one this node signed"
    if end.position < signed.position:
        return f"the chain's end was set back to entry {end.position:,}, before what this node signed"
    # Between that one and the round at hand may lie what another node sealed, or a round that was not remembered.
    position, head = signed.position, present
    while position < end.position:
        upto = min(position + _LINKS, end.position)
        if (broken := await store.first_broken(tx, position, head, upto)) is not None:
            return f"entry {broken:,} does not follow from what this node signed"
        position, head = upto, await store.entry_hash(tx, upto) or b""
    return None if head == end.entry_hash else f"the chain does not end with entry {end.position:,} as it was sealed"
