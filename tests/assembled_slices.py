"""The slices of one process on a test's own stores, assembled as the application does it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from angelia.app import Slices, spool_passage
from angelia.guard import store as guard_store
from angelia.guard.tokens import new_text, token_row
from angelia.http.edge import Edge
from angelia.keys import master_key
from angelia.keys.node_key import load_or_make
from angelia.settings import Loaded, Settings
from angelia.stores.ledger import Ledger
from angelia.stores.open_stores import Stores
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from http_agents import Server


@dataclass(frozen=True)
class Assembled:
    """Open slices, and the stores that they use."""

    stores: Stores
    slices: Slices
    settings: Settings

    def edge(self) -> Edge:
        return self.slices.edge(self.stores, self.settings, spool_passage(self.settings), open_mode=False)

    async def admin_token(self) -> str:
        text = new_text()
        async with self.stores.ledger.transaction() as tx:
            row = token_row(text, "admin", "admin", None, datetime.now(UTC), None)
            await guard_store.make_token(tx, row, first_admin=True)
        return text

    @asynccontextmanager
    async def serving(self, database_url: str, redis_url: str) -> AsyncIterator[Server]:
        """The slices over HTTP, with a birth mark in the past, as on a server that has run for a while."""
        async with Server(self.edge(), await self.admin_token(), database_url, redis_url) as server:
            await self.stores.hot.birth()
            await server.hot_tier_is_old_enough()
            yield server


@asynccontextmanager
async def assembled(ledger: Ledger, hot: HotTier, directory: Path, **values: Any) -> AsyncIterator[Assembled]:
    """The slices of a process that was just started; `values` are settings. Stores stay open at the end."""
    settings = Settings(data_dir=directory, **values)
    key = directory / "master.key"
    if not key.exists():
        master_key.make(key)
    stores, node = Stores(ledger, hot, Wake(hot)), load_or_make(directory / "node.key")
    async with Slices.opened(stores, Loaded(settings, {}), node) as slices:
        try:
            yield Assembled(stores, slices, settings)
        finally:
            stores.wake.stop()
            await stores.wake.close()
