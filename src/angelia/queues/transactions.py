"""Transactions: pushes and acknowledgments that happen together or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.errors import InvalidArgument, Unavailable
from angelia.queues import store
from angelia.queues.model import MOST_ITEMS, Ack, AckResult, PushItem, PushResult
from angelia.queues.pushing import Pushes, QueueChanged
from angelia.queues.settlement import Part, Settlement, results_of, settle
from angelia.stores.ledger import Ledger, Tx

_ROUNDS = 5
_MOST_PARTITIONS = 500
_NO_LEASE = UUID(int=0)


class TransactionOutcome(msgspec.Struct, frozen=True):
    """What became of a transaction: the results of its operations, in order, or why nothing was done."""

    results: list[PushResult | AckResult]
    error: str | None = None

    @property
    def success(self) -> bool:
        return self.error is None


class _Refused(Exception):
    """Ends a transaction that may not be committed."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class Transactions:
    """Runs transactions. Acknowledgments come before pushes: so cursors are locked before partitions, as everywhere."""

    def __init__(self, ledger: Ledger, pushes: Pushes, settlement: Settlement) -> None:
        self._ledger = ledger
        self._pushes = pushes
        self._settlement = settlement

    async def run(
        self,
        operations: Sequence[PushItem | Ack],
        required_leases: Sequence[UUID],
        producer: str | None,
        now: datetime,
    ) -> TransactionOutcome:
        """Does all operations or none. Each required lease must be in force."""
        acks = [one for one in operations if isinstance(one, Ack)]
        items = [one for one in operations if isinstance(one, PushItem)]
        _check_size(acks, items)
        for _ in range(_ROUNDS):
            try:
                settled, pushed = await self._once(acks, items, required_leases, producer, now)
            except QueueChanged:
                continue
            except _Refused as refused:
                return TransactionOutcome([], refused.error)
            results: list[PushResult | AckResult] = []
            for one in operations:
                results.append(next(settled) if isinstance(one, Ack) else next(pushed))
            return TransactionOutcome(results)
        raise Unavailable("queues changed while messages were pushed to them", hint="try again", retry_after=1)

    async def _once(
        self,
        acks: Sequence[Ack],
        items: Sequence[PushItem],
        required_leases: Sequence[UUID],
        producer: str | None,
        now: datetime,
    ) -> tuple[Iterator[AckResult], Iterator[PushResult]]:
        parts = await self._settlement.parts_of(acks)
        slices, pushed = await self._pushes.prepared(items, producer, now)
        _refuse_unqueued(pushed)
        async with self._ledger.transaction() as tx:
            if required_leases:
                await _require(tx, parts, required_leases, now)
            rows = await settle(tx, parts, now) if parts else []
            if await self._settlement.groups_changed(parts, rows):
                raise QueueChanged
            settled = results_of(acks, parts, rows)
            for result in settled:
                if not result.success:
                    raise _Refused(f"ACK operation failed: {result.error}")
            await self._pushes.stored(tx, slices, pushed)
            _refuse_unqueued(pushed)
            done = [one for one in pushed if one is not None]
        self._settlement.count(parts, rows)
        await self._settlement.tell(parts, rows)
        await self._pushes.told(slices)
        return iter(settled), iter(done)


def _check_size(acks: Sequence[Ack], items: Sequence[PushItem]) -> None:
    """InvalidArgument for more than one ledger transaction should hold: each partition and each cursor is a lock."""
    if len(acks) + len(items) > MOST_ITEMS:
        raise InvalidArgument(f"a transaction has at most {MOST_ITEMS:,} messages")
    places = {(one.queue, one.partition) for one in items}
    cursors = {(one.partition_id, one.group) for one in acks}
    if len(places) + len(cursors) > _MOST_PARTITIONS:
        raise InvalidArgument(f"a transaction is about at most {_MOST_PARTITIONS} partitions", hint="make it several")


async def _require(tx: Tx, parts: Sequence[Part], leases: Sequence[UUID], now: datetime) -> None:
    """Refuses a transaction if a required lease is over. An acknowledgment that names no lease is made under the one of
    its cursor; if that is not required, it only passes if its message is settled already."""
    live = await store.live_leases(tx, leases, [(part.partition.partition_no, part.group_no) for part in parts], now)
    if set(leases) - set(live.values()):
        raise _Refused("Invalid or expired lease")
    for part in parts:
        if part.lease_id is None:
            part.lease_id = live.get((part.partition.partition_no, part.group_no), _NO_LEASE)


def _refuse_unqueued(pushed: Iterable[PushResult | None]) -> None:
    for one in pushed:
        if one is not None and one.status != "queued":
            reason = one.error or f"{one.status} transactionId {one.transaction_id}"
            raise _Refused(f"PUSH operation failed: {reason}")
