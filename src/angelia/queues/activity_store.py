"""The SQL statements that count what happens in queues, by the minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from angelia.stores.ledger import Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "activity.sql")


async def add_minutes(tx: Tx, minute: datetime, *columns: Sequence[int]) -> None:
    """Adds to the counts of queues: their numbers, pushed, bytes, popped, completed, failed, dead, evicted, the counts
    of waiting times of all of them, and their sums and maxima."""
    await tx.execute(SQL["add_minutes"], minute, *columns)


async def add_worker(tx: Tx, minute: datetime, *values: object) -> None:
    """Adds a sample of a process: server, worker, process id, pushed, popped, completed, failed, dead, milliseconds of
    processor time for itself and in the kernel, bytes of memory, and the time of one turn of the event loop."""
    await tx.execute(SQL["add_worker"], minute, *values)


async def delete_before(tx: Tx, minute: datetime, most: int) -> int:
    """Deletes old minutes of queues, at most so many, and returns how many; and all of processes."""
    return int((await tx.execute(SQL["delete_before"], minute, most)).rpartition(" ")[2])
