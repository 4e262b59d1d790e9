"""What `/stats` shows: counted a few seconds ago at most, for public rooms alone."""

from __future__ import annotations

from datetime import datetime

from angelia.agents.service import Agents
from angelia.envelope.times import unix_ms
from angelia.rooms import store
from angelia.rooms.api import RecentMessage, Stats, TopChannel
from angelia.rooms.model import GLOBAL, ago, preview
from angelia.rooms.recent_counts import RecentCount
from angelia.stores.ledger import Ledger

_SHOWN = 5


class RoomStats:
    """Counts, and keeps the result for a moment: a page asks every 15 s, and many pages are open."""

    def __init__(self, ledger: Ledger, agents: Agents) -> None:
        self._ledger = ledger
        self._agents = agents
        self._recent: RecentCount[Stats] = RecentCount()

    async def stats(self, now: datetime) -> Stats:
        return await self._recent.get(lambda: self._count(now))

    async def _count(self, now: datetime) -> Stats:
        async with self._ledger.reading() as tx:
            totals = await store.totals(tx)
            top = await store.top(tx, _SHOWN)
            recent = await store.page(tx, GLOBAL, unix_ms(now), 1 << 62, _SHOWN)
        names = await self._agents.names({one.author for one in recent})
        active = totals["last_active"]
        return Stats(
            total_agents=await self._agents.count(),
            total_channels=totals["rooms"],
            total_messages=totals["messages"],
            last_activity="no activity yet" if active is None else ago((now - active).total_seconds()),
            top_channels=[TopChannel(row["room_id"], row["name"], row["message_count"]) for row in top],
            recent_messages=[
                RecentMessage(
                    id=str(one.id),
                    agent_id=one.author,
                    agent_name=names.get(one.author) or "Unknown Agent",
                    body=preview(one.body or ""),
                    timestamp=one.ts,
                )
                for one in recent
            ],
        )
