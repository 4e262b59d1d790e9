"""Fixtures of doorways: an edge on real stores, or on stores that are away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from angelia.api import Route
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from probe_edge import Doorway


@pytest.fixture
async def dead_ledger() -> AsyncIterator[Ledger]:
    """A ledger that is away."""
    ledger = await Ledger.open("postgresql://nobody@/nothing?host=/nonexistent", 2)
    yield ledger
    await ledger.close()


@pytest.fixture
async def dead_hot_tier() -> AsyncIterator[HotTier]:
    hot = HotTier("unix:///nonexistent/valkey.sock")
    yield hot
    await hot.close()


@pytest.fixture
async def make(stores: Any, hot: HotTier) -> AsyncIterator[object]:
    """`await make(open_mode=True, …)` returns a Doorway; other values are settings."""
    async with AsyncExitStack() as stack:

        async def begin(
            *,
            open_mode: bool = False,
            ledger: Ledger | None = None,
            hot: HotTier = hot,
            more: Sequence[Route] = (),
            **values: Any,
        ) -> Doorway:
            if ledger is None:
                ledger = await Ledger.open(stores.database_url, 2)
                stack.push_async_callback(ledger.close)
            doorway = Doorway(ledger, hot, Settings(**values), open_mode=open_mode, more=more)
            stack.push_async_callback(doorway.client.aclose)
            stack.push_async_callback(doorway.wake.close)
            return doorway

        yield begin
