"""Maintenance: pushes are kept and stored in their order before pushes are taken again; pops return nothing."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import asyncpg
import pytest

from angelia.errors import Unavailable
from angelia.queues import maintenance_modes
from angelia.queues.slice import QueuesSlice
from queues.conftest import Another
from queues.traffic import consume, pop, push, taken


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
    number = 1_500
    while True:
        try:
            (sent,) = await push(other, "orders", now, number, ids=[f"late {number}"])
        except Unavailable:  # maintenance ended between the push and the buffer
            continue
        number += 1
        if sent.status == "queued":
            break
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
    assert (state.modes.push_paused, state.modes.push_resuming, state.buffered.pending) == (True, True, 15)
    assert [one.status for one in await push(queues, "orders", now, 25)] == ["buffered"]
    assert await queues.maintenance.flush(now) is True
    assert await queues.maintenance.flush(now) is False
    assert (await queues.maintenance.state()).modes.push_paused is False
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
