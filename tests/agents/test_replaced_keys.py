"""A key has one owner for ever: replaced keys, and registrations that race with the replacement."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from angelia.agents import store
from angelia.agents.service import Agents, RegistrationOutcome, register_batch, replace_key
from angelia.errors import AngeliaError, Conflict, NotFound
from angelia.stores.ledger import Ledger, Tx
from http_agents import Agent, Server

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
FIVE_MINUTES = timedelta(seconds=300)


@pytest.fixture
async def agents(ledger: Ledger) -> Agents:
    return Agents(ledger)


async def register(agents: Agents, agent: Agent, **profile: str) -> RegistrationOutcome:
    found = await agents.register(agent.public_text, profile.get("name", ""), "", NOW)
    agent.id = str(found.id)
    return found


async def replace(
    ledger: Ledger, id: str, new: Agent, *, at: datetime = NOW, old_valid_for: timedelta = FIVE_MINUTES
) -> None:
    async with ledger.transaction() as tx:
        await replace_key(tx, UUID(id), new.public_key, at, old_valid_for=old_valid_for)


async def until_somebody_waits(connection: asyncpg.Connection) -> None:
    async with asyncio.timeout(10):
        while not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            pass


async def owners(connection: asyncpg.Connection, key: Agent) -> list[UUID]:
    rows = await connection.fetch(
        "SELECT id FROM agents WHERE public_key = $1"
        " UNION ALL SELECT agent_id FROM agent_former_keys WHERE public_key = $1",
        key.public_key,
    )
    return [row["id"] for row in rows]


async def test_a_replaced_key_leaves_the_agent_with_the_new_one_and_the_ledger_with_both(
    agents: Agents, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    old, new = Agent(), Agent()
    await register(agents, old)
    async with ledger.transaction() as tx:
        replaced = await replace_key(tx, UUID(old.id), new.public_key, NOW, old_valid_for=FIVE_MINUTES)
    assert (replaced.public_key, replaced.key_id) == (new.public_key, new.key_id)
    assert await agents.by_id(UUID(old.id)) == replaced
    row = await connection.fetchrow("SELECT * FROM agent_former_keys")
    assert tuple(row) == (old.key_id, old.public_key, UUID(old.id), NOW, NOW + FIVE_MINUTES)


async def test_a_rolled_back_replacement_changes_nothing(agents: Agents, ledger: Ledger) -> None:
    old, new = Agent(), Agent()
    await register(agents, old)

    async def replace_and_fail() -> None:
        async with ledger.transaction() as tx:
            await replace_key(tx, UUID(old.id), new.public_key, NOW, old_valid_for=FIVE_MINUTES)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await replace_and_fail()
    assert (await agents.by_id(UUID(old.id))).public_key == old.public_key
    assert (await register(agents, old)).new is False


async def test_no_agent_gets_a_key_that_is_or_was_an_agents(agents: Agents, ledger: Ledger) -> None:
    ann, bob, first, second = Agent(), Agent(), Agent(), Agent()
    await register(agents, ann)
    await register(agents, bob)
    await replace(ledger, ann.id, first)
    await replace(ledger, ann.id, second)
    for agent, key in itertools.product((ann, bob), (ann, first, second, bob)):
        with pytest.raises(Conflict) as refused:
            await replace(ledger, agent.id, key)
        assert refused.value.hint
    assert (await agents.by_id(UUID(ann.id))).public_key == second.public_key
    assert (await agents.by_id(UUID(bob.id))).public_key == bob.public_key


async def test_the_key_of_an_agent_that_does_not_exist_cannot_be_replaced(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        await replace(ledger, "00000000-0000-4000-8000-000000000000", Agent())


async def test_a_replaced_key_cannot_be_registered_and_changes_no_profile(start, ledger: Ledger) -> None:
    server: Server = await start()
    agent, new = await server.register(name="Ann"), Agent()
    await replace(ledger, agent.id, new, at=datetime.now(UTC))
    body = json.dumps({"public_key": agent.public_text, "name": "Mallory"}).encode()
    unsigned = await server.post("/register", content=body, headers={"content-type": "application/json"})
    signed = await server.send_signed(agent, "POST", "/register", body)
    for answer in (unsigned, signed):
        assert (answer.status_code, answer.json()) == (409, {"error": "this key was replaced by a newer one"})
    listed = (await server.get("/v1/agents", headers=server.admin)).json()
    assert [(a["id"], a["name"], a["public_key"]) for a in listed["agents"]] == [(agent.id, "Ann", new.public_text)]
    assert (await server.post("/register", json={"public_key": new.public_text})).json()["id"] == agent.id


async def test_a_replaced_key_in_a_batch_does_not_touch_its_neighbours(agents: Agents, ledger: Ledger) -> None:
    old, new, fresh = Agent(), Agent(), [Agent(), Agent()]
    await register(agents, old)
    await replace(ledger, old.id, new)
    batches = []

    async def noting(tx, wanted):
        batches.append(len(wanted))
        return await register_batch(tx, wanted)

    agents._registrations._batch = noting
    keys = [fresh[0], old, new, old, fresh[1]]
    results = await asyncio.gather(*(register(agents, key) for key in keys), return_exceptions=True)
    assert batches == [5]
    assert [type(result) for result in results] == [
        RegistrationOutcome,
        Conflict,
        RegistrationOutcome,
        Conflict,
        RegistrationOutcome,
    ]
    assert results[2] == RegistrationOutcome(UUID(old.id), new=False)
    assert results[0].new
    assert results[4].new


# Races. A registration that began before a replacement was committed must not find the old key free.


async def test_a_registration_that_waits_for_the_replacement_of_its_key_is_refused(
    agents: Agents, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    old, new = Agent(), Agent()
    id_ = (await register(agents, old)).id
    async with ledger.transaction() as tx:
        await replace_key(tx, id_, new.public_key, NOW, old_valid_for=FIVE_MINUTES)
        of_old = asyncio.create_task(register(agents, old))
        await until_somebody_waits(connection)
    with pytest.raises(Conflict, match="replaced"):
        await of_old
    assert await owners(connection, old) == [id_]


async def test_a_registration_that_waits_for_a_replacement_by_its_key_finds_the_agent(
    agents: Agents, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    old, new = Agent(), Agent()
    id_ = (await register(agents, old)).id
    async with ledger.transaction() as tx:
        await replace_key(tx, id_, new.public_key, NOW, old_valid_for=FIVE_MINUTES)
        of_new = asyncio.create_task(register(agents, new))
        await until_somebody_waits(connection)
    assert await of_new == RegistrationOutcome(id_, new=False)
    assert await owners(connection, new) == [id_]


async def test_a_replacement_by_a_key_that_is_being_registered_is_refused(
    agents: Agents, ledger: Ledger, connection: asyncpg.Connection, database_url: str
) -> None:
    """Also when the registration takes no lock, as in a release that knows no replacements."""
    old, new, other = Agent(), Agent(), await asyncpg.connect(database_url)
    id_ = (await register(agents, old)).id
    async with other.transaction():
        await other.execute(
            "INSERT INTO agents SELECT gen_random_uuid(), 'other', $1, $2, '', '', true, registered_at FROM agents",
            new.public_key,
            new.key_id,
        )
        replacing = asyncio.create_task(replace(ledger, str(id_), new))
        await until_somebody_waits(connection)
    with pytest.raises(Conflict):
        await replacing
    await other.close()
    assert (await agents.by_id(id_)).public_key == old.public_key


async def test_two_agents_that_swap_their_keys_at_once_are_both_refused_and_wait_in_no_circle(
    agents: Agents, ledger: Ledger
) -> None:
    for _ in range(20):
        ann, bob = Agent(), Agent()
        await register(agents, ann)
        await register(agents, bob)
        swapped = await asyncio.gather(
            replace(ledger, ann.id, bob), replace(ledger, bob.id, ann), return_exceptions=True
        )
        assert [type(result) for result in swapped] == [Conflict, Conflict]


async def test_of_two_agents_that_take_one_new_key_at_once_one_gets_it(
    agents: Agents, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    for _ in range(20):
        ann, bob, prize = Agent(), Agent(), Agent()
        await register(agents, ann)
        await register(agents, bob)
        taken = await asyncio.gather(
            replace(ledger, ann.id, prize), replace(ledger, bob.id, prize), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in taken) == ["Conflict", "NoneType"]
        assert len(await owners(connection, prize)) == 1


async def test_a_new_key_that_was_found_free_stays_free_until_the_replacement_is_committed(
    agents: Agents, ledger: Ledger, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another agent could otherwise take it, and leave it, in between: then it is former and free at once."""
    ann, bob, prize = Agent(), Agent(), Agent()
    await register(agents, ann)
    await register(agents, bob)
    looked, go_on, look = asyncio.Event(), asyncio.Event(), store.ever_used

    async def look_and_wait(tx: Tx, public_key: bytes) -> bool:
        used = await look(tx, public_key)
        looked.set()
        await go_on.wait()
        return used

    monkeypatch.setattr(store, "ever_used", look_and_wait)
    anns = asyncio.create_task(replace(ledger, ann.id, prize))
    await looked.wait()
    monkeypatch.undo()
    bobs = asyncio.create_task(replace(ledger, bob.id, prize))
    try:
        await until_somebody_waits(connection)
    finally:
        go_on.set()
    await anns
    with pytest.raises(Conflict):
        await bobs
    assert await owners(connection, prize) == [UUID(ann.id)]


async def test_however_registrations_and_replacements_race_each_key_has_one_owner(
    ledger: Ledger, connection: asyncpg.Connection
) -> None:
    processes = [Agents(ledger) for _ in range(4)]
    for _ in range(30):
        ann, bob, first, second = Agent(), Agent(), Agent(), Agent()
        await register(processes[0], ann)
        await register(processes[0], bob)
        keys = (ann, bob, first, second)
        results = await asyncio.gather(
            replace(ledger, ann.id, first),
            *(process.register(key.public_text, "", "", NOW) for process in processes for key in keys),
            replace(ledger, ann.id, second),
            replace(ledger, bob.id, first),
            replace(ledger, bob.id, ann),
            return_exceptions=True,
        )
        assert all(isinstance(r, RegistrationOutcome | AngeliaError | None) for r in results), results
        assert [len(await owners(connection, key)) for key in keys] == [1, 1, 1, 1]


# What a process remembers.


async def test_a_read_that_overlaps_a_replacement_is_not_remembered(
    agents: Agents, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Agent(), Agent()
    await register(agents, old)
    read_it, go_on = asyncio.Event(), asyncio.Event()
    by_key_ids = store.by_key_ids

    async def slow(*args):
        """Finds what there is, and says it late."""
        found = await by_key_ids(*args)
        read_it.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(store, "by_key_ids", slow)
    late = asyncio.create_task(agents.by_key_id(old.key_id, NOW))
    await read_it.wait()
    monkeypatch.setattr(store, "by_key_ids", by_key_ids)
    async with agents.changing(UUID(old.id)) as tx:
        await replace_key(tx, UUID(old.id), new.public_key, NOW, old_valid_for=timedelta(0))
    go_on.set()
    assert (await late)[1] == old.public_key
    assert await agents.by_key_id(old.key_id, NOW) is None
