"""Sending with a mailbox: a sealed message is stored first, and sent byte for byte until the server has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from angelia.client import channel_signing, clock, mail_calls, peer_keys
from angelia.client.api_errors import ApiError, Unreachable, item_fault
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.operation_requests import ask
from angelia.client.peer_keys import OneTime
from angelia.envelope import media_type
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
from angelia.mail import api
from angelia.mail.api import SendOutcome
from angelia.mail.model import MOST_AT_ONCE, Accepted
from angelia.mailbox.drafts import SendOptions, check
from angelia.mailbox.envelope_files import ChangedFile
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus
from angelia.mailbox.private_files import UnsafeFile
from angelia.mailbox.retry_rules import SealStands, next_envelope_at
from angelia.mailbox.withdrawal import too_late

WAITING = "waiting"  # the member of an error that names the message which waits in the outbox
_BATCH_BYTES = 15 << 20
_ALL = 1 << 31
# Errors that say nothing about the message: sending it is retried later.
_TEMPORARY = (
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


class AlreadyWithdrawn(Conflict):
    """The message was withdrawn, so it is not sent"""


@dataclass(frozen=True, slots=True)
class SentMail:
    """A message that the server accepted; `envelope` is the one it took, after a message was sealed more than once."""

    envelope: Envelope
    accepted: Accepted

    @property
    def replay_key(self) -> str:
        return self.envelope.replay_key


@dataclass(frozen=True, slots=True)
class OutboxProblem:
    """A message of the outbox, and the error that concerns it."""

    message: OutboxMessage
    error: AngeliaError


@dataclass(frozen=True, slots=True)
class OutboxDelivery:
    """What became of the messages that were due; `left` were not tried, because the server does not answer."""

    sent: tuple[SentMail, ...]
    unsent: tuple[OutboxProblem, ...]
    left: int = 0


def send(
    mailbox: Mailbox, recipient: str, body: str | bytes, *, one_time: OneTime = "prefer", **options: Unpack[SendOptions]
) -> Exchange[SentMail]:
    """Seals a message and sends it; seals it again if the recipient's keys have changed.

    If the server cannot be reached, or has no room now, the message waits in the outbox, and the error says so in its
    member `waiting`; whatever delivers the outbox next, or listens, sends it."""
    content = body.encode() if isinstance(body, str) else body
    check(content, options)
    envelope = yield from peer_keys.seal(mailbox, recipient, content, one_time=one_time, **options)
    sent = yield from send_stored(mailbox, envelope)
    yield from channel_signing.tend_keys(mailbox)
    return sent


def send_sealed(mailbox: Mailbox, envelopes: Sequence[Envelope]) -> Exchange[list[AngeliaError | None]]:
    """Sends messages that the outbox has already, a hundred at a time; returns an error or None for each.

    A message that failed for a temporary reason, also for keys that changed, waits in the outbox for
    `deliver_outbox`."""
    outcomes: dict[str, AngeliaError | None] = {}
    for batch in _batches(envelopes):
        outcomes |= {one.replay_key: _withdrawn(mailbox, one.replay_key) for one in batch}
        wanted = [one for one in batch if outcomes[one.replay_key] is None]
        if not wanted:
            continue
        try:
            results = yield from mail_calls.send_envelopes(wanted)
        except (ApiError, Unreachable, BadAnswer) as error:
            for one in wanted:
                _retry_later(mailbox, one.replay_key, error)
                outcomes[one.replay_key] = error
            continue
        for one, result in zip(wanted, results, strict=True):
            refusal = _refusal(result)
            if refusal is None:
                refusal = yield from _note_accepted(mailbox, one.replay_key)
            else:
                _note_refusal(mailbox, one.replay_key, refusal)
            outcomes[one.replay_key] = refusal
    return [outcomes[one.replay_key] for one in envelopes]


def deliver_outbox(mailbox: Mailbox) -> Exchange[OutboxDelivery]:
    """Sends all that is due and that the server has not accepted yet; a server that does not answer is asked once.

    Withdrawals that were asked for while the server was away come first."""
    return (yield from _deliver(mailbox))


def retry_outbox(mailbox: Mailbox) -> Exchange[OutboxDelivery]:
    """Sends everything that waits in the outbox now, also what the server refused before."""
    mailbox.outbox.retry_now(clock.now())
    return (yield from _deliver(mailbox, at_once=True))


def withdraw(mailbox: Mailbox, replay_key: str) -> Exchange[None]:
    """Withdraws a message that its recipient has not been given, and deletes its content here. A message that was
    sealed again is named by the replay key of any of its envelopes.

    While the server does not answer, the message is not sent either: `deliver_outbox` asks again."""
    row = mailbox.withdrawals.request(replay_key, clock.now())
    yield from _withdraw(mailbox, row)


def send_stored(mailbox: Mailbox, envelope: Envelope, *, at_once: bool = False) -> Exchange[SentMail]:
    """Sends a stored envelope; seals it again if it is refused for its keys or its age, as long as the mailbox finds
    reason to. A message has few envelopes: `at_once` takes the next one before its time."""
    while True:
        try:
            return (yield from _post(mailbox, envelope))
        except (KeyStale, KeyRevoked) as refusal:
            envelope = yield from _reseal(mailbox, envelope, refusal)
        except ClockSkew:
            now, created_at = clock.now(), moment(envelope.header.created_at)
            if abs(now - created_at) <= SKEW:
                raise  # by this clock it is fresh: sealing it again would not help
            next_at = next_envelope_at(mailbox.outbox.message(envelope.replay_key))
            if created_at < now < next_at and not at_once:
                raise
            # A server that has a message accepts its bytes again whatever their age, so it never took this one.
            envelope = yield from _reseal(mailbox, envelope, None)


def _deliver(mailbox: Mailbox, *, at_once: bool = False) -> Exchange[OutboxDelivery]:
    sent, unsent, left = list[SentMail](), list[OutboxProblem](), 0
    now = clock.now()
    for row in mailbox.withdrawals.pending(now):
        try:
            yield from _withdraw(mailbox, row)
        except AngeliaError as error:
            if not _is_temporary(error):
                told = f"the message to {row.recipient} could not be withdrawn: {error.message}"
                mailbox.notices.tell(NoticeKind.WARNING, told)
                continue
            error.members[WAITING] = row.replay_key
            unsent.append(OutboxProblem(row, error))
            if isinstance(error, Unreachable):
                return OutboxDelivery((), tuple(unsent), len(mailbox.outbox.due(now, _ALL)))
    for row in _due(mailbox, now):
        try:
            envelope = decode(mailbox.outbox.wire(row.replay_key))
        except (UnsafeFile, NotFound) as error:
            _note_unreadable(mailbox, row, error)
            unsent.append(OutboxProblem(row, error))
            continue
        try:
            sent.append((yield from send_stored(mailbox, envelope, at_once=at_once)))
        except AlreadyWithdrawn:
            continue
        except AngeliaError as error:
            unsent.append(OutboxProblem(row, error))
            if isinstance(error, Unreachable):
                left = len(mailbox.outbox.due(now, _ALL))
                break
    return OutboxDelivery(tuple(sent), tuple(unsent), left)


def _withdraw(mailbox: Mailbox, row: OutboxMessage) -> Exchange[None]:
    """Asks the server to withdraw a message. If it refuses, the message goes on as before; if it does not answer, the
    withdrawal stays due."""
    while not row.withdrawn:
        if not row.carried:
            try:
                yield from ask(api.WITHDRAW, row.replay_key)
            except AngeliaError as error:
                # Also for a message that it never said to have: that answer may have been lost.
                if not isinstance(error, NotFound) or row.status is OutboxStatus.QUEUED:
                    if not _is_temporary(error):
                        mailbox.withdrawals.cancel(row.replay_key)
                    raise
        if mailbox.withdrawals.complete(row.replay_key, clock.now(), seen=row.status):
            return
        row = mailbox.outbox.current(row.replay_key)
        if not row.withdrawable and not row.withdrawn:
            raise too_late(row)


def _due(mailbox: Mailbox, now: datetime) -> Iterator[OutboxMessage]:
    """Yields all messages that are due, each once."""
    tried = set[str]()
    while rows := [row for row in mailbox.outbox.due(now) if row.replay_key not in tried]:
        for row in rows:
            tried.add(row.replay_key)
            yield row


def _post(mailbox: Mailbox, envelope: Envelope) -> Exchange[SentMail]:
    if (withdrawn := _withdrawn(mailbox, envelope.replay_key)) is not None:
        raise withdrawn
    try:
        accepted = yield from mail_calls.send_envelope(envelope.wire)
        if (accepted.replay_key, accepted.message_id) != (envelope.replay_key, envelope.header.message_id):
            raise BadAnswer("the server accepted something else than the message that was sent")
    except (ApiError, Unreachable, BadAnswer) as error:
        _note_refusal(mailbox, envelope.replay_key, error)
        raise
    if (withdrawn := (yield from _note_accepted(mailbox, envelope.replay_key))) is not None:
        raise withdrawn
    return SentMail(envelope, accepted)


def _withdrawn(mailbox: Mailbox, replay_key: str) -> AlreadyWithdrawn | None:
    """Returns the refusal of a message that is about to be sent: another process may have withdrawn it since it was
    looked up."""
    with contextlib.suppress(NotFound):  # what is not of this outbox cannot be withdrawn from it
        row = mailbox.outbox.message(replay_key)
        if row.withdraw_asked_at is not None:
            return AlreadyWithdrawn(f"the message to {row.recipient} was withdrawn, so it is not sent")
    return None


def _note_accepted(mailbox: Mailbox, replay_key: str) -> Exchange[AlreadyWithdrawn | None]:
    """Writes down that the server has a message. One whose withdrawal was asked for while it was sent is withdrawn now:
    then that refusal is returned."""
    row = mailbox.outbox.accept(replay_key)
    if row is None or row.withdraw_asked_at is None:
        return None
    with contextlib.suppress(AngeliaError):  # then it stays sent, or the next delivery of the outbox withdraws it
        yield from _withdraw(mailbox, row)
        return AlreadyWithdrawn(f"the message to {row.recipient} was withdrawn while it was sent")
    return None


def _reseal(mailbox: Mailbox, envelope: Envelope, refusal: KeyStale | KeyRevoked | None) -> Exchange[Envelope]:
    try:
        return (yield from peer_keys.reseal(mailbox, envelope.replay_key, refusal))
    except AngeliaError as error:
        if isinstance(error, SealStands):
            _retry_later(mailbox, envelope.replay_key, error)
        if not isinstance(error, Conflict):  # a conflict: another process has sealed it again by now
            error.members[WAITING] = envelope.replay_key
        raise


def _note_refusal(mailbox: Mailbox, replay_key: str, error: AngeliaError) -> None:
    """Writes down what a refusal means for a stored message. Only the server says so, so the content stays."""
    if _is_temporary(error):
        _retry_later(mailbox, replay_key, error)
        error.members[WAITING] = replay_key
    else:
        said = OutboxStatus.EXPIRED if isinstance(error, MessageExpired) else OutboxStatus.FAILED
        mailbox.outbox.refuse(replay_key, said, error.code, clock.now())


def _note_unreadable(mailbox: Mailbox, row: OutboxMessage, error: AngeliaError) -> None:
    """Writes down that the bytes of a message cannot be read: it is given up if they are gone, else retried later."""
    if isinstance(error, ChangedFile | NotFound):
        mailbox.outbox.give_up(row.replay_key, error.message)
    else:
        _retry_later(mailbox, row.replay_key, error)
        error.members[WAITING] = row.replay_key


def _is_temporary(error: AngeliaError) -> bool:
    return isinstance(error, _TEMPORARY) or getattr(error, "status", 0) >= 500


def _retry_later(mailbox: Mailbox, replay_key: str, error: AngeliaError) -> None:
    with contextlib.suppress(Conflict):  # another process sent it
        mailbox.outbox.retry_later(replay_key, clock.now(), error.message)


def _refusal(result: SendOutcome) -> AngeliaError | None:
    """Returns why a message of a batch was not accepted; None if it was."""
    if result.problem is not None:
        return item_fault(result.problem)
    if result.message is None:
        return BadAnswer("the server says neither that it took a message nor why not")
    return None


def _batches(envelopes: Sequence[Envelope]) -> Iterator[list[Envelope]]:
    """Batches of as many as the server takes, by number and by size."""
    batch, size = list[Envelope](), 0
    for one in envelopes:
        length = len(one.wire) + media_type.LENGTH_BYTES
        if batch and (len(batch) == MOST_AT_ONCE or size + length > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += length
    if batch:
        yield batch
