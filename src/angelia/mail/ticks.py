"""The background work of mail: expiry, mail under revoked keys, and queues that follow the ledger again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from angelia import metrics
from angelia.audit import service as audit
from angelia.envelope.ids import BUCKETS
from angelia.errors import Unavailable
from angelia.keys.model import KeyRecord
from angelia.keys.service import Keys
from angelia.mail import receipts_store, store
from angelia.mail.audit_events import audit_event
from angelia.mail.hot_store import HotMail
from angelia.mail.model import DeliveryStatus, EnvelopeRow, QueuePlace, ReceiptStep
from angelia.mail.sender_events import delivery_event
from angelia.stores.ledger import Ledger, Tx

_BATCH = 500
_ENQUEUED = timedelta(seconds=5)  # a send that committed this long ago has enqueued its message, or never will
_LOOK_BACK = timedelta(seconds=120)  # how late a commit may be after the time that it carries
_LONGEST_LIFE = timedelta(days=30)
_BUCKETS_A_RUN = 32
_PAGES_A_RUN = 10
REBUILT, REBUILDING, RECONCILED, REVOKED = "rebuilt", "rebuilding", "reconciled", "revoked"
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Round:
    """The messages that were queued between two times, and the last one that was looked at."""

    since: datetime
    until: datetime
    last: QueuePlace | None = None


class MailTicks:
    """One method for each tick; each does a bounded piece of work and returns whether more waits."""

    def __init__(self, ledger: Ledger, hot: HotMail, keys: Keys) -> None:
        self._ledger = ledger
        self._hot = hot
        self._keys = keys
        self._round: _Round | None = None  # of `reconcile`, while it goes on

    async def expire(self, now: datetime) -> bool:
        """Ends messages whose time is over, and tells their senders."""
        async with self._ledger.transaction() as tx:
            rows = await store.expired(tx, now, _BATCH)
            statuses = await _end(tx, rows, DeliveryStatus.EXPIRED, now)
        metrics.MAIL_ENDED.labels("expired").inc(len(rows))
        await self._dequeue(rows, statuses, DeliveryStatus.EXPIRED, now)
        return len(rows) == _BATCH

    async def forget_ids(self, now: datetime) -> bool:
        """Deletes the ids of messages that expired long enough ago."""
        async with self._ledger.transaction() as tx:
            return await store.forget_old_ids(tx, now, _BATCH) == _BATCH

    async def fail_revoked(self, now: datetime) -> bool:
        """Fails mail under revoked keys: the recipient could not open it, or not believe it."""
        async with self._ledger.reading() as tx:
            mark = await store.mark(tx, REVOKED)
        # The last minutes are looked at again: a revocation may commit later than the time that it carries.
        since = (datetime.fromisoformat(mark) if mark else now - _LONGEST_LIFE) - _LOOK_BACK
        last: KeyRecord | None = None
        more = False
        while True:
            revoked = await self._keys.revoked_since(since, last, _BATCH)
            for record in revoked:
                more = await self._fail_under(record, now) or more
            if len(revoked) < _BATCH:
                break
            last = revoked[-1]
        if not more:
            async with self._ledger.transaction() as tx:
                await store.set_mark(tx, REVOKED, now.isoformat())
        return more

    async def reconcile(self, now: datetime) -> bool:
        """Enqueues what a server committed and did not enqueue, because it died in between."""
        if self._round is None:
            async with self._ledger.reading() as tx:
                mark = await store.mark(tx, RECONCILED)
            since = min(datetime.fromisoformat(mark), now) if mark else now
            self._round = _Round(since - _LOOK_BACK, now - _ENQUEUED)
        look = self._round
        page = functools.partial(store.queued_between, since=look.since, until=look.until, limit=_BATCH)
        for _ in range(_PAGES_A_RUN):
            found, look.last = await self._enqueue_page(page, look.last)
            metrics.MAIL_REQUEUED.inc(found)
            if look.last is None:
                self._round = None
                async with self._ledger.transaction() as tx:
                    await store.set_mark(tx, RECONCILED, look.until.isoformat())
                return False
        return True

    async def rebuild(self, memory: str) -> bool:
        """Fills the queues of a hot tier that lost its memory, a few buckets at a time, while mail goes on."""
        async with self._ledger.transaction() as tx:
            if await store.mark(tx, REBUILT) == memory:
                return False
            begun, _, reached = (await store.mark(tx, REBUILDING) or "").rpartition(" ")
        first = int(reached) if begun == memory else 0
        if first == 0:
            log.info("the hot tier is new; its queues are rebuilt from the ledger")
        end = min(first + _BUCKETS_A_RUN, BUCKETS)
        for bucket in range(first, end):
            page, last = functools.partial(store.in_bucket, bucket=bucket, limit=_BATCH), None
            while (last := (await self._enqueue_page(page, last))[1]) is not None:
                pass
        async with self._ledger.transaction() as tx:
            await store.set_mark(tx, REBUILDING, f"{memory} {end}")
            if end == BUCKETS:
                await store.set_mark(tx, REBUILT, memory)
                metrics.MAIL_REBUILT.inc()
        return True

    async def _enqueue_page(
        self, page: Callable[[Tx, QueuePlace | None], Awaitable[list[QueuePlace]]], after: QueuePlace | None
    ) -> tuple[int, QueuePlace | None]:
        """Puts the messages of the page after a place into their queues. Returns how many were not there, and the place
        after which the next page begins, if there is one."""
        # Inside the transaction that locks the rows: none of them can be acknowledged before it is in its queue.
        async with self._ledger.transaction() as tx:
            places = await page(tx, after)
            found = sum(await asyncio.gather(*(self._hot.enqueue(place) for place in places)))
        return found, places[-1] if len(places) == _BATCH else None

    async def _fail_under(self, record: KeyRecord, now: datetime) -> bool:
        """Fails one batch of mail under one revoked key; returns whether more waits."""
        async with self._ledger.transaction() as tx:
            if record.signer_id is None:
                rows = await store.sealed_to(tx, record.agent_nhi, record.key_id, _BATCH)
            else:
                since = record.compromised_since or record.revoked_at
                assert since is not None, "it is revoked"
                rows = await store.signed_by(tx, record.agent_nhi, record.signer_id, since, _BATCH)
            statuses = await _end(tx, rows, DeliveryStatus.FAILED, now, "key_revoked")
            if rows:
                # The sender seals the message again under the same id, so that the recipient never opens it twice.
                await store.forget_ids(tx, [(row.sender, row.message_id) for row in rows])
        metrics.MAIL_ENDED.labels("key_revoked").inc(len(rows))
        await self._dequeue(rows, statuses, DeliveryStatus.FAILED, now, "key_revoked")
        return len(rows) == _BATCH

    async def _dequeue(
        self,
        rows: Sequence[EnvelopeRow],
        statuses: Mapping[bytes, DeliveryStatus],
        status: DeliveryStatus,
        now: datetime,
        reason: str | None = None,
    ) -> None:
        """Removes messages from their queues, and tells the sender of each whose receipt has this status now; what was
        a dead letter or delivered before keeps its own."""

        def events(row: EnvelopeRow) -> list[tuple[str, bytes]]:
            changed = statuses.get(row.replay_key) is status
            return [delivery_event(row, status, now, reason)] if changed else []

        with contextlib.suppress(Unavailable):
            await asyncio.gather(*(self._hot.remove(row.recipient, [row.mref], events(row)) for row in rows))


async def _end(
    tx: Tx, rows: Sequence[EnvelopeRow], status: DeliveryStatus, now: datetime, reason: str | None = None
) -> dict[bytes, DeliveryStatus]:
    """Removes messages from the ledger, with their receipts and audit events; returns the status of each receipt."""
    if not rows:
        return {}
    await store.remove(tx, rows)
    statuses = await receipts_store.move(tx, [ReceiptStep(message=row, status=status, reason=reason) for row in rows])
    await audit.record(tx, [audit_event(f"message_{status}", row, now, "angelia", row.recipient) for row in rows])
    return statuses
