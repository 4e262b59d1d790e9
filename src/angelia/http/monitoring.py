"""What monitors and operators ask a server: /health, /healthz, /metrics, /api and /v1/settings."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from angelia import __version__
from angelia.errors import Unavailable
from angelia.guard.declarations import Access, Answer, Call, Route
from angelia.settings import Loaded
from angelia.stores.disk import Disk
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier

CHECK_SECONDS = 3.0


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One store's state."""

    status: str
    latency: str = ""
    message: str = ""


class Health(msgspec.Struct, frozen=True):
    """The union of what AICQ's and Queen's monitors read."""

    status: str
    version: str
    checks: dict[str, Check]
    timestamp: datetime
    database: str
    server: str
    worker_id: int


class Alive(msgspec.Struct, frozen=True):
    """The process lives."""

    status: str


class Name(msgspec.Struct, frozen=True):
    """How AICQ's tools recognise a server."""

    name: str
    version: str
    docs: str


class Setting(msgspec.Struct, frozen=True):
    """One effective value and where it came from; secrets are masked."""

    name: str
    value: str
    origin: str
    about: str


class SettingList(msgspec.Struct, frozen=True):
    settings: list[Setting]


def routes(ledger: Ledger, hot: HotTier, loaded: Loaded, worker: int) -> list[Route]:
    async def health(call: Call) -> Answer:
        postgres, redis = await asyncio.gather(_check(ledger.ping), _check(hot.ping))
        checks = {"postgres": postgres, "redis": redis, "disk": _check_disk(ledger.disk)}
        sound = all(check.status == "pass" for check in checks.values())
        body = Health(
            status="healthy" if sound else "degraded",
            version=__version__,
            checks=checks,
            timestamp=call.now,
            database="connected" if postgres.status == "pass" else "disconnected",
            server=socket.gethostname(),
            worker_id=worker,
        )
        return Answer(200 if sound else 503, body, {} if sound else {"retry-after": "1"})

    async def healthz(call: Call) -> Answer:
        return Answer(body=Alive("ok"))

    async def api(call: Call) -> Answer:
        return Answer(body=Name("AICQ", __version__, "/docs"))

    async def metrics(call: Call) -> Answer:
        return Answer(body=await asyncio.to_thread(_metrics_text), content_type=CONTENT_TYPE_LATEST)

    async def settings(call: Call) -> Answer:
        return Answer(body=SettingList([Setting(s.name, s.value, s.origin, s.about) for s in loaded.shown()]))

    anyone, text = Access.ANYONE, {200: "text/plain"}
    watcher = Access.ANYONE if loaded.settings.open_metrics else Access.READ
    return [
        Route("GET", "/health", health, anyone, "State of the server and its stores", {200: Health, 503: Health}),
        Route("GET", "/healthz", healthz, anyone, "Whether the process lives", {200: Alive}),
        Route("GET", "/api", api, anyone, "Name and version", {200: Name}),
        Route("GET", "/metrics", metrics, watcher, "Everything counted, as Prometheus text", text),
        Route("GET", "/metrics/prometheus", metrics, watcher, "The same text", text),
        Route("GET", "/v1/settings", settings, Access.ADMIN, "Effective settings", {200: SettingList}),
    ]


async def _check(ping: Callable[[], Awaitable[None]]) -> Check:
    started = time.perf_counter()
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await ping()
    except (Unavailable, TimeoutError):
        return Check("fail", message="connection failed")
    return Check("pass", latency=f"{(time.perf_counter() - started) * 1000:.3f}ms")


def _check_disk(disk: Disk) -> Check:
    return Check("fail", message=f"full: {disk.shown} left, nothing is written") if disk.full else Check("pass")


def _metrics_text() -> bytes:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
