"""Locks that keep rows from moving while a job changes ledger and archive together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from angelia.errors import Conflict
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs import archive_queues, archive_receipts, archive_rooms, archive_sessions
from angelia.pipeline.lake.tables import QUEUE_DEAD_LETTERS, QUEUE_MESSAGES, RECEIPTS, ROOMS, SESSIONS
from angelia.pipeline.sources import audit

MOVERS = (
    archive_receipts.JOB,
    archive_sessions.JOB,
    archive_rooms.JOB,
    archive_queues.JOB,
    archive_queues.LETTERS,
    audit.APP_ID,
)
# Between commit and purge, a run of these finds its rows by the names of its files.
BY_FILES = {
    RECEIPTS.name: archive_receipts.JOB,
    SESSIONS.name: archive_sessions.JOB,
    ROOMS.name: archive_rooms.JOB,
    QUEUE_MESSAGES.name: archive_queues.JOB,
    QUEUE_DEAD_LETTERS.name: archive_queues.LETTERS,
}


@contextmanager
def nothing_is_half_moved(url: str, job: str) -> Iterator[Database]:
    """A connection that holds the lock of a job. No row moves from the ledger to the archive in this block, and every
    row is in one of the two. Raises Conflict if a run died half way: its own job finishes it."""
    with runs.only_one(url, *MOVERS, job) as database:
        for mover in BY_FILES.values():
            if (dead := runs.open_run(database, mover)) is not None:
                raise Conflict(
                    f"run {dead.run_id[:8]} of {dead.job} died half way, and its rows are in both places",
                    hint=f"angelia pipeline run {dead.job}",
                )
        yield database
