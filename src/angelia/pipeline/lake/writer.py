"""Writes a Spark frame into a table: tasks write files, and the driver commits all of them at once."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from angelia.errors import Conflict
from angelia.pipeline.lake.commit import Mark, commit, is_simulated, replace
from angelia.pipeline.lake.listing import TableFile
from angelia.pipeline.lake.tables import DAY, SIMULATED, TABLES, Table
from angelia.pipeline.secret_options import hidden, shown
from angelia.stores.objects import Objects

NAME = "angelia_lake"
_FILE_ROWS, _FILE_BYTES = 2_000_000, 1 << 30
_GROUP_ROWS, _GROUP_BYTES = 128_000, 64 << 20  # payloads of messages are large, and a group is in memory


@dataclass
class Written(WriterCommitMessage):
    """The files of one task."""

    files: list[AddAction]


@dataclass(frozen=True, slots=True)
class LakeWrite:
    """What `write` asks of `LakeWriter`."""

    table: str
    simulated: bool
    mark: Mark
    run: str
    days: tuple[date, date] | None  # to be replaced
    gone: set[str] | None  # paths of files to be replaced
    rows: int


def write(
    frame: DataFrame,
    objects: Objects,
    table: Table,
    mark: Mark,
    run: str,
    *,
    replacing: tuple[date, date] | None = None,
    files: Sequence[TableFile] | None = None,
    rows: int = 0,
) -> None:
    """Appends a frame to a table in one commit; idempotent for a mark. With `replacing`, it replaces the days from the
    first up to, but not including, the second; with `files`, it replaces these, `rows` is how many rows the change is
    about, and a mark that was committed before raises Conflict."""
    gone = None if files is None else {file.path for file in files}
    asked = LakeWrite(table.name, is_simulated(objects), mark, run, days=replacing, gone=gone, rows=rows)
    options = {
        "root": objects.root,
        "secret": hidden(objects.options),  # so named, Spark does not show it
        "asked": msgspec.json.encode(asked).decode(),
    }
    frame.sparkSession.dataSource.register(LakeSink)
    frame.write.format(NAME).mode("append").options(**options).save()


class LakeSink(DataSource):
    """The data source that `write` registers."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return LakeWriter(self.options)


def write_task(objects: Objects, table: Table, run: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Writes the rows of a task of Spark's; the names of the files begin with the run's id."""
    context = TaskContext.get()
    assert context is not None
    with Files(objects, table, f"{run}-{context.partitionId()}-{context.taskAttemptId()}") as files:
        for batch in batches:
            files.add(batch)
    return Written(files.written)


def added(messages: Sequence[WriterCommitMessage | None]) -> list[AddAction]:
    """The files of all tasks, from what `write_task` returned."""
    return [file for message in messages if isinstance(message, Written) for file in message.files]


class LakeWriter(DataSourceArrowWriter):
    """`write` runs in the tasks, `commit` once on the driver."""

    def __init__(self, options: Any) -> None:
        self._objects = Objects(options["root"], shown(options["secret"]))
        self._asked = msgspec.json.decode(options["asked"], type=LakeWrite)
        table = TABLES[self._asked.table]
        self._table = table.marked() if self._asked.simulated else table

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_task(self._objects, self._table, self._asked.run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        asked, files = self._asked, added(messages)
        if asked.gone is None:
            commit(self._objects, self._table, files, asked.mark, replacing=asked.days)
        elif not replace(self._objects, self._table, asked.mark, asked.run, asked.gone, files, asked.rows):
            raise Conflict(f"somebody else has written {self._table.name} meanwhile", hint="run it again")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The files are in no commit; vacuum removes them."""


class Files:
    """The open files of a task: one a day, and a new one when it is large."""

    def __init__(self, objects: Objects, table: Table, task: str) -> None:
        self._objects = objects
        self._filesystem = objects.filesystem()
        self._table = table
        # Spark numbers its tasks from 0 in each session: without this, a resumed run would overwrite its own files.
        self._task = f"{task}-{uuid.uuid4().hex[:8]}"
        self._open: dict[str, _File] = {}
        self._number = 0
        self.written: list[AddAction] = []

    def __enter__(self) -> Files:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for file in self._open.values():
            added = file.close()
            if failed is None:
                self.written.append(added)

    def add(self, batch: pa.RecordBatch) -> None:
        for day, rows in _by_day(batch):
            file = self._open.get(day)
            if file is None:
                self._number += 1
                name = f"{DAY}={day}/{self._task}-{self._number}.parquet"
                file = self._open[day] = _File(self._objects, self._filesystem, self._table, day, name)
            file.add(self._marked(rows).select(self._table.file_schema.names).cast(self._table.file_schema))
            if file.rows >= _FILE_ROWS or file.size >= _FILE_BYTES:
                self.written.append(self._open.pop(day).close())

    def _marked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not self._table.simulated or SIMULATED in rows.schema.names:
            return rows
        return rows.append_column(SIMULATED, pa.repeat(True, rows.num_rows))


class _File:
    def __init__(self, objects: Objects, filesystem: Any, table: Table, day: str, name: str) -> None:
        self._day, self._name = day, name
        path = objects.path(f"{objects.table(table.name)}/{name}")
        if not objects.remote:
            filesystem.create_dir(path.rpartition("/")[0])
        # The writer does not close a stream that it did not open, and an upload exists only when it is closed.
        self._stream = filesystem.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._stream,
            table.file_schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=table.repeating,
            column_encoding=dict.fromkeys(table.counting, "DELTA_BINARY_PACKED"),
        )
        self._ordered = table.ordered
        self._bounds: list[int] = []  # the least and the most of each batch
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self.rows = 0

    @property
    def size(self) -> int:
        """Bytes so far, without those of the last group."""
        size: int = self._stream.tell()
        return size

    def add(self, rows: pa.RecordBatch) -> None:
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        if self._ordered is not None:
            self._bounds += pc.min_max(rows.column(self._ordered)).as_py().values()
        self.rows += rows.num_rows
        if self._pending_rows >= _GROUP_ROWS or self._pending_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> AddAction:
        self._flush()
        self._writer.close()
        size = self.size  # saves a request to the store
        self._stream.close()
        stats: dict[str, object] = {"numRecords": self.rows}
        if self._ordered is not None:
            stats["minValues"] = {self._ordered: min(self._bounds)}
            stats["maxValues"] = {self._ordered: max(self._bounds)}
        return AddAction(self._name, size, {DAY: self._day}, time.time_ns() // 1_000_000, True, json.dumps(stats))

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_batches(self._pending), row_group_size=_GROUP_ROWS)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _by_day(batch: pa.RecordBatch) -> Sequence[tuple[str, pa.RecordBatch]]:
    days = batch.column(DAY)
    found = pc.unique(days)
    if len(found) == 1:
        return [(str(found[0].as_py()), batch)]
    return [(str(day.as_py()), batch.filter(pc.equal(days, day))) for day in found]
