"""The schema's way up and back: each step whole, one migrator at a time, and changes by hand are noticed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from angelia.errors import StartFailed
from angelia.stores import migrations
from angelia.stores.migrations import Migration, available, migrate, status

STEPS = available()
NEWEST = len(STEPS)
FILES = sorted(migrations.DIRECTORY.glob("*.sql"))
UP_FILES = [path for path in FILES if path.name.endswith(".up.sql")]
# What a release that runs beside the new one would stumble over.
CONTRACTING = re.compile(
    r"\b(DROP\s+(TABLE|COLUMN|CONSTRAINT|VIEW|TYPE)|RENAME|SET\s+NOT\s+NULL|ALTER\s+(COLUMN\s+)?\w+\s+(SET\s+DATA\s+)?TYPE)\b",
    re.IGNORECASE,
)


@pytest.fixture
async def empty(empty_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_database)
    yield connection
    await connection.close()


async def fingerprint(connection: asyncpg.Connection) -> bytes:
    return bytes(await connection.fetchval(migrations.SQL["fingerprint"]))


async def tables(connection: asyncpg.Connection) -> set[str]:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {row["tablename"] for row in rows} - {"schema_migrations"}


async def test_an_empty_database_comes_to_the_newest_version(empty: asyncpg.Connection) -> None:
    done = await migrate(empty)
    assert done == [f"up {step.version:04}_{step.name}" for step in STEPS]
    found = await status(empty)
    assert (found.applied, found.available, found.pending, found.drift) == (NEWEST, NEWEST, [], [])


async def test_a_second_run_does_nothing(connection: asyncpg.Connection) -> None:
    assert await migrate(connection) == []


async def test_the_status_of_an_untouched_database_names_all_steps_and_changes_nothing(
    empty: asyncpg.Connection,
) -> None:
    found = await status(empty)
    assert (found.applied, len(found.pending), found.drift) == (0, NEWEST, [])
    assert await empty.fetchval("SELECT to_regclass('schema_migrations')") is None


async def test_each_step_up_down_and_up_again_leaves_the_same_schema(empty: asyncpg.Connection) -> None:
    before = None
    for version in range(1, NEWEST + 1):
        await migrate(empty, to=version)
        up = await fingerprint(empty)
        await migrate(empty, to=version - 1)
        assert before is None or await fingerprint(empty) == before, f"down {version}"
        await migrate(empty, to=version)
        assert await fingerprint(empty) == up, f"up {version} again"
        assert (await status(empty)).drift == []
        before = up


async def test_the_way_down_leaves_nothing_behind(empty: asyncpg.Connection) -> None:
    await migrate(empty)
    assert await tables(empty)
    done = await migrate(empty, to=0)
    assert done == [f"down {step.version:04}_{step.name}" for step in reversed(STEPS)]
    assert await tables(empty) == set()
    assert (await status(empty)).applied == 0


async def test_of_two_migrators_one_migrates(empty_database: str) -> None:
    both = [await asyncpg.connect(empty_database) for _ in range(2)]
    done = await asyncio.gather(*(migrate(one) for one in both))
    assert sorted(len(steps) for steps in done) == [0, NEWEST]
    for one in both:
        await one.close()


@pytest.mark.parametrize("version", [-1, NEWEST + 1])
async def test_a_version_that_does_not_exist_is_refused(connection: asyncpg.Connection, version: int) -> None:
    with pytest.raises(StartFailed, match="no schema version"):
        await migrate(connection, to=version)


async def test_a_file_that_was_changed_after_it_was_applied_is_refused(connection: asyncpg.Connection) -> None:
    changed = [replace(STEPS[0], up=STEPS[0].up + "\n-- one more comment"), *STEPS[1:]]
    with pytest.raises(StartFailed, match="0001_agents"):
        await migrate(connection, changed)
    assert (await status(connection, changed)).drift == ["0001_agents was changed after it was applied"]


async def test_a_change_by_hand_is_drift(connection: asyncpg.Connection) -> None:
    for change in (
        "ALTER TABLE agents ADD COLUMN hobby TEXT",
        "ALTER TABLE agents DROP COLUMN email",
        "ALTER TABLE agents ALTER COLUMN name TYPE VARCHAR(100)",
        "ALTER TABLE agents ALTER COLUMN name DROP NOT NULL",
        "ALTER TABLE agents RENAME COLUMN name TO title",
        "DROP INDEX idx_agents_registered",
        "CREATE INDEX mine ON agents (name)",
        "CREATE TABLE mine (id INT)",
        "DROP TABLE audit_checkpoints",
    ):
        by_hand = connection.transaction()
        await by_hand.start()
        await connection.execute(change)
        assert (await status(connection)).drift == ["tables, columns or indexes were changed by hand"], change
        await by_hand.rollback()
    assert (await status(connection)).drift == []


async def test_daily_partitions_and_rows_are_no_drift(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "CREATE TABLE audit_events_20260101 PARTITION OF audit_events"
        " FOR VALUES FROM ('2026-01-01Z') TO ('2026-01-02Z')"
    )
    assert (await status(connection)).drift == []


async def test_a_database_ahead_of_the_code_is_left_alone(connection: asyncpg.Connection) -> None:
    newer = Migration(NEWEST + 1, "later", "CREATE TABLE later (id INT)", "DROP TABLE later")
    await migrate(connection, [*STEPS, newer])
    assert await migrate(connection) == []
    found = await status(connection)
    assert (found.applied, found.available, found.drift) == (NEWEST + 1, NEWEST, [])
    assert "later" in await tables(connection)


async def test_nothing_is_taken_away_from_under_a_newer_step(connection: asyncpg.Connection) -> None:
    newer = Migration(NEWEST + 1, "later", "CREATE TABLE later (id INT)", "DROP TABLE later")
    await migrate(connection, [*STEPS, newer])
    before = await tables(connection)
    with pytest.raises(StartFailed, match="newer than this release"):
        await migrate(connection, to=NEWEST - 1)
    assert await tables(connection) == before


async def test_a_step_that_fails_leaves_nothing_half_done(connection: asyncpg.Connection) -> None:
    sound = Migration(NEWEST + 1, "sound", "CREATE TABLE sound (id INT)", "DROP TABLE sound")
    broken = Migration(NEWEST + 2, "broken", "CREATE TABLE half (id INT); SELECT 1/0", "DROP TABLE half")
    with pytest.raises(StartFailed, match=f"{NEWEST + 2:04}_broken failed: division by zero"):
        await migrate(connection, [*STEPS, sound, broken])
    assert {"sound", "half"} & await tables(connection) == {"sound"}
    found = await status(connection, [*STEPS, sound, broken])
    assert (found.applied, found.pending, found.drift) == (NEWEST + 1, [f"{NEWEST + 2:04}_broken"], [])


async def test_after_a_failed_step_the_lock_is_free_and_changes_by_hand_are_still_noticed(
    connection: asyncpg.Connection, database_url: str
) -> None:
    sound = Migration(NEWEST + 1, "sound", "CREATE TABLE sound (id INT)", "DROP TABLE sound")
    broken = Migration(NEWEST + 2, "broken", "SELECT 1/0", "SELECT 1")
    with pytest.raises(StartFailed):
        await migrate(connection, [*STEPS, sound, broken])
    other = await asyncpg.connect(database_url)
    async with asyncio.timeout(5):
        assert await migrate(other, [*STEPS, sound]) == []
    await other.execute("DROP TABLE sound")
    assert (await status(other, [*STEPS, sound])).drift
    await other.close()


async def test_a_failed_way_down_keeps_the_step(connection: asyncpg.Connection) -> None:
    stuck = Migration(NEWEST + 1, "stuck", "CREATE TABLE stuck (id INT)", "DROP TABLE stuck; SELECT 1/0")
    await migrate(connection, [*STEPS, stuck])
    with pytest.raises(StartFailed, match="stuck failed"):
        await migrate(connection, [*STEPS, stuck], to=NEWEST)
    assert "stuck" in await tables(connection)
    assert (await status(connection, [*STEPS, stuck])).applied == NEWEST + 1


# The files themselves.


def test_every_file_is_a_step_up_or_its_way_down() -> None:
    stems = {path.name.rsplit(".", 2)[0] for path in FILES}
    assert {path.name for path in FILES} == {f"{stem}.{way}.sql" for stem in stems for way in ("up", "down")}
    assert len(stems) == NEWEST


@pytest.mark.parametrize("path", UP_FILES, ids=lambda path: path.name)
def test_a_step_up_breaks_nothing_of_the_release_before(path: Path) -> None:
    text = path.read_text()
    code = re.sub(r"--[^\n]*", "", text)
    if CONTRACTING.search(code):
        assert re.search(r"^-- contract: \S", text, re.MULTILINE), "say on a line `-- contract:` why nobody uses it"


@pytest.mark.parametrize("path", UP_FILES, ids=lambda path: path.name)
def test_a_step_up_names_its_slice_first_and_points_to_agents_only(path: Path) -> None:
    text = path.read_text()
    slice_name = path.name.split("_", 1)[1].split(".")[0].split("_")[0]
    assert text.startswith(f"-- {slice_name}: ")
    assert set(re.findall(r"REFERENCES\s+(\w+\s*\(\w+\))", text, re.IGNORECASE)) <= {"agents (id)", "agents(id)"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_step_reads_the_databases_clock(path: Path) -> None:
    code = re.sub(r"--[^\n]*", "", path.read_text())
    assert not re.search(r"\b(now|clock_timestamp|statement_timestamp)\s*\(|CURRENT_(TIME|DATE)", code, re.IGNORECASE)


def test_a_gap_in_the_numbers_is_refused(tmp_path: Path) -> None:
    for name in ("0001_a.up.sql", "0001_a.down.sql", "0003_b.up.sql", "0003_b.down.sql"):
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(StartFailed, match="densely"):
        available(tmp_path)


def test_a_misnamed_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1_a.up.sql").write_text("SELECT 1")
    with pytest.raises(StartFailed, match="no migration name"):
        available(tmp_path)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE a",
        "ALTER TABLE a DROP COLUMN b",
        "alter table a rename to b",
        "ALTER TABLE a RENAME COLUMN b TO c",
        "ALTER TABLE a ALTER COLUMN b TYPE TEXT",
        "ALTER TABLE a ALTER b SET DATA TYPE TEXT",
        "ALTER TABLE a ALTER COLUMN b SET NOT NULL",
    ],
)
def test_the_lint_knows_what_contracts(sql: str) -> None:
    assert CONTRACTING.search(sql)
