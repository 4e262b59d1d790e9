"""The stream: mail and news as they come, over a real connection, never more than can be settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from angelia.envelope.receipts import ReceiptStatus, receipt_document
from angelia.http.edge import MOST_WAITS
from angelia.mail import delivery as delivery_module
from angelia.mail import routes as routes_module
from angelia.mail.hot_store import arrivals
from angelia.stores.wake import encode_event
from http_agents import HOST, Server
from mail_agents import Correspondent, Got
from mail_office import PostOffice
from probe_edge import listening
from sse_lines import Line, Said

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
async def port(server: Server, office: PostOffice) -> AsyncIterator[int]:
    async with listening(server.application) as port:
        yield port
        office.wake.stop()  # a stream that outlived its caller would keep the server from stopping


@pytest.fixture
async def follow(port: int) -> AsyncIterator[Callable[..., Any]]:
    """`await follow(bob)` gives bob's stream, once the server hears him."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30))

        async def begin(who: Correspondent, query: str = "") -> Line:
            url = f"/v1/messages/stream{query}"
            headers = {**who.signed("GET", url), "host": HOST}
            answer = await stack.enter_async_context(client.stream("GET", url, headers=headers))
            assert answer.status_code == 200, await answer.aread()
            line = Line(answer)
            assert (await line.block() or "").startswith(":")
            return line

        yield begin


def got(said: Said) -> Got:
    return Got(None, said.data["replay_key"], said.data["lease_token"], said.data["attempt"])  # type: ignore[arg-type]


def waited_for(office: PostOffice) -> set[str]:
    """The topics that streams and polls wait for; some slices follow topics of their own."""
    own = (":guard:", ":agents:", ":queues:")
    return {topic for topic in office.wake._topics if not any(name in topic for name in own)}


async def listens(office: PostOffice, who: Correspondent) -> None:
    """Wait until the stream of an agent is subscribed to what comes."""
    async with asyncio.timeout(5):
        while not any("events" in topic for topic in waited_for(office)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what is looked at tells nobody
            await asyncio.sleep(0.01)


async def test_mail_comes_as_it_is_sent_under_its_lease_token(
    server: Server,
    office: PostOffice,
    follow,
    alice: Correspondent,
    bob: Correspondent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "RECHECK_SECONDS", 60.0)
    waiting = await alice.sent(server, bob, b"waited")
    line: Line = await follow(bob)
    assert line.answer.headers["content-type"].startswith("text/event-stream")
    assert line.answer.headers["cache-control"] == "no-store, no-transform"
    assert line.answer.headers["x-accel-buffering"] == "no"
    first = await line.next()
    assert (first.event, first.data["replay_key"], first.data["attempt"]) == ("message", waiting.replay_key, 1)
    assert first.id == first.data["lease_token"]
    for n in range(3):
        envelope = await alice.sent(server, bob, str(n).encode())
        said = await line.next(2)
        assert said.data["replay_key"] == envelope.replay_key
        assert said.data["envelope"]["message_id"] == str(envelope.header.message_id)
    assert (await bob.ack(server, got(first)))[0]["acknowledged"]


async def test_a_hundred_are_unsettled_at_most(
    server: Server,
    office: PostOffice,
    follow,
    alice: Correspondent,
    bob: Correspondent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "RECHECK_SECONDS", 60.0)
    monkeypatch.setattr(delivery_module, "MOST_AT_ONCE", 5)
    for _ in range(8):
        await alice.sent(server, bob)
    line: Line = await follow(bob)
    first = [await line.next() for _ in range(5)]
    assert len({one.id for one in first}) == 5
    with pytest.raises(TimeoutError):
        await line.next(0.3)


async def test_what_is_settled_makes_room(
    server: Server,
    office: PostOffice,
    follow,
    alice: Correspondent,
    bob: Correspondent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "RECHECK_SECONDS", 60.0)
    monkeypatch.setattr(delivery_module, "MOST_AT_ONCE", 3)
    for _ in range(7):
        await alice.sent(server, bob)
    line: Line = await follow(bob)
    first = [await line.next() for _ in range(3)]
    await bob.ack(server, got(first[0]))
    fourth = await line.next(2)
    await bob.nack(server, got(first[1]), retry_after=60)
    fifth = await line.next(2)
    assert len({one.data["replay_key"] for one in (*first, fourth, fifth)}) == 5


async def test_a_hundred_is_what_the_contract_says() -> None:
    assert delivery_module.MOST_AT_ONCE == 100
    assert routes_module.HEARTBEAT_SECONDS == 15


async def test_a_message_whose_lease_ran_out_comes_again(
    server: Server,
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "RECHECK_SECONDS", 60.0)
    await office.sent(alice, bob, now)
    stream = office.delivery.stream(await office.agent(bob), 0.3, 60, now)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        attempts = [(await anext(stream)).attempt for _ in range(3)]  # type: ignore[union-attr]
    await stream.aclose()
    assert attempts == [1, 2, 3]


async def test_an_idle_line_has_a_heart(follow, bob: Correspondent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "HEARTBEAT_SECONDS", 0.1)
    line: Line = await follow(bob)
    for _ in range(3):
        block = await line.block(2)
        assert block is not None
        assert block.startswith(":")


async def test_a_sender_is_told_what_became_of_its_messages(
    server: Server, office: PostOffice, follow, alice: Correspondent, bob: Correspondent
) -> None:
    line: Line = await follow(alice)
    await listens(office, alice)
    now = datetime.now(UTC)

    delivered = await alice.sent(server, bob)
    (message,) = await bob.poll(server)
    await bob.ack(server, message)
    read = await bob.post(server, "/v1/receipts", receipt_document(bob.receipt(delivered, ReceiptStatus.READ)))
    assert read.status_code == 200, read.text
    withdrawn = await alice.sent(server, bob)
    await alice.delete(server, f"/v1/messages/{withdrawn.replay_key}")
    dead, _ = await office.dead(alice, bob, now)
    expired = await office.sent(alice, bob, now, ttl_seconds=60)
    await office.background.expire(now + MINUTE)

    said = [await line.next() for _ in range(5)]
    assert {one.event for one in said} == {"receipt"}
    assert [(one.data["replay_key"], one.data["status"], one.data["reason"]) for one in said] == [
        (delivered.replay_key, "delivered", None),
        (delivered.replay_key, "read", None),
        (withdrawn.replay_key, "failed", "withdrawn"),
        (dead.replay_key, "failed", "cannot be read"),
        (expired.replay_key, "expired", None),
    ]
    assert all(one.data["recipient"] == "bob" for one in said)


async def test_other_slices_speak_there_too(office: PostOffice, follow, bob: Correspondent) -> None:
    line: Line = await follow(bob)
    await listens(office, bob)
    await office.wake.tell(delivery_module.events("bob"), encode_event("rotation_due", b'{"peer":"alice"}'))
    assert await line.next() == Said("rotation_due", {"peer": "alice"}, None)


async def test_nobody_hears_what_concerns_another(
    server: Server, office: PostOffice, follow, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    line: Line = await follow(carol)
    await listens(office, carol)
    await alice.sent(server, bob)
    (message,) = await bob.poll(server)
    await bob.ack(server, message)
    mine = await alice.sent(server, carol)
    assert (await line.next()).data["replay_key"] == mine.replay_key


async def test_a_stream_ends_when_the_server_is_about_to(office: PostOffice, follow, bob: Correspondent) -> None:
    line: Line = await follow(bob)
    await listens(office, bob)
    office.wake.stop()
    assert await line.block(3) is None


async def test_a_listener_that_hangs_up_leaves_nothing_leased_that_it_was_not_told(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for _ in range(10):
        await office.sent(alice, bob, now)
    stream = office.delivery.stream(await office.agent(bob), 60, 60, now)
    told = [await anext(stream) for _ in range(3)]
    await stream.aclose()
    assert len(told) == 3
    rest = await office.poll(bob, now + SECOND)
    assert [one.attempt for one in rest] == [1] * 7
    assert not waited_for(office)


async def test_a_connection_that_is_lost_ends_the_stream_on_the_server(
    office: PostOffice, port: int, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        headers = {**bob.signed("GET", "/v1/messages/stream"), "host": HOST}
        async with client.stream("GET", "/v1/messages/stream", headers=headers) as answer:
            assert (await Line(answer).block() or "").startswith(":")
            await listens(office, bob)
    async with asyncio.timeout(5):
        while waited_for(office):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await office.sent(alice, bob, now)
    assert len(await office.poll(bob, now)) == 1


async def test_a_caller_that_hangs_up_during_a_long_poll_leases_nothing(
    office: PostOffice, port: int, alice: Correspondent, bob: Correspondent, now: datetime, captured_log: list[Any]
) -> None:
    url = "/v1/messages?wait_timeout_seconds=30"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        waiting = asyncio.create_task(client.get(url, headers={**bob.signed("GET", url), "host": HOST}))
        async with asyncio.timeout(5):
            while not waited_for(office):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(5):
        while not any(one.get("status") == 499 for one in captured_log):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not waited_for(office)
    await office.sent(alice, bob, now)
    (message,) = await office.poll(bob, now)
    assert message.attempt == 1


async def test_an_agent_waits_in_twenty_polls_and_streams_at_most_until_it_hangs_up(
    server: Server, office: PostOffice, port: int, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    poll, stream = "/v1/messages?wait_timeout_seconds=30", "/v1/messages/stream"

    def waiting(who: Correspondent) -> int:
        topic = office.wake._topics.get(arrivals(who.handle))
        return len(topic.ears) if topic else 0

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

        async def ask(who: Correspondent, url: str) -> httpx.Response:
            return await client.get(url, headers={**who.signed("GET", url), "host": HOST})

        for _ in range(2):  # the second time shows that each hang-up made room
            asking = [asyncio.create_task(ask(bob, url)) for url in (poll, stream) * (MOST_WAITS // 2)]
            await until(lambda: waiting(bob) == MOST_WAITS)
            for url in ("/v1/messages?wait_timeout_seconds=1", stream):
                refused = await ask(bob, url)
                assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
                assert refused.headers["retry-after"] == "5"
            assert (await ask(bob, "/v1/messages")).status_code == 200, "it does not wait"
            asking.append(asyncio.create_task(ask(alice, poll)))
            await until(lambda: waiting(alice) == 1)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await until(lambda: waiting(bob) == 0 and not server.application._waits)
        late = await office.sent(alice, bob, now)
        (message,) = (await ask(bob, poll)).json()["messages"]
    assert (message["replay_key"], message["attempt"]) == (late.replay_key, 1)


async def test_a_stream_needs_an_agent_that_may_write(server: Server, bob: Correspondent) -> None:
    assert (await server.get("/v1/messages/stream")).status_code == 401
    made = await server.post("/v1/tokens", json={"role": "read-only", "agent": "bob"}, headers=server.admin)
    assert made.status_code == 201, made.text
    token = {"authorization": f"Bearer {made.json()['token']}"}
    assert (await server.get("/v1/messages/stream", headers=token)).status_code == 403
    assert (
        await server.get(
            "/v1/messages/stream?lease_seconds=4", headers=bob.signed("GET", "/v1/messages/stream?lease_seconds=4")
        )
    ).status_code == 400
