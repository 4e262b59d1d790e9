"""The channels slice on real stores: by its services, for what depends on the time, and over HTTP behind a guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.agents import routes as agent_routes
from angelia.agents.service import Agents
from angelia.audit.failures import Failures
from angelia.audit.failures_store import Counts
from angelia.channels import routes as channel_routes
from angelia.channels.admission import ChannelAdmission
from angelia.channels.epochs import Epochs
from angelia.channels.publishing import Publishing
from angelia.channels.reading import Readers
from angelia.channels.rosters import Rosters
from angelia.channels.service import Channels
from angelia.envelope.wire import TTL_MAX
from angelia.guard.blocks import Blocks
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens
from angelia.keys import master_key
from angelia.keys import routes as key_routes
from angelia.keys.field_encryption import Fields
from angelia.keys.node_key import load_or_make
from angelia.keys.schedules import Schedules
from angelia.keys.service import Keys
from angelia.keys.store import HotBundles
from angelia.policy.service import Policy
from angelia.policy.store import HotRates
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from channels.members import Member
from edges import edge_of, limiter_of
from keyholder import NO_LIMITS, whole_ms
from support import Server

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
async def slices(ledger: Ledger, hot: HotTier) -> AsyncIterator[ChannelSlice]:
    agents, policy, wake = Agents(ledger), Policy(ledger, HotRates(hot)), Wake(hot)
    keys = Keys(ledger, HotBundles(hot), agents, policy, wake)
    admission = ChannelAdmission(policy)
    publishing = Publishing(ledger, wake, admission, Failures(ledger, Counts(hot)))
    channels = Channels(ledger, wake, agents, keys, admission)
    await policy.start_with(datetime.now(UTC), loopback=True)
    yield ChannelSlice(
        ledger,
        agents,
        keys,
        policy,
        wake,
        channels,
        Epochs(ledger, agents, admission),
        Rosters(ledger, wake, channels, admission),
        publishing,
        Readers(ledger, wake, admission),
    )
    wake.stop()
    await publishing.close()
    await wake.close()
    await agents.close()


@pytest.fixture
async def server(
    slices: ChannelSlice, hot: HotTier, database_url: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Server]:
    ledger, agents = slices.ledger, slices.agents
    settings = Settings(limits=LIMITS, data_dir=tmp_path)
    tokens, blocks = Tokens(ledger, agents), Blocks(ledger, hot)
    schedules = Schedules(ledger, slices.keys, Fields(master_key.make(tmp_path / "master.key")), slices.wake)
    routes = [
        *agent_routes.routes(agents, show_email=False),
        *key_routes.routes(slices.keys, schedules, load_or_make(tmp_path / "node.key")),
        *channel_routes.routes(
            slices.channels, slices.epochs, slices.rosters, slices.publishing, slices.readers, TTL_MAX
        ),
    ]
    guard = Guard(
        agents=agents,
        tokens=tokens,
        limiter=limiter_of(routes, hot, blocks, settings),
        settings=settings,
        open_mode=False,
    )
    edge = edge_of(routes, guard, settings, open_mode=False)
    async with Server(edge, "", database_url, redis_url) as server:  # type: ignore[arg-type]
        await hot.birth()
        await server.hot_tier_is_old_enough()
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
