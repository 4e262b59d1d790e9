"""Who is calling: RFC 9421 signatures, the old AICQ headers, nonces, and the hot tier's birth mark."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import redis.asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureComponentResolver,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    algorithms,
)
from http_message_signatures.structures import CaseInsensitiveDict

from angelia.api import http_signature
from angelia.errors import StartFailed
from angelia.guard import aicq_signature
from http_agents import HOST, Agent

VECTOR_SEED = bytes(range(32))
VECTOR_NONCE = "00112233445566778899aabb"
VECTOR_TIME = 1794767869659


@pytest.mark.parametrize(
    ("body", "string", "signature"),
    [
        (
            b'{"body": "hello angelia"}',
            "3ff0aff9ebfe310300491c980ecd0dc2ca2c79aa0c5a8357c487686c0fbdc290",
            "zWXXdvigiG3vfjja8fgZcx/H7lI74yuCQ75ZeuJSerf/vlupk6f3IMZ07q6ReeG6SmHC6mB23+4NZ4vNlcAGDg==",
        ),
        (
            b"{}",
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            "+CwgjuB9QQA2X6yxnmAv3nwj4X9D1b3QuJf/th/yz4gsgnkF5xX2MxxDdxzolW7YL1k+E6fDvZ7VyCe/kucUAA==",
        ),
        (
            b"",
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            "+CwgjuB9QQA2X6yxnmAv3nwj4X9D1b3QuJf/th/yz4gsgnkF5xX2MxxDdxzolW7YL1k+E6fDvZ7VyCe/kucUAA==",
        ),
    ],
)
def test_the_aicq_vectors_hold(body: bytes, string: str, signature: str) -> None:
    agent = Agent(VECTOR_SEED)
    assert agent.public_text == "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
    headers = {
        "x-aicq-agent": "00000000-0000-4000-8000-000000000000",
        "x-aicq-nonce": VECTOR_NONCE,
        "x-aicq-timestamp": str(VECTOR_TIME),
        "x-aicq-signature": signature,
    }
    proof = aicq_signature.parse(headers, VECTOR_TIME + 10, 30_000, 5_000)
    assert proof.signed(body) == f"{string}|{VECTOR_NONCE}|{VECTOR_TIME}".encode()
    Ed25519PublicKey.from_public_bytes(agent.public_key).verify(proof.signature_bytes(), proof.signed(body))
    assert base64.b64encode(agent.key.sign(proof.signed(body))).decode() == signature


async def test_a_signed_request_is_admitted_as_its_agent(gate) -> None:
    it = gate()
    agent = await it.agent()
    answer = await it.send(agent, "POST", "/v1/signed?a=1&b=%20", b'{"x": 1}')
    assert answer.json() == {"caller": agent.id, "role": "read-write"}
    root = await it.send(agent, "GET", "/signed")
    assert root.status_code == 200


async def test_fifty_parallel_copies_of_one_request_run_once(gate) -> None:
    it = gate()
    agent = await it.agent()
    headers = agent.signed("POST", "/v1/signed", b"{}")
    answers = await asyncio.gather(*(it.client.post("/v1/signed", content=b"{}", headers=headers) for _ in range(50)))
    assert sorted(a.status_code for a in answers) == [200] + [401] * 49
    assert {a.json()["code"] for a in answers if a.status_code == 401} == {"replay_rejected"}
    assert len(it.executed) == 1


async def test_fifty_parallel_copies_of_one_aicq_request_run_once(gate) -> None:
    it = gate()
    agent = await it.agent()
    headers = agent.aicq(b"{}") | {"content-type": "application/json"}
    answers = await asyncio.gather(*(it.client.post("/signed", content=b"{}", headers=headers) for _ in range(50)))
    assert sorted(a.status_code for a in answers) == [200] + [401] * 49
    assert {a.json()["error"] for a in answers if a.status_code == 401} == {"nonce already used"}
    assert len(it.executed) == 1


async def test_a_forged_request_does_not_burn_the_victims_nonce(gate) -> None:
    it = gate()
    agent = await it.agent()
    headers = agent.signed("POST", "/v1/signed", b"{}")
    forged = headers | {"signature": "sig=:" + base64.b64encode(bytes(64)).decode() + ":"}
    assert (await it.client.post("/v1/signed", content=b"{}", headers=forged)).status_code == 401
    other_body = await it.client.post("/v1/signed", content=b'{"evil": 1}', headers=headers)
    assert other_body.status_code == 401
    assert (await it.client.post("/v1/signed", content=b"{}", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "url", "body", "authority"),
    [
        ("GET", "/v1/signed?a=1", b"{}", HOST),
        ("POST", "/v1/signed?a=2", b"{}", HOST),
        ("POST", "/v1/signed", b"{}", HOST),
        ("POST", "/v1/signed/x?a=1", b"{}", HOST),
        ("POST", "/v1/signed?a=1", b'{"other": 1}', HOST),
        ("POST", "/v1/signed?a=1", b"{}", "elsewhere.example"),
    ],
)
async def test_what_was_signed_is_what_must_be_sent(gate, method: str, url: str, body: bytes, authority: str) -> None:
    it = gate()
    agent = await it.agent()
    headers = agent.signed(method, url, body, authority=authority)
    answer = await it.client.post("/v1/signed?a=1", content=b"{}", headers=headers)
    assert (answer.status_code, it.executed) == (401, [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sig=(", "sig1=("),
        ("sig=(", "other=(),sig=("),
        ('"@method" ', ""),
        ('"@authority" ', ""),
        ('"@path" ', ""),
        (' "@query"', ""),
        (' "content-digest"', ""),
        ('"content-digest"', '"content-digest" "date"'),
        ('"@method"', '"@method";req'),
        ('alg="ed25519"', 'alg="hmac-sha256"'),
        (';alg="ed25519"', ""),
        ('tag="angelia-v1"', 'tag="other"'),
        (';tag="angelia-v1"', ""),
        ("created=", "expires="),
        ('nonce="', 'nonce="short";was="'),
        (";created", ";created=1;created"),
        ('keyid="', 'keyid="{'),
    ],
)
async def test_a_weaker_or_other_signature_does_not_even_parse(gate, old: str, new: str) -> None:
    it = gate()
    agent = await it.agent()
    headers = agent.signed("POST", "/v1/signed", b"{}")
    assert old in headers["signature-input"]
    headers["signature-input"] = headers["signature-input"].replace(old, new, 1)
    answer = await it.client.post("/v1/signed", content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.json()["hint"]


@pytest.mark.parametrize(("length", "status"), [(21, 401), (22, 200), (128, 200), (129, 401)])
async def test_a_nonce_has_22_to_128_characters(gate, length: int, status: int) -> None:
    it = gate()
    agent = await it.agent()
    nonce = secrets.token_hex(64)[:length].ljust(length, "x")
    assert (await it.send(agent, "GET", "/v1/signed", nonce=nonce)).status_code == status


async def test_a_request_is_good_for_thirty_seconds(gate) -> None:
    it = gate()
    agent = await it.agent()
    now = int(time.time())
    old = await it.send(agent, "GET", "/v1/signed", created=now - 31)
    assert (old.status_code, old.json()["code"]) == (401, "stale")
    assert (await it.send(agent, "GET", "/v1/signed", created=now - 28)).status_code == 200
    far = await it.send(agent, "GET", "/v1/signed", created=now + 7)
    assert (far.status_code, far.json()["code"]) == (401, "from_future")


async def test_a_request_from_the_near_future_waits_for_its_own_time(gate) -> None:
    it = gate()
    agent = await it.agent()
    created = int(time.time()) + 2
    assert (await it.send(agent, "GET", "/v1/signed", created=created)).status_code == 200
    assert time.time() >= created - 0.01


async def test_the_room_key_is_covered_when_it_is_sent(gate) -> None:
    it = gate()
    agent = await it.agent()
    plain = agent.signed("GET", "/v1/signed")
    answer = await it.client.get("/v1/signed", headers=plain | {"x-aicq-room-key": "smuggled"})
    assert answer.status_code == 401
    target = http_signature.Target("GET", HOST, "/v1/signed", "", http_signature.digest(b""), "the key of the room")
    covered = http_signature.sign(
        agent.key, agent.key_id, target, created=int(time.time()), nonce=secrets.token_urlsafe(18)
    )
    headers = covered | {"x-aicq-room-key": "the key of the room"}
    assert (await it.client.get("/v1/signed", headers=headers)).status_code == 200
    headers["x-aicq-room-key"] = "another"
    assert (await it.client.get("/v1/signed", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("localhost:8080", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("localhost", False),
        ("localhost:9090", False),
        ("other.example", False),
        ("other.example:8080", False),
        ("127.0.0.1.other.example:8080", False),
        ("192.0.2.1:8080", False),
    ],
)
async def test_on_loopback_only_a_request_signed_for_this_machine_is_believed(gate, host: str, accepted: bool) -> None:
    """A captured request that was meant for another server names that one, in its signature and as its Host."""
    it = gate()
    agent = await it.agent()
    headers = agent.signed("GET", "/v1/signed", authority=host.lower())
    answer = await it.client.get("/v1/signed", headers=headers | {"host": host})
    assert answer.status_code == (200 if accepted else 401)
    assert len(it.executed) == accepted


async def test_a_server_on_port_80_is_called_without_it(gate) -> None:
    it = gate(port=80)
    agent = await it.agent()
    headers = agent.signed("GET", "/v1/signed", authority="localhost")
    assert (await it.client.get("/v1/signed", headers=headers | {"host": "localhost"})).status_code == 200


async def test_beyond_loopback_without_a_public_url_no_signature_is_believed(gate) -> None:
    it = gate(host="192.0.2.1")
    agent = await it.agent()
    for host in ("192.0.2.1:8080", "localhost:8080"):
        headers = agent.signed("GET", "/v1/signed", authority=host)
        assert (await it.client.get("/v1/signed", headers=headers | {"host": host})).status_code == 401


@pytest.mark.parametrize("insecure", [True, False])
async def test_a_server_bound_beyond_loopback_needs_a_public_url(start, insecure: bool) -> None:
    with pytest.raises(StartFailed, match="no public_url") as refused:
        await start(host="192.0.2.1", insecure=insecure, jwt_secret="x" * 32)
    assert "--public-url" in refused.value.hint


async def test_behind_a_proxy_the_public_name_is_what_is_signed(gate) -> None:
    it = gate(public_url="https://angelia.example")
    agent = await it.agent()
    assert (await it.send(agent, "GET", "/v1/signed", authority="angelia.example")).status_code == 200
    refused = await it.send(agent, "GET", "/v1/signed")
    assert refused.status_code == 401
    assert "this server is called https://angelia.example" in refused.text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x-aicq-agent": ""}, "missing auth headers"),
        ({"x-aicq-nonce": ""}, "missing auth headers"),
        ({"x-aicq-timestamp": "+1794767869659"}, "invalid timestamp format"),
        ({"x-aicq-timestamp": "1e12"}, "invalid timestamp format"),
        ({"x-aicq-timestamp": "1"}, "timestamp expired or too far in future"),
        ({"x-aicq-timestamp": "9999999999999"}, "timestamp expired or too far in future"),
        ({"x-aicq-nonce": "x" * 23}, "nonce must be at least 24 characters"),
        ({"x-aicq-nonce": "x" * 129}, "nonce must be at most 128 characters"),
        ({"x-aicq-agent": "00000000-0000-4000-8000-000000000000"}, "agent not found"),
        ({"x-aicq-signature": "****"}, "invalid signature"),
        ({"x-aicq-signature": base64.b64encode(bytes(64)).decode()}, "invalid signature"),
    ],
)
async def test_aicq_headers_fail_in_the_words_that_users_know(gate, change: dict[str, str], text: str) -> None:
    it = gate()
    agent = await it.agent()
    answer = await it.client.get("/signed", headers=agent.aicq() | change)
    assert (answer.status_code, answer.json()) == (401, {"error": text})


@pytest.mark.parametrize(
    "respell", [str.upper, lambda i: i.replace("-", ""), lambda i: "{" + i + "}", "urn:uuid:{}".format]
)
async def test_a_respelt_agent_id_is_refused(gate, respell: Any) -> None:
    it = gate()
    agent = await it.agent()
    headers = agent.aicq()
    assert (await it.client.get("/signed", headers=headers)).status_code == 200
    answer = await it.client.get("/signed", headers=headers | {"x-aicq-agent": respell(agent.id)})
    assert (answer.status_code, answer.json()) == (401, {"error": "invalid agent ID format"})
    assert len(it.executed) == 1


async def test_an_empty_body_and_an_empty_object_verify_alike(gate) -> None:
    it = gate()
    agent = await it.agent()
    assert (await it.client.get("/signed", headers=agent.aicq(b""))).status_code == 200
    sent = await it.client.request("GET", "/signed", content=b"{}", headers=agent.aicq(b""))
    deleted = await it.client.request("DELETE", "/signed", content=b"{}", headers=agent.aicq(b"{}"))
    assert (sent.status_code, deleted.status_code) == (200, 200)


async def test_aicq_signatures_work_on_the_root_surface_only(gate) -> None:
    it = gate()
    agent = await it.agent()
    answer = await it.client.get("/v1/signed", headers=agent.aicq())
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_a_setting_and_an_agents_own_flag_refuse_aicq_signatures(gate) -> None:
    it = gate()
    agent = await it.agent()
    change = await it.send(agent, "PATCH", "/v1/agents/me", b'{"aicq_signatures": false}')
    assert change.json()["aicq_signatures"] is False
    assert (await it.client.get("/signed", headers=agent.aicq())).status_code == 401
    closed = gate(aicq_signatures=False)
    other = await closed.agent()
    assert (await closed.client.get("/signed", headers=other.aicq())).status_code == 401
    assert (await closed.send(other, "GET", "/signed")).status_code == 200


async def test_after_flushall_a_captured_request_is_refused(gate, redis_url: str) -> None:
    it = gate()
    agent = await it.agent()
    rfc, old = agent.signed("GET", "/v1/signed"), agent.aicq()
    assert (await it.client.get("/v1/signed", headers=rfc)).status_code == 200
    assert (await it.client.get("/signed", headers=old)).status_code == 200
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.flushall()
    await client.aclose()
    again = await it.client.get("/v1/signed", headers=rfc)
    assert (again.status_code, again.json()["code"]) == (401, "stale")
    again = await it.client.get("/signed", headers=old)
    assert again.json() == {"error": "timestamp expired or too far in future"}
    assert len(it.executed) == 2
    fresh = int(time.time()) + 1
    assert (await it.send(agent, "GET", "/v1/signed", created=fresh)).status_code == 200


async def test_after_a_restart_of_the_hot_tier_a_captured_request_is_refused(gate, redis_url: str) -> None:
    """A restart keeps the birth mark and may lose the last nonces; the new run id gives it away."""
    it = gate()
    agent = await it.agent()
    headers = agent.signed("GET", "/v1/signed")
    assert (await it.client.get("/v1/signed", headers=headers)).status_code == 200
    client = redis.asyncio.Redis.from_url(redis_url)
    nonces = await client.keys("ang:nonce:*")
    await client.delete(*nonces)
    await client.set("ang:birth", f"{'0' * 40}:{int(time.time() * 1000) - 60_000}")  # as an earlier run left it
    await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await client.aclose()
    again = await it.client.get("/v1/signed", headers=headers)
    assert (again.status_code, len(it.executed)) in ((401, 1), (503, 1))
    assert (await it.client.get("/v1/signed", headers=headers)).status_code == 401


async def test_our_signatures_verify_with_an_independent_library() -> None:
    agent = Agent()
    body = b'{"x": 1}'
    headers = agent.signed("POST", "/v1/signed?a=1", body)
    message = _Message("POST", f"http://{HOST}/v1/signed?a=1", headers, body)
    verifier = HTTPMessageVerifier(
        signature_algorithm=algorithms.ED25519,
        key_resolver=_Resolver(agent),
        component_resolver_class=HTTPSignatureComponentResolver,
    )
    (result,) = verifier.verify(message, expect_tag="angelia-v1", expect_label="sig", body=body)
    assert result.parameters["keyid"] == str(agent.key_id)
    message.headers["content-digest"] = http_signature.digest(b"other")
    with pytest.raises(InvalidSignature):
        verifier.verify(message, expect_tag="angelia-v1")


async def test_signatures_of_an_independent_library_are_accepted(gate) -> None:
    it = gate()
    agent = await it.agent()
    body = b'{"x": 1}'
    message = _Message("POST", f"http://{HOST}/v1/signed?a=1", {"content-digest": http_signature.digest(body)}, body)
    signer = HTTPMessageSigner(
        signature_algorithm=algorithms.ED25519,
        key_resolver=_Resolver(agent),
        component_resolver_class=HTTPSignatureComponentResolver,
    )
    signer.sign(
        message,
        key_id=str(agent.key_id),
        created=datetime.now(UTC),
        nonce=secrets.token_urlsafe(18),
        label="sig",
        tag="angelia-v1",
        include_alg=True,
        use_existing_digest=True,
        covered_component_ids=("@method", "@authority", "@path", "@query", "content-digest"),
    )
    headers = {name.lower(): value for name, value in message.headers.items()} | {"content-type": "application/json"}
    answer = await it.client.post("/v1/signed?a=1", content=body, headers=headers)
    assert (answer.status_code, answer.json()["caller"]) == (200, agent.id)


class _Message:
    """A request as the independent library wants to see one."""

    def __init__(self, method: str, url: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.url, self.body = method, url, body
        self.headers = CaseInsensitiveDict(headers)


class _Resolver(HTTPSignatureKeyResolver):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def resolve_private_key(self, key_id: str) -> Any:
        return self._agent.key

    def resolve_public_key(self, key_id: str) -> Any:
        assert key_id == str(self._agent.key_id)
        return self._agent.key.public_key()
