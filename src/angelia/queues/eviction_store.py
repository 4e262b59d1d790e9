"""The SQL statements of the eviction of messages that waited too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "eviction.sql")
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
LOOKED_AT = 10  # so many partitions are looked at for each one that may be worked on


@dataclass(frozen=True, slots=True)
class WaitingPartition:
    """A partition in which messages wait for so many seconds at most. `quiet`: none that could be late is older than a
    few days."""

    partition_no: int
    seconds: int
    quiet: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """Messages that were evicted from a queue; `most` of them from one partition."""

    queue_no: int
    queue_name: str
    count: int
    most: int
    oldest_seconds: float


async def page(tx: Tx, after: int, most: int, quiet_since: datetime) -> tuple[list[WaitingPartition], int | None]:
    """The next partitions in which messages may not wait for ever. The second value: those up to there were looked at;
    None if there are no more."""
    row = await tx.fetchrow(SQL["page"], after, most * LOOKED_AT, most, quiet_since)
    assert row is not None, "the statement returns one row"
    if row["partition_nos"] is None:
        found = []
    else:
        found = [WaitingPartition(*one) for one in zip(row["partition_nos"], row["seconds"], row["quiet"], strict=True)]
    if len(found) == most:
        return found, found[-1].partition_no
    return found, row["last"] if row["count"] == most * LOOKED_AT else None


async def evict(
    tx: Tx,
    partition_nos: Sequence[int],
    now: datetime,
    most_messages: int,
    bounds: Sequence[float],
    young_since: datetime,
    quiet_since: datetime | None,
) -> list[Evicted]:
    """Evicts what is late in some partitions, and counts it for the hour, by the bounds of waiting times. No message
    that is not late was stored before `young_since`; none at all before `quiet_since`, if all was quiet then."""
    rows = await tx.fetch(
        SQL["evict"], partition_nos, now, most_messages, bounds, young_since, quiet_since or _LONG_AGO
    )
    return [record_of(Evicted, row) for row in rows]
