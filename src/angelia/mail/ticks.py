"""What the ticks do for mail: expiry, mail under revoked keys, and queues that follow from the ledger again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import structlog

from angelia import metrics
from angelia.audit import service as audit
from angelia.audit.model import Event
from angelia.envelope.ids import BUCKETS
from angelia.errors import Unavailable
from angelia.keys.model import KeyRecord
from angelia.keys.service import Keys
from angelia.mail import receipts_store, store
from angelia.mail.hot_store import HotMail
from angelia.mail.model import Place, Queued, Status
from angelia.mail.receipts_store import Step
from angelia.mail.sender_events import word
from angelia.stores.ledger import Ledger

_BATCH = 500
_SETTLED = timedelta(seconds=5)  # a send that committed this long ago has put its message into the queue, or never will
_LOOK_BACK = timedelta(seconds=120)  # how late a commit may be after the time that it carries
_LONGEST_LIFE = timedelta(days=30)
_BUCKETS_A_RUN = 32
REBUILT, REBUILDING, RECONCILED, REVOKED = "rebuilt", "rebuilding", "reconciled", "revoked"
log = structlog.get_logger(__name__)


class Upkeep:
    """One method for each tick; each takes a small batch and says whether more waits."""

    def __init__(self, ledger: Ledger, hot: HotMail, keys: Keys) -> None:
        self._ledger = ledger
        self._hot = hot
        self._keys = keys

    async def expire(self, now: datetime) -> bool:
        """Messages whose time is over go, and their senders are told."""
        stand: dict[bytes, Status] = {}
        async with self._ledger.transaction() as tx:
            rows = await store.expired(tx, now, _BATCH)
            if rows:
                await store.remove(tx, rows)
                stand = await receipts_store.move(tx, [Step(message=row, status=Status.EXPIRED) for row in rows])
                await audit.record(tx, [_event("message_expired", row, now) for row in rows])
        metrics.MAIL_ENDED.labels("expired").inc(len(rows))
        await self._tell(rows, stand, Status.EXPIRED, now)
        return len(rows) == _BATCH

    async def forget_ids(self, now: datetime) -> bool:
        """Ids of messages that ended long enough ago are free again."""
        async with self._ledger.transaction() as tx:
            return await store.forget_old_ids(tx, now, _BATCH) == _BATCH

    async def fail_revoked(self, now: datetime) -> bool:
        """Mail under keys that were revoked fails: nobody can open it, or nobody can believe it."""
        async with self._ledger.reading() as tx:
            mark = await store.mark(tx, REVOKED)
        # Again and again over the last minutes: a revocation may commit later than the time that it carries.
        since = (datetime.fromisoformat(mark) if mark else now - _LONGEST_LIFE) - _LOOK_BACK
        last: KeyRecord | None = None
        while True:
            revoked = await self._keys.revoked_since(since, last, _BATCH)
            for record in revoked:
                while await self._fail_under(record, now):
                    pass
            if len(revoked) < _BATCH:
                break
            last = revoked[-1]
        async with self._ledger.transaction() as tx:
            await store.set_mark(tx, REVOKED, now.isoformat())
        return False

    async def reconcile(self, now: datetime) -> bool:
        """Put into its queue what a server left out that died between its commit and its script."""
        async with self._ledger.reading() as tx:
            mark = await store.mark(tx, RECONCILED)
        since = datetime.fromisoformat(mark) if mark else now
        until = now - _SETTLED
        found = await self._enqueue_queued(min(since, now) - _LOOK_BACK, until)
        metrics.MAIL_REQUEUED.inc(found)
        async with self._ledger.transaction() as tx:
            await store.set_mark(tx, RECONCILED, until.isoformat())
        return False

    async def rebuild(self, memory: str) -> bool:
        """Fill a hot tier whose memory is a new one, a few buckets at a time, while everybody goes on."""
        async with self._ledger.transaction() as tx:
            if await store.mark(tx, REBUILT) == memory:
                return False
            begun, _, reached = (await store.mark(tx, REBUILDING) or "").rpartition(" ")
        first = int(reached) if begun == memory else 0
        if first == 0:
            log.info("the hot tier is new; its queues are rebuilt from the ledger")
        end = min(first + _BUCKETS_A_RUN, BUCKETS)
        for bucket in range(first, end):
            await self._enqueue_bucket(bucket)
        async with self._ledger.transaction() as tx:
            await store.set_mark(tx, REBUILDING, f"{memory} {end}")
            if end == BUCKETS:
                await store.set_mark(tx, REBUILT, memory)
                metrics.MAIL_REBUILT.inc()
        return True

    async def _enqueue_queued(self, since: datetime, until: datetime) -> int:
        found, last = 0, None
        while True:
            async with self._ledger.transaction() as tx:
                places = await store.queued_between(tx, since, until, last, _BATCH)
                found += await self._enqueue(places)
            if len(places) < _BATCH:
                return found
            last = places[-1]

    async def _enqueue_bucket(self, bucket: int) -> None:
        last = b""
        while True:
            async with self._ledger.transaction() as tx:
                page = await store.in_bucket(tx, bucket, last, _BATCH)
                await self._enqueue([place for _, place in page])
            if len(page) < _BATCH:
                return
            last = page[-1][0]

    async def _enqueue(self, places: Sequence[Place]) -> int:
        """Inside the transaction that holds the rows: none of them can be settled before it is in its queue."""
        return sum(await asyncio.gather(*(self._hot.enqueue(place) for place in places)))

    async def _fail_under(self, record: KeyRecord, now: datetime) -> bool:
        stand: dict[bytes, Status] = {}
        async with self._ledger.transaction() as tx:
            if record.signer_id is None:
                rows = await store.sealed_to(tx, record.agent_nhi, record.key_id, _BATCH)
            else:
                since = record.compromised_since or record.revoked_at
                assert since is not None, "it is revoked"
                rows = await store.signed_by(tx, record.agent_nhi, record.signer_id, since, _BATCH)
            if rows:
                await store.remove(tx, rows)
                steps = [Step(message=row, status=Status.FAILED, reason="key_revoked") for row in rows]
                stand = await receipts_store.move(tx, steps)
                # Its sender seals the message again under the same id, so that its recipient never opens it twice.
                await store.forget_ids(tx, [(row.sender, row.message_id) for row in rows])
                await audit.record(tx, [_event("message_failed", row, now) for row in rows])
        metrics.MAIL_ENDED.labels("key_revoked").inc(len(rows))
        await self._tell(rows, stand, Status.FAILED, now, "key_revoked")
        return len(rows) == _BATCH

    async def _tell(
        self,
        rows: Sequence[Queued],
        stand: Mapping[bytes, Status],
        status: Status,
        now: datetime,
        reason: str | None = None,
    ) -> None:
        """Out of the queues, and word to each sender, except about what was a dead letter or delivered before."""
        with contextlib.suppress(Unavailable):
            await asyncio.gather(
                *(
                    self._hot.remove(
                        row.recipient,
                        [row.mref],
                        [word(row, status, now, reason)] if stand.get(row.replay_key) is status else [],
                    )
                    for row in rows
                )
            )


def _event(kind: str, row: Queued, now: datetime) -> Event:
    return audit.event(
        kind, now, actor="angelia", object=row.recipient, message_id=row.message_id, replay_key=row.replay_key
    )
