"""The peers of queues: a table in the manner of pgmq, procrastinate, and bare inserts and COPY of the same messages.

Each is called in process, as our service layer is, in the same PostgreSQL and with as many connections; a push is
durable before it returns. `push` stores a batch, `take` pops up to so many messages and acknowledges them. Batches are
made before the clock starts.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, Self, TypeVar

import asyncpg
import msgspec
import procrastinate
from procrastinate.jobs import Status

from angelia.stores.ledger import Ledger

CONNECTIONS = 10
IN_FLIGHT_SECONDS = 3600
BYTES = 300  # of a payload, about
_WORDS = [a + b + c for a in ("ka", "lo", "mi", "ne", "su") for b in ("ra", "to", "vi") for c in "nsmx"]
Batch = TypeVar("Batch")


class Producing(Protocol, Generic[Batch]):
    """Takes messages in batches."""

    def batch(self, payloads: Sequence[bytes]) -> Batch:
        """Returns what a producer hands over."""

    async def push(self, batch: Batch) -> None: ...


class Side(Producing[Batch], Protocol):
    """A queue that messages go through: ours or a peer. Its messages go to every one of its consumer groups."""

    async def take(self, most: int, group: int = 0) -> int:
        """Pops up to so many messages for one consumer group and acknowledges them. Returns how many there were."""

    async def lease(self, count: int) -> None:
        """Pushes so many messages and leases all of them; they are not acknowledged during the benchmark."""


def payloads(count: int, seed: int = 1) -> list[bytes]:
    """Returns JSON documents of about 300 bytes, of which no two are alike."""
    chance = random.Random(seed)
    return [msgspec.json.encode(_document(chance, number)) for number in range(count)]


def _document(chance: random.Random, number: int) -> dict[str, object]:
    return {
        "number": number,
        "order": str(uuid.UUID(int=chance.getrandbits(128))),
        "customer": " ".join(chance.choices(_WORDS, k=3)),
        "amount": chance.randint(100, 99_999) / 100,
        "items": [{"sku": f"{chance.getrandbits(40):010x}", "count": chance.randint(1, 9)} for _ in range(3)],
        "note": " ".join(chance.choices(_WORDS, k=11)),
    }


class PgmqTable:
    """A table in the manner of pgmq, with our own minimal SQL. Several consumer groups have a table each, and a push
    sends to all of them in one statement. Statements go over the ledger's own connections and are planned once."""

    def __init__(self, ledger: Ledger, tables: Sequence[str]) -> None:
        self._ledger = ledger
        self._tables = tables
        sends = [_PGMQ_SEND.format(table=table) for table in tables]
        others = ", ".join(f"sent_{number} AS ({send})" for number, send in enumerate(sends[1:]))
        self._send = f"WITH {others} {sends[0]}" if others else sends[0]

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, name: str, groups: int = 1) -> AsyncIterator[PgmqTable]:
        # Half of a ledger's connections are for statements that are planned once.
        ledger = await Ledger.open(url, 2 * CONNECTIONS)
        tables = [f"pgmq_{name}_{number}" for number in range(groups)]
        async with ledger.transaction() as tx:
            for table in tables:
                await tx.execute(_PGMQ_TABLE.format(table=table))
        yield cls(ledger, tables)
        async with ledger.transaction() as tx:
            await tx.execute(f"DROP TABLE {', '.join(tables)}")
        await ledger.close()

    def batch(self, payloads: Sequence[bytes]) -> list[str]:
        return [one.decode() for one in payloads]

    async def push(self, batch: list[str]) -> None:
        async with self._ledger.statement() as tx:
            await tx.fetch(self._send, batch)

    async def take(self, most: int, group: int = 0) -> int:
        table = self._tables[group]
        async with self._ledger.statement() as tx:
            rows = await tx.fetch(_PGMQ_READ.format(table=table), IN_FLIGHT_SECONDS, most)
        if not rows:
            return 0
        async with self._ledger.statement() as tx:
            return len(await tx.fetch(_PGMQ_DELETE.format(table=table), [row["msg_id"] for row in rows]))

    async def lease(self, count: int) -> None:
        await self.push(self.batch(payloads(count)))
        for table in self._tables:
            async with self._ledger.statement() as tx:
                rows = await tx.fetch(_PGMQ_READ.format(table=table), IN_FLIGHT_SECONDS, count)
            assert len(rows) == count

    async def bytes_on_disk(self) -> int:
        async with self._ledger.reading() as tx:
            size = "SELECT sum(pg_total_relation_size(one::regclass)) FROM unnest($1::text[]) AS one"
            return int(await tx.fetchval(size, self._tables))


# The columns and indexes that pgmq's queues have.
_PGMQ_TABLE = """
CREATE TABLE {table} (
  msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  read_ct integer NOT NULL DEFAULT 0,
  enqueued_at timestamptz NOT NULL DEFAULT now(),
  vt timestamptz NOT NULL,
  message jsonb,
  headers jsonb
);
CREATE INDEX ON {table} (vt)
"""
_PGMQ_SEND = """
INSERT INTO {table} (vt, message) SELECT clock_timestamp(), one::jsonb FROM unnest($1::text[]) AS one RETURNING msg_id
"""
_PGMQ_READ = """
WITH chosen AS (
  SELECT msg_id FROM {table} WHERE vt <= clock_timestamp() ORDER BY msg_id LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE {table} AS q SET vt = clock_timestamp() + make_interval(secs => $1), read_ct = read_ct + 1
FROM chosen WHERE q.msg_id = chosen.msg_id
RETURNING q.msg_id, q.read_ct, q.enqueued_at, q.vt, q.message::text
"""
_PGMQ_DELETE = "DELETE FROM {table} WHERE msg_id = ANY($1::bigint[]) RETURNING msg_id"


class Procrastinate:
    """Procrastinate, through its task API and its job manager: jobs are deferred in batches, and fetched and finished
    one by one, which is the only way that it has. Consumer groups are queues of its own."""

    def __init__(self, app: procrastinate.App, worker: int, groups: int) -> None:
        self._app = app
        self._manager = app.job_manager
        self._worker = worker
        self._groups = [f"group-{number}" for number in range(groups)]

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, groups: int = 1) -> AsyncIterator[Procrastinate]:
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE SCHEMA procrastinate")
        connector = procrastinate.PsycopgConnector(
            conninfo=url,
            kwargs={"options": "-c search_path=procrastinate"},
            min_size=CONNECTIONS,
            max_size=CONNECTIONS,
        )
        app = procrastinate.App(connector=connector)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            yield cls(app, await app.job_manager.register_worker(), groups)
        await connection.execute("DROP SCHEMA procrastinate CASCADE")
        await connection.close()

    def batch(self, payloads: Sequence[bytes]) -> list[dict[str, Any]]:
        return [msgspec.json.decode(one) for one in payloads]

    async def push(self, batch: list[dict[str, Any]]) -> None:
        # One call defers to one queue.
        for queue in self._groups:
            await self._app.configure_task("bench", queue=queue, allow_unknown=True).batch_defer_async(*batch)

    async def take(self, most: int, group: int = 0) -> int:
        jobs = []
        while len(jobs) < most:
            job = await self._manager.fetch_job([self._groups[group]], self._worker)
            if job is None:
                break
            jobs.append(job)
        for job in jobs:
            await self._manager.finish_job(job, Status.SUCCEEDED, delete_job=True)
        return len(jobs)

    async def lease(self, count: int) -> None:
        await self.push(self.batch(payloads(count)))
        await self._app.connector.execute_query_async(
            "UPDATE procrastinate_jobs SET status = 'doing', worker_id = %(worker)s", worker=self._worker
        )

    async def bytes_on_disk(self) -> int:
        size = "SELECT pg_total_relation_size('procrastinate_jobs') + pg_total_relation_size('procrastinate_events')"
        row = await self._app.connector.execute_query_one_async(f"{size} AS bytes")
        return int(row["bytes"])


@dataclass(frozen=True)
class _BareRow:
    id: uuid.UUID
    position: int
    transaction_id: str
    payload: bytes


class BareInsert:
    """One row for each message, with a primary key and nothing else; a push is one INSERT."""

    _table = "bare_inserted"

    def __init__(self, ledger: Ledger, pool: asyncpg.Pool) -> None:
        self._ledger = ledger
        self._pool = pool  # the ledger's connections do not copy
        self._position = 0

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Self]:
        ledger = await Ledger.open(url, 2 * CONNECTIONS)
        async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
            await pool.execute(_BARE_TABLE.format(table=cls._table))
            yield cls(ledger, pool)
            await pool.execute(f"DROP TABLE {cls._table}")
        await ledger.close()

    def batch(self, payloads: Sequence[bytes]) -> list[_BareRow]:
        self._position += len(payloads)
        first = self._position - len(payloads)
        return [
            _BareRow(uuid.uuid4(), first + number, str(uuid.uuid4()), payload)
            for number, payload in enumerate(payloads)
        ]

    async def push(self, batch: list[_BareRow]) -> None:
        columns = zip(*((one.position, one.id, one.transaction_id, one.payload) for one in batch), strict=True)
        async with self._ledger.statement() as tx:
            await tx.fetch(_BARE_INSERT.format(table=self._table), *columns, datetime.now(UTC))


class BareCopy(BareInsert):
    """The same with COPY, which returns nothing."""

    _table = "bare_copied"

    async def push(self, batch: list[_BareRow]) -> None:
        now = datetime.now(UTC)
        rows = [(0, one.position, one.id, one.transaction_id, now, one.payload) for one in batch]
        await self._pool.copy_records_to_table(self._table, records=rows)


_BARE_TABLE = """
CREATE TABLE {table} (
  partition_no bigint NOT NULL,
  position bigint NOT NULL,
  message_id uuid NOT NULL,
  transaction_id text NOT NULL,
  created_at timestamptz NOT NULL,
  payload bytea NOT NULL,
  PRIMARY KEY (partition_no, position)
)
"""
_BARE_INSERT = """
INSERT INTO {table} (partition_no, position, message_id, transaction_id, created_at, payload)
SELECT 0, position, message_id, transaction_id, $5, payload
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bytea[]) AS t (position, message_id, transaction_id, payload)
"""


@asynccontextmanager
async def held_transaction(url: str) -> AsyncIterator[None]:
    """A transaction with an old snapshot, as a forgotten session or a long report has it: VACUUM removes no row that
    was deleted after it began."""
    connection = await asyncpg.connect(url)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await connection.fetchval("SELECT count(*) FROM pg_class")
    yield
    await connection.execute("ROLLBACK")
    await connection.close()
