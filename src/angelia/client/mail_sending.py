"""Sending with a mailbox: what is sealed is stored first, and sent byte for byte until the relay has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from angelia.client import channel_signing, mail_calls, mailbox_keys
from angelia.client.api_errors import ApiError, Unreachable, item_fault
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_answers import Accepted, SendOutcome
from angelia.client.mailbox_keys import OneTime
from angelia.envelope import json_form
from angelia.envelope.times import SKEW, moment
from angelia.envelope.wire import Envelope, decode
from angelia.errors import (
    AngeliaError,
    ClockSkew,
    Conflict,
    KeyRevoked,
    KeyStale,
    MessageExpired,
    NotFound,
    QueueFull,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from angelia.mail.model import MOST_AT_ONCE
from angelia.mailbox.envelope_files import ChangedFile
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.outbox import SealStands, SendOptions, check, next_envelope_at, not_taken_back
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus
from angelia.mailbox.private_files import UnsafeFile

WAITING = "waiting"  # the member of an error that names the message which waits in the outbox
_BATCH_BYTES = 15 << 20
_ALL = 1 << 31
# Nothing is wrong with the message: it is tried again later.
_PASSING = (
    Unreachable,
    Unavailable,
    RateLimited,
    QueueFull,
    Unauthenticated,
    ClockSkew,
    KeyStale,
    KeyRevoked,
    BadAnswer,
)


class TakenBack(Conflict):
    """The message was withdrawn, so it is not sent"""


@dataclass(frozen=True, slots=True)
class SentMail:
    """A message that the relay has; `envelope` is what it took, which may have been sealed more than once."""

    envelope: Envelope
    accepted: Accepted

    @property
    def replay_key(self) -> str:
        return self.envelope.replay_key


@dataclass(frozen=True, slots=True)
class Unsent:
    """A message of the outbox that did not reach the relay, and why."""

    message: OutboxMessage
    error: AngeliaError


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of the messages that were due; `left` were not tried, because the relay does not answer."""

    sent: tuple[SentMail, ...]
    unsent: tuple[Unsent, ...]
    left: int = 0


def send(
    mailbox: Mailbox, recipient: str, body: bytes, *, one_time: OneTime = "prefer", **options: Unpack[SendOptions]
) -> Exchange[SentMail]:
    """Seal a message and hand it to the relay, sealing it again if the recipient's keys have changed.

    If the relay cannot be reached, or has no room now, the message waits in the outbox for `deliver_outbox`; the
    error says so in its member `waiting`."""
    check(body, options)
    envelope = yield from mailbox_keys.seal(mailbox, recipient, body, one_time=one_time, **options)
    sent = yield from handed_over(mailbox, envelope)
    yield from channel_signing.tend_keys(mailbox)
    return sent


def send_sealed(mailbox: Mailbox, envelopes: Sequence[Envelope]) -> Exchange[list[AngeliaError | None]]:
    """Hand over messages that the outbox has already, a hundred at a time; for each its error, or None.

    What failed for a passing reason, also for keys that changed, waits in the outbox for `deliver_outbox`."""
    outcomes: dict[str, AngeliaError | None] = {}
    for batch in _batches(envelopes):
        wanted = list[Envelope]()
        for one in batch:
            try:
                _refuse_withdrawn(mailbox, one.replay_key)
                wanted.append(one)
            except TakenBack as error:
                outcomes[one.replay_key] = error
        if not wanted:
            continue
        try:
            results = yield from mail_calls.send_envelopes(wanted)
        except (ApiError, Unreachable, BadAnswer) as error:
            for one in wanted:
                _put_off(mailbox, one.replay_key, error)
                outcomes[one.replay_key] = error
            continue
        for one, result in zip(wanted, results, strict=True):
            refusal = _refusal(result)
            if refusal is None:
                refusal = yield from _accepted(mailbox, one.replay_key)
            else:
                _note_refusal(mailbox, one.replay_key, refusal)
            outcomes[one.replay_key] = refusal
    return [outcomes[one.replay_key] for one in envelopes]


def deliver_outbox(mailbox: Mailbox) -> Exchange[Delivered]:
    """Send all that is stored, due, and not with the relay yet; a relay that does not answer is asked once.

    What its sender wanted back while the relay was away is withdrawn first."""
    return (yield from _delivered(mailbox))


def retry_outbox(mailbox: Mailbox) -> Exchange[Delivered]:
    """Send everything now that waits in the outbox, also what the server refused before."""
    mailbox.outbox.retry_now(mailbox_keys.now())
    return (yield from _delivered(mailbox, at_once=True))


def withdraw(mailbox: Mailbox, replay_key: str) -> Exchange[None]:
    """Take back a message that its recipient has not been given; its content is not kept here either. One that was
    sealed again is named by any of its envelopes.

    While the relay does not answer, the message is not sent either: `deliver_outbox` asks again."""
    row = mailbox.outbox.ask_withdrawal(replay_key, mailbox_keys.now())
    yield from _taken_back(mailbox, row)


def handed_over(mailbox: Mailbox, envelope: Envelope, *, at_once: bool = False) -> Exchange[SentMail]:
    """Hand a stored envelope to the relay; one that is refused for its keys or its age is sealed again, as long as the
    mailbox finds reason to. A message has few envelopes: `at_once` takes the next one before its time."""
    while True:
        try:
            return (yield from _posted(mailbox, envelope))
        except (KeyStale, KeyRevoked) as refusal:
            envelope = yield from _sealed_again(mailbox, envelope, refusal)
        except ClockSkew:
            now, created_at = mailbox_keys.now(), moment(envelope.header.created_at)
            if abs(now - created_at) <= SKEW:
                raise  # by this clock it is fresh: sealing it again would not help
            next_at = next_envelope_at(mailbox.outbox.message(envelope.replay_key))
            if created_at < now < next_at and not at_once:
                raise
            # A relay that has a message answers for its bytes whatever their age, so it never took this one.
            envelope = yield from _sealed_again(mailbox, envelope, None)


def _delivered(mailbox: Mailbox, *, at_once: bool = False) -> Exchange[Delivered]:
    sent, unsent, left = list[SentMail](), list[Unsent](), 0
    now = mailbox_keys.now()
    for row in mailbox.outbox.to_withdraw(now):
        try:
            yield from _taken_back(mailbox, row)
        except AngeliaError as error:
            if not _passes(error):
                told = f"the message to {row.recipient} could not be withdrawn: {error.message}"
                mailbox.notices.tell(NoticeKind.WARNING, told)
                continue
            error.members[WAITING] = row.replay_key
            unsent.append(Unsent(row, error))
            if isinstance(error, Unreachable):
                return Delivered((), tuple(unsent), len(mailbox.outbox.due(now, _ALL)))
    for row in _due(mailbox, now):
        try:
            envelope = decode(mailbox.outbox.wire(row.replay_key))
        except (UnsafeFile, NotFound) as error:
            _note_unreadable(mailbox, row, error)
            unsent.append(Unsent(row, error))
            continue
        try:
            sent.append((yield from handed_over(mailbox, envelope, at_once=at_once)))
        except TakenBack:
            continue
        except AngeliaError as error:
            unsent.append(Unsent(row, error))
            if isinstance(error, Unreachable):
                left = len(mailbox.outbox.due(now, _ALL))
                break
    return Delivered(tuple(sent), tuple(unsent), left)


def _taken_back(mailbox: Mailbox, row: OutboxMessage) -> Exchange[None]:
    """Ask the relay to withdraw a message. If it refuses, the message goes on as before; if it does not answer, the
    message stays to be withdrawn."""
    while not row.withdrawn:
        if not row.carried:
            try:
                yield from mail_calls.withdraw_message(row.replay_key)
            except AngeliaError as error:
                # It is asked also for what it never said to have: an answer may have been lost, or a crash kept the
                # sender from hearing it.
                if not isinstance(error, NotFound) or row.status is OutboxStatus.QUEUED:
                    if not _passes(error):
                        mailbox.outbox.forget_withdrawal(row.replay_key)
                    raise
        if mailbox.outbox.withdraw(row.replay_key, mailbox_keys.now(), seen=row.status):
            return
        row = mailbox.outbox.current(row.replay_key)
        if not row.withdrawable and not row.withdrawn:
            raise not_taken_back(row)


def _due(mailbox: Mailbox, now: datetime) -> Iterator[OutboxMessage]:
    """All that is due, some at a time: what was tried is not due any more, or at least not tried again."""
    tried = set[str]()
    while rows := [row for row in mailbox.outbox.due(now) if row.replay_key not in tried]:
        for row in rows:
            tried.add(row.replay_key)
            yield row


def _posted(mailbox: Mailbox, envelope: Envelope) -> Exchange[SentMail]:
    _refuse_withdrawn(mailbox, envelope.replay_key)
    try:
        accepted = yield from mail_calls.send_envelope(envelope.wire)
        if (accepted.replay_key, accepted.message_id) != (envelope.replay_key, envelope.header.message_id):
            raise BadAnswer("the server accepted something else than the message that was sent")
    except (ApiError, Unreachable, BadAnswer) as error:
        _note_refusal(mailbox, envelope.replay_key, error)
        raise
    if (taken_back := (yield from _accepted(mailbox, envelope.replay_key))) is not None:
        raise taken_back
    return SentMail(envelope, accepted)


def _refuse_withdrawn(mailbox: Mailbox, replay_key: str) -> None:
    """Just before a message is sent: another process may have withdrawn it since it was looked up."""
    try:
        row = mailbox.outbox.message(replay_key)
    except NotFound:  # what is not of this outbox cannot be withdrawn from it
        return
    if row.withdraw_asked_at is not None:
        raise TakenBack(f"the message to {row.recipient} was withdrawn, so it is not sent")


def _accepted(mailbox: Mailbox, replay_key: str) -> Exchange[TakenBack | None]:
    """Write down that the relay has a message; one that was withdrawn while it was sent is taken back."""
    row = mailbox.outbox.accept(replay_key)
    if row is None or row.withdraw_asked_at is None:
        return None
    with contextlib.suppress(AngeliaError):  # then it is sent, and either stays so or is withdrawn by the next delivery
        yield from _taken_back(mailbox, row)
        return TakenBack(f"the message to {row.recipient} was withdrawn while it was sent")
    return None


def _sealed_again(mailbox: Mailbox, envelope: Envelope, refusal: KeyStale | KeyRevoked | None) -> Exchange[Envelope]:
    try:
        return (yield from mailbox_keys.reseal(mailbox, envelope.replay_key, refusal))
    except AngeliaError as error:
        if isinstance(error, SealStands):
            _put_off(mailbox, envelope.replay_key, error)
        if not isinstance(error, Conflict):  # another process has it sealed again by now
            error.members[WAITING] = envelope.replay_key
        raise


def _note_refusal(mailbox: Mailbox, replay_key: str, error: AngeliaError) -> None:
    """Write down what a refusal means for a stored message. It is the server's word, so the content stays."""
    if _passes(error):
        _put_off(mailbox, replay_key, error)
        error.members[WAITING] = replay_key
    else:
        said = OutboxStatus.EXPIRED if isinstance(error, MessageExpired) else OutboxStatus.FAILED
        mailbox.outbox.refuse(replay_key, said, error.code, mailbox_keys.now())


def _note_unreadable(mailbox: Mailbox, row: OutboxMessage, error: AngeliaError) -> None:
    """Without its bytes a message cannot be sent: never if they are gone, later if they are out of reach now."""
    if isinstance(error, ChangedFile | NotFound):
        mailbox.outbox.give_up(row.replay_key, error.message)
    else:
        _put_off(mailbox, row.replay_key, error)
        error.members[WAITING] = row.replay_key


def _passes(error: AngeliaError) -> bool:
    return isinstance(error, _PASSING) or getattr(error, "status", 0) >= 500


def _put_off(mailbox: Mailbox, replay_key: str, error: AngeliaError) -> None:
    with contextlib.suppress(Conflict):  # another process got it through
        mailbox.outbox.retry_later(replay_key, mailbox_keys.now(), error.message)


def _refusal(result: SendOutcome) -> AngeliaError | None:
    """Why one of several was not taken."""
    if result.problem is not None:
        return item_fault(result.problem)
    if result.message is None:
        return BadAnswer("the server says neither that it took a message nor why not")
    return None


def _batches(envelopes: Sequence[Envelope]) -> Iterator[list[Envelope]]:
    """As many at a time as the relay takes, by number and by size."""
    batch, size = list[Envelope](), 0
    for one in envelopes:
        length = len(json_form.encode(one))
        if batch and (len(batch) == MOST_AT_ONCE or size + length > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += length
    if batch:
        yield batch
