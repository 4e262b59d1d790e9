"""Kill any process at any moment: nothing that was acknowledged is lost or accepted twice."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from angelia.audit.model import Verdict, Verifier
from angelia.audit.service import Audit
from angelia.keys.node_key import load_or_make
from angelia.runtime_file import Runtime
from angelia.stores.ledger import Ledger
from http_agents import Agent
from server_process import ServerProcess

VICTIMS = ("server", "postgres", "valkey", "worker")
CLIENTS = 8


class Load:
    """Clients that register agents and send signed requests, and remember what they were told."""

    def __init__(self) -> None:
        self.url = ""
        self.registered: dict[bytes, str] = {}
        self.accepted: list[tuple[float, dict[str, str]]] = []
        self.answers: Counter[str] = Counter()
        self._stopping = False

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    def stop(self) -> None:
        self._stopping = True

    async def _client(self) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            while not self._stopping:
                try:
                    await self._register(client)
                except httpx.TransportError as error:
                    self.answers[type(error).__name__] += 1
                    await asyncio.sleep(0.02)

    async def _register(self, client: httpx.AsyncClient) -> None:
        agent, url = Agent(), self.url
        answer = await client.post(f"{url}/register", json={"public_key": agent.public_text})
        self.answers[f"register {answer.status_code}"] += 1
        if answer.status_code not in (200, 201):
            assert answer.status_code == 503, answer.text
            assert "retry-after" in answer.headers
            return
        self.registered[agent.public_key] = answer.json()["id"]
        headers = agent.signed("GET", "/v1/agents/me", authority=urlsplit(url).netloc)
        answer = await client.get(f"{url}/v1/agents/me", headers=headers)
        self.answers[f"signed {answer.status_code}"] += 1
        if answer.status_code == 200:
            self.accepted.append((time.time(), headers))

    async def replay(self) -> list[int]:
        """Send again, bit for bit, everything that was accepted lately."""
        recent = [headers for at, headers in self.accepted if at > time.time() - 29][-50:]
        async with httpx.AsyncClient(timeout=10) as client:
            sent = (client.get(f"{self.url}/v1/agents/me", headers=headers) for headers in recent)
            answers = await asyncio.gather(*sent)
        return [answer.status_code for answer in answers]


async def kill_rounds(directory: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    server = ServerProcess(directory / f"kill-{secrets.token_hex(4)}", limits="register=off,unproven=off")
    runtime = server.start()
    load = Load()
    load.url = runtime.url
    running = asyncio.create_task(load.run())
    recoveries: dict[str, list[float]] = {}
    try:
        for number in range(rounds):
            victim = VICTIMS[number % len(VICTIMS)]
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            server.kill(victim)
            began = time.monotonic()
            if victim == "server":
                runtime = await asyncio.to_thread(server.start)
                load.url = runtime.url
            await asyncio.to_thread(server.wait_until_healthy, runtime.url)
            recoveries.setdefault(victim, []).append(time.monotonic() - began)
            assert 200 not in await load.replay(), "a nonce was forgotten"
            before = len(load.registered)
            await _progress(load, before)
        load.stop()
        await running
        verdict = await _verify(runtime, server.data_dir, load)
        assert verdict.broken == []
        assert server.stop() == 0
        server.start()
    finally:
        load.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.stop()
    slowest = {victim: f"{max(times):.1f} s" for victim, times in recoveries.items()}
    print(
        f"\n{rounds} kills (seed {seed}): {len(load.registered):,} acknowledged registrations all there,"
        f" {verdict.sealed:,} audit entries sound, back after at most {slowest}; answers {dict(load.answers)}"
    )


async def _progress(load: Load, before: int) -> None:
    """Service is back when registrations are acknowledged again, without a person."""
    deadline = time.monotonic() + 15
    while len(load.registered) == before:
        assert time.monotonic() < deadline, f"no registration after recovery: {load.answers}"
        await asyncio.sleep(0.02)


async def _verify(runtime: Runtime, data_dir: Path, load: Load) -> Verdict:
    connection = await asyncpg.connect(runtime.database_url)
    stored = {row["public_key"]: str(row["id"]) for row in await connection.fetch("SELECT public_key, id FROM agents")}
    events = await connection.fetchval("SELECT count(*) FROM audit_events WHERE event_type = 'agent_registered'")
    await connection.close()
    lost = {key: id_ for key, id_ in load.registered.items() if stored.get(key) != id_}
    assert not lost, f"{len(lost)} acknowledged registrations are gone"
    assert events == len(stored), "each agent has its event, and each event its agent"

    ledger = await Ledger.open(runtime.database_url)
    audit, node = Audit(ledger), load_or_make(data_dir / "node.key")
    verifier = Verifier(node.key_id, node.public_key, node.signed())
    verifier.expect(await audit.checkpoints(0, 100_000))
    page = await audit.chain(0, 1000)
    while page.entries:
        verifier.feed(page.entries, page.floor)
        page = await audit.chain(verifier.position, 1000)
    verdict = verifier.finish(page.sealed_to, *await audit.unsealed(1000))
    await ledger.close()
    return verdict


async def test_acknowledged_registrations_survive_kill_9_of_any_process(disk_directory: Path) -> None:
    await kill_rounds(disk_directory, rounds=8, seed=random.SystemRandom().randrange(10**6))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_acknowledged_registrations_survive_a_hundred_kills(disk_directory: Path) -> None:
    await kill_rounds(disk_directory, rounds=100, seed=random.SystemRandom().randrange(10**6))


async def test_a_second_start_is_quick(directory: Path) -> None:
    server = ServerProcess(directory / f"quick-{secrets.token_hex(4)}")
    server.start()
    assert server.stop() == 0
    began = time.monotonic()
    server.start()
    print(f"\nsecond start {time.monotonic() - began:.1f} s")
    assert server.stop() == 0
