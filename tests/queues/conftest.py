"""Processes with the queue slice on real stores. Their ticks run only when a test calls them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from angelia.queues.readiness import Waiter
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from assembled_slices import Assembled, assembled
from keyholder import whole_ms

Another = Callable[[], Awaitable[QueuesSlice]]


@asynccontextmanager
async def queue_process(database_url: str, redis_url: str, directory: Path, **values: Any) -> AsyncIterator[Assembled]:
    """A process that was just started, with connections of its own; `values` are settings."""
    ledger, hot = await Ledger.open(database_url), HotTier(redis_url)
    try:
        async with assembled(ledger, hot, directory, **values) as process:
            yield process
    finally:
        await hot.close()
        await ledger.close()


@pytest.fixture
def now() -> datetime:
    return whole_ms(datetime.now(UTC))


@pytest.fixture
async def another(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Another]:
    """`await another()` gives the queue slice of one more process on the same stores."""
    async with AsyncExitStack() as stack:

        async def begin() -> QueuesSlice:
            process = await stack.enter_async_context(queue_process(database_url, redis_url, tmp_path))
            return process.slices.queues

        yield begin


@pytest.fixture
async def queues(another: Another) -> QueuesSlice:
    return await another()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[float]:
    """Has an entry for each time that a pop found nothing and waits: for how many seconds at most."""
    begun: asyncio.Queue[float] = asyncio.Queue()
    wait = Waiter.wait

    async def noted(waiter: Waiter, seconds: float) -> None:
        begun.put_nowait(seconds)
        await wait(waiter, seconds)

    monkeypatch.setattr(Waiter, "wait", noted)
    return begun


@pytest.fixture(scope="module")
def shared_database(stores: Any, template: str) -> Iterator[str]:
    """One database for the tests of a module."""
    name = f"queues_{secrets.token_hex(4)}"

    async def run(statement: str) -> None:
        admin = await asyncpg.connect(stores.admin_url)
        await admin.execute(statement)
        await admin.close()

    asyncio.run(run(f"CREATE DATABASE {name} TEMPLATE {template} OWNER angelia"))
    yield stores.named(name)
    asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))
