"""The mailbox's SQLite database: private files, one long-lived connection per thread, one way to write.

Statements are named blocks of `statements.sql`; tables are in `schema.sql` and the numbered scripts after it.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from angelia.errors import AngeliaError, DiskFull, Unavailable
from angelia.mailbox import private_files
from angelia.mailbox.private_files import UnsafeFile

FILE = "replay_state.db"
# A new mailbox runs all of them in turn, an older one those that it lacks.
_SCHEMAS = ("schema.sql", *(f"schema_{number}.sql" for number in range(2, 9)))
SCHEMA = len(_SCHEMAS)
BUSY_MS = 5_000
# SQLite polls a taken lock ever more seldom, so the longest waiter would be served last; a new try polls often again.
_TRIES = 4
_PRAGMAS = (
    f"busy_timeout={BUSY_MS}",
    "journal_mode=WAL",
    "foreign_keys=ON",
    "synchronous=FULL",
    "trusted_schema=OFF",
    "secure_delete=ON",
)
_BLOCK = re.compile(r"^-- (name|columns): (\w+)\n(.*?)(?=^-- (?:name|columns): |\Z)", re.MULTILINE | re.DOTALL)
_BESIDE = Path(__file__).parent

T = TypeVar("T")


def _statements_by_name(script: str) -> dict[str, str]:
    blocks = [(found[1], found[2], found[3].strip()) for found in _BLOCK.finditer(script)]
    columns = {name: text for kind, name, text in blocks if kind == "columns"}
    return {name: text.format_map(columns) for kind, name, text in blocks if kind == "name"}


SQL = {
    name: text
    for script in ("statements.sql", "log_statements.sql")
    for name, text in _statements_by_name((_BESIDE / script).read_text("utf-8")).items()
}
_DESTROYS = frozenset(statement for statement in SQL.values() if statement.startswith("-- destroys\n"))


class NamedStatements(ABC):
    """Reads with the statements of `statements.sql`, by their names: in a transaction, or outside of one.

    UUIDs and times are bound as text, the way the tables have them."""

    @abstractmethod
    def rows(self, name: str, *values: object) -> list[Any]:
        """Returns all rows of a statement."""

    def row(self, name: str, *values: object) -> Any:
        """Returns the first row, or None."""
        found = self.rows(name, *values)
        return found[0] if found else None

    def records(self, kind: type[T], name: str, *values: object) -> list[T]:
        """Returns the rows as records of a dataclass, whose fields are in the order of the columns."""
        members = [one.name for one in fields(kind)]  # type: ignore[arg-type]
        rows = (dict(zip(members, row, strict=True)) for row in self.rows(name, *values))
        return [msgspec.convert(row, kind, strict=False) for row in rows]

    def record(self, kind: type[T], name: str, *values: object) -> T | None:
        """Returns the first row as a record, or None."""
        found = self.records(kind, name, *values)
        return found[0] if found else None

    def meta(self, name: str) -> str | None:
        """Returns a value of the table `meta`."""
        found = self.row("read_meta", name)
        return None if found is None else str(found[0])


class MailboxTx(sqlite3.Connection, NamedStatements):
    """A connection inside `MailboxDatabase.transaction`. It notes when the write-ahead log holds destroyed secrets."""

    log_holds_secrets = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql in _DESTROYS:
            self.log_holds_secrets = True
        return super().execute(sql, [_bound(value) for value in parameters])

    def rows(self, name: str, *values: object) -> list[Any]:
        return self.execute(SQL[name], values).fetchall()

    write = rows  # the name for a statement that changes something

    def empty_log(self) -> None:
        """Checkpoints the write-ahead log and truncates it.

        While another process reads, SQLite cannot; then the end of the next transaction tries again.
        """
        with suppress(sqlite3.OperationalError):  # the transaction is durable even if this fails
            (busy, _, _) = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self.log_holds_secrets = bool(busy)


class BrokenDatabase(AngeliaError, code="corrupt_record"):
    """The mailbox's database is damaged"""


class NewerDatabase(AngeliaError, code="conflict"):
    """The mailbox was written by a newer Angelia"""


def stamp(at: datetime) -> str:
    """Returns a time as the tables have it: UTC, and always of the same width."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def unstamp(text: str) -> datetime:
    return datetime.fromisoformat(text)


class _Opened(NamedTuple):
    process: int
    thread: threading.Thread
    connection: MailboxTx


class MailboxDatabase(NamedStatements):
    """The file `replay_state.db` of one mailbox directory, or another file with other tables."""

    def __init__(self, directory: Path, file: str = FILE, schemas: Sequence[str] = _SCHEMAS) -> None:
        self._path = directory / file
        self._schemas = schemas
        self._own = threading.local()
        self._guard = threading.Lock()
        self._opened: list[_Opened] = []
        private_files.check_directory(directory)
        with private_files.opened_directory(directory) as descriptor:
            # Of processes that open a new mailbox together one makes the tables; switching to WAL waits for no lock.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._make_file(descriptor)
            with self.transaction() as tx:
                tx.log_holds_secrets = True  # a killed process may have left some
                self._prepare(tx)

    def rows(self, name: str, *values: object) -> list[Any]:
        """Returns the rows of a named statement that only reads."""
        with wrapped():
            return self._connection.rows(name, *values)

    def write(self, name: str, *values: object) -> list[Any]:
        """Runs a named statement in a transaction of its own; returns its rows."""
        with self.transaction() as tx:
            return tx.write(name, *values)

    @contextmanager
    def transaction(self) -> Iterator[MailboxTx]:
        """One transaction that holds the write lock from its beginning; at its end all of it is durable, or nothing."""
        with wrapped():
            connection = self._connection
            _begin(connection)
            try:
                yield connection
                self._commit(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if connection.log_holds_secrets:
                connection.empty_log()

    def close(self) -> None:
        with self._guard:
            for opened in self._opened:
                if opened.process == os.getpid():
                    opened.connection.close()
            self._opened.clear()
        self._own = threading.local()

    @property
    def _connection(self) -> MailboxTx:
        """This thread's connection. After a fork the child opens its own and leaves the parent's alone."""
        opened: _Opened | None = getattr(self._own, "opened", None)
        if opened is None or opened.process != os.getpid():
            opened = self._own.opened = self._connect()
        return opened.connection

    def _commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def _make_file(self, directory: int) -> None:
        file = self._path.name
        for name in (file, f"{file}-wal", f"{file}-shm"):
            _refuse_unsafe(directory, name, self._path.with_name(name))
        if not private_files.exists(directory, file):
            # SQLite creates its -wal and -shm files with the mode of this one.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with private_files.writing(self._path):
                os.close(os.open(file, flags, private_files.FILE_MODE, dir_fd=directory))
                os.fsync(directory)

    def _prepare(self, tx: MailboxTx) -> None:
        (version,) = tx.execute("PRAGMA user_version").fetchone()
        newest = len(self._schemas)
        if version > newest:
            raise NewerDatabase(
                f"{self._path} has version {version}, this Angelia reads version {newest}", hint="update Angelia"
            )
        for script in self._schemas[version:]:
            for statement in _statements((_BESIDE / script).read_text("utf-8")):
                tx.execute(statement)
        tx.execute(f"PRAGMA user_version = {newest}")

    def _connect(self) -> _Opened:
        address = self._path.absolute().as_uri() + "?mode=rw"
        connection = sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False, factory=MailboxTx
        )
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        opened = _Opened(os.getpid(), threading.current_thread(), connection)
        with self._guard:
            ended = [one for one in self._opened if one.process == opened.process and not one.thread.is_alive()]
            for one in ended:
                one.connection.close()
            self._opened = [one for one in self._opened if one not in ended] + [opened]
        return opened


@contextmanager
def wrapped() -> Iterator[None]:
    """Turns SQLite's errors into Angelia's."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if _busy(error):
            raise Unavailable("another process is busy with this mailbox", hint="try again in a moment") from error
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
            raise DiskFull(
                "the disk of the mailbox's database is full", hint="make room on it, then try again"
            ) from error
        raise Unavailable(f"the mailbox's database cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise BrokenDatabase(
            f"the mailbox's database is damaged: {error}", hint="put it back from a back-up"
        ) from error


def ago(since: datetime, now: datetime) -> str:
    """Returns an age for display: 4s, 12m, 3h, 5d."""
    seconds = max(0, (now - since) // timedelta(seconds=1))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _bound(value: object) -> object:
    if isinstance(value, datetime):
        return stamp(value)
    return str(value) if isinstance(value, UUID) else value


def _begin(connection: sqlite3.Connection) -> None:
    for _ in range(_TRIES - 1):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not _busy(error):
                raise
        else:
            return
    connection.execute("BEGIN IMMEDIATE")


def _busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script one by one: `executescript` would commit the transaction that it runs in."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _refuse_unsafe(directory: int, name: str, shown: Path) -> None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFile(f"{shown} is a symlink or not a regular file, and is not used")
    if status.st_nlink > 1:
        raise UnsafeFile(f"{shown} has another name elsewhere (a hard link), by which it could be read and changed")
    private_files.refuse_shared(shown, status, hint=f"chmod 600 {shown}")
