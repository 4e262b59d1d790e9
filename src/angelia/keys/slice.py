"""The slice of keys: what the application opens, and what tests open as well."""

from __future__ import annotations

from angelia.agents.slice import AgentsSlice
from angelia.api import Route, Tick
from angelia.keys import routes
from angelia.keys.data_key_rotation import DataKeys
from angelia.keys.field_encryption import Fields
from angelia.keys.node_key import NodeIdentity
from angelia.keys.schedules import Schedules
from angelia.keys.service import Keys
from angelia.keys.store import HotBundles
from angelia.policy.slice import PolicySlice
from angelia.stores.open_stores import Stores


class KeysSlice:
    """Key bundles, one-time keys, rotation schedules, data keys and the node's public key."""

    def __init__(
        self, stores: Stores, fields: Fields, node: NodeIdentity, agents: AgentsSlice, policy: PolicySlice
    ) -> None:
        self.keys = Keys(stores.ledger, HotBundles(stores.hot), agents.agents, policy.policy, stores.wake)
        self.schedules = Schedules(stores.ledger, self.keys, fields, stores.wake)
        self.fields = fields
        self.data_keys = DataKeys(stores.ledger, fields)
        self.fields = fields
        self._node = node

    def routes(self) -> list[Route]:
        return routes.routes(self.keys, self.schedules, self.data_keys, self._node)

    def ticks(self) -> list[Tick]:
        keys = self.keys
        return [
            # Where the hot tier could not be told that a bundle changed, it is told again.
            Tick("bundle cache", 5.0, keys.repeat_invalidations, everywhere=True),
            Tick("grace periods", 60.0, keys.end_grace),
            Tick("one-time keys", 600.0, keys.drop_old_one_time_keys),
            Tick("prekey alert", 10.0, keys.alert_low_one_time_keys),
            # The agents make the keys; a server never has a private one.
            Tick("rotations", 5.0, self.schedules.announce_due),
        ]

    async def close(self) -> None:
        """Nothing is held open."""
