"""Fills a hot tier whose memory was lost with the queues that the ledger knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from angelia.jobs.ticks import Tick
from angelia.mail.ticks import Upkeep


def tick(upkeep: Upkeep, memory: Callable[[], Awaitable[str]]) -> Tick:
    async def look(now: datetime) -> bool:
        return await upkeep.rebuild(await memory())

    return Tick("mail rebuild", 1.0, look)
