"""What processes tell each other about addresses, and what a process does that may have missed something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis.asyncio

from angelia.api import Caller
from angelia.guard import blocks as blocks_module
from angelia.guard import recent_failures
from angelia.guard.model import parse_address
from angelia.guard.recent_failures import RecentFailures
from angelia.settings import Settings
from angelia.stores import wake as wake_module
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from guarded_routes import Gate

STRANGER = "192.0.2.7"
OPERATOR = Caller(parse_address("10.0.0.1"), name="operator")
MINUTE = 60.0


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def elsewhere(gate: Any, ledger: Ledger, redis_url: str) -> AsyncIterator[Callable[..., Gate]]:
    """`elsewhere(…)` is a gate of another process on the same stores; values are settings."""
    made: list[tuple[Gate, HotTier]] = []

    def make(**values: Any) -> Gate:
        hot = HotTier(redis_url)
        made.append((Gate(ledger, hot, Settings(**values), open_mode=False), hot))
        return made[-1][0]

    yield make
    for it, hot in made:
        await it.client.aclose()
        await it.wake.close()
        await hot.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what is looked at tells nobody
            await asyncio.sleep(0.005)


async def has_heard_for(it: Gate, seconds: float = 2 * MINUTE) -> None:
    """Waits until the process hears the others, and lets it believe that it has for so long."""
    topics = (recent_failures.TOPIC, blocks_module.TOPIC)
    await until(lambda: all(it.wake.heard_since(topic) is not None for topic in topics))
    for topic in topics:
        it.wake._topics[topic].since -= seconds


def may_have_failed(it: Gate, address: str = STRANGER) -> bool:
    return it.guard._limiter._failures.may_include(address)


async def scripts_run(client: redis.asyncio.Redis) -> int:
    stats = await client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


# How often the hot tier is asked.


async def test_a_signed_request_runs_one_script(gate, client: redis.asyncio.Redis) -> None:
    it = gate()
    agent = await it.agent()
    await has_heard_for(it)
    await it.send(agent, "GET", "/v1/limited")  # the server has to be taught the script
    before = await scripts_run(client)
    assert (await it.send(agent, "GET", "/v1/limited")).status_code == 200
    assert await scripts_run(client) - before == 1


async def test_a_token_and_open_mode_run_none(gate, client: redis.asyncio.Redis) -> None:
    it, open_one = gate(), gate(open_mode=True)
    agent = await it.agent()
    _, text = await it.tokens.make(OPERATOR, datetime.now(UTC), role="read-write", agent=agent.id, label="", life=None)
    await has_heard_for(it)
    await has_heard_for(open_one)
    before = await scripts_run(client)
    assert (await it.client.get("/v1/signed", headers={"authorization": f"Bearer {text}"})).status_code == 200
    assert (await open_one.client.post("/api/v1/work")).status_code == 200
    assert await scripts_run(client) == before


async def test_a_process_that_was_just_started_asks_for_every_request(gate, client: redis.asyncio.Redis) -> None:
    it = gate()
    agent = await it.agent()
    await has_heard_for(it, MINUTE - 1)
    await it.send(agent, "GET", "/v1/signed")
    before = await scripts_run(client)
    assert (await it.send(agent, "GET", "/v1/signed")).status_code == 200
    assert await scripts_run(client) - before == 2


async def test_a_process_whose_line_broke_asks_again_for_a_whole_window(gate, client: redis.asyncio.Redis) -> None:
    it = gate()
    await has_heard_for(it)
    assert not may_have_failed(it)
    for one in await client.client_list():
        if int(one["sub"]) > 0:
            await client.client_kill_filter(_id=one["id"])
    await until(lambda: it.wake.heard_since(recent_failures.TOPIC) is None)
    assert may_have_failed(it)
    await until(lambda: it.wake.heard_since(recent_failures.TOPIC) is not None)
    assert may_have_failed(it), "a failure of the last minute may have been missed"
    await has_heard_for(it)
    assert not may_have_failed(it)


# Failed credentials.


async def test_failures_are_counted_exactly_in_a_process_that_does_not_ask_for_others(gate) -> None:
    it = gate(limits={"unproven": "5/1m", "register": "off"})
    agent = await it.agent()
    await has_heard_for(it)
    stranger = it.client_from(STRANGER)
    assert [(await stranger.get("/v1/signed")).status_code for _ in range(7)] == [401] * 5 + [429] * 2
    assert (await stranger.get("/v1/signed", headers=agent.signed("GET", "/v1/signed"))).status_code == 429
    assert (await it.send(agent, "GET", "/v1/signed")).status_code == 200


async def test_a_failure_that_another_process_saw_is_known_here(gate, elsewhere) -> None:
    limits = {"unproven": "5/1m", "register": "off"}
    it, other = gate(limits=limits), elsewhere(limits=limits)
    for one in (it, other):
        await has_heard_for(one)
    assert not may_have_failed(it)
    for _ in range(5):
        assert (await other.client_from(STRANGER).get("/v1/signed")).status_code == 401
    await until(lambda: may_have_failed(it))
    assert (await it.client_from(STRANGER).get("/v1/signed")).status_code == 429
    assert not may_have_failed(it, "192.0.2.8")


async def test_a_failure_is_forgotten_when_it_counts_no_more(hot: HotTier) -> None:
    wake = Wake(hot)
    failures = RecentFailures(wake, 60)
    await until(lambda: wake.heard_since(recent_failures.TOPIC) is not None)
    wake._topics[recent_failures.TOPIC].since -= 2 * MINUTE
    failures.note("a")
    failures.note("b")
    failures._kept_until["a"] -= 2 * MINUTE
    assert (failures.may_include("a"), failures.may_include("b")) == (False, True)
    failures.note("c")
    assert list(failures._kept_until) == ["b", "c"]
    await wake.close()


async def test_too_many_failures_to_remember_make_every_address_a_suspect(
    hot: HotTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_failures, "_MOST", 3)
    wake = Wake(hot)
    failures = RecentFailures(wake, 60)
    await until(lambda: wake.heard_since(recent_failures.TOPIC) is not None)
    wake._topics[recent_failures.TOPIC].since -= 2 * MINUTE
    for subject in ("a", "b", "c"):
        failures.note(subject)
    assert not failures.may_include("quiet")
    failures.note("d")
    assert failures.may_include("quiet")
    await wake.close()


# Blocks.


async def test_a_block_of_another_process_stops_an_address_before_its_body_is_read(gate, elsewhere) -> None:
    it, other = gate(), elsewhere()
    for one in (it, other):
        await has_heard_for(one)
    await other.blocks.block(OPERATOR, STRANGER, "noise", None, datetime.now(UTC))
    await until(lambda: it.blocks.includes(STRANGER, datetime.now(UTC)))

    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was asked for")
        yield b""

    for method, path in (("GET", "/other"), ("GET", "/v1/signed"), ("POST", "/v1/signed")):
        more = {"content": body(), "headers": {"content-type": "application/json"}} if method == "POST" else {}
        assert (await it.client_from(STRANGER).request(method, path, **more)).status_code == 403


async def test_a_block_that_another_process_lifts_ends_here_too(gate, elsewhere) -> None:
    it, other = gate(), elsewhere()
    now = datetime.now(UTC)
    for one in (it, other):
        await has_heard_for(one)
    for refreshed in (False, True):
        await other.blocks.block(OPERATOR, STRANGER, "", timedelta(hours=1), now)
        await until(lambda: it.blocks.includes(STRANGER, now))
        if refreshed:
            await it.blocks.refresh(now)
        await other.blocks.unblock(OPERATOR, STRANGER, now)
        await until(lambda: not it.blocks.includes(STRANGER, now))
        assert (await it.client_from(STRANGER).get("/other")).status_code == 200


async def test_an_automatic_block_reaches_the_other_processes(gate, elsewhere) -> None:
    limits = {"looks": "1/1m", "register": "off"}
    it, other = gate(auto_block_enabled=True, limits=limits), elsewhere(auto_block_enabled=True, limits=limits)
    for one in (it, other):
        await has_heard_for(one)
    noisy = other.client_from(STRANGER)
    statuses = [(await noisy.get("/looks")).status_code for _ in range(12)]
    assert statuses == [200] + [429] * 10 + [403]
    await until(lambda: it.blocks.includes(STRANGER, datetime.now(UTC)))
    assert (await it.client_from(STRANGER).get("/v1/signed")).status_code == 403
    assert (await it.client_from(STRANGER).get("/other")).status_code == 403


async def test_an_automatic_block_that_the_ledger_missed_is_recorded_later(
    gate, ledger: Ledger, dead_ledger: Ledger
) -> None:
    it, now = gate(), datetime.now(UTC)
    it.blocks._ledger = dead_ledger
    await it.blocks.record_automatic(blocks_module.automatic_block(STRANGER, now))
    it.blocks._ledger = ledger
    assert it.blocks.includes(STRANGER, now)
    assert (await it.blocks.list_blocks(now, None, 10))[0] == []
    await it.blocks.refresh(now)
    assert [one.address for one in (await it.blocks.list_blocks(now, None, 10))[0]] == [STRANGER]
    assert it.blocks.includes(STRANGER, now)


async def test_after_an_interruption_the_ledger_decides_and_no_block_is_lost_before(gate, elsewhere) -> None:
    it, other, now = gate(), elsewhere(), datetime.now(UTC)
    await has_heard_for(it)
    await other.blocks.block(OPERATOR, STRANGER, "", None, now)
    await until(lambda: it.blocks.includes(STRANGER, now))
    it.wake.ring_all()  # as after an interruption
    assert it.blocks.includes(STRANGER, now)
    it.wake._topics[blocks_module.TOPIC].ears.clear()  # what is said next is missed
    await other.blocks.unblock(OPERATOR, STRANGER, now)
    await it.blocks.refresh(now)
    assert not it.blocks.includes(STRANGER, now)


async def test_while_the_hot_tier_is_away_a_block_holds_and_ends_in_all_processes_by_the_ledger(
    gate, dead_hot_tier: HotTier
) -> None:
    it, other = gate(hot=dead_hot_tier), gate(hot=dead_hot_tier)
    now, stranger = datetime.now(UTC), it.client_from(STRANGER)
    assert (await stranger.get("/other")).status_code == 200
    await other.blocks.block(OPERATOR, STRANGER, "noise", None, now)
    assert not await it.blocks.refresh(now)
    assert (await stranger.get("/other")).status_code == 403
    await other.blocks.unblock(OPERATOR, STRANGER, now)
    assert not await it.blocks.refresh(now)
    assert (await stranger.get("/other")).status_code == 200


async def test_a_process_that_hears_nothing_does_not_keep_a_block_that_another_one_lifted(
    gate, elsewhere, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, now = gate(), datetime.now(UTC)
    await has_heard_for(it)
    monkeypatch.setattr(wake_module, "_RECONNECT_SECONDS", MINUTE)
    for one in await client.client_list():
        if int(one["sub"]) > 0:
            await client.client_kill_filter(_id=one["id"])
    await until(lambda: it.wake.heard_since(blocks_module.TOPIC) is None)
    await it.blocks.refresh(now)
    await it.blocks.block(OPERATOR, STRANGER, "", None, now)
    assert it.blocks.includes(STRANGER, now)
    await elsewhere().blocks.unblock(OPERATOR, STRANGER, now)
    assert it.blocks.includes(STRANGER, now), "nothing told it"
    assert not await it.blocks.refresh(now)
    assert not it.blocks.includes(STRANGER, now)
