"""Bearer tokens and JSON Web Tokens: roles, bindings, expiry, and everything that must be refused."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import asyncpg
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm

from angelia.api import Caller
from angelia.guard.model import parse_address
from angelia.guard.tokens import new_text
from http_agents import Server

SECRET = "a secret of more than thirty-two characters"


async def make(server: Server, **body: Any) -> dict[str, Any]:
    answer = await server.post("/v1/tokens", json=body, headers=server.admin)
    assert answer.status_code == 201, answer.text
    return answer.json()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_the_first_admin_token_lies_in_the_data_directory_and_works(start, tmp_path) -> None:
    server: Server = await start()
    path = tmp_path / "admin.token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (await server.get("/v1/settings", headers=bearer(path.read_text().strip()))).status_code == 200


async def test_a_token_is_shown_once_listed_without_its_secret_and_stored_hashed(start) -> None:
    server: Server = await start()
    made = await make(server, role="read-only", label="dashboard")
    listed = (await server.get("/v1/tokens", headers=server.admin)).json()
    assert [t["label"] for t in listed["tokens"]] == ["admin.token", "dashboard"]
    assert made["token"] not in json.dumps(listed)
    connection = await asyncpg.connect(server.database_url)
    dump = str(await connection.fetch("SELECT * FROM tokens")) + str(
        await connection.fetch("SELECT * FROM audit_events")
    )
    await connection.close()
    assert made["token"].rpartition("_")[2] not in dump


async def test_roles_include_the_lower_ones_and_no_more(gate, ledger) -> None:
    it = gate()
    caller, now = Caller(parse_address("127.0.0.1"), name="test"), datetime.now(UTC)
    allowed = {}
    for role in ("read-only", "read-write", "admin"):
        _, text = await it.tokens.make(caller, now, role=role, agent=None, label="", life=None)
        statuses = [
            (await it.client.get("/v1/reading", headers=bearer(text))).status_code,
            (await it.client.post("/api/v1/work", headers=bearer(text))).status_code,
            (await it.client.get("/v1/admin", headers=bearer(text))).status_code,
            (await it.client.get("/v1/signed", headers=bearer(text))).status_code,
        ]
        allowed[role] = statuses
    assert allowed == {
        "read-only": [200, 403, 403, 403],
        "read-write": [200, 200, 403, 403],
        "admin": [200, 200, 200, 403],
    }


async def test_a_token_bound_to_an_agent_acts_for_it(start) -> None:
    server: Server = await start()
    agent = await server.register()
    made = await make(server, role="read-write", agent=agent.id)
    me = await server.get("/v1/agents/me", headers=bearer(made["token"]))
    assert (me.status_code, me.json()["id"]) == (200, agent.id)
    unbound = await server.get("/v1/agents/me", headers=server.admin)
    assert (unbound.status_code, unbound.json()["code"]) == (403, "authorization_denied")


async def test_what_an_agent_is_for_ever_takes_its_own_signature(start) -> None:
    server: Server = await start()
    agent = await server.register()
    made = await make(server, role="admin", agent=agent.id)
    for method, path, body in (
        ("PUT", "/v1/agents/me/handle", {"handle": "stolen"}),
        ("PATCH", "/v1/agents/me", {"aicq_signatures": False}),
    ):
        answer = await server.request(method, path, json=body, headers=bearer(made["token"]))
        assert (answer.status_code, answer.json()["code"]) == (403, "authorization_denied")
    me = (await server.send_signed(agent, "GET", "/v1/agents/me")).json()
    assert (me["handle"], me["aicq_signatures"]) == (agent.id, True)


async def test_a_read_only_token_of_an_agent_reads_only(gate) -> None:
    it = gate()
    agent = await it.agent()
    caller, now = Caller(parse_address("127.0.0.1"), name="test"), datetime.now(UTC)
    _, text = await it.tokens.make(caller, now, role="read-only", agent=agent.id, label="", life=None)
    assert (await it.client.get("/v1/signed", headers=bearer(text))).status_code == 200
    assert (await it.client.post("/v1/signed", headers=bearer(text))).status_code == 403
    assert (await it.client.post("/v1/own", headers=bearer(text))).status_code == 403


async def test_a_room_key_beside_a_token_is_no_old_signature(gate) -> None:
    it = gate()
    agent = await it.agent()
    caller, now = Caller(parse_address("127.0.0.1"), name="test"), datetime.now(UTC)
    _, text = await it.tokens.make(caller, now, role="read-write", agent=agent.id, label="", life=None)
    answer = await it.client.get("/signed", headers=bearer(text) | {"x-aicq-room-key": "a key of sixteen"})
    assert answer.status_code == 200


async def test_a_revoked_token_stops_at_once(start) -> None:
    server: Server = await start()
    made = await make(server, role="admin")
    assert (await server.get("/v1/settings", headers=bearer(made["token"]))).status_code == 200
    gone = await server.request("DELETE", f"/v1/tokens/{made['id']}", headers=server.admin)
    assert gone.status_code == 204
    assert (await server.get("/v1/settings", headers=bearer(made["token"]))).status_code == 401
    again = await server.request("DELETE", f"/v1/tokens/{made['id']}", headers=server.admin)
    assert (again.status_code, again.json()["code"]) == (404, "not_found")


async def test_a_token_acts_for_its_agent_as_it_is_now(start) -> None:
    """Token and agent are remembered for a second; a change in this process shows at once all the same."""
    server: Server = await start()
    agent = await server.register()
    made = await make(server, role="read-write", agent=agent.id)
    assert (await server.get("/v1/agents/me", headers=bearer(made["token"]))).json()["handle"] == agent.id
    assert (await server.send_signed(agent, "PUT", "/v1/agents/me/handle", b'{"handle":"named"}')).status_code == 200
    assert (await server.get("/v1/agents/me", headers=bearer(made["token"]))).json()["handle"] == "named"


async def test_a_remembered_token_is_still_compared(start) -> None:
    server: Server = await start()
    made = (await make(server, role="admin"))["token"]
    assert (await server.get("/v1/settings", headers=bearer(made))).status_code == 200
    wrong = made[:-1] + ("A" if made[-1] != "A" else "B")
    assert (await server.get("/v1/settings", headers=bearer(wrong))).status_code == 401


async def test_an_expired_token_is_refused(start) -> None:
    server: Server = await start()
    made = await make(server, role="admin", expires_in=3600)
    connection = await asyncpg.connect(server.database_url)
    await connection.execute("UPDATE tokens SET expires_at = created_at WHERE id = $1", made["id"])
    await connection.close()
    answer = await server.get("/v1/settings", headers=bearer(made["token"]))
    assert (answer.status_code, answer.json()["hint"]) == (401, "the token has expired")


async def test_wrong_tokens_have_one_answer(start) -> None:
    server: Server = await start()
    token = server.admin_token
    for wrong in (token[:-1], token[:-1] + ("A" if token[-1] != "A" else "B"), new_text(), "agt_", "agt__", "x", ""):
        answer = await server.get("/v1/settings", headers=bearer(wrong))
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), wrong
        assert "www-authenticate" in answer.headers
    bare = await server.get("/v1/settings", headers={"authorization": token})
    assert bare.status_code == 200, "clients of the queue surface send it without the word Bearer too"


@pytest.mark.parametrize(
    "body",
    [{}, {"role": "king"}, {"role": "admin", "agent": "nobody"}, {"role": "admin", "expires_in": 0},
     {"role": "admin", "expires_in": "1"}, {"role": "admin", "label": "x" * 101}, {"role": "admin", "more": 1}],
)  # fmt: skip
async def test_a_bad_request_for_a_token_makes_none(start, body: dict[str, Any]) -> None:
    server: Server = await start()
    answer = await server.post("/v1/tokens", json=body, headers=server.admin)
    assert answer.status_code in (400, 404)
    assert (await server.get("/v1/tokens", headers=server.admin)).json()["total"] == 1


async def test_operator_routes_need_an_admin_even_in_open_mode(start) -> None:
    server: Server = await start()
    agent = await server.register()
    for path in ("/v1/settings", "/v1/tokens", "/v1/agents", "/v1/guard/blocks", "/v1/audit/events"):
        assert (await server.get(path)).status_code == 401
        assert (await server.send_signed(agent, "GET", path)).status_code == 403


async def test_open_mode_opens_its_surface_without_a_credential_and_token_mode_does_not(gate) -> None:
    assert (await gate(open_mode=True).client.post("/api/v1/work")).status_code == 200
    closed = await gate(open_mode=False).client.post("/api/v1/work")
    assert (closed.status_code, closed.json()) == (401, {"error": "Authentication required"})


def claims(**more: Any) -> dict[str, Any]:
    return {"aud": "angelia", "exp": int(time.time()) + 60, "sub": "service", "role": "admin"} | more


async def test_jwt_hs256_gives_its_role(gate) -> None:
    it = gate(jwt_secret=SECRET)
    for given, role in (
        ({"role": "admin"}, "admin"),
        ({"role": None, "roles": ["read-only", "read-write"]}, "read-write"),
    ):
        token = jwt.encode(claims(**given), SECRET, "HS256")
        assert (await it.client.get("/v1/reading", headers=bearer(token))).json()["role"] == role


async def test_a_json_web_token_may_lack_its_audience_if_the_operator_says_so(gate) -> None:
    without = {name: value for name, value in claims().items() if name != "aud"}
    asked = {
        "without": bearer(jwt.encode(without, SECRET, "HS256")),
        "ours": bearer(jwt.encode(claims(), SECRET, "HS256")),
        "others": bearer(jwt.encode(claims(aud="others"), SECRET, "HS256")),
        "forged": bearer(jwt.encode(without, SECRET[::-1], "HS256")),
        "ended": bearer(jwt.encode(without | {"exp": 1}, SECRET, "HS256")),
    }
    for optional, admitted in ((False, {"ours"}), (True, {"ours", "without"})):
        it = gate(jwt_secret=SECRET, jwt_audience_optional=optional)
        answers = {name: await it.client.get("/v1/reading", headers=headers) for name, headers in asked.items()}
        assert {name for name, answer in answers.items() if answer.status_code == 200} == admitted


@pytest.mark.parametrize(
    "token",
    [
        jwt.encode(claims(), "another secret of more than 32 characters", "HS256"),
        jwt.encode(claims(exp=1), SECRET, "HS256"),
        jwt.encode(claims(aud="others"), SECRET, "HS256"),
        jwt.encode({"aud": "angelia", "role": "admin"}, SECRET, "HS256"),
        jwt.encode(claims(role="king"), SECRET, "HS256"),
        jwt.encode(claims(), SECRET * 2, "HS512"),
        jwt.encode(claims(), None, "none"),
        "a.b.c",
    ],
)
async def test_bad_json_web_tokens_are_refused(gate, token: str) -> None:
    it = gate(jwt_secret=SECRET)
    assert (await it.client.get("/v1/admin", headers=bearer(token))).status_code in (401, 403)
    assert it.executed == []


async def test_jwt_eddsa_verifies_by_key_file_and_no_public_key_becomes_a_secret(gate, tmp_path) -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "jwt.pem").write_bytes(pem)
    it = gate(jwt_public_key=tmp_path / "jwt.pem")
    good = jwt.encode(claims(), key, "EdDSA")
    assert (await it.client.get("/v1/admin", headers=bearer(good))).status_code == 200
    confused = _hs256_by_hand(claims(), pem)
    assert (await it.client.get("/v1/admin", headers=bearer(confused))).status_code == 401


async def test_jwt_keys_are_found_where_they_are_published(gate) -> None:
    key, stranger = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    published = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "first", "use": "sig", "alg": "EdDSA"}

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": [published]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as publisher:
        threading.Thread(target=publisher.serve_forever, daemon=True).start()
        it = gate(jwt_jwks_url=f"http://127.0.0.1:{publisher.server_port}/keys.json")
        tokens = {
            200: jwt.encode(claims(), key, "EdDSA", headers={"kid": "first"}),
            401: jwt.encode(claims(), stranger, "EdDSA", headers={"kid": "first"}),
        }
        for status, token in tokens.items():
            assert (await it.client.get("/v1/admin", headers=bearer(token))).status_code == status
        unknown = jwt.encode(claims(), key, "EdDSA", headers={"kid": "second"})
        assert (await it.client.get("/v1/admin", headers=bearer(unknown))).status_code == 401
        publisher.shutdown()
    away = gate(jwt_jwks_url="http://127.0.0.1:9/keys.json")
    answer = await away.client.get("/v1/admin", headers=bearer(tokens[200]))
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_a_jwt_subject_that_is_an_agent_acts_for_it(gate) -> None:
    it = gate(jwt_secret=SECRET)
    agent = await it.agent()
    token = jwt.encode(claims(sub=agent.id, role="read-write"), SECRET, "HS256")
    assert (await it.client.get("/v1/signed", headers=bearer(token))).json()["caller"] == f"jwt {agent.id}"
    assert it.executed[0].caller.agent.handle == agent.id


async def test_a_subject_longer_than_a_handle_can_still_be_audited(start) -> None:
    server: Server = await start(jwt_secret=SECRET)
    token = jwt.encode(claims(sub="s" * 400), SECRET, "HS256")
    made = await server.post("/v1/guard/blocks", json={"address": "192.0.2.5"}, headers=bearer(token))
    assert made.status_code == 201
    events = (await server.get("/v1/audit/events?type=address_blocked", headers=server.admin)).json()["events"]
    assert events[0]["actor"] == "jwt " + "s" * 251


def _hs256_by_hand(payload: dict[str, Any], secret: bytes) -> str:
    """PyJWT refuses to sign with a PEM as secret; an attacker does not."""
    import base64
    import hashlib
    import hmac

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    signed = part(b'{"alg":"HS256","typ":"JWT"}') + "." + part(json.dumps(payload).encode())
    return signed + "." + part(hmac.new(secret, signed.encode(), hashlib.sha256).digest())
