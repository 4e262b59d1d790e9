"""Marks of commits that can be made again from their start: only the retry of one must be told from the next."""

from __future__ import annotations

from angelia.pipeline.lake import commit
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.table import Table
from angelia.pipeline.runs import JobRun
from angelia.stores.objects import Objects


def next_mark(objects: Objects, table: Table, run: JobRun) -> Mark:
    """The run's version, or what comes next in this table: a run may write it several times, and an archive may be
    older than the ledger whose runs are counted."""
    have = commit.version_of(objects, table, run.app_id)
    return Mark(run.app_id, run.version if have is None else max(run.version, have + 1))
