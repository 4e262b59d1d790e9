"""Doorways for the tests of the edge. The ledger behind them connects only when a route asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from angelia.settings import Settings, with_values
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from doorway import Doorway


@pytest.fixture
async def make(ledger_url: str, hot: HotTier) -> AsyncIterator[Callable[..., object]]:
    """`await make(open_mode=True, …)` gives a Doorway; the values are settings."""
    async with AsyncExitStack() as stack:

        async def begin(*, open_mode: bool = False, **values: object) -> Doorway:
            ledger = await Ledger.open(ledger_url, 2)
            stack.push_async_callback(ledger.close)
            doorway = Doorway(ledger, hot, with_values(Settings(), **values), open_mode=open_mode)
            stack.push_async_callback(doorway.client.aclose)
            return doorway

        yield begin


@pytest.fixture
def ledger_url(stores: object) -> str:
    """The stores' own empty database; a test that needs tables overrides this with `database_url`."""
    return stores.database_url  # type: ignore[attr-defined]
