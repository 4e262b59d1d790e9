"""Rooms under 64 clients, beside the same work done with bare store calls; and a large room beside a small one.

The bare calls are those that a post or a read makes, over as many connections as a web process has: the script that
reserves bytes in Valkey and the statement that stores one message, or the statement that reads a page. They take no
HTTP request, verify no signature and count no rate limit, and each post is a transaction of its own."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from uuid import UUID, uuid4

import asyncpg
import msgspec
import redis.asyncio

from angelia.rooms import hot_store, store
from angelia.rooms.words import found_by
from angelia.runtime_file import Runtime
from angelia.stores.ledger import PLANNED_ONCE
from fleet import Line, Member, enroll
from harness import Result, compared, milliseconds, rate
from served import server

SECTIONS = ("posts", "reads", "pages")
CLIENTS, ROOMS, CONNECTIONS = 64, 16, 10
LIMITS = "room_post=off,room_read=off"
WORDS = [f"word{n}" for n in range(2_000)]
LARGE, SMALL = 100_000, 1_000


def main(*, quick: bool, only: Sequence[str] = SECTIONS) -> list[Result]:
    rounds = 3 if quick else 7
    results = []
    with server(workers=2, limits=LIMITS) as served:
        members = enroll(served.runtime, [f"agent-{n}" for n in range(CLIENTS)])
        if "posts" in only:
            results.append(_posts(served.runtime, members, rounds, 1_280 if quick else 6_400))
        if "reads" in only:
            results.append(_reads(served.runtime, rounds, 2_560 if quick else 12_800))
        if "pages" in only:
            results.append(_pages(served.runtime, rounds, 400 if quick else 2_000))
    return results


def _posts(runtime: Runtime, members: Sequence[Member], rounds: int, count: int) -> Result:
    rooms = asyncio.run(_rooms(runtime, ROOMS))
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(asyncio.run(_post_all(runtime, members, rooms, count)))
        bare.append(asyncio.run(_store_all(runtime, rooms, count)))
    return compared(f"posts, {CLIENTS} clients / bare store calls", ours, bare, rate, "higher is better")


def _reads(runtime: Runtime, rounds: int, count: int) -> Result:
    (room,) = asyncio.run(_rooms(runtime, 1))
    asyncio.run(_fill(runtime, room, SMALL))
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(asyncio.run(_read_all(runtime, room, count)))
        bare.append(asyncio.run(_select_all(runtime, room, count)))
    return compared(f"pages of 50, {CLIENTS} clients / bare store calls", ours, bare, rate, "higher is better")


def _pages(runtime: Runtime, rounds: int, count: int) -> Result:
    large, small = asyncio.run(_rooms(runtime, 2))
    asyncio.run(_fill(runtime, large, LARGE))
    asyncio.run(_fill(runtime, small, SMALL))
    of_large, of_small = [], []
    for _ in range(rounds):
        a, b = asyncio.run(_page_both(runtime, large, small, count))
        of_large.append(a)
        of_small.append(b)
    what = f"a page of a room of {LARGE:,} / of {SMALL:,}"
    return compared(what, of_large, of_small, milliseconds, "lower is better; medians, at random places")


async def _rooms(runtime: Runtime, count: int) -> list[UUID]:
    connection = await asyncpg.connect(runtime.database_url)
    made = [uuid4() for _ in range(count)]
    for room in made:
        await connection.execute(
            "INSERT INTO rooms (room_id, name, is_private, created_at, last_active)"
            " VALUES ($1, 'bench', false, now(), now())",
            room,
        )
    await connection.close()
    return made


async def _fill(runtime: Runtime, room: UUID, count: int) -> None:
    connection = await asyncpg.connect(runtime.database_url)
    first = time.time_ns() // 1_000_000 - 3_600_000
    rows = [(room, first + n, os.urandom(10), room, _text(n), uuid4().bytes if n % 3 else None) for n in range(count)]
    columns = ["room_id", "ts", "noise", "author", "body", "about"]
    await connection.copy_records_to_table("room_entries", records=rows, columns=columns)
    await connection.execute("VACUUM ANALYZE room_entries")
    await connection.close()


async def _post_all(runtime: Runtime, members: Sequence[Member], rooms: Sequence[UUID], count: int) -> float:
    requests = [
        [
            member.request(
                runtime.url,
                "POST",
                f"/room/{rooms[(n + number) % len(rooms)]}",
                msgspec.json.encode({"body": _text(number)}),
            )
            for number in range(count // len(members))
        ]
        for n, member in enumerate(members)
    ]
    return await _ask_all(runtime, requests, 201)


async def _read_all(runtime: Runtime, room: UUID, count: int) -> float:
    request = f"GET /room/{room}?limit=50 HTTP/1.1\r\nhost: {runtime.url.removeprefix('http://')}\r\n\r\n".encode()
    return await _ask_all(runtime, [[request] * (count // CLIENTS)] * CLIENTS, 200)


async def _ask_all(runtime: Runtime, requests: Sequence[Sequence[bytes]], wanted: int) -> float:
    lines = [await Line.open(runtime) for _ in requests]

    async def client(line: Line, mine: Sequence[bytes]) -> None:
        for request in mine:
            status, body = await line.ask(request)
            assert status == wanted, body

    began = time.perf_counter()
    await asyncio.gather(*(client(line, mine) for line, mine in zip(lines, requests, strict=True)))
    took = time.perf_counter() - began
    for line in lines:
        line.writer.close()
    return sum(map(len, requests)) / took


async def _store_all(runtime: Runtime, rooms: Sequence[UUID], count: int) -> float:
    pool = await _pool(runtime)
    hot = redis.asyncio.Redis.from_url(runtime.redis_url, max_connections=CONNECTIONS + CLIENTS)
    script = hot.register_script(hot_store._WINDOW.text)
    numbers = iter(range(count))

    async def client(agent: UUID) -> None:
        for number in numbers:
            room, text, now = rooms[number % len(rooms)], _text(number), time.time_ns() // 1_000_000
            await script([f"bench:{{{agent}}}"], [now, 1 << 30, 60_000, len(text), os.urandom(16)])
            words = found_by(text, room)
            values = ([room], [now], [os.urandom(10)], [agent], [text], [None], [0], [None])
            await pool.fetch(store.SQL["post"], *values, [1] * len(words), words)

    began = time.perf_counter()
    await asyncio.gather(*(client(uuid4()) for _ in range(CLIENTS)))
    took = time.perf_counter() - began
    await hot.aclose()
    await pool.close()
    return count / took


async def _select_all(runtime: Runtime, room: UUID, count: int) -> float:
    pool, now = await _pool(runtime), time.time_ns() // 1_000_000
    numbers = iter(range(count))

    async def client() -> None:
        for _ in numbers:
            assert len(await pool.fetch(store.SQL["page"], room, now, 1 << 62, 51)) == 51

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    took = time.perf_counter() - began
    await pool.close()
    return count / took


async def _page_both(runtime: Runtime, large: UUID, small: UUID, count: int) -> tuple[float, float]:
    """Reads pages of the two rooms in turn, each before a random message."""
    connection, line, chance = await asyncpg.connect(runtime.database_url), await Line.open(runtime), random.Random(5)
    host = runtime.url.removeprefix("http://")
    times: dict[UUID, list[float]] = {large: [], small: []}
    ranges = {
        room: await connection.fetchrow("SELECT min(ts), max(ts) FROM room_entries WHERE room_id = $1", room)
        for room in times
    }
    await connection.close()
    for _ in range(count):
        for room, (oldest, newest) in ranges.items():
            before = chance.randint(oldest + 60, newest)
            request = f"GET /room/{room}?limit=50&before={before} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
            began = time.perf_counter()
            status, body = await line.ask(request)
            times[room].append(time.perf_counter() - began)
            assert status == 200, body
            assert len(msgspec.json.decode(body)["messages"]) == 50
    line.writer.close()
    return statistics.median(times[large]), statistics.median(times[small])


async def _pool(runtime: Runtime) -> asyncpg.Pool:
    pool: asyncpg.Pool = await asyncpg.create_pool(
        runtime.database_url, min_size=CONNECTIONS, max_size=CONNECTIONS, init=_settings
    )
    return pool


async def _settings(connection: asyncpg.Connection) -> None:
    """As on the ledger's own connections, statements are planned once."""
    await connection.execute(f"SET jit = off; {PLANNED_ONCE}")


def _text(number: int) -> str:
    chance = random.Random(number)
    return " ".join(chance.choices(WORDS, k=12))
