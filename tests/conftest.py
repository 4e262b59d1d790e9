"""Real stores for every test: one PostgreSQL and one Valkey per process, one database per test from a template."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis.asyncio
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from angelia import settings as angelia_settings
from angelia.app import Application
from angelia.audit.service import Audit
from angelia.audit_sealer import sealing
from angelia.keys.node_key import NodeIdentity, load_or_make
from angelia.mail import receipts_store
from angelia.queues import days_store
from angelia.settings import OUR_OWN, Loaded, Settings
from angelia.start import prepare
from angelia.stores import migrations
from angelia.stores.embedded import EmbeddedStores
from angelia.stores.embedded.binaries import postgres_for
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.postgres import Postgres
from angelia.stores.ledger import Ledger
from angelia.stores.partitions import make_ahead
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Bell, Wake
from http_agents import Server
from local_spools import local_spool
from postgres_superuser import as_superuser

# No deadline: the duration of an example says how busy the machine is, not whether the code is right.
hypothesis_settings.register_profile("angelia", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("angelia")

# Most files of a run lie in memory, where a flush costs nothing. A killed process leaves the same files there as on a
# disk; tests that kill a server with its stores use `disk_directory` nevertheless.
_MEMORY, _DISK = Path("/dev/shm"), Path("/tmp")
_ROOM = 4 << 30


def _fast_place() -> Path:
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return _DISK
    fits = found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC
    return _MEMORY if fits and os.access(_MEMORY, os.W_OK) else _DISK


os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_fast_place()))  # the parent of pytest's own directories

# A run in the background of a shell ignores Ctrl-C, and so would all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

_numbers = itertools.count(1)
_left_out: dict[str, int] = {}
_vectors: list[int] = []


@dataclass(frozen=True)
class Stores:
    database_url: str
    redis_url: str

    @property
    def admin_url(self) -> str:
        """The URL of the superuser, for what only tests do: make databases, and empty them quickly."""
        return self.as_admin(self.database_url)

    def as_admin(self, url: str) -> str:
        return url.replace("//angelia:", "//testing:")

    def named(self, database: str) -> str:
        return self.database_url.replace("/angelia?", f"/{database}?")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        _left_out[reason] = _left_out.get(reason, 0) + 1
    if report.when == "call":
        _vectors.extend(cases for name, cases in report.user_properties if name == "vectors")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Prints how many published vectors were tried, and how many tests were skipped, and why."""
    if hasattr(config, "workerinput"):
        return
    if _vectors:
        print(f"vectors: {sum(_vectors):,} cases of {len(_vectors)} sets")
    why = "; ".join(f"{count} for {reason}" for reason, count in sorted(_left_out.items()))
    print(f"left out: {sum(_left_out.values())} tests" + (f" ({why})" if why else ""))


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    """A directory that the user of the stores can enter; pytest's own are closed to other users."""
    yield from _open_directory(_fast_place())


@pytest.fixture(scope="session")
def disk_directory() -> Iterator[Path]:
    """The same on a disk, for tests that kill a server together with its stores."""
    yield from _open_directory(_DISK)


def _open_directory(parent: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="angelia-test-", dir=parent))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def data_dir(directory: Path) -> Iterator[DataDir]:
    """A prepared data directory, as at the start of a server."""
    data_dir = DataDir(Path(tempfile.mkdtemp(dir=directory)) / "data")
    data_dir.path.parent.chmod(0o755)
    data_dir.prepare()
    yield data_dir
    data_dir.remove_runtime()
    data_dir.release()


@pytest.fixture(scope="session")
def stores(directory: Path) -> Iterator[Stores]:
    data_dir = DataDir(directory / "stores")
    data_dir.prepare()
    data_dir.lock()
    Postgres(data_dir, postgres_for(data_dir, None), 100).prepare()
    password = data_dir.secret(data_dir.postgres_password)
    as_superuser(data_dir, f"CREATE ROLE testing SUPERUSER LOGIN PASSWORD '{password}'")
    running = EmbeddedStores(Settings(data_dir=data_dir.path), data_dir)
    try:
        yield Stores(*running.start())
    finally:
        running.stop()
        data_dir.remove_runtime()
        data_dir.release()


@pytest.fixture(scope="session")
def template(stores: Stores) -> str:
    """A migrated database; each test gets a copy."""

    async def make() -> None:
        admin = await asyncpg.connect(stores.admin_url)
        await admin.execute("CREATE DATABASE template_angelia OWNER angelia")
        await admin.close()
        connection = await asyncpg.connect(stores.named("template_angelia"))
        await migrations.migrate(connection)
        await connection.close()
        ledger = await Ledger.open(stores.named("template_angelia"))
        await Audit(ledger).make_partitions(datetime.now(UTC))
        await make_ahead(ledger, receipts_store.DAILY, datetime.now(UTC))
        await make_ahead(ledger, days_store.DAILY, datetime.now(UTC))
        await ledger.close()

    asyncio.run(make())
    return "template_angelia"


@pytest.fixture
async def empty_database(stores: Stores) -> AsyncIterator[str]:
    async for url in _database(stores, "template1"):
        yield url


@pytest.fixture
async def database_url(stores: Stores, template: str) -> AsyncIterator[str]:
    async for url in _database(stores, template):
        yield url


async def _database(stores: Stores, template: str) -> AsyncIterator[str]:
    name = f"test_{next(_numbers)}"
    admin = await asyncpg.connect(stores.admin_url)
    # In memory, copying the files is half the work of writing their pages to the log.
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY OWNER angelia")
    try:
        yield stores.named(name)
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(database_url)
    yield ledger
    await ledger.close()


@pytest.fixture
async def redis_url(stores: Stores) -> str:
    client = redis.asyncio.Redis.from_url(stores.redis_url)
    await client.flushall()
    await client.aclose()
    return stores.redis_url


@pytest.fixture
async def hot(redis_url: str) -> AsyncIterator[HotTier]:
    hot = HotTier(redis_url)
    yield hot
    await hot.close()


@pytest.fixture
async def wake(hot: HotTier) -> AsyncIterator[Wake]:
    """Wake-ups of this process."""
    wake = Wake(hot)
    yield wake
    await wake.close()


@pytest.fixture
async def elsewhere(redis_url: str) -> AsyncIterator[Wake]:
    """Wake-ups of another process."""
    hot = HotTier(redis_url)
    wake = Wake(hot)
    yield wake
    await wake.close()
    await hot.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[float]:
    """Has an entry for each time that a request of this process found nothing and waits for a wake-up: for how many
    seconds at most."""
    begun: asyncio.Queue[float] = asyncio.Queue()
    wait = Bell.wait

    async def noted(bell: Bell, seconds: float) -> bool:
        begun.put_nowait(seconds)
        return await wait(bell, seconds)

    monkeypatch.setattr(Bell, "wait", noted)
    return begun


@pytest.fixture
async def start(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[object]:
    """`await start(limits={...})` starts an application in this process, and returns a Server to send requests to; with
    `spool=True` there is a spool too."""
    async with AsyncExitStack() as stack:

        async def begin(*, rotate_master_key: bool = False, spool: bool = False, **values: Any) -> Server:
            loaded = angelia_settings.load({}, {}, _no_file(tmp_path))
            chosen = replace(
                loaded.settings, database_url=database_url, redis_url=redis_url, data_dir=tmp_path, **values
            )
            effective = Loaded(chosen, {**loaded.origins, "redis_url": OUR_OWN})
            node = load_or_make(tmp_path / "node.key")
            open_mode = await prepare(effective, node, rotate_master_key=rotate_master_key)
            await stack.enter_async_context(sealing(effective, node))
            if spool:
                await stack.enter_async_context(local_spool(chosen, node, open_mode=open_mode))
            public = NodeIdentity(node.public_key, tmp_path)
            application = Application(effective, open_mode=open_mode, worker=0, node=public)
            await stack.enter_async_context(application.running())
            server = Server(application, (tmp_path / "admin.token").read_text().strip(), database_url, redis_url)
            await stack.enter_async_context(server)
            await server.hot_tier_is_old_enough()
            return server

        yield begin


def _no_file(path: Path) -> Path:
    empty = path / "none.toml"
    empty.touch()
    return empty
