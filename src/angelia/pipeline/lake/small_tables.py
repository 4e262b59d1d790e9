"""Reads and writes small tables of the archive without Spark, and sums large ones a batch at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.acero import AggregateNodeOptions, Declaration, FilterNodeOptions, ProjectNodeOptions, ScanNodeOptions

from angelia.pipeline.lake import commit, listing
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.tables import DAY, Table
from angelia.pipeline.runs import JobRun
from angelia.stores.objects import Objects


def rows(objects: Objects, table: Table, first: date | None = None, end: date | None = None) -> list[dict[str, Any]]:
    """All rows of the days from `first` up to, but not including, `end`; none before the table's first write."""
    found = listing.find(objects, table)
    if found is None:
        return []
    known: list[dict[str, Any]] = found.to_pyarrow_table().to_pylist()
    return [row for row in known if (first is None or row[DAY] >= first) and (end is None or row[DAY] < end)]


def sums(objects: Objects, table: Table, by: str, of: Mapping[str, pc.Expression], where: pc.Expression) -> pa.Table:
    """Sums for each value of a column; only the sums are in memory."""
    found = listing.find(objects, table)
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


def put(
    objects: Objects, table: Table, rows: pa.Table, run: JobRun, *, replacing: tuple[date, date] | None = None
) -> None:
    """Appends rows in one commit, or replaces the days from the first up to, but not including, the second."""
    mark = next_mark(objects, table, run)
    from angelia.pipeline.lake.writer import Files  # here, because it imports Spark, which readers do not need

    with Files(objects, commit.as_in(objects, table), f"{run.run_id}-{mark.version}") as files:
        for batch in rows.select(table.schema.names).cast(table.schema).combine_chunks().to_batches():
            files.add(batch)
    commit.commit(objects, table, files.written, mark, replacing=replacing)


def put_days(
    objects: Objects, table: Table, new: Iterable[Mapping[str, Any]], days: Collection[date], run: JobRun
) -> None:
    """Replaces these days of a table by new rows, in one commit; the days between them stay as they are."""
    if not days:
        return
    first, end = min(days), max(days) + timedelta(days=1)
    kept = [row for row in rows(objects, table, first, end) if row[DAY] not in days]
    put(objects, table, pa.Table.from_pylist([*kept, *new], table.schema), run, replacing=(first, end))
