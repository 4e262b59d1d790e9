"""Receipts: what became of each message, and what its recipient signed about it."""

from __future__ import annotations

import contextlib
from datetime import datetime

from angelia.api import AgentRow, parse_cursor
from angelia.audit import service as audit
from angelia.audit.failures import Failures
from angelia.envelope.receipts import Receipt, ReceiptDocument
from angelia.envelope.wire import TTL_MAX
from angelia.errors import NotFound, ReceiptArchived, Unavailable
from angelia.mail import receipts_store, store
from angelia.mail.api import ReceiptQuery
from angelia.mail.audit_events import audit_event
from angelia.mail.hot_store import HotMail
from angelia.mail.model import (
    NO_REASON,
    Attested,
    DeliveryStatus,
    ReceiptBacklog,
    ReceiptRecord,
    ReceiptStep,
    closed_before,
    final_before,
    status_of,
)
from angelia.mail.receipt_checks import check_fits, checked_receipt
from angelia.mail.receipts_store import DAILY
from angelia.mail.sender_events import delivery_event
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.partitions import make_ahead


class Receipts:
    """The receipts of all messages that the ledger still has."""

    def __init__(self, ledger: Ledger, hot: HotMail, failures: Failures, ttl_max: int = TTL_MAX) -> None:
        self._ledger = ledger
        self._hot = hot
        self._failures = failures
        self._ttl_max = ttl_max

    async def one(self, agent: AgentRow, replay_key: bytes) -> ReceiptRecord:
        """The receipt of a message that the agent sent or received."""
        async with self._ledger.reading() as tx:
            found = await receipts_store.one(tx, replay_key)
        if found is None or agent.handle not in (found.sender, found.recipient):
            raise NotFound("there is no receipt of such a message of yours", hint=_IN_THE_ARCHIVE)
        return found

    async def page(self, agent: AgentRow, query: ReceiptQuery) -> list[ReceiptRecord]:
        """Receipts of what the agent sent and received, or of one side, newest first."""
        before, limit = parse_cursor(query.cursor), query.and_one_more
        async with self._ledger.reading() as tx:
            return await receipts_store.page(tx, agent.handle, query.status, query.since, before, limit, query.side)

    async def take(self, agent: AgentRow, document: ReceiptDocument, now: datetime) -> ReceiptRecord:
        """Takes what a recipient signed about one message: it was delivered, read, or failed. Returns its receipt."""
        receipt = await checked_receipt(self._ledger, self._failures, agent, document, now)
        replay_key, status = bytes.fromhex(receipt.replay_key), status_of(receipt)
        async with self._ledger.transaction() as tx:
            # The envelope before its receipt, as in every transaction that ends a message.
            waiting = await store.lock_one(tx, agent.handle, replay_key)
            row = await receipts_store.lock(tx, replay_key)
            if row is None:
                # Its recipient signed it, so there was such a message; receipts leave the ledger for the archive only.
                raise ReceiptArchived(hint=_IN_THE_ARCHIVE)
            if row.recipient != agent.handle:
                raise NotFound("there is no such message for you")
            check_fits(receipt, row)
            if row.sent_at < final_before(now, self._ttl_max):
                raise ReceiptArchived("the receipt is about to leave for the archive", hint=_IN_THE_ARCHIVE)
            if row.status is status and row.receipt is not None:
                return row  # the first answer was lost on its way
            if row.status is not status:
                row.check_step(status)
            await receipts_store.move(tx, [_step(row, receipt, now, in_queue=waiting is not None)])
            if status is DeliveryStatus.FAILED and waiting is not None:
                await store.bury(tx, [(waiting, receipt.reason or NO_REASON)], now)
            await audit.record(tx, [audit_event(f"message_{status}", row, now, agent.handle, row.sender)])
            moved = await receipts_store.lock(tx, replay_key)
        assert moved is not None, "it is locked"
        with contextlib.suppress(Unavailable):
            gone = [waiting.mref] if status is DeliveryStatus.FAILED and waiting is not None else []
            await self._hot.remove(agent.handle, gone, [delivery_event(row, status, now, receipt.reason or None)])
        return moved

    async def make_partitions(self, now: datetime) -> int:
        """Makes the daily partitions from yesterday to a week ahead; returns how many rows missed theirs."""
        return await make_ahead(self._ledger, DAILY, now)

    async def count_waiting(self, now: datetime, most: int) -> int:
        """How many receipts are due for the archive; counts up to `most`."""
        async with self._ledger.reading() as tx:
            return await receipts_store.count_before(tx, self.closed_before(now), most)

    def closed_before(self, now: datetime) -> datetime:
        """Receipts of messages that were sent before this are due for the archive."""
        return closed_before(now, self._ttl_max)


_IN_THE_ARCHIVE = "older ones are in the archive, which the operator of the relay can read"


async def waiting(tx: Tx, now: datetime, ttl_max: int) -> ReceiptBacklog:
    """The receipts that are due for the archive."""
    closed = closed_before(now, ttl_max)
    count, oldest = await receipts_store.sent_before(tx, closed)
    return ReceiptBacklog(count, None if oldest is None else closed - oldest)


def _step(row: ReceiptRecord, receipt: Receipt, now: datetime, *, in_queue: bool) -> ReceiptStep:
    """The step that a signed receipt is. While the message is in its queue, the ack is still to come and sets the time
    of delivery."""
    status = status_of(receipt)
    return ReceiptStep(
        message=row,
        status=status,
        attested_by=Attested.RECIPIENT,
        delivered_at=None if in_queue or status is DeliveryStatus.FAILED else now,
        read_at=now if status is DeliveryStatus.READ else None,
        attempts=row.delivery_attempts,
        reason=receipt.reason or NO_REASON if status is DeliveryStatus.FAILED else None,
        receipt=receipt,
    )
