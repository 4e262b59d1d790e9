"""Seals the audit's events into the chain, every second or as long as full batches wait."""

from __future__ import annotations

from datetime import datetime

import structlog

from angelia import metrics
from angelia.audit.service import SEAL_BATCH, Audit, NodeSigner
from angelia.jobs.ticks import Tick

log = structlog.get_logger(__name__)


def tick(audit: Audit, node: NodeSigner) -> Tick:
    async def seal(now: datetime) -> bool:
        # Before sealing, so that the alert tells of a sealer that fails.
        waiting, oldest = await audit.waiting()
        metrics.AUDIT_WAITING.set(waiting)
        metrics.AUDIT_AGE.set((now - oldest).total_seconds() if oldest else 0)
        sealed = await audit.seal(node, now)
        metrics.AUDIT_SEALED.set(sealed.position)
        metrics.AUDIT_REFUSED.set(1 if sealed.refused else 0)
        if sealed.refused:
            log.error("the node does not sign this audit chain", why=sealed.refused)
        return sealed.entries == SEAL_BATCH

    return Tick("audit sealer", 1.0, seal)
