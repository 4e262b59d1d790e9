"""`angelia doctor`: checks whether this machine and its stores can run a server. Changes nothing."""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
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
from angelia.queues import backlog as queue_backlog
from angelia.queues.backlog import QueueBacklog
from angelia.rooms import backlog as room_backlog
from angelia.rooms.model import ARCHIVE_WAIT, RoomBacklog
from angelia.runtime_file import Runtime, read_runtime
from angelia.settings import Loaded, Settings, mask_url
from angelia.stores import migrations
from angelia.stores.disk import RESERVE
from angelia.stores.embedded.binaries import OLDEST_POSTGRES, locate_postgres, locate_valkey, version_of
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.system_user import SystemUser

_OLDEST_VALKEY = 7
_GIB, _MIB = 1 << 30, 1 << 20
_CLOCK_WARNS, _CLOCK_FAILS = 1.0, 5.0
_CONNECT_SECONDS = 5
_ARCHIVE_WARNS = timedelta(days=2)
_ARCHIVE = "angelia pipeline run archive receipts"
_ARCHIVE_ROOMS = "angelia pipeline run archive rooms"
_ARCHIVE_QUEUES = "angelia pipeline run archive queues"


class Severity(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check."""

    name: str
    state: Severity
    detail: str
    hint: str = ""


class _Warned(AngeliaError):
    """A server runs, but its operator should do something"""


def diagnose(name: str, check: Callable[..., str], *facts: object) -> Diagnosis:
    """Runs a check: it returns what is in order and raises what is not. All errors but a warning are failures."""
    try:
        return Diagnosis(name, Severity.OK, check(*facts))
    except _Warned as error:
        return Diagnosis(name, Severity.WARN, error.message, error.hint)
    except AngeliaError as error:
        return Diagnosis(name, Severity.FAIL, error.message, error.hint)


async def examine(loaded: Loaded) -> list[Diagnosis]:
    """Runs all checks, in the order in which a server depends on their subjects."""
    settings = loaded.settings
    data_dir = DataDir(settings.data_dir)
    running = read_runtime(settings.data_dir)
    postgres, *ledger = await _ledger(settings, running)
    return [
        diagnose("python", _python),
        diagnose("cryptography", _cryptography),
        diagnose("data directory", _data_directory, data_dir, running),
        diagnose("disk", _disk, data_dir),
        diagnose("permissions", _permissions, data_dir),
        postgres,
        await _hot_tier(settings, running),
        *ledger,
        diagnose("node key", _key_file, data_dir.node_key, data_dir),
        diagnose("master key", _key_file, settings.master_key_file or data_dir.master_key, data_dir),
        await asyncio.to_thread(diagnose, "java", _java, settings),
    ]


def _python() -> str:
    present = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036
        raise StartFailed(f"{present} is too old", hint="install Python 3.11 or newer")
    return present


def _cryptography() -> str:
    crypto_support.require()
    return f"{version('cryptography')} with ML-KEM and ML-DSA"


def _data_directory(data_dir: DataDir, running: Runtime | None) -> str:
    path = data_dir.path
    try:
        status = path.stat()
    except FileNotFoundError:
        return f"{path}, made by the first start"
    except OSError as error:
        raise StartFailed(f"{path}: {error.strerror}", hint="name another with --data-dir") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StartFailed(f"{path} is not a directory", hint="name another with --data-dir")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        owner = SystemUser(status.st_uid, status.st_gid).name
        raise StartFailed(f"{path} belongs to {owner}", hint=f"ask as {owner}, or name another with --data-dir")
    server = f"used by the server at {running.url} (pid {running.pid})" if running else "no server runs"
    return f"{path}, {server}"


def _disk(data_dir: DataDir) -> str:
    candidates = (data_dir.postgres, data_dir.path, *data_dir.path.parents)
    place = next(place for place in candidates if os.access(place, os.F_OK))
    free = shutil.disk_usage(place).free
    left = f"{free / _MIB:.1f} MiB free in {place}"
    if free < RESERVE:
        raise StartFailed(
            f"full: {left}, and a server writes nothing below {RESERVE // _MIB} MiB",
            hint="make room there; the server goes on by itself",
        )
    if free < 100 * _MIB:
        raise StartFailed(left, hint="free some space, or move the data directory")
    if free < _GIB:
        raise _Warned(left, hint="a server wants 1 GiB or more")
    return f"{free / _GIB:.0f} GiB free in {place}"


def _permissions(data_dir: DataDir) -> str:
    secrets = (
        data_dir.admin_token,
        data_dir.node_key,
        data_dir.runtime_file,
        data_dir.postgres_password,
        data_dir.valkey_password,
        data_dir.valkey / "valkey.conf",
    )
    # When root runs the server, the user of the stores passes through the directory to its own, by its group.
    open_paths = [path for path in (data_dir.path,) if _is_open(path, 0o067)]
    open_paths += [path for path in secrets if _is_open(path)]
    if open_paths:
        shown = ", ".join(map(str, open_paths))
        raise StartFailed(f"open to others: {shown}", hint=f"chmod go-rwx {shown.replace(',', '')}")
    return "only their owner can read the data directory and its secrets"


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
            diagnose("postgres", _own_postgres, settings),
            Diagnosis("migrations", Severity.OK, f"{waits}; a start brings the schema up to date"),
            Diagnosis("clock", Severity.OK, waits),
            await asyncio.to_thread(diagnose, "archive", _archive, settings, waits),
            Diagnosis("room archive", Severity.OK, waits),
            Diagnosis("queue archive", Severity.OK, waits),
        ]
    try:
        async with _connected(url) as connection:
            product = str(await connection.fetchval("SHOW server_version")).split()[0]
            superuser = await connection.fetchval("SHOW is_superuser") == "on"
            return [
                diagnose("postgres", judge_postgres, product, mask_url(url), superuser),
                diagnose("migrations", _migrations, await migrations.status(connection)),
                diagnose("clock", judge_clock, await _seconds_ahead(connection)),
                await _receipts(connection, settings),
                await _rooms(connection),
                await _queues(connection),
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


def _own_postgres(settings: Settings) -> str:
    program = locate_postgres(settings.postgres_bin) / "postgres"
    return judge_postgres(_own_version(program, "set ANGELIA_POSTGRES_BIN or DATABASE_URL"), "our own, not running")


def _own_valkey() -> str:
    return f"{_own_version(locate_valkey() / 'valkey-server', 'set REDIS_URL')}, our own, not running"


def _own_version(program: Path, otherwise: str) -> str:
    try:
        return version_of(program, SystemUser.ourselves())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartFailed(str(error), hint=otherwise) from error


def judge_postgres(version: str, where: str, superuser: bool = False) -> str:
    found = f"{version}, {where}"
    if int(version.split(".")[0]) < OLDEST_POSTGRES:
        raise StartFailed(found, hint=f"Angelia needs PostgreSQL {OLDEST_POSTGRES} or newer")
    if superuser:
        raise _Warned(
            f"{found}: its role is a superuser",
            hint="let DATABASE_URL name a role that owns the database and is no superuser: "
            "SQL then ends at the database",
        )
    return found


def _migrations(status: migrations.SchemaStatus) -> str:
    if status.drift:
        raise StartFailed("; ".join(status.drift), hint="restore the schema that the migrations made")
    if status.pending:
        waiting = ", ".join(status.pending[:3])
        raise _Warned(
            f"{len(status.pending)} of {status.available} wait: {waiting}",
            hint="the next start of a server applies them",
        )
    return f"version {status.applied} of {status.available}"


async def _seconds_ahead(connection: asyncpg.Connection) -> float:
    before = time.time()
    theirs = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
    return theirs - (before + time.time()) / 2


def judge_clock(ahead: float) -> str:
    """`ahead`: how many seconds PostgreSQL's clock is ahead of ours."""
    detail = f"PostgreSQL is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
    if abs(ahead) >= _CLOCK_FAILS:
        raise StartFailed(detail, hint="set both clocks; a server refuses to start like this")
    if abs(ahead) >= _CLOCK_WARNS:
        raise _Warned(detail, hint="run a time service; the server refuses to start at 5 s")
    return f"PostgreSQL is within {max(abs(ahead), 0.001) * 1000:.0f} ms"


async def _receipts(connection: asyncpg.Connection, settings: Settings) -> Diagnosis:
    if await connection.fetchval("SELECT to_regclass('delivery_receipts')") is None:
        return Diagnosis("archive", Severity.OK, "the ledger has no receipts yet")
    try:
        found = await receipts.waiting(connection, datetime.now(UTC), settings.max_ttl_seconds)
    except TimeoutError:
        return Diagnosis("archive", Severity.WARN, "more receipts wait than can be counted quickly", _ARCHIVE)
    refused = await asyncio.to_thread(diagnose, "archive", _archive, settings, "")
    return refused if refused.state is Severity.WARN else diagnose("archive", judge_archive, found)


async def _rooms(connection: asyncpg.Connection) -> Diagnosis:
    if await connection.fetchval("SELECT to_regclass('room_entries')") is None:
        return Diagnosis("room archive", Severity.OK, "the ledger has no rooms yet")
    try:
        found = await room_backlog.waiting(connection, datetime.now(UTC))
    except TimeoutError:
        detail = "more messages of rooms wait than can be counted quickly"
        return Diagnosis("room archive", Severity.WARN, detail, _ARCHIVE_ROOMS)
    return diagnose("room archive", judge_room_archive, found)


async def _queues(connection: asyncpg.Connection) -> Diagnosis:
    if await connection.fetchval("SELECT to_regclass('queue_hidden')") is None:
        return Diagnosis("queue archive", Severity.OK, "the ledger has no queues yet")
    try:
        found = await queue_backlog.waiting(connection, datetime.now(UTC))
    except TimeoutError:
        detail = "more messages of queues wait than can be counted quickly"
        return Diagnosis("queue archive", Severity.WARN, detail, _ARCHIVE_QUEUES)
    return diagnose("queue archive", judge_queue_archive, found)


def judge_room_archive(waiting: RoomBacklog) -> str:
    return _judge_messages(waiting, "rooms", _ARCHIVE_ROOMS)


def judge_queue_archive(waiting: QueueBacklog) -> str:
    return _judge_messages(waiting, "queues", _ARCHIVE_QUEUES)


def _judge_messages(waiting: RoomBacklog | QueueBacklog, whose: str, command: str) -> str:
    """The next daily run takes messages that expired since yesterday. After a week the server removes them."""
    if not waiting.rows or waiting.late is None:
        return f"no messages of {whose} wait"
    detail = f"{waiting.rows:,} messages of {whose} wait, the oldest is {waiting.late.days}d late"
    if waiting.late > _ARCHIVE_WARNS:
        lost = f"{detail}; after {ARCHIVE_WAIT.days}d they are removed without being archived"
        raise _Warned(lost, hint=command)
    return detail


def _archive(settings: Settings, otherwise: str) -> str:
    """Checks whether the archive takes receipts at all."""
    if importlib.util.find_spec("deltalake") is None:
        return otherwise
    from deltalake.exceptions import DeltaError

    from angelia.pipeline.lake import archive_locations, simulated
    from angelia.pipeline.lake.write_probe import check_answers

    try:
        objects = archive_locations.own(settings)
        check_answers(objects)
        simulated.only_real(objects, settings, "archive receipts")
        simulated.only_one_kind(objects, settings, *simulated.mixed(objects))
    except AngeliaError as error:
        raise _Warned(error.message, hint=error.hint) from error
    except (DeltaError, OSError) as error:
        raise _Warned(f"the archive cannot be read: {error}", hint="ask as the user who runs it") from error
    return otherwise


def judge_archive(waiting: ReceiptBacklog) -> str:
    """Receipts that were closed since yesterday are no reason to warn: the next daily run takes them."""
    if not waiting.rows or waiting.late is None:
        return "no receipts wait"
    detail = f"{waiting.rows:,} receipts wait, the oldest is {waiting.late.days}d late"
    if waiting.late > _ARCHIVE_WARNS:
        raise _Warned(detail, hint=_ARCHIVE)
    return detail


async def _hot_tier(settings: Settings, running: Runtime | None) -> Diagnosis:
    url = settings.redis_url or (running.redis_url if running else None)
    if url is None:
        return diagnose("valkey", _own_valkey)
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
    return diagnose("valkey", _valkey, info, mask_url(url), doubts)


def _valkey(info: Mapping[str, object], where: str, doubts: list[str]) -> str:
    compatible = str(info.get("redis_version", "0"))
    product = f"{info.get('server_name', 'redis')} {info.get('valkey_version', compatible)}, {where}"
    if int(compatible.split(".")[0]) < _OLDEST_VALKEY:
        raise StartFailed(product, hint=f"Angelia needs Redis {_OLDEST_VALKEY} or newer, or Valkey")
    if doubts:
        raise _Warned(f"{product}: {'; '.join(doubts)}", hint="set maxmemory-policy noeviction, appendonly yes")
    return product


async def _doubts(client: redis.asyncio.Redis) -> list[str]:
    """Settings with which the operator's own server may lose data. A managed server may not tell them."""
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


def _store_hint(given: str | None, variable: str) -> str:
    return f"check {variable} and whether that server runs" if given else "the running server starts it again by itself"


def _key_file(path: Path, data_dir: DataDir) -> str:
    try:
        status = path.lstat()
    except FileNotFoundError:
        if data_dir.admin_token.exists():
            detail = f"{path} is missing, and this data directory had one"
            raise _Warned(detail, hint="restore it from a back-up before the next start") from None
        return "made by the first start"
    except OSError as error:
        raise StartFailed(f"{path}: {error.strerror}", hint="ask as the user who runs the server") from error
    if not stat.S_ISREG(status.st_mode) or status.st_size != 32:
        raise StartFailed(f"{path} is damaged: it must hold 32 bytes", hint="restore it from a back-up")
    if status.st_mode & 0o077:
        raise StartFailed(f"{path} is open to others", hint=f"chmod 600 {path}")
    return str(path)


def _java(settings: Settings) -> str:
    from angelia.pipeline.java import look_for_java

    try:
        found = look_for_java(settings.java_home)
    except StartFailed as error:
        only = "" if importlib.util.find_spec("pyspark") else "only the pipeline needs it: "
        raise _Warned(error.message, hint=f"{only}{error.hint}") from error
    return f"{found.version}, {found.home}, by {found.origin}"
