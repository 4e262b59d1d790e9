"""Daily partitions: made ahead, by whoever comes first, with the rows that had to wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

import pytest

from angelia.stores.ledger import Ledger, StatementError
from angelia.stores.partitions import DAYS_AHEAD, Daily, make, make_ahead

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = timedelta(days=1)
THINGS = Daily("things", "at")


@pytest.fixture
async def things(bare: Ledger) -> AsyncIterator[Ledger]:
    async with bare.transaction() as tx:
        await tx.execute("DROP TABLE IF EXISTS things")
        await tx.execute(
            "CREATE TABLE things (id bigint NOT NULL, at timestamptz NOT NULL, PRIMARY KEY (id, at),"
            " CHECK (id > 0)) PARTITION BY RANGE (at)"
        )
        await tx.execute("CREATE INDEX idx_things_at ON things (at)")
        await tx.execute("CREATE TABLE things_default PARTITION OF things DEFAULT")
    yield bare
    async with bare.transaction() as tx:
        await tx.execute("DROP TABLE things")


async def partitions(ledger: Ledger) -> list[str]:
    async with ledger.transaction() as tx:
        rows = await tx.fetch(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'things'::regclass ORDER BY c.relname"
        )
    return [row["relname"] for row in rows]


async def put(ledger: Ledger, id_: int, at: datetime) -> str:
    async with ledger.transaction() as tx:
        return str(await tx.fetchval("INSERT INTO things VALUES ($1, $2) RETURNING tableoid::regclass::text", id_, at))


async def test_partitions_are_made_from_yesterday_to_a_week_ahead(things: Ledger) -> None:
    assert await make_ahead(things, THINGS, NOW) == 0
    days = [f"things_{NOW + n * DAY:%Y%m%d}" for n in range(-1, DAYS_AHEAD + 1)]
    assert await partitions(things) == [*days, "things_default"]
    assert DAYS_AHEAD == 7


async def test_making_them_again_changes_nothing_and_the_next_day_adds_one(things: Ledger) -> None:
    await make_ahead(things, THINGS, NOW)
    before = await partitions(things)
    await make_ahead(things, THINGS, NOW)
    assert await partitions(things) == before
    await make_ahead(things, THINGS, NOW + DAY)
    assert set(await partitions(things)) - set(before) == {f"things_{NOW + 8 * DAY:%Y%m%d}"}


async def test_a_day_is_a_utc_day_to_the_microsecond(things: Ledger) -> None:
    await make_ahead(things, THINGS, NOW)
    midnight = datetime(2026, 11, 16, tzinfo=UTC)
    assert await put(things, 1, midnight) == "things_20261116"
    assert await put(things, 2, midnight - timedelta(microseconds=1)) == "things_20261115"


async def test_what_missed_its_partition_is_counted_and_moves_when_it_is_made(things: Ledger) -> None:
    late = NOW + 20 * DAY
    assert await put(things, 1, late) == "things_default"
    assert await make_ahead(things, THINGS, NOW) == 1
    assert await make_ahead(things, THINGS, late - 3 * DAY) == 0
    async with things.transaction() as tx:
        assert await tx.fetchval("SELECT tableoid::regclass::text FROM things") == f"things_{late:%Y%m%d}"


async def test_a_partition_has_the_indexes_and_checks_of_its_table(things: Ledger) -> None:
    async with things.transaction() as tx:
        await make(tx, THINGS, date(2026, 11, 20))
        indexes = await tx.fetchval("SELECT count(*) FROM pg_indexes WHERE tablename = 'things_20261120'")
        checks = await tx.fetchval(
            "SELECT count(*) FROM pg_constraint WHERE conrelid = 'things_20261120'::regclass AND contype = 'c'"
        )
    assert (indexes, checks) == (2, 1)


async def test_two_servers_that_start_at_once_make_them_once(things: Ledger) -> None:
    assert await asyncio.gather(*(make_ahead(things, THINGS, NOW) for _ in range(4))) == [0] * 4
    assert len(await partitions(things)) == DAYS_AHEAD + 3


async def test_rows_that_come_while_a_partition_is_made_are_not_lost(things: Ledger) -> None:
    day = NOW + 30 * DAY
    for n in range(1, 20):
        await put(things, n, day)

    async def keep_putting() -> None:
        for n in range(20, 60):
            try:
                await put(things, n, day + timedelta(seconds=n))
            except StatementError:  # it was on its way to the default partition, which is closed to that day by now
                await put(things, n, day + timedelta(seconds=n))

    async def make_it() -> None:
        async with things.transaction() as tx:
            await make(tx, THINGS, day.date())

    await asyncio.gather(keep_putting(), make_it())
    async with things.transaction() as tx:
        rows = await tx.fetch("SELECT tableoid::regclass::text AS name, count(*) AS n FROM things GROUP BY 1")
    assert [(row["name"], row["n"]) for row in rows] == [(f"things_{day:%Y%m%d}", 59)]
