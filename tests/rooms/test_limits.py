"""Limits, byte budget and blocks hold exactly, however many requests come at once and to however many processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from angelia.errors import RateLimited, Unavailable
from angelia.rooms import dms_store
from angelia.rooms.hot_store import HotRooms
from angelia.stores.valkey import HotTier
from http_agents import Server
from rooms_clients import GLOBAL, KEY, RoomClient

NO_MESSAGE = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
async def workers(start) -> tuple[Server, Server]:
    """Two processes on the same stores, as far as they know."""
    limits = {"unproven": "off"}
    return await start(limits=limits), await start(limits=limits)


class Doubled:
    """An agent whose requests go to two processes in turn."""

    def __init__(self, clients: list[RoomClient]) -> None:
        self.clients = clients

    @classmethod
    async def registered(cls, workers: tuple[Server, Server]) -> Doubled:
        first = await RoomClient.registered(workers[0])
        return cls([first, RoomClient(workers[1], first.agent)])

    async def at_once(self, count: int, method: str, path: str, document: object = None) -> Counter[int]:
        sent = (self.clients[n % 2].ask(method, path, document) for n in range(count))
        return Counter(answer.status_code for answer in await asyncio.gather(*sent))


@pytest.mark.parametrize(
    ("method", "path", "document", "limit", "status"),
    [
        ("POST", f"/room/{GLOBAL}", {"body": "x"}, 30, 201),
        ("DELETE", f"/room/{GLOBAL}/{NO_MESSAGE}", None, 30, 404),
        ("POST", "/dm/{own}", {"body": "x"}, 60, 201),
        ("GET", "/dm", None, 60, 200),
        ("POST", "/room", {"name": "lounge"}, 10, 201),
        ("GET", f"/room/{GLOBAL}", None, 120, 200),
        ("GET", "/find?q=x", None, 30, 200),
    ],
)
async def test_a_limit_is_exact_over_two_processes(
    workers: tuple[Server, Server], method: str, path: str, document: object, limit: int, status: int
) -> None:
    ann = await Doubled.registered(workers)
    answers = await ann.at_once(limit + 20, method, path.format(own=ann.clients[0].id), document)
    assert answers == {status: limit, 429: 20}


async def test_the_byte_budget_is_exact_over_two_processes(workers: tuple[Server, Server]) -> None:
    ann = await Doubled.registered(workers)
    answers = await ann.at_once(12, "POST", f"/room/{GLOBAL}", {"body": "x" * 4096})
    assert answers == {201: 8, 429: 4}
    assert len((await ann.clients[0].read(GLOBAL))["messages"]) == 8


async def test_bytes_of_posts_that_fail_are_given_back_also_at_once(workers: tuple[Server, Server]) -> None:
    ann = await Doubled.registered(workers)
    for _ in range(2):
        refused = await ann.at_once(7, "POST", f"/room/{GLOBAL}", {"body": "x" * 4096, "pid": NO_MESSAGE})
        assert refused == {422: 7}
    assert await ann.at_once(8, "POST", f"/room/{GLOBAL}", {"body": "x" * 4096}) == {201: 8}


async def test_one_agents_budget_is_not_anothers(workers: tuple[Server, Server]) -> None:
    ann, bob = await Doubled.registered(workers), await Doubled.registered(workers)
    await ann.at_once(8, "POST", f"/room/{GLOBAL}", {"body": "x" * 4096})
    assert await bob.at_once(1, "POST", f"/room/{GLOBAL}", {"body": "x" * 4096}) == {201: 1}


async def test_wrong_room_keys_sent_at_once_are_limited_exactly(workers: tuple[Server, Server]) -> None:
    ann = await Doubled.registered(workers)
    room = await ann.clients[0].create("den", KEY)
    sent = (
        workers[n % 2].get(f"/room/{room}", headers={"x-aicq-room-key": f"a wrong key number {n}"}) for n in range(16)
    )
    answers = Counter(answer.status_code for answer in await asyncio.gather(*sent))
    assert answers == {403: 10, 429: 6}


async def test_many_readers_with_the_right_key_are_no_guessers(workers: tuple[Server, Server]) -> None:
    ann = await Doubled.registered(workers)
    room = await ann.clients[0].create("den", KEY)
    sent = (workers[n % 2].get(f"/room/{room}", headers={"x-aicq-room-key": KEY}) for n in range(40))
    assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}


async def test_an_inbox_and_a_sender_in_it_are_capped_exactly(
    workers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dms_store, "MOST_HELD", 12)
    monkeypatch.setattr(dms_store, "MOST_OF_SENDER", 5)
    ann, bob, eve = [await Doubled.registered(workers) for _ in range(3)]
    path = f"/dm/{ann.clients[0].id}"
    assert await bob.at_once(9, "POST", path, {"body": "x"}) == {201: 5, 429: 4}
    assert await eve.at_once(4, "POST", path, {"body": "x"}) == {201: 4}
    both = await asyncio.gather(
        eve.at_once(5, "POST", path, {"body": "x"}), ann.at_once(5, "POST", path, {"body": "to myself"})
    )
    assert both[0] + both[1] == {201: 3, 429: 7}
    refused = await bob.clients[0].ask("POST", path, {"body": "x"})
    assert refused.json() == {"error": "the recipient's inbox is full"}
    assert int(refused.headers["retry-after"]) > 0
    held = (await ann.clients[0].ask("GET", "/dm")).json()["messages"]
    assert len(held) == 12
    mine = next(one for one in held if one["from"] == bob.clients[0].id)
    server = workers[0]
    assert (await server.send_signed(ann.clients[0].agent, "DELETE", f"/v1/dms/{mine['id']}")).status_code == 204
    assert await bob.at_once(3, "POST", path, {"body": "x"}) == {201: 1, 429: 2}, "what was removed makes room"


async def test_a_block_counts_for_every_message_after_it_on_all_processes(workers: tuple[Server, Server]) -> None:
    ann, bob = await Doubled.registered(workers), await Doubled.registered(workers)
    path = f"/dm/{bob.clients[0].id}"
    assert await ann.at_once(6, "POST", path, {"body": "x"}) == {201: 6}
    blocked = await workers[0].send_signed(bob.clients[0].agent, "PUT", f"/v1/blocks/{ann.clients[0].id}")
    assert blocked.status_code == 204
    assert await ann.at_once(10, "POST", path, {"body": "x"}) == {403: 10}
    assert len((await bob.clients[1].ask("GET", "/dm")).json()["messages"]) == 6


async def test_without_the_hot_tier_each_process_counts_for_itself(
    hot: HotTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(hot, "run", away)
    monkeypatch.setattr(hot, "remove_member", away)
    window, now = HotRooms(hot).bytes, datetime.now(UTC)
    reserved = [await window.reserve("ann", 4096, now) for _ in range(8)]
    with pytest.raises(RateLimited, match="byte rate limit") as refused:
        await window.reserve("ann", 1, now)
    assert refused.value.retry_after == 60
    await window.reserve("bob", 4096, now)
    await window.release("ann", reserved[-1])
    await window.reserve("ann", 4096, now)
    await window.reserve("ann", 4096, now + timedelta(minutes=1))


async def test_the_budget_slides_and_tells_when_it_is_free_again(hot: HotTier) -> None:
    window, now = HotRooms(hot).bytes, datetime.now(UTC)
    for second in (0, 20, 40):
        await window.reserve("ann", 10_000, now + timedelta(seconds=second))
    with pytest.raises(RateLimited) as refused:
        await window.reserve("ann", 4_000, now + timedelta(seconds=41))
    assert refused.value.retry_after == 19, "when the first has left the window"
    await window.reserve("ann", 2_000, now + timedelta(seconds=41))
    await window.reserve("ann", 10_000, now + timedelta(seconds=60))


async def test_all_addresses_of_a_network_guess_together(start) -> None:
    server: Server = await start()
    ann = await RoomClient.registered(server)
    room = await ann.create("den", KEY)
    clients = [server.client_from(f"2001:db8::{n + 1:x}") for n in range(12)]
    answers = [
        (await client.get(f"/room/{room}", headers={"x-aicq-room-key": f"a wrong key number {n}"})).status_code
        for n, client in enumerate(clients)
    ]
    assert answers == [403] * 10 + [429] * 2


async def test_two_processes_make_one_inbox(workers: tuple[Server, Server]) -> None:
    senders = [await Doubled.registered(workers) for _ in range(2)]
    for _ in range(4):
        reader = await Doubled.registered(workers)
        sent = (one.at_once(4, "POST", f"/dm/{reader.clients[0].id}", {"body": "x"}) for one in senders)
        first, second = await asyncio.gather(*sent)
        assert first + second == {201: 8}
        held = (await reader.clients[0].ask("GET", "/dm")).json()["messages"]
        assert len({one["ts"] for one in held}) == 8
        newest = (await senders[0].clients[0].ask("POST", f"/dm/{reader.clients[0].id}", {"body": "y"})).json()
        assert newest["ts"] > max(one["ts"] for one in held)


async def test_acknowledging_takes_nothing_from_the_quota_of_reading(workers: tuple[Server, Server]) -> None:
    ann, server = await Doubled.registered(workers), workers[0]
    for _ in range(70):
        answer = await server.send_signed(ann.clients[0].agent, "DELETE", f"/v1/dms/{NO_MESSAGE}")
        assert answer.status_code == 404
    assert (await ann.clients[0].ask("GET", "/dm")).status_code == 200
