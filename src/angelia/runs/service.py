"""The pipeline's runs as others may see them. Nothing is changed here: a run is the pipeline's own."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from angelia.runs import store
from angelia.runs.model import Latest, Run, State
from angelia.stores.ledger import Ledger

MOST_OPEN = 100  # there is one of each kind, and few kinds


class Runs:
    """Runs of all jobs, on whatever machine."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def page(
        self, job: str | None, state: State | None, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[Run]:
        """Runs that fit, newest first."""
        async with self._ledger.reading() as tx:
            return await store.page(tx, job=job, state=state, before=before, limit=limit)

    async def beginning_with(self, prefix: str, limit: int) -> list[Run]:
        """Runs whose id begins like this."""
        async with self._ledger.reading() as tx:
            return await store.page(tx, prefix=prefix, limit=limit)

    async def unfinished(self) -> list[Run]:
        """Runs that are not over, newest first: somebody is at work on them, or they died."""
        async with self._ledger.reading() as tx:
            return await store.page(tx, only_open=True, limit=MOST_OPEN)

    async def last_done(self) -> list[Run]:
        """Of each job the run that was done last."""
        async with self._ledger.reading() as tx:
            return await store.last_done(tx)

    async def latest(self) -> list[Latest]:
        """How each job stands that ever ran."""
        async with self._ledger.reading() as tx:
            return await store.latest(tx)
