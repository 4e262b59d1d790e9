"""The statements about messages that are due for the archive."""

from __future__ import annotations

from angelia.stores.ledger import Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "archive.sql")


async def waiting(tx: Tx, now_ms: int) -> tuple[int, int | None]:
    """How many messages of archived rooms have expired, and when the first of them did, in Unix milliseconds."""
    row = await tx.fetchrow(SQL["rooms_waiting"], now_ms)
    assert row is not None, "an aggregate has one row"
    return row["row_count"], row["first_expired"]


async def count_waiting(tx: Tx, now_ms: int, most: int) -> int:
    return int(await tx.fetchval(SQL["rooms_waiting_count"], now_ms, most))
