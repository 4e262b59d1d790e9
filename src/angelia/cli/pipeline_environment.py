"""What a command of the pipeline works with: which ledger, which archive and which Spark, and how their errors read."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from angelia.cli.command_context import CommandContext
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


class NotInstalled(AngeliaError, code="not_installed"):
    """The pipeline is not installed"""


class JobFailed(AngeliaError, code="job_failed"):
    """The job failed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFlags:
    """The flags that name the archive and the Spark of a command."""

    lake: str | None = None
    simulated: bool = False
    master: str | None = None
    remote: str | None = None
    conf: Sequence[str] = ()

    def archive(self, settings: Settings) -> Objects:
        """The archive: --lake, the setting or the data directory's; with --simulated, the one beside it."""
        from angelia.pipeline.lake import archive_locations

        if self.lake and self.simulated:
            raise Usage("--lake and --simulated both name the archive", hint="say one of them")
        if self.lake:
            return archive_locations.named(self.lake)
        return archive_locations.simulated(settings) if self.simulated else archive_locations.own(settings)

    def spark(self, session: CommandContext) -> Where:
        """Where Spark runs; these flags take precedence over the settings."""
        from angelia.pipeline.session import Where

        settings, master, remote = session.settings, self.master, self.remote
        if master and remote:
            raise Usage("--master and --remote both say where Spark runs", hint="say one of them")
        if not (master or remote):
            master, remote = settings.spark_master, settings.spark_remote
        given = dict(map(_pair, self.conf))
        if session.shared.verbose and not remote:  # a Connect server has its own log
            given.setdefault("spark.log.level", "ERROR")
        return Where(master=master, remote=remote, conf=given, java_home=settings.java_home)


def require_pipeline() -> None:
    """Raises NotInstalled where a package is missing that only the pipeline needs."""
    from angelia.pipeline import install_hint

    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"the pipeline is not installed: {', '.join(missing)} is missing", hint=install_hint.command()
        )


@contextmanager
def errors_in_one_sentence(session: CommandContext, hint: str) -> Iterator[None]:
    """Raises errors of Spark, of the ledger's driver and of the archive's store as an AngeliaError; -v prints where
    they happened. An AngeliaError that one of Spark's processes raised is raised again as what it was."""
    from adbc_driver_manager import Error as LedgerError
    from deltalake.exceptions import DeltaError
    from py4j.protocol import Py4JError
    from pyarrow.lib import ArrowException
    from pyspark.errors import PySparkException

    from angelia.pipeline.spark_errors import raised_by_us, telling

    try:
        yield
    except (LedgerError, DeltaError, Py4JError, PySparkException, ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the operating system, reported as such
            raise
        for line in traceback.format_exc().splitlines():
            session.out.detail(line)
        ours = raised_by_us(error) or JobFailed(telling(error))
        ours.hint = hint
        raise ours from error


@contextmanager
def ledger(settings: Settings) -> Iterator[str]:
    """The URL of the ledger: that of the settings, the running server's, or one that is started for this block."""
    from angelia.runtime_file import read_runtime
    from angelia.stores import migrations
    from angelia.stores.embedded import ledger_alone

    running = read_runtime(settings.data_dir)
    url = settings.database_url or (running.database_url if running else None)
    if url is None:
        with ledger_alone(settings) as own:
            asyncio.run(_on_connection(own, migrations.migrate))
            yield own
        return
    if waiting := asyncio.run(_on_connection(url, migrations.status)).pending:
        raise StartFailed(
            f"the ledger's schema is older than this release: {len(waiting)} migrations wait",
            hint=f"start a server of this release, or run `angelia serve --schema {len(migrations.available())}`",
        )
    yield url


def with_hot_tier(settings: Settings) -> Settings:
    """The settings with the running server's own hot tier where none is named; analytics measures its memory."""
    from angelia.runtime_file import read_runtime

    running = read_runtime(settings.data_dir)
    if settings.redis_url is not None or running is None:
        return settings
    return replace(settings, redis_url=running.redis_url)


@contextmanager
def ledger_if_any(settings: Settings) -> Iterator[str | None]:
    """The URL of the ledger; None while there is none: a command that only reads must not create one."""
    from angelia.stores.embedded.datadir import DataDir

    if settings.database_url is None and not DataDir(settings.data_dir).postgres.exists():
        yield None
    else:
        with ledger(settings) as url:
            yield url


def ask(url: str, question: Callable[[Ledger], Awaitable[T]]) -> T:
    """Opens the ledger for one question, and returns the answer."""

    async def asked() -> T:
        from angelia.stores.ledger import Ledger

        opened = await Ledger.open(url, 2)
        try:
            return await question(opened)
        finally:
            await opened.close()

    return asyncio.run(asked())


def require_simulated(objects: Objects) -> None:
    """Raises NotFound while nothing has been simulated."""
    from angelia.pipeline.lake.commit import is_simulated

    if not is_simulated(objects):
        raise NotFound(
            f"there is no simulated archive at {objects.root} yet", hint="angelia pipeline run simulate --months 3"
        )


def make_archive(objects: Objects) -> None:
    """Makes the archive's directory, or checks that its bucket keeps two writers from overwriting each other."""
    from angelia.pipeline.lake.write_probe import probe

    if not objects.remote:
        for path in (Path(objects.root).parent, Path(objects.root)):  # only the last gets the mode
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe(objects)


def check_archive_reach(session: CommandContext, where: Where, objects: Objects) -> None:
    """Warns if a cluster works on an archive that is a directory of this machine."""
    if not (where.embedded or objects.remote):
        session.out.note(f"warning: the archive is the directory {objects.root}; every worker must see it there")


def check_ledger_reach(settings: Settings, where: Where) -> None:
    """Refuses to run on a cluster with a ledger that only this machine reaches."""
    if settings.database_url is None and not where.embedded:
        raise Usage(
            f"{where} cannot reach the PostgreSQL of the data directory, which this machine alone sees",
            hint="set DATABASE_URL to a ledger that the cluster reaches, or leave out --master and --remote",
        )


@contextmanager
def private() -> Iterator[None]:
    """Files made in this block are for their owner alone; Spark's processes inherit that if they start in it."""
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


async def _on_connection(url: str, act: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=10)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unavailable(
            f"the ledger is not reachable: {error or type(error).__name__}", hint="`angelia doctor` tells why"
        ) from error
    try:
        return await act(connection)
    finally:
        await connection.close()
