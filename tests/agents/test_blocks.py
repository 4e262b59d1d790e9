"""An agent's block list: its own, bounded, and asked in pairs by whoever delivers something."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import asyncpg
import pytest

from angelia.agents import service, store
from angelia.agents.service import Agents, blocked
from angelia.api import AgentRow
from angelia.stores.ledger import Ledger
from http_agents import Agent, Server


async def claimed(server: Server, *handles: str) -> list[Agent]:
    agents = []
    for handle in handles:
        agent = await server.register()
        body = json.dumps({"handle": handle}).encode()
        assert (await server.send_signed(agent, "PUT", "/v1/agents/me/handle", body)).status_code == 200
        agents.append(agent)
    return agents


async def put(server: Server, agent: Agent, name: str) -> int:
    return (await server.send_signed(agent, "PUT", f"/v1/blocks/{name}")).status_code


async def delete(server: Server, agent: Agent, name: str) -> int:
    return (await server.send_signed(agent, "DELETE", f"/v1/blocks/{name}")).status_code


async def listed(server: Server, agent: Agent, query: str = "") -> list[str]:
    answer = await server.send_signed(agent, "GET", f"/v1/blocks{query}")
    return [one["agent"] for one in answer.json()["blocks"]]


async def test_an_agent_is_blocked_listed_and_let_in_again(start) -> None:
    server: Server = await start(limits={"register": "off"})
    alice, bob, carol = await claimed(server, "alice", "bob", "carol")
    assert [await put(server, alice, "bob"), await put(server, alice, carol.id)] == [204, 204]
    assert await listed(server, alice) == ["bob", "carol"]
    assert await listed(server, bob) == []
    assert await delete(server, alice, bob.id) == 204
    assert await listed(server, alice) == ["carol"]


async def test_saying_it_twice_changes_nothing_and_is_audited_once(start, connection: asyncpg.Connection) -> None:
    server: Server = await start(limits={"register": "off"})
    alice, _ = await claimed(server, "alice", "bob")
    assert [await put(server, alice, "bob") for _ in range(3)] == [204] * 3
    assert [await delete(server, alice, "bob") for _ in range(3)] == [204] * 3
    rows = await connection.fetch(
        "SELECT event_type, actor_nhi, object_nhi FROM audit_events"
        " WHERE event_type ~ '^agent_(un)?blocked' ORDER BY xid"
    )
    assert [tuple(row) for row in rows] == [("agent_blocked", "alice", "bob"), ("agent_unblocked", "alice", "bob")]


async def test_nobody_blocks_itself_or_nobody(start) -> None:
    server: Server = await start(limits={"register": "off"})
    [alice] = await claimed(server, "alice")
    for name in ("alice", alice.id):
        assert await put(server, alice, name) == 400
    assert [await put(server, alice, "nobody"), await delete(server, alice, "nobody")] == [404, 204]


async def test_the_list_comes_in_pages(start) -> None:
    server: Server = await start(limits={"register": "off"})
    names = [f"agent-{n}" for n in range(5)]
    alice, *_ = await claimed(server, "alice", *names)
    for name in names:
        await put(server, alice, name)
    first = (await server.send_signed(alice, "GET", "/v1/blocks?limit=3")).json()
    assert (first["total"], len(first["blocks"])) == (5, 3)
    assert [one["agent"] for one in first["blocks"]] + await listed(
        server, alice, f"?limit=3&cursor={first['next']}"
    ) == names


async def test_a_list_is_its_agents_alone(start) -> None:
    server: Server = await start(limits={"register": "off"})
    assert (await server.get("/v1/blocks")).status_code == 401
    assert (await server.get("/v1/blocks", headers=server.admin)).status_code == 403


async def agents_of(ledger: Ledger, *handles: str) -> tuple[Agents, list[AgentRow]]:
    agents, now, made = Agents(ledger), datetime.now(UTC), []
    for handle in handles:
        registered = await agents.register(Agent().public_text, "", "", now)
        made.append(await agents.claim_handle(await agents.by_id(registered.id), handle, now))
    return agents, made


async def test_many_pairs_are_asked_at_once_and_a_block_has_a_direction(ledger: Ledger) -> None:
    agents, (alice, bob, _) = await agents_of(ledger, "alice", "bob", "carol")
    now = datetime.now(UTC)
    await agents.block(alice, "bob", now)
    await agents.block(bob, "carol", now)
    pairs = [("bob", "alice"), ("alice", "bob"), ("carol", "bob"), ("carol", "alice"), ("nobody", "alice")]
    async with ledger.transaction() as tx:
        assert await blocked(tx, [*pairs, *pairs]) == {("bob", "alice"), ("carol", "bob")}
        assert await blocked(tx, []) == set()
    await agents.close()


async def test_a_list_has_a_bound_that_parallel_requests_do_not_pass(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_BLOCKS", 3)
    names = [f"agent-{n}" for n in range(6)]
    agents, (alice, *_) = await agents_of(ledger, "alice", *names)
    now = datetime.now(UTC)
    done = await asyncio.gather(*(agents.block(alice, name, now) for name in names), return_exceptions=True)
    assert sorted("done" if one is None else one.code for one in done) == ["conflict"] * 3 + ["done"] * 3  # type: ignore[union-attr]
    held, total = await agents.block_list(alice, None, 10)
    assert (len(held), total) == (3, 3)
    await agents.block(alice, held[0].handle, now)  # which is there already
    await agents.close()


async def test_asking_reads_indexes_however_long_the_lists_are(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)"
        " SELECT id, 'agent-' || n, sha256(id::text::bytea), gen_random_uuid(), '', '', true, now()"
        " FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 5000) AS n) AS made;"
        "INSERT INTO blocks SELECT a.id, b.id, now() FROM agents AS a, agents AS b"
        " WHERE a.handle < 'agent-10' AND a.id <> b.id"
    )
    await connection.execute("ANALYZE agents, blocks")
    for names in (1, 64, 1000):
        asked = [[f"agent-{n + 1}" for n in range(names)], [f"agent-{n + 100}" for n in range(names)]]
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) {store.SQL['blocked']}", *asked)
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan" not in plan, plan
        assert "(agent_id = " in plan, plan
