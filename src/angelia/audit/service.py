"""Records events in the transaction of the act, seals them into the chain, and reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import structlog

from angelia.api import Tick, parse_cursor, random_id
from angelia.audit import store
from angelia.audit.model import (
    GENESIS,
    ChainPage,
    Checkpoint,
    Detail,
    Event,
    EventQuery,
    SignedEntry,
    StoredEvent,
    checkpoint_bytes,
    entry_hash,
)
from angelia.envelope.ids import MAX_HANDLE
from angelia.errors import NotFound
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.partitions import Daily, make_ahead

SEAL_BATCH = 1000
# Every round that sealed entries is signed. Of older checkpoints one is kept per so many entries, or so much time.
KEPT_ENTRIES = 1000
KEPT_AGE = timedelta(seconds=60)
# How many entries, sealed by other nodes since it signed last, a node checks in one statement.
_LINKS = 10_000
_DAILY = Daily("audit_events", "occurred_at")
_REFUSED = "angelia audit verify; what to do then: docs/audit.md, If the node refuses"
log = structlog.get_logger(__name__)


class NodeSigner(Protocol):
    """The node key, and the last checkpoint that the node signed, which it remembers outside the ledger."""

    @property
    def key_id(self) -> UUID: ...
    @property
    def public_key(self) -> bytes: ...
    def sign(self, data: bytes) -> bytes: ...
    def signed(self) -> SignedEntry | None: ...
    def checkpoint(self) -> Checkpoint | None: ...
    def remember(self, checkpoint: Checkpoint) -> None: ...


@dataclass(frozen=True, slots=True)
class SealOutcome:
    """What one tick sealed. `refused` is why the node did not sign: the chain does not follow from what it signed."""

    entries: int
    position: int
    refused: str | None


@dataclass(frozen=True, slots=True)
class SealingProgress:
    """Events that wait for the sealer and the time of the oldest, the last sealed entry, the time of the first entry
    that the node has not signed, and whether the sealer's position is ahead of all transactions that have begun."""

    waiting: int
    oldest: datetime | None
    sealed_to: int
    unsigned_since: datetime | None
    ahead: bool

    def is_refused(self, now: datetime) -> bool:
        """Whether the node refuses to sign: entries have been without a signature for too long."""
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
    """A new event. `actor` is cut to the length of the column, since a token's subject may be longer."""
    return Event(
        event_id=UUID(bytes=random_id(), version=4),
        occurred_at=at,
        event_type=event_type,
        actor=actor[:MAX_HANDLE] if actor else None,
        object=object,
        message_id=message_id,
        replay_key=replay_key,
        detail=detail or {},
    )


async def record(tx: Tx, events: Sequence[Event]) -> None:
    """Writes events in the transaction of the act that they record, so that neither exists without the other."""
    if events:
        await store.record(tx, events)


class Audit:
    """Seals the audit, and reads it for operators."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def seal(self, node: NodeSigner, now: datetime) -> SealOutcome:
        """One tick of the sealer: chains the events of all transactions below the oldest one that is still open."""
        async with self._ledger.transaction() as tx:
            end = await store.sealer(tx)
            horizon, next_xid = await store.horizon(tx)
            if end.next_xid > next_xid:
                # PostgreSQL counts transactions upwards: all events until that transaction would be skipped.
                ahead = f"the sealer is to go on from transaction {end.next_xid:,}, which has not begun yet"
                return SealOutcome(0, end.position, ahead)
            batch = await store.sealable(tx, end.next_xid, horizon, SEAL_BATCH)
            # A full batch may end inside a transaction; the rest of its events come first in the next batch.
            next_xid = horizon if len(batch) < SEAL_BATCH else batch[-1].xid
            head, position, entries = end.entry_hash, end.position, []
            for item in batch:
                position += 1
                head = entry_hash(head, position, item.event_hash)
                entries.append((position, item.event_id, item.occurred_at, head))
            if entries:
                await store.append_chain(tx, entries)
                await store.advance(tx, store.SealerState(next_xid, position, head))
            # By the node's own memory, since a row that SQL wrote into the ledger must not keep the node from signing.
            signed, made = node.signed(), None
            due = SignedEntry(position, head.hex()) != (signed or SignedEntry(0, GENESIS.hex()))
            # An older build remembered no signature: the entry that it signed last is signed once more.
            due = due or (signed is not None and node.checkpoint() is None)
            refused = await _not_what_was_signed(tx, signed, end) if due else None
            if due and not refused:
                made = _sign(node, position, head, now)
                await store.add_checkpoint(tx, made)
                if signed is not None and signed.position < position:
                    await store.thin_checkpoints(tx, signed.position, node.key_id, KEPT_ENTRIES, KEPT_AGE)
        if made is not None:
            # After the commit: were an entry remembered that is not in the ledger, the node would never sign again.
            node.remember(made)
        return SealOutcome(len(entries), position, refused)

    async def progress(self, signed: SignedEntry | None) -> SealingProgress:
        """How far the sealer has come, and what waits for it and for the signature of a node that signed up to
        `signed`."""
        async with self._ledger.reading() as tx:
            return SealingProgress(**await store.progress(tx, signed.position if signed else 0))

    async def make_partitions(self, now: datetime) -> int:
        """Makes the daily partitions from yesterday to a week ahead. Returns how many rows are in none of them."""
        return await make_ahead(self._ledger, _DAILY, now)

    async def events(self, query: EventQuery) -> list[StoredEvent]:
        """A page of events, newest first, and one event more if there is another page."""
        before = parse_cursor(query.cursor)
        async with self._ledger.reading() as tx:
            return await store.events(tx, query, before)

    async def count_before(self, at: datetime, most: int) -> int:
        """The number of sealed entries older than a time, among the first `most` of the chain."""
        async with self._ledger.reading() as tx:
            return await store.entries_before(tx, at, most)

    async def chain(self, after: int, limit: int) -> ChainPage:
        """The sealed entries after a position. The floor is read last: it may have risen, never fallen, since."""
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
        """The strays of a time span, and the tail that waits for the sealer."""
        async with self._ledger.reading() as tx:
            return await store.strays(tx, since, until, limit), await store.tail(tx, limit)


def sealing_tick(audit: Audit, node: NodeSigner) -> Tick:
    """Seals events into the chain, every second or as long as full batches wait. For the main process, which holds the
    node key."""

    async def seal(now: datetime) -> bool:
        sealed = await audit.seal(node, now)
        if sealed.refused:
            log.error("the node does not sign this audit chain", why=sealed.refused, hint=_REFUSED)
        return sealed.entries == SEAL_BATCH

    return Tick("audit sealer", 1.0, seal)


def _sign(node: NodeSigner, position: int, head: bytes, now: datetime) -> Checkpoint:
    return Checkpoint(
        position=position,
        entry_hash=head.hex(),
        node_key_id=node.key_id,
        signed_at=now,
        signature=node.sign(checkpoint_bytes(position, head, now)).hex(),
    )


async def _not_what_was_signed(tx: Tx, signed: SignedEntry | None, end: store.SealerState) -> str | None:
    """Why the chain does not follow from the entry that the node signed last; None if it does."""
    if signed is None:
        return None
    # Entries are trimmed up to one that a node signed. If that was another node, only the ledger says so.
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
    # Between that entry and this round there may be entries that another node sealed, or a round not remembered.
    position, head = signed.position, present
    while position < end.position:
        upto = min(position + _LINKS, end.position)
        if (broken := await store.first_broken(tx, position, head, upto)) is not None:
            return f"entry {broken:,} does not follow from what this node signed"
        position, head = upto, await store.entry_hash(tx, upto) or b""
    return None if head == end.entry_hash else f"the chain does not end with entry {end.position:,} as it was sealed"
