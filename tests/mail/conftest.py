"""Post offices on real stores, and correspondents: over HTTP, and by the services for what depends on the time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog

from http_agents import Server
from keyholder import whole_ms
from mail_agents import Correspondent
from mail_office import PostOffice, open_office

_EMPTY = """
DO $$
DECLARE one record;
BEGIN
  SET LOCAL session_replication_role = replica;
  FOR one IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
    AND NOT relispartition AND NOT starts_with(relname, 'seed_') AND relname <> 'schema_migrations'
  LOOP
    EXECUTE format('DELETE FROM %I', one.relname);
    IF to_regclass('seed_' || one.relname) IS NOT NULL THEN
      EXECUTE format('INSERT INTO %I SELECT * FROM %I', one.relname, 'seed_' || one.relname);
    END IF;
  END LOOP;
END $$
"""


@pytest.fixture(scope="module")
def shared_database(stores: Any, template: str) -> Iterator[str]:
    """One database for the tests of a module: emptying it is a tenth of the work of making one."""
    name = f"mail_{secrets.token_hex(4)}"

    async def make() -> None:
        admin = await asyncpg.connect(stores.admin_url)
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} OWNER angelia")
        await admin.close()
        connection = await asyncpg.connect(stores.named(name))
        for table in ("audit_sealer", "policy_version"):
            await connection.execute(f"CREATE TABLE seed_{table} AS TABLE {table}")
        await connection.close()

    async def drop() -> None:
        admin = await asyncpg.connect(stores.admin_url)
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()

    asyncio.run(make())
    yield stores.named(name)
    asyncio.run(drop())


@pytest.fixture
async def database_url(stores: Any, shared_database: str) -> AsyncIterator[str]:
    yield shared_database
    # As the testing role: an order of deletion that no foreign key minds is a superuser's.
    connection = await asyncpg.connect(stores.as_admin(shared_database))
    await connection.execute("DROP FUNCTION IF EXISTS choke CASCADE")
    await connection.execute(_EMPTY)
    await connection.close()


@pytest.fixture(autouse=True)
def captured_log() -> Iterator[list[Any]]:
    """Failures are provoked here; their tracebacks belong to nobody's terminal."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def now() -> datetime:
    """The present: receipts and the audit have partitions for a few days only."""
    return whole_ms(datetime.now(UTC))


@pytest.fixture
async def another(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """`await another()` gives a post office on the same stores, as another process has it."""
    async with AsyncExitStack() as stack:

        async def begin(**how: Any) -> PostOffice:
            return await stack.enter_async_context(open_office(database_url, redis_url, tmp_path, **how))

        yield begin


@pytest.fixture
async def office(another) -> PostOffice:
    office: PostOffice = await another()
    return office


@pytest.fixture
async def server(office: PostOffice, database_url: str, redis_url: str) -> AsyncIterator[Server]:
    """The office over HTTP."""
    async with office.process.serving(database_url, redis_url) as server:
        yield server


@pytest.fixture
async def alice(office: PostOffice, now: datetime) -> Correspondent:
    alice = Correspondent()
    await alice.enter(office, "alice", now)  # type: ignore[arg-type]
    return alice


@pytest.fixture
async def bob(office: PostOffice, now: datetime) -> Correspondent:
    bob = Correspondent()
    await bob.enter(office, "bob", now)  # type: ignore[arg-type]
    return bob


@pytest.fixture
async def carol(office: PostOffice, now: datetime) -> Correspondent:
    carol = Correspondent()
    await carol.enter(office, "carol", now)  # type: ignore[arg-type]
    return carol
