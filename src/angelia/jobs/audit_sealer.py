"""Seals the audit's events into the chain, every second or as long as full batches wait."""

from __future__ import annotations

from datetime import datetime

from angelia import metrics
from angelia.audit.service import SEAL_BATCH, Audit, NodeSigner
from angelia.jobs.ticks import Tick


def tick(audit: Audit, node: NodeSigner) -> Tick:
    async def seal(now: datetime) -> bool:
        sealed = await audit.seal(node, now)
        metrics.AUDIT_SEALED.set(sealed.position)
        metrics.AUDIT_WAITING.set(sealed.waiting)
        metrics.AUDIT_AGE.set((now - sealed.oldest).total_seconds() if sealed.oldest else 0)
        return sealed.entries > 0 and sealed.waiting >= SEAL_BATCH

    return Tick("audit sealer", 1.0, seal)
