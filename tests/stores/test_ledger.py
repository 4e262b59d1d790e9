"""The ledger: a transaction is whole or not at all, and its faults say whose they are."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from angelia.errors import Conflict, DiskFull, InvalidArgument, Unavailable
from angelia.stores.ledger import Ledger, StatementError, UniqueViolation
from angelia.stores.sql import statements

DEAD = "postgresql://nobody@/nothing?host=/nonexistent"


@pytest.fixture
async def notes(bare: Ledger) -> AsyncIterator[Ledger]:
    """A ledger with a table to write to."""
    async with bare.transaction() as tx:
        await tx.execute("CREATE TABLE notes (id INT PRIMARY KEY, text TEXT, at TIMESTAMPTZ, detail JSONB)")
    yield bare
    async with bare.transaction() as tx:
        await tx.execute("DROP TABLE notes")


async def count(ledger: Ledger) -> int:
    async with ledger.transaction() as tx:
        return int(await tx.fetchval("SELECT count(*) FROM notes"))


async def test_a_block_that_ends_is_committed(notes: Ledger) -> None:
    async with notes.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (1)")
        assert await count(notes) == 0
    assert await count(notes) == 1


@pytest.mark.parametrize("fault", [ValueError("mine"), Conflict("mine"), KeyboardInterrupt()])
async def test_a_block_that_raises_is_rolled_back_and_its_fault_stays_its_own(
    notes: Ledger, fault: BaseException
) -> None:
    async def write_and_fail() -> None:
        async with notes.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (1)")
            raise fault

    with pytest.raises(type(fault)) as caught:
        await write_and_fail()
    assert caught.value is fault
    assert await count(notes) == 0


async def test_a_ledger_that_is_away_is_unavailable_and_says_when_to_try_again() -> None:
    ledger = await Ledger.open(DEAD)
    with pytest.raises(Unavailable) as caught:
        await ledger.ping()
    await ledger.close()
    assert (caught.value.retry_after, isinstance(caught.value.__cause__, OSError)) == (1, True)
    assert "nonexistent" not in caught.value.message + caught.value.hint


async def test_a_ledger_that_says_its_disk_is_full_is_believed_and_asked_again(notes: Ledger) -> None:
    async def write_and_fail() -> None:
        async with notes.transaction() as tx:
            await tx.execute("DO $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$")

    with pytest.raises(DiskFull) as caught:
        await write_and_fail()
    assert (caught.value.code, notes.disk.full) == ("disk_full", True)
    await notes.ping()
    async with notes.transaction() as tx:  # only a next try can tell whether there is room
        await tx.execute("INSERT INTO notes VALUES (1)")
    assert await count(notes) == 1


async def test_a_connection_lost_in_mid_transaction_is_unavailable_and_the_next_one_works(notes: Ledger) -> None:
    async def write_and_break() -> None:
        async with notes.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (1)")
            await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(Unavailable):
        await write_and_break()
    assert await count(notes) == 0


async def test_a_connection_lost_while_idle_costs_at_most_one_caller(notes: Ledger, stores: Any) -> None:
    async with notes.transaction() as tx:
        idle = await tx.fetchval("SELECT pg_backend_pid()")
    other = await Ledger.open(stores.database_url, 1)
    async with other.transaction() as tx:
        await tx.execute("SELECT pg_terminate_backend($1)", idle)
    await other.close()
    with contextlib.suppress(Unavailable):
        await notes.ping()
    await notes.ping()


async def test_a_statements_own_fault_is_not_unavailable(notes: Ledger) -> None:
    with pytest.raises(UniqueViolation):
        async with notes.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (1), (1)")
    for wrong in ("SELECT 1/0", "SELEC 1", "SELECT * FROM nothing"):
        with pytest.raises(StatementError):
            async with notes.transaction() as tx:
                await tx.execute(wrong)


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("INSERT INTO notes (id, text) VALUES (1, $1)", "a\0b"),
        ("INSERT INTO notes (id) VALUES ($1)", 2**31),
        ("INSERT INTO notes (id) VALUES ($1)", 2**100),
        ("INSERT INTO notes (id) VALUES ($1::bigint)", 2**31),
        ("INSERT INTO notes (id, at) VALUES (1, $1)", datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
        ("INSERT INTO notes (id, at) VALUES (1, $1)", datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))),
        ("INSERT INTO notes (id, detail) VALUES (1, $1)", {"a": "\0"}),
    ],
)
async def test_a_value_that_no_column_can_hold_is_the_callers_error(notes: Ledger, statement: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        async with notes.transaction() as tx:
            await tx.execute(statement, value)
    assert caught.value.__cause__ is not None
    assert await count(notes) == 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ß"]), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_json_comes_back_as_it_went_in(bare: Ledger, value: Any) -> None:
    async with bare.transaction() as tx:
        assert await tx.fetchval("SELECT $1::jsonb", value) == value


async def test_time_comes_back_as_the_same_moment(bare: Ledger) -> None:
    at = datetime(2026, 11, 15, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    async with bare.transaction() as tx:
        assert await tx.fetchval("SELECT $1::timestamptz", at) == at


def test_statements_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "store.sql").write_text("-- about it all\n-- name: one\n-- why\nSELECT 1\n\n-- name: two\nSELECT 2;\n")
    assert statements(str(tmp_path / "store.py")) == {"one": "-- why\nSELECT 1", "two": "SELECT 2;"}


def test_a_part_stands_in_every_statement_that_names_it_and_is_none_itself(tmp_path: Path) -> None:
    text = (
        "-- name: one\nSELECT {row} FROM t\n\n-- part: row\n-- why\na, b AS c\n\n-- name: two\nSELECT {row}, {other}\n"
    )
    (tmp_path / "store.sql").write_text(text)
    assert statements(str(tmp_path / "store.py")) == {
        "one": "SELECT a, b AS c FROM t",
        "two": "SELECT a, b AS c, {other}",
    }


def test_a_statement_may_have_parts_of_other_slices_by_their_names(tmp_path: Path) -> None:
    for name, text in (
        ("mail/store.sql", "-- name: one\nSELECT ({keys.two}), {three}, ({four})\n\n-- part: three\n3, ({keys.two})\n"),
        ("mail/parts.sql", "-- part: four\nSELECT 4\n"),
        ("keys/parts.sql", "-- about them all\n\n-- part: two\n-- why\nSELECT 2\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "keys/store.sql").write_text("-- name: own\n{two}\n")
    assert statements(str(tmp_path / "mail/store.py")) == {"one": "SELECT (SELECT 2), 3, (SELECT 2), (SELECT 4)"}
    assert statements(str(tmp_path / "keys/store.py")) == {"own": "SELECT 2"}
