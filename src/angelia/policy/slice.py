"""The policy slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from angelia.api import Route, Tick
from angelia.policy import routes
from angelia.policy.service import Policy
from angelia.policy.store import HotRates
from angelia.stores.open_stores import Stores


class PolicySlice:
    """The rules about which agents may send, publish, subscribe and read keys."""

    def __init__(self, stores: Stores) -> None:
        self.policy = Policy(stores.ledger, HotRates(stores.hot))

    def routes(self) -> list[Route]:
        return routes.routes(self.policy)

    def ticks(self) -> list[Tick]:
        return []

    async def close(self) -> None:
        """Nothing is held open."""
