"""A queue slice with its background work, for tests that look at what is stored. Each call brings its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from angelia.queues import retention_store
from angelia.queues.days import QueueDays
from angelia.queues.eviction import QueueEviction
from angelia.queues.model import DEFAULT, QUEUE_MODE, Ack, AckStatus, PopRequest, PushItem
from angelia.queues.retention import QueueRetention
from angelia.queues.retention_store import RetentionEntry
from angelia.queues.slice import QueuesSlice
from angelia.queues.upkeep import QueueUpkeep
from angelia.stores.ledger import Ledger

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1))


@dataclass
class QueueStorage:
    """A process's queues, and a ledger to look into."""

    queues: QueuesSlice
    ledger: Ledger

    def retention(self, **values: Any) -> QueueRetention:
        return QueueRetention(self.ledger, **values)

    def eviction(self, **values: Any) -> QueueEviction:
        return QueueEviction(self.ledger, self.queues.activity, **values)

    def days(self, **values: Any) -> QueueDays:
        return QueueDays(self.ledger, **values)

    def upkeep(self, **values: Any) -> QueueUpkeep:
        return QueueUpkeep(self.ledger, **values)

    async def configure(self, queue: str, partition: str | None = None, **options: Any) -> None:
        await self.queues.catalog.configure(queue, NOON, options, partition=partition)

    async def push(
        self, queue: str, names: str | Sequence[str], now: datetime, partition: str = DEFAULT, payload: bytes = b"1"
    ) -> None:
        """Pushes a message for each name; a text has one name for each character."""
        items = [PushItem(queue, partition, msgspec.Raw(payload), name) for name in names]
        results = await self.queues.pushes.push(items, None, now)
        assert [one.status for one in results] == ["queued"] * len(items), results

    async def pop(
        self, queue: str, now: datetime, batch: int = 100, group: str = QUEUE_MODE, partition: str | None = None
    ) -> Popped:
        request = PopRequest(queue=queue, partition=partition, group=group, batch=batch)
        delivery = await self.queues.claims.pop(request, now)
        if delivery is None:
            return Popped(self, group, "", [], [])
        return Popped(
            self,
            group,
            delivery.lease_id,
            [one.transaction_id for one in delivery.messages],
            [one.partition.partition_id for one in delivery.messages],
        )

    async def consume(
        self, queue: str, now: datetime, batch: int = 100, group: str = QUEUE_MODE, partition: str | None = None
    ) -> str:
        """Pops and completes; returns the names together."""
        popped = await self.pop(queue, now, batch, group, partition)
        await popped.ack(now)
        return popped.text

    async def value(self, query: str, *arguments: object) -> Any:
        async with self.ledger.reading() as tx:
            return await tx.fetchval(query, *arguments)

    async def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        async with self.ledger.reading() as tx:
            return [tuple(row.values()) for row in await tx.fetch(query, *arguments)]

    async def execute(self, query: str, *arguments: object) -> None:
        async with self.ledger.transaction() as tx:
            await tx.execute(query, *arguments)

    async def partition_no(self, queue: str, partition: str = DEFAULT) -> int:
        return int(
            await self.value(
                "SELECT p.partition_no FROM queue_partitions AS p JOIN queues AS q USING (queue_no)"
                " WHERE q.name = $1 AND p.name = $2",
                queue,
                partition,
            )
        )

    async def floor(self, queue: str, partition: str = DEFAULT) -> int:
        number = await self.partition_no(queue, partition)
        return int(await self.value("SELECT floor FROM queue_partitions WHERE partition_no = $1", number))

    async def evicted(self, queue: str, partition: str = DEFAULT) -> list[int]:
        number = await self.partition_no(queue, partition)
        found = await self.value(
            "SELECT ARRAY(SELECT generate_series(lower(r), upper(r) - 1) FROM unnest(evicted) AS r)"
            " FROM queue_partitions WHERE partition_no = $1",
            number,
        )
        return list(found)

    async def history(self) -> list[tuple[str, str, str, int]]:
        """Queue, partition, kind and count of what retention removed, oldest first."""
        return [(one.queue_name, one.partition_name, one.kind, one.count) for one in reversed(await self.entries())]

    async def entries(
        self,
        queue: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[RetentionEntry]:
        """What retention removed, newest first."""
        async with self.ledger.reading() as tx:
            return await retention_store.history(tx, queue, since, until, limit, offset)

    async def retain(self, now: datetime, **values: Any) -> int:
        """Runs retention through all partitions; returns how many rounds that took."""
        retention = self.retention(**values)
        rounds = 1
        while await retention.run(now):
            rounds += 1
        return rounds

    async def evict(self, now: datetime, **values: Any) -> int:
        eviction = self.eviction(**values)
        rounds = 1
        while await eviction.run(now):
            rounds += 1
        return rounds

    async def keep_days(self, now: datetime, **values: Any) -> int:
        days = self.days(**values)
        rounds = 1
        while await days.run(now):
            rounds += 1
        return rounds

    async def drop_days(self) -> None:
        """Drops the tables of days that the database of every test has: they depend on today's date."""
        for (table,) in await self.rows(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'queue_chunks'::regclass AND inhrelid::regclass::text ~ '[0-9]$'"
        ):
            await self.execute(f"DROP TABLE {table}")

    async def tables(self) -> list[str]:
        """The days that have a table, as MMDD."""
        rows = await self.rows(
            "SELECT right(c.relname, 4) FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'queue_chunks'::regclass AND c.relname ~ '[0-9]$' ORDER BY c.relname"
        )
        return [row[0] for row in rows]

    async def chunks(self) -> dict[str, list[int]]:
        """The end positions of chunks by the table that they are in (MMDD)."""
        found: dict[str, list[int]] = {}
        for table, end in await self.rows(
            "SELECT right(tableoid::regclass::text, 4), end_position FROM queue_chunks ORDER BY 1, partition_no, 2"
        ):
            found.setdefault(table, []).append(end)
        return found


@dataclass
class Popped:
    """What one pop delivered."""

    storage: QueueStorage
    group: str
    lease_id: str
    names: list[str]
    partition_ids: list[UUID]

    @property
    def text(self) -> str:
        return "".join(self.names)

    async def ack(
        self, now: datetime, names: Sequence[str] | None = None, status: AckStatus = "completed"
    ) -> list[bool]:
        acks = [
            Ack(
                transaction_id=name,
                partition_id=partition_id,
                group=self.group,
                lease_id=UUID(self.lease_id),
                status=status,
            )
            for name, partition_id in zip(self.names, self.partition_ids, strict=True)
            if names is None or name in names
        ]
        return [one.success for one in await self.storage.queues.settlement.ack(acks, now)]


async def someone_waits(connection: asyncpg.Connection) -> int:
    """Returns when a transaction of the database waits for a lock; the id of its process."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while True:  # PostgreSQL does not tell
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        if (pid := await connection.fetchval(waiting)) is not None:
            return int(pid)
        await asyncio.sleep(0.01)


async def raise_floor(storage: QueueStorage, queue: str, floor: int, at: datetime, partition: str = "Default") -> None:
    number = await storage.partition_no(queue, partition)
    await storage.execute(
        "UPDATE queue_partitions SET floor = $2, floor_at = $3 WHERE partition_no = $1", number, floor, at
    )
