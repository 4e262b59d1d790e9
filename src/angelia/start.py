"""What a server does before its first request: schema, master key, admin token; and what it refuses to start with."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import msgspec
import structlog

from angelia import executable_path
from angelia.agents.service import Agents
from angelia.api import Caller, Role, clock
from angelia.app import Slices, disk_of, master_key_file
from angelia.audit.service import Audit, event, record
from angelia.envelope import crypto_support
from angelia.errors import DiskFull, StartFailed, Unavailable
from angelia.guard import store as guard_store
from angelia.guard.api import MadeToken
from angelia.guard.model import parse_address
from angelia.guard.tokens import Tokens, new_text, token_row
from angelia.keys.field_encryption import settle_master_key
from angelia.keys.node_key import NodeIdentity
from angelia.settings import Loaded, Settings
from angelia.stores import migrations
from angelia.stores.disk import Disk
from angelia.stores.embedded.private_files import read_private, write_private
from angelia.stores.ledger import GONE, Ledger, StatementError
from angelia.stores.open_stores import Stores

OLDEST_POSTGRES = 15
CLOCK_SECONDS = 5.0
log = structlog.get_logger(__name__)


async def prepare(loaded: Loaded, data_dir: Path, node: NodeIdentity, *, rotate_master_key: bool = False) -> bool:
    """Does what is done once per server start, before a request can arrive. Returns whether the server is in open
    mode."""
    settings, now = loaded.settings, clock()
    assert settings.database_url, "the server has given or embedded stores by now"
    _refuse_nameless(settings)
    try:
        crypto_support.require()
    except crypto_support.UnsupportedCryptography as error:
        raise StartFailed(error.message, hint=error.hint) from error
    _refuse_full(disk_of(loaded, data_dir))
    try:
        await _prepare_schema(settings.database_url)
        await _prepare_master_key(settings, data_dir, now, rotate=rotate_master_key)
        disk = disk_of(loaded, data_dir)
        async with (
            Stores.opened(loaded, disk) as stores,
            Slices.opened(stores, loaded, data_dir, node) as slices,
        ):
            # Assembled for the sake of its errors: a setting that does not work is told once, and here.
            slices.edge(stores, settings, open_mode=False)
            await _keep_admin_token(stores.ledger, data_dir / "admin.token", now)
            await slices.audit.audit.make_partitions(now)
            await slices.mail.receipts.make_partitions(now)
            await stores.hot.birth()
            async with stores.ledger.reading() as tx:
                open_mode = not settings.jwt_enabled and await guard_store.count_made_tokens(tx) == 0
            _refuse_open_to_all(loaded, open_mode=open_mode)
            # Last: it is decided once, by the first start that comes to pass.
            await slices.policy.policy.start_with(now, loopback=not settings.reachable)
    except DiskFull as error:
        raise StartFailed(disk_of(loaded, data_dir).explanation(), hint="make room there, and start again") from error
    except (Unavailable, StatementError) as error:
        raise StartFailed(f"the stores cannot be prepared: {error}", hint="`angelia doctor` tells why") from error
    return open_mode


def _refuse_full(disk: Disk) -> None:
    if disk.full:
        raise StartFailed(disk.explanation(), hint="make room there, and try again")


def _refuse_nameless(settings: Settings) -> None:
    if not settings.loopback and settings.public_url is None:
        raise StartFailed(
            f"{settings.host} can be reached from elsewhere, and no public_url says what the server is called there",
            hint="say --public-url http://NAME:PORT as clients have it: agents sign every request for that name",
        )


def _refuse_open_to_all(loaded: Loaded, *, open_mode: bool) -> None:
    settings = loaded.settings
    if open_mode and settings.reachable and not settings.insecure:
        # Not by way of a start on loopback: that would leave rules behind which allow everything.
        prefix = executable_path.own()
        command = f"{prefix}/bin/angelia" if prefix else "angelia"
        command = f"{command} token create --role admin --offline"
        if loaded.origins["data_dir"] != "default":
            command = f"{command} --data-dir {shlex.quote(str(settings.data_dir))}"
        raise StartFailed(
            f"{settings.public_url or settings.host} can be reached from elsewhere, and there are no tokens and no JWT",
            hint=f"`{command}`, then start again",
        )


async def schema_version(settings: Settings) -> int:
    """The ledger's schema version, of those that this release knows."""
    assert settings.database_url
    connection = await _connect(settings.database_url)
    try:
        return (await migrations.status(connection)).applied
    finally:
        await connection.close()


async def set_schema(settings: Settings, version: int) -> list[str]:
    """Bring the ledger to a schema version, forward or back, and do nothing else."""
    assert settings.database_url
    connection = await _connect(settings.database_url)
    try:
        return await migrations.migrate(connection, to=version)
    finally:
        await connection.close()


async def create_token(
    loaded: Loaded, *, role: str, agent: str | None, label: str, life: timedelta | None
) -> MadeToken:
    """Make a token in the ledger of a server that does not run, which may be one that never ran."""
    settings, now = loaded.settings, clock()
    assert settings.database_url
    disk = disk_of(loaded, settings.data_dir)
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
    connection = await _connect(url)
    try:
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
    finally:
        await connection.close()


async def _prepare_master_key(settings: Settings, data_dir: Path, now: datetime, *, rotate: bool) -> None:
    """Before the slices, which only ever read the master key: a worker that made one would open nothing with it."""
    assert settings.database_url
    ledger = await Ledger.open(settings.database_url, connections=2)
    try:
        path = master_key_file(settings, data_dir)
        await settle_master_key(ledger, path, now, rotate=rotate)
    finally:
        await ledger.close()


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(url, timeout=10)
    except (*GONE, asyncpg.PostgresError, ValueError) as error:
        raise StartFailed(
            f"the ledger cannot be reached: {error or type(error).__name__}", hint="`angelia doctor` tells why"
        ) from error


async def _keep_admin_token(ledger: Ledger, path: Path, now: datetime) -> None:
    """Record the token of the data directory in the ledger, which may be a new one."""
    row = token_row(_admin_token(path), "admin.token", "admin", None, now, None)
    async with ledger.transaction() as tx:
        if await guard_store.make_token(tx, row, first_admin=True):
            detail = {"id": str(row.id), "role": row.role, "label": row.label}
            await record(tx, [event("token_created", now, actor="angelia", detail=detail)])


def _admin_token(path: Path) -> str:
    """The file comes before the ledger: a crash between the two leaves a token that the next start still records."""
    try:
        return read_private(path, 200).decode("ascii").strip()
    except FileNotFoundError:
        text = new_text()
        write_private(path, f"{text}\n".encode())
        return text
