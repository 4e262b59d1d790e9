"""Lets our own hot tier write its journal again after a full disk. The tick needs the ledger, which waits for room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from angelia.jobs.ticks import Tick


def tick(keep_journal: Callable[[], Awaitable[None]]) -> Tick:
    async def look(now: datetime) -> bool:
        await keep_journal()
        return False

    return Tick("hot tier journal", 5.0, look)
