"""Eviction: messages that waited too long and that no consumer group consumed are marked, once."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import structlog
from prometheus_client import REGISTRY

from angelia.queues import eviction_store
from angelia.queues.activity import WAITED_SECONDS
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger
from queue_storage import DAY, HOUR, MINUTE, NOON, SECOND, QueueStorage
from statement_plans import generic_plan, unbounded


@pytest.fixture
async def storage(queues: QueuesSlice, ledger: Ledger) -> QueueStorage:
    storage = QueueStorage(queues, ledger)
    await storage.drop_days()
    return storage


async def hours(storage: QueueStorage) -> list[tuple[Any, ...]]:
    return await storage.rows("SELECT hour, count, oldest_seconds FROM queue_evictions ORDER BY hour")


async def test_late_messages_are_evicted_once_and_pops_pass_over_them(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "cd", NOON + 30 * SECOND)
    await storage.evict(NOON + 60 * SECOND - timedelta(microseconds=1))
    assert await storage.evicted("q") == []
    await storage.evict(NOON + 60 * SECOND)
    assert await storage.evicted("q") == [0, 1]
    await storage.evict(NOON + 61 * SECOND)
    assert await hours(storage) == [(NOON, 2, 60.0)]
    assert await storage.consume("q", NOON + 61 * SECOND) == "cd"


@pytest.mark.parametrize("options", [{}, {"maxWaitTimeSeconds": 0}, {"retentionEnabled": True}])
async def test_zero_is_off(storage: QueueStorage, options: dict[str, Any]) -> None:
    await storage.configure("q", **options)
    await storage.push("q", "ab", NOON)
    await storage.evict(NOON + 1000 * DAY)
    assert await storage.evicted("q") == []
    assert await storage.consume("q", NOON + 1000 * DAY) == "ab"


async def test_options_of_a_partition_stand_in_place_of_its_queues(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.configure("q", partition="patient", maxWaitTimeSeconds=3600)
    await storage.configure("q", partition="never", maxWaitTimeSeconds=0)
    for partition in ("Default", "patient", "never"):
        await storage.push("q", "a", NOON, partition=partition)
    await storage.evict(NOON + MINUTE)
    found = [await storage.evicted("q", partition) for partition in ("Default", "patient", "never")]
    assert found == [[0], [], []]


async def test_what_one_group_consumed_and_another_did_not_is_not_evicted(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.push("q", "abcd", NOON)
    assert await storage.consume("q", NOON, 2, "one") == "ab"
    assert await storage.consume("q", NOON, 1, "two") == "a"
    await storage.evict(NOON + MINUTE)
    assert await storage.evicted("q") == [2, 3]
    for group in ("one", "two"):
        assert await storage.consume("q", NOON + MINUTE, 10, group) == "", "skipped"


async def test_what_is_leased_is_not_evicted_until_the_lease_ends_without_it(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60, leaseTime=300)
    await storage.push("q", "abcdef", NOON)
    popped = await storage.pop("q", NOON + 50 * SECOND, 4)
    await popped.ack(NOON + 51 * SECOND, ["b"])
    await storage.evict(NOON + MINUTE)
    assert await storage.evicted("q") == [4, 5]
    await popped.ack(NOON + 2 * MINUTE, ["a"])
    await storage.evict(NOON + 2 * MINUTE)
    assert await storage.evicted("q") == [4, 5]
    await storage.evict(NOON + 10 * MINUTE)
    assert await storage.evicted("q") == [2, 3, 4, 5]
    assert await hours(storage) == [(NOON, 4, 600.0)]


async def test_what_a_failure_gave_back_too_late_is_evicted(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.push("q", "ab", NOON)
    popped = await storage.pop("q", NOON)
    await storage.evict(NOON + MINUTE)
    assert await storage.evicted("q") == []
    await popped.ack(NOON + MINUTE, ["a"], status="failed")
    await storage.evict(NOON + 2 * MINUTE)
    assert await storage.evicted("q") == [0, 1]


async def test_dead_letters_and_deleted_messages_are_not_evicted(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.push("q", "abcd", NOON)
    popped = await storage.pop("q", NOON, 1)
    await popped.ack(NOON, status="dlq")
    await storage.execute("UPDATE queue_partitions SET removed = '{[2,3)}'")
    await storage.evict(NOON + MINUTE)
    assert await storage.evicted("q") == [1, 3]
    assert await storage.value("SELECT count(*) FROM queue_dead_letters") == 1


async def test_what_retention_has_removed_is_not_evicted(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60, retentionEnabled=True, retentionSeconds=30)
    await storage.push("q", "ab", NOON)
    await storage.retain(NOON + MINUTE)
    await storage.evict(NOON + MINUTE)
    assert await storage.evicted("q") == []


async def test_evicted_messages_leave_by_retention(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60, retentionEnabled=True, retentionSeconds=3600)
    await storage.push("q", "ab", NOON)
    await storage.evict(NOON + MINUTE)
    await storage.retain(NOON + HOUR)
    assert await storage.evicted("q") == []
    assert await storage.history() == [("q", "Default", "retention", 2)]
    await storage.evict(NOON + HOUR)
    assert len(await hours(storage)) == 1


async def test_counts_are_by_queue_and_hour_with_the_times_that_messages_waited(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.configure("other", maxWaitTimeSeconds=60)
    for at, name in enumerate("abcd"):
        await storage.push("q", name, NOON + at * 10 * MINUTE)
    await storage.push("other", "x", NOON)
    now = NOON + 31 * MINUTE  # they waited 31, 21, 11 and 1 minutes
    await storage.evict(now)
    await storage.push("q", "e", now)
    await storage.evict(now + 2 * HOUR)
    rows = await storage.rows(
        "SELECT q.name, e.hour, e.count, e.oldest_seconds, e.waited FROM queue_evictions AS e"
        " JOIN queues AS q USING (queue_no) ORDER BY 1, 2"
    )

    def bins(**counts: int) -> list[int]:
        found = [0] * (len(WAITED_SECONDS) + 1)
        for bound, count in counts.items():
            found[WAITED_SECONDS.index(float(bound[1:]))] = count
        return found

    assert rows == [
        ("other", NOON, 1, 31 * 60.0, bins(_3600=1)),
        ("q", NOON, 4, 31 * 60.0, bins(_120=1, _3600=3)),
        ("q", NOON + 2 * HOUR, 1, 2 * 3600.0, bins(_86400=1)),
    ]


async def test_two_rounds_of_an_hour_are_added_up(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    for at in range(2):
        await storage.push("q", f"{at}", NOON + at * MINUTE)
        await storage.evict(NOON + (at + 1) * MINUTE)
    assert await hours(storage) == [(NOON, 2, 60.0)]
    waited = await storage.value("SELECT waited FROM queue_evictions")
    assert (len(waited), sum(waited), waited[WAITED_SECONDS.index(120.0)]) == (len(WAITED_SECONDS) + 1, 2, 2)


async def test_evictions_are_logged_and_counted(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    for partition in ("p", "r"):
        await storage.push("q", "ab", NOON, partition=partition)
    before = REGISTRY.get_sample_value("angelia_queue_evicted_total") or 0
    with structlog.testing.capture_logs() as logs:
        await storage.evict(NOON + 90 * SECOND)
        await storage.evict(NOON + 91 * SECOND)
    (event,) = [one for one in logs if one["event"] == "eviction.performed"]
    assert (event["queue"], event["count"], event["oldest_seconds"]) == ("q", 4, 90.0)
    assert event["ms"] > 0
    assert (REGISTRY.get_sample_value("angelia_queue_evicted_total") or 0) - before == 4


async def test_a_backlog_larger_than_a_round_drains(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    for number in range(7):
        for name in "abcdef":
            await storage.push("q", name, NOON, partition=f"p{number}")
    eviction = storage.eviction(batch=3, most_messages=4)
    counts = []
    more = True
    while more:
        more = await eviction.run(NOON + HOUR)
        counts.append(await storage.value("SELECT coalesce(sum(count), 0)::bigint FROM queue_evictions"))
    assert counts[-1] == 42
    steps = [b - a for a, b in zip([0, *counts], counts, strict=False)]
    assert max(steps) <= 3 * 4


async def test_a_row_that_another_transaction_holds_is_left_for_the_next_time(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.push("q", "ab", NOON)
    async with connection.transaction():
        await connection.execute("UPDATE queue_partitions SET removed = '{[0,1)}'")
        await storage.evict(NOON + HOUR)
        assert await storage.evicted("q") == []
    await storage.evict(NOON + HOUR)
    assert await storage.evicted("q") == [1]


async def test_an_idle_partition_is_not_looked_for_in_the_tables_of_all_days(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.push("q", "ab", NOON)
    await storage.consume("q", NOON)
    await storage.evict(NOON + DAY)
    quiet = "SELECT quiet_end, quiet_at FROM queue_partitions"
    yesterday = NOON.replace(hour=0)
    assert await storage.rows(quiet) == [(2, yesterday)]
    await storage.evict(NOON + 5 * DAY)
    assert await storage.rows(quiet) == [(2, yesterday)], "it is not written at every round"
    await storage.push("q", "cd", NOON + 5 * DAY)
    await storage.evict(NOON + 5 * DAY + MINUTE)
    assert await storage.evicted("q") == [2, 3]
    await storage.evict(NOON + 20 * DAY)
    assert await storage.rows(quiet) == [(4, yesterday + 19 * DAY)]


async def test_a_group_that_goes_back_does_not_hide_what_is_late(storage: QueueStorage) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await storage.push("q", "abcd", NOON)
    await storage.consume("q", NOON)
    await storage.evict(NOON + DAY)
    # As a seek does that takes back what was settled.
    await storage.execute("UPDATE queue_cursors SET position = 1, settled = '{[0,1)}', read_at = NULL")
    await storage.evict(NOON + DAY)
    assert await storage.evicted("q") == [1, 2, 3]
    assert await storage.rows("SELECT quiet_end FROM queue_partitions") == [(4,)]


async def test_sets_of_positions_are_those_that_a_plain_program_finds(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    drawn = random.Random(7102)
    await storage.configure("q", maxWaitTimeSeconds=60)
    queue_no = await connection.fetchval("SELECT queue_no FROM queues")
    groups = [
        await connection.fetchval(
            "INSERT INTO queue_groups (queue_no, name, mode, created_at) VALUES ($1, $2, 'all', $3) RETURNING group_no",
            queue_no,
            name,
            NOON,
        )
        for name in "xyz"
    ]

    def ranges(members: set[int]) -> str:
        return "{" + ",".join(f"[{one},{one + 1})" for one in sorted(members)) + "}"

    def some(chance: float) -> set[int]:
        return {position for position in range(40) if drawn.random() < chance}

    wanted = {}
    for number in range(150):
        floor, late, newest = drawn.randint(0, 10), drawn.randint(0, 40), 40
        removed, evicted = some(0.1), some(0.1)
        partition_no = await connection.fetchval(
            "INSERT INTO queue_partitions (partition_id, queue_no, name, created_at, floor, removed, evicted)"
            " VALUES ($1, $2, $3, $4, $5, ($6::text)::int8multirange, ($7::text)::int8multirange)"
            " RETURNING partition_no",
            uuid4(),
            queue_no,
            f"p{number}",
            NOON,
            floor,
            ranges(removed),
            ranges(evicted),
        )
        for end in range(1, newest + 1):
            at = NOON if end <= late else NOON + 30 * SECOND
            await connection.execute(
                "INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id,"
                " transaction_ids, ends, body) VALUES ($1, $2, 1, $3, $3, $4, '{a}', '{0}', '')",
                partition_no,
                end,
                at,
                uuid4(),
            )
        late_ones = set(range(floor, late)) - removed - evicted
        for group_no in groups[: drawn.randint(0, 3)]:
            settled, position = some(0.3), drawn.randint(0, 40)
            end, live = drawn.randint(position, 40), drawn.random() < 0.5
            leased = drawn.random() < 0.5
            late_ones -= settled
            if leased and live:
                late_ones -= set(range(position, end))
            await connection.execute(
                "INSERT INTO queue_cursors (partition_no, group_no, version, position, settled, passed, attempts,"
                " lease_id, lease_end, lease_until, consumed, changed_at)"
                " VALUES ($1, $2, 1, $3, ($4::text)::int8multirange, '{}', 0, $5, $6, $7, 0, $8)",
                partition_no,
                group_no,
                position,
                ranges(settled),
                uuid4() if leased else None,
                end if leased else None,
                NOON + (HOUR if live else SECOND) if leased else None,
                NOON,
            )
        wanted[f"p{number}"] = (sorted(late_ones | evicted), len(late_ones))
    await storage.evict(NOON + MINUTE)
    for name, (evicted_now, _) in wanted.items():
        assert await storage.evicted("q", name) == evicted_now, name
    assert await hours(storage) == [(NOON, sum(count for _, count in wanted.values()), 60.0)]


# Rounds and plans.


async def test_a_round_with_ten_thousand_partitions_is_bounded(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.configure("q", maxWaitTimeSeconds=60)
    await connection.execute(
        """
        INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
        SELECT gen_random_uuid(), queue_no, 'p' || n, $1 FROM generate_series(1, 9999) AS n, queues
        """,
        NOON,
    )
    await connection.execute(
        """
        INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id, transaction_ids,
          ends, body)
        SELECT partition_no, 3, 3, $1, $1, gen_random_uuid(), '{a,b,c}', '{0,0,0}', '' FROM queue_partitions
        """,
        NOON,
    )
    counts = []
    for _ in range(2):
        assert await storage.eviction().run(NOON + HOUR)
        counts.append(await connection.fetchval("SELECT count(*) FROM queue_partitions WHERE evicted <> '{}'"))
    assert counts == [1000, 2000]
    assert await storage.evict(NOON + HOUR) == 9, "the last one finds no more"
    assert await hours(storage) == [(NOON + HOUR, 30_000, 3600.0)]


async def test_statements_of_eviction_look_rows_up_at_any_size(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.days().make_partitions(NOON)
    for name, statement in eviction_store.SQL.items():
        plan = await generic_plan(connection, statement)
        assert unbounded(plan) == [], f"{name}:\n{plan}"
