"""What the relay is told of messages that were handed out.

| the mailbox says                                   | the relay is told                                            |
|----------------------------------------------------|--------------------------------------------------------------|
| opened, also a control message                     | acknowledged, with the signed receipt `delivered`            |
| opened before                                      | acknowledged again, with a receipt, once an hour             |
| its sender is not allowed                          | put off for an hour, which is no attempt                     |
| its sender fails too often, or has too much here   | put off for a while, which is no attempt                     |
| its sender's keys cannot be looked up now          | put off, for as long as the server says                      |
| signatures, content or id are wrong                | acknowledged, with the signed receipt `failed`               |
| sealed to a key that is not here                   | given back; the last time a signed receipt `failed`          |
| its sender's keys do not follow from the old ones  | given back                                                   |
| for somebody else, or no envelope at all           | given back                                                   |
| expired, from the future, or a fault of this disk  | nothing: the lease runs out                                  |

What was acknowledged and is handed out again within the hour is not talked about: a relay that repeats itself must not
keep its client busy. An acknowledgment that it never confirmed is said again after 5, 10, 20 … seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

from angelia.client import mail_calls, mailbox_keys
from angelia.client.api_errors import ApiError, Unreachable, item_fault
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_answers import Handed
from angelia.client.mail_calls import Ack, Nack
from angelia.envelope.bundles import UntrustedBundle
from angelia.envelope.receipts import Receipt, ReceiptStatus
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
from angelia.envelope.wire import decode
from angelia.errors import AngeliaError, Denied, KeyNotFound, NotFound, RateLimited
from angelia.mail.model import ATTEMPTS, LONGEST_BACK_OFF, MOST_AT_ONCE
from angelia.mailbox.held_mail import HeldMessage
from angelia.mailbox.inbox import Message, Opened, ReadState
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.private_files import CannotWrite
from angelia.mailbox.repeated_envelopes import LastReport

T = TypeVar("T")

# How long a message is left alone whose sender's keys cannot be looked up, if the server does not say. A refusal lasts
# longer than a fault.
LATER, MUCH_LATER = 15, 300


class Told(StrEnum):
    """What the relay was told of a message that was not opened. One that is put off, or kept out until its sender is
    allowed, comes again and never becomes a dead letter by it."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    GIVEN_BACK = "given back"
    PUT_OFF = "put off"
    KEPT_OUT = "kept out"
    REPEATED = "repeated"
    NOTHING = "nothing"


# For how long what is not settled goes back to the relay; None is as the relay thinks fit.
_PAUSES: dict[Told, int | None] = {Told.GIVEN_BACK: None, Told.PUT_OFF: LATER, Told.KEPT_OUT: LONGEST_BACK_OFF}


class Settling:
    """What is to be said to the relay about one batch."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._acks: list[Ack] = []
        self._repeats: list[str] = []
        self._nacks: list[Nack] = []
        self._strangers: list[HeldMessage] = []
        self._unsigned: AngeliaError | None = None

    def opened(self, one: Handed, opened: Opened) -> None:
        if opened.receipt is None:
            # Said when it is handed out again, as after a crash.
            self._unsigned = CannotWrite("a receipt could not be written down", hint="see whether the disk has room")
        else:
            self._acks.append(_ack(one, opened.receipt))

    def unopened(self, one: Handed, error: AngeliaError, before: Message | None) -> Told:
        """What will be said of a message that was not opened; `before` is its copy from the first time."""
        told = _verdict(error, one.attempt, opened=self._mailbox.has_opened(one.replay_key))
        if told in (Told.ACKNOWLEDGED, Told.FAILED):
            try:
                told = self._settled(one, told, error, before)
            except Refused:  # what cannot be read cannot be named in a receipt
                told = Told.GIVEN_BACK
            except AngeliaError:  # a fault of this disk, which must not keep the caller from what was opened beside it
                told = Told.NOTHING
        elif told is Told.KEPT_OUT:
            self._strangers.append(_kept_out(one))
        if told in _PAUSES:
            self._nacks.append(_nack(one, told, error))
        return told

    def said(self) -> Exchange[AngeliaError | None]:
        """Tell the relay; the first thing that went wrong, be it of the network or of this disk."""
        problem = self._unsigned
        try:
            self._mailbox.repeated_envelopes.record_report(self._repeats, mailbox_keys.now())
            for acks in _hundreds(self._acks):
                results = yield from mail_calls.acknowledge(acks)
                # The relay speaks of what it was told, in that order; the names are ours.
                done = [ack.replay_key for ack, one in zip(acks, results, strict=True) if one.acknowledged]
                self._mailbox.inbox.mark_acked(done, mailbox_keys.now())
                self._mailbox.repeated_envelopes.record_confirmation(set(self._repeats).intersection(done))
                refused = (item_fault(one.problem) for one in results if one.problem is not None)
                problem = problem or next(refused, None)
            self._mailbox.held_mail.add(*self._strangers)
            for nacks in _hundreds(self._nacks):
                yield from mail_calls.nack(nacks)
        except AngeliaError as error:
            return problem or error
        return problem

    def _settled(self, one: Handed, told: Told, error: AngeliaError, before: Message | None) -> Told:
        """Acknowledge a message that is not opened, or not again. The log gets one line of it, whatever comes."""
        now, mailbox = mailbox_keys.now(), self._mailbox
        said = [found] if (found := mailbox.repeated_envelopes.last_report(one.replay_key)) is not None else []
        if before is not None and before.acked_at is not None:
            # The relay confirmed it once: whatever it answered since, that is enough for an hour.
            said = [LastReport(at, 0) for at in (before.acked_at, *(one.at for one in said))]
        if any(one.is_recent(now) for one in said):
            return Told.REPEATED
        if told is Told.ACKNOWLEDGED:
            status, reason = self._status(before), ""
        else:
            status, reason = ReceiptStatus.FAILED, error.code
        if said or (told is Told.ACKNOWLEDGED and before is None):
            receipt = mailbox.sign(one.wire, status, now, reason)
        elif before is not None:
            receipt = mailbox.inbox.receipt(before.replay_key, status, now)
        else:
            receipt = mailbox.refuse(one.wire, reason, now)
        self._acks.append(_ack(one, receipt))
        self._repeats.append(one.replay_key)
        return told

    def _status(self, before: Message | None) -> ReceiptStatus:
        read = before is not None and before.status is ReadState.READ
        is_mail = before is not None and not self._mailbox.inbox.is_control(before.replay_key)
        return ReceiptStatus.READ if read and is_mail else ReceiptStatus.DELIVERED


def _verdict(error: AngeliaError, attempt: int, *, opened: bool) -> Told:
    match error:
        case ApiError() | Unreachable() | BadAnswer():
            return Told.PUT_OFF  # it says something about a server and a sender's keys, and nothing about the message
        case UntrustedBundle() | UnknownSigner() | WrongRecipient():
            return Told.GIVEN_BACK
        case Replayed():
            return Told.ACKNOWLEDGED if opened else Told.FAILED
        case NotAllowed():
            return Told.KEPT_OUT
        case RateLimited():
            return Told.PUT_OFF
        case UnknownKey():
            # Another process may be about to write the key down that a server has published already.
            return Told.GIVEN_BACK if attempt < ATTEMPTS else Told.FAILED
        case Expired() | FutureEnvelope():
            return Told.NOTHING
        case Refused():
            return Told.FAILED
    return Told.NOTHING


def _nack(one: Handed, told: Told, error: AngeliaError) -> Nack:
    """Said to the relay: only what is given back for the message's own sake counts as an attempt."""
    pause = _PAUSES[told]
    if told is Told.PUT_OFF:
        usual = MUCH_LATER if isinstance(error, Denied | NotFound | KeyNotFound) else LATER
        pause = min(max(1, error.retry_after or usual), LONGEST_BACK_OFF)
    return Nack(
        replay_key=one.replay_key,
        lease_token=one.lease_token,
        reason=error.code,
        retry_after=pause,
        counted=told is Told.GIVEN_BACK,
    )


def _kept_out(one: Handed) -> HeldMessage:
    header = decode(one.wire).header
    return HeldMessage(
        replay_key=one.replay_key,
        sender=header.sender_nhi,
        lease_token=one.lease_token,
        kept_at=mailbox_keys.now(),
        expires_at=moment(header.expires_at),
    )


def _hundreds(items: list[T]) -> Iterator[list[T]]:
    return (items[at : at + MOST_AT_ONCE] for at in range(0, len(items), MOST_AT_ONCE))


def _ack(one: Handed, receipt: Receipt | None) -> Ack:
    return Ack(replay_key=one.replay_key, lease_token=one.lease_token, receipt=receipt)
