"""What is left of deleted partitions and removed messages leaves the ledger, and so does old history."""

from __future__ import annotations

import re
from uuid import uuid4

import asyncpg
import pytest

from angelia.queues import upkeep_store, walks_store
from angelia.queues.model import PushItem
from angelia.queues.slice import QueuesSlice
from angelia.queues.upkeep import QueueUpkeep
from angelia.queues.walks_store import Walk
from angelia.stores.ledger import Ledger
from queue_storage import DAY, HOUR, MINUTE, NOON, QueueStorage, raise_floor


@pytest.fixture
async def storage(queues: QueuesSlice, ledger: Ledger) -> QueueStorage:
    storage = QueueStorage(queues, ledger)
    await storage.drop_days()
    await storage.days().make_partitions(NOON)
    return storage


# Deleted partitions.


async def test_everything_of_a_deleted_partition_is_removed_in_batches(storage: QueueStorage) -> None:
    for partition in ("gone", "kept"):
        await storage.push("q", "abcdefghij", NOON, partition=partition)
        popped = await storage.pop("q", NOON, 10, partition=partition)
        await popped.ack(NOON, ["a", "b"], status="dlq")
    number, kept = await storage.partition_no("q", "gone"), await storage.partition_no("q", "kept")
    for one in (number, kept):
        await storage.execute("INSERT INTO queue_hidden VALUES ($1, 1, $2, 0)", one, NOON)
        await storage.execute(
            "INSERT INTO queue_traces (trace_id, queue_no, partition_no, position, transaction_id, group_name, worker,"
            " event_type, names, data, created_at) VALUES ($1, 1, $2, 0, '', '', '', '', '{}', '', $3)",
            uuid4(),
            one,
            NOON,
        )
    await storage.execute("DELETE FROM queue_partitions WHERE partition_no = $1", number)
    await storage.execute("INSERT INTO queue_leavings (partition_no) VALUES ($1)", number)
    upkeep = storage.upkeep(batch=3)
    left = []
    more = True
    while more:
        more = await upkeep.clear_leavings(NOON)
        left.append(await storage.value("SELECT count(*) FROM queue_ids WHERE partition_no = $1", number))
    assert left == [7, 4, 1, 0]
    for table, count in await count_rows(storage, number):
        assert count == 0, table
    for table, count in await count_rows(storage, kept):
        assert count > 0, table


async def count_rows(storage: QueueStorage, partition_no: int) -> list[tuple[str, int]]:
    tables = ("queue_chunks", "queue_ids", "queue_cursors", "queue_dead_letters", "queue_traces", "queue_hidden")
    return [
        (table, await storage.value(f"SELECT count(*) FROM {table} WHERE partition_no = $1", partition_no))  # noqa: S608
        for table in tables
    ]


async def test_a_cursor_that_comes_after_its_partition_was_cleared_is_removed_as_well(storage: QueueStorage) -> None:
    await storage.execute("INSERT INTO queue_leavings (partition_no) VALUES (7)")
    upkeep = storage.upkeep()
    await upkeep.clear_leavings(NOON)
    await storage.execute(
        "INSERT INTO queue_cursors (partition_no, group_no, version, position, settled, passed, attempts, consumed,"
        " changed_at) VALUES (7, 1, 1, 0, '{}', '{}', 0, 0, $1)",
        NOON,
    )
    await upkeep.clear_leavings(NOON + MINUTE / 2)
    assert await storage.value("SELECT count(*) FROM queue_cursors") == 1
    await upkeep.clear_leavings(NOON + MINUTE)
    assert await storage.value("SELECT count(*) FROM queue_cursors") == 0
    assert await storage.value("SELECT count(*) FROM queue_leavings") == 0


# Ids.


async def test_ids_and_traces_of_removed_messages_are_removed_and_others_stay(storage: QueueStorage) -> None:
    await storage.push("q", "abcdefgh", NOON)
    for position in range(8):
        await storage.execute(
            "INSERT INTO queue_traces (trace_id, queue_no, partition_no, position, transaction_id, group_name, worker,"
            " event_type, names, data, created_at) VALUES ($1, 1, $2, $3, '', '', '', '', '{}', '', $4)",
            uuid4(),
            await storage.partition_no("q"),
            position,
            NOON,
        )
    await raise_floor(storage, "q", 3, NOON)
    ids = "SELECT count(*), min(position) FROM queue_ids"
    await storage.upkeep().prune_ids(NOON)
    assert await storage.rows(ids) == [(8, 0)], "few of them are outdated"
    await raise_floor(storage, "q", 5, NOON)
    await storage.upkeep().prune_ids(NOON)
    assert await storage.rows(ids) == [(3, 5)]
    assert await storage.rows("SELECT count(*), min(position) FROM queue_traces") == [(3, 5)]
    assert await storage.value("SELECT ids_floor FROM queue_partitions") == 5
    results = await storage.queues.pushes.push([PushItem("q", transaction_id=name) for name in "gh"], None, NOON)
    assert [one.status for one in results] == ["duplicate", "duplicate"]
    await storage.push("q", "ab", NOON)


async def test_a_walk_through_ids_is_bounded_and_goes_on_in_another_process(storage: QueueStorage) -> None:
    names = [f"{number}" for number in range(100)]
    await storage.push("q", names, NOON)
    await storage.push("q", "ab", NOON, partition="other")
    await storage.execute("UPDATE queue_partitions SET floor = CASE name WHEN 'other' THEN 2 ELSE 60 END")
    left = []
    more = True
    while more:
        more = await QueueUpkeep(storage.ledger, 1).prune_ids(NOON)
        left.append(await storage.value("SELECT count(*) FROM queue_ids"))
        if len(left) == 5:  # more is removed meanwhile: that is for the next walk
            await storage.execute("UPDATE queue_partitions SET floor = 70 WHERE name <> 'other'")
    assert left[-1] == 40
    assert all(0 <= before - after <= 10 for before, after in zip([102, *left], left, strict=False))
    floors = await storage.rows("SELECT name, ids_floor FROM queue_partitions ORDER BY 1")
    assert floors == [("Default", 60), ("other", 2)]
    async with storage.ledger.reading() as tx:
        assert await walks_store.walk(tx, "ids") == Walk()


# History.


async def test_the_runs_of_a_past_day_become_one_row_and_leave_after_ninety_days(storage: QueueStorage) -> None:
    for hour in range(30):
        for kind in ("retention", "completed"):
            await storage.execute(
                "INSERT INTO queue_retention_history (at, queue_name, partition_no, partition_name, kind, count)"
                " VALUES ($1, 'q', 1, 'p', $2, 2)",
                NOON + hour * HOUR,
                kind,
            )
    await storage.execute("INSERT INTO queue_evictions VALUES (1, $1, 5, 1.0, '{}')", NOON)
    upkeep = storage.upkeep(batch=7)
    rounds = 1
    while await upkeep.prune_history(NOON + 2 * DAY):
        rounds += 1
    assert rounds > 5
    rows = "SELECT at, kind, count, runs, merged FROM queue_retention_history ORDER BY at, kind"
    first, second = NOON + 11 * HOUR, NOON + 23 * HOUR
    assert await storage.rows(rows) == [
        (first, "completed", 24, 12, True),
        (first, "retention", 24, 12, True),
        (second, "completed", 24, 12, True),
        (second, "retention", 24, 12, True),
        *((NOON + hour * HOUR, kind, 2, 1, False) for hour in range(24, 30) for kind in ("completed", "retention")),
    ]
    while await upkeep.prune_history(NOON + 90 * DAY + 12 * HOUR):
        pass
    last = NOON + 29 * HOUR  # the last run of the second day
    assert await storage.rows(rows) == [(last, kind, 36, 18, True) for kind in ("completed", "retention")]
    assert await storage.value("SELECT count(*) FROM queue_evictions") == 0


# Plans.

ASKED: dict[str, list[object]] = {
    "leavings": [NOON, 100],
    "leave_chunks": [[7, 8], 100],
    "leave_ids": [[7, 8], 100],
    "leave_cursors": [[7, 8], 100],
    "leave_letters": [[7, 8], 100],
    "leave_traces": [[7, 8], 100],
    "leave_hidden": [[7, 8], 100],
    "emptied": [[7, 8], NOON, NOON],
    "outdated_ids": [0, 1000, 100, NOON],
    "prune_ids": [7, 0, 0, 5, 1000],
    "prune_traces": [7, 5, 1000],
    "pruned": [7, 5],
    "merge_history": [NOON, 100],
    "forget_history": [NOON - DAY, 100],
    "forget_evictions": [NOON - DAY, 100],
    "forget_expected": [NOON - DAY, 100],
}
FILL = """
INSERT INTO queues (queue_id, name, namespace, task, created_at, options)
SELECT gen_random_uuid(), 'q' || n, '', '', $1, '{}' FROM generate_series(1, 2000) AS n;
INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
SELECT gen_random_uuid(), queue_no, 'p' || n, $1 FROM queues, generate_series(1, 10) AS n;
INSERT INTO queue_leavings SELECT n FROM generate_series(100000, 110000) AS n;
INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id, transaction_ids, ends,
  body)
SELECT partition_no, n, 1, at, at, gen_random_uuid(), '{a}', '{0}', ''
FROM queue_partitions, generate_series(1, 3) AS n, LATERAL (SELECT $1::timestamptz + n * interval '1 minute') AS t (at);
INSERT INTO queue_ids SELECT partition_no, n, n FROM queue_partitions, generate_series(1, 5) AS n;
INSERT INTO queue_cursors (partition_no, group_no, version, position, settled, passed, attempts, consumed, changed_at)
SELECT partition_no, 1, 1, 2, '{[0,2)}', '{}', 0, 2, $1 FROM queue_partitions;
INSERT INTO queue_dead_letters (queue_no, partition_no, group_no, position, message_id, transaction_id, body, error,
  attempts, created_at, failed_at)
SELECT queue_no, partition_no, 1, 0, gen_random_uuid(), '', '', '', 0, $1, $1 FROM queue_partitions;
INSERT INTO queue_traces (trace_id, queue_no, partition_no, position, transaction_id, group_name, worker, event_type,
  names, data, created_at)
SELECT gen_random_uuid(), queue_no, partition_no, 0, '', '', '', '', '{}', '', $1 FROM queue_partitions;
INSERT INTO queue_retention_history (at, queue_name, partition_no, partition_name, kind, count, merged)
SELECT $1::timestamptz - n * interval '1 second', 'q' || n % 100, n, '', 'retention', 1, n % 2 = 0
FROM generate_series(1, 20000) AS n;
INSERT INTO queue_evictions SELECT n % 100, $1::timestamptz - n * interval '1 hour', 1, 1.0, '{}'
FROM generate_series(1, 20000) AS n;
INSERT INTO queue_hidden SELECT partition_no, 1, $1, 0 FROM queue_partitions;
INSERT INTO queue_expected SELECT 'q' || n, 'g', $1::timestamptz - n * interval '1 minute'
FROM generate_series(1, 20000) AS n
"""


async def test_no_statement_of_upkeep_reads_a_whole_table(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    for statement in FILL.split(";"):
        await connection.execute(statement, *([NOON] if "$1" in statement else []))
    await connection.execute("ANALYZE")
    assert ASKED.keys() == upkeep_store.SQL.keys()
    for name, values in ASKED.items():
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) {upkeep_store.SQL[name]}", *values)
        plan = "\n".join(row[0] for row in rows)
        # An empty table has one page, which is read whole whatever the index.
        empty = re.compile(r"Seq Scan on queue_chunks_(?!20261115)")
        whole = [line for line in plan.splitlines() if "Seq Scan" in line and not empty.search(line)]
        assert not whole, f"{name}:\n{plan}"


@pytest.mark.parametrize("name", ["prune_ids", "leave_ids"])
async def test_ids_are_removed_by_their_addresses_also_with_the_statistics_of_empty_tables(
    storage: QueueStorage, connection: asyncpg.Connection, name: str
) -> None:
    """Joined with the rows that were chosen, a table that counts as empty was read once for each of them."""
    await connection.execute("ANALYZE")
    await connection.execute("INSERT INTO queue_ids SELECT 7, n, n FROM generate_series(1, 10000) AS n")
    async with connection.transaction():
        await upkeep_store.read_in_order(connection)
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) {upkeep_store.SQL[name]}", *ASKED[name])
    plan = "\n".join(row[0] for row in rows)
    assert "Tid Scan" in plan, plan
    assert "Bitmap" not in plan, plan
