"""Health of the stores, metrics and effective settings over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
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


def routes(
    ping_ledger: Ping, ping_hot_tier: Ping, full_disk: Callable[[], str | None], loaded: Loaded, worker: int
) -> list[Route]:
    """`full_disk` returns how little room is left on a disk that is full, else None."""

    async def health(call: Call) -> Answer:
        postgres, redis = await asyncio.gather(_check(ping_ledger), _check(ping_hot_tier))
        checks = {"postgres": postgres, "redis": redis, "disk": _check_disk(full_disk())}
        sound = all(check.status == "pass" for check in checks.values())
        body = api.Health(
            status="healthy" if sound else "degraded",
            version=__version__,
            checks=checks,
            timestamp=call.now.replace(microsecond=0),
            database="connected" if postgres.status == "pass" else "disconnected",
            server=socket.gethostname(),
            worker_id=worker,
        )
        return Answer(200 if sound else 503, body, {} if sound else {"retry-after": "1"})

    async def healthz(call: Call) -> Answer:
        return Answer(body=api.Alive("ok"))

    async def name(call: Call) -> Answer:
        return Answer(body=api.ServerName("AICQ", __version__, "/docs"))

    async def metrics(call: Call) -> Answer:
        return Answer(body=await asyncio.to_thread(_metrics_text), content_type=CONTENT_TYPE_LATEST)

    async def settings(call: Call) -> Answer:
        return Answer(body=msgspec.convert({"settings": loaded.shown()}, api.SettingList, from_attributes=True))

    def watched(operation: Operation[None]) -> Operation[None]:
        return operation if loaded.settings.open_metrics else replace(operation, access=Access.READ)

    return [
        Route(api.HEALTH, health),
        Route(api.ALIVE, healthz),
        Route(api.NAME, name),
        Route(watched(api.METRICS), metrics),
        Route(watched(api.METRICS_PROMETHEUS), metrics),
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
