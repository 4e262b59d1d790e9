"""Reads small tables of the archive without Spark, and sums large ones a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.acero import AggregateNodeOptions, Declaration, FilterNodeOptions, ProjectNodeOptions, ScanNodeOptions

from angelia.pipeline.lake import commit
from angelia.pipeline.lake.table import DAY, Table
from angelia.stores.objects import Objects


def rows(objects: Objects, table: Table, first: date | None = None, end: date | None = None) -> list[dict[str, Any]]:
    """All rows of the days from the first up to, and without, the end; none before the table's first write."""
    found = commit.find(objects, table)
    if found is None:
        return []
    known: list[dict[str, Any]] = found.to_pyarrow_table().to_pylist()
    return [row for row in known if (first is None or row[DAY] >= first) and (end is None or row[DAY] < end)]


def sums(objects: Objects, table: Table, by: str, of: Mapping[str, pc.Expression], where: pc.Expression) -> pa.Table:
    """Sums for each value of a column. Only these are in memory, however many rows there are."""
    found = commit.find(objects, table)
    if found is None:
        return pa.table({name: [] for name in (by, *of)})
    dataset: ds.Dataset = found.to_pyarrow_dataset()
    steps = [
        Declaration("scan", ScanNodeOptions(dataset, filter=where)),
        Declaration("filter", FilterNodeOptions(where)),
        Declaration("project", ProjectNodeOptions([pc.field(by), *of.values()], [by, *of])),
        Declaration("aggregate", AggregateNodeOptions([(name, "hash_sum", None, name) for name in of], keys=[by])),
    ]
    return Declaration.from_sequence(steps).to_table()
