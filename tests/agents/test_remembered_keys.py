"""What a web process remembers of agents by their request keys, and for how long."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from angelia.agents import store
from angelia.agents.service import CHANGES, Agents, replace_key
from angelia.errors import Unavailable
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from http_agents import Agent

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
async def processes(ledger: Ledger, hot: HotTier) -> AsyncIterator[tuple[Agents, Agents]]:
    """The agents of two web processes, which hear of each other's changes."""
    wakes = Wake(hot), Wake(hot)
    one, other = (Agents(ledger, wake) for wake in wakes)
    for wake in wakes:
        async with wake.listening(CHANGES):  # until both subscribe
            pass
    yield one, other
    for wake in wakes:
        await wake.close()


async def register(agents: Agents, agent: Agent) -> None:
    agent.id = str((await agents.register(agent.public_text, "", "", NOW)).id)


async def replace(opened: AbstractAsyncContextManager[Tx], old: Agent, new: Agent) -> None:
    """Replaces a key without any grace."""
    async with opened as tx:
        await replace_key(tx, UUID(old.id), new.public_key, NOW, old_valid_for=timedelta(0))


async def test_a_key_that_another_process_replaced_is_refused_at_once(
    processes: tuple[Agents, Agents],
) -> None:
    one, other = processes
    old, new = Agent(), Agent()
    await register(one, old)
    assert await other.by_key_id(old.key_id, NOW)
    assert other._wake
    async with other._wake.listening(CHANGES) as bell:
        await replace(one.changing(UUID(old.id)), old, new)
        assert await bell.wait(5)
    assert await other.by_key_id(old.key_id, NOW) is None


async def test_an_agent_is_forgotten_also_when_its_change_may_have_been_committed(
    processes: tuple[Agents, Agents], ledger: Ledger
) -> None:
    agents, _ = processes
    old, new = Agent(), Agent()
    await register(agents, old)
    assert await agents.by_key_id(old.key_id, NOW)

    async def unclear() -> None:
        async with agents.changing(UUID(old.id)):
            await replace(ledger.transaction(), old, new)
            raise Unavailable("the connection broke during the commit")

    with pytest.raises(Unavailable):
        await unclear()
    assert await agents.by_key_id(old.key_id, NOW) is None


async def test_a_process_that_sees_the_new_key_forgets_the_old_one(ledger: Ledger) -> None:
    agents, old, new = Agents(ledger), Agent(), Agent()
    await register(agents, old)
    assert await agents.by_key_id(old.key_id, NOW)
    await replace(ledger.transaction(), old, new)
    assert await agents.by_key_id(new.key_id, NOW)
    assert await agents.by_key_id(old.key_id, NOW) is None


async def test_an_agent_is_remembered_for_ten_seconds_and_for_one_while_no_wake_ups_come(
    processes: tuple[Agents, Agents], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf, (heard, _) = Agents(ledger), processes
    old, new = Agent(), Agent()
    await register(heard, old)
    for process in (deaf, heard):
        assert await process.by_key_id(old.key_id, NOW)
    await replace(ledger.transaction(), old, new)  # by a process that dies before it tells the others
    began = time.monotonic()
    for seconds, seen_by in ((0.5, {deaf, heard}), (1.5, {heard}), (9.5, {heard}), (10.5, set())):
        monkeypatch.setattr("angelia.agents.service.monotonic", lambda at=began + seconds: at)
        assert {one for one in (deaf, heard) if await one.by_key_id(old.key_id, NOW)} == seen_by


async def test_what_was_read_before_wake_ups_were_interrupted_is_remembered_for_a_second(
    processes: tuple[Agents, Agents], monkeypatch: pytest.MonkeyPatch
) -> None:
    agents, _ = processes
    old = Agent()
    await register(agents, old)
    assert await agents.by_key_id(old.key_id, NOW)
    began = time.monotonic()
    monkeypatch.setattr(agents._wake, "heard_since", lambda _: began)  # as if they came again only now
    monkeypatch.setattr("angelia.agents.service.monotonic", lambda: began + 1.5)
    asked: list[UUID] = []
    by_key_ids = store.by_key_ids

    async def counted(tx: Tx, ids: list[UUID]):
        asked.extend(ids)
        return await by_key_ids(tx, ids)

    monkeypatch.setattr(store, "by_key_ids", counted)
    for _ in range(2):
        assert await agents.by_key_id(old.key_id, NOW)
    assert asked == [old.key_id]
