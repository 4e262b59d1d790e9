"""The monitoring slice: health, metrics and settings of a server."""

from __future__ import annotations

from datetime import datetime

from angelia.api import Route, Tick
from angelia.monitoring import routes
from angelia.settings import Loaded
from angelia.stores.open_stores import Stores


class MonitoringSlice:
    """What monitors and operators ask a server about itself."""

    def __init__(self, stores: Stores, loaded: Loaded, worker: int) -> None:
        self._stores = stores
        self._loaded = loaded
        self._worker = worker

    def routes(self) -> list[Route]:
        return routes.routes(self._stores.ledger, self._stores.hot, self._loaded, self._worker)

    def ticks(self) -> list[Tick]:
        return [Tick("hot tier journal", 5.0, self._keep_journal)]

    async def close(self) -> None:
        """Nothing is held open."""

    async def _keep_journal(self, now: datetime) -> None:
        """Lets our own hot tier write its journal again after a full disk. The tick needs the ledger, which waits for
        room."""
        await self._stores.hot.keep_journal()
