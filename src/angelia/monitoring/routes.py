"""Health of the stores, metrics and effective settings over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from angelia import __version__
from angelia.api import Access, Answer, Call, Operation, Route
from angelia.errors import Unavailable
from angelia.monitoring import api
from angelia.monitoring.api import Check
from angelia.settings import Loaded

Ping: TypeAlias = Callable[[], Awaitable[None]]
CHECK_SECONDS = 3.0


def health_routes(pings: Mapping[str, Ping], full_disk: Callable[[], str | None], worker: int) -> list[Route]:
    """`pings` ask the stores; the first is the ledger. `full_disk` returns how little room is left on a disk that is
    full, else None."""

    async def health(call: Call) -> Answer:
        found = await asyncio.gather(*map(_check, pings.values()))
        checks = {**dict(zip(pings, found, strict=True)), "disk": _check_disk(full_disk())}
        sound = all(check.status == "pass" for check in checks.values())
        body = api.Health(
            status="healthy" if sound else "degraded",
            version=__version__,
            checks=checks,
            timestamp=call.now.replace(microsecond=0),
            database="connected" if found[0].status == "pass" else "disconnected",
            server=socket.gethostname(),
            worker_id=worker,
        )
        return Answer(200 if sound else 503, body, {} if sound else {"retry-after": "1"})

    async def healthz(call: Call) -> Answer:
        return Answer(body=api.Alive("ok"))

    return [Route(api.HEALTH, health), Route(api.ALIVE, healthz)]


def metrics_route(operation: Operation[None] = api.METRICS, *, open_to_all: bool) -> Route:
    """`open_to_all` lets callers without a credential read what is counted."""

    async def metrics(call: Call) -> Answer:
        return Answer(body=await asyncio.to_thread(_metrics_text), content_type=CONTENT_TYPE_LATEST)

    return Route(operation if open_to_all else replace(operation, access=Access.READ), metrics)


def routes(pings: Mapping[str, Ping], full_disk: Callable[[], str | None], loaded: Loaded, worker: int) -> list[Route]:
    """The routes of a server: `pings` and `full_disk` as for `health_routes`."""

    async def name(call: Call) -> Answer:
        return Answer(body=api.ServerName("AICQ", __version__, "/docs"))

    async def settings(call: Call) -> Answer:
        return Answer(body=msgspec.convert({"settings": loaded.shown()}, api.SettingList, from_attributes=True))

    return [
        *health_routes(pings, full_disk, worker),
        Route(api.NAME, name),
        metrics_route(open_to_all=loaded.settings.open_metrics),
        metrics_route(api.METRICS_PROMETHEUS, open_to_all=loaded.settings.open_metrics),
        Route(api.SETTINGS, settings),
    ]


async def _check(ping: Ping) -> Check:
    started = time.perf_counter()
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await ping()
    except (Unavailable, TimeoutError):
        return Check("fail", message="connection failed")
    return Check("pass", latency=f"{(time.perf_counter() - started) * 1000:.3f}ms")


def _check_disk(left: str | None) -> Check:
    return Check("pass") if left is None else Check("fail", message=f"full: {left} left, nothing is written")


def _metrics_text() -> bytes:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
