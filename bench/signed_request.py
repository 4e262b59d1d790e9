"""The cost of a signed request compared with an empty handler: two routes with the same handler on one server.

One route needs no credential, the other an agent's signature: the difference is the guard. Measured is the CPU time of
the server's process, which other load on the machine disturbs less than the rate.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import uvicorn
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.agents.service import Agents
from angelia.api import NOTHING, Access, Answer, Call, Operation, Route, clock, http_signature
from angelia.envelope.ids import KeyType, key_id
from angelia.guard.blocks import AddressBlocks
from angelia.guard.rate_limiter import RateLimiter
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens
from angelia.http import logs
from angelia.http.edge import Edge
from angelia.http.protocol import BoundedProtocol
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from harness import Result, interleaved, send, stores

AUTHORITY = "localhost:8080"


def main(*, quick: bool) -> list[Result]:
    count, rounds = (2_000, 5) if quick else (5_000, 9)
    key = Ed25519PrivateKey.generate()
    with stores() as (database_url, redis_url), _server(key, database_url, redis_url) as (port, process):
        empty = [f"GET /empty HTTP/1.1\r\nhost: {AUTHORITY}\r\n\r\n".encode()] * count

        def measure(requests: list[bytes]) -> float:
            before = sum(process.cpu_times()[:2])
            statuses = asyncio.run(send(port, requests))
            assert set(statuses) == {200}, set(statuses)
            return (sum(process.cpu_times()[:2]) - before) / len(requests) * 1e6

        def signed() -> float:
            return measure([_signed(key) for _ in range(count)])

        time.sleep(1.1)  # requests signed in the second of the hot tier's birth are refused
        measure(empty[:500])
        bare, proven = interleaved(rounds, lambda: measure(empty), signed)
    note = "lower is better; 16 connections"
    return [
        Result("signed request / empty handler", f"{proven:,.0f} CPU-µs", f"{bare:,.0f} CPU-µs", proven / bare, note)
    ]


def _signed(key: Ed25519PrivateKey) -> bytes:
    target = http_signature.Target("GET", AUTHORITY, "/v1/signed", "", http_signature.digest(b""))
    id_ = key_id(KeyType.ED25519, key.public_key().public_bytes_raw())
    headers = http_signature.sign(key, id_, target, created=int(time.time()), nonce=secrets.token_urlsafe(18))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET /v1/signed HTTP/1.1\r\nhost: {AUTHORITY}\r\n{lines}\r\n".encode()


@contextmanager
def _server(key: Ed25519PrivateKey, database_url: str, redis_url: str) -> Iterator[tuple[int, psutil.Process]]:
    """Runs the server in a process of its own, so that its CPU time can be measured. Yields its port and process."""
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    told = json.dumps([database_url, redis_url, public]).encode()
    child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin
    assert child.stdout
    child.stdin.write(told + b"\n")
    child.stdin.flush()
    try:
        yield int(child.stdout.readline()), psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(10)


async def _serve(database_url: str, redis_url: str, public: str) -> None:
    settings = Settings(log_level="warning")
    logs.configure(settings)
    ledger, hot = await Ledger.open(database_url), HotTier(redis_url)
    agents = Agents(ledger)
    await agents.register(public, "", "", clock())
    await hot.birth()

    async def handler(call: Call) -> Answer:
        return Answer(body=b"{}")

    routes = [
        Route(Operation("bench", "GET", "/empty", Access.ANYONE, "Nothing", NOTHING), handler),
        Route(Operation("bench", "GET", "/v1/signed", Access.AGENT, "Nothing", NOTHING), handler),
    ]
    guard = Guard(
        agents=agents,
        tokens=Tokens(ledger, agents),
        limiter=RateLimiter(hot, AddressBlocks(ledger, hot), settings, {}),
        settings=settings,
        open_mode=False,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    edge = Edge(routes, guard, open_mode=False, loopback=True, proxies=())
    config = uvicorn.Config(edge, http=BoundedProtocol, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    uvloop.run(_serve(*json.loads(sys.stdin.readline())))
