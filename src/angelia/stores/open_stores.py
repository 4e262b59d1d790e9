"""The stores that one process has open: the ledger, the hot tier, and wake-ups over the hot tier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from angelia.settings import OUR_OWN, Loaded
from angelia.stores.disk import Disk
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake


def disk_of(loaded: Loaded) -> Disk:
    """The disk of our own PostgreSQL, which may be a mount of its own."""
    own = loaded.origins["database_url"] == OUR_OWN
    return Disk(DataDir(loaded.settings.data_dir).postgres if own else None)


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores that all slices share."""

    ledger: Ledger
    hot: HotTier
    wake: Wake

    @classmethod
    @asynccontextmanager
    async def opened(cls, loaded: Loaded) -> AsyncIterator[Stores]:
        """Opens the stores that the settings name, and closes them at the end."""
        settings = loaded.settings
        assert settings.database_url
        assert settings.redis_url
        ledger = await Ledger.open(settings.database_url, settings.database_pool, disk_of(loaded))
        hot = HotTier(settings.redis_url, settings.redis_pool, shared=loaded.origins["redis_url"] != OUR_OWN)
        wake = Wake(hot)
        try:
            yield cls(ledger, hot, wake)
        finally:
            await wake.close()
            await hot.close()
            await ledger.close()
