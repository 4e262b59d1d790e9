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
from angelia.audit.model import Detail
from angelia.envelope.receipts import Receipt, ReceiptDocument
from angelia.envelope.signing import VerifyingPair
from angelia.errors import AngeliaError, Conflict, InvalidArgument, LeaseLost, MessageExpired, NotFound, Unavailable
from angelia.keys.admission import PAIRS
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
    ReceiptStep,
    SettledEvents,
    back_off,
    status_of,
)
from angelia.mail.receipt_checks import check_fits, parsed_receipt, signed_receipt, verified_receipt
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
    """An ack with all that its transaction needs. Without a row there was no such message when it was looked for."""

    recipient: str
    replay_key: bytes
    row: EnvelopeRow | None
    receipt: Receipt | None
    lease: Lease | None
    at: datetime

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
        self._commits: GroupCommit[_CheckedAck, Acknowledged | None] = GroupCommit(ledger.statement, _commit)

    async def close(self) -> None:
        await self._commits.close()

    async def acknowledge(
        self, agent: AgentRow, acks: Sequence[AckItem], now: datetime
    ) -> list[Acknowledged | AngeliaError | None]:
        """Ends messages: each is gone from the ledger when this returns, and its receipt says so. Returns one outcome
        each, None for a message that was acknowledged before.

        Neither a lease that ran out nor a hot tier that forgot it is a reason to refuse; another living lease is."""
        keys, tokens = [ack.key for ack in acks], [ack.token for ack in acks]  # if one cannot be read, none is ended
        receipts = [_parsed(agent, ack.receipt, now) for ack in acks]
        mrefs = [token.mref for token in tokens]
        (rows, pairs), leases = await asyncio.gather(
            self._read(agent, mrefs, receipts, now), self._leases(agent, mrefs)
        )
        outcomes: list[Acknowledged | AngeliaError | None] = [None] * len(acks)
        checked: dict[int, _CheckedAck] = {}
        for at, (key, token, receipt, row, pair, lease) in enumerate(
            zip(keys, tokens, receipts, rows, pairs, leases, strict=True)
        ):
            try:
                verified = await self._verified(agent, key, receipt, pair, now)
                _check_lease(token, lease, now)
                named = row if row is not None and row.replay_key == key else None
                checked[at] = _CheckedAck(agent.handle, key, named, verified, lease, now)
            except AngeliaError as error:
                outcomes[at] = error
        settled = await self._commits.submit_all(list(checked.values()))
        for at, outcome in zip(checked, settled, strict=True):
            outcomes[at] = _outcome(checked[at], outcome)
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
            rows, _ = await store.claimable(tx, agent.handle, mrefs, [], now)
        outcomes: list[Nacked | AngeliaError] = []
        for nack, key, mref, lease in zip(nacks, keys, mrefs, leases, strict=True):
            try:
                found = rows.get(mref)
                outcomes.append(await self._nack(agent, nack, key, None if found is None else found.row, lease, now))
            except AngeliaError as error:
                outcomes.append(error)
        return outcomes

    async def _read(
        self, agent: AgentRow, mrefs: Sequence[bytes], receipts: Sequence[Receipt | AngeliaError | None], now: datetime
    ) -> tuple[list[EnvelopeRow | None], list[VerifyingPair | AngeliaError | None]]:
        """The envelopes of acks, and for each receipt the pair to verify it with."""
        signed = [signed_receipt(one) if isinstance(one, Receipt) else None for one in receipts]
        known = [None if one is None else PAIRS.known(one) for one in signed]
        asked = [
            (mref, None if one is None else one.signer_id, one is None or pair is not None)
            for mref, one, pair in zip(mrefs, signed, known, strict=True)
        ]
        async with self._ledger.lookups() as tx:
            rows, standings = await store.acknowledged(tx, agent.handle, asked)
        pairs = [
            None if one is None else PAIRS.judged(standing, one, pair, now)
            for standing, one, pair in zip(standings, signed, known, strict=True)
        ]
        return rows, pairs

    async def _verified(
        self,
        agent: AgentRow,
        key: bytes,
        receipt: Receipt | AngeliaError | None,
        pair: VerifyingPair | AngeliaError | None,
        now: datetime,
    ) -> Receipt | None:
        if isinstance(receipt, AngeliaError):
            raise receipt
        if receipt is None:
            return None
        assert pair is not None, "a receipt has a signer"
        await asyncio.sleep(0)  # a hundred of them are not verified in one go
        await verified_receipt(self._failures, agent, receipt, pair, now)
        if receipt.replay_key != key.hex():
            raise InvalidArgument("the receipt is of another message")
        return receipt

    async def _nack(
        self, agent: AgentRow, nack: NackItem, key: bytes, row: EnvelopeRow | None, lease: Lease | None, now: datetime
    ) -> Nacked:
        if row is None:
            raise NotFound("there is no such message for you", hint="it was settled, or its time was over")
        if row.replay_key != key:
            raise _wrong_token()
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
    """One statement: the envelopes go, their receipts say so, the audit has two events each. Of two acks of one message
    the second is answered as a later one would be."""
    outcomes: list[Acknowledged | AngeliaError | None] = [None] * len(acks)
    firsts: dict[bytes, tuple[int, EnvelopeRow]] = {}
    for at, ack in enumerate(acks):
        if ack.row is None:
            continue
        try:
            _check(ack, ack.row)
        except AngeliaError as error:
            outcomes[at] = error
        else:
            firsts.setdefault(ack.row.mref, (at, ack.row))
    steps = [(row, _step(acks[at], row), _events(acks[at], row)) for at, row in firsts.values()]
    ended = await store.settle(tx, steps) if steps else {}
    for at, row in firsts.values():
        if row.replay_key in ended:
            outcomes[at] = Acknowledged(row, _status_now(acks[at], ended[row.replay_key]))
    if late := [at for at, outcome in enumerate(outcomes) if outcome is None]:
        known = await receipts_store.of_messages(tx, [acks[at].replay_key for at in late])
        for at in late:
            outcomes[at] = _refusal_of_late(acks[at], known.get(acks[at].replay_key))
    return outcomes


def _parsed(agent: AgentRow, document: ReceiptDocument | None, now: datetime) -> Receipt | AngeliaError | None:
    try:
        return None if document is None else parsed_receipt(agent, document, now)
    except AngeliaError as error:
        return error


def _check_lease(token: LeaseToken, lease: Lease | None, now: datetime) -> None:
    if lease is not None and lease.held_by_other(token.secret, now):
        raise LeaseLost(
            "another process of yours holds the lease of this message",
            hint="that process settles it; if it does not, the message is delivered again",
        )


def _outcome(ack: _CheckedAck, outcome: Acknowledged | Exception | None) -> Acknowledged | AngeliaError | None:
    if isinstance(outcome, StatementError):
        log.error("an acknowledgment could not be stored", recipient=ack.recipient, exc_info=outcome)
        return AngeliaError("something went wrong on the server", hint="acknowledge it again")
    if isinstance(outcome, Exception) and not isinstance(outcome, AngeliaError):
        raise outcome
    if isinstance(outcome, Acknowledged):
        metrics.MAIL_ENDED.labels("acknowledged").inc()
        metrics.MAIL_SECONDS.observe(max(0.0, (ack.first_leased - outcome.row.accepted_at).total_seconds()))
    return outcome


def _check(ack: _CheckedAck, row: EnvelopeRow) -> None:
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
    if known.status is DeliveryStatus.PENDING:  # it waits, under another mref
        return _wrong_token()
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


def _events(ack: _CheckedAck, row: EnvelopeRow) -> SettledEvents:
    kind = "message_failed" if ack.status is DeliveryStatus.FAILED else "message_acknowledged"
    received = audit_event("message_received", row, ack.at, ack.recipient, row.sender)
    ended = audit_event(kind, row, ack.at, ack.recipient, row.sender)
    return SettledEvents(received.event_id, received.hash(), ended.event_id, kind, ended.hash())


def _status_now(ack: _CheckedAck, stored: DeliveryStatus | None) -> DeliveryStatus:
    """The status of the receipt now; the ledger has `read` as a time beside `delivered`."""
    if stored is None or (stored is DeliveryStatus.DELIVERED and ack.status is DeliveryStatus.READ):
        return ack.status
    return stored


def _wrong_token() -> LeaseLost:
    return LeaseLost("the lease token is another message's")


def _lease_over() -> LeaseLost:
    return LeaseLost("the lease of this message is over", hint="it is handed out again by itself")
