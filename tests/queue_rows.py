"""Fills queues of a ledger, consumes from them and lets retention run, for tests of the pipeline; reads the messages of
ledger and archive."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from deltalake import DeltaTable

from angelia.envelope.times import unix_ms
from angelia.pipeline.lake.tables import QUEUE_DEAD_LETTERS, QUEUE_MESSAGES, Table
from angelia.queues import store
from angelia.queues.activity import Activity
from angelia.queues.eviction import QueueEviction
from angelia.queues.model import DEFAULT, QUEUE_MODE, ChunkIds, Options, changed_options
from angelia.queues.retention import QueueRetention
from angelia.stores.ledger import Ledger, Tx
from receipt_rows import NOW

KEPT = timedelta(hours=1)
EXPIRED = NOW - timedelta(days=2)
ARCHIVED = {
    "retentionEnabled": True, "archiveEnabled": True, "retentionSeconds": 86_400, "completedRetentionSeconds": 3_600,
}  # fmt: skip
_LEDGER = """
SELECT queue_message_id(c.first_id, n - c.end_position + c.count)::text FROM queue_chunks AS c
JOIN queue_partitions AS p ON p.partition_no = c.partition_no
CROSS JOIN generate_series(c.end_position - c.count, c.end_position - 1) AS n
WHERE n >= coalesce(p.purge_floor, p.floor) AND NOT p.removed @> n
"""


@dataclass(frozen=True)
class HeldInQueues:
    """The ids of the messages and dead letters that the ledger has, hidden ones included; and what the archive has."""

    ledger: list[str]
    letters: list[str]
    rows: list[dict[str, Any]]
    letter_rows: list[dict[str, Any]]

    @property
    def archive(self) -> list[str]:
        return sorted(row["message_id"] for row in self.rows)


@asynccontextmanager
async def opened(database_url: str) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(database_url)
    try:
        yield ledger
    finally:
        await ledger.close()


async def made(database_url: str, name: str, *partitions: str, **options: Any) -> None:
    """Makes a queue that is archived; `options` change it."""
    wanted = msgspec.convert(changed_options(msgspec.to_builtins(Options()), ARCHIVED | options), Options)
    async with opened(database_url) as ledger, ledger.transaction() as tx:
        await store.make_queue(tx, uuid.uuid4(), name, "", "", EXPIRED, wanted)
        names = partitions or (DEFAULT,)
        await store.make_partitions(tx, name, [uuid.uuid4() for _ in names], names, EXPIRED)


async def pushed(
    database_url: str,
    queue: str,
    payloads: Sequence[str],
    at: datetime = EXPIRED,
    *,
    partition: str = DEFAULT,
    producer: str | None = None,
    key_id: UUID | None = None,
) -> list[str]:
    """Pushes messages in one chunk. Returns their ids; the transaction ids are `t-PAYLOAD`."""
    ids, bodies = ChunkIds.made(unix_ms(at), uuid.uuid4().bytes[:10]), [payload.encode() for payload in payloads]
    async with opened(database_url) as ledger, ledger.transaction() as tx:
        [place] = await store.partitions(tx, [(queue, partition)])
        rows = await store.push(
            tx, at, [place.queue.queue_no], [place.partition_no], [place.queue.options_version], [len(bodies)],
            [ids.first], [key_id], [producer], [b"".join(bodies)], [f"t-{one}" for one in payloads],
            list(accumulate(map(len, bodies))), [f"trace of {one}" for one in payloads], None,
        )  # fmt: skip
    assert [row["outcome"] for row in rows] == ["stored"]
    return [ids.text(number) for number in range(len(bodies))]


async def consumed(
    database_url: str,
    queue: str,
    count: int,
    at: datetime = EXPIRED,
    *,
    group: str = QUEUE_MODE,
    partition: str = DEFAULT,
    status: str = "completed",
) -> None:
    """A consumer group takes so many messages of a partition, and settles them all the same way."""
    lease_id = uuid.uuid4()
    async with opened(database_url) as ledger, ledger.transaction() as tx:
        place, group_no = await _joined(tx, queue, partition, group, at)
        rows = await store.pop(
            tx, at, [count], [1], [False], [lease_id], ["consumer"], [1], [place.partition_no], [group_no]
        )
        taken = [one for row in rows if row["outcome"] == "messages" for one in row["transaction_ids"]]
        assert len(taken) == count
        acks = await store.ack(
            tx, at, [place.partition_no], [group_no], [lease_id], [count], taken, [status] * count, ["it broke"] * count
        )
    assert not any(row["refused"] for row in acks)


async def _joined(tx: Tx, queue: str, partition: str, group: str, at: datetime) -> tuple[Any, int]:
    [place] = await store.partitions(tx, [(queue, partition)])
    await store.make_group(tx, place.queue, group, "all", None, at)
    group_no = await store.group(tx, place.queue.queue_no, group)
    assert group_no is not None
    return place, group_no


async def retained(database_url: str, at: datetime = NOW) -> None:
    """Lets eviction and retention look at all partitions once."""
    async with opened(database_url) as ledger:
        while await QueueEviction(ledger, Activity(ledger)).run(at):
            pass
        while await QueueRetention(ledger).run(at):
            pass


async def execute(database_url: str, statement: str, *values: object) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(statement, *values)
    finally:
        await connection.close()


async def held_in_queues(database_url: str, objects: Any) -> HeldInQueues:
    connection = await asyncpg.connect(database_url)
    here = [row[0] for row in await connection.fetch(_LEDGER)]
    letters = [row[0] for row in await connection.fetch("SELECT message_id::text FROM queue_dead_letters ORDER BY 1")]
    await connection.close()
    return HeldInQueues(sorted(here), letters, _rows(objects, QUEUE_MESSAGES), _rows(objects, QUEUE_DEAD_LETTERS))


def _rows(objects: Any, table: Table) -> list[dict[str, Any]]:
    uri = objects.table(table.name)
    rows: list[dict[str, Any]] = DeltaTable(uri).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(uri) else []
    return rows
