"""Keeps the audit's daily partitions made ahead; rows that missed theirs are an alert."""

from __future__ import annotations

from datetime import datetime

from angelia import metrics
from angelia.audit.service import Audit
from angelia.jobs.ticks import Tick


def tick(audit: Audit) -> Tick:
    async def make(now: datetime) -> bool:
        metrics.AUDIT_UNPARTITIONED.set(await audit.make_partitions(now))
        return False

    return Tick("audit partitions", 3600.0, make)
