"""How far ticks are on their way through all partitions of queues."""

from __future__ import annotations

from dataclasses import dataclass

from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "walks.sql")


@dataclass(frozen=True, slots=True)
class Walk:
    """Partitions up to this one are done. With a floor, it is being worked on: ids of messages before the floor are
    removed, and those up to a hash and position were looked at."""

    partition_no: int = 0
    hash: int | None = None
    position: int | None = None
    floor: int | None = None


async def walk(tx: Tx, name: str) -> Walk:
    row = await tx.fetchrow(SQL["walk"], name)
    return Walk() if row is None else record_of(Walk, row)


async def set_walk(tx: Tx, name: str, walk: Walk) -> None:
    await tx.execute(SQL["set_walk"], name, walk.partition_no, walk.hash, walk.position, walk.floor)
