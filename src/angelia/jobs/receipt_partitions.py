"""Keeps the receipts' daily partitions made ahead; rows that missed theirs are an alert."""

from __future__ import annotations

from datetime import datetime

from angelia import metrics
from angelia.jobs.ticks import Tick
from angelia.mail.receipts import Receipts


def tick(receipts: Receipts) -> Tick:
    async def make(now: datetime) -> bool:
        metrics.RECEIPTS_UNPARTITIONED.set(await receipts.make_partitions(now))
        return False

    return Tick("receipt partitions", 3600.0, make)
