"""The ledger's connections: few, lent in turn, and none that hangs, broke or was left in a transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from angelia.errors import Unavailable
from angelia.stores import connections
from angelia.stores.connections import LedgerConnection
from angelia.stores.ledger import Ledger, StatementError

PID = "SELECT pg_backend_pid()"


@pytest.fixture
async def two(stores: Any) -> AsyncIterator[Ledger]:
    """A ledger with two connections beside that of the hot path."""
    ledger = await Ledger.open(stores.database_url, 2)
    yield ledger
    await ledger.close()


@pytest.fixture
async def other(stores: Any) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(stores.database_url)
    yield connection
    await connection.close()


async def asked(ledger: Ledger) -> int:
    async with ledger.reading() as tx:
        return int(await tx.fetchval(PID))


async def test_a_connection_is_used_again_and_the_last_one_first(two: Ledger) -> None:
    async with two.reading() as first, two.reading() as second:
        pids = [await first.fetchval(PID), await second.fetchval(PID)]
    assert pids[0] != pids[1]
    assert {await asked(two) for _ in range(5)} == {pids[0]}  # given back last


async def test_a_statement_of_the_hot_path_is_parsed_and_planned_once_on_a_connection(two: Ledger) -> None:
    async with two.lookups() as tx:
        for number in range(5):
            assert await tx.fetchval("SELECT 40 + $1::int", number) == 40 + number
        rows = await tx.fetch("SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements")
        assert ("SELECT 40 + $1::int", 5, 0) in [tuple(row) for row in rows]


async def test_a_caller_that_finds_all_lent_waits_for_its_turn(two: Ledger) -> None:
    came: list[int] = []

    async def ask(number: int) -> None:
        async with two.reading():
            came.append(number)

    async with two.reading(), two.reading():
        waiting = [asyncio.create_task(ask(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert came == []
    await asyncio.gather(*waiting)
    assert came == [0, 1, 2, 3, 4]


async def test_a_turn_that_does_not_come_is_unavailable(two: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TAKE_SECONDS", 0.05)
    async with two.reading(), two.reading():
        with pytest.raises(Unavailable):
            await two.ping()
    await two.ping()


async def test_a_waiter_that_leaves_hands_its_turn_on(two: Ledger) -> None:
    async with two.reading():
        lent = two.reading()
        await lent.__aenter__()
        leaving = asyncio.create_task(asked(two))
        staying = asyncio.create_task(asked(two))
        await asyncio.sleep(0)
        await lent.__aexit__(None, None, None)
        leaving.cancel()  # in the moment of its turn
        assert await staying > 0
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
    assert await asked(two) > 0


async def test_in_the_place_of_one_that_broke_a_waiter_opens_another(two: Ledger, other: asyncpg.Connection) -> None:
    async with two.reading():
        with contextlib.suppress(Unavailable):
            async with two.reading() as tx:
                pid = await tx.fetchval(PID)
                waiting = asyncio.create_task(asked(two))
                await other.execute("SELECT pg_terminate_backend($1)", pid)
                await tx.fetchval(PID)
        assert await waiting != pid


async def test_one_that_was_left_in_a_transaction_is_not_lent_again(two: Ledger) -> None:
    async with two.reading() as tx:
        pid = await tx.fetchval(PID)
        await tx.execute("BEGIN")
    assert await asked(two) != pid


async def test_a_cancelled_statement_leaves_a_connection_that_works(two: Ledger, other: asyncpg.Connection) -> None:
    async def sleep() -> None:
        async with two.reading() as tx:
            await tx.fetchval("SELECT pg_sleep($1::float)", 60.0)

    pid = await asked(two)
    sleeping = asyncio.create_task(sleep())
    sleeps = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1"
    async with asyncio.timeout(10):
        while not await other.fetchval(sleeps, pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert await asked(two) == pid


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_transaction_that_is_cancelled_at_any_moment_is_nobody_elses(
    stores: Any, other: asyncpg.Connection, turns: int, waits: bool
) -> None:
    """A BEGIN that was cancelled may have begun a transaction: what the next caller writes must not end with it."""
    ledger = await Ledger.open(stores.database_url, 1)
    await other.execute("CREATE TABLE kept (a INT)")

    async def cancelled() -> None:
        async with ledger.transaction() as tx:
            await tx.execute("INSERT INTO kept VALUES (0)")
            await asyncio.Event().wait()  # until it is cancelled

    async def write() -> None:
        async with ledger.reading() as tx:
            await tx.execute("INSERT INTO kept VALUES (1)")

    try:
        for _ in range(10):
            await ledger.ping()
            leaving = asyncio.create_task(cancelled())
            for _ in range(turns):
                await asyncio.sleep(0)
            writing = asyncio.create_task(write()) if waits else None
            await asyncio.sleep(0)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            await (writing or write())
        assert await other.fetchval("SELECT array_agg(a) FROM kept") == [1] * 10
    finally:
        await ledger.close()
        await other.execute("DROP TABLE kept")


async def test_a_connection_is_not_kept_for_ever(two: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = await asked(two)
    monkeypatch.setattr(connections, "LIFE_SECONDS", 0.0)
    assert await asked(two) != pid


async def test_a_connection_to_a_server_that_became_read_only_is_not_lent_again(two: Ledger) -> None:
    pid = await asked(two)
    with pytest.raises(Unavailable):
        await said_read_only(two)
    assert await asked(two) != pid


async def said_read_only(ledger: Ledger) -> None:
    async with ledger.reading() as tx:
        await tx.fetch("SELECT set_config('transaction_read_only', 'on', false), $1::int", 1)
        await tx.fetch("SELECT set_config('default_transaction_read_only', 'on', false), $1::int", 2)
        await tx.fetch("CREATE TABLE nowhere AS SELECT 1 AS a WHERE 1 = 0")


async def test_a_server_that_does_not_answer_is_given_up(
    stores: Any, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(connections, "_WATCH_SECONDS", 0.02)
    ledger = await Ledger.open(stores.database_url, 1)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            async with ledger.reading() as tx:
                await tx.fetchval("SELECT pg_sleep($1::float)", 60.0)
        await ledger.ping()
    await ledger.close()


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(stores: Any) -> None:
    ledger = await Ledger.open(stores.database_url, 1)

    async def sleep() -> None:
        async with ledger.reading() as tx:
            await tx.execute("SET statement_timeout = '50ms'; SELECT pg_sleep(60)")

    async with ledger.reading() as tx:
        assert await tx.fetchval("SHOW statement_timeout") == "15s"
    with pytest.raises(Unavailable) as caught:
        await sleep()
    assert isinstance(caught.value.__cause__, asyncpg.QueryCanceledError)
    await ledger.close()


async def test_a_transaction_in_which_nothing_happens_is_ended_and_frees_its_locks(two: Ledger) -> None:
    async def hang() -> None:
        async with two.transaction() as tx:
            assert await tx.fetchval("SHOW idle_in_transaction_session_timeout") == "5s"
            await tx.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'; SELECT pg_advisory_xact_lock(1)")
            async with two.transaction() as other:
                await other.execute("SELECT pg_advisory_xact_lock(1)")  # it waits until the hanging one has ended
            await tx.execute("SELECT 1")

    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await hang()
        await two.ping()


async def test_plans_are_made_anew_after_a_while(two: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LedgerConnection] = []
    again = LedgerConnection.plan_again

    async def counted(connection: LedgerConnection) -> None:
        made.append(connection)
        await again(connection)

    monkeypatch.setattr(LedgerConnection, "plan_again", counted)

    async def look() -> None:
        async with two.lookups() as tx:
            assert await tx.fetchval("SELECT $1::int", 7) == 7

    for _ in range(3):
        await look()
    assert made == []
    monkeypatch.setattr(connections, "PLANS_SECONDS", 0.0)
    await look()
    monkeypatch.undo()
    await look()
    assert len(made) == 1


async def test_a_change_of_the_schema_costs_at_most_one_transaction_of_a_connection(
    two: Ledger, other: asyncpg.Connection
) -> None:
    await other.execute("CREATE TABLE shapes (a INT)")
    try:
        async with two.reading() as tx:
            assert await tx.fetch("SELECT * FROM shapes WHERE a > $1", 0) == []
        await other.execute("ALTER TABLE shapes ADD COLUMN b TEXT")
        async with two.reading() as tx:
            assert await tx.fetch("SELECT * FROM shapes WHERE a > $1", 0) == []
        await other.execute("ALTER TABLE shapes ADD COLUMN c TEXT")
        with contextlib.suppress(Unavailable):
            async with two.transaction() as tx:
                await tx.fetch("SELECT * FROM shapes WHERE a > $1", 0)
        async with two.transaction() as tx:
            assert await tx.fetch("SELECT * FROM shapes WHERE a > $1", 0) == []
    finally:
        await other.execute("DROP TABLE shapes")


async def test_a_single_statement_is_committed_without_a_transaction(two: Ledger, other: asyncpg.Connection) -> None:
    await other.execute("CREATE TABLE single (a INT)")
    try:
        async with two.statement() as tx:
            await tx.fetch("INSERT INTO single VALUES ($1) RETURNING a", 7)
            assert await other.fetchval("SELECT a FROM single") == 7
    finally:
        await other.execute("DROP TABLE single")


async def test_a_transaction_whose_error_was_swallowed_is_not_taken_for_committed(two: Ledger) -> None:
    async def careless() -> None:
        async with two.transaction() as tx:
            with contextlib.suppress(StatementError):
                await tx.fetchval("SELECT 1 / $1::int", 0)

    with pytest.raises(StatementError):
        await careless()
