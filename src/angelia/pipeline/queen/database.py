"""Reads Queen's database: the tables of its version 0.15 in the schema `queen` of a PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from angelia.errors import InvalidArgument
from angelia.pipeline.database import Database
from angelia.pipeline.import_source import faults_of
from angelia.queues.model import QUEUE_MODE
from angelia.stores.sql import statements

Rows = list[dict[str, Any]]
MOST_ROWS = 500  # of a batch, which is one transaction of the ledger
CANDIDATES = 6  # messages behind a cursor that are looked for here: one of them may have been left out
NOTHING = UUID(int=0)
_HINT = "--database names Queen's PostgreSQL, as in postgres://user@host/queen"
_NEEDED = {
    ("queues", "encryption_enabled"),
    ("partitions", "queue_id"),
    ("messages", "is_encrypted"),
    ("partition_consumers", "last_consumed_created_at"),
    ("consumer_groups_metadata", "subscription_timestamp"),
    ("dead_letter_queue", "original_created_at"),
}
_SQL = statements(__file__, "queen.sql")
_UNSEEN = timedelta(minutes=1)  # how long a push may take that we have no right to see


class QueenDatabase:
    """The queues, messages, consumer groups and dead letters of a Queen, in batches. Messages from the horizon on are
    left to a later import: an older one may still be on its way among them."""

    def __init__(self, database: Database, url: str, horizon: datetime, producers: bool) -> None:
        self._database = database
        self._url = url
        self.horizon = horizon
        self._known = {
            "producer": "m.producer_sub" if producers else "NULL::text",
            "horizon": horizon.isoformat(),
            "queue_mode": QUEUE_MODE,
            "nothing": NOTHING,
            "candidates": CANDIDATES,
        }

    def queues(self) -> Iterator[Rows]:
        """The queues, each as JSON."""
        return self._read("queues")

    def partitions(self) -> Iterator[Rows]:
        """Partitions with time and id of their newest messages."""
        return self._read("partitions")

    def messages(self, partition_id: UUID, after: tuple[datetime, UUID]) -> Iterator[Rows]:
        """The messages of a partition behind one of them, in Queen's order."""
        at, id_ = after
        return self._read("messages", partition=partition_id, at=at.isoformat(), id=id_)

    def count_later(self, partition_id: UUID) -> int:
        """How many messages of a partition are left to a later import."""
        return sum(row["row_count"] for rows in self._read("count_later", partition=partition_id) for row in rows)

    def groups(self) -> Iterator[Rows]:
        """The consumer groups of all queues, and where they began."""
        return self._read("groups")

    def cursors(self) -> Iterator[Rows]:
        """How far each group is in each partition, by the transaction ids of the next messages."""
        return self._read("cursors")

    def letters(self) -> Iterator[Rows]:
        return self._read("letters")

    def _read(self, name: str, **values: object) -> Iterator[Rows]:
        with faults_of("Queen", "that PostgreSQL", _HINT, self._url):
            for batch in self._database.batches(_SQL[name].format(**self._known, **values)):
                for start in range(0, batch.num_rows, MOST_ROWS):
                    yield batch.slice(start, MOST_ROWS).to_pylist()


@contextmanager
def opened(url: str) -> Iterator[QueenDatabase]:
    """The database at a URL; raises InvalidArgument if it has no tables of Queen 0.15."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in ("postgres", "postgresql"):
        raise InvalidArgument("--database is no URL of a PostgreSQL", hint=_HINT)
    with ExitStack() as stack:
        with faults_of("Queen", "that PostgreSQL", _HINT, url):
            database = stack.enter_context(Database.open(url))
            columns = {(row["table_name"], row["column_name"]) for row in database.rows(_SQL["columns"])}
            [seen] = database.rows(_SQL["horizon"])
        if missing := sorted({table for table, _ in _NEEDED - columns}):
            raise InvalidArgument(
                f"that PostgreSQL has no tables of Queen 0.15: {', '.join(missing)} in the schema queen", hint=_HINT
            )
        horizon = min(one for one in (seen["now"], seen["oldest"]) if one is not None)
        if seen["unseen"]:
            horizon = min(horizon, seen["now"] - _UNSEEN)
        yield QueenDatabase(database, url, horizon, ("messages", "producer_sub") in columns)
