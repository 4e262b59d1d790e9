"""The SQL statements of statistics: what happened in queues over time, and what processes and PostgreSQL use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "statistics.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSpan:
    """A time span, and the queues that are counted."""

    since: datetime
    until: datetime
    queue: str | None = None
    namespace: str | None = None
    task: str | None = None

    @property
    def names(self) -> tuple[str | None, str | None, str | None]:
        return self.queue, self.namespace, self.task


async def series(tx: Tx, span: CountedSpan, step: timedelta) -> Sequence[Row]:
    """What happened, step by step, newest first."""
    return await tx.fetch(SQL["series"], span.since, span.until, *span.names, step)


async def queue_series(tx: Tx, span: CountedSpan, step: timedelta) -> Sequence[Row]:
    """The same for each queue."""
    return await tx.fetch(SQL["queue_series"], span.since, span.until, *span.names, step)


async def sums(tx: Tx, span: CountedSpan) -> Row:
    return _one(await tx.fetchrow(SQL["sums"], span.since, span.until, *span.names))


async def points(tx: Tx, span: CountedSpan, step: timedelta) -> Sequence[Row]:
    """Messages that were pushed, step by step; also steps in which there were none."""
    return await tx.fetch(SQL["points"], span.since, span.until, *span.names, step)


async def leases(tx: Tx, span: CountedSpan, now: datetime) -> Row:
    return _one(await tx.fetchrow(SQL["leases"], now, *span.names))


async def letters(tx: Tx, span: CountedSpan) -> tuple[Row, Sequence[Row]]:
    """How many dead letters there are, and their most frequent errors."""
    return _one(await tx.fetchrow(SQL["letters"], *span.names)), await tx.fetch(SQL["top_errors"], *span.names)


async def consumed(tx: Tx, span: CountedSpan) -> Sequence[Row]:
    """How many messages were ever settled, by queue."""
    return await tx.fetch(SQL["consumed"], *span.names)


async def workers(tx: Tx, since: datetime, until: datetime, step: timedelta) -> Sequence[Row]:
    """What processes did and used, step by step."""
    return await tx.fetch(SQL["workers"], since, until, step)


async def database(tx: Tx) -> tuple[Row, Sequence[Row]]:
    """PostgreSQL's figures of the database, and of the tables of queues."""
    return _one(await tx.fetchrow(SQL["database"])), await tx.fetch(SQL["tables"])


def _one(row: Row | None) -> Row:
    assert row is not None, "sums without groups are one row"
    return row
