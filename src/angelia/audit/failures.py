"""Records failed requests of callers: ten events per source and minute, then one with a count for each kind."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from angelia import metrics
from angelia.audit.failures_store import FailureCounts
from angelia.audit.model import Detail
from angelia.audit.service import event, record
from angelia.errors import Unavailable
from angelia.stores.ledger import Ledger

ONE_BY_ONE = 10
ALERT_AN_HOUR = 10
COMPROMISE_AN_HOUR = 100
SIGNATURE = "signature_verification_failed"
_MINUTES_BACK = 5
log = structlog.get_logger(__name__)


class Failures:
    """The failures of all sources. While the hot tier is away none is recorded, since none can be counted."""

    def __init__(self, ledger: Ledger, counts: FailureCounts) -> None:
        self._ledger = ledger
        self._counts = counts

    async def record(
        self,
        kind: str,
        source: str,
        now: datetime,
        *,
        object: str | None = None,
        message_id: UUID | None = None,
        replay_key: bytes | None = None,
        detail: Detail | None = None,
    ) -> None:
        """Records one failure. Whether that succeeds never changes the answer to the source."""
        metrics.FAILURES.labels(kind).inc()
        with contextlib.suppress(Unavailable):
            minute, hour = await self._counts.add(kind, source, now)
            self._alert(kind, source, hour)
            if minute > ONE_BY_ONE:
                return
            failed = event(
                kind, now, actor=source, object=object, message_id=message_id, replay_key=replay_key, detail=detail
            )
            async with self._ledger.transaction() as tx:
                await record(tx, [failed])

    async def summarise(self, now: datetime) -> bool:
        """One tick: for the minutes that are over, an event for each source with more failures than were recorded."""
        for back in range(_MINUTES_BACK, 0, -1):
            minute = (now - timedelta(minutes=back)).replace(second=0, microsecond=0)
            events = []
            for kind, source, count in await self._counts.above(ONE_BY_ONE, minute):
                detail: Detail = {"minute": minute.isoformat(), "failures": count, "recorded": ONE_BY_ONE}
                events.append(event(kind, now, actor=source, detail=detail))
            if events:
                async with self._ledger.transaction() as tx:
                    await record(tx, events)
            await self._counts.forget(minute)
        return False

    def _alert(self, kind: str, source: str, hour: int) -> None:
        if kind != SIGNATURE:
            return
        if hour == ALERT_AN_HOUR + 1:
            metrics.SIGNATURE_ALERTS.labels("failures").inc()
            log.warning("many envelopes of one sender fail verification", sender=source, failures=hour)
        elif hour == COMPROMISE_AN_HOUR + 1:
            metrics.SIGNATURE_ALERTS.labels("suspected_compromise").inc()
            log.error("a sender's keys may be compromised", sender=source, failures=hour)
