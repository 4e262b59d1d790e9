"""Gates for the guard's tests, with a birth mark in the past, as on a server that has run for a while."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis.asyncio

from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from doorways import dead_hot_tier, dead_ledger
from guarded_routes import Gate

__all__ = ["dead_hot_tier", "dead_ledger"]


@pytest.fixture
async def gate(ledger: Ledger, hot: HotTier, redis_url: str) -> AsyncIterator[Callable[..., Gate]]:
    async with AsyncExitStack() as stack:
        await hot.ping()
        client = redis.asyncio.Redis.from_url(redis_url)
        await client.set("ang:birth", f"{hot.run_id}:{int(time.time() * 1000) - 60_000}")
        await client.aclose()

        def make(*, open_mode: bool = False, hot: HotTier = hot, **values: Any) -> Gate:
            values.setdefault("limits", {"register": "off"})
            gate = Gate(ledger, hot, Settings(**values), open_mode=open_mode)
            stack.push_async_callback(gate.client.aclose)
            stack.push_async_callback(gate.wake.close)
            return gate

        yield make
