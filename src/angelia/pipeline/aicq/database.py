"""Reads AICQ's database: a file of SQLite, or PostgreSQL. All of it is of one moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from angelia.errors import InvalidArgument
from angelia.pipeline.database import Database
from angelia.pipeline.import_source import faults_of

Rows = list[dict[str, Any]]
MOST_ROWS = 500  # of a batch, which is one transaction of the ledger
_SCHEMES = ("postgres", "postgresql")
_HINT = "--database names AICQ's PostgreSQL, as in postgres://user@host/aicq, or the file of its SQLite"
# As SQLite and PostgreSQL both read it.
_AGENTS = "SELECT CAST(id AS TEXT) AS id, public_key, name, email, created_at FROM agents"
_ROOMS = """
SELECT CAST(id AS TEXT) AS id, name, is_private, key_hash, CAST(created_by AS TEXT) AS created_by, created_at,
  last_active_at, message_count
FROM rooms
"""


@dataclass(frozen=True, slots=True)
class AicqDatabase:
    """The agents and rooms of an AICQ server, in batches."""

    read: Callable[[str], Iterator[Rows]]

    def agents(self) -> Iterator[Rows]:
        return self.read(_AGENTS)

    def rooms(self) -> Iterator[Rows]:
        return self.read(_ROOMS)


@contextmanager
def opened(where: str) -> Iterator[AicqDatabase]:
    """The database at the URL of a PostgreSQL, or at the path of a file; raises InvalidArgument if it has no tables of
    AICQ."""
    scheme, separator, _ = where.partition("://")
    if separator and scheme not in _SCHEMES:
        raise InvalidArgument(f"{scheme}:// is no URL of a PostgreSQL", hint=_HINT)
    with _postgres(where) if separator else _sqlite(where) as database:
        for table in (_AGENTS, _ROOMS):
            list(database.read(f"{table} LIMIT 0"))
        yield database


@contextmanager
def _sqlite(path: str) -> Iterator[AicqDatabase]:
    def read(statement: str) -> Iterator[Rows]:
        with faults_of("AICQ", path, _HINT):
            cursor = connection.execute(statement)
            while rows := cursor.fetchmany(MOST_ROWS):
                yield [dict(row) for row in rows]

    with faults_of("AICQ", path, _HINT):
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None)
    with closing(connection):
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("BEGIN")
        yield AicqDatabase(read)


@contextmanager
def _postgres(url: str) -> Iterator[AicqDatabase]:
    def read(statement: str) -> Iterator[Rows]:
        with faults_of("AICQ", "that PostgreSQL", _HINT, url):
            for batch in database.batches(statement):
                for start in range(0, batch.num_rows, MOST_ROWS):
                    yield batch.slice(start, MOST_ROWS).to_pylist()

    with ExitStack() as stack:
        with faults_of("AICQ", "that PostgreSQL", _HINT, url):
            database = stack.enter_context(Database.open(url))
            stack.enter_context(database.transaction())
            database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield AicqDatabase(read)
