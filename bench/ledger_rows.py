"""Fills a ledger with millions of receipts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

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
