"""Pages by time: complete, in order, once, whatever others do meanwhile."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from uuid import UUID, uuid4

from angelia.rooms import store
from angelia.rooms.model import GLOBAL, NewMessage
from angelia.stores.ledger import Ledger
from http_agents import Server
from rooms_clients import RoomClient

COUNT = 10_000
UNLIMITED = {"room_read": "off", "room_post": "off", "room_delete": "off"}


def messages(author: UUID, at_ms: int, count: int) -> list[NewMessage]:
    return [
        NewMessage(
            room_id=GLOBAL, at_ms=at_ms, noise=os.urandom(10), author=author, body=f"old {n}", words=[], proof=None
        )
        for n in range(count)
    ]


async def test_two_posts_in_one_millisecond_are_both_reachable(ledger: Ledger) -> None:
    at = int(datetime.now(UTC).timestamp() * 1000)
    async with ledger.statement() as tx:
        first, second = await store.post(tx, messages(uuid4(), at, 2))
        assert (first, second) == (at, at + 1)
        assert await store.post(tx, messages(uuid4(), at - 1000, 1)) == [at + 2], (
            "a clock that goes back changes nothing"
        )
        newest = await store.page(tx, GLOBAL, at, 1 << 62, 1)
        rest = await store.page(tx, GLOBAL, at, newest[0].ts, 10)
    assert [one.ts for one in newest + rest] == [at + 2, at + 1, at]
    assert [one.id.ts for one in rest] == [at + 1, at], "the id has the same time"


async def test_ten_thousand_messages_are_paged_back_while_others_post_and_delete(start, ledger: Ledger) -> None:
    server: Server = await start(limits=UNLIMITED)
    ann, bob = await RoomClient.registered(server), await RoomClient.registered(server)
    at = int(datetime.now(UTC).timestamp() * 1000) - 100_000
    async with ledger.statement() as tx:
        old = [ts for _ in range(COUNT // 100) for ts in await store.post(tx, messages(UUID(ann.id), at, 100))]
    assert len(set(old)) == COUNT
    reading = asyncio.create_task(_paged(ann))
    posted = deleted = 0
    while not reading.done():
        mine = await bob.post(GLOBAL, "new")
        posted += 1
        if posted % 3 == 0:
            assert (await bob.ask("DELETE", f"/room/{GLOBAL}/{mine['id']}")).status_code == 204
            deleted += 1
    read = await reading
    assert posted > 5
    assert deleted > 1
    times = [one["ts"] for one in read]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    assert [one["ts"] for one in read if one["body"] != "new"] == old[::-1]
    (room,) = (await server.get("/channels")).json()["channels"]
    assert room["message_count"] == COUNT + posted, "deletions take nothing from the count of what was posted"
    assert (await server.get(f"/v1/rooms/{GLOBAL}")).json()["deletions"] == deleted


async def _paged(reader: RoomClient) -> list[dict[str, object]]:
    read: list[dict[str, object]] = []
    query = "?limit=50"
    while True:
        page = await reader.read(GLOBAL, query)
        read += page["messages"]
        if not page["has_more"]:
            return read
        query = f"?limit=50&before={read[-1]['ts']}"


async def test_posts_at_once_by_two_processes_get_times_of_their_own(start) -> None:
    one, two = await start(limits=UNLIMITED), await start(limits=UNLIMITED)
    ann = await RoomClient.registered(one)
    bob = await RoomClient.registered(two)
    posted = await asyncio.gather(*(client.post(GLOBAL, f"m{n}") for n in range(50) for client in (ann, bob)))
    times = [one["ts"] for one in posted]
    assert len(set(times)) == 100
    page = (await ann.read(GLOBAL, "?limit=200"))["messages"]
    assert sorted(times, reverse=True) == [one["ts"] for one in page]
    assert (await one.get("/channels")).json()["channels"][0]["message_count"] == 100
