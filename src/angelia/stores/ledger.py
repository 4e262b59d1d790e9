"""The ledger: PostgreSQL behind one pool. Services open transactions and pass them to stores; driver errors are wrapped
here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import asyncpg
import msgspec

from angelia.errors import InvalidArgument, Unavailable
from angelia.stores.disk import Disk

Row = Mapping[str, Any]

# What PostgreSQL and its driver raise when the server is away, starting or stopping; the statement is not to blame.
GONE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that broke during a statement
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidCachedStatementError,  # the schema changed under a running server; a retry succeeds
)
# What PostgreSQL or its driver raises for a value that no column can hold: the caller sent it, the statement is right.
_UNSTORABLE = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
    asyncpg.DatetimeFieldOverflowError,
    asyncpg.NumericValueOutOfRangeError,
)
StatementError = asyncpg.PostgresError
UniqueViolation = asyncpg.UniqueViolationError


class Tx(Protocol):
    """An open transaction, or a connection to read from. Every store function takes it as its first argument."""

    async def fetch(self, query: str, *args: object) -> Sequence[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    async def fetchval(self, query: str, *args: object) -> Any: ...
    async def execute(self, query: str, *args: object) -> str: ...


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """Returned to the pool without a reset, which would cost a round trip: our transactions leave no session state."""

    def get_reset_query(self) -> str:
        return ""


class Ledger:
    """A pool of connections to the database that decides what exists."""

    def __init__(self, pool: asyncpg.Pool, disk: Disk) -> None:
        self._pool = pool
        self.disk = disk

    @classmethod
    async def open(cls, url: str, connections: int = 10, disk: Disk | None = None) -> Ledger:
        """Makes the pool. It connects when it is first used, so this succeeds while the database is away."""
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
        """One transaction: committed when the block ends, rolled back when it raises.

        DiskFull while the disk is nearly full, so that PostgreSQL keeps running and can be read."""
        self.disk.check()
        with self._wrapped():
            async with self._pool.acquire(timeout=5) as connection, connection.transaction():
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Tx]:
        """A connection for statements that only read. Each sees what is committed when it begins, as in a transaction,
        which would cost two round trips more."""
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
                self.disk.report_full()
            if self.disk.full:  # also when PostgreSQL is away: it may have stopped for want of space
                raise self.disk.refusal() from error
            raise Unavailable(
                "the ledger is not reachable at the moment",
                hint="try again; it restarts by itself",
                retry_after=1,
            ) from error
        except asyncpg.DataError as error:
            # The driver refuses an argument with a bare DataError; subclasses come from the server.
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
