"""Consumer groups are moved and deleted, queues emptied and deleted; what was leased before ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from angelia.errors import NotFound, Unavailable
from angelia.queues import groups, groups_store
from angelia.queues.dead_letters import LetterFilter
from angelia.queues.slice import QueuesSlice
from angelia.queues.stamps import stamp
from angelia.stores.ledger import Tx
from queues.conftest import Another
from queues.traffic import consume, pop, push, settle, taken
from statement_plans import generic_plan, unbounded


async def hourly(queues: QueuesSlice, now: datetime, *partitions: str) -> list[datetime]:
    """Pushes 0, 1 and 2 to each partition, an hour apart. Returns the times."""
    times = [now - timedelta(hours=hours) for hours in (3, 2, 1)]
    for number, at in enumerate(times):
        for partition in partitions or ("Default",):
            await push(queues, "orders", at, number, partition=partition)
    return times


async def test_a_seek_to_a_time_replays_what_came_after_it(queues: QueuesSlice, now: datetime) -> None:
    times = await hourly(queues, now)
    assert await consume(queues, "orders", now, "g") == [0, 1, 2]
    moved = await queues.groups.seek("g", "orders", times[0], now)
    assert (moved.partitions, moved.again, moved.skipped) == (1, 2, 0)
    assert await consume(queues, "orders", now, "g") == [1, 2]
    await queues.groups.seek("g", "orders", times[0] - timedelta(days=1), now)
    assert await consume(queues, "orders", now, "g") == [0, 1, 2]


async def test_a_seek_to_the_end_skips_what_waits_and_counts_it(queues: QueuesSlice, now: datetime) -> None:
    await hourly(queues, now)
    assert (await queues.groups.count_seek("g", "orders", None)).skipped == 3
    moved = await queues.groups.seek("g", "orders", None, now)
    assert (moved.partitions, moved.again, moved.skipped, moved.position) == (1, 0, 3, 3)
    assert await taken(queues, "orders", now, "g") == []
    await push(queues, "orders", now, 3)
    assert await consume(queues, "orders", now, "g") == [3]


async def test_a_seek_counts_messages_in_all_partitions_also_those_never_read(
    queues: QueuesSlice, now: datetime
) -> None:
    await hourly(queues, now, "a", "b")
    assert await consume(queues, "orders", now, "g", partition="a") == [0, 1, 2]
    moved = await queues.groups.seek("g", "orders", now - timedelta(minutes=150), now)
    assert (moved.partitions, moved.again, moved.skipped) == (2, 2, 1)
    assert sorted(await consume(queues, "orders", now, "g", partitions=2)) == [1, 1, 2, 2]


async def test_a_seek_ends_leases_and_forgets_attempts(queues: QueuesSlice, now: datetime) -> None:
    await hourly(queues, now)
    first = await pop(queues, "orders", now, "g", batch=2)
    await settle(queues, first, now, "failed", most=1)
    later = now + timedelta(seconds=5)
    held = await pop(queues, "orders", later, "g", batch=2)
    await queues.groups.seek("g", "orders", now - timedelta(days=1), later)
    assert held is not None
    again = await pop(queues, "orders", later, "g")
    assert again is not None
    with pytest.raises(ValueError, match="Invalid or expired lease"):
        await settle(queues, held, later)
    listed = await queues.listings.queue("orders", later)
    assert listed.totals.failed == 0


async def test_a_seek_of_one_group_leaves_the_others_alone(queues: QueuesSlice, now: datetime) -> None:
    await hourly(queues, now)
    assert await consume(queues, "orders", now, "g") == [0, 1, 2]
    assert await consume(queues, "orders", now, "h") == [0, 1, 2]
    await queues.groups.seek("g", "orders", now - timedelta(days=1), now)
    assert await taken(queues, "orders", now, "h") == []


async def test_a_seek_in_another_process_is_seen_at_once(queues: QueuesSlice, another: Another, now: datetime) -> None:
    other = await another()
    await hourly(queues, now)
    assert await consume(other, "orders", now, "g") == [0, 1, 2]
    await queues.groups.seek("g", "orders", now - timedelta(days=1), now)
    assert await consume(other, "orders", now, "g") == [0, 1, 2]


async def test_a_group_that_no_consumer_has_used_begins_where_it_is_sought_to(
    queues: QueuesSlice, now: datetime
) -> None:
    times = await hourly(queues, now)
    await queues.groups.seek("g", "orders", times[1], now)
    assert await consume(queues, "orders", now, "g", mode="all") == [2]


async def test_a_seek_can_be_about_one_partition(queues: QueuesSlice, now: datetime) -> None:
    await hourly(queues, now, "a", "b")
    moved = await queues.groups.seek("g", "orders", None, now, partition="a")
    assert (moved.partitions, moved.skipped, moved.position) == (1, 3, 3)
    assert await taken(queues, "orders", now, "g", partition="a") == []
    assert await taken(queues, "orders", now, "g", partition="b") == [0, 1, 2]
    with pytest.raises(NotFound, match="Partition not found"):
        await queues.groups.seek("g", "orders", None, now, partition="c")


async def test_a_seek_needs_a_queue(queues: QueuesSlice, now: datetime) -> None:
    with pytest.raises(NotFound, match="Queue not found"):
        await queues.groups.seek("g", "orders", None, now)


async def test_more_partitions_than_one_transaction_takes_are_all_moved(queues: QueuesSlice, now: datetime) -> None:
    for number in range(450):
        await push(queues, "orders", now, number, partition=f"p{number}")
    moved = await queues.groups.seek("g", "orders", None, now)
    assert (moved.partitions, moved.skipped) == (450, 450)
    assert await taken(queues, "orders", now, "g", partitions=450) == []


async def test_a_deleted_group_starts_anew_and_takes_its_dead_letters_along(queues: QueuesSlice, now: datetime) -> None:
    await hourly(queues, now)
    delivery = await pop(queues, "orders", now, "g")
    await settle(queues, delivery, now, "dlq", most=1)
    deleted = await queues.groups.delete("g", None, now)
    assert (deleted.partitions, deleted.dead_letters) == (1, 1)
    assert await queues.listings.groups(now) == []
    assert await taken(queues, "orders", now, "g") == [0, 1, 2]


@pytest.fixture
async def two_groups(queues: QueuesSlice, now: datetime, connection: asyncpg.Connection) -> None:
    """The groups `g` and `h` of the queue `orders`, each with 25 dead letters."""
    await push(queues, "orders", now, 1)
    for group in ("g", "h"):
        await consume(queues, "orders", now, group)
    await connection.execute(
        """
        INSERT INTO queue_dead_letters (
          queue_no, partition_no, group_no, position, message_id, transaction_id, body, error, attempts, created_at,
          failed_at
        )
        SELECT p.queue_no, p.partition_no, g.group_no, n, gen_random_uuid(), n::text, '1', 'no', 0, $1, $1
        FROM queue_partitions AS p, queue_groups AS g, generate_series(1, 25) AS n
        """,
        now,
    )


@pytest.mark.usefixtures("two_groups")
async def test_many_dead_letters_of_a_deleted_group_are_removed_some_at_a_time(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_letters, counts = groups_store.delete_letters, []

    async def counted(*args: Any) -> Any:
        count, place = await delete_letters(*args)
        counts.append(count)
        return count, place

    monkeypatch.setattr(groups, "_LETTERS_AT_ONCE", 10)
    monkeypatch.setattr(groups_store, "delete_letters", counted)
    assert (await queues.groups.delete("g", None, now)).dead_letters == 25
    assert (sum(counts), max(counts) <= 10) == (25, True)
    found, total = await queues.letters.page(LetterFilter(), 1, 0)
    assert (total, found[0].consumer_group) == (25, "h")


@pytest.mark.usefixtures("two_groups")
async def test_a_group_whose_deletion_was_interrupted_can_be_deleted_again(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_letters, calls = groups_store.delete_letters, []

    async def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise Unavailable("the server was stopped")
        return await delete_letters(*args)

    monkeypatch.setattr(groups, "_LETTERS_AT_ONCE", 10)
    with monkeypatch.context() as patch:
        patch.setattr(groups_store, "delete_letters", interrupted)
        with pytest.raises(Unavailable):
            await queues.groups.delete("g", None, now)
    left = await queues.letters.count(LetterFilter(group="g"))
    assert 0 < left < 25
    assert (await queues.groups.delete("g", None, now)).dead_letters == left
    assert {one.name for one in await queues.listings.groups(now)} == {"h"}


async def test_a_group_is_deleted_of_one_queue_or_of_all(queues: QueuesSlice, now: datetime) -> None:
    for queue in ("a", "b", "c"):
        await push(queues, queue, now, queue)
        assert await consume(queues, queue, now, "g") == [queue]
    assert (await queues.groups.delete("g", "a", now)).partitions == 1
    assert {one.queue_name for one in await queues.listings.groups(now)} == {"b", "c"}
    assert (await queues.groups.delete("g", None, now)).partitions == 2
    assert (await queues.groups.delete("g", None, now)).partitions == 0
    assert await taken(queues, "b", now, "g") == ["b"]


async def test_a_deleted_group_starts_anew_in_another_process(
    queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other = await another()
    await push(queues, "orders", now, 1)
    assert await consume(other, "orders", now, "g") == [1]
    await queues.groups.delete("g", None, now)
    assert await consume(other, "orders", now, "g") == [1]


async def test_a_group_can_begin_again_where_it_began(queues: QueuesSlice, now: datetime) -> None:
    times = await hourly(queues, now)
    assert await consume(queues, "orders", now, "all") == [0, 1, 2]
    assert await consume(queues, "orders", now, "later", from_at=times[0]) == [1, 2]
    for group, expected in (("all", [0, 1, 2]), ("later", [1, 2])):
        assert (await queues.groups.restart(group, "orders", now)).partitions == 1
        assert await consume(queues, "orders", now, group) == expected


async def test_a_new_subscription_time_is_for_partitions_not_read_yet(queues: QueuesSlice, now: datetime) -> None:
    times = await hourly(queues, now, "a", "b")
    assert await consume(queues, "orders", now, "g", partition="a", batch=1) == [0]
    assert await queues.groups.set_subscription("g", times[1], now) == 1
    assert await consume(queues, "orders", now, "g", partition="a") == [1, 2]
    assert await consume(queues, "orders", now, "g", partition="b") == [2]
    (group,) = await queues.listings.groups(now)
    assert (group.subscription_mode, group.subscription_timestamp) == ("timestamp", stamp(times[1]))
    assert await queues.groups.set_subscription("nobody", times[1], now) == 0


async def test_a_cleared_partition_is_empty_for_every_group_and_keeps_its_dead_letters(
    queues: QueuesSlice, now: datetime
) -> None:
    await hourly(queues, now, "a", "b")
    delivery = await pop(queues, "orders", now, "g", partition="a")
    await settle(queues, delivery, now, "dlq", most=1)
    assert await queues.groups.clear("orders", "a", now) == 3
    assert await taken(queues, "orders", now, "g", partition="a") == []
    assert await taken(queues, "orders", now, "h", partition="a") == []
    assert await taken(queues, "orders", now, "h", partition="b") == [0, 1, 2]
    (a, b) = (await queues.listings.queue("orders", now)).partitions
    assert (a.stats.total, a.oldest_message, b.stats.total) == (0, None, 3)
    await push(queues, "orders", now, 3, partition="a")
    assert await consume(queues, "orders", now, "g", partition="a") == [3]
    assert await queues.groups.clear("orders", None, now) == 4


async def test_a_queue_with_many_consumer_groups_is_cleared_without_many_locks(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has room for some thousand locks of all transactions together."""
    for number in range(30):
        await push(queues, "orders", now, 1, partition=f"p{number}")
    await connection.execute(
        """
        INSERT INTO queue_groups (queue_no, name, mode, created_at)
        SELECT queue_no, 'group ' || n, 'all', $1 FROM queues, generate_series(1, 100) AS n
        """,
        now,
    )
    await connection.execute(
        """
        INSERT INTO queue_cursors (
          partition_no, group_no, version, position, settled, passed, attempts, lease_id, lease_end, lease_until,
          consumed, changed_at
        )
        SELECT p.partition_no, g.group_no, 1, 0, '{}', '{}', 0, gen_random_uuid(), 1,
          $1::timestamptz + interval '5 minutes', 0, $1
        FROM queue_partitions AS p, queue_groups AS g
        """,
        now,
    )
    held = []

    def counted(name: str) -> None:
        lock = getattr(groups_store, name)

        async def locked(tx: Tx, *args: Any) -> None:
            await lock(tx, *args)
            mine = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            held.append(await tx.fetchval(mine))

        monkeypatch.setattr(groups_store, name, locked)

    counted("lock_cursors")
    counted("lock_partitions")
    assert await queues.groups.clear("orders", None, now) == 30
    assert 0 < max(held) <= 2_000
    assert await connection.fetchval("SELECT count(*) FROM queue_cursors WHERE lease_id IS NOT NULL") == 0
    await push(queues, "orders", now, 2, partition="p7")
    assert await consume(queues, "orders", now, "group 100") == [2]


async def test_a_message_that_is_pushed_while_its_queue_is_cleared_is_delivered(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hourly(queues, now)
    await pop(queues, "orders", now, "g")
    behind_floor = groups_store.behind_floor

    async def pushed_before(tx: Tx, *args: Any) -> Any:
        monkeypatch.undo()
        await push(queues, "orders", now, 3)
        return await behind_floor(tx, *args)

    monkeypatch.setattr(groups_store, "behind_floor", pushed_before)
    assert await queues.groups.clear("orders", None, now) == 3
    assert await consume(queues, "orders", now, "g") == [3]
    assert await consume(queues, "orders", now, "h") == [3]


async def test_a_transaction_id_is_free_again_after_its_message_was_cleared(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 1, ids=["a"])
    assert (await push(queues, "orders", now, 1, ids=["a"]))[0].status == "duplicate"
    await queues.groups.clear("orders", None, now)
    assert (await push(queues, "orders", now, 2, ids=["a"]))[0].status == "queued"
    assert await taken(queues, "orders", now) == [2]


async def test_a_deleted_queue_is_gone_and_a_new_one_of_its_name_inherits_nothing(
    queues: QueuesSlice, another: Another, now: datetime, connection: asyncpg.Connection
) -> None:
    other = await another()
    await hourly(queues, now, "a", "b")
    await settle(queues, await pop(queues, "orders", now, "g", partition="a"), now, "dlq")
    await consume(other, "orders", now, "late", mode="new")
    assert await queues.groups.delete_queue("orders", now) is True
    assert await queues.groups.delete_queue("orders", now) is False
    with pytest.raises(NotFound, match="Queue not found"):
        await queues.listings.queue("orders", now)
    assert await taken(other, "orders", now, "g") == []
    await push(other, "orders", now, 9, partition="a")
    assert await consume(queues, "orders", now, "late") == [9]
    (only,) = (await queues.listings.queue("orders", now)).partitions
    assert (only.name, only.stats.total, only.stats.dead_letter) == ("a", 1, 0)
    assert await connection.fetchval("SELECT count(*) FROM queue_leavings") == 2


@pytest.mark.parametrize("name", ["delete_letters", "behind_floor", "move_to_floor"])
async def test_what_is_done_batch_by_batch_reads_no_whole_table(connection: asyncpg.Connection, name: str) -> None:
    plan = await generic_plan(connection, groups_store.SQL[name])
    assert unbounded(plan) == [], plan


async def test_what_operators_do_is_recorded(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await push(queues, "orders", now, 1)
    await consume(queues, "orders", now, "g")
    await queues.groups.seek("g", "orders", None, now, by="alice")
    await queues.groups.set_subscription("g", now, now, by="alice")
    await queues.groups.restart("g", None, now, by="alice")
    await queues.groups.delete("g", None, now, by="alice")
    await queues.groups.clear("orders", None, now, by="alice")
    await queues.groups.delete_queue("orders", now, by="alice")
    rows = await connection.fetch("SELECT event_type, actor_nhi, object_nhi FROM audit_events ORDER BY xid, event_type")
    assert {(row["actor_nhi"], row["object_nhi"]) for row in rows} == {("alice", "orders")}
    assert {row["event_type"] for row in rows} == {
        "queue_group_moved",
        "queue_group_subscribed",
        "queue_group_restarted",
        "queue_group_deleted",
        "queue_cleared",
        "queue_deleted",
    }
