"""Takes mail from senders: every check of the contract in its order, one ledger transaction, then the queue."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

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
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope, Suite
from angelia.errors import AngeliaError, Denied, MessageIdConflict, QueueFull, Unavailable
from angelia.keys import admission
from angelia.keys.admission import Signed
from angelia.mail import receipts_store, store
from angelia.mail.hot_store import HotMail
from angelia.mail.model import (
    REMEMBER_IDS,
    SENDER_SHARE,
    Accepted,
    MessageId,
    NewEnvelope,
    QueuePlace,
    id_conflict,
    untimely,
)
from angelia.policy.model import Action, Wish
from angelia.policy.service import Policy, denial
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, StatementError, Tx

T = TypeVar("T")
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

    pair: VerifyingPair
    one_time: bool


@dataclass(slots=True, eq=False)
class _Entry:
    """One envelope of a batch on its way into the ledger. The outcome is None until it is decided: then the place of a
    new message, the first answer of a repeat, or an error."""

    offer: NewEnvelope
    outcome: QueuePlace | Accepted | AngeliaError | None = None


class Mail:
    """The sender's side of mail."""

    def __init__(self, ledger: Ledger, hot: HotMail, policy: Policy, failures: Failures) -> None:
        self._ledger = ledger
        self._hot = hot
        self._policy = policy
        self._failures = failures
        self._checks: GroupCommit[NewEnvelope, Accepted | _Admitted] = GroupCommit(ledger, self._check, reads=True)
        self._writes: GroupCommit[NewEnvelope, QueuePlace | Accepted] = GroupCommit(ledger, _write)
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
        admitted = await asyncio.gather(
            *(self._outcome(agent, one, now, self._admit(agent, one, now)) for one in given)
        )
        return await asyncio.gather(
            *(self._outcome(agent, one, now, self._store(result)) for one, result in zip(given, admitted, strict=True))
        )

    async def _admit(self, agent: AgentRow, envelope: Envelope, now: datetime) -> NewEnvelope | SendResult:
        """Makes every check that comes before the ledger is written. Returns the envelope to store, or the first answer
        for bytes that came before."""
        header = envelope.header
        if header.sender_nhi != agent.handle:
            raise Denied("the sender in the envelope is not the caller", hint=f"you are {agent.handle}")
        if header.suite is Suite.CHANNEL:
            raise SuiteRefused("an envelope for a channel is published there", hint="POST /v1/channels/{id}/publish")
        offer = NewEnvelope.offered(envelope, now)
        checked = await self._checks.submit(offer)
        if isinstance(checked, Accepted):
            return SendResult(checked, new=False)
        await self._policy.spend(_wish(offer), now)
        sealing.verify(envelope, checked.pair, self._roots, unix_ms(now))
        return dataclasses.replace(offer, one_time=checked.one_time)

    async def _store(self, admitted: NewEnvelope | SendResult | AngeliaError) -> SendResult | AngeliaError:
        """Commits an envelope that was admitted, then puts it into its recipient's queue."""
        if not isinstance(admitted, NewEnvelope):
            return admitted
        stored = await self._writes.submit(admitted)
        if isinstance(stored, Accepted):
            return SendResult(stored, new=False)
        metrics.MAIL_SENT.labels(str(int(admitted.envelope.header.priority))).inc()
        with contextlib.suppress(Unavailable):  # the reconcile tick finds what is not in its queue
            await self._hot.enqueue(stored, admitted.envelope.wire, admitted.expires_at - admitted.accepted_at)
        return SendResult(admitted.answer, new=True)

    async def _outcome(
        self, agent: AgentRow, envelope: Envelope, now: datetime, step: Awaitable[T]
    ) -> T | AngeliaError:
        """The result of a step, or its error. A refusal is counted, and on record if it says something about the
        sender."""
        try:
            return await step
        except AngeliaError as error:
            metrics.MAIL_REFUSED.labels(error.code).inc()
            await self._record_failure(agent, envelope, error, now)
            return error
        except StatementError:
            log.exception("a message could not be stored", sender=agent.handle)
            return AngeliaError("something went wrong on the server", hint="send it again")

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

    async def _check(self, tx: Tx, offers: Sequence[NewEnvelope]) -> Sequence[Accepted | _Admitted | AngeliaError]:
        """Everything that can be said before the signatures are looked at; nothing is written. A repeat gets its first
        answer whatever has changed since."""
        repeats = await _repeats(tx, offers)
        fresh = [offer for offer, known in zip(offers, repeats, strict=True) if known is None]
        verdicts = iter(await self._verdicts(tx, fresh))
        return [next(verdicts) if known is None else known for known in repeats]

    async def _verdicts(self, tx: Tx, offers: Sequence[NewEnvelope]) -> list[_Admitted | AngeliaError]:
        """Clock, rules, block list and keys, in this order: a sender that may not write to an agent learns nothing
        about its keys."""
        if not offers:
            return []
        now = max(offer.accepted_at for offer in offers)
        headers = [offer.envelope.header for offer in offers]
        allowed = await self._policy.check(tx, [_wish(offer) for offer in offers], now)
        blocked = await agents.blocked(tx, [(offer.sender, offer.recipient) for offer in offers])
        standings = await admission.standings(tx, headers, now)
        signers = await admission.signers(tx, [Signed.envelope(header) for header in headers], now)
        refusals = [
            untimely(offer.created_at, offer.expires_at, offer.accepted_at)
            or denied
            # As if by the rules: an agent that is blocked is not told so.
            or (denial(_wish(offer)) if (offer.sender, offer.recipient) in blocked else None)
            or standing.refusal
            for offer, denied, standing in zip(offers, allowed, standings, strict=True)
        ]
        old = [at for at, standing in enumerate(standings) if standing.stale and refusals[at] is None]
        for at, refusal in zip(old, await self._stale(tx, [offers[at] for at in old], now), strict=True):
            refusals[at] = refusal
        return [
            refusal or (signer if isinstance(signer, AngeliaError) else _Admitted(signer, standing.one_time))
            for refusal, signer, standing in zip(refusals, signers, standings, strict=True)
        ]

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


async def _write(tx: Tx, offers: Sequence[NewEnvelope]) -> Sequence[QueuePlace | Accepted | AngeliaError]:
    """Stores what there is room for, and of several with one id the first. Rules and keys that changed since the check
    are looked at again at delivery."""
    entries = [_Entry(offer) for offer in offers]
    await _refuse_full(tx, entries)
    with_room = [entry for entry in entries if entry.outcome is None]
    firsts: dict[MessageId, _Entry] = {}
    for entry in with_room:
        firsts.setdefault(entry.offer.id, entry)
    new = await _take_ids(tx, firsts)
    await _spend_one_time_keys(tx, [entry for entry in with_room if entry in new and entry.offer.one_time])
    await _answer_repeats(tx, [entry for entry in with_room if entry not in new], firsts)
    await _add(tx, [entry for entry in with_room if entry.outcome is None])
    return [entry.outcome for entry in entries if entry.outcome is not None]


async def _refuse_full(tx: Tx, entries: Sequence[_Entry]) -> None:
    """Refuses what has no room in its recipient's queue; what comes before in the same batch counts, once."""
    ways = [(entry.offer.recipient, entry.offer.sender) for entry in entries]
    queues, shares = await store.waiting(tx, ways)
    counted: set[MessageId] = set()
    for entry, way in zip(entries, ways, strict=True):
        if entry.offer.id in counted:
            continue
        recipient, size = entry.offer.recipient, len(entry.offer.envelope.wire)
        queue, share = queues[recipient].and_one(size), shares[way].and_one(size)
        if queue.exceeds(1):
            entry.outcome = _queue_full(f"the queue of {recipient} is full")
        elif share.exceeds(SENDER_SHARE):
            entry.outcome = _queue_full(f"half of what {recipient} can hold is yours already")
        else:
            queues[recipient], shares[way] = queue, share
            counted.add(entry.offer.id)
    full = [entry for entry in entries if entry.outcome is not None]
    # What took the last place may have been the very same message.
    for entry, known in zip(full, await _repeats(tx, [entry.offer for entry in full]), strict=True):
        entry.outcome = known or entry.outcome


async def _take_ids(tx: Tx, firsts: Mapping[MessageId, _Entry]) -> set[_Entry]:
    """Takes the ids of messages; returns those whose id was free. Of two that come at once, here or in another process,
    the first has it."""
    rows = [
        (*id_, firsts[id_].offer.replay_key, firsts[id_].offer.answer, firsts[id_].offer.expires_at + REMEMBER_IDS)
        for id_ in sorted(firsts)
    ]
    return {firsts[id_] for id_ in await store.remember_ids(tx, rows)} if rows else set()


async def _spend_one_time_keys(tx: Tx, entries: Sequence[_Entry]) -> None:
    """Uses up one-time keys; of two messages for one key the second is refused, and its id is free again."""
    if not entries:
        return
    headers = [entry.offer.envelope.header for entry in entries]
    now = max(entry.offer.accepted_at for entry in entries)
    for entry, refusal in zip(entries, await admission.spend_one_time(tx, headers, now), strict=True):
        entry.outcome = refusal
    if refused := [entry.offer.id for entry in entries if entry.outcome is not None]:
        await store.forget_ids(tx, refused)


async def _answer_repeats(tx: Tx, late: Sequence[_Entry], firsts: Mapping[MessageId, _Entry]) -> None:
    """Answers messages whose id was taken. Only now is it sure which of the firsts keep theirs: a copy of a refused
    message is refused with it."""
    for entry, known in zip(late, await _repeats(tx, [entry.offer for entry in late]), strict=True):
        entry.outcome = known or firsts[entry.offer.id].outcome
        assert entry.outcome is not None, "its id is free again because the first one was refused"


async def _add(tx: Tx, entries: Sequence[_Entry]) -> None:
    """Stores envelopes with their receipts and audit events."""
    if not entries:
        return
    offers = [entry.offer for entry in entries]
    places = await store.add(tx, offers)
    await receipts_store.add(tx, offers)
    await audit.record(tx, [_sent_event(offer) for offer in offers])
    for entry, place in zip(entries, places, strict=True):
        entry.outcome = place


async def _repeats(tx: Tx, offers: Sequence[NewEnvelope]) -> list[Accepted | MessageIdConflict | None]:
    """The first answer for bytes that came before, a refusal for other bytes under a known id, None for a new id."""
    known = await store.known_ids(tx, [offer.id for offer in offers]) if offers else {}
    return [
        None if (first := known.get(offer.id)) is None else id_conflict(offer.replay_key, first[0]) or first[1]
        for offer in offers
    ]


def _wish(offer: NewEnvelope) -> Wish:
    return Wish(offer.sender, Action.SEND, offer.recipient)


def _sent_event(offer: NewEnvelope) -> Event:
    header = offer.envelope.header
    return audit.event(
        "message_sent",
        offer.accepted_at,
        actor=offer.sender,
        object=offer.recipient,
        message_id=header.message_id,
        replay_key=offer.replay_key,
        detail={"bytes": len(offer.envelope.wire), "priority": int(header.priority), "suite": int(header.suite)},
    )


def _queue_full(message: str) -> QueueFull:
    return QueueFull(message, hint="send it again when the recipient has fetched its mail", retry_after=60)
