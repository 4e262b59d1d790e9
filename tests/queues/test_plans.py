"""What a push, a pop and an acknowledgment read does not grow with the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

import asyncpg
import msgspec
import pytest

from angelia.queues.days_store import DAILY
from angelia.queues.model import Ack, PopRequest, PushItem
from angelia.stores.ledger import Ledger
from angelia.stores.partitions import make_ahead

PAYLOAD = msgspec.Raw(b'{"n":1}')
BATCH = 10


def items(first: int, count: int, partition: str = "Default") -> list[PushItem]:
    return [PushItem("q", partition, PAYLOAD, f"t{n}") for n in range(first, first + count)]


class Reads:
    """Rows that statements read of the tables of queues, sequentially and by indexes."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.rows = 0

    async def total(self) -> int:
        await self._connection.execute("SELECT pg_stat_clear_snapshot()")
        return int(
            await self._connection.fetchval(
                """
                SELECT coalesce(sum(seq_tup_read), 0) + (
                  SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname LIKE 'queue%'
                ) FROM pg_stat_user_tables WHERE relname LIKE 'queue%'
                """
            )
        )

    @asynccontextmanager
    async def counted(self, ledger: Ledger) -> AsyncIterator[None]:
        await self._flush(ledger)
        before = await self.total()
        yield
        await self._flush(ledger)
        self.rows = await self.total() - before

    @staticmethod
    async def _flush(ledger: Ledger) -> None:
        """Each session reports what it read within a second; this makes that now."""
        async with AsyncExitStack() as stack:
            lent = [await stack.enter_async_context(ledger.lookups()) for _ in range(5)]
            lent += [await stack.enter_async_context(ledger.reading()) for _ in range(5)]
            for one in lent:
                await one.fetchval("SELECT pg_stat_force_next_flush()")
                await one.fetchval("SELECT 1")


@pytest.fixture
async def reads(connection) -> Reads:
    return Reads(connection)


async def rows_read(queues, ledger, reads, now, messages: int, partitions: int) -> dict[str, int]:
    """Rows that one push, one pop and one acknowledgment read when so much is there."""
    for name in range(partitions):
        await queues.pushes.push(items(0, 1, f"p{name}"), None, now)
    for first in range(0, messages, 1_000):
        await queues.pushes.push(items(first, min(1_000, messages - first)), None, now)
    for _ in range(3):  # statements are planned, and the group is made
        await once(queues, now)
    found = {}
    async with reads.counted(ledger):
        await queues.pushes.push(items(messages, BATCH), None, now)
    found["push"] = reads.rows
    async with reads.counted(ledger):
        delivery = await queues.claims.pop(PopRequest(queue="q", partition="Default", batch=BATCH), now)
    found["pop"] = reads.rows
    async with reads.counted(ledger):
        await acked(queues, delivery, now)
    found["ack"] = reads.rows
    return found


async def once(queues, now) -> None:
    delivery = await queues.claims.pop(PopRequest(queue="q", partition="Default", batch=BATCH), now)
    await acked(queues, delivery, now)


async def acked(queues, delivery, now) -> None:
    lease = UUID(delivery.lease_id)
    acks = [
        Ack(transaction_id=one.transaction_id, partition_id=one.partition.partition_id, lease_id=lease)
        for one in delivery.messages
    ]
    results = await queues.settlement.ack(acks, now)
    assert all(one.success for one in results)


@pytest.mark.parametrize(("messages", "partitions"), [(100, 1), (20_000, 1), (100, 300)])
async def test_what_is_read_does_not_grow_with_the_queue(queues, reads, now, messages, partitions) -> None:
    ledger = queues.catalog._ledger
    await make_ahead(ledger, DAILY, now)
    found = await rows_read(queues, ledger, reads, now, messages, partitions)
    assert found["push"] <= 2 * BATCH
    assert found["pop"] <= 4 * BATCH
    assert found["ack"] <= 3 * BATCH
