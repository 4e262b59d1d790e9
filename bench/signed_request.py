"""What a signed request costs over an empty handler, on the same server in the same run.

The empty handler is `GET /healthz`. The signed request is `GET /v1/agents/me`, whose handler only encodes the
record that the guard has found: what is measured is the guard. Both answer over 16 kept connections.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from urllib.parse import urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.envelope.ids import KeyType, key_id
from angelia.guard import profile
from harness import Result, interleaved, send, server, worker_cpu


def main(*, quick: bool) -> list[Result]:
    count, rounds = (1_500, 3) if quick else (5_000, 7)
    with server() as runtime:
        authority = urlsplit(runtime.url).netloc
        port = urlsplit(runtime.url).port or 80
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        _register(runtime.url, public)
        empty = [f"GET /healthz HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode()] * count

        def measure(requests: list[bytes]) -> float:
            cpu = worker_cpu(runtime)
            statuses = asyncio.run(send(port, requests))
            assert set(statuses) == {200}, set(statuses)
            return (worker_cpu(runtime) - cpu) / len(requests) * 1e6

        def signed() -> float:
            return measure([_signed(key, public, authority) for _ in range(count)])

        time.sleep(1.1)  # requests signed in the second of the hot tier's birth are refused
        measure(empty[:200])
        bare, proven = interleaved(rounds, lambda: measure(empty), signed)
    return [
        Result(
            "signed request / empty handler",
            f"{proven:,.0f} CPU-µs",
            f"{bare:,.0f} CPU-µs",
            proven / bare,
            "web process only; lower is better",
        )
    ]


def _register(url: str, public: bytes) -> None:
    import base64

    answer = httpx.post(f"{url}/register", json={"public_key": base64.b64encode(public).decode()})
    answer.raise_for_status()


def _signed(key: Ed25519PrivateKey, public: bytes, authority: str) -> bytes:
    target = profile.Target("GET", authority, "/v1/agents/me", "", profile.digest(b""))
    headers = profile.sign(
        key, key_id(KeyType.ED25519, public), target, created=int(time.time()), nonce=secrets.token_urlsafe(18)
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET /v1/agents/me HTTP/1.1\r\nhost: {authority}\r\n{lines}\r\n".encode()
