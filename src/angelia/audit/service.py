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
    ChainEntry,
    Checkpoint,
    Detail,
    Event,
    StoredEvent,
    checkpoint_bytes,
    entry_hash,
)
from angelia.errors import NotFound
from angelia.stores.ledger import Ledger, Tx

SEAL_BATCH = 1000
CHECKPOINT_ENTRIES = 1000
CHECKPOINT_AGE = timedelta(seconds=60)
DAYS_AHEAD = 7


class NodeSigner(Protocol):
    """The node key, as much of it as a checkpoint needs."""

    @property
    def key_id(self) -> UUID: ...
    def sign(self, data: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """What one tick did, and what it left for the next."""

    entries: int
    position: int
    waiting: int
    oldest: datetime | None


def event(
    event_type: str,
    at: datetime,
    *,
    actor: str | None = None,
    object: str | None = None,
    detail: Detail | None = None,
) -> Event:
    """An event of now, with an id of its own."""
    return Event(
        event_id=uuid.uuid4(),
        occurred_at=at,
        event_type=event_type,
        actor=actor,
        object=object,
        detail=detail or {},
    )


async def record(tx: Tx, events: Sequence[Event]) -> None:
    """Write events in the transaction of the act that they record, so that neither exists without the other."""
    if events:
        await store.record(tx, events)


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
            batch, next_xid = await _whole_transactions(tx, end.next_xid, await store.horizon(tx))
            head, position, entries = end.entry_hash, end.position, []
            for item in batch:
                position += 1
                head = entry_hash(head, position, item.event_hash)
                entries.append((position, item.event_id, item.occurred_at, head))
            if entries:
                await store.append_chain(tx, entries)
                await store.advance(tx, store.Sealer(next_xid, position, head))
            await _checkpoint_if_due(tx, node, position, head, now)
            waiting, oldest = await store.unsealed(tx)
        return Sealed(len(entries), position, waiting, oldest)

    async def make_partitions(self, now: datetime) -> int:
        """Make the daily partitions from yesterday to a week ahead; returns how many rows missed theirs."""
        days = [(now + timedelta(days=offset)).date() for offset in range(-1, DAYS_AHEAD + 1)]
        async with self._ledger.transaction() as tx:
            missing = await store.missing_partitions(tx, days)
        for day in missing:
            async with self._ledger.transaction() as tx:
                await store.make_partition(tx, day)
        async with self._ledger.transaction() as tx:
            return await store.in_default_partition(tx)

    async def events(self, page: Page) -> list[StoredEvent]:
        async with self._ledger.transaction() as tx:
            return await store.events(tx, **dataclasses.asdict(page))

    async def chain(self, after: int, limit: int) -> tuple[list[ChainEntry], int]:
        """The sealed entries after a position, and how far the sealer says it has come."""
        async with self._ledger.transaction() as tx:
            sealed_to = await store.sealed_to(tx)
            return await store.chain(tx, after, limit), sealed_to

    async def checkpoints(self, after: int, limit: int) -> list[Checkpoint]:
        async with self._ledger.transaction() as tx:
            return await store.checkpoints(tx, after, limit)

    async def checkpoint(self, position: int) -> Checkpoint:
        async with self._ledger.transaction() as tx:
            found = await store.checkpoint(tx, position)
        if found is None:
            raise NotFound(f"there is no checkpoint at position {position}")
        return found

    async def unsealed(self, limit: int) -> tuple[list[StoredEvent], list[StoredEvent]]:
        """Rows that no seal explains, and the tail that waits for its seal."""
        async with self._ledger.transaction() as tx:
            return await store.strays(tx, limit), await store.tail(tx, limit)


async def _whole_transactions(tx: Tx, from_xid: int, horizon: int) -> tuple[list[store.Sealable], int]:
    """The next batch, never cut inside a transaction, so that the chain's (xid, event_id) order only rises."""
    batch = await store.sealable(tx, from_xid, horizon, SEAL_BATCH)
    if len(batch) < SEAL_BATCH:
        return batch, horizon
    last = batch[-1].xid
    whole = [item for item in batch if item.xid < last]
    if whole:
        return whole, last
    return await store.sealable(tx, last, last + 1, None), last + 1


async def _checkpoint_if_due(tx: Tx, node: NodeSigner, position: int, head: bytes, now: datetime) -> None:
    last_position, last_at = await store.last_checkpoint(tx) or (0, None)
    fresh = position - last_position
    if fresh == 0:
        return
    if fresh >= CHECKPOINT_ENTRIES or last_at is None or now - last_at >= CHECKPOINT_AGE:
        signature = node.sign(checkpoint_bytes(position, head, now))
        await store.add_checkpoint(tx, position, head, node.key_id, now, signature)
