"""Receipts: what became of each message, and the recipient's signed word on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.failures import SIGNATURE, Failures
from angelia.envelope import receipts
from angelia.envelope.receipts import Receipt, ReceiptDocument, parse_receipt, receipt_document
from angelia.envelope.refusals import SignatureFailed
from angelia.envelope.times import SKEW, moment
from angelia.envelope.wire import TTL_MAX
from angelia.errors import AngeliaError, InvalidArgument, NotFound, ReceiptArchived, Unavailable
from angelia.keys import admission
from angelia.keys.admission import Signed
from angelia.mail import receipts_store, store
from angelia.mail.acknowledgement import check_receipt_fits
from angelia.mail.hot_store import HotMail
from angelia.mail.model import (
    Attested,
    ReceiptAnswer,
    ReceiptRow,
    Side,
    Status,
    Waiting,
    closed_before,
    settled_before,
    status_of,
)
from angelia.mail.receipts_store import DAILY, Step
from angelia.mail.sender_events import word
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.partitions import make_ahead


class Receipts:
    """The receipts of all messages that the ledger still has."""

    def __init__(self, ledger: Ledger, hot: HotMail, failures: Failures, ttl_max: int = TTL_MAX) -> None:
        self._ledger = ledger
        self._hot = hot
        self._failures = failures
        self._ttl_max = ttl_max

    async def one(self, agent: AgentRow, replay_key: bytes) -> ReceiptRow:
        """The receipt of a message that the agent sent or received."""
        async with self._ledger.reading() as tx:
            found = (await receipts_store.of_messages(tx, [replay_key])).get(replay_key)
        if found is None or agent.handle not in (found.sender, found.recipient):
            raise NotFound("there is no receipt of such a message of yours", hint=_IN_THE_ARCHIVE)
        return found

    async def page(
        self,
        agent: AgentRow,
        status: Status | None,
        since: datetime | None,
        before: tuple[datetime, UUID] | None,
        limit: int,
        side: Side | None = None,
    ) -> list[ReceiptRow]:
        """Receipts of what the agent sent and received, or of one side, newest first."""
        async with self._ledger.reading() as tx:
            return await receipts_store.page(tx, agent.handle, status, since, before, limit, side)

    async def checked(
        self, agent: AgentRow, documents: Sequence[ReceiptDocument | None], now: datetime
    ) -> list[Receipt | AngeliaError | None]:
        """Receipts whose signatures hold, by a pair of the recipient's own; the others' errors; None for none."""
        parsed = [_parsed(agent, document, now) for document in documents]
        there = [one for one in parsed if isinstance(one, Receipt)]
        if not there:
            return list(parsed)
        signed = [Signed(one.recipient_nhi, one.signer_id, moment(one.time_ms)) for one in there]
        async with self._ledger.reading() as tx:
            pairs = iter(await admission.signers(tx, signed, now))
        outcomes: list[Receipt | AngeliaError | None] = []
        for one in parsed:
            if not isinstance(one, Receipt):
                outcomes.append(one)
                continue
            pair = next(pairs)
            if isinstance(pair, AngeliaError):
                outcomes.append(pair)
                continue
            try:
                await asyncio.sleep(0)  # a hundred of them are not checked in one go
                receipts.check_receipt(one, pair)
                outcomes.append(one)
            except SignatureFailed as error:
                key = bytes.fromhex(one.replay_key)
                await self._failures.record(SIGNATURE, agent.handle, now, replay_key=key, detail={"of": "receipt"})
                outcomes.append(error)
        return outcomes

    async def take(self, agent: AgentRow, document: ReceiptDocument, now: datetime) -> ReceiptRow:
        """A recipient's word about one message: it arrived, it was read, or nothing can be done with it."""
        (receipt,) = await self.checked(agent, [document], now)
        if isinstance(receipt, AngeliaError):
            raise receipt
        assert receipt is not None, "a document was given"
        replay_key, status = bytes.fromhex(receipt.replay_key), status_of(receipt)
        async with self._ledger.transaction() as tx:
            # The envelope before its receipt, as everybody who settles a message does.
            waiting = (await store.lock(tx, [(agent.handle, replay_key)])).get((agent.handle, replay_key))
            row = await receipts_store.lock(tx, replay_key)
            if row is None:
                # It is signed by who received it, and receipts leave the ledger for the archive only.
                raise ReceiptArchived(hint=_IN_THE_ARCHIVE)
            if row.recipient != agent.handle:
                raise NotFound("there is no such message for you")
            check_receipt_fits(receipt, row)
            if row.sent_at < settled_before(now, self._ttl_max):
                raise ReceiptArchived("the receipt is about to leave for the archive", hint=_IN_THE_ARCHIVE)
            if row.status is status and row.receipt is not None:
                return row  # the first answer was lost on its way
            if row.status is not status:
                row.check_step(status)
            await receipts_store.move(tx, [_step(row, receipt, now, in_queue=waiting is not None)])
            if status is Status.FAILED and waiting is not None:
                await store.bury(tx, [(waiting, receipt.reason or _NO_REASON)], now)
            kind = f"message_{status}"
            event = audit.event(
                kind, now, actor=agent.handle, object=row.sender, message_id=row.message_id, replay_key=replay_key
            )
            await audit.record(tx, [event])
            moved = await receipts_store.lock(tx, replay_key)
        assert moved is not None, "it is locked"
        with contextlib.suppress(Unavailable):
            gone = [waiting.mref] if status is Status.FAILED and waiting is not None else []
            await self._hot.remove(agent.handle, gone, [word(row, status, now, receipt.reason or None)])
        return moved

    async def make_partitions(self, now: datetime) -> int:
        """Make the daily partitions from yesterday to a week ahead; returns how many rows missed theirs."""
        return await make_ahead(self._ledger, DAILY, now)

    async def waiting(self, now: datetime) -> Waiting:
        """What may leave for the archive and has not."""
        async with self._ledger.reading() as tx:
            return await waiting(tx, now, self._ttl_max)

    async def count_waiting(self, now: datetime, most: int) -> int:
        """How many may leave for the archive and have not; no more than so many are counted."""
        async with self._ledger.reading() as tx:
            return await receipts_store.count_before(tx, self.closed_before(now), most)

    def closed_before(self, now: datetime) -> datetime:
        """What is older than this may leave the ledger."""
        return closed_before(now, self._ttl_max)


_NO_REASON = "the recipient said so"
_IN_THE_ARCHIVE = "older ones are in the archive, which the operator of the relay can read"


async def waiting(tx: Tx, now: datetime, ttl_max: int) -> Waiting:
    """What may leave for the archive and has not."""
    closed = closed_before(now, ttl_max)
    count, oldest = await receipts_store.sent_before(tx, closed)
    return Waiting(count, None if oldest is None else closed - oldest)


def answer(row: ReceiptRow) -> ReceiptAnswer:
    """A receipt as it goes out."""
    return ReceiptAnswer(
        receipt_id=row.receipt_id,
        message_id=row.message_id,
        replay_key=row.replay_key.hex(),
        sender=row.sender,
        recipient=row.recipient,
        channel_id=row.channel_id,
        priority=int(row.priority),
        wire_bytes=row.wire_bytes,
        status=row.status,
        attested_by=row.attested_by,
        delivery_attempts=row.delivery_attempts,
        last_attempt_at=row.last_attempt_at,
        sent_at=row.sent_at,
        accepted_at=row.accepted_at,
        expires_at=row.expires_at,
        delivered_at=row.delivered_at,
        acknowledged_at=row.acknowledged_at,
        read_at=row.read_at,
        failure_reason=row.failure_reason,
        receipt=None if row.receipt is None else receipt_document(row.receipt),
    )


def _parsed(agent: AgentRow, document: ReceiptDocument | None, now: datetime) -> Receipt | AngeliaError | None:
    if document is None:
        return None
    try:
        receipt = parse_receipt(document)
        if receipt.recipient_nhi != agent.handle:
            raise InvalidArgument("the receipt is another agent's")
        if moment(receipt.time_ms) > now + SKEW:
            raise InvalidArgument("the receipt was signed later than now", hint="check this machine's clock")
    except AngeliaError as error:
        return error
    return receipt


def _step(row: ReceiptRow, receipt: Receipt, now: datetime, *, in_queue: bool) -> Step:
    """When it was delivered is for the acknowledgment to say, if that is still to come."""
    status = status_of(receipt)
    return Step(
        message=row,
        status=status,
        attested_by=Attested.RECIPIENT,
        delivered_at=None if in_queue or status is Status.FAILED else now,
        read_at=now if status is Status.READ else None,
        attempts=row.delivery_attempts,
        reason=receipt.reason or _NO_REASON if status is Status.FAILED else None,
        receipt=receipt,
    )
