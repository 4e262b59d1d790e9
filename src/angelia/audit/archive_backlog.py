"""How much of the audit waits for the pipeline to archive it and trim it from the ledger."""

from __future__ import annotations

from datetime import datetime

from angelia.audit import store
from angelia.stores.ledger import Ledger


async def entries_before(ledger: Ledger, at: datetime, most: int) -> int:
    """The number of sealed entries older than a time, among the first `most` of the chain."""
    async with ledger.reading() as tx:
        return await store.entries_before(tx, at, most)
