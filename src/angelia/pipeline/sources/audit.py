"""The sealed audit, from the ledger to the archive: as a stream, or all there is.

The offset is the position in the chain, which has no gaps and follows the commits. The version of the archive's last
commit is a position too: a stream continues there, whatever its own checkpoint says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from angelia.errors import AuditBroken
from angelia.pipeline.database import Database
from angelia.pipeline.lake import commit
from angelia.pipeline.lake.audit_chain import archive_floor, entry_hash
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import AUDIT
from angelia.pipeline.lake.writer import Written, added, write_task
from angelia.pipeline.secret_options import hidden, shown
from angelia.stores.objects import Objects

NAME = "angelia_audit"
APP_ID = "archive audit"
_SLICES = 4
_SLICE_ROWS = 5_000  # fewer rows are not worth another reader and another file


def archived_to(objects: Objects) -> int:
    """The last position that was archived, even if retention removed it since; 0 for none."""
    return max(commit.version_of(objects, AUDIT, APP_ID) or 0, archive_floor(objects).position)


def archived_head(objects: Objects) -> str:
    """The hash of the last entry that the archive has."""
    last, floor = archived_to(objects), archive_floor(objects)
    if last == floor.position:
        return floor.entry_hash
    if (found := entry_hash(objects, last)) is not None:
        return found
    raise AuditBroken(f"entry {last:,} is missing from the archive", hint="angelia pipeline run verify audit")


def options(objects: Objects, url: str, sql: Mapping[str, str], run: str) -> dict[str, str]:
    """The options of the source and the sink below."""
    return {
        "root": objects.root,
        "secret": hidden(objects.options),  # so named, Spark does not show it
        "url": hidden({"url": url}),
        "projection": sql["sealed"],
        "sealed_to": sql["sealed_to"],
        "run": run,
    }


class AuditSource(DataSource):
    """Sealed events, and the table of the archive that they are appended to."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return from_arrow_schema(AUDIT.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return AuditReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return AuditWriter(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return AuditStream(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return AuditWriter(self.options)


@dataclass(frozen=True)
class Span(InputPartition):
    """Positions after the first, up to the last."""

    after: int
    last: int


class AuditReader(DataSourceReader):
    """The entries between two positions, in spans that are read in parallel."""

    def __init__(self, options: Any) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        return spans(int(self._options["after"]), int(self._options["last"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, partition)


class AuditStream(DataSourceStreamReader):
    """The entries as they are sealed."""

    def __init__(self, options: Any) -> None:
        self._options = dict(options)
        self._objects = Objects(options["root"], shown(options["secret"]))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"position": archived_to(self._objects)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(int(self._options["rows"]))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        assert isinstance(limit, ReadMaxRows)
        # The stream's checkpoint may be older than the archive, or new.
        begin = max(start["position"], archived_to(self._objects))
        return {"position": max(min(self._sealed_to(), begin + limit.max_rows), start["position"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return spans(max(start["position"], archived_to(self._objects)), end["position"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, partition)

    def _sealed_to(self) -> int:
        with Database.open(shown(self._options["url"])["url"]) as database:
            return int(database.rows(self._options["sealed_to"])[0]["position"])


def spans(after: int, last: int) -> list[Span]:
    """Positions in at most four spans of equal size."""
    pieces = min(_SLICES, -(-(last - after) // _SLICE_ROWS))
    bounds = [after + (last - after) * n // pieces for n in range(pieces + 1)] if pieces > 0 else []
    return [Span(*bound) for bound in pairwise(bounds)]


def _rows(options: Mapping[str, str], span: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(span, Span)
    with Database.open(shown(options["url"])["url"]) as database:
        for batch in database.batches(options["projection"], span.after, span.last):
            yield batch.cast(AUDIT.schema)


class AuditWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writes entries in the order of the chain, and commits them if they continue the archive: all at once, or a batch
    of a stream."""

    def __init__(self, options: Any) -> None:
        self._objects = Objects(options["root"], shown(options["secret"]))
        self._run = options["run"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_task(self._objects, AUDIT, self._run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        files = added(messages)
        if not files:
            return
        version = commit.version_of(self._objects, AUDIT, APP_ID) or 0
        have = max(version, archive_floor(self._objects).position)
        stats = [json.loads(file.stats) for file in files]
        first = min(one["minValues"][AUDIT.ordered] for one in stats)
        last = max(one["maxValues"][AUDIT.ordered] for one in stats)
        rows = sum(one["numRecords"] for one in stats)
        if last <= have:
            return  # Spark repeats a batch whose commit it did not see
        if (first, last - first + 1) != (have + 1, rows):
            raise AuditBroken(
                f"{rows:,} events from {first:,} to {last:,} do not go on where the archive ends, at {have:,}",
                hint="angelia audit verify",
            )
        commit.commit(self._objects, AUDIT, files, Mark(APP_ID, last), behind=version)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """The files are in no commit; vacuum removes them."""
