"""Says again to the hot tier which bundles are old, where it could not be told when they changed."""

from __future__ import annotations

from datetime import datetime

from angelia.jobs.ticks import Tick
from angelia.keys.service import Keys


def tick(keys: Keys) -> Tick:
    async def repeat(now: datetime) -> bool:
        await keys.repeat_invalidations()
        return False

    return Tick("bundle cache", 5.0, repeat, everywhere=True)
