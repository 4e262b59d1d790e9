"""Where the pipeline works: which ledger, which archive, and which Spark."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from angelia.cli.command_context import Session
from angelia.cli.errors import Usage
from angelia.errors import AngeliaError, NotFound, StartFailed, Unavailable

if TYPE_CHECKING:
    import asyncpg

    from angelia.pipeline.session import Where
    from angelia.settings import Settings
    from angelia.stores.ledger import Ledger
    from angelia.stores.objects import Objects

T = TypeVar("T")
NEEDED = ("pyspark", "pyarrow", "deltalake", "adbc_driver_postgresql")


class NotInstalled(AngeliaError):
    """The pipeline is not installed"""

    code = "not_installed"


def require_pipeline() -> None:
    """Refuse where the packages are missing that the pipeline alone needs."""
    from angelia.pipeline import install_hint

    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"the pipeline is not installed: {', '.join(missing)} is missing", hint=install_hint.command()
        )


@contextmanager
def ledger(settings: Settings) -> Iterator[str]:
    """The URL of the ledger: the one that is named, the running server's, or our own for as long as this lasts."""
    from angelia.runtime_file import read_runtime
    from angelia.stores.embedded import ledger_alone

    running = read_runtime(settings.data_dir)
    url = settings.database_url or (running.database_url if running else None)
    if url is not None:
        asyncio.run(_check_schema(url))
        yield url
        return
    with ledger_alone(settings) as own:
        asyncio.run(_migrate(own))
        yield own


def with_hot_tier(settings: Settings) -> Settings:
    """With the running server's own hot tier where none is named: jobs that measure the stores ask it."""
    from angelia.runtime_file import read_runtime
    from angelia.settings import with_values

    running = read_runtime(settings.data_dir)
    if settings.redis_url is not None or running is None:
        return settings
    return with_values(settings, redis_url=running.redis_url)


def has_ledger(settings: Settings) -> bool:
    """Whether there is one already: to look at what is not there must not make it."""
    from angelia.stores.embedded.datadir import DataDir

    return settings.database_url is not None or DataDir(settings.data_dir).postgres.exists()


def ask(url: str, question: Callable[[Ledger], Awaitable[T]]) -> T:
    """Put a question to the ledger."""

    async def asked() -> T:
        from angelia.stores.ledger import Ledger

        opened = await Ledger.open(url, 2)
        try:
            return await question(opened)
        finally:
            await opened.close()

    return asyncio.run(asked())


def archive(settings: Settings, given: str | None, *, simulated: bool = False) -> Objects:
    """The archive: --lake, the setting, or a directory of the data directory; or that of simulated fleets beside it."""
    from angelia.pipeline.lake import archive_locations

    if given and simulated:
        raise Usage("--lake and --simulated both name the archive", hint="say one of them")
    if given:
        return archive_locations.named(given)
    return archive_locations.simulated(settings) if simulated else archive_locations.own(settings)


def require_simulated(objects: Objects) -> None:
    """Refuse what --simulated asks for before anything was simulated."""
    from angelia.pipeline.lake.commit import is_simulated

    if not is_simulated(objects):
        raise NotFound(
            f"there is no simulated archive at {objects.root} yet", hint="angelia pipeline run simulate --months 3"
        )


def make_archive(objects: Objects) -> None:
    """Before anything is written: a directory of its own, or a bucket that keeps two writers apart."""
    from angelia.pipeline.lake.write_probe import probe

    if not objects.remote:
        for path in (Path(objects.root).parent, Path(objects.root)):  # only the last gets the mode
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe(objects)


def spark_at(session: Session, master: str | None, remote: str | None, conf: Sequence[str]) -> Where:
    """Where Spark runs: the flags before the settings."""
    from angelia.pipeline.session import Where

    settings = session.settings
    if master and remote:
        raise Usage("--master and --remote both say where Spark runs", hint="say one of them")
    if not (master or remote):
        master, remote = settings.spark_master, settings.spark_remote
    given = dict(map(_pair, conf))
    if session.shared.verbose and not remote:  # a Connect server has its own log
        given.setdefault("spark.log.level", "ERROR")
    return Where(master=master, remote=remote, conf=given, java_home=settings.java_home)


def check_archive_reach(session: Session, where: Where, objects: Objects) -> None:
    """A cluster must be able to reach the archive."""
    if not (where.embedded or objects.remote):
        session.out.note(f"warning: the archive is the directory {objects.root}; every worker must see it there")


def check_ledger_reach(settings: Settings, where: Where) -> None:
    """A cluster must be able to reach the ledger."""
    if settings.database_url is None and not where.embedded:
        raise Usage(
            f"{where} cannot reach the PostgreSQL of the data directory, which this machine alone sees",
            hint="set DATABASE_URL to a ledger that the cluster reaches, or leave out --master and --remote",
        )


@contextmanager
def private() -> Iterator[None]:
    """What is written is for its owner alone. Spark's processes on this machine have it from us, if they start now."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Usage(f"--conf {text} is no setting of Spark", hint="as in --conf spark.driver.memory=4g")
    return name, value


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=10)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unavailable(
            f"the ledger is not reachable: {error or type(error).__name__}", hint="`angelia doctor` tells why"
        ) from error
    try:
        yield connection
    finally:
        await connection.close()


async def _check_schema(url: str) -> None:
    from angelia.stores import migrations

    async with _connected(url) as connection:
        waiting = (await migrations.status(connection)).pending
    if waiting:
        raise StartFailed(
            f"the ledger's schema is older than this release: {len(waiting)} migrations wait",
            hint=f"start a server of this release, or run `angelia serve --schema {len(migrations.available())}`",
        )


async def _migrate(url: str) -> None:
    from angelia.stores import migrations

    async with _connected(url) as connection:
        await migrations.migrate(connection)
