"""The configurations of nginx and Caddy in docs/operations.md, run as they stand there, in front of a real server."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from angelia.client import Client
from angelia.client.mail_calls import LeasedMessage
from angelia.envelope import json_form
from http_agents import Agent
from live_agents import Person
from s3_servers import free_port
from server_process import ServerProcess

DOCS = Path(__file__).parents[2] / "docs/operations.md"
HEARTBEAT = b": still here\n\n"
UNTIL_THE_NEXT_HEARTBEAT = 12.0  # seconds: one comes every 15, and would push out what a proxy held back


@dataclass(frozen=True)
class Front:
    """A server behind a public URL, and the certificate for it."""

    url: str
    port: int
    inner: int
    certificate: Path
    key: Path
    server: ServerProcess
    token: str

    @property
    def authority(self) -> str:
        return self.url.removeprefix("https://")

    def client(self) -> httpx.Client:
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        return httpx.Client(base_url=self.url, verify=trusted, timeout=10, trust_env=False)


@pytest.fixture(scope="module")
def front(directory: Path) -> Iterator[Front]:
    place = directory / f"proxied-{secrets.token_hex(4)}"
    certificate, key = directory / f"{place.name}.pem", directory / f"{place.name}.key"
    _certify(certificate, key)
    port, inner = free_port(), free_port()
    url = f"https://localhost:{port}"
    reach = {"public_url": url, "trusted_proxies": "127.0.0.1", "limits": "register=off"}
    server = ServerProcess(place, port=inner, **reach)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
    command = [Path(sys.executable).parent / "angelia", "token", "create", "--role", "admin", "--offline", "-q"]
    made = subprocess.run([*command, "--data-dir", place], env=kept, capture_output=True, text=True, check=True)
    server.start()
    yield Front(url, port, inner, certificate, key, server, made.stdout.strip())
    server.stop()


@pytest.fixture(params=["nginx", "caddy"])
def proxy(request: pytest.FixtureRequest, front: Front, tmp_path: Path) -> Iterator[str]:
    """One of the two, in front of the server."""
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on this machine")
    start: Callable[[Front, Path], list[str]] = {"nginx": _nginx, "caddy": _caddy}[name]
    log = tmp_path / "proxy.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            start(front, tmp_path), stdout=said, stderr=said, env=os.environ | {"HOME": str(tmp_path)}
        )
    try:
        _wait_for(front, process, log)
        yield name
    finally:
        process.terminate()
        process.wait(10)


def test_a_signed_request_holds_behind_a_proxy(front: Front, proxy: str) -> None:
    with front.client() as client:
        agent = _registered(client)
        signed = agent.signed("GET", "/v1/agents/me", authority=front.authority)
        assert client.get("/v1/agents/me", headers=signed).json()["id"] == agent.id
        elsewhere = agent.signed("GET", "/v1/agents/me", authority=f"127.0.0.1:{front.inner}")
        assert client.get("/v1/agents/me", headers=elsewhere).status_code == 401


def test_a_stream_is_heard_while_it_is_open(front: Front, proxy: str) -> None:
    with front.client() as client:
        agent = _registered(client)
        signed = agent.signed("GET", "/v1/messages/stream", authority=front.authority)
        with client.stream("GET", "/v1/messages/stream", headers=signed) as answer:
            assert next(answer.iter_raw()) == HEARTBEAT  # a read gives up after 10 s


def test_mail_comes_on_a_stream_through_a_proxy(
    front: Front, proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("certifi.where", lambda: str(front.certificate))
    _allow_all(front)
    ann, ben = (Person(front.url, tmp_path / name, f"{name}-{secrets.token_hex(4)}") for name in ("ann", "ben"))
    for one in (ann, ben):
        one.register()
        one.client.keys.publish(one.mailbox)
    came: list[object] = []
    listening = threading.Thread(target=lambda: came.append(next(ben.client.mail.stream())), daemon=True)
    listening.start()
    ann.client.mail.send(ann.mailbox, ben.name, b"hello")
    listening.join(UNTIL_THE_NEXT_HEARTBEAT)
    assert [type(one) for one in came] == [LeasedMessage]
    for one in (ann, ben):
        one.close()


def test_a_body_that_is_too_large_is_answered_by_the_server_itself(front: Front, proxy: str) -> None:
    with front.client() as client:
        agent, body = _registered(client), b" " * (json_form.MAX_JSON + 1)
        signed = agent.signed("POST", "/v1/messages", body, authority=front.authority)
        answer = client.post("/v1/messages", content=body, headers=signed)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_the_address_of_the_caller_is_the_one_that_the_proxy_saw(front: Front, proxy: str) -> None:
    # nginx adds to what the caller says, and the caller's own address is a trusted one here; Caddy starts anew.
    seen = {"nginx": "203.0.113.9", "caddy": "127.0.0.1"}[proxy]
    with front.client() as client:
        request_id = client.get("/healthz", headers={"x-forwarded-for": "203.0.113.9"}).headers["x-request-id"]
    deadline = time.monotonic() + 5
    while not (lines := [line for line in front.server.log.read_text().splitlines() if request_id in line]):
        assert time.monotonic() < deadline, "a request is logged right after its answer"
        time.sleep(0.02)
    assert f'"address":"{seen}"' in lines[0]


def _registered(client: httpx.Client) -> Agent:
    agent = Agent()
    agent.id = client.post("/register", json={"public_key": agent.public_text}).json()["id"]
    return agent


def _allow_all(front: Front) -> None:
    with Client(front.url, token=front.token) as operator:
        if not operator.policy.list().policies:
            for action in ("send", "keys.read"):
                operator.policy.add("allow", action, subject="*", object="*")


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def _filled(block: str, front: Front) -> str:
    for there, here in (
        ("/etc/ssl/angelia.pem", str(front.certificate)),
        ("/etc/ssl/angelia.key", str(front.key)),
        ("127.0.0.1:8080", f"127.0.0.1:{front.inner}"),
    ):
        assert there in block
        block = block.replace(there, here)
    return block


def _nginx(front: Front, place: Path) -> list[str]:
    block = _filled(_block("nginx"), front)
    for there, here in (("listen 443 ", f"listen 127.0.0.1:{front.port} "), ("angelia.example", "localhost")):
        assert there in block
        block = block.replace(there, here)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {place}/{kind};\n" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""  # its temporary files lie in our directory
    config = place / "nginx.conf"
    config.write_text(
        f"daemon off; {user} pid {place}/nginx.pid; error_log stderr;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}{block}}}\n"
    )
    return ["nginx", "-p", str(place), "-e", "stderr", "-c", str(config)]


def _caddy(front: Front, place: Path) -> list[str]:
    block = _filled(_block("caddy"), front)
    assert "angelia.example {" in block
    config = place / "Caddyfile"
    own = "{\nadmin off\nauto_https disable_redirects\n}\n"
    config.write_text(own + block.replace("angelia.example {", f"{front.url} {{"))
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(config)]


def _wait_for(front: Front, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with front.client() as client:
                client.get("/healthz").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"the proxy does not answer: {log.read_text()[-2000:]}")


def _certify(certificate: Path, key: Path) -> None:
    """A certificate for localhost that its clients are told to trust."""
    private, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(pem, pkcs8, serialization.NoEncryption()))
