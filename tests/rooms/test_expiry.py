"""Each message expires on its own time: hidden at once, removed in the background, in small batches."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from angelia.rooms import dms_store, store, ticks
from angelia.rooms.dms import DirectMessages
from angelia.rooms.model import GLOBAL, NewDirectMessage, NewMessage
from angelia.rooms.ticks import RoomTicks
from angelia.stores.ledger import Ledger
from http_agents import Server
from rooms_clients import RoomClient

DAY_MS = 86_400_000
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
MIDNIGHT_MS = NOON_MS - DAY_MS // 2
AUTHOR = uuid4()


def message(at_ms: int, room: UUID = GLOBAL) -> NewMessage:
    return NewMessage(
        room_id=room, at_ms=at_ms, noise=os.urandom(10), author=AUTHOR, body=str(at_ms), words=[1, 2], proof=None
    )


@pytest.fixture
def sweeper(ledger: Ledger) -> RoomTicks:
    return RoomTicks(ledger, DirectMessages(ledger))


async def post(ledger: Ledger, *times: int) -> None:
    async with ledger.statement() as tx:
        assert await store.post(tx, [message(at) for at in times[:1]]) == list(times[:1])
        for at in times[1:]:
            assert await store.post(tx, [message(at)]) == [at]


async def page(ledger: Ledger, now_ms: int) -> list[int]:
    async with ledger.lookups() as tx:
        return [one.ts for one in await store.page(tx, GLOBAL, now_ms, 1 << 62, 100)]


async def kept(connection: asyncpg.Connection) -> list[int]:
    assert await connection.fetchval("SELECT count(*) FROM room_unpacked") == await connection.fetchval(
        "SELECT count(place) FROM room_entries"
    ), "what waits for the index goes with its message"
    return [row["ts"] for row in await connection.fetch("SELECT ts FROM room_entries ORDER BY ts")]


async def test_a_message_is_hidden_the_moment_it_expires(ledger: Ledger) -> None:
    await post(ledger, NOON_MS)
    assert await page(ledger, NOON_MS + DAY_MS - 1) == [NOON_MS]
    assert await page(ledger, NOON_MS + DAY_MS) == []


async def test_a_day_is_removed_when_all_of_it_has_expired(
    ledger: Ledger, sweeper: RoomTicks, connection: asyncpg.Connection
) -> None:
    first, last = MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS - 1
    await post(ledger, MIDNIGHT_MS - 1, first, last, last + 1)
    for passed, left in (
        (timedelta(), [MIDNIGHT_MS - 1, first, last, last + 1]),
        (timedelta(hours=12), [first, last, last + 1]),  # midnight: the day before yesterday has expired
        (timedelta(hours=35), [first, last, last + 1]),
        (timedelta(hours=36), [last + 1]),
        (timedelta(hours=60), []),
    ):
        await sweeper.sweep(NOON + passed)
        assert await kept(connection) == left, passed
    assert await connection.fetchval("SELECT sweep_at FROM rooms") is None, "there is nothing to look for"


async def test_where_less_than_a_day_is_kept_messages_go_as_they_expire(
    ledger: Ledger, sweeper: RoomTicks, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE rooms SET retention_seconds = 60")
    await post(ledger, NOON_MS, NOON_MS + 30_000)
    await sweeper.sweep(NOON + timedelta(seconds=59))
    assert await kept(connection) == [NOON_MS, NOON_MS + 30_000]
    await sweeper.sweep(NOON + timedelta(seconds=60))
    assert await kept(connection) == [NOON_MS + 30_000]
    await sweeper.sweep(NOON + timedelta(seconds=90))
    assert await kept(connection) == []


async def test_messages_of_an_archived_room_wait_a_week_and_go_with_a_warning(
    ledger: Ledger, sweeper: RoomTicks, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[dict[str, object]] = []
    monkeypatch.setattr(ticks.log, "warning", lambda _, **fields: warnings.append(fields))
    await connection.execute("UPDATE rooms SET archive = true")
    await post(ledger, NOON_MS, NOON_MS + 1)
    assert await page(ledger, NOON_MS + 2 * DAY_MS) == []
    await sweeper.sweep(NOON + timedelta(days=8) - timedelta(milliseconds=1))
    assert len(await kept(connection)) == 2
    assert warnings == []
    await sweeper.sweep(NOON + timedelta(days=8))
    assert await kept(connection) == [NOON_MS + 1]
    assert warnings == [{"room": str(GLOBAL), "messages": 1}]


async def test_a_sweep_takes_small_batches_of_each_room_until_nothing_is_left(
    ledger: Ledger, sweeper: RoomTicks, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "_ENTRIES_AT_ONCE", 10)
    await connection.execute(
        "INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)"
        " VALUES ($1, 'author', decode(repeat('00', 32), 'hex'), $1, '', '', true, $2)",
        AUTHOR,
        NOON,
    )
    async with ledger.transaction() as tx:
        rooms = [(await store.create(tx, uuid4(), "room", AUTHOR, NOON, None, None)).room_id for _ in range(3)]
        for room in rooms:
            await store.post(tx, [message(NOON_MS, room) for _ in range(25)])
    rounds, left = 0, [75]
    while await sweeper.sweep(NOON + timedelta(days=3)):
        rounds += 1
        left.append(len(await kept(connection)))
    assert left == [75, 45, 15]
    assert await kept(connection) == []


async def test_retention_that_was_shortened_counts_at_once(ann: RoomClient, server: Server) -> None:
    room = await ann.create()
    await ann.post(room, "hello")
    async with asyncpg_of(server) as connection:
        await connection.execute("UPDATE room_entries SET ts = ts - 120000")
    assert len((await ann.read(room))["messages"]) == 1
    changed = await server.send_signed(ann.agent, "PATCH", f"/v1/rooms/{room}", b'{"retention_seconds": 60}')
    assert changed.json()["retention_seconds"] == 60
    assert (await ann.read(room))["messages"] == []
    assert await ann.find("hello") == []


def asyncpg_of(server: Server):
    return asyncpg.create_pool(server.database_url, min_size=1, max_size=1)


async def test_direct_messages_expire_after_a_week(
    ledger: Ledger, sweeper: RoomTicks, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)"
        " VALUES ($1, 'author', decode(repeat('00', 32), 'hex'), $1, '', '', true, $2)",
        AUTHOR,
        NOON,
    )
    async with ledger.statement() as tx:
        for at in (NOON_MS, NOON_MS + 1):
            new = NewDirectMessage(
                recipient=AUTHOR, sender=AUTHOR, at_ms=at, noise=os.urandom(10), body="x", proof=None
            )
            await dms_store.make_inbox(tx, AUTHOR)
            assert await dms_store.send(tx, [new]) == [at]
        week = NOON_MS + 7 * DAY_MS
        assert len(await dms_store.inbox(tx, AUTHOR, 1 << 62, week - 1 - 7 * DAY_MS, 10)) == 2
        assert len(await dms_store.inbox(tx, AUTHOR, 1 << 62, week - 7 * DAY_MS, 10)) == 1
    await sweeper.expire_dms(NOON + timedelta(days=7))
    assert await connection.fetchval("SELECT array_agg(ts) FROM dms") == [NOON_MS + 1]
    assert await connection.fetchval("SELECT held FROM dm_inboxes") == 1
