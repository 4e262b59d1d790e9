"""The audit slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from angelia import metrics
from angelia.api import Route, Tick
from angelia.audit import routes
from angelia.audit.failures import Failures
from angelia.audit.failures_store import FailureCounts
from angelia.audit.model import SignedEntry
from angelia.audit.service import Audit
from angelia.audit.witness_service import Witnessed
from angelia.stores.open_stores import Stores


class AuditSlice:
    """Append-only, hash-chained events."""

    def __init__(self, stores: Stores, signed: Callable[[], SignedEntry | None]) -> None:
        """`signed` returns what the node signed last."""
        self.audit = Audit(stores.ledger)
        self.failures = Failures(stores.ledger, FailureCounts(stores.hot))
        self.witnessed = Witnessed(stores.ledger)
        self._signed = signed

    def routes(self) -> list[Route]:
        return routes.routes(self.audit, self.witnessed)

    def ticks(self) -> list[Tick]:
        return [
            Tick("audit progress", 1.0, self._measure),
            Tick("audit partitions", 3600.0, self._make_partitions),
            Tick("failure summaries", 30.0, self.failures.summarise),
        ]

    async def close(self) -> None:
        """Nothing is held open."""

    async def _measure(self, now: datetime) -> None:
        """Measures how sealing goes. Web processes do it, since their metrics are shown; they read the ledger, so that
        a sealer that is gone shows, too."""
        progress = await self.audit.progress(self._signed())
        metrics.AUDIT_WAITING.set(progress.waiting)
        metrics.AUDIT_AGE.set((now - progress.oldest).total_seconds() if progress.oldest else 0)
        metrics.AUDIT_SEALED.set(progress.sealed_to)
        metrics.AUDIT_REFUSED.set(1 if progress.is_refused(now) else 0)

    async def _make_partitions(self, now: datetime) -> None:
        """Makes daily partitions ahead; rows that missed theirs are an alert."""
        metrics.AUDIT_UNPARTITIONED.set(await self.audit.make_partitions(now))
