"""The ledger: PostgreSQL behind one pool. A caller opens a transaction and hands it on; faults are wrapped here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import asyncpg
import msgspec

from angelia.errors import InvalidArgument, Unavailable
from angelia.stores.disk import Disk

Row = Mapping[str, Any]

# What PostgreSQL and its driver raise when the server is away, starting or stopping. Nothing about the statement.
GONE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that broke in the middle of something
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidCachedStatementError,  # the schema changed under a running server; the next try is right
)
# What PostgreSQL or its driver raises for a value that no column can hold: somebody sent it, no statement is wrong.
_UNSTORABLE = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
    asyncpg.DatetimeFieldOverflowError,
    asyncpg.NumericValueOutOfRangeError,
)
StatementError = asyncpg.PostgresError
UniqueViolation = asyncpg.UniqueViolationError


class Tx(Protocol):
    """One open transaction, or a place to read from; every store function takes it first."""

    async def fetch(self, query: str, *args: object) -> Sequence[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    async def fetchval(self, query: str, *args: object) -> Any: ...
    async def execute(self, query: str, *args: object) -> str: ...


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A transaction leaves nothing behind in its connection, so giving one back costs no round trip."""

    def get_reset_query(self) -> str:
        return ""


class Ledger:
    """A pool of connections to the one database that decides what exists."""

    def __init__(self, pool: asyncpg.Pool, disk: Disk) -> None:
        self._pool = pool
        self.disk = disk

    @classmethod
    async def open(cls, url: str, connections: int = 10, disk: Disk | None = None) -> Ledger:
        """Make the pool; it connects when first used, so a database that is away is no reason to fail here."""
        pool = await asyncpg.create_pool(
            url,
            min_size=0,
            max_size=connections,
            timeout=5,
            command_timeout=15,
            init=_prepare,
            connection_class=_Connection,
        )
        return cls(pool, disk or Disk())

    async def close(self) -> None:
        try:
            await self._pool.close()
        except GONE:
            self._pool.terminate()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """One ledger transaction: committed when the block ends, rolled back when it raises.

        While its disk is nearly full there is none, so that the ledger lives and can be read."""
        self.disk.check()
        with self._wrapped():
            async with self._pool.acquire(timeout=5) as connection, connection.transaction():
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Tx]:
        """Statements that only read. Each sees what is committed when it begins, as it would in a transaction, which
        costs two round trips more."""
        with self._wrapped():
            async with self._pool.acquire(timeout=5) as connection:
                yield connection

    async def ping(self) -> None:
        async with self.reading() as tx:
            await tx.fetchval("SELECT 1")

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        try:
            yield
        except GONE as error:
            if isinstance(error, asyncpg.DiskFullError):
                self.disk.found_full()
            if self.disk.full:  # also one that is away: it may have ended for want of room, and starts only with some
                raise self.disk.refusal() from error
            raise Unavailable(
                "the ledger is not reachable at the moment",
                hint="try again; it restarts by itself",
                retry_after=1,
            ) from error
        except asyncpg.DataError as error:
            # The driver's own refusal of an argument is a bare DataError; its subclasses come from the server.
            if type(error) is not asyncpg.DataError and not isinstance(error, _UNSTORABLE):
                raise
            raise InvalidArgument(
                "a value cannot be stored",
                hint="text must be without NUL characters, numbers and dates within their range",
            ) from error


async def _prepare(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: msgspec.json.encode(value).decode(),
        decoder=msgspec.json.decode,
    )
