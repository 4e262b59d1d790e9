"""Whose keys an agent may read is what the rules say; whoever may not read them does not learn whether they exist."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

import asyncpg
import pytest

from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect
from http_agents import Server
from keyholder import KeyHolder, KeySlice

WAYS = ["/v1/keys/bundle/{}", "/v1/keys/bundle/{}?one_time=true", "/v1/keys/bundle/{}?since=0", "/v1/keys/{}/history"]


@pytest.fixture
async def locked_down(keys_slice: KeySlice, now: datetime) -> KeySlice:
    """A server whose operator has removed the starter rules."""
    for rule in (await keys_slice.policy.rules(None, 100))[0]:
        await keys_slice.policy.remove("op", rule.rule_id, now)
    return keys_slice


async def allow(keys: KeySlice, now: datetime, subject: str, object: str, **how: str) -> None:
    await keys.policy.add("op", PolicyRuleBody(Effect.ALLOW, Action.READ_KEYS, subject, object, **how), now)


@pytest.mark.parametrize("way", WAYS)
async def test_keys_are_read_by_whom_the_rules_let(
    locked_down: KeySlice, server: Server, alice: KeyHolder, bob: KeyHolder, now: datetime, way: str
) -> None:
    assert (await bob.get(server, way.format("alice"))).status_code == 403
    await allow(locked_down, now, "bob", "al*")
    assert (await bob.get(server, way.format("alice"))).status_code == 200
    assert (await bob.get(server, way.format(alice.id))).status_code == 200
    assert (await alice.get(server, way.format("bob"))).status_code == 403


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_always_reads_its_own_keys(
    locked_down: KeySlice, server: Server, alice: KeyHolder, way: str
) -> None:
    for name in ("alice", alice.id):
        assert (await alice.get(server, way.format(name))).status_code == 200


@pytest.mark.parametrize("way", [way for way in WAYS if "one_time" not in way])
async def test_an_operator_without_an_agent_is_not_asked(
    locked_down: KeySlice, server: Server, alice: KeyHolder, way: str
) -> None:
    assert (await server.get(way.format("alice"), headers=server.admin)).status_code == 200


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_that_may_not_be_read_and_one_that_does_not_exist_answer_alike(
    locked_down: KeySlice, server: Server, alice: KeyHolder, bob: KeyHolder, now: datetime, way: str
) -> None:
    bare = await KeyHolder().claim(server, "bare")  # exists, without a bundle
    nobody = str(uuid4())
    await allow(locked_down, now, "bob", "carol*")

    async def told(name: str) -> tuple[int, str, str, str]:
        answer = await bob.get(server, way.format(name))
        said = answer.json()
        return answer.status_code, said["code"], said["title"].replace(name, "X"), said["hint"].replace(name, "X")

    for there, not_there in (("alice", "alicf"), ("bare", "barf"), (alice.id, nobody), (bare.id, nobody)):
        assert await told(there) == await told(not_there)
        assert (await told(there))[:2] == (403, "authorization_denied")
    assert (await told("carol"))[:2] == (404, "not_found")
    # Where the text of an id is allowed, one that leads to a denied handle is one that nobody has.
    for id_ in (alice.id, bare.id, nobody):
        await allow(locked_down, now, "bob", f"{id_[:8]}*")
    for id_ in (alice.id, bare.id):
        assert await told(id_) == await told(nobody)
        assert (await told(id_))[:2] == (404, "not_found")


async def test_a_denied_request_takes_no_one_time_key(
    locked_down: KeySlice, server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    await alice.post(server, "/v1/keys/prekeys", {"one_time_keys": []})
    assert (await alice.publish(server, alice.bundle(), alice.one_time_keys(2))).status_code == 201
    assert (await bob.get(server, "/v1/keys/bundle/alice?one_time=true")).status_code == 403
    assert (await alice.get(server, "/v1/keys/prekeys/count")).json() == {"count": 2}


async def test_a_rate_limits_how_often_keys_are_read_also_of_nobody(
    locked_down: KeySlice, server: Server, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    await allow(locked_down, now, "bob", "*", rate="3/1h")
    names = ("alice", "nobody", "alice", "alice")
    answers = [await bob.get(server, f"/v1/keys/bundle/{name}") for name in names]
    assert [answer.status_code for answer in answers] == [200, 404, 200, 429]
    assert int(answers[-1].headers["retry-after"]) > 3500
    assert (await bob.get(server, "/v1/keys/bundle/bob")).status_code == 200


async def test_rules_that_cannot_be_read_are_a_503_and_give_nothing_away(
    server: Server, alice: KeyHolder, bob: KeyHolder, connection: asyncpg.Connection
) -> None:
    await connection.execute("ALTER TABLE policy_version RENAME TO gone")
    for name in ("alice", "nobody"):
        answer = await bob.get(server, f"/v1/keys/bundle/{name}")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
