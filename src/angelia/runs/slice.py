"""The slice of the pipeline's runs: what the application opens, and what tests open as well."""

from __future__ import annotations

from datetime import datetime

from angelia import metrics
from angelia.api import Route, Tick
from angelia.audit.slice import AuditSlice
from angelia.mail.slice import MailSlice
from angelia.queues.slice import QueuesSlice
from angelia.rooms.slice import RoomsSlice
from angelia.runs import routes
from angelia.runs.service import Runs
from angelia.stores.open_stores import Stores

_MOST = 1_000_001  # a million and more: a longer backlog is not counted to its end again and again


class RunsSlice:
    """The pipeline's runs as operators see them, and what waits for the next one."""

    def __init__(
        self, stores: Stores, audit: AuditSlice, mail: MailSlice, rooms: RoomsSlice, queues: QueuesSlice
    ) -> None:
        self.runs = Runs(stores.ledger)
        self._audit = audit.audit
        self._receipts = mail.receipts
        self._rooms = rooms.archiving
        self._queues = queues.archiving

    def routes(self) -> list[Route]:
        return routes.routes(self.runs)

    def ticks(self) -> list[Tick]:
        return [
            Tick("pipeline state", 300.0, self._measure_jobs),
            Tick("pipeline waiting", 300.0, self._measure_backlog),
        ]

    async def close(self) -> None:
        """Nothing is held open."""

    async def _measure_jobs(self, now: datetime) -> None:
        metrics.PIPELINE_OPEN.set(len(await self.runs.unfinished()))
        for job in await self.runs.latest():
            if job.done_at is not None:
                metrics.PIPELINE_DONE.labels(job.job).set(job.done_at.timestamp())

    async def _measure_backlog(self, now: datetime) -> None:
        due = await self._audit.count_before(self._receipts.closed_before(now), _MOST)
        metrics.PIPELINE_WAITING.labels("audit_events").set(due)
        metrics.PIPELINE_WAITING.labels("delivery_receipts").set(await self._receipts.count_waiting(now, _MOST))
        metrics.PIPELINE_WAITING.labels("rooms").set(await self._rooms.count_waiting(now, _MOST))
        metrics.PIPELINE_WAITING.labels("queues").set(await self._queues.count_waiting(now, _MOST))
