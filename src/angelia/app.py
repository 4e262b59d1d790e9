"""Builds the application from its slices, and prepares the ledger before the first worker starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg
import structlog
from starlette.types import Receive, Scope, Send

from angelia.agents import routes as agent_routes
from angelia.agents.service import Agents
from angelia.audit import routes as audit_routes
from angelia.audit.service import Audit
from angelia.errors import StartFailed, Unavailable
from angelia.guard import routes as guard_routes
from angelia.guard import store as guard_store
from angelia.guard.blocks import Blocks
from angelia.guard.declarations import Route, clock
from angelia.guard.model import parse_networks
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens, new_text, token_row
from angelia.http import documents, operations
from angelia.http.edge import Edge
from angelia.jobs import audit_partitions, audit_sealer, block_list
from angelia.jobs.ticks import Ticks
from angelia.keys import node as node_key
from angelia.keys import routes as key_routes
from angelia.settings import Loaded, Settings
from angelia.stores import migrations
from angelia.stores.embedded.private import write_private
from angelia.stores.ledger import GONE, Ledger
from angelia.stores.valkey import HotTier

OLDEST_POSTGRES = 15
CLOCK_SECONDS = 5.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the server learnt while it made ready."""

    open_mode: bool


async def prepare(settings: Settings, data_dir: Path) -> Prepared:
    """Everything that is done once per server start, before a request can arrive."""
    assert settings.database_url, "the server has given or embedded stores by now"
    assert settings.redis_url
    now = clock()
    await _prepare_schema(settings.database_url)
    node_key.load_or_make(data_dir / "node.key")
    ledger = await Ledger.open(settings.database_url, 2)
    hot = HotTier(settings.redis_url, 1)
    try:
        await _keep_admin_token(ledger, data_dir / "admin.token", now)
        await Audit(ledger).make_partitions(now)
        await hot.birth()
        async with ledger.transaction() as tx:
            open_mode = not settings.jwt_enabled and await guard_store.count_made_tokens(tx, now) == 0
    except Unavailable as error:
        raise StartFailed(error.message, hint="angelia doctor tells which store, and why") from error
    finally:
        await hot.close()
        await ledger.close()
    if open_mode and not settings.loopback and not settings.insecure:
        raise StartFailed(
            f"listening on {settings.host} needs tokens or JWT, and none are configured",
            hint="start on loopback, run `angelia token create --role admin`, start again; or say --insecure",
        )
    return Prepared(open_mode)


async def set_schema(settings: Settings, version: int) -> list[str]:
    """Bring the ledger to a schema version, forward or back, and do nothing else."""
    assert settings.database_url
    connection = await _connect(settings.database_url)
    try:
        return await migrations.migrate(connection, to=version)
    finally:
        await connection.close()


def build(*, loaded: Loaded, open_mode: bool, worker: int, data_dir: Path) -> Application:
    """The ASGI application of one worker."""
    return Application(loaded, open_mode=open_mode, worker=worker, data_dir=data_dir)


class Application:
    """Opens the slices when the server starts, closes them when it stops, and hands requests to the edge."""

    def __init__(self, loaded: Loaded, *, open_mode: bool, worker: int, data_dir: Path) -> None:
        self._loaded = loaded
        self._open_mode = open_mode
        self._worker = worker
        self._data_dir = data_dir
        self._edge: Edge | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _follow_lifespan(receive, send, self.running())
        elif scope["type"] == "http":
            assert self._edge is not None, "requests come after startup"
            await self._edge(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        settings = self._loaded.settings
        assert settings.database_url
        assert settings.redis_url
        ledger = await Ledger.open(settings.database_url, settings.database_pool)
        hot = HotTier(settings.redis_url, settings.redis_pool)
        node = node_key.load_or_make(self._data_dir / "node.key")
        audit = Audit(ledger)
        agents = Agents(ledger)
        tokens = Tokens(ledger, agents)
        blocks = Blocks(ledger, hot)
        routes: list[Route] = [
            *agent_routes.routes(agents, show_email=settings.show_email),
            *guard_routes.routes(tokens, blocks),
            *key_routes.routes(node),
            *audit_routes.routes(audit),
            *operations.routes(ledger, hot, self._loaded, self._worker),
        ]
        routes += documents.routes(routes)
        guard = Guard(
            hot=hot,
            agents=agents,
            tokens=tokens,
            blocks=blocks,
            settings=settings,
            rules={route.rule.name: route.rule for route in routes if route.rule},
            open_mode=self._open_mode,
        )
        proxies = parse_networks("trusted_proxies", settings.trusted_proxies)
        self._edge = Edge(routes, guard, open_mode=self._open_mode, loopback=settings.loopback, proxies=proxies)
        ticks = Ticks(ledger, [audit_sealer.tick(audit, node), audit_partitions.tick(audit), block_list.tick(blocks)])
        ticks.start()
        try:
            yield
        finally:
            await agents.close()
            await ticks.stop()
            await hot.close()
            await ledger.close()


async def _follow_lifespan(receive: Receive, send: Send, running: AbstractAsyncContextManager[None]) -> None:
    await receive()
    async with running:
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


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
    finally:
        await connection.close()


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(url, timeout=10)
    except (*GONE, asyncpg.PostgresError, ValueError) as error:
        raise StartFailed(
            f"the ledger cannot be reached: {error or type(error).__name__}", hint="angelia doctor tells why"
        ) from error


async def _keep_admin_token(ledger: Ledger, path: Path, now: datetime) -> None:
    """Record the token of the data directory in the ledger, which may be a new one."""
    row = token_row(_admin_token(path), "admin.token", "admin", None, now, None)
    async with ledger.transaction() as tx:
        await guard_store.make_token(tx, row, first_admin=True)


def _admin_token(path: Path) -> str:
    """The file comes before the ledger: a crash between the two leaves a token that the next start still records."""
    if not path.exists():
        write_private(path, f"{new_text()}\n".encode())
    return path.read_text("ascii").strip()
