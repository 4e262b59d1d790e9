"""The peer of mail: bare inserts of the same rows, each a durable transaction of its own.

They go to a table that is made like `envelopes`, with the same columns, indexes and partitioning, in the same
PostgreSQL. The server does not know it, so its background work does not touch the rows.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg

from angelia.envelope.ids import bucket_of

CONNECTIONS = 10  # as many as a web process has
_TABLE = """
CREATE TABLE IF NOT EXISTS bare_envelopes (LIKE envelopes INCLUDING ALL) PARTITION BY RANGE (bucket);
CREATE TABLE IF NOT EXISTS bare_envelopes_0 PARTITION OF bare_envelopes DEFAULT
"""
_INSERT = """
INSERT INTO bare_envelopes (bucket, recipient_nhi, mref, sender_nhi, message_id, replay_key, key_id, sender_key_id,
  priority, created_at, accepted_at, queued_at, expires_at, wire, wire_bytes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $9, $9, $10, $11::bytea, octet_length($11::bytea))
"""


@asynccontextmanager
async def connections(url: str, count: int = CONNECTIONS) -> AsyncIterator[asyncpg.Pool]:
    """Open connections, and an empty table; the rows are removed at the end."""
    async with asyncpg.create_pool(url, min_size=count, max_size=count) as pool:
        await pool.execute(_TABLE)
        yield pool
        await pool.execute("TRUNCATE bare_envelopes")


async def insert_all(pool: asyncpg.Pool, writers: int, count: int, wire_bytes: int) -> float:
    """Inserts as fast as the writers can. Returns the rate."""
    rows = iter([_row(wire_bytes) for _ in range(count)])

    async def writer() -> None:
        for row in rows:
            await pool.execute(_INSERT, *row)

    began = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(writers)))
    return count / (time.perf_counter() - began)


async def insert_paced(pool: asyncpg.Pool, a_second: int, count: int, wire_bytes: int) -> list[float]:
    """Inserts one at a time. Returns how long each took, sorted."""
    began, times = time.perf_counter(), []
    for number in range(count):
        row = _row(wire_bytes)
        await asyncio.sleep(max(0.0, began + number / a_second - time.perf_counter()))
        start = time.perf_counter()
        await pool.execute(_INSERT, *row)
        times.append(time.perf_counter() - start)
    return sorted(times)


def _row(wire_bytes: int) -> tuple[object, ...]:
    now = datetime.now(UTC)
    ids = (uuid.uuid4(), os.urandom(32), uuid.uuid4(), uuid.uuid4())
    start, end = now, now + timedelta(days=7)
    return bucket_of("nobody"), "nobody", os.urandom(16), "bench", *ids, start, end, os.urandom(wire_bytes)
