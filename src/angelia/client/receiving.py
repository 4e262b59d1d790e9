"""Receiving with a mailbox: what was leased is opened once, and the relay is told what became of it.

| the mailbox says                                   | the relay is told                                            |
|----------------------------------------------------|--------------------------------------------------------------|
| opened, also a control message                     | acknowledged, with the signed receipt `delivered`            |
| opened before                                      | acknowledged again, with a receipt                           |
| its sender is not allowed, or fails too often      | given back for an hour; never as often as would make it dead |
| signatures, content or id are wrong                | acknowledged, with the signed receipt `failed`               |
| sealed to a key that is not here                   | given back; the last time a signed receipt `failed`          |
| its sender's keys cannot be looked up now          | given back                                                   |
| for somebody else, or no envelope at all           | given back                                                   |
| expired, from the future, or a fault of this disk  | nothing: the lease runs out                                  |
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

import msgspec

from angelia.client import mail_calls, sealed
from angelia.client.faults import ApiError, Unreachable, item_fault
from angelia.client.mail_answers import Handed
from angelia.client.mail_calls import Ack, Nack
from angelia.client.wire import BadAnswer, Call
from angelia.envelope import jsonform
from angelia.envelope.bundles import UntrustedBundle
from angelia.envelope.receipts import Receipt, ReceiptStatus
from angelia.envelope.refusals import (
    Expired,
    FromFuture,
    NotAllowed,
    Refused,
    Replayed,
    UnknownKey,
    UnknownSigner,
    WrongRecipient,
)
from angelia.envelope.wire import Envelope, decode
from angelia.errors import AngeliaError, NotFound, RateLimited
from angelia.keys.model import moment
from angelia.mail.model import ATTEMPTS, LONGEST_BACK_OFF, MOST_AT_ONCE
from angelia.mailbox.box import Mailbox
from angelia.mailbox.inbox import Message, Opened, ReadState
from angelia.mailbox.kept_out import Waiting
from angelia.mailbox.window import Profile

T = TypeVar("T")


class Told(StrEnum):
    """What the relay was told of a message that was not opened."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    GIVEN_BACK = "given back"
    KEPT_OUT = "kept out"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class NotOpened:
    """A message that was not opened, why, and what the relay was told; the sender is only what it claims."""

    replay_key: str
    sender: str
    error: AngeliaError
    told: Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What came. `recovered` was opened before by somebody who never told the relay; it is in the inbox.

    `unacknowledged` is why the relay could not be told; it will hand the same out again, and be told then."""

    messages: tuple[Opened, ...] = ()
    not_opened: tuple[NotOpened, ...] = ()
    recovered: tuple[Message, ...] = ()
    controls: int = 0
    has_more: bool = False
    unacknowledged: AngeliaError | None = None

    def __add__(self, other: Received) -> Received:
        return Received(
            messages=self.messages + other.messages,
            not_opened=self.not_opened + other.not_opened,
            recovered=self.recovered + other.recovered,
            controls=self.controls + other.controls,
            has_more=other.has_more,
            unacknowledged=self.unacknowledged or other.unacknowledged,
        )


@dataclass(slots=True)
class _Settling:
    """What is to be said to the relay about one batch."""

    acks: list[Ack] = field(default_factory=list)
    nacks: list[Nack] = field(default_factory=list)


def receive(
    mailbox: Mailbox,
    *,
    wait: float = 0.0,
    most: int = 10,
    min_priority: int = 0,
    channel_id: UUID | None = None,
    correlation_id: UUID | None = None,
    lease_seconds: int = 30,
) -> Call[Received]:
    """Fetch mail, open it and acknowledge it; for up to `wait` seconds until there is some.

    Every message is in the inbox before this returns. Mail of a sender who was allowed since it was kept out comes
    first."""
    deadline = time.monotonic() + wait
    received = Received()
    if channel_id is None and correlation_id is None and not min_priority:
        received = yield from _admitted(mailbox, most)
    while True:
        room, left = most - len(received.messages), deadline - time.monotonic()
        if room < 1:
            return received
        mailbox.own.refresh()  # another process may have rotated the pair that signs requests
        page = yield from mail_calls.poll(
            max_messages=min(room, MOST_AT_ONCE),
            wait=0.0 if received.messages else left,
            min_priority=min_priority,
            channel_id=channel_id,
            correlation_id=correlation_id,
            lease_seconds=lease_seconds,
        )
        came = yield from take_in(mailbox, page.messages)
        received += replace(came, has_more=page.has_more)
        # What is not shown must not hide what lies behind it; it is leased now, so that the next look is past it.
        if received.messages or (not page.messages and deadline <= time.monotonic()):
            return received


def take_in(mailbox: Mailbox, handed: Sequence[Handed]) -> Call[Received]:
    """Open messages that were leased, and tell the relay what became of each. It raises nothing of the network's:
    what was opened is the caller's, whether the relay has heard of it or not."""
    if not handed:
        return Received()
    outcomes = yield from _opened(mailbox, handed)
    settling, messages, not_opened, recovered, controls = _Settling(), [], [], [], 0
    for one, outcome in zip(handed, outcomes, strict=True):
        if isinstance(outcome, Opened):
            settling.acks.append(_ack(one, outcome.receipt))
            if outcome.control:
                controls += 1
            else:
                messages.append(outcome)
            continue
        before = _in_inbox(mailbox, one.replay_key) if isinstance(outcome, Replayed) else None
        if before is not None and before.acked_at is None and not mailbox.inbox.is_control(before.replay_key):
            recovered.append(before)
        told = _settle_unopened(mailbox, one, outcome, before, settling)
        not_opened.append(NotOpened(one.replay_key, _sender(one), outcome, told))
    problem = yield from _said(mailbox, settling)
    return Received(
        messages=tuple(messages),
        not_opened=tuple(not_opened),
        recovered=tuple(recovered),
        controls=controls,
        unacknowledged=problem,
    )


def _opened(mailbox: Mailbox, handed: Sequence[Handed]) -> Call[list[Opened | AngeliaError]]:
    """Open messages as `sealed.open_envelope` does, all that can be opened in one transaction."""
    outcomes: dict[int, Opened | AngeliaError] = {}
    looked_up: dict[tuple[str, UUID | None], AngeliaError | None] = {}
    for at, one in enumerate(handed):
        envelope = _envelope(one)
        if envelope is None:
            continue
        sender = envelope.header.sender_nhi, envelope.header.channel_id
        if sender not in looked_up:
            looked_up[sender] = yield from _looked_up(mailbox, envelope)
        if (problem := looked_up[sender]) is not None:
            outcomes[at] = problem
    left = [at for at in range(len(handed)) if at not in outcomes]
    opened = mailbox.receive_many([handed[at].wire for at in left], now=sealed.now(), profile=Profile.RELAY)
    for at, outcome in zip(left, opened, strict=True):
        outcomes[at] = outcome
        if isinstance(outcome, UnknownSigner):
            outcomes[at] = yield from _followed(mailbox, handed[at].wire)
    return [outcomes[at] for at in range(len(handed))]


def _looked_up(mailbox: Mailbox, envelope: Envelope) -> Call[AngeliaError | None]:
    """What keeps a sender's keys from being believed now."""
    try:
        yield from sealed.meet_sender(mailbox, envelope.wire)
    except AngeliaError as error:
        return error
    return None


def _followed(mailbox: Mailbox, wire: bytes) -> Call[Opened | AngeliaError]:
    try:
        return (yield from sealed.open_envelope(mailbox, wire))
    except AngeliaError as error:
        return error


def _settle_unopened(
    mailbox: Mailbox, one: Handed, error: AngeliaError, before: Message | None, settling: _Settling
) -> Told:
    told = _verdict(error, one.attempt, before)
    if told is Told.ACKNOWLEDGED:
        assert before is not None, "only what is in the inbox is acknowledged again"
        settling.acks.append(_ack(one, _receipt_again(mailbox, before)))
    elif told is Told.FAILED:
        try:
            settling.acks.append(_ack(one, mailbox.refuse(one.wire, error.code, sealed.now())))
        except Refused:  # what cannot be read cannot be named in a receipt
            told = Told.GIVEN_BACK
    elif isinstance(error, NotAllowed):
        _keep_out(mailbox, one)
    if told is Told.GIVEN_BACK or (told is Told.KEPT_OUT and one.attempt < ATTEMPTS):
        after = LONGEST_BACK_OFF if told is Told.KEPT_OUT else None
        nack = Nack(replay_key=one.replay_key, lease_token=one.lease_token, reason=error.code, retry_after=after)
        settling.nacks.append(nack)
    return told


def _verdict(error: AngeliaError, attempt: int, before: Message | None) -> Told:
    match error:
        case ApiError() | Unreachable() | UntrustedBundle() | UnknownSigner() | WrongRecipient():
            return Told.GIVEN_BACK
        case Replayed():
            return Told.FAILED if before is None else Told.ACKNOWLEDGED
        case NotAllowed() | RateLimited():
            return Told.KEPT_OUT
        case UnknownKey():
            # Another process may be about to write the key down that a server has published already.
            return Told.GIVEN_BACK if attempt < ATTEMPTS else Told.FAILED
        case Expired() | FromFuture():
            return Told.NOTHING
        case Refused():
            return Told.FAILED
    return Told.NOTHING


def _said(mailbox: Mailbox, settling: _Settling) -> Call[AngeliaError | None]:
    """Tell the relay; the first thing that went wrong."""
    problem: AngeliaError | None = None
    try:
        for acks in _hundreds(settling.acks):
            results = yield from mail_calls.acknowledge(acks)
            mailbox.inbox.mark_acked([one.replay_key for one in results if one.acknowledged], sealed.now())
            refused = [one.problem for one in results if one.problem is not None]
            problem = problem or (item_fault(refused[0]) if refused else None)
        for nacks in _hundreds(settling.nacks):
            yield from mail_calls.nack(nacks)
    except (ApiError, Unreachable, BadAnswer) as error:
        return problem or error
    return problem


def _admitted(mailbox: Mailbox, most: int) -> Call[Received]:
    """Mail that was kept out, from senders who are allowed by now: asked for by name, since the relay holds it back."""
    received = Received()
    for waiting in mailbox.kept_out.admitted(sealed.now(), most):
        try:
            found = yield from mail_calls.message_status(waiting.replay_key)
        except NotFound:
            found = None
        if found is None or found.envelope is None:
            mailbox.kept_out.forget(waiting.replay_key)
            continue
        envelope = jsonform.decode(msgspec.json.encode(found.envelope))
        handed = Handed(
            wire=envelope.wire, replay_key=envelope.replay_key, lease_token=waiting.lease_token, attempt=ATTEMPTS
        )
        came = yield from take_in(mailbox, [handed])
        if all(one.told is not Told.KEPT_OUT for one in came.not_opened):
            mailbox.kept_out.forget(waiting.replay_key)
        received += came
    return received


def _keep_out(mailbox: Mailbox, one: Handed) -> None:
    envelope = decode(one.wire)
    mailbox.kept_out.add(
        Waiting(
            replay_key=one.replay_key,
            sender=envelope.header.sender_nhi,
            lease_token=one.lease_token,
            kept_at=sealed.now(),
            expires_at=moment(envelope.header.expires_at),
        )
    )


def _receipt_again(mailbox: Mailbox, before: Message) -> Receipt:
    read = before.status is ReadState.READ and not mailbox.inbox.is_control(before.replay_key)
    status = ReceiptStatus.READ if read else ReceiptStatus.DELIVERED
    return mailbox.inbox.receipt(before.replay_key, status, sealed.now())


def _in_inbox(mailbox: Mailbox, replay_key: str) -> Message | None:
    try:
        return mailbox.inbox.message(replay_key)
    except NotFound:
        return None


def _hundreds(items: list[T]) -> Iterator[list[T]]:
    return (items[at : at + MOST_AT_ONCE] for at in range(0, len(items), MOST_AT_ONCE))


def _ack(one: Handed, receipt: Receipt | None) -> Ack:
    return Ack(replay_key=one.replay_key, lease_token=one.lease_token, receipt=receipt)


def _envelope(one: Handed) -> Envelope | None:
    try:
        return decode(one.wire)
    except Refused:
        return None


def _sender(one: Handed) -> str:
    envelope = _envelope(one)
    return "" if envelope is None else envelope.header.sender_nhi
