"""Measures what waits for the pipeline, every five minutes."""

from __future__ import annotations

from datetime import datetime

from angelia import metrics
from angelia.audit.archive_backlog import Leaving
from angelia.jobs.ticks import Tick
from angelia.mail.receipts import Receipts

MOST = 1_000_001  # a million and more: what waits that long is not counted to its end again and again


def tick(receipts: Receipts, leaving: Leaving) -> Tick:
    async def measure(now: datetime) -> bool:
        due = await leaving.before(receipts.closed_before(now), MOST)
        metrics.PIPELINE_WAITING.labels("audit_events").set(due)
        metrics.PIPELINE_WAITING.labels("delivery_receipts").set(await receipts.count_waiting(now, MOST))
        return False

    return Tick("pipeline waiting", 300.0, measure)
