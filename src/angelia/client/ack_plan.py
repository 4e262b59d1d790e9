"""Decides what the server is told of leased messages: which are acknowledged, and which are given back.

| what the mailbox says                              | what the server is told                                      |
|----------------------------------------------------|--------------------------------------------------------------|
| opened, also a control message                     | ack, with the signed receipt `delivered`                     |
| opened before                                      | ack again, with a receipt, once an hour                      |
| its sender is not allowed                          | nack for an hour, which is no attempt                        |
| its sender fails too often, or has too much here   | nack for a while, which is no attempt                        |
| its sender's keys cannot be looked up now          | nack, for as long as the server says                         |
| signatures, content or id are wrong                | ack, with the signed receipt `failed`                        |
| sealed to a key that is not here                   | nack; at the last attempt ack with a signed receipt `failed` |
| its sender's keys do not follow from the old ones  | nack                                                         |
| for another recipient, or no envelope at all       | nack                                                         |
| expired, from the future, or a fault of this disk  | nothing: the lease runs out                                  |

A message that was acknowledged and comes again within the hour gets no answer: a server that repeats itself must not
keep its client busy. An ack that the server never confirmed is sent again after 5, 10, 20 … seconds.
"""

from __future__ import annotations

from enum import StrEnum

from angelia.client import clock, mail_calls
from angelia.client.api_errors import ApiError, Unreachable, item_fault
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_calls import LeasedMessage
from angelia.envelope.bundles import UntrustedBundle
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document
from angelia.envelope.refusals import (
    Expired,
    FutureEnvelope,
    NotAllowed,
    Refused,
    Replayed,
    UnknownKey,
    UnknownSigner,
    WrongRecipient,
)
from angelia.envelope.times import moment
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, Denied, KeyNotFound, NotFound, RateLimited
from angelia.mail.api import AckItem, NackItem
from angelia.mail.model import ATTEMPTS, LONGEST_BACK_OFF
from angelia.mailbox.held_mail import HeldMessage
from angelia.mailbox.inbox import Message, Opened, ReadState
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.private_files import CannotWrite
from angelia.mailbox.repeated_envelopes import LastReport

# For how many seconds a message is given back whose sender's keys cannot be looked up, if the server does not say. A
# refusal lasts longer than a fault.
LATER, MUCH_LATER = 15, 300


class AckVerdict(StrEnum):
    """What the server was told of a message that was not opened. One that is deferred, or held until its sender is
    allowed, comes again and never becomes a dead letter by it."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    NACKED = "nacked"
    DEFERRED = "deferred"
    HELD = "held"
    REPEATED = "repeated"
    NOTHING = "nothing"


# For how many seconds a message is given back; None leaves that to the server.
_PAUSES: dict[AckVerdict, int | None] = {
    AckVerdict.NACKED: None,
    AckVerdict.DEFERRED: LATER,
    AckVerdict.HELD: LONGEST_BACK_OFF,
}


class AckPlan:
    """The acks and nacks of one batch of leased messages."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._acks: list[AckItem] = []
        self._repeats: list[str] = []
        self._nacks: list[NackItem] = []
        self._strangers: list[HeldMessage] = []
        self._unsigned: AngeliaError | None = None

    def opened(self, one: LeasedMessage, opened: Opened) -> None:
        """Plans the ack of a message that was opened."""
        if opened.receipt is None:
            # Acknowledged when it comes again, as after a crash.
            self._unsigned = CannotWrite("a receipt could not be written down", hint="see whether the disk has room")
        else:
            self._acks.append(_ack(one, opened.receipt))

    def unopened(self, one: LeasedMessage, error: AngeliaError, before: Message | None) -> AckVerdict:
        """Plans, and returns, what the server is told of a message that was not opened. `before` is what the inbox has
        of a message that was opened before."""
        verdict = _verdict(error, one.attempt, opened=self._mailbox.has_opened(one.replay_key))
        if verdict in (AckVerdict.ACKNOWLEDGED, AckVerdict.FAILED):
            try:
                verdict = self._plan_ack(one, verdict, error, before)
            except Refused:  # what cannot be read cannot be named in a receipt
                verdict = AckVerdict.NACKED
            except AngeliaError:  # a fault of this disk, which must not keep the caller from what was opened beside it
                verdict = AckVerdict.NOTHING
        elif verdict is AckVerdict.HELD:
            self._strangers.append(_held(one))
        if verdict in _PAUSES:
            self._nacks.append(_nack(one, verdict, error))
        return verdict

    def send(self) -> Exchange[AngeliaError | None]:
        """Sends acks and nacks; returns the first error, if any, of the network or of this disk."""
        problem = self._unsigned
        try:
            self._mailbox.repeated_envelopes.record_report(self._repeats, clock.now())
            for acks in mail_calls.in_hundreds(self._acks):
                results = yield from mail_calls.acknowledge(acks)
                # The outcomes are in the order of the acks; replay keys are taken from these, not from the server.
                done = [ack.replay_key for ack, one in zip(acks, results, strict=True) if one.acknowledged]
                self._mailbox.inbox.mark_acked(done, clock.now())
                self._mailbox.repeated_envelopes.record_confirmation(set(self._repeats).intersection(done))
                refused = (item_fault(one.problem) for one in results if one.problem is not None)
                problem = problem or next(refused, None)
            self._mailbox.held_mail.add(*self._strangers)
            for nacks in mail_calls.in_hundreds(self._nacks):
                yield from mail_calls.nack(nacks)
        except AngeliaError as error:
            return problem or error
        return problem

    def _plan_ack(
        self, one: LeasedMessage, verdict: AckVerdict, error: AngeliaError, before: Message | None
    ) -> AckVerdict:
        """Plans the ack of a message that is not opened, or not again. The log gets one receipt of it, however often it
        comes."""
        now, mailbox = clock.now(), self._mailbox
        if isinstance(one.envelope, Refused):
            raise one.envelope
        said = [found] if (found := mailbox.repeated_envelopes.last_report(one.replay_key)) is not None else []
        if before is not None and before.acked_at is not None:
            # The server confirmed it once: whatever it answered since, that is enough for an hour.
            said = [LastReport(at, 0) for at in (before.acked_at, *(one.at for one in said))]
        if any(one.is_recent(now) for one in said):
            return AckVerdict.REPEATED
        if verdict is AckVerdict.ACKNOWLEDGED:
            status, reason = self._status(before), ""
        else:
            status, reason = ReceiptStatus.FAILED, error.code
        if said or (verdict is AckVerdict.ACKNOWLEDGED and before is None):
            receipt = mailbox.sign(one.envelope, status, now, reason)
        elif before is not None:
            receipt = mailbox.inbox.receipt(before.replay_key, status, now)
        else:
            receipt = mailbox.refuse(one.envelope, reason, now)
        self._acks.append(_ack(one, receipt))
        self._repeats.append(one.replay_key)
        return verdict

    def _status(self, before: Message | None) -> ReceiptStatus:
        read = before is not None and before.status is ReadState.READ
        is_mail = before is not None and not self._mailbox.inbox.is_control(before.replay_key)
        return ReceiptStatus.READ if read and is_mail else ReceiptStatus.DELIVERED


def _verdict(error: AngeliaError, attempt: int, *, opened: bool) -> AckVerdict:
    match error:
        case ApiError() | Unreachable() | BadAnswer():
            return AckVerdict.DEFERRED  # it concerns a server and a sender's keys, not the message
        case UntrustedBundle() | UnknownSigner() | WrongRecipient():
            return AckVerdict.NACKED
        case Replayed():
            return AckVerdict.ACKNOWLEDGED if opened else AckVerdict.FAILED
        case NotAllowed():
            return AckVerdict.HELD
        case RateLimited():
            return AckVerdict.DEFERRED
        case UnknownKey():
            # Another process may be about to write the key down that a server has published already.
            return AckVerdict.NACKED if attempt < ATTEMPTS else AckVerdict.FAILED
        case Expired() | FutureEnvelope():
            return AckVerdict.NOTHING
        case Refused():
            return AckVerdict.FAILED
    return AckVerdict.NOTHING


def _nack(one: LeasedMessage, verdict: AckVerdict, error: AngeliaError) -> NackItem:
    """Counts as an attempt only if the message itself is the reason."""
    pause = _PAUSES[verdict]
    if verdict is AckVerdict.DEFERRED:
        usual = MUCH_LATER if isinstance(error, Denied | NotFound | KeyNotFound) else LATER
        pause = min(max(1, error.retry_after or usual), LONGEST_BACK_OFF)
    return NackItem(
        replay_key=one.replay_key,
        lease_token=one.lease_token,
        reason=error.code,
        retry_after=pause,
        counted=verdict is AckVerdict.NACKED,
    )


def _held(one: LeasedMessage) -> HeldMessage:
    assert isinstance(one.envelope, Envelope), "its sender was named"
    header = one.envelope.header
    return HeldMessage(
        replay_key=one.replay_key,
        sender=header.sender_nhi,
        lease_token=one.lease_token,
        kept_at=clock.now(),
        expires_at=moment(header.expires_at),
    )


def _ack(one: LeasedMessage, receipt: Receipt) -> AckItem:
    return AckItem(replay_key=one.replay_key, lease_token=one.lease_token, receipt=receipt_document(receipt))
