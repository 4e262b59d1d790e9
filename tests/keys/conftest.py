"""The keys slice by itself, for everything that depends on the time, and its routes behind a guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from assembled_slices import Assembled, assembled
from http_agents import Server
from keyholder import NO_LIMITS, KeyHolder, KeySlice, whole_ms


@pytest.fixture
def now() -> datetime:
    """The present: the audit has partitions for a few days only."""
    return whole_ms(datetime.now(UTC))


@pytest.fixture
async def process(ledger: Ledger, hot: HotTier, tmp_path: Path) -> AsyncIterator[Assembled]:
    async with assembled(ledger, hot, tmp_path, limits=NO_LIMITS) as process:
        await process.slices.policy.policy.start_with(datetime.now(UTC), loopback=True)
        yield process


@pytest.fixture
def keys_slice(process: Assembled) -> KeySlice:
    return KeySlice(process)


@pytest.fixture
async def server(process: Assembled, database_url: str, redis_url: str) -> AsyncIterator[Server]:
    """The slice over HTTP, without the ticks of a whole application."""
    async with process.serving(database_url, redis_url) as server:
        yield server


@pytest.fixture
async def alice(server: Server) -> KeyHolder:
    return await KeyHolder().join(server, "alice")


@pytest.fixture
async def bob(server: Server) -> KeyHolder:
    return await KeyHolder().join(server, "bob")
