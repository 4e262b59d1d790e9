"""Tables of the archive and their files, as the Delta log lists them; no data is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from angelia.errors import Conflict
from angelia.pipeline.lake.tables import DAY, Table
from angelia.stores.objects import Objects


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table's present version."""

    path: str  # below the table
    uri: str
    day: date
    rows: int
    size: int
    least: int  # the smallest and the largest value of the table's `ordered` column; 0 if it has none
    most: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class TableSize:
    """Files, rows and bytes of a table's present version."""

    files: int
    rows: int
    bytes: int


def find(objects: Objects, table: Table) -> DeltaTable | None:
    """The table; None before its first write."""
    try:
        return DeltaTable(objects.table(table.name), storage_options=dict(objects.options))
    except TableNotFoundError:
        return None


def files(objects: Objects, table: Table, days: tuple[date, date] | None = None) -> list[TableFile]:
    """The files of the present version, of the days from the first up to, but not including, the last; none before the
    first write.

    Their URIs are built here, because delta-rs escapes blanks."""
    found = find(objects, table)
    if found is None:
        return []
    root = objects.table(table.name)
    listed = (
        TableFile(
            path=one["path"],
            uri=f"{root}/{one['path']}",
            day=one["partition"][DAY],
            rows=one["num_records"],
            size=one["size_bytes"],
            least=_bound(one, "min", table),
            most=_bound(one, "max", table),
        )
        for one in pa.table(found.get_add_actions()).to_pylist()
    )
    return [file for file in listed if days is None or days[0] <= file.day < days[1]]


def _bound(listed: dict[str, Any], which: str, table: Table) -> int:
    """The smallest or largest value of a file, by the log. A file without it would be passed over in silence."""
    if not table.ordered:
        return 0
    bound: int | None = (listed.get(which) or {}).get(table.ordered)
    if bound is None:
        raise Conflict(f"the log of {table.name} does not say which {table.ordered} are in {listed['path']}")
    return bound


def row_count(objects: Objects, table: Table) -> int:
    """How many rows a table has, by its log; 0 before its first write."""
    found = find(objects, table)
    listed = None if found is None else pc.sum(pa.table(found.get_add_actions())["num_records"]).as_py()
    return listed or 0


def size(objects: Objects, table: Table) -> TableSize:
    """The size of a table; zeros before its first write."""
    found = files(objects, table)
    return TableSize(len(found), sum(file.rows for file in found), sum(file.size for file in found))
