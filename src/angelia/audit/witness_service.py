"""Keeps the checkpoints of other nodes, which can neither withdraw nor change one here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.audit import witness_store as store
from angelia.audit.model import Checkpoint
from angelia.audit.service import KEPT_AGE, KEPT_ENTRIES
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import Conflict, Denied, InvalidArgument
from angelia.stores.ledger import Ledger

MOST_NODES = 100


class Witnessed:
    """The checkpoints of other nodes, by the key of each node."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def take(self, public_key: bytes, checkpoints: Sequence[Checkpoint], now: datetime) -> int:
        """Keeps a node's next checkpoints, in order. Returns the newest position that is kept of the node.

        If one goes back, or differs from the checkpoint that is kept, none of them is kept and Conflict is raised.
        """
        if len(public_key) != 32:
            raise InvalidArgument("a node's key has 32 bytes")
        node = key_id(KeyType.ED25519, public_key)
        for checkpoint in checkpoints:
            if checkpoint.node_key_id != node or not checkpoint.is_signed_by(public_key) or not _fits(checkpoint):
                raise InvalidArgument(f"checkpoint {checkpoint.position:,} is not signed by the key that is named")
        async with self._ledger.transaction() as tx:
            newest = await store.newest(tx, node)
            position = newest.position if newest else 0
            if newest is None and checkpoints and await store.nodes(tx) >= MOST_NODES:
                raise Denied(f"this server witnesses for {MOST_NODES} nodes already")
            for checkpoint in checkpoints:
                if newest and checkpoint.position == newest.position and checkpoint.entry_hash == newest.entry_hash:
                    continue  # a repetition
                if checkpoint.position <= position:
                    raise Conflict(
                        f"checkpoint {checkpoint.position:,} is not what follows {position:,}, the newest of this node",
                        hint="a chain never goes back: compare with angelia audit verify --witness",
                    )
                await store.add(tx, checkpoint, now)
                if position:
                    await store.thin(tx, node, position, KEPT_ENTRIES, KEPT_AGE)
                position = checkpoint.position
        return position

    async def of_node(self, node_key_id: UUID, after: int, limit: int) -> list[Checkpoint]:
        async with self._ledger.reading() as tx:
            return await store.of_node(tx, node_key_id, after, limit)


def _fits(checkpoint: Checkpoint) -> bool:
    """Whether a chain can have such a checkpoint; a node could sign anything."""
    return 0 < checkpoint.position <= 2**62 and len(checkpoint.entry_hash) == 64
