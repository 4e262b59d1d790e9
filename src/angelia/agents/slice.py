"""The agents slice, as the application and the tests open it."""

from __future__ import annotations

from angelia.agents import routes
from angelia.agents.routes import Meet
from angelia.agents.service import Agents
from angelia.api import Route, Tick
from angelia.settings import Settings
from angelia.stores.open_stores import Stores


class AgentsSlice:
    """Registration, profiles, handles and block lists."""

    def __init__(self, stores: Stores, settings: Settings, meet: Meet | None = None) -> None:
        self.agents = Agents(stores.ledger, stores.wake)
        self._meet = meet
        self._show_email = settings.show_email

    def routes(self) -> list[Route]:
        return routes.routes(self.agents, show_email=self._show_email, meet=self._meet)

    def ticks(self) -> list[Tick]:
        return []

    async def close(self) -> None:
        await self.agents.close()
