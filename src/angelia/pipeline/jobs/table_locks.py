"""Locks that keep rows from moving while a job changes ledger and archive together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from angelia.errors import Conflict
from angelia.pipeline import runs
from angelia.pipeline.jobs import archive_receipts, archive_sessions
from angelia.pipeline.lake.tables import RECEIPTS, SESSIONS
from angelia.pipeline.sources import audit

MOVERS = (archive_receipts.JOB, archive_sessions.JOB, audit.APP_ID)
# Between commit and purge, a run of these finds its rows by the names of its files.
BY_FILES = {RECEIPTS.name: archive_receipts.JOB, SESSIONS.name: archive_sessions.JOB}


@contextmanager
def nothing_is_half_moved(url: str) -> Iterator[None]:
    """No row moves from the ledger to the archive in this block, and every row is in one of the two. Raises Conflict if
    a run died half way: its own job finishes it."""
    with ExitStack() as stack:
        for job in MOVERS:
            database = stack.enter_context(runs.only_one(url, job))
            dead = runs.open_run(database, job) if job in BY_FILES.values() else None
            if dead is not None:
                raise Conflict(
                    f"run {dead.run_id[:8]} of {job} died half way, and its rows are in both places",
                    hint=f"angelia pipeline run {job}",
                )
        yield
