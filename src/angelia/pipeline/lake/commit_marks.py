"""Marks for commits of jobs that start over after a crash: only a retry within one run must not commit twice."""

from __future__ import annotations

from angelia.pipeline.lake import commit
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import Table
from angelia.pipeline.runs import JobRun
from angelia.stores.objects import Objects


def next_mark(objects: Objects, table: Table, run: JobRun) -> Mark:
    """The run's version, or the next one of this table: a run may write a table several times, and an archive may have
    seen more runs than the ledger."""
    have = commit.version_of(objects, table, run.app_id)
    return Mark(run.app_id, run.version if have is None else max(run.version, have + 1))
