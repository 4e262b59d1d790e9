"""Receiving with a mailbox: leased messages are opened once, and acknowledged or given back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from angelia.client import channel_signing, clock, mail_calls, peer_keys
from angelia.client.ack_plan import AckPlan, AckVerdict
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_calls import LeasedMessage
from angelia.client.operation_requests import ask
from angelia.envelope import json_form
from angelia.envelope.refusals import Refused, Replayed, UnknownSigner
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, NotFound
from angelia.mail import api
from angelia.mail.api import MOST_WAIT
from angelia.mail.model import ATTEMPTS, MOST_AT_ONCE
from angelia.mailbox.held_mail import HeldMessage
from angelia.mailbox.inbox import Message, Opened
from angelia.mailbox.mailbox import Mailbox

# How many pages are looked through for mail that can be shown.
_MOST_PASSES = 100
_SAME_PAUSE = 1.0
# What the server still has, for a mailbox that may want it later.
_STILL_WAITS = (AckVerdict.HELD, AckVerdict.DEFERRED, AckVerdict.NOTHING)


@dataclass(frozen=True, slots=True)
class NotOpened:
    """A message that was not opened, why, and what the server was told; the sender is only what it claims."""

    replay_key: str
    sender: str
    error: AngeliaError
    verdict: AckVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What came. `recovered` was opened before and never acknowledged, as after a crash; it is in the inbox.

    `unacknowledged` is why not all acks were sent; the same messages come again, and are acknowledged then.
    `interrupted` is the error that kept more from coming, after all this had come."""

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
        """Whether a message came, opened or not."""
        return bool(self.messages or self.not_opened or self.recovered or self.controls)


class _Repeats:
    """Messages that come again within one `receive`. What was given back may come a second later; a server that repeats
    itself at once, or has nothing and does not wait, is polled after ever longer pauses. With no time to wait its queue
    is gone through once."""

    def __init__(self, *, for_good: bool) -> None:
        self.pause = 0.0
        self._for_good = for_good
        self._seen: dict[str, float] = {}

    def left_out(self, leased: Sequence[LeasedMessage], *, early: bool) -> list[LeasedMessage]:
        """Returns the messages without those that came just now; `early` says that the answer could have waited."""
        now = time.monotonic()
        known = [one for one in leased if one.replay_key in self._seen]
        recent = {one.replay_key for one in known if self._for_good or now - self._seen[one.replay_key] < _SAME_PAUSE}
        idle = len(known) == len(leased) and (leased or early)
        self.pause = min(2 * self.pause or _SAME_PAUSE, MOST_WAIT) if idle else 0.0
        new = [one for one in leased if one.replay_key not in recent]
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
    """Fetches mail, opens it and acknowledges it; waits up to `wait` seconds until there is some.

    Every message is in the inbox before this returns. Mail that was held, and whose sender is allowed by now, comes
    first. An error that comes after the first messages is in `interrupted`, so that these reach the caller.
    `for_handler` remembers messages in the inbox until `end_handling`."""
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
            early = time.monotonic() - asked_at < min(left, MOST_WAIT) / 2
            new = repeats.left_out(page.messages, early=early)
            came = yield from take_in(mailbox, new, for_handler=for_handler)
        except AngeliaError as error:
            return _cut_short(received, error)
        received += replace(came, has_more=page.has_more)
        # What was not opened must not hide what lies behind it; it is leased now, so that the next poll is past it.
        if received.messages or (not new and deadline <= time.monotonic()):
            break
    yield from channel_signing.tend_keys(mailbox)
    return received


def receive_admitted(mailbox: Mailbox, most: int = MOST_AT_ONCE, *, for_handler: bool = False) -> Exchange[Received]:
    """Fetches, opens and acknowledges only mail that was held and whose sender is allowed by now. It is asked for by
    its replay key, since the server holds it back."""
    received = Received()
    for waiting in mailbox.held_mail.admitted(clock.now(), most):
        try:
            received += yield from _admitted(mailbox, waiting, for_handler=for_handler)
        except AngeliaError as error:
            return _cut_short(received, error)
    return received


def take_in(mailbox: Mailbox, leased: Sequence[LeasedMessage], *, for_handler: bool = False) -> Exchange[Received]:
    """Opens leased messages, and acknowledges them or gives them back. Raises no error of the network: what was opened
    reaches the caller, whether it could be acknowledged or not. `for_handler` remembers it in the inbox until
    `end_handling`."""
    if not leased:
        return Received()
    mailbox.own_keys.refresh()  # the pair signs receipts now, and may have been rotated while the poll waited
    leased = list({one.replay_key: one for one in leased}.values())  # of a message that was given twice, once
    outcomes = yield from _opened(mailbox, leased, for_handler=for_handler)
    plan, messages, not_opened, recovered, controls = AckPlan(mailbox), [], [], [], 0
    for one, outcome in zip(leased, outcomes, strict=True):
        if isinstance(outcome, Opened):
            plan.opened(one, outcome)
            if outcome.control:
                controls += 1
            else:
                messages.append(outcome)
            continue
        before = _in_inbox(mailbox, one.replay_key) if isinstance(outcome, Replayed) else None
        verdict = plan.unopened(one, outcome, before)
        if before is not None and before.acked_at is None and verdict is AckVerdict.ACKNOWLEDGED:
            recovered += [] if mailbox.inbox.is_control(before.replay_key) else [before]
        sender = one.envelope.header.sender_nhi if isinstance(one.envelope, Envelope) else ""
        not_opened.append(NotOpened(one.replay_key, sender, outcome, verdict))
    problem = yield from plan.send()
    return Received(
        messages=tuple(messages),
        not_opened=tuple(not_opened),
        recovered=tuple(recovered),
        controls=controls,
        unacknowledged=problem,
    )


def _opened(
    mailbox: Mailbox, leased: Sequence[LeasedMessage], *, for_handler: bool
) -> Exchange[list[Opened | AngeliaError]]:
    """Opens messages, all that can be opened in one transaction, as `peer_keys.open_envelope` opens one. Returns one
    outcome each."""
    outcomes: dict[int, Opened | AngeliaError] = {}
    looked_up: dict[tuple[str, UUID | None], AngeliaError | None] = {}
    readable: dict[int, Envelope] = {}
    for at, one in enumerate(leased):
        if isinstance(one.envelope, Refused):
            outcomes[at] = one.envelope
            continue
        sender = one.envelope.header.sender_nhi, one.envelope.header.channel_id
        if sender not in looked_up:
            looked_up[sender] = None
            try:
                yield from peer_keys.meet_sender(mailbox, one.envelope)
            except AngeliaError as error:  # its sender's keys cannot be believed now
                looked_up[sender] = error
        if (problem := looked_up[sender]) is not None:
            outcomes[at] = problem
        else:
            readable[at] = one.envelope
    opened = mailbox.receive_many(list(readable.values()), now=clock.now(), for_handler=for_handler)
    for (at, envelope), outcome in zip(readable.items(), opened, strict=True):
        outcomes[at] = outcome
        if isinstance(outcome, UnknownSigner):
            outcomes[at] = yield from _followed(mailbox, envelope, outcome, for_handler=for_handler)
    return [outcomes[at] for at in range(len(leased))]


def _followed(
    mailbox: Mailbox, envelope: Envelope, unknown: UnknownSigner, *, for_handler: bool
) -> Exchange[Opened | AngeliaError]:
    """Opens a message of a sender that has rotated its signing pair since."""
    pin = mailbox.pinned_keys.pin(unknown.agent)
    if pin is None:
        return unknown
    try:
        yield from peer_keys.catch_up(mailbox, pin)
    except AngeliaError as error:
        return error
    (outcome,) = mailbox.receive_many([envelope], now=clock.now(), for_handler=for_handler)
    return outcome


def _admitted(mailbox: Mailbox, waiting: HeldMessage, *, for_handler: bool) -> Exchange[Received]:
    try:
        found = yield from ask(api.STATUS, waiting.replay_key)
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
    leased = LeasedMessage.of(envelope, waiting.lease_token, ATTEMPTS)
    came = yield from take_in(mailbox, [leased], for_handler=for_handler)
    if any(one.verdict in _STILL_WAITS for one in came.not_opened):
        return came
    try:
        mailbox.held_mail.forget(waiting.replay_key)
    except AngeliaError as error:  # a fault of this disk, after the message was opened
        return replace(came, interrupted=error)
    return came


def _cut_short(received: Received, error: AngeliaError) -> Received:
    """Returns what came before an error; raises the error if nothing came."""
    if not received.anything:
        raise error
    return replace(received, interrupted=error)


def _in_inbox(mailbox: Mailbox, replay_key: str) -> Message | None:
    try:
        return mailbox.inbox.message(replay_key)
    except NotFound:
        return None
