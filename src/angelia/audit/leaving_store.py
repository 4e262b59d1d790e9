"""Every SQL statement about what is due to leave the audit."""

from __future__ import annotations

from datetime import datetime

from angelia.stores.ledger import Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "leaving.sql")


async def entries_before(tx: Tx, at: datetime, most: int) -> int:
    return int(await tx.fetchval(SQL["entries_before"], at, most))
