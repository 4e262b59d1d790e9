"""Rules over HTTP: who may see and change them, and what others learn of them."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from angelia.errors import StartFailed
from http_agents import Agent, Server

RULE = {"effect": "allow", "action": "send", "subject": "team-*", "object": "bob"}


async def add(server: Server, **values: Any) -> httpx.Response:
    return await server.post("/v1/policies", json={**RULE, **values}, headers=server.admin)


async def rules(server: Server, query: str = "") -> dict[str, Any]:
    return (await server.get(f"/v1/policies{query}", headers=server.admin)).json()


async def remove_all(server: Server) -> None:
    for rule in (await rules(server))["policies"]:
        answer = await server.request("DELETE", f"/v1/policies/{rule['rule_id']}", headers=server.admin)
        assert answer.status_code == 204


async def ask(server: Server, agent: Agent | None, **question: Any) -> httpx.Response:
    body = json.dumps({"action": "send", "object": "bob", **question}).encode()
    if agent is not None:
        return await server.send_signed(agent, "POST", "/v1/authz/check", body)
    headers = {**server.admin, "content-type": "application/json"}
    return await server.post("/v1/authz/check", content=body, headers=headers)


async def test_a_rule_is_made_listed_and_removed(start) -> None:
    server: Server = await start()
    await remove_all(server)
    made = await add(server, priority=7, rate="100/1m", expires_in=3600)
    assert made.status_code == 201
    rule = made.json()
    assert {name: rule[name] for name in RULE} == RULE
    assert (rule["priority"], rule["rate"]) == (7, "100/1m")
    assert rule["created_by"].startswith("token ")
    assert rule["expires_at"] > rule["created_at"]
    assert await rules(server) == {"policies": [rule], "next": None, "total": 1}
    path = f"/v1/policies/{rule['rule_id']}"
    assert (await server.request("DELETE", path, headers=server.admin)).status_code == 204
    gone = await server.request("DELETE", path, headers=server.admin)
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")
    assert (await server.request("DELETE", "/v1/policies/x", headers=server.admin)).status_code == 400


async def test_the_list_comes_in_pages(start) -> None:
    server: Server = await start()
    await remove_all(server)
    made = [(await add(server, object=f"bob-{n}")).json()["rule_id"] for n in range(5)]
    first = await rules(server, "?limit=3")
    second = await rules(server, f"?limit=3&cursor={first['next']}")
    assert [rule["rule_id"] for rule in first["policies"] + second["policies"]] == made
    assert (first["total"], second["next"]) == (5, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"effect": "maybe"},
        {"action": "fly"},
        {"subject": "A*"},
        {"object": "bob/news"},
        {"object": ".*"},
        {"rate": "often"},
        {"effect": "deny", "rate": "1/1m"},
        {"priority": 1_000_001},
        {"priority": "high"},
        {"expires_in": 0},
        {"note": "an unknown field"},
        {"rule_id": str(uuid4())},
    ],
)
async def test_a_rule_that_cannot_be_one_is_refused(start, wrong: dict[str, Any]) -> None:
    server: Server = await start()
    before = await rules(server)
    answer = await add(server, **wrong)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert await rules(server) == before


async def test_only_operators_see_and_change_rules(start) -> None:
    server: Server = await start()
    agent = await server.register()
    token = await server.post("/v1/tokens", json={"role": "read-write"}, headers=server.admin)
    bearer = {"authorization": f"Bearer {token.json()['token']}"}
    for method, path, body in (
        ("GET", "/v1/policies", b""),
        ("POST", "/v1/policies", json.dumps(RULE).encode()),
        ("DELETE", f"/v1/policies/{uuid4()}", b""),
    ):
        assert (await server.send_signed(agent, method, path, body)).status_code == 403
        headers = {**bearer, "content-type": "application/json"}
        assert (await server.request(method, path, content=body, headers=headers)).status_code == 403
        assert (await server.request(method, path)).status_code == 401


# Asking.


async def test_an_agent_asks_about_itself_and_never_learns_which_rule_it_was(start) -> None:
    server: Server = await start()
    agent, other = await server.register(), await server.register()
    for named in ({}, {"subject": agent.id}):
        assert (await ask(server, agent, **named)).json() == {"allowed": True, "rule_id": None}
    await add(server, effect="deny", subject=agent.id, object="*", priority=1)
    assert (await ask(server, agent)).json() == {"allowed": False, "rule_id": None}
    assert (await ask(server, other)).json() == {"allowed": True, "rule_id": None}
    about_another = await ask(server, agent, subject=other.id)
    assert (about_another.status_code, about_another.json()["code"]) == (403, "authorization_denied")


async def test_an_operator_asks_about_anybody_and_learns_the_rule(start) -> None:
    server: Server = await start()
    await remove_all(server)
    assert (await ask(server, None, subject="team-a")).json() == {"allowed": False, "rule_id": None}
    allows = (await add(server)).json()["rule_id"]
    assert (await ask(server, None, subject="team-a")).json() == {"allowed": True, "rule_id": allows}
    denies = (await add(server, effect="deny")).json()["rule_id"]
    assert (await ask(server, None, subject="team-a")).json() == {"allowed": False, "rule_id": denies}
    assert (await ask(server, None)).status_code == 400


async def test_a_question_names_agents_and_has_no_unknown_fields(start) -> None:
    server: Server = await start()
    for wrong in ({"subject": "a*"}, {"object": "*"}, {"object": "a/b"}, {"action": "fly"}, {"extra": 1}):
        answer = await ask(server, None, **{"subject": "alice", **wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), wrong
    channel = await ask(server, None, subject="alice", action="channel.publish", object="bob/news")
    assert channel.json()["allowed"] is True


async def test_questions_are_limited(start) -> None:
    server: Server = await start(limits={"policy": "2/1m"})
    agent = await server.register()
    assert [(await ask(server, agent)).status_code for _ in range(3)] == [200, 200, 429]


# What a start does.


async def test_a_first_start_on_loopback_allows_and_a_later_one_restores_nothing(start) -> None:
    server: Server = await start()
    assert (await rules(server))["total"] == 4
    await remove_all(server)
    again: Server = await start()
    assert (await rules(again))["total"] == 0


@pytest.mark.parametrize(
    "reach",
    [
        {"host": "192.0.2.1", "public_url": "http://192.0.2.1"},
        {"public_url": "https://angelia.example"},
        {"trusted_proxies": ("10.0.0.1",)},
    ],
)
async def test_a_server_that_others_reach_starts_with_nothing_allowed(start, reach: dict[str, Any]) -> None:
    server: Server = await start(insecure=True, **reach)
    assert (await rules(server))["total"] == 0


async def test_a_start_that_was_refused_decides_nothing(start) -> None:
    with pytest.raises(StartFailed, match="can be reached from elsewhere"):
        await start(host="192.0.2.1")
    server: Server = await start()
    assert (await rules(server))["total"] == 4
