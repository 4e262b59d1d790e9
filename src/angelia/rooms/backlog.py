"""What waits for the archive of the messages of rooms."""

from __future__ import annotations

from datetime import datetime, timedelta

from angelia.envelope.times import unix_ms
from angelia.rooms import archive_store
from angelia.rooms.model import RoomBacklog
from angelia.stores.ledger import Ledger, Tx


class RoomArchiving:
    """Measures the backlog of the rooms of this ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def count_waiting(self, now: datetime, most: int) -> int:
        """How many messages are due for the archive; counts up to `most`."""
        async with self._ledger.reading() as tx:
            return await archive_store.count_waiting(tx, unix_ms(now), most)


async def waiting(tx: Tx, now: datetime) -> RoomBacklog:
    """The messages of rooms that are due for the archive."""
    count, first = await archive_store.waiting(tx, unix_ms(now))
    return RoomBacklog(count, None if first is None else timedelta(milliseconds=unix_ms(now) - first))
