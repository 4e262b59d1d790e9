"""Builds the application from its slices, and prepares the ledger before the first worker starts."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from angelia import command_path
from angelia.agents import routes as agent_routes
from angelia.agents.service import Agents
from angelia.api import Caller, Role, Route, clock
from angelia.audit import routes as audit_routes
from angelia.audit.archive_backlog import Leaving
from angelia.audit.failures import Failures
from angelia.audit.failures_store import Counts
from angelia.audit.service import Audit, event, record
from angelia.audit.witness_client import Handing, witness_at
from angelia.audit.witness_service import Witnessed
from angelia.channels import routes as channel_routes
from angelia.channels.admission import ChannelAdmission
from angelia.channels.epochs import Epochs
from angelia.channels.publishing import Publishing
from angelia.channels.reading import Readers
from angelia.channels.rosters import Rosters
from angelia.channels.service import Channels
from angelia.envelope import crypto_support
from angelia.errors import DiskFull, StartFailed, Unavailable
from angelia.guard import routes as guard_routes
from angelia.guard import store as guard_store
from angelia.guard.api import MadeToken
from angelia.guard.blocks import Blocks
from angelia.guard.model import parse_address, parse_networks
from angelia.guard.rate_limiter import Limiter
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens, new_text, token_row
from angelia.http import documents
from angelia.http.edge import Edge
from angelia.jobs import (
    audit_partitions,
    audit_sealer,
    audit_witness,
    block_list,
    bundle_cache,
    channel_retention,
    failure_summaries,
    grace_periods,
    hot_journal,
    mail_expiry,
    mail_rebuild,
    mail_reconcile,
    one_time_keys,
    pipeline_state,
    pipeline_waiting,
    prekey_alert,
    receipt_partitions,
    revoked_mail,
    rotations,
    sent_ids,
)
from angelia.jobs.ticks import Ticks
from angelia.keys import master_key
from angelia.keys import routes as key_routes
from angelia.keys.field_encryption import Fields, settle_master_key
from angelia.keys.node_key import NodeIdentity, NodeKey
from angelia.keys.schedules import Schedules
from angelia.keys.service import Keys
from angelia.keys.store import HotBundles
from angelia.mail import receipt_routes
from angelia.mail import routes as mail_routes
from angelia.mail.acknowledgement import Settling
from angelia.mail.dead_letters import DeadLetters
from angelia.mail.delivery import Delivery
from angelia.mail.hot_store import HotMail
from angelia.mail.receipts import Receipts
from angelia.mail.service import Mail
from angelia.mail.ticks import Upkeep
from angelia.mail.withdrawal import UnderWay
from angelia.monitoring import routes as monitoring_routes
from angelia.policy import routes as policy_routes
from angelia.policy.service import Policy
from angelia.policy.store import HotRates
from angelia.runs import routes as run_routes
from angelia.runs.service import Runs
from angelia.settings import OUR_OWN, Loaded, Settings
from angelia.stores import migrations
from angelia.stores.disk import Disk
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.private import read_private, write_private
from angelia.stores.ledger import GONE, Ledger, StatementError
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake

OLDEST_POSTGRES = 15
CLOCK_SECONDS = 5.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the server learnt while it made ready."""

    open_mode: bool


async def prepare(loaded: Loaded, data_dir: Path, node: NodeIdentity, *, rotate_master_key: bool = False) -> Prepared:
    """Everything that is done once per server start, before a request can arrive."""
    settings, now = loaded.settings, clock()
    assert settings.database_url, "the server has given or embedded stores by now"
    _refuse_nameless(settings)
    try:
        crypto_support.require()
    except crypto_support.UnsupportedCryptography as error:
        raise StartFailed(error.message, hint=error.hint) from error
    _refuse_full(_disk(loaded, data_dir))
    try:
        await _prepare_schema(settings.database_url)
        await _prepare_master_key(settings, data_dir, now, rotate=rotate_master_key)
        async with Slices.opened(loaded, data_dir, node) as slices:
            # Assembled for the sake of its errors: a setting that does not work is told once, and here.
            slices.edge(loaded, open_mode=False, worker=0)
            await _keep_admin_token(slices.ledger, data_dir / "admin.token", now)
            await slices.audit.make_partitions(now)
            await slices.receipts.make_partitions(now)
            await slices.hot.birth()
            async with slices.ledger.reading() as tx:
                open_mode = not settings.jwt_enabled and await guard_store.count_made_tokens(tx) == 0
            _refuse_open_to_all(loaded, open_mode=open_mode)
            # Last: it is decided once, by the first start that comes to pass.
            await slices.policy.start_with(now, loopback=not settings.reachable)
    except DiskFull as error:
        raise StartFailed(_disk(loaded, data_dir).told(), hint="make room there, and start again") from error
    except (Unavailable, StatementError) as error:
        raise StartFailed(f"the stores cannot be prepared: {error}", hint="`angelia doctor` tells why") from error
    return Prepared(open_mode)


def _disk(loaded: Loaded, data_dir: Path) -> Disk:
    """That of our own PostgreSQL, which may be mounted there by itself."""
    return Disk(DataDir(data_dir).postgres if loaded.origins["database_url"] == OUR_OWN else None)


def _refuse_full(disk: Disk) -> None:
    if disk.full:
        raise StartFailed(disk.told(), hint="make room there, and try again")


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
        prefix = command_path.own()
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
    disk = _disk(loaded, settings.data_dir)
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


@asynccontextmanager
async def sealing(loaded: Loaded, data_dir: Path, node: NodeKey) -> AsyncIterator[None]:
    """The audit's sealer at work, in the one process that holds the node key."""
    settings = loaded.settings
    assert settings.database_url
    ledger = await Ledger.open(settings.database_url, connections=3, disk=_disk(loaded, data_dir))
    audit = Audit(ledger)
    work = [audit_sealer.tick(audit, node)]
    if settings.audit_witness is not None:
        witness = witness_at(settings.audit_witness, begins=node.signed() is None)
        work.append(audit_witness.tick(Handing(node, witness)))
    ticks = Ticks(ledger, work)
    ticks.start()
    try:
        yield
    finally:
        await ticks.stop()
        await ledger.close()


def build(*, loaded: Loaded, open_mode: bool, worker: int, data_dir: Path, node: NodeIdentity) -> Application:
    """The ASGI application of one worker."""
    return Application(loaded, open_mode=open_mode, worker=worker, data_dir=data_dir, node=node)


class Application:
    """Opens the slices when the server starts, closes them when it stops, and hands requests to the edge."""

    def __init__(self, loaded: Loaded, *, open_mode: bool, worker: int, data_dir: Path, node: NodeIdentity) -> None:
        self._loaded = loaded
        self._node = node
        self._open_mode = open_mode
        self._worker = worker
        self._data_dir = data_dir
        self._edge: Edge | None = None
        self._wake: Wake | None = None

    def stop_waiting(self) -> None:
        """The server is about to stop: requests that wait for something answer now."""
        if self._wake is not None:
            self._wake.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _follow_lifespan(receive, send, self.running())
        else:
            assert self._edge is not None, "requests come after startup"
            await self._edge(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Slices.opened(self._loaded, self._data_dir, self._node) as slices:
            self._edge = slices.edge(self._loaded, open_mode=self._open_mode, worker=self._worker)
            self._wake = slices.wake
            await slices.blocks.refresh(clock())
            ticks = slices.ticks()
            ticks.start()
            try:
                yield
            finally:
                await ticks.stop()


@dataclass(frozen=True, slots=True)
class Slices:
    """The services of one process and the stores under them."""

    ledger: Ledger
    hot: HotTier
    node: NodeIdentity
    fields: Fields
    audit: Audit
    agents: Agents
    tokens: Tokens
    blocks: Blocks
    policy: Policy
    keys: Keys
    schedules: Schedules
    wake: Wake
    failures: Failures
    mail: Mail
    under_way: UnderWay
    delivery: Delivery
    settling: Settling
    receipts: Receipts
    dead_letters: DeadLetters
    upkeep: Upkeep
    channels: Channels
    epochs: Epochs
    rosters: Rosters
    publishing: Publishing
    readers: Readers
    runs: Runs

    @classmethod
    @asynccontextmanager
    async def opened(cls, loaded: Loaded, data_dir: Path, node: NodeIdentity) -> AsyncIterator[Slices]:
        settings = loaded.settings
        assert settings.database_url
        assert settings.redis_url
        fields = Fields(master_key.load(_master_key_file(settings, data_dir)))
        ledger = await Ledger.open(settings.database_url, settings.database_pool, _disk(loaded, data_dir))
        hot = HotTier(settings.redis_url, settings.redis_pool, shared=loaded.origins["redis_url"] != OUR_OWN)
        agents = Agents(ledger)
        policy, wake, queues = Policy(ledger, HotRates(hot)), Wake(hot), HotMail(hot)
        failures = Failures(ledger, Counts(hot))
        keys = Keys(ledger, HotBundles(hot), agents, policy, wake)
        mail = Mail(ledger, queues, policy, failures)
        settling = Settling(ledger, queues)
        admission = ChannelAdmission(policy)
        channels = Channels(ledger, wake, agents, keys, admission)
        publishing, readers = Publishing(ledger, wake, admission, failures), Readers(ledger, wake, admission)
        try:
            yield cls(
                ledger=ledger,
                hot=hot,
                node=node,
                fields=fields,
                audit=Audit(ledger),
                agents=agents,
                tokens=Tokens(ledger, agents),
                blocks=Blocks(ledger, hot),
                policy=policy,
                keys=keys,
                schedules=Schedules(ledger, keys, fields, wake),
                wake=wake,
                failures=failures,
                mail=mail,
                under_way=UnderWay(ledger, queues, policy),
                delivery=Delivery(ledger, queues, wake, policy, failures),
                settling=settling,
                receipts=Receipts(ledger, queues, failures, settings.max_ttl_seconds),
                dead_letters=DeadLetters(ledger, queues, agents),
                upkeep=Upkeep(ledger, queues, keys),
                channels=channels,
                epochs=Epochs(ledger, agents, admission),
                rosters=Rosters(ledger, wake, channels, admission),
                publishing=publishing,
                readers=readers,
                runs=Runs(ledger),
            )
        finally:
            await wake.close()
            await settling.close()
            await mail.close()
            await publishing.close()
            await readers.close()
            await agents.close()
            await hot.close()
            await ledger.close()

    def edge(self, loaded: Loaded, *, open_mode: bool, worker: int) -> Edge:
        """The way of a request through the guard to the routes of all slices."""
        settings = loaded.settings
        routes: list[Route] = [
            *agent_routes.routes(self.agents, show_email=settings.show_email, meet=self.keys.meet),
            *guard_routes.routes(self.tokens, self.blocks),
            *policy_routes.routes(self.policy),
            *key_routes.routes(self.keys, self.schedules, self.node),
            *mail_routes.routes(
                self.mail, self.under_way, self.delivery, self.settling, self.receipts, ttl_max=settings.max_ttl_seconds
            ),
            *receipt_routes.routes(self.receipts, self.dead_letters),
            *channel_routes.routes(
                self.channels, self.epochs, self.rosters, self.publishing, self.readers, settings.max_ttl_seconds
            ),
            *audit_routes.routes(self.audit, Witnessed(self.ledger)),
            *run_routes.routes(self.runs),
            *monitoring_routes.routes(self.ledger, self.hot, loaded, worker),
        ]
        routes += documents.routes(routes)
        rules = {route.operation.rule.name: route.operation.rule for route in routes if route.operation.rule}
        guard = Guard(
            agents=self.agents,
            tokens=self.tokens,
            limiter=Limiter(self.hot, self.blocks, settings, rules),
            settings=settings,
            open_mode=open_mode,
        )
        proxies = parse_networks("trusted_proxies", settings.trusted_proxies)
        return Edge(routes, guard, open_mode=open_mode, loopback=settings.loopback, proxies=proxies)

    def ticks(self) -> Ticks:
        return Ticks(
            self.ledger,
            [
                audit_sealer.measuring(self.audit, self.node),
                audit_partitions.tick(self.audit),
                block_list.tick(self.blocks),
                bundle_cache.tick(self.keys),
                grace_periods.tick(self.keys),
                one_time_keys.tick(self.keys),
                rotations.tick(self.schedules),
                prekey_alert.tick(self.keys),
                failure_summaries.tick(self.failures),
                receipt_partitions.tick(self.receipts),
                mail_expiry.tick(self.upkeep),
                mail_reconcile.tick(self.upkeep),
                mail_rebuild.tick(self.upkeep, self.hot.birth_mark),
                revoked_mail.tick(self.upkeep),
                sent_ids.tick(self.upkeep),
                channel_retention.tick(self.channels),
                hot_journal.tick(self.hot.keep_journal),
                pipeline_state.tick(self.runs),
                pipeline_waiting.tick(self.receipts, Leaving(self.ledger)),
            ],
        )


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
        for drift in (await migrations.status(connection)).drift:
            log.warning("the schema is not what the migrations made", drift=drift)
    finally:
        await connection.close()


async def _prepare_master_key(settings: Settings, data_dir: Path, now: datetime, *, rotate: bool) -> None:
    """Before the slices, which only ever read the master key: a worker that made one would open nothing with it."""
    assert settings.database_url
    ledger = await Ledger.open(settings.database_url, connections=2)
    try:
        path = _master_key_file(settings, data_dir)
        await settle_master_key(ledger, path, now, rotate=rotate)
    finally:
        await ledger.close()


def _master_key_file(settings: Settings, data_dir: Path) -> Path:
    return settings.master_key_file or data_dir / "master.key"


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
