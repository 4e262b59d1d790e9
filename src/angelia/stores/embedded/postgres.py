"""Our own PostgreSQL: a cluster in the data directory, durable, reachable by a Unix socket only."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import sys
from urllib.parse import quote

import asyncpg

from angelia.errors import StartFailed
from angelia.runtime_file import is_taken
from angelia.stores.disk import Disk
from angelia.stores.embedded.binaries import Programs
from angelia.stores.embedded.datadir import POSTGRES_SOCKET, DataDir
from angelia.stores.embedded.orphans import Trace
from angelia.stores.embedded.process import Program, Steps, end, start
from angelia.stores.private_files import make_private_directory, open_log, sync_directory, write_private
from angelia.stores.sql import statements

SQL = statements(__file__, "roles.sql")
_USER = "angelia"
_DATABASE = "angelia"
_INITDB_SECONDS = 600.0


class Postgres:
    """The ledger's server process."""

    name = "PostgreSQL"
    log_name = "postgres.log"
    # A postmaster that is shutting down still holds its lock file; a busy backend of a killed postmaster holds its
    # shared memory until it notices.
    passing_troubles: tuple[str, ...] = (
        'lock file "postmaster.pid" already exists',
        "pre-existing shared memory block",
    )
    stop_steps: Steps = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))

    def __init__(self, data_dir: DataDir, programs: Programs, connections: int) -> None:
        self.programs = programs
        self._data_dir = data_dir
        self._connections = connections
        self.trace = Trace(data_dir.postgres / "postmaster.pid", executable="postgres", title=str(data_dir.postgres))

    @property
    def url(self) -> str:
        return self._url(_DATABASE)

    def prepare(self) -> None:
        """Makes the database cluster on first use; refuses one of another major version."""
        self._data_dir.owner.require_name()
        for unfinished in self._data_dir.path.glob("postgres.new-*"):
            shutil.rmtree(unfinished)
        if not self._data_dir.postgres.exists():
            self._initdb()
        self._check_cluster()

    def program(self) -> Program:
        """The command of one start. Removes what an earlier start left behind."""
        self._clear_stale_locks()
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._data_dir.sockets),
            "unix_socket_permissions": "0700",
            "max_connections": str(self._connections),
            # Pages take memory once they are used. With PostgreSQL's 128 MB, pushes to a queue that got ten million
            # messages in a day have 0.62 of the rate of those to a fresh one: the index of their ids does not fit.
            "shared_buffers": "512MB",
            "max_locks_per_transaction": "256",  # a push to 500 partitions holds a lock of each
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "logging_collector": "on",
            "log_directory": str(self._data_dir.logs),
            # One file for each day of the week, overwritten a week later.
            "log_filename": "postgres-%a.log",
            "log_rotation_age": "1d",
            "log_rotation_size": "0",
            "log_truncate_on_rotation": "on",
            "log_file_mode": "0600",
            "log_line_prefix": "%m [%p] ",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }
        if _reports_syncfs_errors():
            # Before recovery PostgreSQL syncs all files: one by one that took up to ten times as long.
            settings["recovery_init_sync_method"] = "syncfs"
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        program = self.programs.directory / "postgres"
        where = ("-D", str(self._data_dir.postgres), "-p", "5432")
        return Program.of_store(self._data_dir.owner, signal.SIGINT, program, *where, *options)

    def is_ready(self) -> bool:
        """Whether a connection works. The first one makes our database and its owner."""
        try:
            return asyncio.run(self._connects())
        except asyncpg.DiskFullError as error:
            directory, said = self._data_dir.postgres, str(error).partition("\n")[0]
            raise StartFailed(
                f"PostgreSQL has no room in {directory}, with {Disk(directory).shown} left: {said}",
                hint="make room there, or name another directory with --data-dir",
            ) from error

    def after_death(self, said: str, *, killed: bool) -> str | None:
        """Repairs nothing: why PostgreSQL did not start is for the operator to see."""
        return None

    async def _connects(self) -> bool:
        try:
            connection = await asyncpg.connect(self.url, timeout=5)
        except asyncpg.InvalidCatalogNameError:
            await self._create_database()
            return False
        except asyncpg.InvalidPasswordError as error:
            raise StartFailed(
                f"PostgreSQL does not accept the password in {self._data_dir.postgres_password}",
                hint="restore that file and the postgres directory beside it from the same back-up",
            ) from error
        except (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.PostgresConnectionError):
            return False
        try:
            if await connection.fetchval(SQL["is_superuser"]):
                async with connection.transaction():
                    await connection.execute(SQL["rename_superuser"])
                    await connection.execute(SQL["make_owner"])
        except asyncpg.PostgresError as error:
            raise StartFailed(
                f"the ledger's database cannot be handed to a role of its own: {error}",
                hint="nothing was changed; the log of PostgreSQL tells more",
            ) from error
        finally:
            await connection.close()
        return True

    async def _create_database(self) -> None:
        try:
            connection = await asyncpg.connect(self._url("postgres"), timeout=30)
        except asyncpg.InsufficientPrivilegeError as error:
            # The role that owns our database may not connect to another one.
            raise StartFailed(
                f"the database {_DATABASE} is not in {self._data_dir.postgres}", hint="restore it from a back-up"
            ) from error
        try:
            await connection.execute(f"CREATE DATABASE {_DATABASE}")
        finally:
            await connection.close()

    def _url(self, database: str) -> str:
        password = self._data_dir.secret(self._data_dir.postgres_password)
        return f"postgresql://{_USER}:{password}@/{database}?host={quote(str(self._data_dir.sockets))}"

    def _initdb(self) -> None:
        # Under another name until it is complete, and a new name each time: an initdb that outlives a killed server
        # can then neither be taken for a cluster nor disturb the next one.
        fresh = self._data_dir.path / f"postgres.new-{secrets.token_hex(4)}"
        make_private_directory(fresh, self._data_dir.owner)
        password_file = self._data_dir.sockets / "initdb.password"
        password = self._data_dir.secret(self._data_dir.postgres_password)
        write_private(password_file, password.encode(), self._data_dir.owner)
        options = ("--auth=scram-sha-256", f"--pwfile={password_file}", f"--username={_USER}")
        form = ("--encoding=UTF8", "--data-checksums", "--no-instructions", *self._locale())
        log = open_log(self._data_dir.logs, "initdb.log", self._data_dir.owner)
        try:
            initdb = self.programs.directory / "initdb"
            program = Program.of_store(self._data_dir.owner, signal.SIGTERM, initdb, "-D", fresh, *options, *form)
            child = start(program, log=log)
            try:
                child.wait(_INITDB_SECONDS)
            finally:
                if child.exit_code is None:
                    end(child, ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)))
        finally:
            os.close(log)
            password_file.unlink(missing_ok=True)
        if child.exit_code != 0:
            raise StartFailed(
                "PostgreSQL could not make its database (initdb failed)",
                hint=self._data_dir.last_lines("initdb"),
            )
        fresh.rename(self._data_dir.postgres)
        sync_directory(self._data_dir.path)

    def _locale(self) -> tuple[str, ...]:
        # The builtin provider sorts the same everywhere; with libc, an update may change the order.
        if self.programs.major >= 17:
            return ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        return ("--locale=C.UTF-8" if sys.platform == "linux" else "--locale=C",)

    def _check_cluster(self) -> None:
        directory = self._data_dir.postgres
        try:
            found = (directory / "PG_VERSION").read_text("ascii").strip()
            uid = directory.stat().st_uid
        except OSError as error:
            raise StartFailed(
                f"{directory} cannot be read: {error.strerror}", hint="restore it from a back-up"
            ) from error
        if found != str(self.programs.major):
            raise StartFailed(
                f"{directory} was made by PostgreSQL {found}, and our programs are {self.programs.version}",
                hint=f"set ANGELIA_POSTGRES_BIN to the programs of PostgreSQL {found}, or dump and restore",
            )
        owner = self._data_dir.owner
        if uid != owner.uid:
            raise StartFailed(
                f"{directory} does not belong to {owner.name}, who runs the stores",
                hint=f"chown -R {owner.uid}:{owner.gid} '{directory}'",
            )
        if not self._data_dir.postgres_password.exists():
            raise StartFailed(
                f"{self._data_dir.postgres_password} is missing, and PostgreSQL's data is closed without it",
                hint="restore it from the back-up of this data directory",
            )

    def _clear_stale_locks(self) -> None:
        # We hold the lock of the directory and no postmaster of ours runs, so these are left from a crash.
        for name in (POSTGRES_SOCKET, f"{POSTGRES_SOCKET}.lock"):
            (self._data_dir.sockets / name).unlink(missing_ok=True)
        pid = self.trace.pid()
        if pid is None or not is_taken(pid) or self.trace.orphan() is not None:
            return
        # Another program has that pid now, or a zombie, and PostgreSQL would take it for a running postmaster. It knows
        # that its parent's pid, ours, is stale; with the rest of the file it still looks for backends of the old one.
        rest = self.trace.pid_file.read_bytes().split(b"\n", 1)[1:]
        write_private(self.trace.pid_file, b"\n".join([str(os.getpid()).encode(), *rest]), self._data_dir.owner)


def _reports_syncfs_errors() -> bool:
    """Whether syncfs reports write errors: on Linux 5.8 and later."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return sys.platform == "linux" and found is not None and (int(found[1]), int(found[2])) >= (5, 8)
