"""Fills a ledger with millions of receipts, and measures the CPU time of process trees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg
import psutil

from angelia.mail.receipts_store import DAILY
from angelia.stores.ledger import Ledger
from angelia.stores.partitions import make

OLD = datetime(2026, 9, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
_FILL = """
INSERT INTO delivery_receipts (receipt_id, message_id, replay_key, sender_nhi, recipient_nhi, priority, wire_bytes,
  status, attested_by, delivery_attempts, sent_at, accepted_at, expires_at, delivered_at, acknowledged_at, bucket)
SELECT gen_random_uuid(), gen_random_uuid(), sha256(i::text::bytea), 'agent-' || i % 997, r, i % 4, 4000 + i % 5000,
  'delivered', 'recipient', 1, ts, ts + interval '1 ms', ts + interval '7 d', ts + interval '1 s', ts + interval '2 s',
  get_byte(sha256(convert_to(r, 'UTF8')), 0)
FROM (SELECT i, 'agent-' || i * 7 % 1009 AS r, $1::timestamptz + i * interval '10 ms' AS ts
      FROM generate_series(1, $2::int) AS i) AS g
"""


@dataclass
class Spent:
    """What a step cost, in seconds: CPU time of all processes together, and wall time."""

    cpu: float = 0.0
    wall: float = 0.0


@contextmanager
def spent(*others: int) -> Iterator[Spent]:
    """Measures what this process, its children and the process trees of `others` spend during the block."""
    result = Spent()
    began, before = datetime.now(UTC), _cpu(others)
    yield result
    result.wall = (datetime.now(UTC) - began).total_seconds()
    result.cpu = _cpu(others) - before


def _cpu(others: tuple[int, ...]) -> float:
    total = 0.0
    for root in (psutil.Process(), *(psutil.Process(pid) for pid in others)):
        for process in (root, *root.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            # The time of a child that has ended is added to its parent's.
            total += times.user + times.system + times.children_user + times.children_system
    return total


async def fill(database_url: str, days: int, rows_a_day: int) -> None:
    """Inserts receipts of past days, each day in its partition."""
    ledger = await Ledger.open(database_url)
    for offset in range(days):
        async with ledger.transaction() as tx:
            await make(tx, DAILY, (OLD + timedelta(days=offset)).date())
    await ledger.close()
    connection = await asyncpg.connect(database_url)
    for offset in range(days):
        await connection.execute(_FILL, OLD + timedelta(days=offset), rows_a_day)
    await connection.execute("VACUUM ANALYZE delivery_receipts")
    await connection.close()
