"""The rooms slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from angelia.agents.slice import AgentsSlice
from angelia.api import Route, Tick
from angelia.rooms import routes
from angelia.rooms.backlog import RoomArchiving
from angelia.rooms.dms import DirectMessages
from angelia.rooms.hot_store import HotRooms
from angelia.rooms.reading import RoomReaders
from angelia.rooms.search import Search
from angelia.rooms.service import Rooms
from angelia.rooms.stats import RoomStats
from angelia.rooms.ticks import RoomTicks
from angelia.rooms.words import prepare
from angelia.settings import Settings
from angelia.stores.open_stores import Stores


class RoomsSlice:
    """Conversations, threads, direct messages and search."""

    def __init__(self, stores: Stores, settings: Settings, agents: AgentsSlice) -> None:
        ledger = stores.ledger
        prepare()
        self.rooms = Rooms(ledger, HotRooms(stores.hot), stores.wake, agents.agents, settings.admin_agent_id)
        self.readers = RoomReaders(ledger, stores.wake)
        self.search = Search(ledger)
        self.dms = DirectMessages(ledger)
        self.stats = RoomStats(ledger, agents.agents)
        self.archiving = RoomArchiving(ledger)
        self.background = RoomTicks(ledger, self.dms)

    def routes(self) -> list[Route]:
        return routes.routes(self.rooms, self.readers, self.search, self.dms, self.stats)

    def ticks(self) -> list[Tick]:
        return [
            Tick("room sweep", 5.0, self.background.sweep),
            Tick("room words", 1.0, self.background.pack_words),
            Tick("room words size", 60.0, self.background.measure_index),
            Tick("direct message expiry", 60.0, self.background.expire_dms),
        ]

    async def close(self) -> None:
        await self.readers.close()
        await self.dms.close()
        await self.rooms.close()
