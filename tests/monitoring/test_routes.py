"""What monitors and operators ask a server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import angelia
from angelia.monitoring import routes as monitoring
from angelia.monitoring.slice import MonitoringSlice
from angelia.settings import Loaded, Settings
from angelia.stores.ledger import Ledger
from angelia.stores.open_stores import Stores
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from http_agents import Server
from probe_edge import Doorway


async def asked(make, ledger: Ledger, hot: HotTier, path: str = "/health") -> Any:
    """Ask a server that stands on these stores."""
    routes = MonitoringSlice(Stores(ledger, hot, Wake(hot)), Loaded(Settings(), {}), 7).routes()
    doorway: Doorway = await make(ledger=ledger, hot=hot, more=routes)
    return await doorway.client.get(path)


async def test_health_is_the_union_of_what_both_monitors_read(make, ledger: Ledger, hot: HotTier) -> None:
    answer = await asked(make, ledger, hot)
    health = answer.json()
    assert (answer.status_code, health["status"], health["database"], health["worker_id"]) == (
        200,
        "healthy",
        "connected",
        7,
    )
    assert health["version"] == angelia.__version__
    assert health["server"]
    assert {name: check["status"] for name, check in health["checks"].items()} == dict.fromkeys(
        ("postgres", "redis", "disk"), "pass"
    )
    assert all(health["checks"][store]["latency"] for store in ("postgres", "redis"))
    assert abs(datetime.fromisoformat(health["timestamp"]) - datetime.now(UTC)) < timedelta(minutes=1)


async def test_health_is_degraded_when_the_ledger_is_away(make, dead_ledger: Ledger, hot: HotTier) -> None:
    answer = await asked(make, dead_ledger, hot)
    health = answer.json()
    assert (answer.status_code, health["status"], health["database"]) == (503, "degraded", "disconnected")
    assert health["checks"]["postgres"] == {"status": "fail", "message": "connection failed"}
    assert health["checks"]["redis"]["status"] == "pass"
    assert int(answer.headers["retry-after"]) >= 1


async def test_health_is_degraded_when_the_hot_tier_is_away(make, ledger: Ledger, dead_hot_tier: HotTier) -> None:
    answer = await asked(make, ledger, dead_hot_tier)
    health = answer.json()
    assert (answer.status_code, health["status"], health["database"]) == (503, "degraded", "connected")
    assert health["checks"]["redis"] == {"status": "fail", "message": "connection failed"}


async def test_health_does_not_wait_for_a_store_that_is_silent(
    make, hot: HotTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "CHECK_SECONDS", 0.1)
    async with _silent_ledger() as silent, asyncio.timeout(3):
        answer = await asked(make, silent, hot)
    assert (answer.status_code, answer.json()["database"]) == (503, "disconnected")


@asynccontextmanager
async def _silent_ledger() -> AsyncIterator[Ledger]:
    """A ledger whose server takes connections and never says a word."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ledger = await Ledger.open(f"postgresql://nobody:x@127.0.0.1:{port}/nothing?sslmode=disable", 1)
    yield ledger
    await ledger.close()
    server.close()


async def test_healthz_says_that_the_process_lives_whatever_the_stores_do(
    make, dead_ledger: Ledger, dead_hot_tier: HotTier
) -> None:
    assert (await asked(make, dead_ledger, dead_hot_tier, "/healthz")).status_code == 200


async def test_monitors_need_no_credential_and_are_never_limited(start) -> None:
    server: Server = await start(spool=True)
    for path in ("/health", "/healthz", "/metrics", "/metrics/prometheus", "/api"):
        answer = await server.get(path)
        assert (answer.status_code, "x-ratelimit-limit" in answer.headers) == (200, False), path


async def test_metrics_are_prometheus_text_of_our_own_names(make, ledger: Ledger, hot: HotTier) -> None:
    answer = await asked(make, ledger, hot, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    # The library adds a *_created series to each of ours, and a few about the process.
    named = {family.name.removesuffix("_created") for family in text_string_to_metric_families(answer.text)}
    ours = {name for name in named if not name.startswith(("python_", "process_"))}
    aicq = {name for name in ours if name.startswith("aicq_")}
    assert aicq == {"aicq_http_requests", "aicq_http_request_duration_seconds"}
    assert all(name.startswith("angelia_") for name in ours - aicq)
    assert ours - aicq


async def test_the_duration_has_the_buckets_that_old_monitors_know(make, ledger: Ledger, hot: HotTier) -> None:
    await asked(make, ledger, hot, "/healthz")
    answer = await asked(make, ledger, hot, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    samples = families["aicq_http_request_duration_seconds"].samples
    found = {float(s.labels["le"]) for s in samples if s.labels.get("path") == "/healthz" and "le" in s.labels}
    assert sorted(found) == [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, float("inf")]


async def test_both_metrics_paths_give_the_same_series(make, ledger: Ledger, hot: HotTier) -> None:
    texts = [(await asked(make, ledger, hot, path)).text for path in ("/metrics", "/metrics/prometheus")]
    first, second = ({family.name for family in text_string_to_metric_families(text)} for text in texts)
    assert first == second


async def test_api_names_itself_as_the_smoke_test_of_old_clients_wants(start) -> None:
    server: Server = await start()
    assert (await server.get("/api")).json() == {"name": "AICQ", "version": angelia.__version__, "docs": "/docs"}


async def test_settings_are_for_operators(start) -> None:
    server: Server = await start()
    made = await server.post("/v1/tokens", json={"role": "read-write"}, headers=server.admin)
    weaker = {"authorization": f"Bearer {made.json()['token']}"}
    statuses = [(await server.get("/v1/settings", headers=h)).status_code for h in ({}, weaker, server.admin)]
    assert statuses == [401, 403, 200]


async def test_settings_are_shown_with_their_origin_and_without_secrets(start) -> None:
    secret = secrets.token_urlsafe(32)
    server: Server = await start(jwt_secret=secret)
    answer = await server.get("/v1/settings", headers=server.admin)
    shown = {setting["name"]: setting for setting in answer.json()["settings"]}
    assert shown["jwt_secret"]["value"] == "***"
    assert shown["port"] == {"name": "port", "value": "8080", "origin": "default", "about": shown["port"]["about"]}
    assert all(setting["origin"] and setting["about"] for setting in shown.values())
    assert secret not in answer.text
    assert server.admin_token not in answer.text
