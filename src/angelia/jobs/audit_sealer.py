"""Seals the audit's events into the chain, every second or as long as full batches wait; and measures how it goes."""

from __future__ import annotations

from datetime import datetime

import structlog

from angelia import metrics
from angelia.audit.service import SEAL_BATCH, Audit, NodeSigner
from angelia.jobs.ticks import Tick
from angelia.keys.node_key import NodeIdentity

log = structlog.get_logger(__name__)
_REFUSED = "angelia audit verify; what to do then: docs/audit.md, If the node refuses"


def tick(audit: Audit, node: NodeSigner) -> Tick:
    """In the main process, which holds the node key."""

    async def seal(now: datetime) -> bool:
        sealed = await audit.seal(node, now)
        if sealed.refused:
            log.error("the node does not sign this audit chain", why=sealed.refused, hint=_REFUSED)
        return sealed.entries == SEAL_BATCH

    return Tick("audit sealer", 1.0, seal)


def measuring(audit: Audit, node: NodeIdentity) -> Tick:
    """In web processes, whose metrics are shown; from the ledger, so that it tells of a sealer that is gone, too."""

    async def measure(now: datetime) -> bool:
        progress = await audit.progress(node.signed())
        metrics.AUDIT_WAITING.set(progress.waiting)
        metrics.AUDIT_AGE.set((now - progress.oldest).total_seconds() if progress.oldest else 0)
        metrics.AUDIT_SEALED.set(progress.sealed_to)
        metrics.AUDIT_REFUSED.set(1 if progress.is_refused(now) else 0)
        return False

    return Tick("audit progress", 1.0, measure)
