"""Kill or empty anything under load: every message that was acknowledged is read, streamed and found, once."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
import redis

from angelia.runtime_file import Runtime
from http_agents import Agent
from rooms_clients import GLOBAL
from server_process import ServerProcess

FAULTS = ("flush", "worker", "valkey", "postgres", "server")
POSTERS = 6
LIMITS = "register=off,room_post=off,room_read=off,find=off,unproven=off"


class Conversation:
    """Agents that post, a reader that follows, and what they were told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: dict[str, str] = {}  # bodies by id
        self.followed: list[str] = []
        self.answers: Counter[str] = Counter()
        self.streams = 0
        self._stopping = False

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            agents = [await self._registered(client) for _ in range(POSTERS)]
        await asyncio.gather(*(self._post(agent) for agent in agents))

    def stop(self) -> None:
        self._stopping = True

    async def follow(self) -> None:
        """Follows the stream from the first message on; whenever it breaks off, after the last event that it saw."""
        first = "0" * 26
        async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=20)) as client:
            while True:
                try:
                    headers = {"last-event-id": self.followed[-1] if self.followed else first}
                    async with client.stream("GET", f"{self.url}/v1/rooms/{GLOBAL}/stream", headers=headers) as answer:
                        if answer.status_code == 200:
                            self.streams += 1
                            await self._hear(answer)
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)

    async def _hear(self, answer: httpx.Response) -> None:
        """Remembers the events that have an id: before the first comes an id alone, before an end perhaps an error."""
        named, told = "", False
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                named = line.removeprefix("id: ")
            elif line.startswith("data: "):
                told = True
            elif not line:
                if named and told:
                    self.followed.append(named)
                named, told = "", False

    async def _registered(self, client: httpx.AsyncClient) -> Agent:
        agent = Agent()
        answer = await client.post(f"{self.url}/register", json={"public_key": agent.public_text})
        agent.id = answer.json()["id"]
        return agent

    async def _post(self, agent: Agent) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            while not self._stopping:
                text = f"message {secrets.token_hex(6)}"
                body = json.dumps({"body": text}).encode()
                headers = agent.aicq(body) | {"content-type": "application/json"}
                try:
                    answer = await client.post(f"{self.url}/room/{GLOBAL}", content=body, headers=headers)
                except httpx.TransportError as error:
                    self.answers[type(error).__name__] += 1
                    await asyncio.sleep(0.02)
                    continue
                self.answers[str(answer.status_code)] += 1
                if answer.status_code == 201:
                    self.acknowledged[answer.json()["id"]] = text
                else:
                    # What was signed before the hot tier was born is refused; the next signature is later.
                    assert answer.status_code in (401, 503), answer.text
                    await asyncio.sleep(0.05)


async def read_all(url: str) -> list[dict[str, str]]:
    read: list[dict[str, str]] = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        query = "limit=200"
        while True:
            page = (await client.get(f"/room/{GLOBAL}?{query}")).json()
            read += page["messages"]
            if not page["has_more"]:
                return read
            query = f"limit=200&before={read[-1]['ts']}"


async def find_all(url: str, texts: list[str]) -> list[str]:
    """Those of the texts that a search does not find."""
    missing = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        for text in texts:
            found = (await client.get("/find", params={"q": text})).json()["results"]
            if [one["body"] for one in found] != [text]:
                missing.append(text)
    return missing


def strike(server: ServerProcess, runtime: Runtime, fault: str) -> Runtime:
    if fault == "flush":
        with redis.Redis.from_url(runtime.redis_url) as hot:
            hot.flushall()
        return runtime
    server.kill(fault)
    return server.start() if fault == "server" else runtime


async def faults_under_load(directory: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    server = ServerProcess(directory / f"rooms-{secrets.token_hex(4)}", limits=LIMITS, workers="2")
    runtime = await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.wait_until_healthy, runtime.url)
    talk = Conversation(runtime.url)
    posting, following = asyncio.create_task(talk.run()), asyncio.create_task(talk.follow())
    try:
        for number in range(rounds):
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            before = len(talk.acknowledged)
            runtime = await asyncio.to_thread(strike, server, runtime, FAULTS[number % len(FAULTS)])
            talk.url = runtime.url
            await asyncio.to_thread(server.wait_until_healthy, runtime.url)
            deadline = time.monotonic() + 15
            while len(talk.acknowledged) < before + 10:
                assert time.monotonic() < deadline, talk.answers
                await asyncio.sleep(0.05)
        talk.stop()
        await posting
        read = await read_all(runtime.url)
        ids = [one["id"] for one in read]
        assert ids == sorted(set(ids), reverse=True), "in order, each once"
        bodies = {one["id"]: one["body"] for one in read}
        assert {id_: bodies.get(id_) for id_ in talk.acknowledged} == talk.acknowledged
        deadline = time.monotonic() + 15
        while len(talk.followed) < len(ids):
            assert time.monotonic() < deadline, f"{len(talk.followed)} of {len(ids)} came"
            await asyncio.sleep(0.05)
        assert talk.followed == ids[::-1], "no gap, and no repeat"
        sample = chance.sample(sorted(talk.acknowledged.values()), min(300, len(talk.acknowledged)))
        assert await find_all(runtime.url, sample) == []
        assert server.stop() == 0
    finally:
        talk.stop()
        for task in (posting, following):
            task.cancel()
        await asyncio.gather(posting, following, return_exceptions=True)
        server.stop()
    print(
        f"\n{rounds} faults (seed {seed}): {len(talk.acknowledged):,} acknowledged messages all read, streamed over"
        f" {talk.streams} connections, and {len(sample)} looked for and found; answers {dict(talk.answers)}"
    )


async def test_no_acknowledged_message_is_lost_or_repeated_whatever_is_killed_or_emptied(disk_directory: Path) -> None:
    await faults_under_load(disk_directory, len(FAULTS), seed=7)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_a_hundred_faults_lose_and_repeat_no_message(disk_directory: Path) -> None:
    await faults_under_load(disk_directory, 100, seed=random.randrange(1 << 32))
