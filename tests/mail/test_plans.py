"""What is asked for each message, and what ticks ask for ever, reads an index however much there is."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from angelia.envelope.ids import bucket_of
from angelia.mail import receipts_store, store
from statement_plans import generic_plan, indexes, unbounded

# At noon: just after midnight the last day's partition has so few rows that to read it whole is right.
NOW = datetime.now(UTC).replace(hour=12)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ID, KEY, MREF = UUID(int=1), bytes(32), bytes(16)
BUCKET = bucket_of("agent-7")
HELD = "envelopes_bucket_recipient_nhi_sender_nhi_wire_bytes_idx"
ORDER = "envelopes_bucket_recipient_nhi_expr_idx"
KEYS = {"key_records_pkey", "idx_key_records_status", "idx_key_records_signer"}
# Each finds one receipt: its replay key, the whole key, or the sender or recipient and the millisecond.
RECEIPT = {
    "delivery_receipts_replay_key_idx",
    "delivery_receipts_message_id_sender_nhi_recipient_key",
    "delivery_receipts_sender_nhi_sent_at_idx",
    "delivery_receipts_recipient_nhi_sent_at_idx",
}
FILL = """
INSERT INTO envelopes (bucket, recipient_nhi, mref, sender_nhi, message_id, replay_key, key_id, sender_key_id, priority,
  channel_id, correlation_id, created_at, accepted_at, queued_at, expires_at, state, dead_at, wire, wire_bytes)
SELECT get_byte(sha256(convert_to(r, 'UTF8')), 0), r, decode(md5(n::text), 'hex'), 'sender-' || n % 50,
  gen_random_uuid(), sha256(convert_to(n::text, 'UTF8')), gen_random_uuid(), gen_random_uuid(), n % 4,
  CASE WHEN n % 9 = 0 THEN gen_random_uuid() END, CASE WHEN n % 7 = 0 THEN gen_random_uuid() END, at, at, at,
  at + interval '7 days', CASE WHEN n % 11 = 0 THEN 'dead' ELSE 'queued' END, CASE WHEN n % 11 = 0 THEN at END, '', 0
FROM generate_series(1, 20000) AS n, LATERAL (SELECT 'agent-' || n % 100, $1::timestamptz - n * interval '20 seconds')
  AS named (r, at);
INSERT INTO sent_ids
SELECT 'sender-' || n % 50, gen_random_uuid(), sha256(''), '{}', $1::timestamptz + n * interval '1 minute'
FROM generate_series(1, 20000) AS n;
INSERT INTO delivery_receipts (receipt_id, message_id, replay_key, sender_nhi, recipient_nhi, priority, wire_bytes,
  status, sent_at, accepted_at, expires_at, bucket)
SELECT gen_random_uuid(), gen_random_uuid(), sha256(convert_to(n::text, 'UTF8')), 'sender-' || n % 50, r, n % 4, 1,
  CASE WHEN n % 3 = 0 THEN 'delivered' ELSE 'pending' END, at, at, at, get_byte(sha256(convert_to(r, 'UTF8')), 0)
FROM generate_series(1, 40000) AS n, LATERAL
  (SELECT 'agent-' || n % 100, $1::timestamptz + interval '7 days' - n * interval '18 seconds') AS named (r, at);
INSERT INTO mail_marks SELECT 'mark-' || n, '' FROM generate_series(1, 5000) AS n
"""
# What is asked for every message, and the indexes that it may use.
HOT: dict[str, set[str]] = {
    "admission": {
        "sent_ids_pkey",
        "agents_handle_key",
        "blocks_pkey",
        "bundles_pkey",
        "key_records_pkey",
        "idx_key_records_status",  # an agent's keys, while they are few
        "idx_key_records_signer",
        "one_time_keys_pkey",
    },
    "add": {HELD},
    "add_one_time": {HELD, "sent_ids_pkey", "one_time_keys_pkey"},
    "claimable": {"envelopes_pkey", ORDER, "agents_handle_key", "blocks_pkey", *KEYS},
    "acknowledged": {"envelopes_pkey", "idx_key_records_signer"},
    "settle": {"envelopes_pkey", *RECEIPT},
    "known_ids": {"sent_ids_pkey"},
}
# What is asked for a message now and then, by an agent, an operator or a tick: planned for its values.
MAIL: dict[str, list[object]] = {
    "forget_ids": [["sender-7"], [ID]],
    "forget_old_ids": [NOW + HOUR, 500],
    "passed": [BUCKET, "agent-7", 3 << 48, NOW, [MREF], 100],
    "correlated": [BUCKET, "agent-7", ID, NOW, 0, 100, None, None],
    "in_channel": [BUCKET, "agent-7", ID, NOW, 0, 100, 2, 77],
    "one": [BUCKET, KEY],
    "lock": [[BUCKET], ["agent-7"], [KEY]],
    "remove": [[BUCKET], [MREF]],
    "bury": [[BUCKET], [MREF], [""], NOW],
    "requeue": [BUCKET, KEY, NOW],
    "dead_of": ["agent-7", NOW, MREF, 51, BUCKET],
    "expired": [NOW, 500],
    "sealed_to": [BUCKET, "agent-7", ID, 500],
    "signed_by": ["sender-7", ID, NOW - DAY, 500],
    "queued_between": [NOW - timedelta(minutes=2), NOW, None, None, 500],
    "in_bucket": [BUCKET, KEY, 500],
    "mark": ["mark-7"],
}
RECEIPTS: dict[str, list[object]] = {
    "move": [[ID], ["a"], ["b"], [NOW], ["failed"], ["relay"], [None], [None], [None], [1], [NOW], ["x"], [None]],
    "of_message": [[KEY]],
    "lock": [KEY],
    "page": ["agent-7", None, None, None, NOW, ID, 51, None],
}
PURE_WRITES = {"set_mark"}


@pytest.fixture
async def empty(stores: Any, template: str) -> AsyncIterator[asyncpg.Connection]:
    """A database of its own: what is filled and emptied leaves tables behind whose statistics mean nothing."""
    async with database(stores, template) as connection:
        yield connection


@asynccontextmanager
async def database(stores: Any, template: str, more: str = "") -> AsyncIterator[asyncpg.Connection]:
    name = f"plans_{secrets.token_hex(4)}"
    admin = await asyncpg.connect(stores.admin_url)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} OWNER angelia {more}")
    connection = await asyncpg.connect(stores.named(name))
    yield connection
    await connection.close()
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


def make_like(place: Path, other: Path) -> None:
    """Makes a directory of the same owner."""
    place.mkdir()
    os.chown(place, other.stat().st_uid, other.stat().st_gid)


@pytest.fixture
async def empty_on_disk(stores: Any, template: str, disk_directory: Path) -> AsyncIterator[asyncpg.Connection]:
    """The same for what does not fit into memory."""
    place = disk_directory / "tablespace"
    admin = await asyncpg.connect(stores.admin_url)
    make_like(place, Path(await admin.fetchval("SHOW data_directory")))
    await admin.execute(f"CREATE TABLESPACE disk LOCATION '{place}'")
    async with database(stores, template, "TABLESPACE disk") as connection:
        yield connection
    await admin.execute("DROP TABLESPACE disk")
    await admin.close()


SELDOM = {"sent_before", "count_before"}  # by an operator, or every few minutes and no further than a bound


async def fill(connection: asyncpg.Connection, messages: int) -> None:
    for statement in FILL.split(";"):
        sized = statement.replace("20000", str(messages)).replace("40000", str(2 * messages))
        await connection.execute(sized, *([NOW] if "$1" in sized else []), timeout=3600)
    await connection.execute("ANALYZE", timeout=600)


async def hot_statements_use_their_indexes(connection: asyncpg.Connection) -> None:
    for name, allowed in HOT.items():
        plan = await generic_plan(connection, store.SQL[name])
        assert unbounded(plan) == [], f"{name}:\n{plan}"
        used = indexes(plan)
        assert used, f"{name}:\n{plan}"
        assert used <= allowed, f"{name} uses {used - allowed}:\n{plan}"


@pytest.mark.parametrize("messages", [0, 10, 20_000])
async def test_what_is_asked_for_every_message_looks_it_up_however_many_there_are(
    empty: asyncpg.Connection, messages: int
) -> None:
    await fill(empty, messages)
    await hot_statements_use_their_indexes(empty)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_the_same_with_ten_million_messages(empty_on_disk: asyncpg.Connection) -> None:
    await fill(empty_on_disk, 10_000_000)
    await hot_statements_use_their_indexes(empty_on_disk)


def test_every_statement_is_looked_at() -> None:
    assert HOT.keys() | MAIL.keys() | PURE_WRITES == store.SQL.keys()
    assert RECEIPTS.keys() | SELDOM == receipts_store.SQL.keys()


async def test_no_statement_that_is_asked_often_reads_a_whole_table(empty: asyncpg.Connection) -> None:
    await fill(empty, 20_000)
    asked = {name: (store.SQL[name], values) for name, values in MAIL.items()}
    asked |= {f"receipts {name}": (receipts_store.SQL[name], values) for name, values in RECEIPTS.items()}
    for name, (statement, values) in asked.items():
        plan = "\n".join(row[0] for row in await empty.fetch(f"EXPLAIN (COSTS OFF) {statement}", *values))
        # An empty table has one page, which is read whole whatever the index: those of other slices are empty here.
        whole = [
            line for line in plan.splitlines() if re.search(r"Seq Scan on (envelopes|sent_ids|delivery\w+_2)", line)
        ]
        assert not whole, f"{name}:\n{plan}"
        assert "Index" in plan, f"{name}:\n{plan}"
    # What is one recipient's lies in one partition.
    for name in ("passed", "correlated", "in_channel", "one", "dead_of", "sealed_to", "in_bucket"):
        plan = "\n".join(row[0] for row in await empty.fetch(f"EXPLAIN (COSTS OFF) {store.SQL[name]}", *MAIL[name]))
        assert len(set(re.findall(r" on (envelopes_\d)", plan))) == 1, f"{name}:\n{plan}"


async def test_the_order_of_a_queue_is_checked_at_its_front_also_when_most_mail_is_one_recipients(
    empty: asyncpg.Connection,
) -> None:
    await fill(empty, 20_000)
    busy = FILL.split(";")[0].replace("20000", "30000").replace("n % 100,", "7,").replace("1, 30000", "20001, 30000")
    await empty.execute(busy, NOW)
    await empty.execute("ANALYZE envelopes")
    claimable = await generic_plan(empty, store.SQL["claimable"])
    rows = await empty.fetch(f"EXPLAIN (COSTS OFF) {store.SQL['passed']}", *MAIL["passed"])
    for plan in (claimable, "\n".join(row[0] for row in rows)):
        assert ORDER in indexes(plan), plan
        assert unbounded(plan) == [], plan
        assert "hashed SubPlan" in plan, plan
