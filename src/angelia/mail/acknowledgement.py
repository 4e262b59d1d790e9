"""What recipients say to messages that they hold a lease of: acks and nacks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.failures import Failures
from angelia.audit.model import Detail, Event
from angelia.envelope.receipts import Receipt
from angelia.errors import AngeliaError, Conflict, InvalidArgument, LeaseLost, MessageExpired, NotFound, Unavailable
from angelia.mail import receipts_store, store
from angelia.mail.api import AckItem, NackItem
from angelia.mail.audit_events import audit_event
from angelia.mail.hot_store import HotMail
from angelia.mail.model import (
    ATTEMPTS,
    LATEST_ACK,
    NO_REASON,
    Attested,
    DeliveryStatus,
    EnvelopeRow,
    EnvelopeState,
    Lease,
    LeaseToken,
    ReceiptRecord,
    back_off,
    status_of,
)
from angelia.mail.receipt_checks import check_fits, checked_receipts
from angelia.mail.receipts_store import ReceiptStep
from angelia.mail.sender_events import delivery_event
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, StatementError, Tx

_BURIAL = timedelta(seconds=30)  # how long a message is held back while it becomes a dead letter
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Nacked:
    """What became of a nack: back in the queue at that time, or a dead letter."""

    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A message that is gone from its queue, and the status that its receipt has now."""

    row: EnvelopeRow
    status: DeliveryStatus


@dataclass(frozen=True, slots=True)
class _CheckedAck:
    """An ack with all that its transaction needs."""

    recipient: str
    replay_key: bytes
    token: LeaseToken
    receipt: Receipt | None
    lease: Lease | None
    at: datetime

    @property
    def message(self) -> tuple[str, bytes]:
        return self.recipient, self.replay_key

    @property
    def status(self) -> DeliveryStatus:
        """What the recipient says."""
        return DeliveryStatus.DELIVERED if self.receipt is None else status_of(self.receipt)

    @property
    def first_leased(self) -> datetime:
        """When the message was first leased; now, where the hot tier does not know."""
        return self.lease.first_leased if self.lease is not None and self.lease.attempts else self.at


class Acknowledgements:
    """Takes the acks and nacks of all recipients."""

    def __init__(self, ledger: Ledger, hot: HotMail, failures: Failures) -> None:
        self._ledger = ledger
        self._hot = hot
        self._failures = failures
        self._commits: GroupCommit[_CheckedAck, Acknowledged | None] = GroupCommit(ledger, _commit)

    async def close(self) -> None:
        await self._commits.close()

    async def acknowledge(
        self, agent: AgentRow, acks: Sequence[AckItem], now: datetime
    ) -> list[Acknowledged | AngeliaError | None]:
        """Ends messages: each is gone from the ledger when this returns, and its receipt says so. Returns one outcome
        each, None for a message that was acknowledged before.

        Neither a lease that ran out nor a hot tier that forgot it is a reason to refuse; another living lease is."""
        keys, tokens = [ack.key for ack in acks], [ack.token for ack in acks]  # if one cannot be read, none is ended
        receipts = await checked_receipts(self._ledger, self._failures, agent, [ack.receipt for ack in acks], now)
        leases = await self._leases(agent, [token.mref for token in tokens])
        checked = zip(keys, tokens, receipts, leases, strict=True)
        outcomes = await asyncio.gather(*(self._acknowledge(agent, *one, now) for one in checked))
        if done := [one for one in outcomes if isinstance(one, Acknowledged)]:
            events = [delivery_event(one.row, one.status, now) for one in done]
            with contextlib.suppress(Unavailable):  # what is left in the index falls out at its next claim
                await self._hot.remove(agent.handle, [one.row.mref for one in done], events)
        return outcomes

    async def nack(self, agent: AgentRow, nacks: Sequence[NackItem], now: datetime) -> list[Nacked | AngeliaError]:
        """Gives messages back: after a while they are delivered again, after five attempts they are dead letters.
        Returns one outcome each."""
        keys, mrefs = [nack.key for nack in nacks], [nack.token.mref for nack in nacks]
        leases = await self._hot.leases(agent.handle, mrefs)
        async with self._ledger.reading() as tx:
            rows = await store.claimable(tx, agent.handle, mrefs, [], now)
        outcomes: list[Nacked | AngeliaError] = []
        for nack, key, mref, lease in zip(nacks, keys, mrefs, leases, strict=True):
            try:
                outcomes.append(await self._nack(agent, nack, key, rows.get(mref), lease, now))
            except AngeliaError as error:
                outcomes.append(error)
        return outcomes

    async def _acknowledge(
        self,
        agent: AgentRow,
        key: bytes,
        token: LeaseToken,
        receipt: Receipt | AngeliaError | None,
        lease: Lease | None,
        now: datetime,
    ) -> Acknowledged | AngeliaError | None:
        if isinstance(receipt, AngeliaError):
            return receipt
        if receipt is not None and receipt.replay_key != key.hex():
            return InvalidArgument("the receipt is of another message")
        if lease is not None and lease.held_by_other(token.secret, now):
            return LeaseLost(
                "somebody else has this message by now", hint="whoever has it settles it; else it comes again"
            )
        checked = _CheckedAck(agent.handle, key, token, receipt, lease, now)
        try:
            done = await self._commits.submit(checked)
        except AngeliaError as error:
            return error
        except StatementError:
            log.exception("an acknowledgment could not be stored", recipient=agent.handle)
            return AngeliaError("something went wrong on the server", hint="acknowledge it again")
        if done is not None:
            metrics.MAIL_ENDED.labels("acknowledged").inc()
            metrics.MAIL_SECONDS.observe(max(0.0, (checked.first_leased - done.row.accepted_at).total_seconds()))
        return done

    async def _nack(
        self, agent: AgentRow, nack: NackItem, key: bytes, row: EnvelopeRow | None, lease: Lease | None, now: datetime
    ) -> Nacked:
        if row is None:
            raise NotFound("there is no such message for you", hint="it was settled, or its time was over")
        if row.replay_key != key:
            raise LeaseLost("the lease token is another message's")
        if lease is None or not lease.held_by(nack.token.secret):
            raise _lease_over()
        if nack.counted and lease.attempts >= ATTEMPTS:
            await self._bury(agent, nack, lease, now)
            return Nacked(None)
        wait = back_off(lease.attempts) if nack.retry_after is None else timedelta(seconds=nack.retry_after)
        if not await self._hot.put_back(agent.handle, [nack.token], now + wait, uncounted=not nack.counted, given=True):
            raise _lease_over()
        return Nacked(now + wait)

    async def _bury(self, agent: AgentRow, nack: NackItem, lease: Lease, now: datetime) -> None:
        """Makes a dead letter of a message. Its lease ends first, so that of several nacks only one does it; a crash
        before the commit leaves the message in the queue."""
        reason = nack.reason or "given back too often"
        if not await self._hot.put_back(agent.handle, [nack.token], now + _BURIAL):
            raise _lease_over()
        async with self._ledger.transaction() as tx:
            row = await store.lock_one(tx, agent.handle, nack.key)
            if row is None or row.mref != nack.token.mref or row.state is not EnvelopeState.QUEUED:
                raise NotFound("there is no such message for you")
            await store.bury(tx, [(row, reason)], now)
            step = ReceiptStep(
                message=row,
                status=DeliveryStatus.FAILED,
                reason=reason,
                attempts=lease.attempts,
                last_attempt_at=now,
            )
            statuses = await receipts_store.move(tx, [step])
            detail: Detail = {"attempts": lease.attempts}
            await audit.record(tx, [audit_event("message_dead_lettered", row, now, agent.handle, row.sender, detail)])
        metrics.MAIL_ENDED.labels("dead").inc()
        changed = statuses.get(row.replay_key) is DeliveryStatus.FAILED
        with contextlib.suppress(Unavailable):
            events = [delivery_event(row, DeliveryStatus.FAILED, now, reason)] if changed else []
            await self._hot.remove(agent.handle, [nack.token.mref], events)

    async def _leases(self, agent: AgentRow, mrefs: Sequence[bytes]) -> list[Lease | None]:
        try:
            return await self._hot.leases(agent.handle, mrefs)
        except Unavailable:
            return [None] * len(mrefs)  # as if forgotten


async def _commit(tx: Tx, acks: Sequence[_CheckedAck]) -> list[Acknowledged | AngeliaError | None]:
    """One transaction: the envelopes go, their receipts say so, the audit has two events each. Of two acks of one
    message the second is answered as a later one would be."""
    rows = await store.lock(tx, list({ack.message for ack in acks}))
    outcomes: list[Acknowledged | AngeliaError | None] = [None] * len(acks)
    ended: dict[int, EnvelopeRow] = {}
    late: list[int] = []
    for at, ack in enumerate(acks):
        row = rows.get(ack.message)
        if row is None:
            late.append(at)
            continue
        try:
            _check(ack, row)
        except AngeliaError as error:
            outcomes[at] = error
        else:
            ended[at] = rows.pop(ack.message)
    if ended:
        await store.remove(tx, list(ended.values()))
        statuses = await receipts_store.move(tx, [_step(acks[at], row) for at, row in ended.items()])
        await audit.record(tx, [event for at, row in ended.items() for event in _events(acks[at], row)])
        for at, row in ended.items():
            outcomes[at] = Acknowledged(row, _status_now(acks[at], statuses.get(row.replay_key)))
    if late:
        known = await receipts_store.of_messages(tx, [acks[at].replay_key for at in late])
        for at in late:
            outcomes[at] = _refusal_of_late(acks[at], known.get(acks[at].replay_key))
    return outcomes


def _check(ack: _CheckedAck, row: EnvelopeRow) -> None:
    if row.mref != ack.token.mref:
        raise LeaseLost("the lease token is another message's")
    if row.state is EnvelopeState.DEAD:
        raise Conflict("the message is a dead letter", hint="requeue it, then acknowledge it")
    if ack.at >= row.expires_at + LATEST_ACK:  # its receipt may be in the archive soon
        raise MessageExpired("the message expired before it was acknowledged")
    if ack.receipt is not None:
        check_fits(ack.receipt, row)


def _refusal_of_late(ack: _CheckedAck, known: ReceiptRecord | None) -> AngeliaError | None:
    """Why a message that is not there cannot be acknowledged; None if it was acknowledged before."""
    if known is None or known.recipient != ack.recipient:
        return NotFound("there is no such message for you")
    if known.acknowledged_at is not None:
        return None
    if known.status is DeliveryStatus.EXPIRED:
        return MessageExpired("the message expired before it was acknowledged")
    return Conflict(f"the message is {known.status} and was never acknowledged")


def _step(ack: _CheckedAck, row: EnvelopeRow) -> ReceiptStep:
    receipt = ack.receipt
    return ReceiptStep(
        message=row,
        status=ack.status,
        attested_by=Attested.RELAY if receipt is None else Attested.RECIPIENT,
        delivered_at=ack.first_leased,
        acknowledged_at=ack.at,
        read_at=ack.at if ack.status is DeliveryStatus.READ else None,
        attempts=ack.lease.attempts if ack.lease is not None and ack.lease.attempts else 1,
        last_attempt_at=ack.at,
        reason=receipt.reason or NO_REASON if receipt and ack.status is DeliveryStatus.FAILED else None,
        receipt=receipt,
    )


def _events(ack: _CheckedAck, row: EnvelopeRow) -> list[Event]:
    ended = "message_failed" if ack.status is DeliveryStatus.FAILED else "message_acknowledged"
    return [audit_event(kind, row, ack.at, ack.recipient, row.sender) for kind in ("message_received", ended)]


def _status_now(ack: _CheckedAck, stored: DeliveryStatus | None) -> DeliveryStatus:
    """The status of the receipt now; the ledger has `read` as a time beside `delivered`."""
    if stored is None or (stored is DeliveryStatus.DELIVERED and ack.status is DeliveryStatus.READ):
        return ack.status
    return stored


def _lease_over() -> LeaseLost:
    return LeaseLost("the lease of this message is over", hint="it is handed out again by itself")
