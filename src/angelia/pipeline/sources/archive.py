"""Reads tables of the archive into Spark, by the files that the table's log lists."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from angelia.pipeline.lake import listing
from angelia.pipeline.lake.tables import DAY, Table
from angelia.pipeline.secret_options import hidden, shown
from angelia.stores.objects import Objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "angelia_archive"
_TASK_BYTES, _TASK_FILES = 64_000_000, 32
_BATCH_ROWS = 20_000


def files(objects: Objects, table: Table, days: tuple[date, date] | None = None) -> list[str]:
    """The files of a table's present version, of the days from the first up to, but not including, the last.

    Their paths are built here, because delta-rs escapes blanks."""
    return [file.uri for file in listing.files(objects, table) if days is None or days[0] <= file.day < days[1]]


def read(spark: SparkSession, objects: Objects, table: Table, uris: Sequence[str]) -> DataFrame:
    """Rows of these files, of the columns that `table` has; one that a file is too old to have is null.

    Spark reads local files itself; it knows no bucket, so those are read in Python."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = table.schema
    if not uris:
        return spark.createDataFrame([], from_arrow_schema(schema))
    if not objects.remote:
        local = spark.read.option("basePath", objects.table(table.name))
        return local.schema(from_arrow_schema(schema)).parquet(*uris)
    spark.dataSource.register(ArchiveSource)
    options = {
        "root": objects.root,
        "secret": hidden(objects.options),
        "tasks": json.dumps(_tasks(objects, table, uris)),
        "schema": base64.b64encode(schema.serialize()).decode(),
    }
    return spark.read.format(NAME).schema(from_arrow_schema(schema)).options(**options).load()


def _tasks(objects: Objects, table: Table, uris: Sequence[str]) -> list[list[str]]:
    """Groups files into tasks: small ones together, because a task costs more than they do."""
    sizes = {file.uri: file.size for file in listing.files(objects, table)}
    tasks: list[list[str]] = []
    room = 0
    for uri in uris:
        # A file that left the table since still exists, for readers that have begun.
        size = sizes.get(uri, _TASK_BYTES)
        if not tasks or room < size or len(tasks[-1]) == _TASK_FILES:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(uri)
        room -= size
    return tasks


def ids(objects: Objects, table: Table, uris: Sequence[str]) -> pa.RecordBatchReader:
    """The ids of the rows of these files, a batch at a time."""
    filesystem = objects.filesystem()

    def batches() -> Iterator[pa.RecordBatch]:
        for uri in uris:
            with filesystem.open_input_file(objects.path(uri)) as opened:
                yield from pq.ParquetFile(opened).iter_batches(columns=[table.id])

    schema = pa.schema([table.schema.field(table.id)])
    return pa.RecordBatchReader.from_batches(schema, batches())


class ArchiveSource(DataSource):
    """The data source that `read` registers."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        return ArchiveReader(self.options)


@dataclass(frozen=True)
class Task(InputPartition):
    uris: tuple[str, ...]


class ArchiveReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        return [Task(tuple(uris)) for uris in json.loads(self._options["tasks"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        objects = Objects(self._options["root"], shown(self._options["secret"]))
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._options["schema"])))
        filesystem = objects.filesystem()
        for uri in partition.uris:
            day = date.fromisoformat(uri.rpartition(f"{DAY}=")[2].partition("/")[0])
            with filesystem.open_input_file(objects.path(uri)) as opened:
                yield from _rows(pq.ParquetFile(opened, pre_buffer=True), schema, day)


def _rows(file: pq.ParquetFile, schema: pa.Schema, day: date) -> Iterator[pa.RecordBatch]:
    held = [name for name in schema.names if name in file.schema_arrow.names]
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=held):
        yield pa.RecordBatch.from_arrays([_column(batch, wanted, day) for wanted in schema], schema=schema)


def _column(batch: pa.RecordBatch, wanted: pa.Field, day: date) -> pa.Array:
    if wanted.name == DAY:
        return pa.repeat(pa.scalar(day, wanted.type), batch.num_rows)
    if wanted.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, wanted.type)
    return batch.column(wanted.name).cast(wanted.type)
