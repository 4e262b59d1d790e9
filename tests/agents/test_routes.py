"""The promises of /register, /who and the agent's own record."""

from __future__ import annotations

import asyncio
import base64
import json
import re

import pytest

from http_agents import Agent, Server

BAD_KEY = "invalid public_key: must be base64-encoded Ed25519 public key (32 bytes)"


async def test_a_new_key_becomes_an_agent_and_a_known_one_is_found(start) -> None:
    server: Server = await start()
    agent = Agent()
    first = await server.post("/register", json={"public_key": agent.public_text, "name": " Ann\x07 "})
    again = await server.post("/register", json={"public_key": agent.public_text, "name": "Somebody else"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json() == {"id": first.json()["id"], "profile_url": f"/who/{first.json()['id']}"}
    assert first.text.endswith("}\n")

    who = await server.get(f"/who/{first.json()['id']}")
    assert who.json()["name"] == "Ann"
    assert who.json()["public_key"] == agent.public_text
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", who.json()["joined_at"])


async def test_an_empty_name_and_email_are_left_out_of_the_profile(start) -> None:
    server: Server = await start()
    agent = await server.register()
    assert set((await server.get(f"/who/{agent.id}")).json()) == {"id", "public_key", "joined_at"}


async def test_email_is_published_only_when_the_operator_says_so(start) -> None:
    server: Server = await start()
    agent = await server.register(email="ann@example.org")
    assert "email" not in (await server.get(f"/who/{agent.id}")).json()
    open_server: Server = await start(show_email=True)
    assert (await open_server.get(f"/who/{agent.id}")).json()["email"] == "ann@example.org"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "invalid JSON body"),
        (b"[]", "invalid JSON body"),
        (b'{"public_key": 5}', "invalid JSON body"),
        (b'{"public_key": "x"} trailing', "invalid JSON body"),
        (b"{}", "public_key is required"),
        (b'{"public_key": ""}', "public_key is required"),
        (b'{"public_key": "AAAA"}', BAD_KEY),
    ],
)
async def test_a_bad_registration_is_refused_in_the_words_that_clients_know(start, body: bytes, text: str) -> None:
    server: Server = await start()
    answer = await server.post("/register", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()) == (400, {"error": text})


async def test_a_bad_email_is_refused(start) -> None:
    server: Server = await start()
    for email in ("nobody", "a@b", "a b@example.org", "x@example.org\n", "x" * 250 + "@example.org"):
        answer = await server.post("/register", json={"public_key": Agent().public_text, "email": email})
        assert (answer.status_code, answer.json()) == (400, {"error": "invalid email format"})


async def test_one_key_has_one_spelling(start) -> None:
    server: Server = await start()
    agent = await server.register()
    text = agent.public_text
    spare = text[:-2] + chr(ord(text[-2]) + 1) + "="  # the same 32 bytes with other spare bits
    for spelling in (spare, text + "\n", " " + text, text[:20] + "\n" + text[20:], text.rstrip("=")):
        answer = await server.post("/register", json={"public_key": spelling})
        assert (answer.status_code, answer.json()) == (400, {"error": BAD_KEY}), spelling


@pytest.mark.parametrize(
    "point",
    [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # y = p, a second spelling of 0
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # y = p + 1
        "0200000000000000000000000000000000000000000000000000000000000000",  # not on the curve
    ],
)
async def test_points_of_small_order_or_off_the_curve_are_no_keys(start, point: str) -> None:
    server: Server = await start()
    answer = await server.post("/register", json={"public_key": base64.b64encode(bytes.fromhex(point)).decode()})
    assert (answer.status_code, answer.json()) == (400, {"error": BAD_KEY})


async def test_fifty_parallel_first_registrations_of_one_key_make_one_agent(start) -> None:
    server: Server = await start(limits={"register": "off"})
    agent = Agent()
    answers = await asyncio.gather(
        *(server.post("/register", json={"public_key": agent.public_text}) for _ in range(50))
    )
    assert sorted(a.status_code for a in answers) == [200] * 49 + [201]
    assert len({a.json()["id"] for a in answers}) == 1


async def test_a_name_is_cut_at_a_character(start) -> None:
    server: Server = await start()
    agent = await server.register(name="é" * 60)
    assert (await server.get(f"/who/{agent.id}")).json()["name"] == "é" * 50


async def test_respelt_ids_are_refused(start) -> None:
    server: Server = await start(limits={"who": "off"})
    agent = await server.register()
    for spelling in (
        agent.id.upper(),
        agent.id.replace("-", ""),
        "{" + agent.id + "}",
        f"urn:uuid:{agent.id}",
        agent.id[:-1],
        "global",
        agent.id + "%0a",
        agent.id + "%20",
    ):
        answer = await server.get(f"/who/{spelling}")
        assert (answer.status_code, answer.json()) == (400, {"error": "invalid agent ID format"}), spelling
    unknown = await server.get("/who/00000000-0000-4000-8000-000000000000")
    assert (unknown.status_code, unknown.json()) == (404, {"error": "agent not found"})


async def test_a_signed_repeat_by_the_holder_changes_name_and_email(start) -> None:
    server: Server = await start()
    agent = await server.register(name="Old")
    body = json.dumps({"public_key": agent.public_text, "name": "New"}).encode()
    answer = await server.send_signed(agent, "POST", "/register", body)
    assert answer.status_code == 200
    assert (await server.get(f"/who/{agent.id}")).json()["name"] == "New"


async def test_a_registration_signed_with_another_key_is_refused(start) -> None:
    server: Server = await start()
    mine, other = Agent(), Agent()
    body = json.dumps({"public_key": mine.public_text, "name": "Mallory"}).encode()
    for keyid in (other.key_id, mine.key_id):
        answer = await server.send_signed(other, "POST", "/register", body, keyid=keyid)
        assert answer.status_code == 401
    assert (await server.post("/register", json={"public_key": mine.public_text})).status_code == 201


async def test_a_first_registration_may_prove_possession(start) -> None:
    server: Server = await start()
    agent = Agent()
    body = json.dumps({"public_key": agent.public_text}).encode()
    headers = agent.signed("POST", "/register", body)
    first = await server.post("/register", content=body, headers=headers)
    replay = await server.post("/register", content=body, headers=headers)
    assert (first.status_code, replay.status_code) == (201, 401)


async def test_a_handle_is_claimed_once_and_for_ever(start) -> None:
    server: Server = await start()
    ann, bob = await server.register(), await server.register()

    async def claim(agent: Agent, handle: str) -> tuple[int, dict[str, object]]:
        body = json.dumps({"handle": handle}).encode()
        answer = await server.send_signed(agent, "PUT", "/v1/agents/me/handle", body)
        return answer.status_code, answer.json()

    status, me = await claim(ann, "ann")
    assert (status, me["handle"], me["id"]) == (200, "ann", ann.id)
    assert (await claim(ann, "ann"))[0] == 200
    assert (await claim(ann, "anna"))[1]["code"] == "conflict"
    assert (await claim(bob, "ann"))[1]["code"] == "already_exists"
    assert (await claim(bob, "bob"))[0] == 200
    assert (await server.get("/v1/agents/ann", headers=server.admin)).json()["id"] == ann.id
    assert (await server.get(f"/v1/agents/{ann.id}", headers=server.admin)).json()["handle"] == "ann"


async def test_two_agents_that_claim_one_handle_at_once_leave_one_owner(start) -> None:
    server: Server = await start(limits={"register": "off"})
    agents = [await server.register() for _ in range(20)]
    body = b'{"handle": "prize"}'
    answers = await asyncio.gather(
        *(server.send_signed(agent, "PUT", "/v1/agents/me/handle", body) for agent in agents)
    )
    assert sorted(a.status_code for a in answers) == [200] + [409] * 19


@pytest.mark.parametrize(
    "handle",
    ["", "A", "ann ", "-ann", "ann.", "a..b", "a/b", "äpfel", "me", "ann\n", "x" * 256,
     "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10", "3f0c9d1e7d314a529f4e2b7c51d0aa10"],
)  # fmt: skip
async def test_a_bad_handle_is_refused(start, handle: str) -> None:
    server: Server = await start()
    agent = await server.register()
    body = json.dumps({"handle": handle}).encode()
    answer = await server.send_signed(agent, "PUT", "/v1/agents/me/handle", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


async def test_unsigned_registration_never_sets_a_handle(start) -> None:
    server: Server = await start()
    answer = await server.post("/register", json={"public_key": Agent().public_text, "handle": "ann"})
    agents = (await server.get("/v1/agents", headers=server.admin)).json()["agents"]
    assert [a["handle"] for a in agents] == [answer.json()["id"]]


async def test_the_agent_list_pages_by_date_of_registration(start) -> None:
    server: Server = await start(limits={"register": "off"})
    ids = [(await server.register()).id for _ in range(5)]
    first = (await server.get("/v1/agents?limit=3", headers=server.admin)).json()
    second = (await server.get(f"/v1/agents?limit=3&cursor={first['next']}", headers=server.admin)).json()
    assert [a["id"] for a in first["agents"] + second["agents"]] == ids
    assert (first["total"], second["next"]) == (5, None)
    since = first["agents"][2]["registered_at"]
    later = (await server.get("/v1/agents", params={"since": since}, headers=server.admin)).json()
    assert [a["id"] for a in later["agents"]] == ids[2:]
    for bad in ("limit=0", "limit=x", "cursor=zzz", "since=yesterday", "since=2026-11-15T00:00:00"):
        answer = await server.get(f"/v1/agents?{bad}", headers=server.admin)
        assert answer.status_code == 400, bad


async def test_the_operator_finds_agents_by_name_the_exact_ones_first(start) -> None:
    server: Server = await start()
    names = ("annabel", "ann", "bob", "ann", "an_n", "")
    ids = [(await server.register(name=name)).id for name in names]

    async def found(**query: str) -> tuple[list[str], int]:
        answer = (await server.get("/v1/agents", params=query, headers=server.admin)).json()
        return [agent["id"] for agent in answer["agents"]], answer["total"]

    assert await found(name="ann") == ([ids[1], ids[3], ids[0]], 3)
    assert await found(name="an_") == ([ids[4]], 1), "an underscore stands for itself"
    assert await found(name="x") == ([], 0)
    first = (await server.get("/v1/agents?name=ann&limit=2", headers=server.admin)).json()
    rest = (await server.get(f"/v1/agents?name=ann&cursor={first['next']}", headers=server.admin)).json()
    assert [one["id"] for one in first["agents"] + rest["agents"]] == [ids[1], ids[3], ids[0]]


async def test_a_record_tells_when_it_changed_last(start) -> None:
    server: Server = await start()
    agent = await server.register(name="ann")
    fresh = (await server.send_signed(agent, "GET", "/v1/agents/me")).json()
    assert fresh["updated_at"] == fresh["registered_at"]
    await server.send_signed(agent, "PATCH", "/v1/agents/me", b'{"name": "ann"}')
    assert (await server.send_signed(agent, "GET", "/v1/agents/me")).json()["updated_at"] == fresh["updated_at"]
    changed = (await server.send_signed(agent, "PATCH", "/v1/agents/me", b'{"name": "anna"}')).json()
    assert changed["updated_at"] > fresh["updated_at"]


async def test_an_agent_is_found_by_its_handle_or_id_by_other_agents(start) -> None:
    server: Server = await start()
    agent, other = await server.register(name="Ann"), await server.register()
    claim = json.dumps({"handle": "ann"}).encode()
    assert (await server.send_signed(agent, "PUT", "/v1/agents/me/handle", claim)).status_code == 200
    assert (await server.get(f"/who/{agent.id}")).json()["handle"] == "ann"
    for name in ("ann", agent.id):
        found = await server.send_signed(other, "GET", f"/v1/agents/{name}/profile")
        assert found.json() == (await server.get(f"/who/{agent.id}")).json()
    unclaimed = await server.send_signed(agent, "GET", f"/v1/agents/{other.id}/profile")
    assert "handle" not in unclaimed.json()
    assert (await server.send_signed(other, "GET", "/v1/agents/nobody/profile")).status_code == 404
    assert (await server.get("/v1/agents/ann/profile")).status_code == 401


async def test_an_agent_that_the_rules_hide_is_answered_for_as_one_that_is_not_there(start) -> None:
    server: Server = await start()
    agent, other = await server.register(), await server.register()
    claim = json.dumps({"handle": "ann"}).encode()
    assert (await server.send_signed(agent, "PUT", "/v1/agents/me/handle", claim)).status_code == 200
    for action, subject, object_ in (("keys.read", other.id, "*"), ("send", "*", other.id)):
        rule = {"effect": "deny", "action": action, "subject": subject, "object": object_, "priority": 9}
        assert (await server.post("/v1/policies", json=rule, headers=server.admin)).status_code == 201
    hidden, missing = [
        (await server.send_signed(other, "GET", f"/v1/agents/{name}/profile")) for name in ("ann", "nob")
    ]
    assert (hidden.status_code, hidden.json()["code"]) == (missing.status_code, missing.json()["code"])
    assert hidden.status_code == 403
    assert hidden.json()["title"].replace("ann", "nob") == missing.json()["title"]
