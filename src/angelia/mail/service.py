"""Takes mail from senders: every check of the contract in its order, one ledger transaction, then the queue."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import structlog

from angelia import metrics
from angelia.agents import service as agents
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.failures import SIGNATURE, Failures
from angelia.audit.model import Event
from angelia.envelope import sealing
from angelia.envelope.merkle_batch import VerifiedRoots
from angelia.envelope.refusals import SignatureFailed, SuiteRefused
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.envelope.wire import Envelope, Suite
from angelia.errors import (
    AngeliaError,
    ClockSkew,
    Denied,
    MessageExpired,
    MessageIdConflict,
    QueueFull,
    Unavailable,
)
from angelia.keys import admission
from angelia.keys.admission import Signed
from angelia.mail import receipts_store, store
from angelia.mail.hot_store import HotMail
from angelia.mail.model import (
    QUEUE_BYTES_MAX,
    QUEUE_MAX,
    REMEMBER_IDS,
    SENDER_SHARE,
    Accepted,
    NewEnvelope,
    Place,
    mref_of,
)
from angelia.policy.model import Action, Wish
from angelia.policy.service import Policy, denial
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, StatementError, Tx

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """What the sender is told; `new` is false when the very same bytes were sent before."""

    answer: Accepted
    new: bool


@dataclass(frozen=True, slots=True)
class _Admitted:
    """An envelope that may be taken if this pair signed it."""

    pair: VerifyingPair
    one_time: bool


@dataclass(frozen=True, slots=True)
class _Stored:
    """What came of writing an envelope down; it has a place when it is new."""

    answer: Accepted
    place: Place | None


class Mail:
    """The sender's side of mail."""

    def __init__(self, ledger: Ledger, hot: HotMail, policy: Policy, failures: Failures) -> None:
        self._ledger = ledger
        self._hot = hot
        self._policy = policy
        self._failures = failures
        self._checks: GroupCommit[NewEnvelope, Accepted | _Admitted] = GroupCommit(ledger, self._check, reads=True)
        self._writes: GroupCommit[NewEnvelope, _Stored] = GroupCommit(ledger, self._write)
        self._roots = VerifiedRoots()

    async def close(self) -> None:
        await self._checks.close()
        await self._writes.close()

    async def send(self, agent: AgentRow, envelope: Envelope, now: datetime) -> Sent:
        """Take one envelope. When this returns it is durable, and its recipient can have it."""
        outcome = await self._stored(agent, envelope, await self._offered(agent, envelope, now), now)
        if isinstance(outcome, AngeliaError):
            raise outcome
        return outcome

    async def send_many(
        self, agent: AgentRow, envelopes: Iterable[Envelope], now: datetime
    ) -> list[Sent | AngeliaError]:
        """Take several, each for itself: none is refused for another's sake. They arrive in their order."""
        given = list(envelopes)
        offers = await asyncio.gather(*(self._offered(agent, one, now) for one in given))
        stored = (self._stored(agent, one, offer, now) for one, offer in zip(given, offers, strict=True))
        return await asyncio.gather(*stored)

    async def _offered(self, agent: AgentRow, envelope: Envelope, now: datetime) -> NewEnvelope | Sent | AngeliaError:
        return await self._outcome(agent, envelope, now, self._offer(agent, envelope, now))

    async def _stored(
        self, agent: AgentRow, envelope: Envelope, offer: NewEnvelope | Sent | AngeliaError, now: datetime
    ) -> Sent | AngeliaError:
        if not isinstance(offer, NewEnvelope):
            return offer
        return await self._outcome(agent, envelope, now, self._store(offer))

    async def _outcome(
        self, agent: AgentRow, envelope: Envelope, now: datetime, step: Awaitable[T]
    ) -> T | AngeliaError:
        """What comes of a step; a refusal is counted, and on record if it says something about its sender."""
        try:
            return await step
        except AngeliaError as error:
            metrics.MAIL_REFUSED.labels(error.code).inc()
            await self._record_failure(agent, envelope, error, now)
            return error
        except StatementError:
            log.exception("a message could not be stored", sender=agent.handle)
            return AngeliaError("something went wrong on the server", hint="send it again")

    async def _offer(self, agent: AgentRow, envelope: Envelope, now: datetime) -> NewEnvelope | Sent:
        """Everything before the envelope is written down; `Sent` is the first answer for bytes that came before."""
        header = envelope.header
        if header.sender_nhi != agent.handle:
            raise Denied("the sender in the envelope is not the caller", hint=f"you are {agent.handle}")
        if header.suite is Suite.CHANNEL:
            raise SuiteRefused("an envelope for a channel is published there", hint="POST /v1/channels/{id}/publish")
        offer = NewEnvelope(
            envelope,
            mref_of(header.sender_nhi, header.message_id),
            bytes.fromhex(envelope.replay_key),
            moment(header.created_at),
            now,
            moment(header.expires_at),
        )
        checked = await self._checks.submit(offer)
        if isinstance(checked, Accepted):
            return Sent(checked, new=False)
        (over_rate,) = await self._policy.spend([_wish(offer)], now)
        if over_rate is not None:
            raise over_rate
        sealing.verify(envelope, checked.pair, self._roots, unix_ms(now))
        return dataclasses.replace(offer, one_time=checked.one_time)

    async def _store(self, offer: NewEnvelope) -> Sent:
        stored = await self._writes.submit(offer)
        if stored.place is None:
            return Sent(stored.answer, new=False)
        metrics.MAIL_SENT.labels(str(int(offer.envelope.header.priority))).inc()
        with contextlib.suppress(Unavailable):  # the reconcile tick finds what is not in its queue
            await self._hot.enqueue(stored.place, offer.envelope.wire, offer.expires_at - offer.accepted_at)
        return Sent(stored.answer, new=True)

    async def _check(self, tx: Tx, offers: Sequence[NewEnvelope]) -> Sequence[Accepted | _Admitted | AngeliaError]:
        """Everything that can be said before the signatures are looked at; nothing is written."""
        outcomes: list[Accepted | _Admitted | AngeliaError | None] = [*await _repeated(tx, offers)]
        fresh = [at for at, outcome in enumerate(outcomes) if outcome is None]
        for at, verdict in zip(fresh, await self._verdicts(tx, [offers[at] for at in fresh]), strict=True):
            outcomes[at] = verdict
        return [outcome for outcome in outcomes if outcome is not None]

    async def _write(self, tx: Tx, offers: Sequence[NewEnvelope]) -> Sequence[_Stored | AngeliaError]:
        """Store what there is room for. Rules and keys that changed since the check are asked again at delivery."""
        outcomes: list[_Stored | AngeliaError | None] = [*await _full(tx, offers)]
        refused = [at for at, outcome in enumerate(outcomes) if outcome is not None]
        # What took the last place may have been the very same message.
        for at, known in zip(refused, await _repeated(tx, [offers[at] for at in refused]), strict=True):
            if known is not None:
                outcomes[at] = _Stored(known, None) if isinstance(known, Accepted) else known
        late = await _take_ids(tx, offers, [at for at, outcome in enumerate(outcomes) if outcome is None])
        one_time = [at for at, offer in enumerate(offers) if offer.one_time and outcomes[at] is None and at not in late]
        await _spend_keys(tx, offers, one_time, outcomes)
        await _answer_late(tx, offers, late, outcomes)
        left = [at for at, outcome in enumerate(outcomes) if outcome is None]
        new = [offers[at] for at in left]
        if new:
            numbers = await store.add(tx, new)
            await receipts_store.add(tx, new)
            await audit.record(tx, [_sent_event(offer) for offer in new])
            for at, offer, number in zip(left, new, numbers, strict=True):
                header = offer.envelope.header
                place = Place(header.recipient_nhi, offer.mref, header.priority, number, offer.accepted_at)
                outcomes[at] = _Stored(_answer(offer), place)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _verdicts(self, tx: Tx, offers: Sequence[NewEnvelope]) -> list[_Admitted | AngeliaError]:
        """Clock, keys, rules and block list. Who may not send to somebody learns nothing about them."""
        if not offers:
            return []
        now = max(offer.accepted_at for offer in offers)
        headers = [offer.envelope.header for offer in offers]
        allowed = await self._policy.check(tx, [_wish(offer) for offer in offers], now)
        pairs = [(header.sender_nhi, header.recipient_nhi) for header in headers]
        blocked = await agents.blocked(tx, pairs)
        standings = await admission.standings(tx, headers, now)
        signers = await admission.signers(tx, [Signed.envelope(header) for header in headers], now)
        refusals = [_untimely(offer) or allowed[at] for at, offer in enumerate(offers)]
        for at, pair in enumerate(pairs):
            if refusals[at] is None and pair in blocked:
                refusals[at] = denial(_wish(offers[at]))  # as if by the rules: whoever is blocked is not told so
            refusals[at] = refusals[at] or standings[at].refusal
        old = [at for at, one in enumerate(standings) if one.stale and refusals[at] is None]
        unread = await self._policy.check(tx, [Wish(pairs[at][0], Action.READ_KEYS, pairs[at][1]) for at in old], now)
        readable = {at for at, denied in zip(old, unread, strict=True) if denied is None or len({*pairs[at]}) == 1}
        answers = await admission.stale(tx, {pairs[at][1] for at in readable})
        for at in old:
            refusals[at] = answers[pairs[at][1]] if at in readable else admission.bare_stale(pairs[at][1])
        return [
            refusal or (signer if isinstance(signer, AngeliaError) else _Admitted(signer, standing.one_time))
            for refusal, signer, standing in zip(refusals, signers, standings, strict=True)
        ]

    async def _record_failure(self, agent: AgentRow, envelope: Envelope, error: AngeliaError, now: datetime) -> None:
        header = envelope.header
        if isinstance(error, SignatureFailed):
            kind = SIGNATURE
        elif isinstance(error, Denied):
            kind = "message_delivery_denied"
        elif isinstance(error, MessageIdConflict):
            kind = "message_id_conflict"
        else:
            return
        await self._failures.record(
            kind,
            agent.handle,
            now,
            object=header.recipient_nhi or None,
            message_id=header.message_id,
            replay_key=bytes.fromhex(envelope.replay_key),
            detail={"at": "send"},
        )


async def _take_ids(tx: Tx, offers: Sequence[NewEnvelope], places: Sequence[int]) -> dict[int, int]:
    """Whoever takes an id first has it, also of two that come at once, here or in another process.

    Returns who came late, and the place of the first one here with that id."""
    wanted: dict[tuple[str, UUID], int] = {}
    for at in places:
        wanted.setdefault(_id(offers[at]), at)
    rows = [
        (*id_, offers[at].replay_key, _answer(offers[at]), offers[at].expires_at + REMEMBER_IDS)
        for id_, at in sorted(wanted.items())
    ]
    taken = await store.remember_ids(tx, rows) if rows else set()
    firsts = {at: wanted[_id(offers[at])] for at in places}
    return {at: first for at, first in firsts.items() if first != at or _id(offers[at]) not in taken}


async def _answer_late(
    tx: Tx, offers: Sequence[NewEnvelope], late: Mapping[int, int], outcomes: list[_Stored | AngeliaError | None]
) -> None:
    """Only now, when it is sure who keeps its id: a copy of a refused message is refused with it."""
    for at, outcome in zip(late, await _repeated(tx, [offers[at] for at in late]), strict=True):
        if outcome is None:
            outcomes[at] = outcomes[late[at]]
            assert outcomes[at] is not None, "its id is free again because it was refused"
        else:
            outcomes[at] = _Stored(outcome, None) if isinstance(outcome, Accepted) else outcome


def _id(offer: NewEnvelope) -> tuple[str, UUID]:
    return offer.envelope.header.sender_nhi, offer.envelope.header.message_id


def _wish(offer: NewEnvelope) -> Wish:
    return Wish(offer.envelope.header.sender_nhi, Action.SEND, offer.envelope.header.recipient_nhi)


def _answer(offer: NewEnvelope) -> Accepted:
    return Accepted(
        message_id=offer.envelope.header.message_id,
        replay_key=offer.replay_key.hex(),
        enqueued_at=offer.accepted_at,
        expires_at=offer.expires_at,
    )


def _sent_event(offer: NewEnvelope) -> Event:
    header = offer.envelope.header
    return audit.event(
        "message_sent",
        offer.accepted_at,
        actor=header.sender_nhi,
        object=header.recipient_nhi,
        message_id=header.message_id,
        replay_key=offer.replay_key,
        detail={"bytes": len(offer.envelope.wire), "priority": int(header.priority), "suite": int(header.suite)},
    )


async def _repeated(tx: Tx, offers: Sequence[NewEnvelope]) -> list[Accepted | AngeliaError | None]:
    """The first answer for bytes that came before, a refusal for other bytes under a known id, None for news."""
    known = await store.known_ids(tx, [_id(offer) for offer in offers]) if offers else {}
    outcomes: list[Accepted | AngeliaError | None] = []
    for offer in offers:
        found = known.get(_id(offer))
        if found is None:
            outcomes.append(None)
        elif found[0] == offer.replay_key:
            outcomes.append(found[1])
        else:
            outcomes.append(
                MessageIdConflict(
                    "this message id stands for another envelope",
                    hint="send the same bytes again, or seal the message under a new id",
                )
            )
    return outcomes


def _untimely(offer: NewEnvelope) -> AngeliaError | None:
    """An envelope is sent when it was made, as far as two clocks can agree."""
    ahead = offer.created_at - offer.accepted_at
    if abs(ahead) > SKEW:
        side = "ahead of" if ahead > timedelta(0) else "behind"
        return ClockSkew(
            f"the envelope was made {abs(ahead).total_seconds():,.0f} s {side} this server's clock",
            hint="run a time service; a message that waited is sealed again",
        )
    if offer.expires_at <= offer.accepted_at:
        return MessageExpired("the message has expired before it came here")
    return None


async def _full(tx: Tx, offers: Sequence[NewEnvelope]) -> list[AngeliaError | None]:
    """Which of these have no room in their recipient's queue; what comes before in the same batch counts, once."""
    if not offers:
        return []
    ways = [(offer.envelope.header.recipient_nhi, offer.envelope.header.sender_nhi) for offer in offers]
    queues, shares = await store.waiting(tx, ways)
    outcomes: list[AngeliaError | None] = []
    counted: set[tuple[str, UUID]] = set()
    for offer, way in zip(offers, ways, strict=True):
        if _id(offer) in counted:
            outcomes.append(None)
            continue
        size = len(offer.envelope.wire)
        queue = (queues[way[0]][0] + 1, queues[way[0]][1] + size)
        share = (shares[way][0] + 1, shares[way][1] + size)
        if queue[0] > QUEUE_MAX or queue[1] > QUEUE_BYTES_MAX:
            outcomes.append(_queue_full(f"the queue of {way[0]} is full"))
        elif share[0] > QUEUE_MAX * SENDER_SHARE or share[1] > QUEUE_BYTES_MAX * SENDER_SHARE:
            outcomes.append(_queue_full(f"half of what {way[0]} can hold is yours already"))
        else:
            queues[way[0]], shares[way] = queue, share
            counted.add(_id(offer))
            outcomes.append(None)
    return outcomes


def _queue_full(message: str) -> QueueFull:
    return QueueFull(message, hint="send it again when the recipient has fetched its mail", retry_after=60)


async def _spend_keys(
    tx: Tx, offers: Sequence[NewEnvelope], places: Sequence[int], outcomes: list[_Stored | AngeliaError | None]
) -> None:
    """Use up one-time keys; of two messages for one key the second is refused, and its id is free again."""
    if not places:
        return
    headers = [offers[at].envelope.header for at in places]
    now = max(offers[at].accepted_at for at in places)
    for at, refusal in zip(places, await admission.spend_one_time(tx, headers, now), strict=True):
        outcomes[at] = refusal
    if refused := [_id(offers[at]) for at in places if outcomes[at] is not None]:
        await store.forget_ids(tx, refused)
