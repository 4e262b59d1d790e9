"""The channels slice: what the application opens, and what tests open as well."""

from __future__ import annotations

from angelia.agents.slice import AgentsSlice
from angelia.api import Route, Tick
from angelia.audit.slice import AuditSlice
from angelia.channels import routes
from angelia.channels.admission import ChannelAdmission
from angelia.channels.epochs import Epochs
from angelia.channels.publishing import Publishing
from angelia.channels.reading import Readers
from angelia.channels.rosters import Rosters
from angelia.channels.service import Channels
from angelia.keys.slice import KeysSlice
from angelia.policy.slice import PolicySlice
from angelia.settings import Settings
from angelia.stores.open_stores import Stores


class ChannelsSlice:
    """Sealed topics with policies, subscriptions and offsets."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        audit: AuditSlice,
        agents: AgentsSlice,
        policy: PolicySlice,
        keys: KeysSlice,
    ) -> None:
        ledger, wake, admission = stores.ledger, stores.wake, ChannelAdmission(policy.policy)
        self.channels = Channels(ledger, wake, agents.agents, keys.keys, admission)
        self.epochs = Epochs(ledger, agents.agents, admission)
        self.rosters = Rosters(ledger, wake, self.channels, admission)
        self.publishing = Publishing(ledger, wake, admission, audit.failures)
        self.readers = Readers(ledger, wake, admission)
        self._ttl_max = settings.max_ttl_seconds

    def routes(self) -> list[Route]:
        return routes.routes(self.channels, self.epochs, self.rosters, self.publishing, self.readers, self._ttl_max)

    def ticks(self) -> list[Tick]:
        return [Tick("channel retention", 5.0, self.channels.tidy)]

    async def close(self) -> None:
        await self.publishing.close()
        await self.readers.close()
