"""Messages that are buffered during maintenance: they are kept in the ledger, and stored when it ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.envelope.times import unix_ms
from angelia.queues import maintenance_store
from angelia.queues.maintenance_store import BufferedMessage
from angelia.queues.model import ChunkIds, Partition
from angelia.queues.payloads import Payloads
from angelia.stores.ledger import Ledger

_MOST_PARTITIONS = 500  # in one transaction: each is a lock
Incoming = tuple[Partition, str, str | None, bytes, str | None]  # transaction id, trace id, payload and producer


class Buffer:
    """Keeps messages while pushes to their partitions are buffered. Those of encrypted queues are encrypted here, and
    stored as they are then."""

    def __init__(self, ledger: Ledger, payloads: Payloads) -> None:
        self._ledger = ledger
        self._payloads = payloads

    async def keep(self, messages: Sequence[Incoming], now: datetime) -> set[int]:
        """Keeps messages. Returns the numbers of the partitions whose messages are durable then. Messages of the others
        are to be pushed again: their queue was changed, or pushes to them are not buffered any more."""
        by_partition = dict[int, list[Incoming]]()
        for one in messages:
            by_partition.setdefault(one[0].partition_no, []).append(one)
        kept, waiting = set[int](), list(by_partition.values())
        for begin in range(0, len(waiting), _MOST_PARTITIONS):
            kept |= await self._keep(waiting[begin : begin + _MOST_PARTITIONS], now)
        return kept

    async def _keep(self, waiting: Sequence[Sequence[Incoming]], now: datetime) -> set[int]:
        """The same for partitions that one transaction may lock."""
        partitions = [messages[0][0] for messages in waiting]
        sealed = [self._sealed(messages, now) for messages in waiting]
        async with self._ledger.transaction() as tx:
            modes = await maintenance_store.hold_mode(tx)
            await maintenance_store.lock_partitions(tx, partitions)
            unchanged = await maintenance_store.unchanged(tx, partitions)
            # Kept in a partition whose buffer is empty, messages would come behind those that are pushed after them.
            kept = {number for number, has_buffered in unchanged.items() if modes.push_paused or has_buffered}
            rows = [
                row
                for partition, rows in zip(partitions, sealed, strict=True)
                if partition.partition_no in kept
                for row in rows
            ]
            await maintenance_store.keep(tx, rows, now)
        return kept

    def _sealed(self, messages: Sequence[Incoming], now: datetime) -> list[BufferedMessage]:
        """Messages of one partition as they are kept."""
        partition, ids = messages[0][0], ChunkIds.made(unix_ms(now), os.urandom(10))
        payloads, key_id = [one[3] for one in messages], None
        if partition.options.encryption_enabled:
            key_id, payloads = self._payloads.sealed(partition, ids, payloads)
        return [
            BufferedMessage(
                partition.queue.name,
                partition.name,
                UUID(ids.text(number)),
                transaction_id,
                trace_id,
                producer,
                key_id,
                payload,
            )
            for number, ((_, transaction_id, trace_id, _, producer), payload) in enumerate(
                zip(messages, payloads, strict=True)
            )
        ]
