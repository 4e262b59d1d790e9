"""Puts small results into a table without Spark: what fits into the driver need not leave it."""

from __future__ import annotations

from datetime import date

import pyarrow as pa

from angelia.pipeline.lake import commit
from angelia.pipeline.lake.commit_marks import next_mark
from angelia.pipeline.lake.table import Table
from angelia.pipeline.lake.writer import Files
from angelia.pipeline.runs import Run
from angelia.stores.objects import Objects


def put(
    objects: Objects, table: Table, rows: pa.Table, run: Run, *, replacing: tuple[date, date] | None = None
) -> None:
    """Append rows in one commit, or let them take the place of the days from one up to, and without, another."""
    mark = next_mark(objects, table, run)
    with Files(objects, commit.as_in(objects, table), f"{run.run_id}-{mark.version}") as files:
        for batch in rows.select(table.schema.names).cast(table.schema).combine_chunks().to_batches():
            files.add(batch)
    commit.commit(objects, table, files.written, mark, replacing=replacing)
