"""The index of words: whatever is packed, merged, late or gone, a search finds what is there, the newest first."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from angelia.rooms import store, word_index_store
from angelia.rooms.dms import DirectMessages
from angelia.rooms.model import GLOBAL, MessageId, NewMessage
from angelia.rooms.search import Search
from angelia.rooms.ticks import RoomTicks
from angelia.rooms.words import found_by, words
from angelia.stores.ledger import Ledger

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
AUTHOR = uuid4()


class Rooms:
    """Rooms with messages, and what a search over all of them by hand would find."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.search = Search(ledger)
        self.ticks = RoomTicks(ledger, DirectMessages(ledger))
        self.posted: list[tuple[int, UUID, bytes, str]] = []

    async def room(self, **columns: object) -> UUID:
        async with self.ledger.transaction() as tx:
            room = await store.create(tx, uuid4(), "room", AUTHOR, NOW, None, None)
            if columns:
                await store.change(tx, room.room_id, **columns)
        return room.room_id

    async def post(self, bodies: Sequence[str], room: UUID = GLOBAL, at_ms: int | None = None) -> None:
        at_ms = NOW_MS - 3_600_000 + len(self.posted) if at_ms is None else at_ms
        new = [
            NewMessage(
                room_id=room, at_ms=at_ms, noise=os.urandom(10), author=AUTHOR, body=body, words=found_by(body, room),
                proof=None,
            )
            for body in bodies
        ]  # fmt: skip
        async with self.ledger.statement() as tx:
            times = await store.post(tx, new)
        self.posted += [(ts, room, one.noise, one.body) for ts, one in zip(times, new, strict=True)]

    async def find(self, query: str, room: UUID | None = None, after: int = 0, limit: int = 100) -> list[str]:
        return [hit.body for hit in await self.search.find(query, room, after, limit, NOW)]

    def by_hand(self, query: str, room: UUID | None = None, after: int = 0, limit: int = 100) -> list[str]:
        wanted = set(words(query))
        found = [
            (ts, where, body)
            for ts, where, _, body in self.posted
            if wanted <= set(words(body)) and room in (None, where) and ts > after
        ]
        return [body for _, _, body in sorted(found, reverse=True)[:limit]]

    async def pack(self) -> int:
        """Packs until nothing waits. Returns how many parts there are."""
        while await self.ticks.pack_words(NOW):
            pass
        async with self.ledger.reading() as tx:
            return int(await tx.fetchval("SELECT count(*) FROM room_parts"))


@pytest.fixture
async def rooms(ledger: Ledger, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    """Parts of eight messages instead of a thousand."""
    monkeypatch.setattr(word_index_store, "PART_MESSAGES", 8)
    monkeypatch.setattr("angelia.rooms.ticks.PART_MESSAGES", 8)
    await connection.execute(
        "INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)"
        " VALUES ($1, 'author', decode(repeat('00', 32), 'hex'), $1, '', '', true, $2)",
        AUTHOR,
        NOW,
    )
    return Rooms(ledger)


async def test_a_search_finds_the_same_before_and_after_packing_and_merging(rooms: Rooms) -> None:
    chance = random.Random(5)
    vocabulary = [f"word{n}" for n in range(12)]
    other = await rooms.room()
    parts = []
    for _ in range(20):
        room = chance.choice((GLOBAL, other))
        await rooms.post([" ".join(chance.choices(vocabulary, k=3)) for _ in range(chance.randint(1, 40))], room)
        parts.append(await rooms.pack())
        for query in ("word1", "word2 word3", "word4 word5 word6", "word1 nothing"):
            after = chance.choice((0, rooms.posted[-30:][0][0]))
            for where in (None, other):
                for limit in (1, 7, 100):
                    assert await rooms.find(query, where, after, limit) == rooms.by_hand(query, where, after, limit)
    assert max(parts) < 20, "parts are merged"


async def test_a_place_that_is_empty_does_not_hide_older_messages(rooms: Rooms) -> None:
    await rooms.post([f"hello {n}" for n in range(40)])
    await rooms.pack()
    async with rooms.ledger.transaction() as tx:
        room = await store.room(tx, GLOBAL)
        assert room is not None
        for ts, _, noise, _ in rooms.posted[10:]:
            assert await store.delete(tx, room, MessageId(ts, noise), os.urandom(10), AUTHOR, NOW_MS)
    rooms.posted = rooms.posted[:10]
    assert await rooms.find("hello", limit=5) == ["hello 9", "hello 8", "hello 7", "hello 6", "hello 5"]
    assert await rooms.find("hello 20") == []


async def test_what_was_committed_after_its_neighbours_were_packed_is_found(
    rooms: Rooms, connection: asyncpg.Connection
) -> None:
    await rooms.post(["early bird"])
    late = await connection.fetchrow("DELETE FROM room_unpacked RETURNING *")
    await rooms.post([f"worm {n}" for n in range(16)])
    assert await rooms.pack() == 2
    await connection.execute("INSERT INTO room_unpacked VALUES ($1, $2, $3)", *late)
    await rooms.post([f"worm {n}" for n in range(8)])
    assert await rooms.find("bird") == ["early bird"]
    await rooms.pack()
    assert await connection.fetchval("SELECT count(*) FROM room_unpacked") == 0
    assert await rooms.find("bird") == ["early bird"]
    assert len(await rooms.find("worm")) == 24


async def test_a_block_is_one_part_when_the_next_one_begins(rooms: Rooms, connection: asyncpg.Connection) -> None:
    await connection.execute("SELECT setval('room_places_day', 65500)")
    await rooms.post([f"hello {n}" for n in range(60)])
    assert await rooms.pack() == 1 + 3
    assert await connection.fetchval("SELECT count(*) FROM room_parts WHERE first_place < 65536") == 1
    assert await rooms.find("hello") == [f"hello {n}" for n in range(59, -1, -1)]


async def test_messages_move_into_parts_while_they_are_searched(rooms: Rooms) -> None:
    await rooms.post([f"hello {n}" for n in range(200)])
    expected = rooms.by_hand("hello", limit=200)

    async def pack() -> None:
        while await rooms.ticks.pack_words(NOW):
            pass

    packing = asyncio.create_task(pack())
    searched = 0
    while not packing.done() or searched == 0:
        assert await rooms.find("hello", limit=200) == expected
        searched += 1
    await packing
    assert searched > 1


async def test_messages_are_found_as_long_as_their_room_keeps_them(
    rooms: Rooms, connection: asyncpg.Connection
) -> None:
    old, month = NOW_MS - 25 * 3_600_000, await rooms.room(retention_seconds=7 * 86_400, archive=None)
    await rooms.post([f"hello short {n}" for n in range(8)], at_ms=old)
    await rooms.post([f"hello long {n}" for n in range(8)], month, at_ms=old)
    assert await rooms.find("hello") == [f"hello long {n}" for n in range(7, -1, -1)], "hidden at once"
    await rooms.pack()
    assert await connection.fetchval("SELECT count(*) FROM room_parts") == 1
    assert await connection.fetchval("SELECT count(DISTINCT part) FROM room_words") == 1
    assert await rooms.find("hello") == [f"hello long {n}" for n in range(7, -1, -1)]
    assert await rooms.find("hello", limit=3) == ["hello long 7", "hello long 6", "hello long 5"]


async def test_classes_are_merged_by_time(rooms: Rooms) -> None:
    month, year = await rooms.room(retention_seconds=30 * 86_400, archive=None), await rooms.room(
        retention_seconds=31 * 86_400, archive=None
    )  # fmt: skip
    for n in range(30):
        await rooms.post([f"hello {n}"], (GLOBAL, month, year)[n % 3], NOW_MS - 3_600_000 + n)
    await rooms.pack()
    assert await rooms.find("hello", limit=10) == [f"hello {n}" for n in range(29, 19, -1)]


@pytest.mark.parametrize("part", [8, 1_000])
async def test_no_statement_of_a_search_looks_at_more_than_a_thousand_entries(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr("angelia.rooms.ticks.PART_MESSAGES", part)
    await rooms.post([f"hello {n}" for n in range(1_500)])
    await rooms.pack()
    asked: list[int] = []
    unpacked, packed = word_index_store.unpacked, word_index_store.packed

    async def count_unpacked(tx, hashes, before, after, most):
        asked.append(most)
        return await unpacked(tx, hashes, before, after, most)

    async def count_packed(tx, hashes, until, after, most):
        asked.append(most * len(hashes) * len(until))
        return await packed(tx, hashes, until, after, most)

    monkeypatch.setattr(word_index_store, "unpacked", count_unpacked)
    monkeypatch.setattr(word_index_store, "packed", count_packed)
    assert len(await rooms.find("hello nothing")) == 0
    assert len(await rooms.find("hello", limit=100)) == 100
    assert 0 < max(asked) <= 1_000


async def test_messages_of_one_moment_come_in_the_order_of_their_posts(rooms: Rooms) -> None:
    await rooms.post([f"hello {n}" for n in range(20)], at_ms=NOW_MS - 5)
    assert await rooms.find("hello", limit=20) == [f"hello {n}" for n in range(19, -1, -1)]


async def test_late_messages_are_merged_among_themselves(rooms: Rooms, connection: asyncpg.Connection) -> None:
    for n in range(20):
        await rooms.post([f"late {n}"])
        late = await connection.fetchrow(
            "DELETE FROM room_unpacked WHERE place = (SELECT max(place) FROM room_unpacked) RETURNING *"
        )
        await rooms.post([f"worm {n} {m}" for m in range(8)])
        await rooms.pack()
        await connection.execute("INSERT INTO room_unpacked VALUES ($1, $2, $3)", *late)
    await rooms.post([f"worm last {m}" for m in range(8)])
    await rooms.pack()
    assert await connection.fetchval("SELECT count(*) FROM room_parts WHERE level = -1") < 8
    assert sorted(await rooms.find("late")) == sorted(f"late {n}" for n in range(20))
    assert await rooms.find("late 17") == ["late 17"]
    assert len(await rooms.find("worm", limit=200)) == 168


async def test_a_late_message_hides_none_that_are_newer_and_is_hidden_by_none(
    rooms: Rooms, connection: asyncpg.Connection
) -> None:
    late = []
    for n in range(8):
        await rooms.post([f"word late {n}"])
        late.append(
            await connection.fetchrow(
                "DELETE FROM room_unpacked WHERE place = (SELECT max(place) FROM room_unpacked) RETURNING *"
            )
        )
        await rooms.post([f"word {n} {m}" for m in range(8)])
        await rooms.pack()
    for row in late:
        await connection.execute("INSERT INTO room_unpacked VALUES ($1, $2, $3)", *row)
        async with rooms.ledger.transaction() as tx:
            await word_index_store.pack(tx, 0)
    await rooms.pack()
    assert await connection.fetchval("SELECT count(*) FROM room_parts WHERE level = -1") == 1, "merged"
    for limit in (1, 5, 12, 40):
        assert await rooms.find("word", limit=limit) == rooms.by_hand("word", limit=limit)
    for after, *_ in rooms.posted[::5]:
        assert await rooms.find("word", after=after) == rooms.by_hand("word", after=after)


async def test_parts_with_very_many_words_are_small_and_are_not_merged(
    rooms: Rooms, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_index_store, "PART_WORDS", 50)
    monkeypatch.setattr(word_index_store, "_MERGED_WORDS", 200)
    await rooms.post([" ".join(f"w{n}x{m}" for m in range(20)) + " common" for n in range(64)])
    await rooms.pack()
    assert await connection.fetchval("SELECT max(words) FROM room_parts") <= 50
    assert await connection.fetchval("SELECT count(*) FROM room_parts WHERE level = 100") >= 24
    assert await connection.fetchval("SELECT count(*) FROM room_unpacked") < 8, "packing goes on"
    assert await rooms.find("w17x3") == rooms.by_hand("w17x3")
    assert await rooms.find("common") == rooms.by_hand("common")
    await rooms.post([" ".join(f"long{m}" for m in range(100))] * 8)
    await rooms.pack()
    assert len(await rooms.find("long99")) == 8, "a message with more words than a part has is a part of its own"


async def test_what_is_dropped_is_never_a_part_that_was_merged_with_it(
    rooms: Rooms, connection: asyncpg.Connection
) -> None:
    old = NOW_MS - 25 * 3_600_000
    await rooms.post([f"old {n}" for n in range(8)], at_ms=old)
    await rooms.post([f"hello {n}" for n in range(56)])
    await rooms.pack()
    assert len(await rooms.find("hello")) == 56
    assert await rooms.find("old") == []
    parts = await connection.fetch("SELECT DISTINCT part FROM room_words EXCEPT SELECT first_place FROM room_parts")
    assert parts == [], "no words are left behind"


async def test_what_was_imported_comes_after_what_was_posted(rooms: Rooms, connection: asyncpg.Connection) -> None:
    await rooms.post([f"hello {n}" for n in range(30)])
    await rooms.post([f"hello imported {n}" for n in range(30)])
    for table in ("room_unpacked", "room_entries"):
        await connection.execute(
            f"UPDATE {table} SET place = place + (3::bigint << 48), ts = ts - 7200000 WHERE place > 30"  # noqa: S608
        )
    await rooms.pack()
    assert await rooms.find("hello", limit=20) == [f"hello {n}" for n in range(29, 9, -1)]
    assert len(await rooms.find("imported", limit=100)) == 30


async def test_a_search_for_what_is_recent_reads_little_however_much_is_older(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rooms.post([f"alert {n}" for n in range(2_000)])
    await rooms.pack()
    read: list[int] = []
    messages = word_index_store.messages

    async def count(tx, places, now_ms):
        read.append(len(places))
        return await messages(tx, places, now_ms)

    monkeypatch.setattr(word_index_store, "messages", count)
    assert await rooms.find("alert", after=rooms.posted[-3][0], limit=20) == ["alert 1999", "alert 1998"]
    assert sum(read) <= 40
    assert await rooms.find("alert", after=rooms.posted[-1][0]) == []


async def test_many_searches_leave_connections_for_posts(rooms: Rooms) -> None:
    await rooms.post([f"alert {n}" for n in range(3_000)])
    await rooms.pack()
    searches = [asyncio.create_task(rooms.find("alert", limit=100)) for _ in range(20)]
    async with asyncio.timeout(4):
        await rooms.post(["hello"])
    assert {len(found) for found in await asyncio.gather(*searches)} == {100}
