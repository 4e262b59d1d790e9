"""The background work of queues: retention, eviction, days, and the upkeep of storage."""

from __future__ import annotations

from datetime import datetime

from angelia.queues.days import QueueDays
from angelia.queues.eviction import QueueEviction
from angelia.queues.retention import QueueRetention
from angelia.queues.upkeep import QueueUpkeep


class QueueTicks:
    """One method for each tick; each does a bounded piece of work and returns whether more waits."""

    def __init__(
        self, retention: QueueRetention, eviction: QueueEviction, days: QueueDays, upkeep: QueueUpkeep
    ) -> None:
        self._retention = retention
        self._eviction = eviction
        self._days = days
        self._upkeep = upkeep

    async def retain(self, now: datetime) -> bool:
        return await self._retention.run(now)

    async def evict(self, now: datetime) -> bool:
        return await self._eviction.run(now)

    async def keep_days(self, now: datetime) -> bool:
        return await self._days.run(now)

    async def clear_leavings(self, now: datetime) -> bool:
        return await self._upkeep.clear_leavings(now)

    async def prune_ids(self, now: datetime) -> bool:
        return await self._upkeep.prune_ids(now)

    async def prune_history(self, now: datetime) -> bool:
        return await self._upkeep.prune_history(now)
