"""The mail slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from datetime import datetime

from angelia import metrics
from angelia.agents.slice import AgentsSlice
from angelia.api import Route, Tick
from angelia.audit.slice import AuditSlice
from angelia.keys.slice import KeysSlice
from angelia.mail import routes
from angelia.mail.acknowledgement import Acknowledgements
from angelia.mail.dead_letters import DeadLetters
from angelia.mail.delivery import Delivery
from angelia.mail.hot_store import HotMail
from angelia.mail.receipts import Receipts
from angelia.mail.service import Mail
from angelia.mail.ticks import MailTicks
from angelia.mail.withdrawal import InTransit
from angelia.policy.slice import PolicySlice
from angelia.settings import Settings
from angelia.stores.open_stores import Stores


class MailSlice:
    """Sealed delivery: send, receive, acknowledge, receipts, dead letters, expiry."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        audit: AuditSlice,
        agents: AgentsSlice,
        policy: PolicySlice,
        keys: KeysSlice,
    ) -> None:
        ledger, rules, failures = stores.ledger, policy.policy, audit.failures
        self.queues = HotMail(stores.hot, stores.wake)
        self.mail = Mail(ledger, self.queues, rules, failures)
        self.in_transit = InTransit(ledger, self.queues, rules)
        self.delivery = Delivery(ledger, self.queues, stores.wake, rules, failures)
        self.acknowledgements = Acknowledgements(ledger, self.queues, failures)
        self.receipts = Receipts(ledger, self.queues, failures, settings.max_ttl_seconds)
        self.dead_letters = DeadLetters(ledger, self.queues, agents.agents)
        self.background = MailTicks(ledger, self.queues, keys.keys)
        self._hot, self._ttl_max = stores.hot, settings.max_ttl_seconds

    def routes(self) -> list[Route]:
        return routes.routes(
            self.mail,
            self.in_transit,
            self.delivery,
            self.acknowledgements,
            self.receipts,
            self.dead_letters,
            ttl_max=self._ttl_max,
        )

    def ticks(self) -> list[Tick]:
        return [
            Tick("receipt partitions", 3600.0, self._make_partitions),
            Tick("mail expiry", 2.0, self.background.expire),
            Tick("mail reconcile", 10.0, self.background.reconcile),
            Tick("mail rebuild", 1.0, self._rebuild),
            Tick("mail under revoked keys", 5.0, self.background.fail_revoked),
            Tick("sent ids", 60.0, self.background.forget_ids),
        ]

    async def close(self) -> None:
        await self.acknowledgements.close()
        await self.mail.close()

    async def _make_partitions(self, now: datetime) -> None:
        metrics.RECEIPTS_UNPARTITIONED.set(await self.receipts.make_partitions(now))

    async def _rebuild(self, now: datetime) -> bool:
        """Fills a hot tier whose memory was lost with the queues that the ledger has."""
        return await self.background.rebuild(await self._hot.birth_mark())
