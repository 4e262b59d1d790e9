"""The SQL statements that count: what queues, partitions and consumer groups have, and how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "listings.sql")


async def queues(
    tx: Tx,
    now: datetime,
    search: str | None = None,
    namespace: str | None = None,
    task: str | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> Sequence[Row]:
    """Queues with their figures, newest first."""
    return await tx.fetch(SQL["queues"], now, search, namespace, task, limit, offset)


async def partitions(
    tx: Tx, now: datetime, queue: str | None, limit: int | None = None, offset: int = 0
) -> Sequence[Row]:
    """Partitions with their figures, of one queue or of all, by name."""
    return await tx.fetch(SQL["partitions"], now, queue, limit, offset)


async def namespaces(tx: Tx, now: datetime) -> Sequence[Row]:
    return await tx.fetch(SQL["namespaces"], now)


async def tasks(tx: Tx, now: datetime) -> Sequence[Row]:
    return await tx.fetch(SQL["tasks"], now)


async def totals(
    tx: Tx, now: datetime, queue: str | None = None, namespace: str | None = None, task: str | None = None
) -> Row:
    """The figures of all queues, or of those of a name, namespace or task."""
    return _one(await tx.fetchrow(SQL["totals"], now, queue, namespace, task))


async def lags(tx: Tx, now: datetime) -> Row:
    """How far consumer groups are behind."""
    return _one(await tx.fetchrow(SQL["lags"], now))


async def rates(tx: Tx, since: datetime) -> tuple[int, int]:
    """How many messages were pushed and settled since a minute."""
    row = _one(await tx.fetchrow(SQL["rates"], since))
    return row["pushed"], row["settled"]


async def depth(tx: Tx, queue: str, group: str) -> Sequence[Row]:
    """What a consumer group has still to consume, by partition; of a group that does not exist, all messages."""
    return await tx.fetch(SQL["depth"], queue, group)


async def overviews(
    tx: Tx,
    now: datetime,
    since: datetime,
    *,
    after: str | None = None,
    prefix: str | None = None,
    namespace: str | None = None,
    task: str | None = None,
    name: str | None = None,
    limit: int = 1,
) -> Sequence[Row]:
    """Queues by name, with what their operator looks at first; rates are counted since a minute."""
    return await tx.fetch(SQL["overviews"], now, since, after, prefix, namespace, task, name, limit)


async def count_queues(tx: Tx, prefix: str | None, namespace: str | None, task: str | None) -> int:
    return int(await tx.fetchval(SQL["count_queues"], prefix, namespace, task))


async def groups(tx: Tx, now: datetime, queue: str | None = None) -> Sequence[Row]:
    """Consumer groups, one row for each and its queue."""
    return await tx.fetch(SQL["groups"], now, queue)


async def group_partitions(
    tx: Tx, now: datetime, *, group: str | None = None, queue: str | None = None, behind: int | None = None
) -> Sequence[Row]:
    """How far consumer groups are in each partition; only those that are behind by so many seconds, if that is said."""
    return await tx.fetch(SQL["group_partitions"], now, group, queue, behind)


async def group_exists(tx: Tx, name: str) -> bool:
    """Whether any queue has a consumer group of that name."""
    return bool(await tx.fetchval(SQL["group_exists"], name))


def _one(row: Row | None) -> Row:
    assert row is not None, "sums without groups are one row"
    return row
