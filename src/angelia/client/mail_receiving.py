"""Receiving with a mailbox: what was leased is opened once, and the relay is told what became of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from angelia.client import channel_signing, mail_calls, mailbox_keys
from angelia.client.ack_plan import Settling, Told
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_answers import Handed
from angelia.envelope import json_form
from angelia.envelope.refusals import Refused, Replayed, UnknownSigner
from angelia.envelope.wire import Envelope, decode
from angelia.errors import AngeliaError, NotFound
from angelia.mail.model import ATTEMPTS, MOST_AT_ONCE
from angelia.mailbox.held_mail import HeldMessage
from angelia.mailbox.inbox import Message, Opened
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.time_window import DeliveryProfile

# How many pages are looked through for mail that can be shown.
_MOST_PASSES = 100
_SAME_PAUSE = 1.0
# What the relay still has, for a mailbox that may want it later.
_STILL_WAITS = (Told.KEPT_OUT, Told.PUT_OFF, Told.NOTHING)


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

    `unacknowledged` is why the relay could not be told; it will hand the same out again, and be told then.
    `interrupted` is why there is not more: something went wrong after all this had come."""

    messages: tuple[Opened, ...] = ()
    not_opened: tuple[NotOpened, ...] = ()
    recovered: tuple[Message, ...] = ()
    controls: int = 0
    has_more: bool = False
    unacknowledged: AngeliaError | None = None
    interrupted: AngeliaError | None = None

    def __add__(self, other: Received) -> Received:
        return Received(
            messages=self.messages + other.messages,
            not_opened=self.not_opened + other.not_opened,
            recovered=self.recovered + other.recovered,
            controls=self.controls + other.controls,
            has_more=other.has_more,
            unacknowledged=self.unacknowledged or other.unacknowledged,
            interrupted=self.interrupted or other.interrupted,
        )

    @property
    def anything(self) -> bool:
        """Whether something came, opened or not."""
        return bool(self.messages or self.not_opened or self.recovered or self.controls)


class _Repeats:
    """What a relay hands out again in one `receive`. What was given back may come a second later; a relay that repeats
    itself at once, or has nothing and does not wait, is asked ever more seldom. With no time to wait its queue is gone
    through once."""

    def __init__(self, *, for_good: bool) -> None:
        self.pause = 0.0
        self._for_good = for_good
        self._seen: dict[str, float] = {}

    def left_out(self, handed: Sequence[Handed], *, early: bool) -> list[Handed]:
        """The messages without those that came just now; `early` is an answer that could have waited for more."""
        now = time.monotonic()
        known = [one for one in handed if one.replay_key in self._seen]
        recent = {one.replay_key for one in known if self._for_good or now - self._seen[one.replay_key] < _SAME_PAUSE}
        idle = len(known) == len(handed) and (handed or early)
        self.pause = min(2 * self.pause or _SAME_PAUSE, mail_calls.MOST_WAIT) if idle else 0.0
        new = [one for one in handed if one.replay_key not in recent]
        self._seen |= {one.replay_key: now for one in new}
        return new


def receive(
    mailbox: Mailbox,
    *,
    wait: float = 0.0,
    most: int = 10,
    min_priority: int = 0,
    channel_id: UUID | None = None,
    correlation_id: UUID | None = None,
    lease_seconds: int = 30,
    for_handler: bool = False,
) -> Exchange[Received]:
    """Fetch mail, open it and acknowledge it; for up to `wait` seconds until there is some.

    Every message is in the inbox before this returns. Mail of a sender who was allowed since it was kept out comes
    first. An error that comes after something is told in `interrupted`: what was opened is the caller's. `for_handler`
    remembers messages in the inbox until `end_handling`."""
    deadline = time.monotonic() + wait
    received, repeats = Received(), _Repeats(for_good=wait <= 0)
    if channel_id is None and correlation_id is None and not min_priority:
        received = yield from receive_admitted(mailbox, most, for_handler=for_handler)
    for _ in range(_MOST_PASSES):
        pause = min(repeats.pause, max(0.0, deadline - time.monotonic()))
        room, left = most - len(received.messages), deadline - time.monotonic() - pause
        if received.interrupted is not None or room < 1:
            break
        asked_at = time.monotonic() + pause
        try:
            page = yield from mail_calls.poll(
                max_messages=min(room, MOST_AT_ONCE),
                wait=0.0 if received.messages else left,
                min_priority=min_priority,
                channel_id=channel_id,
                correlation_id=correlation_id,
                lease_seconds=lease_seconds,
                after=pause,
            )
            early = time.monotonic() - asked_at < min(left, mail_calls.MOST_WAIT) / 2
            new = repeats.left_out(page.messages, early=early)
            came = yield from take_in(mailbox, new, for_handler=for_handler)
        except AngeliaError as error:
            return _cut_short(received, error)
        received += replace(came, has_more=page.has_more)
        # What is not shown must not hide what lies behind it; it is leased now, so that the next look is past it.
        if received.messages or (not new and deadline <= time.monotonic()):
            break
    yield from channel_signing.tend_keys(mailbox)
    return received


def receive_admitted(mailbox: Mailbox, most: int = MOST_AT_ONCE, *, for_handler: bool = False) -> Exchange[Received]:
    """Fetch, open and acknowledge only mail that was kept out, from senders who are allowed by now. It is asked for by
    name, since the relay holds it back."""
    received = Received()
    for waiting in mailbox.held_mail.admitted(mailbox_keys.now(), most):
        try:
            received += yield from _admitted(mailbox, waiting, for_handler=for_handler)
        except AngeliaError as error:
            return _cut_short(received, error)
    return received


def take_in(mailbox: Mailbox, handed: Sequence[Handed], *, for_handler: bool = False) -> Exchange[Received]:
    """Open messages that were leased, and tell the relay what became of each. It raises nothing of the network's:
    what was opened is the caller's, whether the relay has heard of it or not. `for_handler` remembers it in the inbox
    until `end_handling`."""
    if not handed:
        return Received()
    mailbox.own_keys.refresh()  # the pair signs receipts now, and may have been rotated while the poll waited
    handed = list({one.replay_key: one for one in handed}.values())  # of a message that was given twice, once
    outcomes = yield from _opened(mailbox, handed, for_handler=for_handler)
    settling, messages, not_opened, recovered, controls = Settling(mailbox), [], [], [], 0
    for one, outcome in zip(handed, outcomes, strict=True):
        if isinstance(outcome, Opened):
            settling.opened(one, outcome)
            if outcome.control:
                controls += 1
            else:
                messages.append(outcome)
            continue
        before = _in_inbox(mailbox, one.replay_key) if isinstance(outcome, Replayed) else None
        told = settling.unopened(one, outcome, before)
        if before is not None and before.acked_at is None and told is Told.ACKNOWLEDGED:
            recovered += [] if mailbox.inbox.is_control(before.replay_key) else [before]
        not_opened.append(NotOpened(one.replay_key, _sender(one), outcome, told))
    problem = yield from settling.said()
    return Received(
        messages=tuple(messages),
        not_opened=tuple(not_opened),
        recovered=tuple(recovered),
        controls=controls,
        unacknowledged=problem,
    )


def _opened(mailbox: Mailbox, handed: Sequence[Handed], *, for_handler: bool) -> Exchange[list[Opened | AngeliaError]]:
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
    wires = [handed[at].wire for at in left]
    opened = mailbox.receive_many(wires, now=mailbox_keys.now(), profile=DeliveryProfile.RELAY, for_handler=for_handler)
    for at, outcome in zip(left, opened, strict=True):
        outcomes[at] = outcome
        if isinstance(outcome, UnknownSigner):
            outcomes[at] = yield from _followed(mailbox, handed[at].wire, outcome, for_handler=for_handler)
    return [outcomes[at] for at in range(len(handed))]


def _looked_up(mailbox: Mailbox, envelope: Envelope) -> Exchange[AngeliaError | None]:
    """What keeps a sender's keys from being believed now."""
    try:
        yield from mailbox_keys.meet_sender(mailbox, envelope.wire)
    except AngeliaError as error:
        return error
    return None


def _followed(
    mailbox: Mailbox, wire: bytes, unknown: UnknownSigner, *, for_handler: bool
) -> Exchange[Opened | AngeliaError]:
    """Open a message of a sender who has rotated its signing pair since."""
    pin = mailbox.pinned_keys.pin(unknown.agent)
    if pin is None:
        return unknown
    try:
        yield from mailbox_keys.catch_up(mailbox, pin)
    except AngeliaError as error:
        return error
    (outcome,) = mailbox.receive_many(
        [wire], now=mailbox_keys.now(), profile=DeliveryProfile.RELAY, for_handler=for_handler
    )
    return outcome


def _admitted(mailbox: Mailbox, waiting: HeldMessage, *, for_handler: bool) -> Exchange[Received]:
    try:
        found = yield from mail_calls.message_status(waiting.replay_key)
    except NotFound:
        found = None
    if found is None or found.envelope is None:
        mailbox.held_mail.forget(waiting.replay_key)
        return Received()
    try:
        envelope = json_form.decode(msgspec.json.encode(found.envelope))
    except Refused as error:
        raise BadAnswer(f"the message {waiting.replay_key[:12]} cannot be read: {error.message}") from error
    if envelope.replay_key != waiting.replay_key:
        raise BadAnswer(f"asked for the message {waiting.replay_key[:12]}, the server gave another one")
    handed = Handed(
        wire=envelope.wire, replay_key=envelope.replay_key, lease_token=waiting.lease_token, attempt=ATTEMPTS
    )
    came = yield from take_in(mailbox, [handed], for_handler=for_handler)
    if any(one.told in _STILL_WAITS for one in came.not_opened):
        return came
    try:
        mailbox.held_mail.forget(waiting.replay_key)
    except AngeliaError as error:  # a fault of this disk, after the message was opened
        return replace(came, interrupted=error)
    return came


def _cut_short(received: Received, error: AngeliaError) -> Received:
    """What came before an error; without anything it is the error that counts."""
    if not received.anything:
        raise error
    return replace(received, interrupted=error)


def _in_inbox(mailbox: Mailbox, replay_key: str) -> Message | None:
    try:
        return mailbox.inbox.message(replay_key)
    except NotFound:
        return None


def _envelope(one: Handed) -> Envelope | None:
    try:
        return decode(one.wire)
    except Refused:
        return None


def _sender(one: Handed) -> str:
    envelope = _envelope(one)
    return "" if envelope is None else envelope.header.sender_nhi
