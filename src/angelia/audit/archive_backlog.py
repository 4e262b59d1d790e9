"""How much of the audit may leave the ledger, once it is archived, and has not."""

from __future__ import annotations

from datetime import datetime

from angelia.audit import leaving_store
from angelia.stores.ledger import Ledger


class Leaving:
    """Sealed entries that are past their time in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def before(self, at: datetime, most: int) -> int:
        """How many are older than a time; no more than so many are looked at."""
        async with self._ledger.reading() as tx:
            return await leaving_store.entries_before(tx, at, most)
