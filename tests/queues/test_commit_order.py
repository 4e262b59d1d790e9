"""Pushes that begin in one order and commit in another: consumers get every message, in one order (§12.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec
import pytest

from angelia.queues.model import Ack, PopRequest, PushItem, PushResult
from angelia.queues.settlement import settle
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger
from queues.conftest import Another

SLOW = "slow producer"
HELD = 4711  # the lock at which a slow push stands still
QUEUE = "orders"
Pop = Callable[..., Awaitable[list[tuple[str, str]]]]


@pytest.fixture
async def gate(connection: asyncpg.Connection, queues: QueuesSlice, now: datetime) -> asyncpg.Connection:
    """Makes the pushes of the slow producer stop before their commit, as long as another session holds a lock."""
    await queues.pushes.push([PushItem(queue=QUEUE, partition=name) for name in ("one", "two")], None, now)
    await queues.claims.pop(PopRequest(queue=QUEUE, partitions=2, batch=2, auto_ack=True), now)
    await connection.execute(
        "CREATE FUNCTION stand_still() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_advisory_xact_lock_shared({HELD}); RETURN NULL; END $$;"
        "CREATE TRIGGER stand_still AFTER INSERT ON queue_chunks FOR EACH ROW"
        f" WHEN (new.producer = '{SLOW}') EXECUTE FUNCTION stand_still()"
    )
    return connection


@asynccontextmanager
async def held_open(gate: asyncpg.Connection, push: Awaitable[list[PushResult]]) -> AsyncIterator[asyncio.Task[object]]:
    """A push of the slow producer whose transaction is open until the end of the block."""
    await gate.execute(f"SELECT pg_advisory_lock({HELD})")
    pushing = asyncio.ensure_future(push)
    try:
        await _waiting(gate, HELD)
        yield pushing  # type: ignore[misc]
    finally:
        await gate.execute(f"SELECT pg_advisory_unlock({HELD})")
    await pushing


async def _waiting(gate: asyncpg.Connection, key: int | None = None) -> None:
    """Returns when a session waits for an advisory lock: the named one, or any other than the gate's."""
    statement = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND "
    statement += f"objid = {key}" if key is not None else f"objid <> {HELD}"
    async with asyncio.timeout(10):
        while not await gate.fetchval(statement):  # noqa: ASYNC110 - PostgreSQL tells no one that a session waits
            await asyncio.sleep(0.01)


def item(name: str, partition: str = "one") -> PushItem:
    return PushItem(queue=QUEUE, partition=partition, transaction_id=name)


def consumer(queues: QueuesSlice, **how: object) -> Pop:
    """Takes and acknowledges what is there. Returns partition and id of each message."""

    async def pop(now: datetime) -> list[tuple[str, str]]:
        taken: list[tuple[str, str]] = []
        request = PopRequest(**{"queue": QUEUE, "batch": 10, "auto_ack": True, **how})  # type: ignore[arg-type]
        while delivery := await queues.claims.pop(request, now):
            taken += [(one.partition.name, one.transaction_id) for one in delivery.messages]
        return taken

    return pop


async def test_a_push_that_commits_after_a_later_one_is_delivered(
    gate: asyncpg.Connection, queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other, pop = await another(), consumer(queues)
    async with held_open(gate, queues.pushes.push([item("first")], SLOW, now)):
        later = asyncio.create_task(other.pushes.push([item("second")], None, now + timedelta(seconds=1)))
        await _waiting(gate)
        seen = await pop(now + timedelta(seconds=2))
    await later
    seen += await pop(now + timedelta(seconds=3))
    assert seen == [("one", "first"), ("one", "second")]


async def test_an_open_push_does_not_hold_up_other_partitions(
    gate: asyncpg.Connection, queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other, pop = await another(), consumer(queues)
    async with held_open(gate, queues.pushes.push([item("first")], SLOW, now)):
        (answer,) = await other.pushes.push([item("second", "two")], None, now)
        assert answer.status == "queued"
        assert await pop(now) == [("two", "second")]
    assert await pop(now) == [("one", "first")]


async def test_an_open_push_holds_up_no_consumer_of_its_partition(
    gate: asyncpg.Connection, queues: QueuesSlice, another: Another, now: datetime
) -> None:
    await queues.pushes.push([item("before")], None, now)
    other = await another()
    async with held_open(gate, queues.pushes.push([item("open")], SLOW, now)):
        assert await consumer(other, partition="one")(now) == [("one", "before")]
    assert await consumer(other, partition="one")(now) == [("one", "open")]


async def test_pushes_to_the_same_partitions_in_opposite_orders_all_commit(
    gate: asyncpg.Connection, queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other = await another()
    there = [item("a", "one"), item("b", "two")]
    async with held_open(gate, queues.pushes.push(there, SLOW, now)):
        back = asyncio.create_task(other.pushes.push([item("c", "two"), item("d", "one")], None, now))
        await _waiting(gate)
    assert [one.status for one in await back] == ["queued", "queued"]
    assert sorted(await consumer(queues, partitions=2)(now)) == [
        ("one", "a"),
        ("one", "d"),
        ("two", "b"),
        ("two", "c"),
    ]


async def test_a_repeated_push_waits_for_the_first_and_is_its_duplicate(
    gate: asyncpg.Connection, queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other = await another()
    first = asyncio.ensure_future(queues.pushes.push([item("same")], SLOW, now))
    async with held_open(gate, first):
        again = asyncio.create_task(other.pushes.push([item("same")], None, now))
        await _waiting(gate)
    (told,), (repeated,) = await first, await again
    assert (told.status, repeated.status) == ("queued", "duplicate")
    assert repeated.message_id == told.message_id
    assert await consumer(queues)(now) == [("one", "same")]


async def test_a_group_that_subscribes_to_new_messages_during_a_push_gets_all_that_are_acknowledged_later(
    gate: asyncpg.Connection, queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other = await another()
    async with held_open(gate, queues.pushes.push([item("open")], SLOW, now)):
        subscribed = asyncio.create_task(
            other.claims.pop(PopRequest(queue=QUEUE, group="news", mode="new", auto_ack=True), now)
        )
        await asyncio.wait([subscribed], timeout=1)  # it may wait for the push
    first = await subscribed
    await queues.pushes.push([item("later")], None, now)
    seen = [] if first is None else [(one.partition.name, one.transaction_id) for one in first.messages]
    seen += await consumer(other, group="news")(now)
    assert seen == [("one", "open"), ("one", "later")]


async def test_messages_of_many_concurrent_pushes_arrive_completely_and_each_producer_s_in_its_order(
    queues: QueuesSlice, another: Another, now: datetime
) -> None:
    sides, pop = (queues, await another()), consumer(queues, partitions=3)
    seen: list[tuple[str, str]] = []

    async def produce(producer: int) -> None:
        for number in range(30):
            sent = [item(f"{producer} {number} {part}", f"p{part % 3}") for part in range(4)]
            answers = await sides[number % 2].pushes.push(sent, None, now)
            assert {one.status for one in answers} == {"queued"}

    async def consume(done: asyncio.Event) -> None:
        while not done.is_set():
            seen.extend(await pop(now))
            await asyncio.sleep(0)

    done = asyncio.Event()
    consuming = asyncio.create_task(consume(done))
    await asyncio.gather(*(produce(producer) for producer in range(6)))
    done.set()
    await consuming
    seen += await pop(now)
    assert len(seen) == len(set(seen)) == 6 * 30 * 4
    for producer in range(6):
        for part in range(4):
            ours = [int(id_.split()[1]) for _, id_ in seen if id_.split()[0::2] == [str(producer), str(part)]]
            assert ours == list(range(30))


async def test_a_transaction_is_refused_if_its_required_lease_ends_before_it_commits(
    connection: asyncpg.Connection, queues: QueuesSlice, ledger: Ledger, another: Another, now: datetime
) -> None:
    """It has to wait for another settlement of its partition, which gives the lease back."""
    other = await another()
    await queues.pushes.push([item("work")], None, now)
    got = await queues.claims.pop(PopRequest(queue=QUEUE), now)
    assert got is not None
    (message,), lease = got.messages, UUID(got.lease_id)
    ack = Ack(transaction_id="work", partition_id=message.partition.partition_id)
    back = msgspec.structs.replace(ack, lease_id=lease, status="retry")
    parts = await queues.settlement.parts_of([back])
    async with ledger.transaction() as tx:
        rows = await settle(tx, parts, now)
        running = asyncio.create_task(other.transactions.run([ack, item("result", "two")], [lease], None, now))
        await _waiting(connection)
    outcome = await running
    assert outcome.error == "Invalid or expired lease"
    await queues.settlement.tell(parts, rows)
    assert sorted(await consumer(queues, partitions=2)(now)) == [("one", "work")]
