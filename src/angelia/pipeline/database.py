"""The pipeline's own connection to the ledger, over ADBC, with rows as Arrow.

It uses the driver's low-level interface: every reader of Spark's is a process of its own, and the DB-API takes most of
a second to import.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any, Self, TypeVar

import adbc_driver_postgresql
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement, Error, StatementOptions

from angelia.errors import Conflict, DiskFull, Unavailable

T = TypeVar("T")
Value = int | datetime
_BUSY = ("55P03", "40P01")  # lock not available, deadlock
_FULL = "53100"
_GONE = ("08", "53", "57P")  # no connection, too many, shutting down
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
_PLACE = re.compile(r"\$(\d+)")


class Busy(Conflict):
    """Others work with these tables, and did not let go of them in time"""

    def __init__(self) -> None:
        super().__init__("the ledger is too busy to let rows go", hint="nothing was removed; run it again")


class Database:
    """One connection. A `transaction` block is atomic; outside of it, each statement is."""

    def __init__(self, connection: AdbcConnection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def open(cls, url: str) -> Iterator[Self]:
        with ExitStack() as opened:
            with _wrapped():
                driver = opened.enter_context(adbc_driver_postgresql.connect(url))
                connection = opened.enter_context(AdbcConnection(driver))
            yield cls(connection)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        # Not by BEGIN: in autocommit mode the driver ends a transaction with each statement that has parameters.
        with _wrapped():
            self._connection.set_autocommit(False)
        try:
            yield self
        except BaseException:
            with suppress(Error):  # the connection itself may have failed
                self._connection.rollback()
                self._connection.set_autocommit(True)
            raise
        with _wrapped():
            self._connection.commit()
            self._connection.set_autocommit(True)

    def patiently(self, act: Callable[[], T]) -> T:
        """Runs `act` in a transaction and returns its result, with retries and a back-off while tables are locked."""
        for pause in _PAUSES:
            try:
                with self.transaction():
                    return act()
            except Busy:
                time.sleep(pause)
        raise Busy

    def execute(self, statement: str, *values: object) -> None:
        with self._prepared(statement, values) as prepared:
            prepared.execute_update()

    def table(self, statement: str, *values: object) -> pa.Table:
        with self._prepared(statement, values) as prepared:
            return _reader(prepared).read_all()

    def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(statement, *values).to_pylist()
        return found

    def row(self, statement: str, *values: object) -> dict[str, Any] | None:
        found = self.rows(statement, *values)
        assert len(found) <= 1, "the statement gives one row or none"
        return found[0] if found else None

    def ingest(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Puts rows into a temporary table of this transaction."""
        # A temporary table lives as long as its connection, so one of an earlier transaction may be there.
        self.execute(f'DROP TABLE IF EXISTS pg_temp."{name}"')
        with _wrapped(), AdbcStatement(self._connection) as statement:
            wanted = {
                StatementOptions.INGEST_TARGET_TABLE: name,
                StatementOptions.INGEST_MODE: "adbc.ingest.mode.create",
                StatementOptions.INGEST_TEMPORARY: "true",
            }
            statement.set_options(**{option.value: value for option, value in wanted.items()})
            statement.bind_stream(rows.__arrow_c_stream__())
            statement.execute_update()

    def batches(self, statement: str, *values: Value) -> Iterator[pa.RecordBatch]:
        """Rows in batches as they come from the server, never all in memory.

        The driver streams only statements without parameters (COPY), so numbers and times, which need no quoting, are
        written into the statement."""
        with _wrapped(), AdbcStatement(self._connection) as streamed:
            streamed.set_sql_query(_PLACE.sub(lambda place: _literal(values[int(place[1]) - 1]), statement))
            yield from _reader(streamed)

    @contextmanager
    def _prepared(self, statement: str, values: tuple[object, ...]) -> Iterator[AdbcStatement]:
        with _wrapped(), AdbcStatement(self._connection) as prepared:
            prepared.set_sql_query(statement)
            prepared.prepare()
            if values:
                row = pa.RecordBatch.from_arrays(
                    [pa.array([value]) for value in values], [str(n) for n in range(len(values))]
                )
                schema, data = row.__arrow_c_array__()
                prepared.bind(data, schema)
            yield prepared


@contextmanager
def _wrapped() -> Iterator[None]:
    """Raises errors of the driver that are no bug here, such as a busy, full or unreachable ledger, as an
    AngeliaError."""
    try:
        yield
    except Error as error:
        if error.sqlstate in _BUSY:
            raise Busy from error
        if error.sqlstate == _FULL:
            raise DiskFull("the ledger's disk is full", hint="make room there, and run it again") from error
        if error.sqlstate is None or error.sqlstate.startswith(_GONE):
            raise Unavailable("the ledger does not answer", hint="is PostgreSQL running? angelia doctor") from error
        raise


def _reader(statement: AdbcStatement) -> pa.RecordBatchReader:
    stream, _ = statement.execute_query()
    return pa.RecordBatchReader._import_from_c(stream.address)


def _literal(value: Value) -> str:
    if isinstance(value, int):
        return str(int(value))
    return f"'{value.astimezone().isoformat()}'::timestamptz"
