"""Keeps each process's memory of blocked addresses fresh, so that it holds without the hot tier."""

from __future__ import annotations

from datetime import datetime

from angelia.guard.blocks import Blocks
from angelia.jobs.ticks import Tick


def tick(blocks: Blocks) -> Tick:
    async def refresh(now: datetime) -> bool:
        await blocks.refresh(now)
        return False

    return Tick("block list", 5.0, refresh, everywhere=True)
