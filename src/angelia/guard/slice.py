"""The guard's slice: bearer tokens and blocked addresses, for operators."""

from __future__ import annotations

from angelia.agents.slice import AgentsSlice
from angelia.api import Route, Tick
from angelia.guard import routes
from angelia.guard.blocks import AddressBlocks
from angelia.guard.tokens import Tokens
from angelia.stores.open_stores import Stores


class GuardSlice:
    """Bearer tokens and blocked addresses."""

    def __init__(self, stores: Stores, agents: AgentsSlice) -> None:
        self.tokens = Tokens(stores.ledger, agents.agents)
        self.blocks = AddressBlocks(stores.ledger, stores.hot, stores.wake)

    def routes(self) -> list[Route]:
        return routes.routes(self.tokens, self.blocks)

    def ticks(self) -> list[Tick]:
        # In each process, so that blocks hold while the hot tier is away.
        return [Tick("block list", 5.0, self.blocks.refresh, everywhere=True)]

    async def close(self) -> None:
        """Nothing is held open."""
