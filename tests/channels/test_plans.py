"""What is asked for each message, and what ticks ask for ever, reads an index however much there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from angelia.channels import store

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ID = UUID(int=1)
FILL = """
INSERT INTO channels (channel_id, owner_nhi, channel_name, policy, next_offset, created_at, updated_at)
SELECT uuid_in(lpad(n::text, 32, '0')::cstring), 'agent-' || n % 100, 'channel-' || n,
  (ARRAY['open', 'private', 'allowlist', 'authz_required'])[1 + n % 4], 100,
  $1::timestamptz + n * interval '1 second', $1
FROM generate_series(1, 10000) AS n;
INSERT INTO channel_allowlist (channel_id, nhi, added_at)
SELECT uuid_in(lpad(n::text, 32, '0')::cstring), 'agent-' || n % 1999, $1 FROM generate_series(1, 10000) AS n;
INSERT INTO channel_subscriptions (subscription_id, channel_id, subscriber_nhi, key_epoch, created_at, updated_at)
SELECT gen_random_uuid(), uuid_in(lpad((1 + n % 50)::text, 32, '0')::cstring), 'agent-' || n, n % 3, $1, $1
FROM generate_series(1, 20000) AS n;
INSERT INTO channel_epochs (channel_id, epoch, key_id, made_at, replaced_at)
SELECT uuid_in(lpad(n::text, 32, '0')::cstring), e, gen_random_uuid(), $1,
  CASE e WHEN 1 THEN $1::timestamptz + n * interval '1 second' END
FROM generate_series(1, 10000) AS n, generate_series(1, 2) AS e;
INSERT INTO channel_messages
SELECT uuid_in(lpad((1 + n % 50)::text, 32, '0')::cstring), 1 + n / 50, 'agent-' || n % 100, gen_random_uuid(),
  sha256(''), gen_random_uuid(), $1, $1, $1::timestamptz + n * interval '1 minute', NULL,
  decode(repeat('ab', 500), 'hex')
FROM generate_series(1, 20000) AS n
"""
ASKED: dict[str, list[object]] = {
    "channel": [ID],
    "lock": [[ID]],
    "page": ["agent-7", NOW, ID, None, None, 51],
    "subscribed_page": ["agent-7", NOW, ID, None, None, 51],
    "recheck_due": [],
    "listed": [ID, ["agent-7"]],
    "allowlist": [ID, "", 100],
    "subscriptions": [ID, ["agent-7"]],
    "commit": [ID, "agent-7", 3, NOW],
    "subscribers": [ID, "agent-7", 100],
    "without_key": [ID, "agent-7", 100, 1],
    "count_without_key": [ID, 1, 1000],
    "key_sent": [ID, ["agent-7"], 2, False],
    "known": [[ID], ["agent-7"], [ID]],
    "read": [ID, 10, NOW, 11, 4 << 20],
    "expired": [NOW + timedelta(hours=1), 500, 5],
    "rules_behind": [1, 20],
    "epoch": [ID, 1],
    "hold_key": [ID, ID, "agent-7", 1, NOW],
    "holders": [ID, "agent-7", 100],
    "key_taken": [ID, "agent-7", 1, NOW],
    "forget_epochs": [NOW, 500],
    "drop_epochs": [ID, 500],
    "drop_expired": [[ID], NOW + timedelta(hours=1), 500],
    "move_first": [[ID]],
    "drop_messages": [ID, 500],
    "drop_subscriptions": [ID, 500],
    "drop_listed": [ID, 500],
}


@pytest.fixture
async def filled(connection: asyncpg.Connection) -> asyncpg.Connection:
    for statement in FILL.split(";"):
        await connection.execute(statement, NOW)
    await connection.execute("ANALYZE")
    return connection


async def test_no_statement_that_is_asked_often_reads_a_whole_table(filled: asyncpg.Connection) -> None:
    for name, values in ASKED.items():
        plan = "\n".join(row[0] for row in await filled.fetch(f"EXPLAIN (COSTS OFF) {store.SQL[name]}", *values))
        assert "Seq Scan" not in plan, f"{name}:\n{plan}"


async def test_every_statement_is_one_that_postgres_understands(connection: asyncpg.Connection) -> None:
    for name, statement in store.SQL.items():
        assert await connection.prepare(statement), name
