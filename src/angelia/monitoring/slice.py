"""The monitoring slice: health, metrics and settings of a server."""

from __future__ import annotations

from datetime import datetime

from angelia.api import Route, Tick
from angelia.monitoring import routes
from angelia.monitoring.routes import Ping
from angelia.settings import Loaded
from angelia.stores.open_stores import Stores


class MonitoringSlice:
    """Health, metrics and settings of a server, for monitors and operators."""

    def __init__(self, stores: Stores, loaded: Loaded, worker: int) -> None:
        self._stores = stores
        self._loaded = loaded
        self._worker = worker
        self._pings: dict[str, Ping] = {"postgres": stores.ledger.ping, "redis": stores.hot.ping}

    def watch(self, name: str, ping: Ping) -> None:
        """Makes /health tell of another process too."""
        self._pings[name] = ping

    def routes(self) -> list[Route]:
        return routes.routes(self._pings, self._full_disk, self._loaded, self._worker)

    def ticks(self) -> list[Tick]:
        return [Tick("hot tier journal", 5.0, self._keep_journal)]

    async def close(self) -> None:
        """Nothing is held open."""

    def _full_disk(self) -> str | None:
        disk = self._stores.ledger.disk
        return disk.shown if disk.full else None

    async def _keep_journal(self, now: datetime) -> None:
        """Turns the journal of our own hot tier on again after a full disk. A tick runs only when the ledger has
        room."""
        await self._stores.hot.keep_journal()
