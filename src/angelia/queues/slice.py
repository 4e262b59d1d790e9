"""The queues slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from contextlib import suppress

from angelia.api import Route, Tick, clock
from angelia.errors import Unavailable
from angelia.keys.slice import KeysSlice
from angelia.queues import admin_routes, messages_routes, operator_routes, routes, statistics_routes
from angelia.queues.activity import Activity
from angelia.queues.backlog import QueueArchiving
from angelia.queues.catalog import Catalog
from angelia.queues.claims import MessageClaims
from angelia.queues.days import QueueDays
from angelia.queues.dead_letters import QueueDeadLetters
from angelia.queues.eviction import QueueEviction
from angelia.queues.groups import ConsumerGroups
from angelia.queues.hot_store import HotNews
from angelia.queues.listings import Listings
from angelia.queues.maintenance import Buffer
from angelia.queues.maintenance_modes import Maintenance
from angelia.queues.messages import QueueMessages
from angelia.queues.news import News
from angelia.queues.payloads import Payloads
from angelia.queues.pushing import Pushes
from angelia.queues.retention import QueueRetention
from angelia.queues.settlement import Settlement
from angelia.queues.statistics import Statistics
from angelia.queues.traces import Traces
from angelia.queues.transactions import Transactions
from angelia.queues.upkeep import QueueUpkeep
from angelia.settings import Settings
from angelia.stores.open_stores import Stores


class QueuesSlice:
    """Queues of ordered partitions: push, pop, acknowledge, leases, dead letters, consumer groups."""

    def __init__(self, stores: Stores, settings: Settings, keys: KeysSlice, worker: int = 0) -> None:
        ledger = stores.ledger
        self.news = News(HotNews(stores.hot), stores.wake)
        self.activity = Activity(ledger, worker)
        self.payloads = Payloads(ledger, keys.fields, settings.queue_key)
        self.catalog = Catalog(ledger, self.payloads, self.news)
        self.buffer = Buffer(ledger, self.payloads)
        self.pushes = Pushes(ledger, self.catalog, self.payloads, self.news, self.buffer, self.activity)
        self.settlement = Settlement(ledger, self.catalog, self.news, self.activity)
        self.claims = MessageClaims(ledger, self.catalog, self.payloads, self.news, self.settlement, self.activity)
        self.transactions = Transactions(ledger, self.pushes, self.settlement)
        self.listings = Listings(ledger, self.catalog)
        self.groups = ConsumerGroups(ledger, self.catalog, self.news)
        self.letters = QueueDeadLetters(ledger, self.catalog, self.payloads, self.settlement, self.news)
        self.messages = QueueMessages(ledger, self.catalog, self.payloads, self.news)
        self.traces = Traces(ledger, self.catalog, self.payloads)
        self.maintenance = Maintenance(ledger, self.catalog, self.pushes, self.payloads, self.news)
        self.statistics = Statistics(ledger, self.listings)
        self.archiving = QueueArchiving(ledger)
        batch, window = settings.retention_batch, settings.retention_window
        self.retention = QueueRetention(ledger, batch, window)
        self.eviction = QueueEviction(ledger, self.activity, batch)
        self.days = QueueDays(ledger, batch, window)
        self.upkeep = QueueUpkeep(ledger, batch)
        self._worker = worker
        self._subscription_mode = settings.queue_subscription_mode
        self._retention_seconds = settings.retention_interval / 1000
        self._eviction_seconds = settings.eviction_interval / 1000

    def routes(self) -> list[Route]:
        return [
            *routes.routes(
                self.pushes, self.claims, self.settlement, self.transactions, self.catalog, self._subscription_mode
            ),
            *admin_routes.routes(self.listings, self.groups, self.maintenance, self._worker),
            *messages_routes.routes(self.messages, self.letters, self.traces),
            *statistics_routes.routes(self.statistics, self.listings, self.messages),
            *operator_routes.routes(self.listings, self.messages, self.letters),
        ]

    def ticks(self) -> list[Tick]:
        return [
            Tick("queue counts", 5.0, self.activity.flush, everywhere=True),
            Tick("old queue counts", 3600.0, self.activity.delete_old),
            Tick("buffered pushes", 2.0, self.maintenance.flush),
            Tick("requeued dead letters", 3600.0, self.letters.prune),
            Tick("queue retention", self._retention_seconds, self.retention.run),
            Tick("queue eviction", self._eviction_seconds, self.eviction.run),
            Tick("queue days", 60.0, self.days.run),
            Tick("deleted partitions of queues", 5.0, self.upkeep.clear_leavings),
            Tick("ids of removed messages", 300.0, self.upkeep.prune_ids),
            Tick("old retention history", 3600.0, self.upkeep.prune_history),
        ]

    async def close(self) -> None:
        await self.claims.close()
        await self.settlement.close()
        await self.pushes.close()
        await self.news.close()
        with suppress(Unavailable):  # the last seconds' counts; without the ledger they are lost
            await self.activity.flush(clock())
