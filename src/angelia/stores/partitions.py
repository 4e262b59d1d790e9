"""Daily partitions (UTC) of a table that has a default one: made ahead, so that no row ever needs the default."""

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
    """A table partitioned by day. The names are ours, never a caller's: they become part of statements."""

    table: str
    column: str

    def partition(self, day: date) -> str:
        return f"{self.table}_{day:%Y%m%d}"


async def make_ahead(ledger: Ledger, daily: Daily, now: datetime) -> int:
    """Make the partitions from yesterday to a week ahead; returns how many rows missed theirs."""
    days = [(now + timedelta(days=offset)).date() for offset in range(-1, DAYS_AHEAD + 1)]
    async with ledger.transaction() as tx:
        missing = await _missing(tx, daily, days)
    for day in missing:
        async with ledger.transaction() as tx:
            await make(tx, daily, day)
    async with ledger.transaction() as tx:
        return int(await tx.fetchval(SQL["in_default"].format(table=daily.table)))


async def make(tx: Tx, daily: Daily, day: date) -> None:
    """One UTC day, with the rows of that day that had to go to the default partition meanwhile."""
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
