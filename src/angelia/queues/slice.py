"""The queues slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from angelia.api import Route, Tick
from angelia.keys.slice import KeysSlice
from angelia.queues import routes
from angelia.queues.activity import Activity
from angelia.queues.catalog import Catalog
from angelia.queues.claims import MessageClaims
from angelia.queues.hot_store import HotNews
from angelia.queues.maintenance import Buffer
from angelia.queues.news import News
from angelia.queues.payloads import Payloads
from angelia.queues.pushing import Pushes
from angelia.queues.settlement import Settlement
from angelia.queues.transactions import Transactions
from angelia.settings import Settings
from angelia.stores.open_stores import Stores


class QueuesSlice:
    """Queues of ordered partitions: push, pop, acknowledge, leases, dead letters, consumer groups."""

    def __init__(self, stores: Stores, settings: Settings, keys: KeysSlice) -> None:
        ledger = stores.ledger
        self.news = News(HotNews(stores.hot), stores.wake)
        self.activity = Activity(ledger)
        self.payloads = Payloads(ledger, keys.fields, settings.queue_key)
        self.catalog = Catalog(ledger, self.payloads, self.news)
        self.buffer = Buffer(ledger, self.payloads)
        self.pushes = Pushes(ledger, self.catalog, self.payloads, self.news, self.buffer, self.activity)
        self.settlement = Settlement(ledger, self.catalog, self.news, self.activity)
        self.claims = MessageClaims(ledger, self.catalog, self.payloads, self.news, self.settlement, self.activity)
        self.transactions = Transactions(ledger, self.pushes, self.settlement)

    def routes(self) -> list[Route]:
        return routes.routes(self.pushes, self.claims, self.settlement, self.transactions, self.catalog)

    def ticks(self) -> list[Tick]:
        return []

    async def close(self) -> None:
        await self.claims.close()
        await self.settlement.close()
        await self.pushes.close()
        await self.news.close()
