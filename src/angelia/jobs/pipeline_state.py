"""Measures how the pipeline's jobs stand, every five minutes."""

from __future__ import annotations

from datetime import datetime

from angelia import metrics
from angelia.jobs.ticks import Tick
from angelia.runs.service import Runs


def tick(runs: Runs) -> Tick:
    async def measure(now: datetime) -> bool:
        metrics.PIPELINE_OPEN.set(len(await runs.unfinished()))
        for job in await runs.latest():
            if job.done_at is not None:
                metrics.PIPELINE_DONE.labels(job.job).set(job.done_at.timestamp())
        return False

    return Tick("pipeline state", 300.0, measure)
