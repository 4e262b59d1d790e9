"""What recipients say to messages that they were handed: they have them, or could not take them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.model import Event
from angelia.envelope.receipts import Receipt
from angelia.envelope.times import SKEW, moment
from angelia.errors import AngeliaError, Conflict, InvalidArgument, LeaseLost, MessageExpired, NotFound, Unavailable
from angelia.mail import receipts_store, store
from angelia.mail.hot_store import HotMail
from angelia.mail.model import (
    ATTEMPTS,
    LATEST_ACK,
    Attested,
    Lease,
    Queued,
    ReceiptRow,
    State,
    Status,
    back_off,
    parse_token,
    status_of,
)
from angelia.mail.receipts_store import Step
from angelia.mail.sender_events import word
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, StatementError, Tx

_ACK_KINDS = {Status.FAILED: "message_failed"}
_BURIAL = timedelta(seconds=30)
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ack:
    """A recipient's word that it has a message; a receipt among them is signed and checked."""

    replay_key: bytes
    mref: bytes
    secret: str = field(repr=False)
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Nack:
    """A recipient's word that it could not take a message. One that is not counted only leaves it alone for a while:
    it is no attempt, and never makes a dead letter."""

    replay_key: bytes
    mref: bytes
    secret: str = field(repr=False)
    reason: str = ""
    retry_after: timedelta | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of a nack: back in the queue at that time, or a dead letter."""

    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Settled:
    """A message that is gone from its queue, and how its receipt stands."""

    row: Queued
    status: Status


@dataclass(frozen=True, slots=True)
class _Settlement:
    """An acknowledgment with all that its transaction needs."""

    recipient: str
    ack: Ack
    lease: Lease | None
    at: datetime


class Settling:
    """The recipient's word on its mail."""

    def __init__(self, ledger: Ledger, hot: HotMail) -> None:
        self._ledger = ledger
        self._hot = hot
        self._settlements: GroupCommit[_Settlement, Settled | None] = GroupCommit(ledger, _settle)

    async def close(self) -> None:
        await self._settlements.close()

    async def acknowledge(
        self, agent: AgentRow, acks: Sequence[Ack], now: datetime
    ) -> list[Settled | AngeliaError | None]:
        """Settle messages: each is gone from the ledger when this returns, and its receipt says so.

        A message that was settled before gives None. Neither a lease that ran out nor a hot tier that forgot it is a
        reason to refuse; another living lease is."""
        leases = await self._leases(agent, [ack.mref for ack in acks])

        async def one(ack: Ack, lease: Lease | None) -> Settled | AngeliaError | None:
            if lease is not None and lease.held_by_other(ack.secret, now):
                return LeaseLost(
                    "somebody else has this message by now", hint="whoever has it settles it; else it comes again"
                )
            try:
                return await self._settlements.submit(_Settlement(agent.handle, ack, lease, now))
            except AngeliaError as error:
                return error
            except StatementError:
                log.exception("an acknowledgment could not be stored", recipient=agent.handle)
                return AngeliaError("something went wrong on the server", hint="acknowledge it again")

        done = await asyncio.gather(*(one(ack, lease) for ack, lease in zip(acks, leases, strict=True)))
        settled = [one for one in done if isinstance(one, Settled)]
        if settled:
            _observe(settled, {ack.mref: lease for ack, lease in zip(acks, leases, strict=True)}, now)
            words = [word(one.row, one.status, now) for one in settled]
            with contextlib.suppress(Unavailable):  # what is left in the index falls out at its next claim
                await self._hot.remove(agent.handle, [one.row.mref for one in settled], words)
        return list(done)

    async def put_back(self, agent: AgentRow, nacks: Sequence[Nack], now: datetime) -> list[PutBack | AngeliaError]:
        """Give messages back: after a while they are handed out again, and after five attempts they are dead."""
        mrefs = [nack.mref for nack in nacks]
        leases = await self._hot.leases(agent.handle, mrefs)
        async with self._ledger.reading() as tx:
            rows = await store.claimable(tx, agent.handle, mrefs, [], now)
        outcomes: list[PutBack | AngeliaError] = []
        for nack, lease in zip(nacks, leases, strict=True):
            try:
                outcomes.append(await self._put_back(agent, nack, rows.get(nack.mref), lease, now))
            except AngeliaError as error:
                outcomes.append(error)
        return outcomes

    async def _put_back(
        self, agent: AgentRow, nack: Nack, row: Queued | None, lease: Lease | None, now: datetime
    ) -> PutBack:
        mref, secret = nack.mref, nack.secret
        if row is None:
            raise NotFound("there is no such message for you", hint="it was settled, or its time was over")
        if row.replay_key != nack.replay_key:
            raise LeaseLost("the lease token is another message's")
        if lease is None or not lease.held_by(secret):
            raise LeaseLost("the lease of this message is over", hint="it is handed out again by itself")
        if nack.counted and lease.attempts >= ATTEMPTS:
            await self._bury(agent, nack, mref, lease, now)
            return PutBack(None)
        wait = back_off(lease.attempts) if nack.retry_after is None else nack.retry_after
        if not await self._hot.put_back(
            agent.handle, [(mref, secret)], now + wait, uncounted=not nack.counted, given=True
        ):
            raise LeaseLost("the lease of this message is over", hint="it is handed out again by itself")
        return PutBack(now + wait)

    async def _bury(self, agent: AgentRow, nack: Nack, mref: bytes, lease: Lease, now: datetime) -> None:
        """Make a dead letter of a message. Its lease ends first, so that of several who say it only one is heard; a
        crash before the commit leaves it in the queue."""
        reason = nack.reason or "given back too often"
        if not await self._hot.put_back(agent.handle, [(mref, nack.secret)], now + _BURIAL):
            raise LeaseLost("the lease of this message is over", hint="it is handed out again by itself")
        async with self._ledger.transaction() as tx:
            row = (await store.lock(tx, [(agent.handle, nack.replay_key)])).get((agent.handle, nack.replay_key))
            if row is None or row.mref != mref or row.state is not State.QUEUED:
                raise NotFound("there is no such message for you")
            await store.bury(tx, [(row, reason)], now)
            step = Step(message=row, status=Status.FAILED, reason=reason, attempts=lease.attempts, last_attempt_at=now)
            stand = await receipts_store.move(tx, [step])
            event = audit.event(
                "message_dead_lettered",
                now,
                actor=agent.handle,
                object=row.sender,
                message_id=row.message_id,
                replay_key=row.replay_key,
                detail={"attempts": lease.attempts},
            )
            await audit.record(tx, [event])
        metrics.MAIL_ENDED.labels("dead").inc()
        with contextlib.suppress(Unavailable):
            said = [word(row, Status.FAILED, now, reason)] if stand.get(row.replay_key) is Status.FAILED else []
            await self._hot.remove(agent.handle, [mref], said)

    async def _leases(self, agent: AgentRow, mrefs: Sequence[bytes]) -> list[Lease | None]:
        try:
            return await self._hot.leases(agent.handle, mrefs)
        except Unavailable:
            return [None] * len(mrefs)  # forgotten, as far as anybody can tell


def new_nack(
    replay_key: bytes, token: str, reason: str = "", retry_after: timedelta | None = None, *, counted: bool = True
) -> Nack:
    mref, secret = parse_token(token)
    return Nack(replay_key, mref, secret, reason, retry_after, counted)


def new_ack(replay_key: bytes, token: str, receipt: Receipt | None) -> Ack:
    mref, secret = parse_token(token)
    return Ack(replay_key, mref, secret, receipt)


async def _settle(tx: Tx, items: Sequence[_Settlement]) -> list[Settled | AngeliaError | None]:
    """One transaction: the envelopes go, the receipts say so, the audit has two events each."""
    rows = await store.lock(tx, list({(item.recipient, item.ack.replay_key) for item in items}))
    outcomes: list[Settled | AngeliaError | None] = [None] * len(items)
    settled: dict[int, Queued] = {}
    late: list[int] = []
    for at, item in enumerate(items):
        row = rows.pop((item.recipient, item.ack.replay_key), None)
        if row is None:
            late.append(at)
            continue
        try:
            _check_ack(item, row)
        except AngeliaError as error:
            outcomes[at] = error
            rows[item.recipient, item.ack.replay_key] = row
        else:
            settled[at] = row
    if settled:
        await store.remove(tx, list(settled.values()))
        stand = await receipts_store.move(tx, [_acknowledged(items[at], row) for at, row in settled.items()])
        await audit.record(tx, [event for at, row in settled.items() for event in _ack_events(items[at], row)])
        for at, row in settled.items():
            outcomes[at] = Settled(row, _standing(items[at], stand.get(row.replay_key)))
    if late:
        known = await receipts_store.of_messages(tx, [items[at].ack.replay_key for at in late])
        for at in late:
            outcomes[at] = _settled_before(items[at], known.get(items[at].ack.replay_key))
    return outcomes


def _check_ack(item: _Settlement, row: Queued) -> None:
    if row.mref != item.ack.mref:
        raise LeaseLost("the lease token is another message's")
    if row.state is State.DEAD:
        raise Conflict("the message is a dead letter", hint="requeue it, then acknowledge it")
    if item.at >= row.expires_at + LATEST_ACK:  # its receipt may be in the archive soon
        raise MessageExpired("the message expired before it was acknowledged")
    if item.ack.receipt is not None:
        check_receipt_fits(item.ack.receipt, row)


def check_receipt_fits(receipt: Receipt, message: Queued | ReceiptRow) -> None:
    """A receipt is of one message, and not from before there was one."""
    if (receipt.message_id, receipt.sender_nhi) != (message.message_id, message.sender):
        raise InvalidArgument("the receipt names another message")
    sent_at = message.created_at if isinstance(message, Queued) else message.sent_at
    if moment(receipt.time_ms) < sent_at - SKEW:
        raise InvalidArgument("the receipt is older than the message", hint="check this machine's clock")


def _settled_before(item: _Settlement, known: ReceiptRow | None) -> AngeliaError | None:
    if known is None or known.recipient != item.recipient:
        return NotFound("there is no such message for you")
    if known.acknowledged_at is not None:
        return None
    if known.status is Status.EXPIRED:
        return MessageExpired("the message expired before it was acknowledged")
    return Conflict(f"the message is {known.status} and was never acknowledged")


def _acknowledged(item: _Settlement, row: Queued) -> Step:
    lease, receipt = item.lease, item.ack.receipt
    handed_out = lease is not None and lease.attempts > 0
    return Step(
        message=row,
        status=_status(receipt),
        attested_by=Attested.RELAY if receipt is None else Attested.RECIPIENT,
        delivered_at=lease.first_leased if lease is not None and handed_out else item.at,
        acknowledged_at=item.at,
        read_at=item.at if _status(receipt) is Status.READ else None,
        attempts=lease.attempts if lease is not None and handed_out else 1,
        last_attempt_at=item.at,
        reason=receipt.reason or "the recipient said so" if _status(receipt) is Status.FAILED and receipt else None,
        receipt=receipt,
    )


def _ack_events(item: _Settlement, row: Queued) -> list[Event]:
    return [
        audit.event(
            kind, item.at, actor=item.recipient, object=row.sender, message_id=row.message_id, replay_key=row.replay_key
        )
        for kind in ("message_received", _ACK_KINDS.get(_status(item.ack.receipt), "message_acknowledged"))
    ]


def _status(receipt: Receipt | None) -> Status:
    return Status.DELIVERED if receipt is None else status_of(receipt)


def _standing(item: _Settlement, stands: Status | None) -> Status:
    """What the receipt says now; that it was read stands beside `delivered`."""
    said = _status(item.ack.receipt)
    if stands is None or (stands is Status.DELIVERED and said is Status.READ):
        return said
    return stands


def _observe(settled: Sequence[Settled], leases: Mapping[bytes, Lease | None], now: datetime) -> None:
    metrics.MAIL_ENDED.labels("acknowledged").inc(len(settled))
    for one in settled:
        lease = leases.get(one.row.mref)
        since = lease.first_leased if lease is not None and lease.attempts else now
        metrics.MAIL_SECONDS.observe(max(0.0, (since - one.row.accepted_at).total_seconds()))
