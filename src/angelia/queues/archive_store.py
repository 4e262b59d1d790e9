"""The statements about messages and dead letters that are due for the archive."""

from __future__ import annotations

from datetime import datetime

from angelia.stores.ledger import Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "archive.sql")


async def waiting(tx: Tx, now: datetime) -> tuple[int, datetime | None]:
    """How many messages and dead letters of archived queues wait, and since when the first of them does."""
    [messages] = await tx.fetch(SQL["queue_messages_waiting"])
    [letters] = await tx.fetch(SQL["queue_dead_letters_waiting"], now)
    since = [row["since"] for row in (messages, letters) if row["row_count"]]
    return messages["row_count"] + letters["row_count"], min(since, default=None)


async def count_waiting(tx: Tx, now: datetime, most: int) -> int:
    [messages] = await tx.fetch(SQL["queue_messages_waiting"])
    letters = await tx.fetchval(SQL["queue_dead_letters_waiting_count"], now, most)
    return min(most, int(messages["row_count"]) + int(letters))
