"""Retention of queues: what goes, what stays, and what it costs."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest
import structlog
from prometheus_client import REGISTRY

from angelia.queues import retention_store, walks_store
from angelia.queues.retention import within
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger
from queue_storage import DAY, HOUR, MINUTE, NOON, SECOND, QueueStorage, someone_waits
from statement_plans import generic_plan, unbounded

ON = {"retentionEnabled": True}


@pytest.fixture
async def storage(queues: QueuesSlice, ledger: Ledger) -> QueueStorage:
    storage = QueueStorage(queues, ledger)
    await storage.drop_days()
    return storage


# By age.


async def test_messages_older_than_retention_seconds_are_gone_consumed_or_not(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "cd", NOON + 30 * SECOND)
    await storage.push("q", "ef", NOON + 31 * SECOND)
    assert await storage.consume("q", NOON + 31 * SECOND, 1) == "a"
    await storage.retain(NOON + 90 * SECOND)
    assert await storage.floor("q") == 4
    assert await storage.consume("q", NOON + 90 * SECOND) == "ef"
    assert await storage.history() == [("q", "Default", "retention", 4)]


async def test_a_message_is_kept_until_its_time_is_over_to_the_microsecond(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "a", NOON)
    await storage.retain(NOON + 60 * SECOND - timedelta(microseconds=1))
    assert await storage.floor("q") == 0
    await storage.retain(NOON + 60 * SECOND)
    assert await storage.floor("q") == 1


@pytest.mark.parametrize(
    "options",
    [
        {**ON, "retentionSeconds": 0, "completedRetentionSeconds": 0, "partitionRetentionSeconds": 0},
        {"retentionEnabled": False, "retentionSeconds": 1, "completedRetentionSeconds": 1},
        {"retentionSeconds": 1, "partitionRetentionSeconds": 1},
    ],
)
async def test_zero_is_off_and_so_is_retention_that_is_not_enabled(
    storage: QueueStorage, options: dict[str, Any]
) -> None:
    await storage.configure("q", **options)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "x", NOON, partition="p")
    assert await storage.consume("q", NOON, 1, partition="p") == "x"
    await storage.retain(NOON + 1000 * DAY)
    assert await storage.history() == []
    assert await storage.consume("q", NOON + 1000 * DAY) == "ab"


async def test_one_rule_alone_does_not_switch_the_other_on(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await storage.push("q", "ab", NOON)
    assert await storage.consume("q", NOON, 1) == "a"
    await storage.retain(NOON + DAY)
    assert await storage.consume("q", NOON + DAY) == "b"
    assert await storage.history() == [("q", "Default", "completed", 1)]


async def test_options_of_a_partition_stand_in_place_of_its_queues(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=3600)
    await storage.configure("q", partition="short", retentionSeconds=60)
    await storage.configure("q", partition="kept", retentionEnabled=False)
    await storage.configure("other", partition="only", **ON, retentionSeconds=60)
    for queue, partition in (("q", "Default"), ("q", "short"), ("q", "kept"), ("other", "Default"), ("other", "only")):
        await storage.push(queue, "a", NOON, partition=partition)
    await storage.retain(NOON + MINUTE)
    assert [(queue, partition) for queue, partition, _, _ in await storage.history()] == [
        ("q", "short"),
        ("other", "only"),
    ]


async def test_positions_go_on_when_everything_was_removed(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "abc", NOON)
    await storage.retain(NOON + HOUR)
    await storage.execute("DELETE FROM queue_chunks")  # as with the drop of its day
    await storage.push("q", "d", NOON + HOUR)
    assert await storage.chunks() == {"ault": [4]}
    assert await storage.consume("q", NOON + HOUR) == "d"


async def test_an_id_may_be_used_again_when_its_message_was_removed(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "a", NOON)
    await storage.retain(NOON + HOUR)
    await storage.push("q", "a", NOON + HOUR)
    assert await storage.consume("q", NOON + HOUR) == "a"


async def test_a_lease_ends_with_the_messages_that_are_left_of_it(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "a", NOON)
    await storage.push("q", "b", NOON + 30 * SECOND)
    popped = await storage.pop("q", NOON + 50 * SECOND)
    await storage.retain(NOON + 70 * SECOND)
    assert await popped.ack(NOON + 71 * SECOND) == [False, True]
    await storage.push("q", "c", NOON + 72 * SECOND)
    assert await storage.consume("q", NOON + 72 * SECOND) == "c"


async def test_messages_that_were_deleted_before_are_not_counted_again(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "abcd", NOON)
    await storage.push("q", "ef", NOON + DAY)
    await storage.execute("UPDATE queue_partitions SET removed = '{[1,3),[4,5)}', evicted = '{[0,1),[5,6)}'")
    await storage.retain(NOON + DAY)
    assert await storage.history() == [("q", "Default", "retention", 2)]
    rows = await storage.rows("SELECT removed::text, evicted::text FROM queue_partitions")
    assert rows == [("{[4,5)}", "{[5,6)}")]


# What every consumer group has consumed.


async def test_what_every_group_has_consumed_goes_when_it_is_old_enough(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await storage.push("q", "abcd", NOON)
    await storage.push("q", "ef", NOON + 40 * SECOND)
    for group in ("one", "two"):
        await storage.consume("q", NOON + 41 * SECOND, 100, group)
    await storage.retain(NOON + 59 * SECOND)
    assert await storage.floor("q") == 0
    await storage.retain(NOON + 60 * SECOND)
    assert await storage.floor("q") == 4, "the others are too young"
    await storage.retain(NOON + 100 * SECOND)
    assert await storage.floor("q") == 6
    assert await storage.history() == [("q", "Default", "completed", 4), ("q", "Default", "completed", 2)]


async def test_the_slowest_group_holds_back_what_it_has_not_consumed(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await storage.push("q", "abcd", NOON)
    await storage.consume("q", NOON, 4, "fast")
    await storage.consume("q", NOON, 3, "slow")
    await storage.retain(NOON + DAY)
    assert await storage.floor("q") == 3, "in the middle of a chunk"
    assert await storage.consume("q", NOON + DAY, 4, "slow") == "d"
    await storage.retain(NOON + DAY)
    assert await storage.floor("q") == 4


async def test_a_group_that_never_read_a_partition_holds_everything_back(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "xy", NOON, partition="other")
    await storage.consume("q", NOON, partition="Default", group="one")
    await storage.consume("q", NOON, partition="other", group="one")
    await storage.consume("q", NOON, partition="Default", group="two")
    await storage.retain(NOON + DAY)
    assert await storage.history() == [("q", "Default", "completed", 2)]


async def test_without_groups_nothing_was_consumed(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await storage.push("q", "ab", NOON)
    await storage.retain(NOON + DAY)
    assert await storage.floor("q") == 0


async def test_what_is_leased_or_failed_is_not_consumed(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await storage.push("q", "abc", NOON)
    popped = await storage.pop("q", NOON)
    await popped.ack(NOON, ["b"])
    await storage.retain(NOON + DAY)
    assert await storage.floor("q") == 0


async def test_both_rules_in_one_run_are_told_apart(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=3600, completedRetentionSeconds=60)
    await storage.push("q", "abc", NOON)
    await storage.push("q", "de", NOON + HOUR)
    await storage.push("q", "f", NOON + HOUR)
    await storage.consume("q", NOON + HOUR, 4)
    await storage.retain(NOON + HOUR + MINUTE)
    assert sorted(await storage.history()) == [("q", "Default", "completed", 1), ("q", "Default", "retention", 3)]
    assert await storage.consume("q", NOON + HOUR + MINUTE) == "ef"


# Dead letters.


async def bury(storage: QueueStorage, queue: str, name: str, now: datetime) -> None:
    await storage.push(queue, [name], now)
    popped = await storage.pop(queue, now)
    assert await popped.ack(now, status="dlq") == [True]


async def test_dead_letters_live_by_completed_retention_seconds_from_their_failure(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await bury(storage, "q", "a", NOON)
    await bury(storage, "q", "b", NOON + 30 * SECOND)
    await storage.retain(NOON + 60 * SECOND)
    assert await storage.rows("SELECT transaction_id FROM queue_dead_letters") == [("b",)]
    assert ("q", "Default", "failed", 1) in await storage.history()


async def test_dead_letters_outlive_their_messages(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await bury(storage, "q", "a", NOON)
    await storage.retain(NOON + DAY)
    assert await storage.floor("q") == 1
    assert await storage.value("SELECT count(*) FROM queue_dead_letters") == 1


async def test_dead_letters_are_removed_in_batches(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60)
    await storage.push("q", "abcdefg", NOON)
    popped = await storage.pop("q", NOON)
    await popped.ack(NOON, status="dlq")
    retention = storage.retention(batch=3)
    left = []
    more = True
    while more:
        more = await retention.run(NOON + DAY)
        left.append(await storage.value("SELECT count(*) FROM queue_dead_letters"))
    assert left == [4, 1, 0]
    assert [entry for entry in await storage.history() if entry[2] == "failed"] == [
        ("q", "Default", "failed", count) for count in (3, 3, 1)
    ]


# Partitions.


async def partitions(storage: QueueStorage) -> set[str]:
    return {row[0] for row in await storage.rows("SELECT name FROM queue_partitions")}


async def test_an_empty_idle_partition_is_deleted_but_never_default(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, partitionRetentionSeconds=3600)
    for partition in ("Default", "idle", "busy"):
        await storage.push("q", "a", NOON, partition=partition)
    await storage.push("q", "b", NOON + HOUR, partition="busy")
    await storage.retain(NOON + HOUR - SECOND)
    assert await partitions(storage) == {"Default", "idle", "busy"}
    number = await storage.partition_no("q", "idle")
    await storage.retain(NOON + HOUR)
    assert await partitions(storage) == {"Default", "busy"}
    assert ("q", "idle", "partition", 1) in await storage.history()
    assert await storage.rows("SELECT partition_no FROM queue_leavings") == [(number,)]


async def test_a_partition_with_messages_or_dead_letters_is_not_empty(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=10**6, partitionRetentionSeconds=3600)
    await storage.configure("q", partition="dead", retentionSeconds=60)
    await storage.push("q", "a", NOON, partition="full")
    await storage.push("q", "b", NOON, partition="dead")
    await (await storage.pop("q", NOON, partition="dead")).ack(NOON, status="dlq")
    await storage.retain(NOON + DAY)
    assert await storage.floor("q", "dead") == 1
    assert await partitions(storage) == {"Default", "full", "dead"}


async def test_a_push_to_a_partition_that_was_deleted_makes_it_again(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, partitionRetentionSeconds=60)
    await storage.push("q", "a", NOON, partition="p")
    assert await storage.consume("q", NOON, partition="p") == "a"
    await storage.retain(NOON + HOUR)
    assert await partitions(storage) == {"Default"}
    await storage.push("q", "b", NOON + HOUR, partition="p")
    assert await storage.consume("q", NOON + HOUR, partition="p") == "b"


async def test_a_partition_that_a_push_is_at_work_on_stays(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, partitionRetentionSeconds=60)
    await storage.push("q", "a", NOON, partition="p")
    number = await storage.partition_no("q", "p")
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(queue_partition_lock($1))", number)
        await storage.retain(NOON + HOUR)
    assert await partitions(storage) == {"Default", "p"}
    await storage.retain(NOON + HOUR)
    assert await partitions(storage) == {"Default"}


async def test_a_push_that_waits_for_the_deletion_finds_its_partition_gone(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, partitionRetentionSeconds=60)
    await storage.push("q", "a", NOON, partition="p")
    number = await storage.partition_no("q", "p")
    await storage.execute("UPDATE queue_partitions SET floor = 1, floor_at = $1 WHERE partition_no = $2", NOON, number)
    async with storage.ledger.transaction() as tx:
        deleted = await retention_store.delete_idle(tx, [number], NOON + HOUR)
        assert [one.kind for one in deleted] == ["partition"]
        pushing = asyncio.create_task(storage.push("q", "b", NOON + HOUR, partition="p"))
        await someone_waits(connection)
    await pushing
    assert await storage.partition_no("q", "p") != number
    assert await storage.consume("q", NOON + HOUR, partition="p") == "b"


async def test_no_message_is_lost_when_partitions_are_deleted_while_pushes_go_on(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, partitionRetentionSeconds=120)
    names = [f"{number:03}" for number in range(60)]
    for name in names:
        await storage.push("q", "x", NOON, partition=name)
    await storage.retain(NOON + MINUTE)

    async def push() -> None:
        for name in reversed(names):  # the two meet in the middle
            await storage.push("q", [name], NOON + HOUR, partition=name)

    await asyncio.gather(push(), storage.retain(NOON + HOUR, batch=2))
    found = list[str]()
    while popped := (await storage.pop("q", NOON + HOUR)).names:
        found += popped
    assert sorted(found) == names
    assert 0 < len([entry for entry in await storage.history() if entry[2] == "partition"]) < len(names)


# The archive.


async def test_messages_of_an_archived_queue_are_hidden_at_once_and_wait_for_the_archive(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, archiveEnabled=True)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "cd", NOON + DAY)
    await storage.consume("q", NOON + DAY, 1)
    await storage.execute("UPDATE queue_partitions SET removed = '{[1,2)}', evicted = '{[0,1)}'")
    await storage.retain(NOON + DAY)
    partition = "SELECT floor, purge_floor, removed::text, evicted::text FROM queue_partitions"
    assert await storage.rows(partition) == [(2, 0, "{[1,2)}", "{[0,1)}")]
    hidden = "SELECT position, hidden_at, consumed FROM queue_hidden ORDER BY position"
    assert await storage.rows(hidden) == [(2, NOON + DAY, 1)]
    assert await storage.consume("q", NOON + DAY) == "cd"
    await storage.retain(NOON + 2 * DAY)
    assert await storage.rows(partition) == [(4, 0, "{[1,2)}", "{[0,1)}")]
    assert await storage.rows(hidden) == [(2, NOON + DAY, 1), (4, NOON + 2 * DAY, 4)]


async def test_what_waited_a_week_for_the_archive_goes_with_a_warning(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, archiveEnabled=True)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "cd", NOON + DAY)
    await storage.retain(NOON + DAY)
    await storage.retain(NOON + 2 * DAY)
    with structlog.testing.capture_logs() as logs:
        await storage.retain(NOON + 8 * DAY - SECOND)
        assert [one for one in logs if one["log_level"] == "warning"] == []
        await storage.retain(NOON + 8 * DAY)
    (warning,) = [one for one in logs if one["log_level"] == "warning"]
    assert (warning["queue"], warning["partition"], warning["messages"]) == ("q", "Default", 2)
    assert await storage.rows("SELECT floor, purge_floor FROM queue_partitions") == [(4, 2)]
    await storage.retain(NOON + 9 * DAY)
    assert await storage.rows("SELECT floor, purge_floor FROM queue_partitions") == [(4, None)]
    assert await storage.rows("SELECT * FROM queue_hidden") == []


async def test_when_the_archive_is_switched_off_nothing_waits_for_it(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, archiveEnabled=True)
    await storage.push("q", "ab", NOON)
    await storage.retain(NOON + DAY)
    await storage.configure("q", archiveEnabled=False, retentionEnabled=False)
    await storage.retain(NOON + DAY)
    assert await storage.rows("SELECT floor, purge_floor FROM queue_partitions") == [(2, None)]


async def test_what_was_cleared_does_not_wait_for_the_archive(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, archiveEnabled=True)
    await storage.push("q", "ab", NOON)
    await storage.retain(NOON + HOUR)
    await storage.push("q", "cd", NOON + HOUR)
    await storage.execute("UPDATE queue_partitions SET floor = 4, floor_at = $1", NOON + HOUR)  # as clearing does
    await storage.retain(NOON + 2 * HOUR)
    waits = "SELECT floor, purge_floor FROM queue_partitions"
    assert await storage.rows(waits) == [(4, 0)]
    await storage.execute("UPDATE queue_partitions SET purge_floor = 2")  # as the archive does
    await storage.execute("DELETE FROM queue_hidden")
    await storage.retain(NOON + 2 * HOUR)
    assert await storage.rows(waits) == [(4, None)]


async def test_a_partition_that_waits_for_the_archive_is_not_deleted(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, partitionRetentionSeconds=60, archiveEnabled=True)
    await storage.push("q", "a", NOON, partition="p")
    await storage.retain(NOON + DAY)
    assert await partitions(storage) == {"Default", "p"}
    await storage.execute("UPDATE queue_partitions SET purge_floor = NULL")  # as the archive does
    await storage.retain(NOON + DAY)
    assert await partitions(storage) == {"Default"}


async def test_dead_letters_of_an_archived_queue_have_a_week_more(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, completedRetentionSeconds=60, archiveEnabled=True)
    await bury(storage, "q", "a", NOON)
    await storage.retain(NOON + 7 * DAY)
    assert await storage.value("SELECT count(*) FROM queue_dead_letters") == 1
    with structlog.testing.capture_logs() as logs:
        await storage.retain(NOON + 7 * DAY + MINUTE)
    assert await storage.value("SELECT count(*) FROM queue_dead_letters") == 0
    assert "warning" in [one["log_level"] for one in logs]


# Rounds.


async def test_a_round_takes_so_many_partitions_and_the_next_one_goes_on_there(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    for number in range(7):
        await storage.push("q", "a", NOON, partition=f"p{number}")
    removed = []
    for _ in range(3):
        more = await storage.retention(batch=3).run(NOON + HOUR)  # another process each time
        removed.append((more, len(await storage.history())))
    # Default is the first partition of the first round.
    assert removed == [(True, 2), (True, 5), (False, 7)]


async def test_a_floor_is_raised_in_steps(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    for name in "abcdefghij":
        await storage.push("q", name, NOON)
    assert await storage.retain(NOON + HOUR, most_messages=3) == 4
    assert [entry[3] for entry in await storage.history()] == [3, 3, 3, 1]


async def test_a_round_with_ten_thousand_partitions_is_bounded(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.configure("quiet")
    await connection.execute(
        """
        INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
        SELECT gen_random_uuid(), q.queue_no, 'p' || n, $1 FROM generate_series(1, 10000) AS n
        JOIN queues AS q ON q.name = CASE WHEN n % 4 = 0 THEN 'q' ELSE 'quiet' END
        """,
        NOON,
    )
    await connection.execute(
        """
        INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id, transaction_ids,
          ends, body)
        SELECT partition_no, 3, 3, $1, $1, gen_random_uuid(), '{a,b,c}', '{0,0,0}', ''
        FROM queue_partitions WHERE name <> 'Default'
        """,
        NOON,
    )
    raised = []
    for _ in range(3):
        await storage.retention().run(NOON + HOUR)
        raised.append(await connection.fetchval("SELECT count(*) FROM queue_partitions WHERE floor > 0"))
    # The Default partition of the queue is the first.
    assert raised == [999, 1999, 2500]
    await storage.retain(NOON + HOUR)
    assert await connection.fetchval("SELECT sum(count) FROM queue_retention_history") == 7500


async def test_a_round_stays_within_its_hours(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "a", NOON)
    day = NOON + DAY
    for hour, floor in ((11, 0), (5, 0), (3, 1)):
        await storage.retain(day.replace(hour=hour), window=(1, 5))
        assert await storage.floor("q") == floor


@pytest.mark.parametrize(
    ("window", "hours"),
    [(None, set(range(24))), ((1, 5), {1, 2, 3, 4}), ((22, 2), {22, 23, 0, 1}), ((0, 24), set(range(24)))],
)
def test_a_window_of_hours(window: tuple[int, int] | None, hours: set[int]) -> None:
    assert {hour for hour in range(24) if within(window, NOON.replace(hour=hour))} == hours


async def test_a_row_that_another_transaction_holds_is_left_for_the_next_time(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "cd", NOON, partition="p")
    async with connection.transaction():
        await connection.execute("UPDATE queue_partitions SET removed = '{[0,1)}' WHERE name = 'p'")
        await storage.retain(NOON + HOUR)
        assert (await storage.floor("q"), await storage.floor("q", "p")) == (2, 0)
    await storage.retain(NOON + HOUR)
    assert await storage.floor("q", "p") == 2
    assert ("q", "p", "retention", 1) in await storage.history()


# What is told.


async def test_what_is_removed_is_logged_and_counted(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    await storage.push("q", "abc", NOON)
    series = ("angelia_queue_retention_removed_total", {"kind": "retention"})
    before = REGISTRY.get_sample_value(*series) or 0
    with structlog.testing.capture_logs() as logs:
        await storage.retain(NOON + HOUR)
    (event,) = [one for one in logs if one["event"] == "retention.performed"]
    assert (event["queue"], event["partition"], event["kind"], event["count"]) == ("q", "Default", "retention", 3)
    assert event["ms"] > 0
    assert (REGISTRY.get_sample_value(*series) or 0) - before == 3


async def test_the_history_is_listed_newest_first_by_queue_and_time(storage: QueueStorage) -> None:
    for queue in ("one", "two"):
        await storage.configure(queue, **ON, retentionSeconds=60)
    for hours in range(3):
        for queue in ("one", "two"):
            await storage.push(queue, f"{hours}", NOON + hours * HOUR)
        await storage.retain(NOON + hours * HOUR + MINUTE)
    times = [entry.at for entry in await storage.entries("one")]
    assert times == [NOON + hours * HOUR + MINUTE for hours in (2, 1, 0)]
    assert [entry.at for entry in await storage.entries("one", limit=1, offset=1)] == times[1:2]
    assert len(await storage.entries()) == 6
    assert [entry.at for entry in await storage.entries("two", since=times[2], until=times[1])] == times[2:]
    assert await storage.entries("three") == []


async def test_cursors_forget_what_was_settled_before_the_floor(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60)
    names = [f"{number:03}" for number in range(200)]
    await storage.push("q", names, NOON)
    await storage.push("q", ["last", "next"], NOON + HOUR)
    popped = await storage.pop("q", NOON, 200)
    await popped.ack(NOON, names[1::2])
    size = "SELECT pg_column_size(settled) FROM queue_cursors ORDER BY version DESC LIMIT 1"
    assert await storage.value(size) > 512
    await storage.retain(NOON + HOUR)
    assert await storage.value(size) < 50
    assert await storage.value("SELECT count(*) FROM queue_cursors") == 1
    assert await storage.consume("q", NOON + HOUR, 1) == "last"
    assert await storage.consume("q", NOON + HOUR) == "next"


# Plans.

FILL = """
INSERT INTO queues (queue_id, name, namespace, task, created_at, options)
SELECT gen_random_uuid(), 'q' || n, '', '', $1, '{"retentionEnabled": true, "retentionSeconds": 60}'
FROM generate_series(1, 2000) AS n;
INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
SELECT gen_random_uuid(), queue_no, 'p' || n, $1 FROM queues, generate_series(1, 10) AS n;
INSERT INTO queue_groups (queue_no, name, mode, created_at)
SELECT queue_no, 'g' || n, 'all', $1 FROM queues, generate_series(1, 2) AS n;
INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id, transaction_ids, ends,
  body)
SELECT partition_no, n, 1, at, at, gen_random_uuid(), '{a}', '{0}', ''
FROM queue_partitions, generate_series(1, 3) AS n, LATERAL (SELECT $1::timestamptz + n * interval '1 minute') AS t (at);
INSERT INTO queue_cursors (partition_no, group_no, version, position, settled, passed, attempts, consumed, changed_at)
SELECT p.partition_no, g.group_no, 1, 2, '{[0,2)}', '{}', 0, 2, $1
FROM queue_partitions AS p JOIN queue_groups AS g USING (queue_no);
INSERT INTO queue_dead_letters (queue_no, partition_no, group_no, position, message_id, transaction_id, body, error,
  attempts, created_at, failed_at)
SELECT queue_no, partition_no, 1, 0, gen_random_uuid(), '', '', '', 0, $1, $1 FROM queue_partitions;
INSERT INTO queue_retention_history (at, queue_name, partition_no, partition_name, kind, count)
SELECT $1::timestamptz - n * interval '1 second', 'q' || n % 100, n, '', 'retention', 1
FROM generate_series(1, 20000) AS n;
INSERT INTO queue_hidden SELECT partition_no, 1, $1, 0 FROM queue_partitions
"""
# On connections that plan once, for any values.
PLANNED_ONCE = ("page", "raise_floors", "remove_letters", "idle")
ASKED: dict[str, list[object]] = {
    "large_cursors": [[7, 8], 100],
    "trim_cursors": [[7], [1]],
    "lock_partitions": [[7, 8]],
    "delete_idle": [[7, 8], NOON],
    "give_up_archive": [NOON - DAY, 100],
    "due_for_archive": [NOON - DAY],
    "history": ["q7", None, None, 100, 0],
}


@pytest.fixture
async def filled(storage: QueueStorage, connection: asyncpg.Connection) -> asyncpg.Connection:
    await storage.days().make_partitions(NOON)
    for statement in FILL.split(";"):
        await connection.execute(statement, NOON)
    await connection.execute("ANALYZE")
    return connection


async def test_no_statement_of_retention_reads_a_whole_table(filled: asyncpg.Connection) -> None:
    assert {*PLANNED_ONCE, *ASKED} == retention_store.SQL.keys()
    for name, values in ASKED.items():
        rows = await filled.fetch(f"EXPLAIN (COSTS OFF) {retention_store.SQL[name]}", *values)
        plan = "\n".join(row[0] for row in rows)
        # An empty table has one page, which is read whole whatever the index.
        whole = [line for line in plan.splitlines() if "Seq Scan" in line and "queue_chunks" not in line]
        assert not whole, f"{name}:\n{plan}"
    for name in PLANNED_ONCE:
        plan = await generic_plan(filled, retention_store.SQL[name])
        assert unbounded(plan) == [], f"{name}:\n{plan}"
    for statement in walks_store.SQL.values():
        assert await filled.prepare(statement)
