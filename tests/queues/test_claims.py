"""Pops beside faults, pauses and what changes under them."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from angelia.errors import Unavailable
from angelia.keys.master_key import KeyRefused
from angelia.queues.dead_letters_store import LetterFilter
from angelia.queues.model import PopRequest
from angelia.queues.slice import QueuesSlice
from queues.conftest import Another
from queues.traffic import consume, pop, push, settle, taken

QUEUE = "orders"


async def test_a_lease_is_given_back_if_its_messages_cannot_be_delivered(
    queues: QueuesSlice, another: Another, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queues.catalog.configure(QUEUE, now, {"encryptionEnabled": True})
    await push(queues, QUEUE, now, "secret")
    other = await another()

    async def away(key_id: UUID) -> object:
        raise Unavailable("the ledger is not reachable at the moment")

    with monkeypatch.context() as patch:
        patch.setattr(other.payloads, "opener", away)
        with pytest.raises(Unavailable):
            await pop(other, QUEUE, now)
    assert await taken(queues, QUEUE, now) == ["secret"]


async def test_a_key_that_is_refused_for_a_while_gives_up_no_message(
    queues: QueuesSlice, another: Another, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queues.catalog.configure(QUEUE, now, {"encryptionEnabled": True})
    await push(queues, QUEUE, now, 1, 2)
    other = await another()

    async def refused(key_id: UUID) -> object:
        raise KeyRefused("the master key is another one")

    with monkeypatch.context() as patch:
        patch.setattr(other.payloads, "opener", refused)
        with pytest.raises(KeyRefused):
            await pop(other, QUEUE, now)
        # Without a lease they count as delivered: they are kept as dead letters, and can be put back.
        assert await taken(other, QUEUE, now, "g", auto_ack=True) == []
    assert await taken(other, QUEUE, now) == [1, 2]
    assert await queues.letters.requeue(LetterFilter(group="g"), now) == 2
    assert await taken(other, QUEUE, now, "g") == [1, 2]


async def test_a_pop_that_waits_ends_when_pops_are_paused(
    queues: QueuesSlice, now: datetime, waits: asyncio.Queue[float]
) -> None:
    await push(queues, QUEUE, now, 1)
    assert await consume(queues, QUEUE, now) == [1]
    waiting = asyncio.create_task(queues.claims.pop(PopRequest(queue=QUEUE), now, 30))
    await waits.get()
    await queues.maintenance.pause_pops(now)
    await push(queues, QUEUE, now, 2)
    async with asyncio.timeout(10):
        assert await waiting is None
        assert await queues.claims.pop(PopRequest(queue=QUEUE), now, 30) is None, "also one that begins to wait then"


async def test_all_messages_are_new_to_a_group_that_popped_before_the_queue_was_there(
    queues: QueuesSlice, another: Another, now: datetime
) -> None:
    assert await pop(queues, QUEUE, now, "g", mode="new") is None
    await push(queues, QUEUE, now + timedelta(seconds=1), "first")
    later = now + timedelta(seconds=2)
    assert await taken(await another(), QUEUE, later, "g", mode="new") == ["first"], "in another process"
    assert await taken(queues, QUEUE, later, "h", mode="new") == [], "another group begins now"


async def test_groups_that_waited_in_vain_for_a_queue_are_forgotten(queues: QueuesSlice, now: datetime) -> None:
    assert await pop(queues, QUEUE, now, "g", mode="new") is None
    later = now + timedelta(days=91)
    await queues.upkeep.prune_history(later)
    await push(queues, QUEUE, later, "first")
    assert await taken(queues, QUEUE, later, "g", mode="new") == []


async def test_an_id_that_was_put_back_means_the_message_that_is_leased(queues: QueuesSlice, now: datetime) -> None:
    """A dead letter that is put back has the id of its original, which another group has leased."""
    await push(queues, QUEUE, now, "twice", ids=["twice"])
    await settle(queues, await pop(queues, QUEUE, now, "g"), now, "dlq")
    original = await pop(queues, QUEUE, now, "h")
    assert original is not None
    partition_id = original.messages[0].partition.partition_id
    await queues.letters.retry(partition_id, "twice", now)
    copy = await pop(queues, QUEUE, now, "g")
    await settle(queues, copy, now)
    await settle(queues, original, now)
    later = now + timedelta(hours=1)
    assert [await taken(queues, QUEUE, later, group) for group in ("g", "h")] == [[], []]


async def test_cursors_with_many_gaps_stay_small(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    """Every second message was deleted."""
    await push(queues, QUEUE, now, *range(2_400))
    await connection.execute(
        "UPDATE queue_partitions SET removed ="
        " (SELECT range_agg(int8range(n, n + 1)) FROM generate_series(0, 2398, 2) AS n)"
    )
    got = list[int]()
    while some := await taken(queues, QUEUE, now, auto_ack=True):
        got += some
    assert got == list(range(1, 2_400, 2))
    assert await connection.fetchval("SELECT max((SELECT count(*) FROM unnest(settled))) FROM queue_cursors") <= 1_001
