"""The files of a table, and how large it is, as its log says: nothing is read but the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from angelia.pipeline.lake.table import DAY, Table
from angelia.stores.objects import Objects


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a table has now."""

    path: str  # below the table
    uri: str
    day: date
    rows: int
    size: int
    least: int | None  # of the column that orders the table, if one does

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class TableSize:
    """Files, rows and bytes of a table that count now."""

    files: int
    rows: int
    bytes: int


def find(objects: Objects, table: Table) -> DeltaTable | None:
    """The table as it is now; None before its first write."""
    try:
        return DeltaTable(objects.table(table.name), storage_options=dict(objects.options))
    except TableNotFoundError:
        return None


def files(objects: Objects, table: Table) -> list[TableFile]:
    """Every file that counts now; none before the table's first write."""
    found = find(objects, table)
    if found is None:
        return []
    root = objects.table(table.name)
    return [
        TableFile(
            path=one["path"],
            uri=f"{root}/{one['path']}",
            day=one["partition"][DAY],
            rows=one["num_records"],
            size=one["size_bytes"],
            least=(one.get("min") or {}).get(table.ordered),
        )
        for one in pa.table(found.get_add_actions()).to_pylist()
    ]


def size(objects: Objects, table: Table) -> TableSize:
    """All of a table; zeros before its first write."""
    found = files(objects, table)
    return TableSize(len(found), sum(file.rows for file in found), sum(file.size for file in found))
