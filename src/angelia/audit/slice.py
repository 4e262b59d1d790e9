"""The audit slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from collections.abc import Callable

from angelia.api import Route, Tick
from angelia.audit import routes, ticks
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
            ticks.measuring(self.audit, self._signed),
            ticks.partitions(self.audit),
            Tick("failure summaries", 30.0, self.failures.summarise),
        ]

    async def close(self) -> None:
        """Nothing is held open."""
