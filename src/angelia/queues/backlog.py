"""What waits for the archive of queues."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from angelia.queues import archive_store
from angelia.stores.ledger import Ledger, Tx


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """Messages and dead letters of queues that wait for the archive: how many, and for how long the oldest has."""

    rows: int
    late: timedelta | None


class QueueArchiving:
    """Measures the backlog of the queues of this ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def count_waiting(self, now: datetime, most: int) -> int:
        """How many messages and dead letters wait; counts up to `most`."""
        async with self._ledger.reading() as tx:
            return await archive_store.count_waiting(tx, now, most)


async def waiting(tx: Tx, now: datetime) -> QueueBacklog:
    """The messages and dead letters of queues that wait for the archive."""
    count, since = await archive_store.waiting(tx, now)
    return QueueBacklog(count, None if since is None else now - since)
