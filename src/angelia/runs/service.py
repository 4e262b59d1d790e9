"""Reads the pipeline's runs. Only the pipeline itself changes them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from angelia.runs import store
from angelia.runs.model import Latest, Run, RunState
from angelia.stores.ledger import Ledger

MOST_OPEN = 100  # each job has one open run at the most, and there are few jobs


class Runs:
    """Runs of all jobs, on all machines."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def page(
        self, job: str | None, state: RunState | None, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[Run]:
        """Runs of a job, in a state, or of all; newest first."""
        async with self._ledger.reading() as tx:
            return await store.page(tx, job=job, state=state, before=before, limit=limit)

    async def beginning_with(self, prefix: str, limit: int) -> list[Run]:
        """Runs whose id begins with a prefix."""
        async with self._ledger.reading() as tx:
            return await store.page(tx, prefix=prefix, limit=limit)

    async def unfinished(self) -> list[Run]:
        """Open runs, newest first: a process is at work on them, or they died."""
        async with self._ledger.reading() as tx:
            return await store.page(tx, only_open=True, limit=MOST_OPEN)

    async def last_done(self) -> list[Run]:
        """The last run of each job that was done."""
        async with self._ledger.reading() as tx:
            return await store.last_done(tx)

    async def latest(self) -> list[Latest]:
        """The state of each job that ever ran."""
        async with self._ledger.reading() as tx:
            return await store.latest(tx)
