"""Messages that are pushed during maintenance: they are kept in the ledger, and stored when it ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from uuid import UUID

from angelia.envelope.times import unix_ms
from angelia.errors import Unavailable
from angelia.queues import maintenance_store, store
from angelia.queues.maintenance_store import BufferedMessage
from angelia.queues.model import ChunkIds, Partition
from angelia.queues.payloads import Payloads
from angelia.stores.ledger import Ledger

Incoming = tuple[Partition, str, str | None, bytes, str | None]  # transaction id, trace id, payload and producer


class Buffer:
    """Keeps messages while pushes are paused. The payloads of encrypted queues are encrypted here too."""

    def __init__(self, ledger: Ledger, payloads: Payloads) -> None:
        self._ledger = ledger
        self._payloads = payloads

    async def keep(self, messages: Sequence[Incoming], now: datetime) -> None:
        """Keeps messages. They are durable then."""
        # Whether a queue is encrypted is read now: what this process remembers may be outdated.
        async with self._ledger.lookups() as tx:
            numbers = {partition.partition_no for partition, *_ in messages}
            present = {one.partition_no: one for one in await store.partitions_by_no(tx, list(numbers))}
        placed = [(present.get(one[0].partition_no, one[0]), *one[1:]) for one in messages]
        if any(partition.options.encryption_enabled for partition, *_ in placed):
            await self._payloads.ready(now)
        async with self._ledger.transaction() as tx:
            modes = await maintenance_store.hold_mode(tx)
            if not modes.push_paused:
                # Kept now, it would come behind messages that are pushed after it.
                raise Unavailable("maintenance ended in this moment", hint="push again", retry_after=1)
            kept = [
                one
                for _, same in groupby(placed, key=lambda one: one[0].partition_no)
                for one in self._sealed(list(same), now)
            ]
            await maintenance_store.keep(tx, kept, now)

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
