"""Reads tables of the archive into Spark, by the files that the table's log lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from angelia.pipeline.lake.listing import TableFile
from angelia.pipeline.lake.tables import DAY, Table
from angelia.pipeline.secret_options import hidden, shown
from angelia.stores.objects import Objects

NAME = "angelia_archive"
_TASK_BYTES, _TASK_FILES = 64_000_000, 32
_BATCH_ROWS = 20_000


def read(spark: SparkSession, objects: Objects, table: Table, files: Sequence[TableFile]) -> DataFrame:
    """Rows of these files, of the columns that `table` has; one that a file is too old to have is null.

    Spark reads local files itself; it knows no bucket, so those are read in Python."""
    schema = from_arrow_schema(table.schema)
    if not files:
        return spark.createDataFrame([], schema)
    if not objects.remote:
        local = spark.read.option("basePath", objects.table(table.name))
        return local.schema(schema).parquet(*(file.uri for file in files))
    spark.dataSource.register(ArchiveSource)
    options = {"root": objects.root, "secret": hidden(objects.options), "tasks": json.dumps(_tasks(files))}
    return spark.read.format(NAME).schema(schema).options(**options).load()


def _tasks(files: Sequence[TableFile]) -> list[list[str]]:
    """Groups files into tasks, by their URIs: small ones together, because a task costs more than they do."""
    tasks: list[list[str]] = []
    room = 0
    for file in files:
        if not tasks or room < file.size or len(tasks[-1]) == _TASK_FILES:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(file.uri)
        room -= file.size
    return tasks


def ids(objects: Objects, table: Table, files: Sequence[TableFile]) -> pa.RecordBatchReader:
    """The ids of the rows of these files, and the columns by which the ledger finds them, a batch at a time."""
    filesystem, names = objects.filesystem(), [table.id, *table.found_by]

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            with filesystem.open_input_file(objects.path(file.uri)) as opened:
                yield from pq.ParquetFile(opened).iter_batches(columns=names)

    schema = pa.schema([table.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, batches())


class ArchiveSource(DataSource):
    """The data source that `read` registers."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        return ArchiveReader(self.options, schema)


@dataclass(frozen=True)
class Task(InputPartition):
    uris: tuple[str, ...]


class ArchiveReader(DataSourceReader):
    def __init__(self, options: Any, schema: StructType) -> None:
        self._options = dict(options)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        return [Task(tuple(uris)) for uris in json.loads(self._options["tasks"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        objects = Objects(self._options["root"], shown(self._options["secret"]))
        rows = ds.dataset(
            [objects.path(uri) for uri in partition.uris],
            schema=self._schema,
            format="parquet",
            filesystem=objects.filesystem(),
            partitioning=ds.partitioning(pa.schema([self._schema.field(DAY)]), flavor="hive"),
        )
        # A task of Spark's has one core, and files are large.
        yield from rows.to_batches(batch_size=_BATCH_ROWS, fragment_readahead=1)
