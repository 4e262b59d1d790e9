"""Reads the exports of group logs: one Parquet file for each group and node, named after both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from angelia.errors import InvalidArgument, NotFound

# The columns that `angelia log export` writes.
SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("node_id", pa.string()),
        ("sender", pa.string()),
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("level", pa.int32()),
        ("shard_index", pa.int32()),
        ("data_shards", pa.int32()),
        ("total_shards", pa.int32()),
        ("manifest_digest", pa.string()),
        ("digest", pa.string()),
        ("bytes", pa.int64()),
    ]
)
FULL, SHARD, DAMAGED = "full", "shard", "damaged"  # kinds of records
_EXPORT = "angelia log export GROUP DIR"


@dataclass(frozen=True, slots=True)
class LogExport:
    """What a node holds of a group. A node that holds nothing has a file without rows."""

    path: Path
    group_id: str
    node_id: str
    rows: int


def find(directory: Path) -> list[LogExport]:
    """The exports in a directory, by their names and footers; raises NotFound if there are none."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".parquet")
    except (FileNotFoundError, NotADirectoryError):
        paths = []
    if not paths:
        raise NotFound(f"there are no exports of group logs in {directory}", hint=_EXPORT)
    return [_export(path.absolute()) for path in paths]


def read(spark: SparkSession, exports: Sequence[LogExport]) -> DataFrame:
    """The rows of these exports. A cluster must see their directory."""
    return spark.read.schema(from_arrow_schema(SCHEMA)).parquet(*(str(one.path) for one in exports))


def by_node(spark: SparkSession, exports: Sequence[LogExport]) -> DataFrame:
    """Every group and node that was exported, with the number of rows of its file."""
    names = {"group_id": [one.group_id for one in exports], "node_id": [one.node_id for one in exports]}
    return spark.createDataFrame(pa.table({**names, "exported": [one.rows for one in exports]}))


def _export(path: Path) -> LogExport:
    group_id, _, node_id = path.stem.partition("-")  # base58 has no hyphen, base64url may have some
    try:
        footer = pq.read_metadata(path)
    except pa.ArrowInvalid as error:
        raise _none(path) from error
    columns = footer.schema.to_arrow_schema()
    if not (group_id and node_id and (columns.names, columns.types) == (SCHEMA.names, SCHEMA.types)):
        raise _none(path)
    return LogExport(path, group_id, node_id, footer.num_rows)


def _none(path: Path) -> InvalidArgument:
    return InvalidArgument(f"{path} is no export of a group log", hint=f"export into a directory of its own: {_EXPORT}")
