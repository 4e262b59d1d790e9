"""Fills a ledger with rotation schedules, and reads those of ledger and archive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

import asyncpg
from deltalake import DeltaTable

from angelia.pipeline.lake.tables import DAY, SESSIONS
from angelia.stores.objects import Objects

_FILL = """
INSERT INTO ratchet_states (bucket, session_id, agent_a_nhi, agent_b_nhi, current_key_id, current_key_version,
  rotation_policy, rotation_interval_secs, last_rotated_at, next_rotation_at, due_since, last_used_at,
  grace_period_keys, state_ciphertext, created_at, updated_at)
SELECT get_byte(sha256(convert_to(a, 'UTF8')), 0), gen_random_uuid(), a, 'z-' || i % 3, gen_random_uuid(), 1 + i % 4,
  'daily', 86400, at, at + interval '1 d', $4, at, sha256('grace'), sha256('state'), at - interval '9 d', at
FROM (SELECT i, $1 || '-' || i AS a, $3::timestamptz AS at FROM generate_series(1, $2::int) AS i) AS g
RETURNING session_id
"""


@dataclass(frozen=True)
class Sessions:
    """Returns the schedules in the ledger, those in the archive, and the archive's days."""

    ledger: list[str]
    archive: list[str]
    days: set[date]


async def scheduled(
    database_url: str, count: int, used_at: datetime, *, prefix: str = "pair", due_since: datetime | None = None
) -> list[str]:
    """Inserts schedules of pairs that were last used at a time. Returns their ids."""
    connection = await asyncpg.connect(database_url)
    try:
        return [str(row[0]) for row in await connection.fetch(_FILL, prefix, count, used_at, due_since)]
    finally:
        await connection.close()


async def sessions_in(database_url: str, objects: Objects) -> Sessions:
    connection = await asyncpg.connect(database_url)
    here = [str(row[0]) for row in await connection.fetch("SELECT session_id FROM ratchet_states")]
    await connection.close()
    uri = objects.table(SESSIONS.name)
    if not DeltaTable.is_deltatable(uri):
        return Sessions(sorted(here), [], set())
    found = DeltaTable(uri).to_pyarrow_table(columns=[SESSIONS.id, DAY])
    return Sessions(sorted(here), sorted(found[SESSIONS.id].to_pylist()), set(found[DAY].to_pylist()))
