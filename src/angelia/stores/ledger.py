"""The ledger: PostgreSQL. Services open transactions and pass them to stores; driver errors are wrapped here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol

import asyncpg
import msgspec

from angelia.errors import InvalidArgument, Unavailable
from angelia.stores.connections import Connections, LedgerConnection
from angelia.stores.disk import Disk

Row = Mapping[str, Any]
CONNECT_SECONDS = 5.0
# A process that hangs inside a transaction loses it, and with it the locks that others wait for. An operator's own time
# limits, in the URL or of the role, stay.
_EVERY_SESSION = """
SET jit = off;
SELECT set_config(name, value, false)
FROM (VALUES ('statement_timeout', '15s'), ('idle_in_transaction_session_timeout', '5s')) AS limits (name, value)
WHERE current_setting(name) = '0'
"""
# Statements of the hot path are planned once per connection, not at every execution: planning was more than half of
# PostgreSQL's work for a message. Such a plan must be good at any size of its tables, so none is chosen that is only
# good for small ones: rows are looked up by an index, one at a time.
PLANNED_ONCE = """
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off
"""

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
    asyncpg.QueryCanceledError,  # a statement that took too long
    asyncpg.IdleInTransactionSessionTimeoutError,  # a transaction in which nothing was asked for too long
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


class Ledger:
    """The database that decides what exists. Some of its connections are for the statements of the hot path alone,
    which are planned once; listings and other statements with many conditions are planned for their values."""

    def __init__(self, url: str, connections: int, disk: Disk) -> None:
        # Ticks need three: two that hold locks, and one to work with. A ledger with fewer in all has no hot path.
        planned_once = min(connections // 2, connections - 3) if connections > 3 else 0
        self._planned_once = Connections(partial(_connect, url, PLANNED_ONCE), max(1, planned_once))
        self._ordinary = Connections(partial(_connect, url), connections - planned_once)
        self.disk = disk

    @classmethod
    async def open(cls, url: str, connections: int = 10, disk: Disk | None = None) -> Ledger:
        """Connects when it is first used, so this succeeds while the database is away."""
        return cls(url, connections, disk or Disk())

    async def close(self) -> None:
        await self._planned_once.close()
        await self._ordinary.close()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Tx]:
        """A connection for statements that only read. Each sees what is committed when it begins, as in a transaction,
        which would cost two round trips more."""
        async with self._lent(self._ordinary) as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """One transaction: committed when the block ends, rolled back when it raises.

        DiskFull while the disk is nearly full, so that PostgreSQL keeps running and can be read."""
        self.disk.check()
        async with self._lent(self._ordinary) as tx:
            await tx.execute("BEGIN")
            try:
                yield tx
            except BaseException:
                # A connection that cannot roll back is dropped, and PostgreSQL rolls back then.
                with suppress(*GONE, asyncpg.PostgresError):
                    await tx.execute("ROLLBACK")
                raise
            # PostgreSQL answers ROLLBACK when a statement failed and its error was caught on the way.
            if await tx.execute("COMMIT") != "COMMIT":
                raise asyncpg.InFailedSQLTransactionError("a statement of this transaction failed")

    @asynccontextmanager
    async def lasting_transaction(self) -> AsyncIterator[Tx]:
        """A transaction that holds a lock while the block does other things, for as long as they take."""
        async with self.transaction() as tx:
            await tx.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield tx

    @asynccontextmanager
    async def lookups(self) -> AsyncIterator[Tx]:
        """A connection for reads of the hot path. Each of their statements finds its rows by whole keys, at any size of
        its tables; a test looks at their plans."""
        async with self._lent(self._planned_once) as connection:
            if connection.plans_are_old:
                await connection.plan_again()
            yield connection

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[Tx]:
        """The same for one statement that writes. PostgreSQL commits it by itself, in the same round trip."""
        self.disk.check()
        async with self.lookups() as tx:
            yield tx

    async def ping(self) -> None:
        async with self.reading() as tx:
            await tx.fetchval("SELECT 1")

    @asynccontextmanager
    async def _lent(self, connections: Connections) -> AsyncIterator[LedgerConnection]:
        try:
            connection = await connections.take()
            try:
                yield connection
            finally:
                connections.give_back(connection)
        except GONE as error:
            raise self._away(error) from error
        except asyncpg.DataError as error:
            # The driver refuses an argument with a bare DataError; subclasses come from the server.
            if type(error) is not asyncpg.DataError and not isinstance(error, _UNSTORABLE):
                raise
            raise InvalidArgument(
                "a value cannot be stored",
                hint="text must be without NUL characters, numbers and dates within their range",
            ) from error

    def _away(self, error: BaseException) -> Unavailable:
        if isinstance(error, asyncpg.DiskFullError):
            self.disk.report_full()
        if self.disk.full:  # also when PostgreSQL is away: it may have stopped for want of space
            return self.disk.refusal()
        return Unavailable(
            "the ledger is not reachable at the moment",
            hint="try again; it restarts by itself",
            retry_after=1,
        )


async def _connect(url: str, settings: str = "") -> asyncpg.Connection:
    connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, statement_cache_size=0)
    await connection.execute(f"{_EVERY_SESSION};{settings}", timeout=CONNECT_SECONDS)
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: msgspec.json.encode(value).decode(),
        decoder=msgspec.json.decode,
    )
    return connection
