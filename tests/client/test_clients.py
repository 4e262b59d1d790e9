"""Both clients against a real HTTP server: who they say they are, and when they try again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from http_message_signatures import HTTPMessageVerifier, HTTPSignatureKeyResolver, algorithms

from angelia.client import AsyncClient, Client, Unreachable, transport
from angelia.client.api_errors import NotAngelia
from angelia.client.transport import Trip, origin
from angelia.errors import InvalidArgument, NotFound, Stale
from angelia.mailbox import identity
from angelia.mailbox.identity import Identity
from client.recorder import Recorder, Seen, closed_port
from client.test_verbs import AGENT, HEALTH, TOKEN

STALE = {"title": "signed before the nonce memory began", "code": "stale", "status": 401, "request_id": "r"}
COMPONENTS = {'"@method"', '"@authority"', '"@path"', '"@query"', '"content-digest"'}


class Keys(HTTPSignatureKeyResolver):
    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def resolve_public_key(self, key_id: str) -> Any:
        assert key_id == str(self._identity.key_id)
        return self._identity.key.public_key()


class Message:
    """A recorded request in the shape that the independent library reads."""

    def __init__(self, seen: Seen, url: str) -> None:
        self.method = seen.method
        self.url = f"http://{seen.headers['host']}{seen.target}"
        self.headers = seen.headers
        self.body = seen.body
        assert self.url.startswith(url)


def verify(seen: Seen, identity: Identity, url: str) -> Any:
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=Keys(identity))
    (result,) = verifier.verify(Message(seen, url), max_age=timedelta(seconds=30))
    return result


@pytest.fixture
def alice(tmp_path: Path) -> Identity:
    return identity.create(tmp_path / "home", "alice")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(transport, "PAUSE_AFTER_STALE", 0.001)


def test_an_independent_library_verifies_the_signature_over_everything(recorder: Recorder, alice: Identity) -> None:
    recorder.tell("PUT", "/v1/agents/me/handle", AGENT)
    recorder.tell("GET", "/v1/agents", {"agents": [], "next": None, "total": 0})
    with Client(recorder.url, alice) as client:
        client.agents.claim_handle("alice")
        client.agents.list(cursor="a/b+c=", limit=3)
    for seen in recorder.seen:
        result = verify(seen, alice, recorder.url)
        assert set(result.covered_components) >= COMPONENTS
        assert result.parameters["tag"] == "angelia-v1"
        assert len(result.parameters["nonce"]) == 24
    assert recorder.seen[1].headers["content-digest"] == "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"


@pytest.mark.parametrize("identifier", ["2001:db8::1", "ä b", "a%2fb", "~x_y.z-", "a!b*c'd(e)"])
def test_the_signed_path_is_the_sent_path_whatever_it_holds(
    recorder: Recorder, alice: Identity, identifier: str
) -> None:
    with Client(recorder.url, alice) as client, pytest.raises(NotFound):
        client.guard.unblock(identifier)
    verify(recorder.seen[0], alice, recorder.url)


async def test_the_asynchronous_client_pauses_and_tries_again(recorder: Recorder) -> None:
    recorder.tell("GET", "/healthz", {}, status=503)
    recorder.tell("GET", "/healthz", {"status": "ok"})
    async with AsyncClient(recorder.url) as client:
        assert await client.server.alive()
    assert len(recorder.seen) == 2


async def test_the_asynchronous_client_signs_alike(recorder: Recorder, alice: Identity) -> None:
    recorder.tell("GET", "/v1/agents/me", AGENT)
    async with AsyncClient(recorder.url, alice) as client:
        assert (await client.agents.me()).handle == "alice"
    verify(recorder.seen[0], alice, recorder.url)


def test_the_token_is_for_operators_verbs_and_the_signature_for_the_rest(recorder: Recorder, alice: Identity) -> None:
    recorder.tell("GET", "/v1/tokens", {"tokens": [TOKEN], "next": None, "total": 1})
    recorder.tell("GET", "/v1/agents/me", AGENT)
    recorder.tell("GET", "/healthz", {"status": "ok"})
    with Client(recorder.url, alice, token="agt_secret") as client:
        client.tokens.list()
        client.agents.me()
        client.server.alive()
    listed, me, alive = (seen.headers for seen in recorder.seen)
    assert listed["authorization"] == "Bearer agt_secret"
    assert "signature" not in listed
    assert "authorization" not in me
    assert "signature" in me
    assert not {"authorization", "signature"} & set(alive)


def test_a_request_refused_as_stale_is_signed_again_with_a_new_nonce(recorder: Recorder, alice: Identity) -> None:
    recorder.tell("POST", "/v1/tokens", STALE, status=401)
    recorder.tell("POST", "/v1/tokens", {**TOKEN, "token": "agt_x"}, status=201)
    with Client(recorder.url, alice) as client:
        assert client.tokens.create("admin").token == "agt_x"
    first, second = (verify(seen, alice, recorder.url).parameters["nonce"] for seen in recorder.seen)
    assert first != second


def test_a_wrong_clock_is_named_and_not_argued_with(recorder: Recorder, alice: Identity) -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(minutes=2), usegmt=True)
    recorder.tell("GET", "/v1/agents/me", STALE, status=401, headers={"date": date})
    with Client(recorder.url, alice) as client, pytest.raises(Stale) as refused:
        client.agents.me()
    assert "clock is 12" in refused.value.hint
    assert "ahead of the server's" in refused.value.hint
    assert len(recorder.seen) == 1


async def test_nobody_there_is_one_clear_error_from_both_clients() -> None:
    with closed_port() as url:
        with Client(url) as client, pytest.raises(Unreachable) as blocking:
            client.server.node()
        async with AsyncClient(url) as other:
            with pytest.raises(Unreachable) as awaited:
                await other.server.node()
    assert blocking.value.message == f"{url} cannot be reached (Connection refused)"
    assert awaited.value.code == "network"


def test_a_silent_server_costs_no_more_than_the_timeout() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, timeout=0.2) as client, pytest.raises(Unreachable) as lost:
            client.server.node()
    assert lost.value.message == f"{url} did not answer within 0.2 s"


def test_a_degraded_server_is_an_answer(recorder: Recorder) -> None:
    recorder.tell("GET", "/health", HEALTH, status=503)
    with Client(recorder.url) as client:
        assert client.server.health().status == "degraded"
    assert len(recorder.seen) == 1


def test_a_redirect_is_not_followed_with_our_credentials(recorder: Recorder) -> None:
    recorder.tell("GET", "/v1/tokens", status=307, headers={"location": "http://127.0.0.1:9/steal"})
    with Client(recorder.url, token="t") as client, pytest.raises(NotAngelia) as refused:
        client.tokens.list()
    assert refused.value.status == 307
    assert len(recorder.seen) == 1


def test_an_observer_sees_each_attempt_and_nothing_secret(recorder: Recorder, alice: Identity) -> None:
    trips: list[Trip] = []
    recorder.tell("GET", "/v1/agents/me", AGENT, headers={"x-request-id": "r7"})
    with Client(recorder.url, alice, observer=trips.append) as client:
        client.agents.me()
    (trip,) = trips
    assert (trip.method, trip.path, trip.status, trip.request_id) == ("GET", "/v1/agents/me", 200, "r7")
    assert "ignature" not in repr(trip)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("HTTP://LocalHost:80/", "http://localhost"),
        ("https://angelia.example:443", "https://angelia.example"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_a_url_has_one_spelling(given: str, meant: str) -> None:
    assert origin(given) == meant


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://x", "http://", "http://u:p@x", "http://x/y", "http://x?y", "http://[", ""]
)
def test_what_is_no_server_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        Client(url)
