"""The stores that one process has open: the ledger, the hot tier, and wake-ups over the hot tier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from angelia.settings import OUR_OWN, Loaded
from angelia.stores.disk import Disk
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores that all slices share."""

    ledger: Ledger
    hot: HotTier
    wake: Wake

    @classmethod
    @asynccontextmanager
    async def opened(cls, loaded: Loaded, disk: Disk) -> AsyncIterator[Stores]:
        """Opens the stores that the settings name, and closes them at the end."""
        settings = loaded.settings
        assert settings.database_url
        assert settings.redis_url
        ledger = await Ledger.open(settings.database_url, settings.database_pool, disk)
        hot = HotTier(settings.redis_url, settings.redis_pool, shared=loaded.origins["redis_url"] != OUR_OWN)
        wake = Wake(hot)
        try:
            yield cls(ledger, hot, wake)
        finally:
            await wake.close()
            await hot.close()
            await ledger.close()
