"""Kill the spool or the whole server while members append: every append that was acknowledged is there."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import httpx
import psutil
import pytest

from angelia.grouplog import store
from angelia.grouplog.model.frames import Status
from angelia.stores.rocks import Rocks
from grouplog.open_logs import check_families
from http_agents import Agent
from log_clients import LogClient, new_group, roster_of
from server_process import ServerProcess
from spool_process import SpoolProcess

WRITERS = 4
# After each kill what was signed before is refused, which counts as an attempt that proves nothing.
RATE = {"log_append_rate": "100000", "log_append_burst": "100000", "limits": "unproven=off"}


class Writer:
    """A member that appends one message after another, and remembers which were acknowledged."""

    def __init__(self, agent: Agent, binding: int) -> None:
        self.agent = agent
        self.binding = binding
        self.acknowledged: set[tuple[bytes, int]] = set()
        self.stopping = False
        self._changed = asyncio.Event()

    async def more(self, count: int) -> None:
        """Returns when so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            self._changed.clear()
            await self._changed.wait()

    async def run(self, url: str, group: bytes) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            member, seq = LogClient(client, self.agent, group, self.binding), 1
            while not self.stopping:
                try:
                    answer = await member.append(*(member.message(one) for one in range(seq, seq + 3)))
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue  # the same messages again: they may be there or not
                if answer.status_code == 200:
                    self.acknowledged |= {(member.sender, one) for one in range(seq, seq + 3)}
                    seq += 3
                    self._changed.set()
                else:
                    # Stale: it was signed before the spool's last start.
                    assert answer.json()["code"] in ("stale", "starting", "unavailable"), answer.text
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(100, marks=[pytest.mark.chaos, pytest.mark.timeout(3600)])], ids=str
)
async def test_kills_lose_no_acknowledged_append(disk_directory: Path, rounds: int) -> None:
    server = ServerProcess(disk_directory / f"log-{secrets.token_hex(4)}", **RATE)
    url = server.start().url
    group, agents = new_group(), [Agent() for _ in range(WRITERS)]
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        founder = LogClient(client, agents[0], group)
        await _created(founder, roster_of(*agents))
        writers = [Writer(agent, number) for number, agent in enumerate(agents, 1)]
        async with asyncio.TaskGroup() as tasks:
            for writer in writers:
                tasks.create_task(writer.run(url, group))
            for number in range(rounds):
                await asyncio.sleep(0.3)
                if number % 3 == 1:
                    server.kill("server")
                    await asyncio.to_thread(server.start)
                else:
                    server.kill("spool_worker")
                try:
                    await asyncio.wait_for(asyncio.gather(*(writer.more(10) for writer in writers)), 30)
                except TimeoutError:
                    raise AssertionError(f"round {number}: {server.log.read_text()[-3000:]}") from None
            for writer in writers:
                writer.stopping = True
        held = await founder.held()
        acknowledged = set().union(*(writer.acknowledged for writer in writers))
    assert acknowledged <= held
    assert len(acknowledged) >= 30 * rounds
    assert server.stop() == 0
    rocks = Rocks(server.data_dir / "spool" / "log", store.FAMILIES)
    row = store.group(rocks, group)
    assert row is not None
    assert acknowledged <= set(check_families(rocks, row.ordinal))
    rocks.close()


async def test_a_node_of_its_own_needs_no_other_store_and_keeps_what_it_acknowledged(disk_directory: Path) -> None:
    node = SpoolProcess(disk_directory / f"spool-{secrets.token_hex(4)}")
    url = node.start()
    group, alice = new_group(), Agent()
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        member = LogClient(client, alice, group)
        assert (await member.create()).status_code == 201
        assert await member.statuses(*(member.message(seq) for seq in range(1, 101))) == [Status.STORED] * 100
        identity = (await client.get("/v1/node")).json()
        health = await client.get("/health")
        assert (health.status_code, health.json()["checks"]["log"]["status"]) == (200, "pass")
        assert "angelia_log_appends_total" in (await client.get("/metrics")).text
    assert not {"postgres", "valkey"} & {path.name for path in node.data_dir.iterdir()}
    for path in (node.data_dir, node.data_dir / "spool", node.data_dir / "node.key"):
        assert path.stat().st_mode & 0o077 == 0, path
    node.kill()
    node.start()
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        member = LogClient(client, alice, group)
        assert await member.held() == {(member.sender, seq) for seq in range(1, 101)}
        assert (await client.get("/v1/node")).json() == identity
    second = SpoolProcess(node.data_dir)
    with pytest.raises(AssertionError, match="uses this data directory"):
        second.start()
    assert node.stop() == 0


async def test_a_node_that_others_reach_asks_for_its_token_where_a_group_is_created(directory: Path) -> None:
    node = SpoolProcess(directory / f"spool-{secrets.token_hex(4)}", public_url="http://spool.example")
    node.start()
    assert "a group is created with the token in admin.token" in node.log.read_text()
    address = f"http://127.0.0.1:{_port_of(node)}"
    async with httpx.AsyncClient(base_url=address, headers={"host": "spool.example"}, timeout=20) as client:
        member = LogClient(client, Agent(), new_group())
        assert (await member.create()).status_code == 401
        wrong = await member.create(headers={"authorization": "Bearer agt_wrong"})
        assert wrong.status_code == 401
        token = (node.data_dir / "admin.token").read_text().strip()
        assert (await member.create(headers={"authorization": f"Bearer {token}"})).status_code == 201
        assert await member.statuses(member.message(1)) == [Status.STORED]
    assert node.stop() == 0


def _port_of(node: SpoolProcess) -> int:
    (listening,) = [c for c in psutil.Process(node.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return int(listening.laddr.port)


async def _created(founder: LogClient, roster: list[dict[str, object]]) -> None:
    """A spool that has just started refuses what was signed in the second of its start."""
    for _ in range(50):
        answer = await founder.create(roster=roster)
        if answer.status_code == 201:
            return
        assert answer.json()["code"] == "stale", answer.text
        await asyncio.sleep(0.1)
    raise AssertionError("the group was not created")
