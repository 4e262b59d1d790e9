"""A replaced key still signs requests for its agent, for the time that it was given and not a moment longer."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from angelia.agents.service import replace_key
from angelia.http import edge
from angelia.stores.ledger import Ledger
from guarded_routes import Gate
from http_agents import Agent

FIVE_MINUTES = timedelta(seconds=300)
A_MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
def replaced(ledger: Ledger):
    """Replace the key of an agent, as a signer rotation does; gives the new key, which has the same id."""

    async def run(
        it: Gate, agent: Agent, *, ago: timedelta = timedelta(0), old_valid_for: timedelta = FIVE_MINUTES
    ) -> Agent:
        new = Agent()
        new.id = agent.id
        at = edge.clock() - ago
        async with it.agents.changing(UUID(agent.id)) as tx:
            await replace_key(tx, UUID(agent.id), new.public_key, at, old_valid_for=old_valid_for)
        return new

    return run


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch):
    def set_to(moment: datetime) -> None:
        monkeypatch.setattr(edge, "clock", lambda: moment)

    return set_to


async def status(it: Gate, agent: Agent, **how: object) -> int:
    return (await it.send(agent, "GET", "/v1/signed", **how)).status_code


async def aicq_status(it: Gate, agent: Agent) -> int:
    return (await it.client.get("/signed", headers=agent.aicq())).status_code


async def test_after_a_replacement_both_keys_sign_for_the_same_agent(gate, replaced) -> None:
    it = gate()
    old = await it.agent()
    new = await replaced(it, old)
    for key in (old, new):
        answer = await it.send(key, "POST", "/v1/own", b"{}")
        assert answer.json() == {"caller": old.id, "role": "read-write"}
        assert it.executed[-1].caller.agent.public_key == new.public_key
        assert await aicq_status(it, key) == 200


@pytest.mark.parametrize("send", [status, aicq_status])
async def test_the_old_key_is_good_for_300_seconds_and_no_millisecond_more(gate, replaced, set_clock, send) -> None:
    it = gate()
    old = await it.agent()
    now = datetime.now(UTC)
    set_clock(now)
    new = await replaced(it, old, ago=FIVE_MINUTES)
    assert await send(it, old) == 200
    set_clock(now + A_MILLISECOND)
    assert await send(it, old) == 401
    assert await send(it, new) == 200


@pytest.mark.parametrize("send", [status, aicq_status])
async def test_in_an_emergency_the_old_key_is_good_for_nothing(gate, replaced, set_clock, send) -> None:
    it = gate()
    old = await it.agent()
    now = datetime.now(UTC)
    set_clock(now)
    new = await replaced(it, old, old_valid_for=timedelta(0))
    for lagging in (timedelta(0), A_MILLISECOND, timedelta(seconds=2)):
        set_clock(now - lagging)
        assert await send(it, old) == 401
    assert await send(it, new) == 200


@pytest.mark.parametrize("send", [status, aicq_status])
async def test_an_emergency_ends_the_keys_before_too(gate, replaced, send) -> None:
    it = gate()
    first = await it.agent()
    second = await replaced(it, first)
    assert await send(it, first) == 200
    third = await replaced(it, second, old_valid_for=timedelta(0))
    assert [await send(it, key) for key in (first, second, third)] == [401, 401, 200]


@pytest.mark.parametrize("send", [status, aicq_status])
async def test_keys_replaced_one_after_the_other_end_one_after_the_other(gate, replaced, set_clock, send) -> None:
    it = gate()
    first = await it.agent()
    set_clock(now := datetime.now(UTC))
    second = await replaced(it, first, ago=timedelta(seconds=299))
    third = await replaced(it, second, ago=timedelta(seconds=298))
    assert [await send(it, key) for key in (first, second, third)] == [200, 200, 200]
    set_clock(now + timedelta(seconds=1.5))
    assert [await send(it, key) for key in (first, second, third)] == [401, 200, 200]


async def test_what_a_process_remembers_of_a_key_does_not_outlive_its_replacement(gate, replaced) -> None:
    it = gate()
    old = await it.agent()
    assert await status(it, old) == 200  # and is remembered for a second
    await replaced(it, old, old_valid_for=timedelta(0))
    assert await status(it, old) == 401


async def test_a_remembered_key_is_not_good_past_its_time(gate, replaced, set_clock) -> None:
    it = gate()
    old = await it.agent()
    set_clock(now := datetime.now(UTC))
    await replaced(it, old, ago=FIVE_MINUTES)
    assert [await status(it, old) for _ in range(3)] == [200] * 3
    set_clock(now + A_MILLISECOND)
    assert await status(it, old) == 401


async def test_a_captured_request_is_not_good_under_the_other_key(gate, replaced) -> None:
    it = gate()
    old = await it.agent()
    captured = old.signed("GET", "/v1/signed")
    assert (await it.client.get("/v1/signed", headers=captured)).status_code == 200
    new = await replaced(it, old)
    again = await it.client.get("/v1/signed", headers=captured)
    assert (again.status_code, again.json()["code"]) == (401, "replay_rejected")
    respelt = captured["signature-input"].replace(str(old.key_id), str(new.key_id))
    again = await it.client.get("/v1/signed", headers=captured | {"signature-input": respelt})
    assert (again.status_code, again.json()["code"]) == (401, "unauthenticated")
    assert await status(it, old, keyid=new.key_id) == 401
    assert await status(it, new, keyid=old.key_id) == 401
    assert len(it.executed) == 1


async def test_a_nonce_is_spent_for_the_agent_whichever_key_signs(gate, replaced) -> None:
    it = gate()
    old = await it.agent()
    new = await replaced(it, old)
    nonce = secrets.token_urlsafe(18)
    assert [await status(it, key, nonce=nonce) for key in (old, new)] == [200, 401]
    captured = old.aicq()
    answers = [await it.client.get("/signed", headers=captured) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 401]


async def test_the_old_key_of_one_agent_does_not_sign_for_another(gate, replaced) -> None:
    it = gate()
    ann, bob = await it.agent(), await it.agent()
    await replaced(it, ann)
    assert (await it.client.get("/signed", headers=ann.aicq() | {"x-aicq-agent": bob.id})).status_code == 401
