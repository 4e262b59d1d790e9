"""What is asked for each message, and what ticks ask for ever, reads an index however much there is."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import pytest

from angelia.keys import schedules_store, store
from statement_plans import generic_plan, read_whole

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
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
KEYS = [
    "newest",
    "with_revoked_keys",
    "changed_since",
    "records",
    "living_records",
    "signers",
    "pair",
    "end_grace",
    "revoked_since",
    "rotations",
    "count_one_time",
    "free_one_time",
    "revoked_signers",
    "one_time_among",
    "issued_to_since",
    "take_one_time",
    "drop_free_one_time",
    "drop_all_one_time",
    "drop_old_one_time",
]
SCHEDULES = ["of_agent", "lock", "announce_due", "make_all_due"]


@pytest.fixture
async def filled(connection: asyncpg.Connection) -> asyncpg.Connection:
    for statement in FILL.split(";"):
        await connection.execute(statement, NOW)
    await connection.execute("ANALYZE")
    return connection


async def test_no_statement_that_is_asked_often_reads_a_whole_table(filled: asyncpg.Connection) -> None:
    asked = {name: store.SQL[name] for name in KEYS}
    asked |= {f"schedules {name}": schedules_store.SQL[name] for name in SCHEDULES}
    for name, statement in asked.items():
        plan = await generic_plan(filled, statement)
        assert read_whole(plan) == [], f"{name}:\n{plan}"
        assert "Index" in plan, f"{name}:\n{plan}"
