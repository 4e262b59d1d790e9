"""How large a table of the archive is, as its log says: nothing is read but the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from angelia.pipeline.lake import commit
from angelia.pipeline.lake.table import DAY, Table
from angelia.stores.objects import Objects


@dataclass(frozen=True, slots=True)
class Size:
    """Files, rows and bytes of a table that count now."""

    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class File:
    """A file of a table, by its path in it."""

    path: str
    day: date
    rows: int
    bytes: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def size(objects: Objects, table: Table) -> Size:
    """All of a table; zeros before its first write."""
    found = files(objects, table)
    return Size(len(found), sum(file.rows for file in found), sum(file.bytes for file in found))


def files(objects: Objects, table: Table) -> list[File]:
    """Every file that counts now."""
    found = commit.find(objects, table)
    return [] if found is None else [_file(row) for row in _actions(found)]


def _actions(table: DeltaTable) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return rows


def _file(row: Mapping[str, Any]) -> File:
    return File(row["path"], row[f"partition.{DAY}"], row["num_records"], row["size_bytes"])
