"""Several web processes behind one socket act as one server."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx

from http_agents import Agent
from server_process import ServerProcess


async def test_two_workers_share_nonces_limits_metrics_and_one_sealer(directory: Path) -> None:
    server = ServerProcess(directory / f"workers-{secrets.token_hex(4)}", workers="2", limits="register=40/1h")
    runtime = await asyncio.to_thread(server.start)
    try:
        agent = Agent()
        # One connection per request spreads them over the processes.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=runtime.url, limits=limits, timeout=20) as client:
            await client.post("/register", json={"public_key": agent.public_text})
            headers = agent.signed(
                "GET", "/v1/agents/me", authority=urlsplit(runtime.url).netloc, created=int(time.time()) + 1
            )
            copies = await asyncio.gather(*(client.get("/v1/agents/me", headers=headers) for _ in range(50)))
            assert sorted(answer.status_code for answer in copies) == [200] + [401] * 49

            keys = [Agent().public_text for _ in range(60)]
            answers = await asyncio.gather(*(client.post("/register", json={"public_key": key}) for key in keys))
            assert sorted(answer.status_code for answer in answers) == [201] * 39 + [429] * 21

            workers = {(await client.get("/health")).json()["worker_id"] for _ in range(40)}
            assert workers == {0, 1}
            counted = [(await client.get("/metrics")).text for _ in range(4)]
            lines = {
                line for text in counted for line in text.splitlines() if "angelia_agents_registered_total " in line
            }
            assert lines >= {"angelia_agents_registered_total 40.0"}
            await _all_sealed(runtime.database_url, 45)  # with the first admin token and the starter rules
    finally:
        assert server.stop() == 0


async def _all_sealed(database_url: str, count: int) -> None:
    connection = await asyncpg.connect(database_url)
    deadline = time.monotonic() + 10
    while await connection.fetchval("SELECT count(*) FROM audit_chain") < count:
        assert time.monotonic() < deadline, "the sealer is not running"
        await asyncio.sleep(0.05)
    positions = [
        row["position"] for row in await connection.fetch("SELECT position FROM audit_chain ORDER BY position")
    ]
    await connection.close()
    assert positions == list(range(1, count + 1))
