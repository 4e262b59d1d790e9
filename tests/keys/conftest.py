"""The keys slice by itself, for everything that depends on the time, and its routes behind a guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.agents import routes as agent_routes
from angelia.agents.service import Agents
from angelia.guard import routes as guard_routes
from angelia.guard import store as guard_store
from angelia.guard.blocks import Blocks
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens, new_text, token_row
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
from edges import edge_of, limiter_of
from keyholder import NO_LIMITS, KeyHolder, KeySlice, whole_ms
from support import Server


@pytest.fixture
def now() -> datetime:
    """The present: the audit has partitions for a few days only."""
    return whole_ms(datetime.now(UTC))


@pytest.fixture
async def keys_slice(ledger: Ledger, hot: HotTier, tmp_path: Path) -> AsyncIterator[KeySlice]:
    agents, bundles, policy, wake = Agents(ledger), HotBundles(hot), Policy(ledger, HotRates(hot)), Wake(hot)
    await policy.start_with(datetime.now(UTC), loopback=True)
    fields = Fields(master_key.make(tmp_path / "master.key"))
    keys = Keys(ledger, bundles, agents, policy, wake)
    schedules = Schedules(ledger, keys, fields, wake)
    yield KeySlice(ledger, bundles, agents, policy, wake, keys, schedules)
    await agents.close()
    await wake.close()


@pytest.fixture
async def server(
    keys_slice: KeySlice, hot: HotTier, database_url: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Server]:
    """The slice over HTTP, without the documents and ticks of a whole application."""
    ledger, agents = keys_slice.ledger, keys_slice.agents
    settings = Settings(limits=NO_LIMITS, data_dir=tmp_path)
    tokens, blocks = Tokens(ledger, agents), Blocks(ledger, hot)
    routes = [
        *agent_routes.routes(agents, show_email=False, meet=keys_slice.keys.meet),
        *guard_routes.routes(tokens, blocks),
        *key_routes.routes(keys_slice.keys, keys_slice.schedules, load_or_make(tmp_path / "node.key")),
    ]
    limiter = limiter_of(routes, hot, blocks, settings)
    guard = Guard(agents=agents, tokens=tokens, limiter=limiter, settings=settings, open_mode=False)
    text = new_text()
    async with ledger.transaction() as tx:
        row = token_row(text, "admin", "admin", None, datetime.now(UTC), None)
        await guard_store.make_token(tx, row, first_admin=True)
    edge = edge_of(routes, guard, settings, open_mode=False)
    async with Server(edge, text, database_url, redis_url) as server:  # type: ignore[arg-type]
        await hot.birth()
        await server.hot_tier_is_old_enough()
        yield server


@pytest.fixture
async def alice(server: Server) -> KeyHolder:
    return await KeyHolder().join(server, "alice")


@pytest.fixture
async def bob(server: Server) -> KeyHolder:
    return await KeyHolder().join(server, "bob")
