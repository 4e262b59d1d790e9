"""Daily partitions (UTC) of a table, made ahead of time, so that no row needs the default partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from angelia.stores.ledger import Ledger, Tx
from angelia.stores.sql import statements

DAYS_AHEAD = 7
SQL = statements(__file__, "partitions.sql")


@dataclass(frozen=True, slots=True)
class Daily:
    """A table partitioned by day. The names become part of statements, so they must never come from a caller."""

    table: str
    column: str

    def partition(self, day: date) -> str:
        return f"{self.table}_{day:%Y%m%d}"


async def make_ahead(ledger: Ledger, daily: Daily, now: datetime) -> int:
    """Makes the partitions from yesterday to a week ahead. Returns how many rows are in the default partition."""
    days = [(now + timedelta(days=offset)).date() for offset in range(-1, DAYS_AHEAD + 1)]
    async with ledger.transaction() as tx:
        missing = await _missing(tx, daily, days)
    for day in missing:
        async with ledger.transaction() as tx:
            await make(tx, daily, day)
    async with ledger.transaction() as tx:
        return int(await tx.fetchval(SQL["in_default"].format(table=daily.table)))


async def make(tx: Tx, daily: Daily, day: date) -> None:
    """Makes the partition of one UTC day, and moves the rows of that day from the default partition into it."""
    await tx.execute(SQL["lock"], daily.table)
    if not await _missing(tx, daily, [day]):
        return
    start = datetime.combine(day, time(), UTC)
    end = start + timedelta(days=1)
    await tx.execute(
        SQL["make"].format(
            table=daily.table,
            column=daily.column,
            name=daily.partition(day),
            start=start.isoformat(),
            end=end.isoformat(),
        )
    )


async def _missing(tx: Tx, daily: Daily, days: Sequence[date]) -> list[date]:
    there = {row["relname"] for row in await tx.fetch(SQL["partitions"], daily.table)}
    return [day for day in days if daily.partition(day) not in there]
