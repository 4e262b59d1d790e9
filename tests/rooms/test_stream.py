"""The stream of a room: everything that happens in it, once, in order, also over broken connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from http_agents import HOST, Server
from probe_edge import listening
from rooms_clients import GLOBAL, KEY, RoomClient
from sse_lines import Line


@pytest.fixture
async def server(start) -> Server:
    return await start(limits={"room_read": "off", "room_post": "off", "room_delete": "off"})


@pytest.fixture
async def follow(server: Server) -> AsyncIterator[Callable[..., Any]]:
    """`await follow(room)` gives the stream of a room, once the server listens for what comes next."""
    async with listening(server.application) as port, AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30))

        async def begin(room: str, query: str = "", **headers: str) -> Line:
            sent = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
            request = client.stream("GET", f"/v1/rooms/{room}/stream{query}", headers=sent)
            answer = await stack.enter_async_context(request)
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"] == "text/event-stream"
            line = Line(answer)
            line.began = (await line.block() or "").removeprefix("id: ")
            if not query and "last_event_id" not in headers:
                assert (await line.block() or "").startswith(":")
            return line

        yield begin
        server.application.stop_waiting()


async def test_messages_and_deletions_come_with_their_ids(follow, ann: RoomClient) -> None:
    await ann.post(GLOBAL, "before")
    line = await follow(GLOBAL)
    posted = await ann.post(GLOBAL, "hello")
    said = await line.next()
    (shown, _) = (await ann.read(GLOBAL))["messages"]
    assert (said.event, said.id, said.data) == ("message", posted["id"], shown)
    await ann.ask("DELETE", f"/room/{GLOBAL}/{posted['id']}")
    gone = await line.next()
    assert (gone.event, gone.data["id"]) == ("deleted", posted["id"])
    assert gone.id > posted["id"]


async def test_a_stream_goes_on_after_the_last_event_that_was_seen(follow, ann: RoomClient) -> None:
    first = await ann.post(GLOBAL, "one")
    second = await ann.post(GLOBAL, "two")
    await ann.ask("DELETE", f"/room/{GLOBAL}/{second['id']}")
    lines = [await follow(GLOBAL, last_event_id=first["id"]), await follow(GLOBAL, f"?after={first['id']}")]
    third = await ann.post(GLOBAL, "three")
    for line in lines:
        gone = await line.next()
        assert (gone.event, gone.data["id"]) == ("deleted", second["id"])
        assert (await line.next()).id == third["id"]


async def test_no_stream_has_a_gap_or_a_repeat_however_often_it_breaks_off(
    follow, ann: RoomClient, bob: RoomClient
) -> None:
    start_at = (await ann.post(GLOBAL, "start"))["id"]
    posted: list[str] = []

    async def write(client: RoomClient) -> None:
        for n in range(30):
            posted.append((await client.post(GLOBAL, f"m{n}"))["id"])

    writing = asyncio.gather(write(ann), write(bob))
    seen: list[str] = []
    while len(seen) < 60:
        line = await follow(GLOBAL, last_event_id=seen[-1] if seen else start_at)
        for _ in range(min(7, 60 - len(seen))):
            seen.append((await line.next()).id)
        await line.answer.aclose()
    await writing
    assert seen == sorted(posted)


async def test_a_stream_that_breaks_off_before_its_first_event_goes_on_from_where_it_began(
    follow, ann: RoomClient
) -> None:
    await ann.post(GLOBAL, "before")
    line = await follow(GLOBAL)
    await line.answer.aclose()
    missed = await ann.post(GLOBAL, "meanwhile")
    again = await follow(GLOBAL, last_event_id=line.began)
    assert (await again.next()).id == missed["id"]
    empty = await ann.create()
    assert (await follow(empty)).began == "0" * 26


async def test_every_reader_gets_every_message(follow, ann: RoomClient) -> None:
    lines = [await follow(GLOBAL) for _ in range(5)]
    posted = [(await ann.post(GLOBAL, f"m{n}"))["id"] for n in range(5)]
    for line in lines:
        assert [(await line.next()).id for _ in posted] == posted


async def test_a_private_room_is_followed_with_its_key(follow, server: Server, ann: RoomClient) -> None:
    room = await ann.create("den", KEY)
    for headers, status in (({}, 403), ({"x-aicq-room-key": "x" * 16}, 403)):
        assert (await server.get(f"/v1/rooms/{room}/stream", headers=headers)).status_code == status
    line = await follow(room, x_aicq_room_key=KEY)
    public = await follow(GLOBAL)
    await ann.post(room, "secret", x_aicq_room_key=KEY)
    await ann.post(GLOBAL, "open")
    assert (await line.next()).data["body"] == "secret"
    assert (await public.next()).data["body"] == "open"


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/v1/rooms/x/stream", {}, 400, "invalid_argument"),
        ("/v1/rooms/3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10/stream", {}, 404, "not_found"),
        (f"/v1/rooms/{GLOBAL}/stream", {"last-event-id": "nonsense"}, 400, "invalid_argument"),
        (f"/v1/rooms/{GLOBAL}/stream?after=nonsense", {}, 400, "invalid_argument"),
    ],
)
async def test_streams_that_cannot_begin(
    server: Server, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await server.get(path, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
