"""Every SQL statement about the checkpoints of other nodes."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from angelia.audit.model import Checkpoint, SignedEntry
from angelia.stores.ledger import Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "witnessed.sql")


async def newest(tx: Tx, node_key_id: UUID) -> SignedEntry | None:
    """The newest checkpoint of a node. Others that hand in for this node wait until the transaction ends."""
    await tx.execute(SQL["one_at_a_time"], node_key_id)
    row = await tx.fetchrow(SQL["newest"], node_key_id)
    return None if row is None else SignedEntry(**row)


async def nodes(tx: Tx) -> int:
    """How many nodes have checkpoints here."""
    return int(await tx.fetchval(SQL["nodes"]))


async def add(tx: Tx, checkpoint: Checkpoint, now: datetime) -> None:
    head, signature = bytes.fromhex(checkpoint.entry_hash), bytes.fromhex(checkpoint.signature)
    await tx.execute(
        SQL["add"], checkpoint.node_key_id, checkpoint.position, head, checkpoint.signed_at, signature, now
    )


async def thin(tx: Tx, node_key_id: UUID, position: int, entries: int, age: timedelta) -> None:
    await tx.execute(SQL["thin"], node_key_id, position, entries, age)


async def of_node(tx: Tx, node_key_id: UUID, after: int, limit: int) -> list[Checkpoint]:
    return [Checkpoint(**row) for row in await tx.fetch(SQL["of_node"], node_key_id, after, limit)]
