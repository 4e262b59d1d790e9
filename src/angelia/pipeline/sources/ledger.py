"""Reads tables of the ledger into Spark: ranges of buckets in parallel, all from one snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NewType

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from angelia.envelope.ids import BUCKETS
from angelia.pipeline.database import Database, Value
from angelia.pipeline.secret_options import hidden, shown

if TYPE_CHECKING:
    from angelia.pipeline.jobs.job_context import JobContext  # readers are processes, and do not need it

NAME = "angelia_ledger"
Snapshot = NewType("Snapshot", str)  # the id of a snapshot of the ledger, which all readers of a run share


@contextmanager
def one_snapshot(url: str) -> Iterator[tuple[Database, Snapshot]]:
    """A connection that sees one snapshot of the ledger, which other connections may share in this block."""
    with Database.open(url) as database, database.transaction():
        database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield database, Snapshot(database.rows("SELECT pg_export_snapshot() AS id")[0]["id"])


@contextmanager
def _seeing(url: str, snapshot: Snapshot) -> Iterator[Database]:
    """A connection that sees the ledger as of a snapshot."""
    with Database.open(url) as database, database.transaction():
        database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # The id cannot be bound as a parameter.
        assert all(part.isalnum() for part in snapshot.split("-")), snapshot
        database.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        yield database


def read(
    work: JobContext,
    projection: str,
    schema: pa.Schema,
    snapshot: Snapshot,
    within: Mapping[str, tuple[datetime, datetime]] | None = None,
) -> DataFrame:
    """The rows of a slice's projection, within these times. It must have a column `bucket`, by whose ranges it is read
    in parallel.

    Filters are passed here and not pushed down by Spark, which keeps the filters of one query for the next one of the
    same frame."""
    work.spark.dataSource.register(LedgerSource)
    options = {
        "url": hidden({"url": work.database_url}),
        "projection": projection,
        "snapshot": snapshot,
        "readers": str(work.readers),
        "within": json.dumps({name: [one.isoformat() for one in times] for name, times in (within or {}).items()}),
    }
    return work.spark.read.format(NAME).schema(from_arrow_schema(schema)).options(**options).load()


class LedgerSource(DataSource):
    """The data source that `read` registers."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        return LedgerReader(self.options, schema)


@dataclass(frozen=True)
class BucketRange(InputPartition):
    """Buckets from the first up to, but not including, the last."""

    first: int
    last: int


class LedgerReader(DataSourceReader):
    """Plans the ranges on the driver; each is read where Spark wants it."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self._options = dict(options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._within = [(name, *times) for name, times in json.loads(options["within"]).items()]

    def partitions(self) -> Sequence[InputPartition]:
        readers = int(self._options["readers"])
        bounds = [BUCKETS * n // readers for n in range(readers + 1)]
        return [BucketRange(first, last) for first, last in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BucketRange)
        columns = ", ".join(f'"{name}"' for name in self._schema.names)
        given = f"SELECT {columns} FROM ({self._options['projection']}) AS r WHERE bucket >= $1 AND bucket < $2"  # noqa: S608
        values: list[Value] = [partition.first, partition.last]
        for name, since, until in self._within:
            given += f' AND "{name}" >= ${len(values) + 1} AND "{name}" < ${len(values) + 2}'
            values += [datetime.fromisoformat(since), datetime.fromisoformat(until)]
        with _seeing(shown(self._options["url"])["url"], Snapshot(self._options["snapshot"])) as database:
            for batch in database.batches(given, *values):
                yield batch.cast(self._schema)
