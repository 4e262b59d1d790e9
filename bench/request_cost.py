"""The CPU time of a web process for one request that does nothing, compared with a bare uvicorn application.

The web process belongs to a running `angelia serve` with its defaults: request log on, in a file, and metric files. It
has routes with empty handlers beside the real ones, so what is measured is the edge and the guard alone; `/healthz` is
a real route that does next to nothing. Signed requests come from 16 agents, each with a nonce of its own, those with a
token all have one token; what the process remembers of agents and tokens is asked again when its time is over. Both are
counted by a rate limit. Both sides get the same number of requests from the same generator over 16 connections, in
turns. The CPU time of Valkey and PostgreSQL for a request is in the note, with the background work of the server. A
web process asks the hot tier about every address in its first minute, since it cannot know which ones failed before it
began; that minute is over when the measurement starts.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx
import uvloop

import cpu_time
from angelia import settings
from angelia.guard.model import UNPROVEN
from angelia.keys.node_key import load_or_make
from angelia.settings import OUR_OWN
from angelia.stores.embedded.datadir import DataDir
from angelia.worker import READY, Handover
from fleet import Member, enroll
from harness import Result, compared, cpu_us, send
from served import Served, server

CONNECTIONS = AGENTS = 16
FIRST_MINUTE = UNPROVEN.window_ms / 1000 + 2
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Process:
    """A process that answers requests on a port."""

    pid: int
    port: int

    def cost(self, requests: Sequence[bytes]) -> float:
        """Returns the CPU seconds that it takes for one of these requests."""
        before = cpu_time.of_process(self.pid)
        statuses = uvloop.run(send(self.port, requests, CONNECTIONS))
        assert set(statuses) == {200}, set(statuses)
        return (cpu_time.of_process(self.pid) - before) / len(requests)


def main(*, quick: bool) -> list[Result]:
    count, rounds = (2_000, 7) if quick else (5_000, 15)
    with server() as served, _bare() as bare, _web(served) as web:
        url = f"http://127.0.0.1:{web.port}"
        members = enroll(served.runtime, [f"agent-{n}" for n in range(AGENTS)])
        token = _token(served, members[0])
        bearer = f"authorization: Bearer {token}\r\n"
        kinds = {
            "empty request, GET /healthz": partial(_plain, url, "/healthz", count),
            "empty request, empty handler": partial(_plain, url, "/v1/empty/anyone", count),
            "open-mode request": partial(_plain, url, "/v1/empty/open", count),
            "bearer-token request": partial(_plain, url, "/v1/empty/agent", count, bearer),
            "signed request": partial(_signed, members, url, count),
        }
        costs: dict[str, list[float]] = {name: [] for name in ("bare", *kinds)}
        stores: dict[str, list[float]] = {name: [] for name in kinds}
        time.sleep(FIRST_MINUTE)
        for number in range(rounds + 1):
            costs["bare"].append(bare.cost(_plain(f"http://127.0.0.1:{bare.port}", "/", 4 * count)))
            for name, made in kinds.items():
                requests, before = made(), served.cost()
                costs[name].append(web.cost(requests))
                spent = served.cost() - before
                stores[name].append((spent.postgres + spent.valkey) / count)
            if number == 0:  # the first round warms up
                for measured in (*costs.values(), *stores.values()):
                    measured.clear()
    return [
        compared(
            f"{name} / bare uvicorn",
            costs[name],
            costs["bare"],
            cpu_us,
            f"lower is better; {CONNECTIONS} connections; stores {cpu_us(statistics.median(stores[name]))}",
        )
        for name in kinds
    ]


def _plain(url: str, path: str, count: int, headers: str = "") -> list[bytes]:
    authority = url.removeprefix("http://")
    return [f"GET {path} HTTP/1.1\r\nhost: {authority}\r\n{headers}\r\n".encode()] * count


def _signed(members: Sequence[Member], url: str, count: int) -> list[bytes]:
    return [members[n % AGENTS].request(url, "GET", "/v1/empty/agent") for n in range(count)]


def _token(served: Served, member: Member) -> str:
    admin = (served.data_dir / "admin.token").read_text("ascii").strip()
    made = httpx.post(
        f"{served.runtime.url}/v1/tokens",
        json={"role": "read-write", "agent": member.handle},
        headers={"authorization": f"Bearer {admin}"},
    )
    return str(made.raise_for_status().json()["token"])


@contextmanager
def _bare() -> Iterator[Process]:
    with _listener() as listener:
        command = [sys.executable, "-P", str(HERE / "bare_uvicorn.py"), str(listener.fileno())]
        child = subprocess.Popen(command, pass_fds=[listener.fileno()])
        with _ended(child):
            yield Process(child.pid, listener.getsockname()[1])


@contextmanager
def _web(served: Served) -> Iterator[Process]:
    """Starts the web process as the server starts its own, on a port of its own."""
    reading, writing = os.pipe()
    data_dir = DataDir(served.data_dir)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2048) as listener,
        (data_dir.logs / "bench.log").open("wb") as log,
    ):
        port = listener.getsockname()[1]
        loaded = settings.load({"data_dir": served.data_dir, "port": port}, environ={})
        database_url, redis_url = served.runtime.database_url, served.runtime.redis_url
        handover = Handover(
            loaded=replace(
                loaded,
                settings=replace(loaded.settings, database_url=database_url, redis_url=redis_url),
                origins={**loaded.origins, "database_url": OUR_OWN, "redis_url": OUR_OWN},
            ),
            open_mode=True,
            node_public_key=load_or_make(data_dir.node_key).public_key,
            listener=listener.fileno(),
            worker=1,
            report=writing,
        )
        child = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "empty_routes.py")],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(data_dir.metrics)},
            stdin=subprocess.PIPE,
            stderr=log,
            pass_fds=[listener.fileno(), writing],
        )
        os.close(writing)
        with _ended(child):
            assert child.stdin
            child.stdin.write(handover.encode())
            child.stdin.close()
            said = os.read(reading, 4096)
            assert said == READY, said.decode("utf-8", "replace")
            time.sleep(1.1)  # requests signed in the second of the hot tier's birth are refused
            yield Process(child.pid, port)


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=2048)


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        child.terminate()
        child.wait(30)
