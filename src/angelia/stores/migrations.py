"""Migrations of the ledger's schema: numbered SQL files, up and down, run under one advisory lock."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from angelia.errors import StartFailed
from angelia.stores.sql import statements

SQL = statements(__file__, "migrations.sql")
DIRECTORY = Path(__file__).parent / "migrations"
_FILE = re.compile(r"(\d{4})_(\w+)\.up\.sql")
_LOCK = 0x616E_6765_6C69_6100  # "angelia" and a zero byte: of several servers, one migrates at a time


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema, forward and back."""

    version: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> bytes:
        return hashlib.sha256(self.up.encode()).digest()

    @property
    def label(self) -> str:
        return f"{self.version:04}_{self.name}"


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema of a database compared with the migration files. `drift` lists what other hands changed."""

    applied: int
    available: int
    pending: list[str]
    drift: list[str]


def available(directory: Path = DIRECTORY) -> list[Migration]:
    """Returns the migrations of a directory, numbered from 1 without gaps."""
    found = []
    for path in sorted(directory.glob("*.up.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise StartFailed(f"{path.name} is no migration name such as 0001_agents.up.sql")
        down = path.with_name(path.name.replace(".up.", ".down."))
        found.append(Migration(int(match[1]), match[2], path.read_text("utf-8"), down.read_text("utf-8")))
    if [m.version for m in found] != list(range(1, len(found) + 1)):
        raise StartFailed("migrations must be numbered densely from 0001")
    return found


async def migrate(
    connection: asyncpg.Connection, steps: Sequence[Migration] | None = None, to: int | None = None
) -> list[str]:
    """Migrates to version `to` (the newest by default), each step in its own transaction. Returns the steps done.

    A database that is ahead of these files is left alone: a migration never breaks the release before it.
    """
    steps = available() if steps is None else steps
    target = len(steps) if to is None else to
    if not 0 <= target <= len(steps):
        raise StartFailed(f"there is no schema version {target}", hint=f"versions go from 0 to {len(steps)}")
    await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
    try:
        await connection.execute(SQL["make_table"])
        applied = await _applied(connection)
        for step in _changed(steps, applied):
            raise StartFailed(
                f"migration {step.label} is not the one that was applied to this database",
                hint="an applied migration is never edited; add a new one, or use the release that wrote it",
            )
        if to is not None and max(applied, default=0) > len(steps):
            raise StartFailed(
                f"this database has schema version {max(applied)}, newer than this release",
                hint="use the release that wrote it",
            )
        todo = [("up", step) for step in steps if step.version not in applied and step.version <= target]
        if to is not None:
            todo += [("down", step) for step in reversed(steps) if step.version in applied and step.version > target]
        for direction, step in todo:
            await _run(connection, direction, step)
        return [f"{direction} {step.label}" for direction, step in todo]
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)


async def status(connection: asyncpg.Connection, steps: Sequence[Migration] | None = None) -> SchemaStatus:
    """Compares the database with the files; changes nothing."""
    steps = available() if steps is None else steps
    if await connection.fetchval("SELECT to_regclass('schema_migrations')") is None:
        return SchemaStatus(0, len(steps), [step.label for step in steps], [])
    applied = await _applied(connection)
    drift = [f"{step.label} was changed after it was applied" for step in _changed(steps, applied)]
    recorded = await connection.fetchval(SQL["recorded_fingerprint"])
    if recorded is not None and recorded != await connection.fetchval(SQL["fingerprint"]):
        drift.append("tables, columns or indexes were changed by hand")
    pending = [step.label for step in steps if step.version not in applied]
    return SchemaStatus(max(applied, default=0), len(steps), pending, drift)


async def _applied(connection: asyncpg.Connection) -> dict[int, bytes]:
    return {row["version"]: row["checksum"] for row in await connection.fetch(SQL["applied"])}


async def _run(connection: asyncpg.Connection, direction: str, step: Migration) -> None:
    """Runs a step, records it, and records the fingerprint of the schema, all in one transaction."""
    try:
        async with connection.transaction():
            if direction == "up":
                await connection.execute(step.up)
                await connection.execute(SQL["record"], step.version, step.name, step.checksum, datetime.now(UTC))
            else:
                await connection.execute(step.down)
                await connection.execute(SQL["forget"], step.version)
            await connection.execute(SQL["record_fingerprint"], await connection.fetchval(SQL["fingerprint"]))
    except asyncpg.PostgresError as error:
        raise StartFailed(
            f"migration {step.label} failed: {error}", hint="nothing of this step was kept; it is tried again"
        ) from error


def _changed(steps: Sequence[Migration], applied: dict[int, bytes]) -> list[Migration]:
    """The migrations whose files are not those that were applied."""
    return [step for step in steps if applied.get(step.version, step.checksum) != step.checksum]
