"""The channels slice on real stores: by its services, for what depends on the time, and over HTTP behind a guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.agents.service import Agents
from angelia.channels.epochs import Epochs
from angelia.channels.publishing import Publishing
from angelia.channels.reading import Readers
from angelia.channels.rosters import Rosters
from angelia.channels.service import Channels
from angelia.keys.service import Keys
from angelia.policy.service import Policy
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from assembled_slices import Assembled, assembled
from channels.members import Member
from http_agents import Server
from keyholder import NO_LIMITS, whole_ms

LIMITS = {**NO_LIMITS, "channels": "off", "publish": "off", "channel_commits": "off"}


@dataclass(frozen=True)
class ChannelSlice:
    """The services of the slice, to be called with any time."""

    ledger: Ledger
    agents: Agents
    keys: Keys
    policy: Policy
    wake: Wake
    channels: Channels
    epochs: Epochs
    rosters: Rosters
    publishing: Publishing
    readers: Readers


@pytest.fixture
def now() -> datetime:
    return whole_ms(datetime.now(UTC))


@pytest.fixture
async def process(ledger: Ledger, hot: HotTier, tmp_path: Path) -> AsyncIterator[Assembled]:
    async with assembled(ledger, hot, tmp_path, limits=LIMITS) as process:
        await process.slices.policy.policy.start_with(datetime.now(UTC), loopback=True)
        yield process


@pytest.fixture
def slices(process: Assembled) -> ChannelSlice:
    stores, opened = process.stores, process.slices
    return ChannelSlice(
        stores.ledger,
        opened.agents.agents,
        opened.keys.keys,
        opened.policy.policy,
        stores.wake,
        opened.channels.channels,
        opened.channels.epochs,
        opened.channels.rosters,
        opened.channels.publishing,
        opened.channels.readers,
    )


@pytest.fixture
async def server(process: Assembled, database_url: str, redis_url: str) -> AsyncIterator[Server]:
    async with process.serving(database_url, redis_url) as server:
        yield server


@pytest.fixture
async def alice(server: Server) -> Member:
    return await Member.joined(server, "alice")


@pytest.fixture
async def bob(server: Server) -> Member:
    return await Member.joined(server, "bob")


@pytest.fixture
async def carol(server: Server) -> Member:
    return await Member.joined(server, "carol")
