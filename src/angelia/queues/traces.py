"""Traces: consumers note what they do with messages, and operators follow them by name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid4

import msgspec

from angelia.errors import NotFound
from angelia.queues import messages_store, store, traces_store
from angelia.queues.catalog import Catalog
from angelia.queues.model import ChunkIds, Partition
from angelia.queues.payloads import Payloads
from angelia.queues.traces_store import TraceNameRow, TraceRow
from angelia.stores.ledger import Ledger


class NewTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer notes about a message."""

    partition_id: UUID
    transaction_id: str
    group: str
    names: Sequence[str]
    event_type: str
    data: msgspec.Raw
    worker: str


class ShownTrace(msgspec.Struct, frozen=True):
    """A trace, where its message is, and both payloads, decrypted; null if that failed, or the message is gone."""

    row: TraceRow
    partition: Partition
    data: msgspec.Raw
    message: msgspec.Raw


class Traces:
    """The traces of all messages. They leave with their messages."""

    def __init__(self, ledger: Ledger, catalog: Catalog, payloads: Payloads) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._payloads = payloads

    async def add(self, new: NewTrace, now: datetime) -> UUID:
        """Notes a trace; of an encrypted queue its data is encrypted. Returns its id."""
        known = (await self._catalog.by_id([new.partition_id])).get(new.partition_id)
        if known is None:
            raise NotFound("Message not found")
        trace_id, encrypts = uuid4(), known.options.encryption_enabled
        while True:
            if encrypts:
                await self._payloads.ready(now)
            async with self._ledger.transaction() as tx:
                found = await messages_store.find(tx, new.partition_id, new.transaction_id)
                present = await store.partitions_by_id(tx, [new.partition_id])
                if found is None or not present:
                    raise NotFound("Message not found")
                # What this process remembers may be outdated. If another one has encrypted the queue, a key is needed
                # first; to wait for it here would take a second connection while this one is held.
                if present[0].options.encryption_enabled and not encrypts:
                    encrypts = True
                    continue
                key_id, data = self._sealed(present[0], trace_id, bytes(new.data))
                row = TraceRow(
                    trace_id=trace_id,
                    partition_no=found.partition_no,
                    position=found.position,
                    transaction_id=new.transaction_id,
                    group_name=new.group,
                    worker=new.worker,
                    event_type=new.event_type,
                    names=list(dict.fromkeys(new.names)),
                    key_id=key_id,
                    data=data,
                    created_at=now,
                )
                await traces_store.add(tx, found.queue_no, row)
            return trace_id

    async def of_message(self, partition_id: UUID, transaction_id: str) -> list[ShownTrace]:
        """What was noted about a message, in order."""
        async with self._ledger.reading() as tx:
            rows = await traces_store.of_message(tx, partition_id, transaction_id)
        return await self._shown(rows)

    async def named(self, name: str, limit: int, offset: int) -> tuple[list[ShownTrace], int]:
        """Traces of a name, newest first, and how many there are in all."""
        async with self._ledger.reading() as tx:
            rows = await traces_store.named(tx, name, limit, offset)
            total = await traces_store.count_named(tx, name)
        return await self._shown(rows), total

    async def names(self, limit: int, offset: int) -> tuple[list[TraceNameRow], int]:
        """The names of traces, those that were used last first, and how many there are in all."""
        async with self._ledger.reading() as tx:
            return await traces_store.names(tx, limit, offset), await traces_store.count_names(tx)

    async def _shown(self, rows: Sequence[TraceRow]) -> list[ShownTrace]:
        partitions = await self._catalog.by_no({row.partition_no for row in rows})
        return [
            ShownTrace(
                row,
                partition,
                await self._payloads.shown(partition, row.key_id, row.trace_id, row.data),
                await self._message(partition, row),
            )
            for row in rows
            if (partition := partitions.get(row.partition_no)) is not None
        ]

    async def _message(self, partition: Partition, row: TraceRow) -> msgspec.Raw:
        if row.message_id is None or row.message_body is None:
            return msgspec.Raw(b"null")
        return await self._payloads.shown(partition, row.message_key_id, row.message_id, row.message_body)

    def _sealed(self, partition: Partition, trace_id: UUID, data: bytes) -> tuple[UUID | None, bytes]:
        """The key id and the data as they are stored."""
        if not partition.options.encryption_enabled:
            return None, data
        key_id, (sealed,) = self._payloads.sealed(partition, ChunkIds(trace_id), [data])
        return key_id, sealed
