"""The background work of the audit: sealing, its measurement, partitions, summaries, and the witness."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog

from angelia import metrics
from angelia.api import Tick
from angelia.audit.model import SignedEntry
from angelia.audit.service import SEAL_BATCH, Audit, NodeSigner

log = structlog.get_logger(__name__)
_REFUSED = "angelia audit verify; what to do then: docs/audit.md, If the node refuses"


def sealing(audit: Audit, node: NodeSigner) -> Tick:
    """Seals events into the chain, every second or as long as full batches wait. For the main process, which holds the
    node key."""

    async def seal(now: datetime) -> bool:
        sealed = await audit.seal(node, now)
        if sealed.refused:
            log.error("the node does not sign this audit chain", why=sealed.refused, hint=_REFUSED)
        return sealed.entries == SEAL_BATCH

    return Tick("audit sealer", 1.0, seal)


def measuring(audit: Audit, signed: Callable[[], SignedEntry | None]) -> Tick:
    """Measures how sealing goes. For web processes, whose metrics are shown; it reads the ledger, so that it tells of a
    sealer that is gone, too."""

    async def measure(now: datetime) -> None:
        progress = await audit.progress(signed())
        metrics.AUDIT_WAITING.set(progress.waiting)
        metrics.AUDIT_AGE.set((now - progress.oldest).total_seconds() if progress.oldest else 0)
        metrics.AUDIT_SEALED.set(progress.sealed_to)
        metrics.AUDIT_REFUSED.set(1 if progress.is_refused(now) else 0)

    return Tick("audit progress", 1.0, measure)


def partitions(audit: Audit) -> Tick:
    """Makes daily partitions ahead; rows that missed theirs are an alert."""

    async def make(now: datetime) -> None:
        metrics.AUDIT_UNPARTITIONED.set(await audit.make_partitions(now))

    return Tick("audit partitions", 3600.0, make)
