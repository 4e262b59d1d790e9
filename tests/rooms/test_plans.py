"""What is asked for each message, and what ticks ask for ever, reads an index however much there is."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from angelia.rooms import dms_store, store, word_index_store
from statement_plans import generic_plan, unbounded

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
ID, NOISE = UUID(int=1), bytes(10)
FILL = """
INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)
SELECT uuid_in(lpad(n::text, 32, '0')::cstring), 'agent-' || n, sha256(n::text::bytea), gen_random_uuid(), '', '', true,
  $1
FROM generate_series(1, 10000) AS n;
INSERT INTO rooms (room_id, name, is_private, created_at, last_active, sweep_at)
SELECT uuid_in(lpad((n + 1)::text, 32, '0')::cstring), 'room-' || n, false,
  $1::timestamptz + n * interval '1 second', $1, extract(epoch FROM $1) * 1000 + n
FROM generate_series(1, 10000) AS n;
INSERT INTO room_entries (room_id, ts, noise, author, body, about, place)
SELECT uuid_in(lpad((1 + n % 50)::text, 32, '0')::cstring), extract(epoch FROM $1::timestamptz) * 1000 + n,
  substr(sha256(''), 1, 10), gen_random_uuid(), 'body',
  CASE WHEN n % 5 = 0 THEN substr(sha256(n::text::bytea), 1, 16) END, n
FROM generate_series(1, 30000) AS n;
INSERT INTO room_unpacked SELECT n, n, ARRAY[n, n + 1] FROM generate_series(10001, 30000) AS n;
INSERT INTO room_parts SELECT n << 10, (n << 10) + 1023, 0, 25, n FROM generate_series(1, 2000) AS n;
INSERT INTO room_words SELECT n % 2000 << 10, n, '\\x0001' FROM generate_series(1, 50000) AS n;
INSERT INTO dm_inboxes SELECT id, 1, 3 FROM agents;
INSERT INTO dms (recipient, ts, noise, sender, body)
SELECT uuid_in(lpad((1 + n % 50)::text, 32, '0')::cstring), n, substr(sha256(''), 1, 10), gen_random_uuid(), 'x'
FROM generate_series(1, 30000) AS n
"""
# On the hot path: planned once for any values.
HOT = {
    store: ("room", "post", "page", "after", "message"),
    dms_store: ("to_send", "send", "inbox", "has_from"),
    word_index_store: ("unpacked", "packed", "messages"),
}
# Now and then, by an agent, an operator or a tick: planned for its values.
ASKED: dict[object, dict[str, list[object]]] = {
    store: {
        "details": [ID],
        "public_rooms": [20, 0],
        "listed": ["room-7", NOW, ID, 51],
        "newest": [ID],
        "thread": [ID, NOW_MS, NOW_MS + 50, NOISE, 100],
        "delete": [ID, NOW_MS, NOISE, NOW_MS, NOISE, ID, bytes(16)],
        "forget_unpacked": [[7]],
        "due_rooms": [NOW_MS, 20],
        "sweep": [ID, NOW_MS + 5, 200],
        "oldest": [ID],
    },
    dms_store: {"remove": [ID, 7, NOISE, 0], "expire": [7, 100]},
    word_index_store: {
        "packed_until": [3],
        "pack": [29_001, 29_500, 100, 0, 1000],
        "parts_of_level": [3, 0, 8],
        "merge": [[1 << 10, 2 << 10]],
        "merge_late": [[1 << 10, 2 << 10]],
        "too_large": [[1 << 10]],
        "old_part": [[0, 1 << 48], [7, 7]],
        "drop_words": [1 << 10, 100],
        "drop_part": [1 << 10],
    },
}


@pytest.fixture
async def filled(connection: asyncpg.Connection) -> asyncpg.Connection:
    for statement in FILL.split(";"):
        await connection.execute(statement, *([NOW] if "$1" in statement else []))
    await connection.execute("ANALYZE")
    return connection


async def test_statements_of_the_hot_path_look_rows_up_at_any_size(filled: asyncpg.Connection) -> None:
    for module, names in HOT.items():
        for name in names:
            plan = await generic_plan(filled, module.SQL[name])
            assert unbounded(plan) == [], f"{name}:\n{plan}"


async def test_no_statement_that_is_asked_often_reads_a_whole_table(filled: asyncpg.Connection) -> None:
    for module, statements in ASKED.items():
        for name, values in statements.items():
            rows = await filled.fetch(f"EXPLAIN (COSTS OFF) {module.SQL[name]}", *values)  # type: ignore[attr-defined]
            plan = "\n".join(row[0] for row in rows)
            assert "Seq Scan" not in plan, f"{name}:\n{plan}"


async def test_every_statement_is_one_that_postgres_understands(connection: asyncpg.Connection) -> None:
    for module in HOT:
        for name, statement in module.SQL.items():
            assert await connection.prepare(statement), name
