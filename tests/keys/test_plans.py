"""What is asked for each message, and what ticks ask for ever, reads an index however much there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from angelia.envelope.ids import bucket_of
from angelia.keys import schedules_store, store

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
HOUR, MONTH = timedelta(hours=1), timedelta(days=30)
ID = UUID(int=1)
FILL = """
INSERT INTO key_records (agent_nhi, key_id, key_type, usage, public_key, status, created_at, rotated_at, revoked_at)
SELECT 'agent-' || n % 100, gen_random_uuid(), 'xwing', 'signed', '', status, $1::timestamptz,
  $1::timestamptz - n * interval '1 minute', CASE status WHEN 'revoked' THEN $1::timestamptz - n * interval '1 hour' END
FROM generate_series(1, 10000) AS n, LATERAL
  (SELECT CASE WHEN n % 50 = 0 THEN 'revoked' WHEN n % 7 = 0 THEN 'grace' ELSE 'retired' END) AS s (status);
INSERT INTO bundles
  (agent_nhi, bundle_version, bundle_hash, prev_bundle_hash, issued_at, expires_at, published_at, suites, bundle)
SELECT 'agent-' || n % 100, n, sha256(''), sha256(''), $1, $1, $1::timestamptz - n * interval '1 minute', 10, '{}'
FROM generate_series(1, 10000) AS n;
INSERT INTO one_time_keys (agent_nhi, key_id, key_type, public_key, signer_id, signature_ed25519, signature_ml_dsa,
  created_at, issued_to, issued_at)
SELECT 'agent-' || n % 100, gen_random_uuid(), 'xwing', '', '00000000-0000-0000-0000-000000000001', '', '', at,
  CASE WHEN n % 3 = 0 THEN 'bob-' || n % 50 END, CASE WHEN n % 3 = 0 THEN at END
FROM generate_series(1, 10000) AS n, LATERAL (SELECT $1::timestamptz - n * interval '1 minute') AS made (at);
INSERT INTO rotation_events
SELECT gen_random_uuid(), 'agent-' || n % 100, 'xwing', gen_random_uuid(), NULL,
  $1::timestamptz - n * interval '1 minute', 'scheduled'
FROM generate_series(1, 10000) AS n;
INSERT INTO ratchet_states (bucket, session_id, agent_a_nhi, agent_b_nhi, current_key_id, rotation_policy,
  rotation_interval_secs, last_rotated_at, next_rotation_at, last_used_at, created_at, updated_at)
SELECT get_byte(sha256(convert_to(a, 'UTF8')), 0), gen_random_uuid(), a, 'peer-' || n / 20, gen_random_uuid(), 'hourly',
  3600, $1, $1::timestamptz + n * interval '1 minute', $1, $1, $1
FROM generate_series(1, 10000) AS n, LATERAL (SELECT 'agent-' || n % 100) AS named (a)
"""
KEYS: dict[str, list[object]] = {
    "newest": ["agent-7"],
    "with_revoked_keys": [["agent-7"], [ID], ["agent-8"], [ID], [NOW]],
    "changed_since": [NOW - HOUR, "", 500],
    "records": ["agent-7", [ID]],
    "living_records": ["agent-7"],
    "signers": [["agent-7"], [ID], [False]],
    "pair": ["agent-7", ID],
    "end_grace": [NOW - timedelta(days=6), 500],
    "revoked_since": [NOW - HOUR, NOW, "agent-7", ID, 100],
    "rotations": ["agent-7", NOW, ID, 51],
    "count_one_time": ["agent-7", NOW - MONTH],
    "free_one_time": ["agent-7", NOW - MONTH, ID, 10],
    "revoked_signers": ["agent-7"],
    "one_time_among": ["agent-7", [ID]],
    "issued_to_since": ["agent-7", "bob-7", NOW - HOUR],
    "take_one_time": ["agent-7", "bob", NOW, NOW - MONTH, ID, ["xwing"]],
    "drop_free_one_time": ["agent-7"],
    "drop_all_one_time": ["agent-7"],
    "drop_old_one_time": [NOW - timedelta(days=6), 500],
}
SCHEDULES: dict[str, list[object]] = {
    "of_agent": [bucket_of("peer-7"), "peer-7", "", 1001],
    "lock": [bucket_of("agent-7"), "agent-7", "peer-7"],
    "announce_due": [NOW + HOUR, 500],
    "make_all_due": [bucket_of("agent-7"), "agent-7", NOW],
}


@pytest.fixture
async def filled(connection: asyncpg.Connection) -> asyncpg.Connection:
    for statement in FILL.split(";"):
        await connection.execute(statement, NOW)
    await connection.execute("ANALYZE")
    return connection


async def test_no_statement_that_is_asked_often_reads_a_whole_table(filled: asyncpg.Connection) -> None:
    asked = {name: (store.SQL[name], values) for name, values in KEYS.items()}
    asked |= {name: (schedules_store.SQL[name], values) for name, values in SCHEDULES.items()}
    for name, (statement, values) in asked.items():
        plan = "\n".join(row[0] for row in await filled.fetch(f"EXPLAIN (COSTS OFF) {statement}", *values))
        assert "Seq Scan" not in plan, f"{name}:\n{plan}"
        assert "Index" in plan, f"{name}:\n{plan}"
