"""Health of the stores, metrics and effective settings over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from angelia import __version__
from angelia.api import Access, Answer, Call, Operation, Route
from angelia.errors import Unavailable
from angelia.monitoring import api
from angelia.monitoring.api import Check
from angelia.settings import Loaded
from angelia.stores.disk import Disk
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier

CHECK_SECONDS = 3.0


def routes(ledger: Ledger, hot: HotTier, loaded: Loaded, worker: int) -> list[Route]:
    async def health(call: Call) -> Answer:
        postgres, redis = await asyncio.gather(_check(ledger.ping), _check(hot.ping))
        checks = {"postgres": postgres, "redis": redis, "disk": _check_disk(ledger.disk)}
        sound = all(check.status == "pass" for check in checks.values())
        body = api.Health(
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
