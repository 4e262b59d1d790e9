"""Prepares a server before its first request: schema, master key, admin token. Refuses settings that are unsafe."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import asyncpg
import msgspec
import structlog

from angelia import admin_token, executable_path
from angelia.agents.service import Agents
from angelia.api import Caller, Role, clock
from angelia.app import Slices, master_key_file, spool_passage
from angelia.audit.service import Audit
from angelia.envelope import crypto_support
from angelia.errors import DiskFull, StartFailed, Unavailable
from angelia.guard.api import MadeToken
from angelia.guard.model import parse_address
from angelia.guard.tokens import Tokens
from angelia.keys.field_encryption import settle_master_key
from angelia.keys.node_key import NodeIdentity
from angelia.listener import refuse_nameless
from angelia.settings import Loaded, Settings
from angelia.stores import migrations
from angelia.stores.disk import Disk
from angelia.stores.embedded.binaries import OLDEST_POSTGRES
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.ledger import GONE, Ledger, StatementError
from angelia.stores.open_stores import Stores, disk_of

CLOCK_SECONDS = 5.0
log = structlog.get_logger(__name__)


async def prepare(loaded: Loaded, node: NodeIdentity, *, rotate_master_key: bool = False) -> bool:
    """Does what is done once per server start, before a request can arrive. Returns whether the server is in open
    mode."""
    settings, now = loaded.settings, clock()
    assert settings.database_url, "the server has given or embedded stores by now"
    refuse_nameless(settings)
    try:
        crypto_support.require()
    except crypto_support.UnsupportedCryptography as error:
        raise StartFailed(error.message, hint=error.hint) from error
    _refuse_full(disk_of(loaded))
    try:
        await _prepare_schema(settings.database_url)
        await _prepare_master_key(settings, now, rotate=rotate_master_key)
        async with Stores.opened(loaded) as stores, Slices.opened(stores, loaded, node) as slices:
            # Made for its errors: a setting that does not work is reported here, once.
            slices.edge(stores, settings, spool_passage(settings), open_mode=False)
            await slices.guard.tokens.keep_admin(admin_token.load_or_make(DataDir(settings.data_dir).admin_token), now)
            await slices.audit.audit.make_partitions(now)
            await slices.mail.receipts.make_partitions(now)
            await slices.queues.days.make_partitions(now)
            await stores.hot.birth()
            open_mode = not settings.jwt_enabled and not await slices.guard.tokens.any_made()
            _refuse_open_to_all(loaded, open_mode=open_mode)
            # Last, because the first start that succeeds decides it for ever.
            await slices.policy.policy.start_with(now, loopback=not settings.reachable)
    except DiskFull as error:
        raise StartFailed(disk_of(loaded).explanation(), hint="make room there, and start again") from error
    except (Unavailable, StatementError) as error:
        raise StartFailed(f"the stores cannot be prepared: {error}", hint="`angelia doctor` tells why") from error
    return open_mode


def _refuse_full(disk: Disk) -> None:
    if disk.full:
        raise StartFailed(disk.explanation(), hint="make room there, and try again")


def _refuse_open_to_all(loaded: Loaded, *, open_mode: bool) -> None:
    settings = loaded.settings
    if open_mode and settings.reachable and not settings.insecure:
        # The hint does not advise a start on loopback: that would make rules that allow everything.
        prefix = executable_path.own()
        command = f"{prefix}/bin/angelia" if prefix else "angelia"
        command = f"{command} token create --role admin --offline"
        if loaded.origins["data_dir"] != "default":
            command = f"{command} --data-dir {shlex.quote(str(settings.data_dir))}"
        raise StartFailed(
            f"{settings.public_url or settings.host} can be reached from elsewhere, and there are no tokens and no JWT",
            hint=f"`{command}`, then start again",
        )


async def schema_version(database_url: str) -> int:
    """The ledger's schema version."""
    async with _connected(database_url) as connection:
        return (await migrations.status(connection)).applied


async def set_schema(database_url: str, version: int) -> list[str]:
    """Migrates the ledger to a schema version, forward or back. Returns the steps done."""
    async with _connected(database_url) as connection:
        return await migrations.migrate(connection, to=version)


async def create_token(
    loaded: Loaded, *, role: str, agent: str | None, label: str, life: timedelta | None
) -> MadeToken:
    """Makes a token in the ledger of a stopped server, which may never have run."""
    settings, now = loaded.settings, clock()
    assert settings.database_url
    disk = disk_of(loaded)
    _refuse_full(disk)
    await _prepare_schema(settings.database_url)
    ledger = await Ledger.open(settings.database_url, connections=2, disk=disk)
    try:
        await Audit(ledger).make_partitions(now)
        operator = Caller(parse_address("127.0.0.1"), Role.ADMIN, name="offline")
        made, text = await Tokens(ledger, Agents(ledger)).make(
            operator, now, role=role, agent=agent, label=label, life=life
        )
    finally:
        await ledger.close()
    return MadeToken(token=text, **msgspec.structs.asdict(made))


async def _prepare_schema(url: str) -> None:
    async with _connected(url) as connection:
        if connection.get_server_version().major < OLDEST_POSTGRES:
            raise StartFailed(
                f"PostgreSQL {OLDEST_POSTGRES} or newer is needed",
                hint="upgrade the server that DATABASE_URL names",
            )
        theirs = await connection.fetchval("SELECT clock_timestamp()")
        ahead = (theirs - clock()).total_seconds()
        if abs(ahead) > CLOCK_SECONDS:
            raise StartFailed(
                f"PostgreSQL's clock is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}",
                hint="run a time service on both machines",
            )
        for step in await migrations.migrate(connection):
            log.info("migrated", step=step)
        for drift in (await migrations.status(connection)).drift:
            log.warning("the schema is not what the migrations made", drift=drift)


async def _prepare_master_key(settings: Settings, now: datetime, *, rotate: bool) -> None:
    """Makes or rotates the master key before the slices open: they only read it."""
    assert settings.database_url
    ledger = await Ledger.open(settings.database_url, connections=2)
    try:
        await settle_master_key(ledger, master_key_file(settings), now, rotate=rotate)
    finally:
        await ledger.close()


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    try:
        connection = await asyncpg.connect(url, timeout=10)
    except (*GONE, asyncpg.PostgresError, ValueError) as error:
        raise StartFailed(
            f"the ledger cannot be reached: {error or type(error).__name__}", hint="`angelia doctor` tells why"
        ) from error
    try:
        yield connection
    finally:
        await connection.close()
