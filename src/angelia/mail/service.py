"""Takes mail from senders: every check of the contract in its order, one ledger transaction, then the queue."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.failures import SIGNATURE, Failures
from angelia.audit.model import Detail
from angelia.envelope import sealing
from angelia.envelope.merkle_batch import VerifiedRoots
from angelia.envelope.refusals import SignatureFailed, SuiteRefused
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope, Suite
from angelia.errors import AngeliaError, Denied, MessageIdConflict, QueueFull, Unavailable
from angelia.keys import admission
from angelia.keys.admission import Signed
from angelia.keys.model import ONE_TIME_USE
from angelia.mail import store
from angelia.mail.hot_store import HotMail, QueuedEnvelope
from angelia.mail.model import (
    Accepted,
    Bound,
    MessageId,
    NewEnvelope,
    QueueLoad,
    QueuePlace,
    bounds,
    id_conflict,
    untimely,
)
from angelia.policy.model import Action, Wish
from angelia.policy.service import Policy, asking_rules, denial
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Row, StatementError, Tx

log = structlog.get_logger(__name__)
# On record, since they say something about their sender; other refusals are only counted.
_RECORDED = {
    SignatureFailed: SIGNATURE,
    Denied: "message_delivery_denied",
    MessageIdConflict: "message_id_conflict",
}


@dataclass(frozen=True, slots=True)
class SendResult:
    """What the sender is told; `new` is false when the very same bytes were sent before."""

    answer: Accepted
    new: bool


@dataclass(frozen=True, slots=True)
class _Admitted:
    """An envelope that is taken if this pair signed it."""

    offer: NewEnvelope
    pair: VerifyingPair


@dataclass(frozen=True, slots=True)
class _Stored:
    """An envelope that is committed, and its place in its recipient's queue."""

    offer: NewEnvelope
    place: QueuePlace


# An envelope on its way: offered or verified, admitted, stored, answered as a repeat, or refused.
_Step = NewEnvelope | _Admitted | _Stored | Accepted | Exception


class Mail:
    """The sender's side of mail."""

    def __init__(self, ledger: Ledger, hot: HotMail, policy: Policy, failures: Failures) -> None:
        self._ledger = ledger
        self._hot = hot
        self._policy = policy
        self._failures = failures
        self._checks: GroupCommit[NewEnvelope, _Admitted | Accepted] = GroupCommit(ledger.lookups, self._check)
        self._writes: GroupCommit[NewEnvelope, _Stored | Accepted] = GroupCommit(ledger.statement, _write)
        self._roots = VerifiedRoots()

    async def close(self) -> None:
        await self._checks.close()
        await self._writes.close()

    async def send(self, agent: AgentRow, envelope: Envelope, now: datetime) -> SendResult:
        """Takes one envelope. When this returns it is durable, and its recipient can have it."""
        (outcome,) = await self.send_many(agent, [envelope], now)
        if isinstance(outcome, AngeliaError):
            raise outcome
        return outcome

    async def send_many(
        self, agent: AgentRow, envelopes: Iterable[Envelope], now: datetime
    ) -> list[SendResult | AngeliaError]:
        """Takes several, each for itself: one that is refused does not affect the others. Returns one outcome each, in
        their order, in which they are queued as well: all are checked before the first is stored."""
        given = list(envelopes)
        steps: list[_Step] = [_offered(agent, one, now) for one in given]
        steps = await _continued(steps, self._checks.submit_all)
        steps = await self._verified_all(steps, now)
        steps = await _continued(steps, self._writes.submit_all)
        await self._enqueue([one for one in steps if isinstance(one, _Stored)])
        return [await self._outcome(agent, envelope, step, now) for envelope, step in zip(given, steps, strict=True)]

    async def _verified_all(self, steps: Sequence[_Step], now: datetime) -> list[_Step]:
        verified: list[_Step] = []
        away: Unavailable | None = None  # a hot tier that does not answer is waited for once
        for one in steps:
            step = one
            if isinstance(one, _Admitted):
                step = away or await self._verified(one, now)
                away = step if isinstance(step, Unavailable) else None
            verified.append(step)
        return verified

    async def _verified(self, admitted: _Admitted, now: datetime) -> NewEnvelope | AngeliaError:
        """The envelope, if the sender's rate allows it and its signatures hold."""
        offer = admitted.offer
        await asyncio.sleep(0)  # a hundred of them are not verified in one go
        try:
            await self._policy.spend(_wish(offer), now)
            sealing.verify(offer.envelope, admitted.pair, self._roots, unix_ms(now))
        except AngeliaError as error:
            return error
        return offer

    async def _enqueue(self, stored: Sequence[_Stored]) -> None:
        """Puts what is committed into the queues of the hot tier, all of one recipient together."""
        queues: dict[str, list[QueuedEnvelope]] = {}
        for one in stored:
            offer = one.offer
            metrics.MAIL_SENT.labels(str(int(offer.envelope.header.priority))).inc()
            queued = QueuedEnvelope(one.place, offer.envelope.wire, offer.expires_at - offer.accepted_at)
            queues.setdefault(offer.recipient, []).append(queued)
        # What fails is found by the reconcile tick.
        scripts = [self._hot.enqueue_all(recipient, waiting) for recipient, waiting in queues.items()]
        for outcome in await asyncio.gather(*scripts, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Unavailable):
                raise outcome

    async def _outcome(
        self, agent: AgentRow, envelope: Envelope, step: _Step, now: datetime
    ) -> SendResult | AngeliaError:
        """What the sender is told. A refusal is counted, and on record if it says something about the sender."""
        if isinstance(step, _Stored):
            return SendResult(step.offer.answer, new=True)
        if isinstance(step, Accepted):
            return SendResult(step, new=False)
        if isinstance(step, StatementError):
            log.error("a message could not be stored", sender=agent.handle, exc_info=step)
            return AngeliaError("something went wrong on the server", hint="send it again")
        if not isinstance(step, AngeliaError):
            assert isinstance(step, Exception), "every envelope came to an end"
            raise step
        metrics.MAIL_REFUSED.labels(step.code).inc()
        await self._record_failure(agent, envelope, step, now)
        return step

    async def _record_failure(self, agent: AgentRow, envelope: Envelope, error: AngeliaError, now: datetime) -> None:
        for refusal, kind in _RECORDED.items():
            if isinstance(error, refusal):
                await self._failures.record(
                    kind,
                    agent.handle,
                    now,
                    object=envelope.header.recipient_nhi or None,
                    message_id=envelope.header.message_id,
                    replay_key=bytes.fromhex(envelope.replay_key),
                    detail={"at": "send"},
                )

    async def _check(self, tx: Tx, offers: Sequence[NewEnvelope]) -> Sequence[_Admitted | Accepted | AngeliaError]:
        """Everything that can be said before the signatures are looked at; nothing is written. A repeat gets its first
        answer whatever has changed since.

        Clock, rules, block list and keys, in this order: a sender that may not write to an agent learns nothing about
        its keys."""
        now = max(offer.accepted_at for offer in offers)
        signed = [Signed.envelope(offer.envelope.header) for offer in offers]
        pairs = [admission.PAIRS.known(one) for one in signed]
        asked = [(offer, pair is not None) for offer, pair in zip(offers, pairs, strict=True)]
        # The items of a group that fails are tried one by one, and then each has its own error.
        with asking_rules() if len(offers) == 1 else contextlib.nullcontext():
            rows = await store.admission(tx, asked)
        repeats = [_first_answer(row, offer) for row, offer in zip(rows, offers, strict=True)]
        wishes = [_wish(offer) for offer in offers]
        fresh = [wish for wish, repeat in zip(wishes, repeats, strict=True) if repeat is None]
        denied = iter(await self._policy.check(tx, fresh, now, rows[0]["rules_version"]))
        verdicts: list[_Admitted | Accepted | AngeliaError] = []
        stale: list[int] = []
        for at, (offer, row, repeat) in enumerate(zip(offers, rows, repeats, strict=True)):
            if repeat is not None:
                verdicts.append(repeat)
                continue
            denial_ = next(denied)
            standing = admission.standing(row, offer.envelope.header, now)
            refusal = (
                untimely(offer.created_at, offer.expires_at, offer.accepted_at)
                or denial_
                # As if by the rules: an agent that is blocked is not told so.
                or (denial(wishes[at]) if row["blocked"] else None)
                or standing.refusal
            )
            if refusal is None and standing.stale:
                stale.append(at)
            signer = admission.PAIRS.judged(row, signed[at], pairs[at], now)
            one = dataclasses.replace(offer, one_time=True) if standing.one_time else offer
            verdicts.append(refusal or (signer if isinstance(signer, AngeliaError) else _Admitted(one, signer)))
        if stale:
            for at, answer in zip(stale, await self._stale(tx, [offers[at] for at in stale], now), strict=True):
                verdicts[at] = answer
        return verdicts

    async def _stale(self, tx: Tx, offers: Sequence[NewEnvelope], now: datetime) -> list[AngeliaError]:
        """The refusals of envelopes that are sealed to an old key: with the present keys, if the sender may read
        them."""
        wishes = [Wish(offer.sender, Action.READ_KEYS, offer.recipient) for offer in offers]
        denied = await self._policy.check(tx, wishes, now)
        readable = {
            wish for wish, refusal in zip(wishes, denied, strict=True) if refusal is None or wish.subject == wish.object
        }
        answers = await admission.stale(tx, {wish.object for wish in readable})
        return [answers[wish.object] if wish in readable else admission.bare_stale(wish.object) for wish in wishes]


async def _write(tx: Tx, offers: Sequence[NewEnvelope]) -> Sequence[_Stored | Accepted | AngeliaError]:
    """Stores what there is room for, and of several with one id the first. Rules and keys that changed since the check
    are looked at again at delivery."""
    firsts: dict[MessageId, NewEnvelope] = {}
    for offer in offers:
        firsts.setdefault(offer.id, offer)
    outcomes = await _stored_or_refused(tx, list(firsts.values()))
    # What took the last place, the id or the one-time key may have been the very same message, here or in another
    # process.
    late = [
        at for at, one in enumerate(offers) if one is not firsts[one.id] or isinstance(outcomes[one.id], AngeliaError)
    ]
    known = dict(zip(late, await _repeats(tx, [offers[at] for at in late]), strict=True))
    return [known.get(at) or outcomes[offer.id] for at, offer in enumerate(offers)]


async def _stored_or_refused(tx: Tx, offers: Sequence[NewEnvelope]) -> dict[MessageId, _Stored | AngeliaError]:
    """Nearly always one statement. Another one is for messages that found no room only beside others of the batch that
    found none either, and for those that share a one-time key: whether its first user got it, the ledger says."""
    outcomes: dict[MessageId, _Stored | AngeliaError] = {}
    waiting, crowded_before = list(offers), set[MessageId]()
    while waiting:
        tried, waiting = _with_keys_of_their_own(waiting)
        issued_since = max(offer.accepted_at for offer in tried) - ONE_TIME_USE
        found = await store.add(tx, tried, [_sent_event(one) for one in tried], issued_since)
        crowded: list[tuple[NewEnvelope, QueueLoad]] = []
        for offer, place in zip(tried, found, strict=True):
            if isinstance(place, QueuePlace):
                outcomes[offer.id] = _Stored(offer, place)
            elif place is None:
                outcomes[offer.id] = admission.bare_stale(offer.recipient)
            else:
                crowded.append((offer, place))
        placed = [offer for offer in tried if isinstance(outcomes.get(offer.id), _Stored)]
        for offer, bound in bounds(crowded, placed):
            if bound is None and offer.id not in crowded_before:
                waiting.append(offer)
                crowded_before.add(offer.id)
            else:
                outcomes[offer.id] = _queue_full(offer, bound or Bound.QUEUE)
    return outcomes


def _with_keys_of_their_own(offers: Sequence[NewEnvelope]) -> tuple[list[NewEnvelope], list[NewEnvelope]]:
    """Splits off those whose one-time key an earlier one has: they are the second value."""
    keys: set[tuple[str, UUID]] = set()
    first, rest = [], []
    for offer in offers:
        key = (offer.recipient, offer.envelope.header.key_id)
        if offer.one_time and key in keys:
            rest.append(offer)
            continue
        first.append(offer)
        if offer.one_time:
            keys.add(key)
    return first, rest


def _offered(agent: AgentRow, envelope: Envelope, now: datetime) -> NewEnvelope | AngeliaError:
    header = envelope.header
    if header.sender_nhi != agent.handle:
        return Denied("the sender in the envelope is not the caller", hint=f"you are {agent.handle}")
    if header.suite is Suite.CHANNEL:
        return SuiteRefused("an envelope for a channel is published there", hint="POST /v1/channels/{id}/publish")
    try:
        return NewEnvelope.offered(envelope, now)
    except AngeliaError as error:
        return error


async def _continued(
    steps: Sequence[_Step], together: Callable[[list[NewEnvelope]], Awaitable[Sequence[_Step]]]
) -> list[_Step]:
    """Takes the envelopes that go on through a step that they share; the others stay as they are."""
    results = iter(await together([one for one in steps if isinstance(one, NewEnvelope)]))
    return [next(results) if isinstance(one, NewEnvelope) else one for one in steps]


def _first_answer(row: Row, offer: NewEnvelope) -> Accepted | MessageIdConflict | None:
    """What bytes that came before were answered, or why other bytes under their id are refused; None for a new id."""
    if row["first_key"] is None:
        return None
    return id_conflict(offer.replay_key, row["first_key"]) or msgspec.convert(row["first_answer"], Accepted)


async def _repeats(tx: Tx, offers: Sequence[NewEnvelope]) -> list[Accepted | MessageIdConflict | None]:
    """The first answer for bytes that came before, a refusal for other bytes under a known id, None for a new id."""
    known = await store.known_ids(tx, [offer.id for offer in offers]) if offers else {}
    return [
        None if (first := known.get(offer.id)) is None else id_conflict(offer.replay_key, first[0]) or first[1]
        for offer in offers
    ]


def _wish(offer: NewEnvelope) -> Wish:
    return Wish(offer.sender, Action.SEND, offer.recipient)


def _sent_event(offer: NewEnvelope) -> tuple[UUID, Detail, bytes]:
    """Id, detail and hash of the audit event of a message that is stored."""
    header = offer.envelope.header
    event = audit.event(
        "message_sent",
        offer.accepted_at,
        actor=offer.sender,
        object=offer.recipient,
        message_id=header.message_id,
        replay_key=offer.replay_key,
        detail={"bytes": len(offer.envelope.wire), "priority": int(header.priority), "suite": int(header.suite)},
    )
    return event.event_id, event.detail, event.hash()


def _queue_full(offer: NewEnvelope, bound: Bound) -> QueueFull:
    what = {
        Bound.QUEUE: f"the queue of {offer.recipient} is full",
        Bound.SHARE: f"half of what {offer.recipient} can hold is yours already",
    }
    return QueueFull(what[bound], hint="send it again when the recipient has fetched its mail", retry_after=60)
