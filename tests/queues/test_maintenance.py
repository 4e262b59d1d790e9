"""Maintenance: pushes are kept and stored in their order before pushes are taken again; pops return nothing."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import asyncpg
import msgspec
import pytest

from angelia.queues import maintenance_modes, maintenance_store
from angelia.queues.dead_letters import LetterFilter
from angelia.queues.model import PushItem
from angelia.queues.slice import QueuesSlice
from angelia.stores.migrations import migrate
from queue_storage import someone_waits
from queues.conftest import Another
from queues.traffic import consume, pop, push, taken

BUFFERED = """
INSERT INTO queue_buffered (queue_name, partition_name, message_id, transaction_id, body, buffered_at, retry_at)
VALUES ($1, $2, gen_random_uuid(), gen_random_uuid()::text, $3, $4, $4)
"""


async def test_pushes_are_buffered_and_stored_when_maintenance_ends(queues: QueuesSlice, now: datetime) -> None:
    state = await queues.maintenance.pause_pushes(now)
    assert (state.modes.push_paused, state.buffered.pending) == (True, 0)
    assert [one.status for one in await push(queues, "orders", now, 1, 2, 3)] == ["buffered"] * 3
    assert await taken(queues, "orders", now) == []
    assert (await queues.maintenance.state()).buffered.pending == 3
    assert await queues.maintenance.flush(now) is False, "the tick leaves them where they are"
    assert (await queues.maintenance.state()).buffered.pending == 3
    state = await queues.maintenance.resume_pushes(now)
    assert (state.modes.push_paused, state.buffered.pending) == (False, 0)
    assert await consume(queues, "orders", now) == [1, 2, 3]
    assert [one.status for one in await push(queues, "orders", now, 4)] == ["queued"]


async def test_maintenance_is_seen_by_every_process(queues: QueuesSlice, another: Another, now: datetime) -> None:
    other = await another()
    await push(other, "orders", now, 1)
    await queues.maintenance.pause_pushes(now)
    assert [one.status for one in await push(other, "orders", now, 2)] == ["buffered"]
    await queues.maintenance.resume_pushes(now)
    assert await consume(other, "orders", now) == [1, 2]


async def test_buffered_messages_come_before_those_that_are_pushed_after_maintenance(
    queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other = await another()
    await queues.maintenance.pause_pushes(now)
    for number in range(1_500):
        await push(queues, "orders", now, number)
    ending = asyncio.create_task(queues.maintenance.resume_pushes(now))
    number, queued = 1_500, 0
    while queued < 20:
        (sent,) = await push(other, "orders", now, number, ids=[f"late {number}"])
        number += 1
        assert (sent.status, queued > 0) in {("buffered", False), ("queued", False), ("queued", True)}
        queued += sent.status == "queued"
    await ending
    while await queues.maintenance.flush(now):
        pass
    delivered: list[int] = []
    while batch := await consume(queues, "orders", now, batch=1_000):
        delivered += batch
    assert delivered == list(range(number))


async def test_many_messages_are_stored_by_the_tick_when_the_request_has_no_more_time(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_modes, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(maintenance_modes, "_AT_ONCE", 10)
    await queues.maintenance.pause_pushes(now)
    await push(queues, "orders", now, *range(25))
    state = await queues.maintenance.resume_pushes(now)
    assert (state.modes.push_paused, state.modes.push_resuming, state.buffered.pending) == (False, True, 15)
    assert [one.status for one in await push(queues, "orders", now, 25)] == ["buffered"]
    assert [one.status for one in await push(queues, "others", now, 1)] == ["queued"]
    assert await queues.maintenance.flush(now) is True
    assert await queues.maintenance.flush(now) is False
    assert (await queues.maintenance.state()).modes.push_resuming is False
    assert await consume(queues, "orders", now) == list(range(26))


async def test_duplicates_are_found_when_buffered_messages_are_stored(queues: QueuesSlice, now: datetime) -> None:
    await push(queues, "orders", now, 0, ids=["a"])
    await queues.maintenance.pause_pushes(now)
    for ids in (["a", "b"], ["b", "c"], ["c", "a", "d"]):
        await push(queues, "orders", now, *ids, ids=ids)
    await queues.maintenance.resume_pushes(now)
    assert await consume(queues, "orders", now) == [0, "b", "c", "d"]
    assert (await queues.maintenance.state()).buffered.pending == 0


async def test_messages_for_a_full_queue_wait_in_the_buffer_and_hold_up_no_other(
    queues: QueuesSlice, now: datetime
) -> None:
    await queues.catalog.configure("small", now, {"maxSize": 2})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "small", now, 1, 2, 3, 4)
    await push(queues, "large", now, 1)
    state = await queues.maintenance.resume_pushes(now)
    assert (state.modes.push_paused, state.buffered.failed) == (False, 2)
    assert await consume(queues, "large", now) == [1]
    assert await consume(queues, "small", now) == [1, 2]
    await queues.maintenance.flush(now)
    assert (await queues.maintenance.state()).buffered.failed == 2, "they are tried again after a while"
    later = now + timedelta(minutes=1)
    await queues.maintenance.flush(later)
    assert await consume(queues, "small", later) == [3, 4]
    assert (await queues.maintenance.state()).buffered.failed == 0


async def test_pushes_stay_behind_the_buffered_messages_of_their_partition(
    queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other = await another()
    await queues.catalog.configure("small", now, {"maxSize": 1})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "small", now, "a", "b")
    state = await queues.maintenance.resume_pushes(now)
    assert (state.modes.push_paused, state.buffered.failed) == (False, 1)
    for process in (queues, other):
        assert [one.status for one in await push(process, "small", now, "later")] == ["buffered"]
        assert [one.status for one in await push(process, "orders", now, 1)] == ["queued"]
    delivered: list[str] = []
    for minute in range(4):
        at = now + timedelta(minutes=minute)
        await queues.maintenance.flush(at)
        delivered += await consume(queues, "small", at)
    assert delivered == ["a", "b", "later", "later"]
    assert [one.status for one in await push(other, "small", now, "last")] == ["queued"]


async def test_one_push_may_be_stored_in_one_partition_and_buffered_in_another(
    queues: QueuesSlice, now: datetime
) -> None:
    await queues.catalog.configure("small", now, {"maxSize": 1})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "small", now, 1, 2)
    await queues.maintenance.resume_pushes(now)
    places = [("orders", "Default"), ("small", "Default"), ("orders", "other"), ("small", "Default")]
    items = [PushItem(queue, partition, msgspec.Raw(b"3")) for queue, partition in places]
    results = await queues.pushes.push(items, None, now)
    assert [one.status for one in results] == ["queued", "buffered", "queued", "buffered"]
    assert await consume(queues, "orders", now, partitions=2) == [3, 3]


async def test_a_push_that_waits_for_its_partition_sees_what_was_buffered_meanwhile(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await push(queues, "orders", now, 0)
    async with connection.transaction():
        await connection.execute(
            "SELECT pg_advisory_xact_lock(queue_partition_lock(partition_no)) FROM queue_partitions"
        )
        later = asyncio.create_task(push(queues, "orders", now, 2))
        await someone_waits(connection)
        await connection.execute(BUFFERED, "orders", "Default", b"1", now)
        await connection.execute("UPDATE queue_modes SET push_paused = true, push_resuming = true")
    assert [one.status for one in await later] == ["buffered"]
    await queues.maintenance.flush(now)
    assert await consume(queues, "orders", now) == [0, 1, 2]


async def test_a_push_that_finds_maintenance_ended_is_stored(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await queues.maintenance.pause_pushes(now)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(queue_lock(0))")
        sent = asyncio.create_task(push(queues, "orders", now, 1))
        await someone_waits(connection)
        await connection.execute("UPDATE queue_modes SET push_paused = false")
    assert [one.status for one in await sent] == ["queued"]
    assert await consume(queues, "orders", now) == [1]


async def test_a_transaction_does_not_overtake_buffered_messages(queues: QueuesSlice, now: datetime) -> None:
    await queues.catalog.configure("small", now, {"maxSize": 1})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "small", now, 1, 2)
    await queues.maintenance.resume_pushes(now)
    assert await consume(queues, "small", now) == [1]
    outcome = await queues.transactions.run([PushItem("small", "Default", msgspec.Raw(b"3"))], [], None, now)
    assert not outcome.success
    await queues.maintenance.flush(now + timedelta(minutes=1))
    outcome = await queues.transactions.run([PushItem("orders", "Default", msgspec.Raw(b"3"))], [], None, now)
    assert outcome.success


async def test_processes_that_store_the_buffer_at_once_store_each_message_once_and_in_order(
    queues: QueuesSlice, another: Another, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_modes, "_AT_ONCE", 20)
    other = await another()
    partitions = ["a", "b", "c"]
    await queues.maintenance.pause_pushes(now)
    for partition in partitions:
        await push(queues, "orders", now, *range(50), partition=partition)

    async def push_on(partition: str) -> None:
        for number in range(50, 80):
            await push(other, "orders", now, number, partition=partition)

    async def flush(process: QueuesSlice) -> None:
        while await process.maintenance.flush(now):
            pass

    await asyncio.gather(queues.maintenance.resume_pushes(now), flush(other), *map(push_on, partitions))
    await flush(queues)
    for partition in partitions:
        assert await consume(queues, "orders", now, partition=partition) == list(range(80))


async def test_messages_that_a_full_queue_refuses_are_not_written_again(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    """A million of them could not be: statements end after 15 seconds."""
    await queues.catalog.configure("small", now, {"maxSize": 1})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "small", now, *range(50))
    rows = "SELECT message_no, ctid FROM queue_buffered ORDER BY message_no"
    before = await connection.fetch(rows)
    await queues.maintenance.resume_pushes(now)
    await queues.maintenance.flush(now + timedelta(minutes=1))
    assert (await queues.maintenance.state()).buffered.failed == 49
    assert await connection.fetch(rows) == before[1:]


@pytest.mark.parametrize("name", ["first_messages", "hold_back"])
async def test_messages_of_a_partition_are_found_without_reading_those_of_others(
    now: datetime, connection: asyncpg.Connection, name: str
) -> None:
    await connection.execute(
        """INSERT INTO queue_buffered (queue_name, partition_name, message_id, transaction_id, body, buffered_at,
             retry_at)
           SELECT 'large', 'Default', gen_random_uuid(), n::text, '1', $1, $1 FROM generate_series(1, 20000) AS n""",
        now,
    )
    await connection.execute("ANALYZE queue_buffered")
    await connection.execute(BUFFERED, "small", "Default", b"1", now)
    values = {"first_messages": [1_000, 1_000_000], "hold_back": [[now], [None]]}[name]
    plan = await connection.fetch(f"EXPLAIN {maintenance_store.SQL[name]}", ["small"], ["Default"], *values)
    scans = [line for (line,) in plan if "on queue_buffered b" in line]
    assert scans
    assert all("using idx_queue_buffered_partition" in line for line in scans)


async def test_a_partition_whose_buffered_messages_were_erased_takes_pushes_again(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await queues.catalog.configure("small", now, {"maxSize": 1})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "small", now, 1, 2)
    await queues.maintenance.resume_pushes(now)
    await connection.execute("DELETE FROM queue_buffered")
    assert await consume(queues, "small", now) == [1]
    later = now + timedelta(minutes=1)
    assert await queues.maintenance.flush(later) is False
    assert [one.status for one in await push(queues, "small", later, 3)] == ["queued"]
    assert (await queues.maintenance.state()).modes.push_resuming is False


async def test_a_queue_without_a_key_holds_up_no_other(
    queues: QueuesSlice, another: Another, now: datetime, connection: asyncpg.Connection
) -> None:
    await queues.catalog.configure("secrets", now, {"encryptionEnabled": True})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "secrets", now, "secret 1")
    await push(queues, "orders", now, 1)
    await push(queues, "become secret", now, "secret 2")
    await queues.catalog.configure("become secret", now, {"encryptionEnabled": True})
    await connection.execute("UPDATE data_keys SET wrapped_key = '\\x00'")
    restarted = await another()
    state = await restarted.maintenance.resume_pushes(now)
    assert (state.modes.push_paused, state.buffered.pending, state.buffered.failed) == (False, 0, 1)
    assert [one.status for one in await push(restarted, "orders", now, 2)] == ["queued"]
    assert await consume(restarted, "orders", now) == [1, 2]
    # The process that still has the key reads what was encrypted in the buffer, and stores what was not.
    assert await consume(queues, "secrets", now) == ["secret 1"]
    later = now + timedelta(minutes=1)
    await queues.maintenance.flush(later)
    assert await consume(queues, "become secret", later) == ["secret 2"]


async def test_a_buffered_message_that_cannot_be_decrypted_becomes_a_dead_letter_and_those_behind_it_are_delivered(
    queues: QueuesSlice, another: Another, now: datetime, connection: asyncpg.Connection
) -> None:
    await queues.catalog.configure("secrets", now, {"encryptionEnabled": True})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "secrets", now, "lost 1", "lost 2", ids=["lost 1", "lost 2"])
    key_id = await connection.fetchval("SELECT DISTINCT key_id FROM queue_buffered")
    await connection.execute("DELETE FROM data_keys")
    restarted = await another()
    await push(restarted, "secrets", now, "readable")
    state = await restarted.maintenance.resume_pushes(now)
    assert (state.buffered.pending, state.buffered.failed) == (0, 0)
    assert await consume(restarted, "secrets", now) == ["readable"]
    found, _ = await restarted.letters.page(LetterFilter(), 100, 0)
    assert {one.transaction_id for one in found} == {"lost 1", "lost 2"}
    assert all(str(key_id) in one.error_message for one in found)
    # As soon as there is the key again, they can be read.
    shown, _ = await queues.letters.page(LetterFilter(), 100, 0)
    assert sorted(msgspec.json.decode(one.data) for one in shown) == ["lost 1", "lost 2"]


async def test_single_messages_of_an_encrypted_queue_keep_their_order_and_duplicates_are_found(
    queues: QueuesSlice, now: datetime
) -> None:
    await queues.catalog.configure("secrets", now, {"encryptionEnabled": True})
    await queues.maintenance.pause_pushes(now)
    for number in range(60):
        await push(queues, "secrets", now, number, ids=[f"{number}"])
    await push(queues, "secrets", now, 59, 60, 3, 61, ids=["59", "60", "3", "61"])
    await queues.catalog.configure("secrets", now, {"encryptionEnabled": False})
    await push(queues, "secrets", now, 62, ids=["62"])
    await queues.maintenance.resume_pushes(now)
    assert await consume(queues, "secrets", now) == list(range(63))


async def test_a_ledger_with_buffered_messages_is_migrated(empty_database: str, now: datetime) -> None:
    connection = await asyncpg.connect(empty_database)
    try:
        await migrate(connection, to=28)
        for queue in ("orders", "orders", "small"):
            await connection.execute(BUFFERED, queue, "Default", b"1", now)
        await connection.execute("UPDATE queue_buffered SET error = 'full' WHERE queue_name = 'small'")
        await migrate(connection, to=29)
        rows = await connection.fetch("SELECT queue_name, error FROM queue_buffered_partitions ORDER BY queue_name")
        assert [tuple(row) for row in rows] == [("orders", None), ("small", "full")]
        assert await connection.fetchval("SELECT push_paused AND push_resuming FROM queue_modes") is True
        # The release before this one writes only the messages.
        await connection.execute(BUFFERED, "late", "Default", b"1", now)
        assert await connection.fetchval("SELECT count(*) FROM queue_buffered_partitions") == 3
        await migrate(connection, to=28)
        assert await connection.fetchval("SELECT count(*) FROM queue_buffered") == 4
    finally:
        await connection.close()


async def test_messages_of_an_encrypted_queue_are_encrypted_in_the_buffer(
    queues: QueuesSlice, another: Another, now: datetime, connection: asyncpg.Connection
) -> None:
    other = await another()
    await push(other, "orders", now, "plain")
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "orders", now, "secret 1", "secret 2")
    await push(other, "orders", now, "secret 3")
    rows = await connection.fetch("SELECT key_id, body FROM queue_buffered")
    assert len(rows) == 3
    assert all(row["key_id"] is not None and b"secret" not in row["body"] for row in rows)
    await queues.maintenance.resume_pushes(now)
    assert await consume(queues, "orders", now) == ["plain", "secret 1", "secret 2", "secret 3"]
    assert not any(b"secret" in row["body"] for row in await connection.fetch("SELECT body FROM queue_chunks"))


async def test_messages_that_were_buffered_plain_are_stored_encrypted_if_the_queue_is_by_then(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await queues.maintenance.pause_pushes(now)
    await push(queues, "orders", now, "secret")
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    await queues.maintenance.resume_pushes(now)
    assert b"secret" not in await connection.fetchval("SELECT body FROM queue_chunks")
    assert await consume(queues, "orders", now) == ["secret"]


async def test_a_deleted_queue_takes_its_buffered_messages_along(queues: QueuesSlice, now: datetime) -> None:
    await queues.maintenance.pause_pushes(now)
    await push(queues, "orders", now, 1)
    await queues.groups.delete_queue("orders", now)
    assert (await queues.maintenance.resume_pushes(now)).buffered.pending == 0
    assert await taken(queues, "orders", now) == []


async def test_a_queue_that_is_deleted_with_the_last_buffered_messages_ends_the_buffering(
    queues: QueuesSlice, now: datetime
) -> None:
    await queues.catalog.configure("small", now, {"maxSize": 1})
    await queues.maintenance.pause_pushes(now)
    await push(queues, "small", now, 1, 2)
    assert (await queues.maintenance.resume_pushes(now)).modes.push_resuming is True
    await queues.groups.delete_queue("small", now)
    assert [one.status for one in await push(queues, "small", now, 3)] == ["queued"]
    await queues.maintenance.flush(now)
    assert (await queues.maintenance.state()).modes.push_resuming is False


async def test_a_large_push_is_buffered_and_stored_whole(queues: QueuesSlice, now: datetime) -> None:
    await queues.maintenance.pause_pushes(now)
    await push(queues, "orders", now, *["x" * 3_000_000] * 5)
    await push(queues, "orders", now, *range(2_500))
    await queues.maintenance.resume_pushes(now)
    assert [len(one) for one in await consume(queues, "orders", now, batch=5)] == [3_000_000] * 5
    assert await consume(queues, "orders", now, batch=3_000) == list(range(2_500))


async def test_pops_return_nothing_while_they_are_paused(queues: QueuesSlice, another: Another, now: datetime) -> None:
    other = await another()
    await push(queues, "orders", now, 1)
    assert (await queues.maintenance.pause_pops(now)).modes.pop_paused is True
    assert await pop(queues, "orders", now) is None
    assert await pop(other, "orders", now) is None
    assert (await queues.maintenance.resume_pops(now)).modes.pop_paused is False
    assert await taken(other, "orders", now) == [1]


async def test_each_change_of_a_mode_is_recorded_once(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    for _ in range(2):
        await queues.maintenance.pause_pushes(now, by="alice")
        await queues.maintenance.pause_pops(now, by="alice")
    for _ in range(2):
        await queues.maintenance.resume_pushes(now, by="alice")
        await queues.maintenance.resume_pops(now, by="alice")
    rows = await connection.fetch("SELECT event_type, actor_nhi FROM audit_events ORDER BY event_type")
    assert [(row["event_type"], row["actor_nhi"]) for row in rows] == [
        ("queue_pops_paused", "alice"),
        ("queue_pops_resumed", "alice"),
        ("queue_pushes_paused", "alice"),
        ("queue_pushes_resumed", "alice"),
    ]
