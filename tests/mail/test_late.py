"""A message has an end: it is not handed out after it, however long the server stood still in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import asyncpg
import httpx
import pytest

from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.wire import Envelope
from http_agents import HOST, Server
from mail_agents import Correspondent
from probe_edge import listening
from store_probes import until_blocked


@pytest.fixture
async def port(server: Server) -> AsyncIterator[int]:
    async with listening(server.application) as port:
        yield port


@asynccontextmanager
async def standing_still(database_url: str, envelope: Envelope) -> AsyncIterator[None]:
    """Keeps every hand-out between its look at the ledger and its answer, until the message's time is over."""
    keeper, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    try:
        async with keeper.transaction():
            await keeper.execute("LOCK TABLE blocks IN ACCESS EXCLUSIVE MODE")
            yield
            await until_blocked(watcher)
            async with asyncio.timeout(20):
                while datetime.now(UTC).timestamp() * 1000 <= envelope.header.expires_at:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    finally:
        await keeper.close()
        await watcher.close()


@pytest.mark.parametrize("form", ["application/json", MEDIA_TYPE])
async def test_a_poll_that_stood_still_does_not_hand_out_what_has_ended_meanwhile(
    server: Server, database_url: str, alice: Correspondent, bob: Correspondent, form: str
) -> None:
    envelope = await alice.sent(server, bob, ttl_seconds=2)
    lasting = await alice.sent(server, bob, ttl_seconds=600)
    async with standing_still(database_url, envelope):
        headers = {**bob.signed("GET", "/v1/messages"), "accept": form}
        polling = asyncio.create_task(server.request("GET", "/v1/messages", headers=headers))
    answer = await polling
    assert answer.status_code == 200, answer.text
    assert envelope.wire not in answer.content
    if form == MEDIA_TYPE:
        assert answer.content.endswith(lasting.wire)
        assert len(answer.content) == 40 + len(lasting.wire)
    else:
        assert [one["replay_key"] for one in answer.json()["messages"]] == [lasting.replay_key]


async def test_a_stream_that_stood_still_does_not_hand_out_what_has_ended_meanwhile(
    server: Server, port: int, database_url: str, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob, ttl_seconds=2)
    lasting = await alice.sent(server, bob, ttl_seconds=600)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30))
        async with standing_still(database_url, envelope):
            headers = {**bob.signed("GET", "/v1/messages/stream"), "host": HOST}
            answer = await stack.enter_async_context(client.stream("GET", "/v1/messages/stream", headers=headers))
        told = [line async for line in _until_message(answer.aiter_lines())]
    assert lasting.replay_key in told[-1]
    assert not any(envelope.replay_key in line for line in told)


async def _until_message(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async with asyncio.timeout(10):
        async for line in lines:
            yield line
            if line.startswith("data:"):
                return
