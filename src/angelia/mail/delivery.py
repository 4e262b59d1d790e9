"""Delivers mail: leases from the hot tier, and the check of each leased message against the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit.failures import Failures
from angelia.errors import Unavailable
from angelia.mail import store
from angelia.mail.api import ReceiveQuery
from angelia.mail.delivery_checks import withheld
from angelia.mail.hot_store import AT_ONCE, Claimed, Claims, HotMail, arrivals, departures, events
from angelia.mail.model import HOLD, MOST_AT_ONCE, EnvelopeRow, LeaseToken, QueuePlace, last_score
from angelia.policy.service import Policy, asking_rules
from angelia.stores.ledger import Ledger
from angelia.stores.wake import RECHECK_SECONDS, RequestTime, Wake, decode_event

_ROUNDS = 50
_PAGE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class LeasedEnvelope:
    """One message that its recipient holds until the lease runs out."""

    row: EnvelopeRow
    wire: bytes = field(repr=False)
    token: LeaseToken
    attempt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What a poll leased; `next_return` is when the lease of another message runs out."""

    messages: list[LeasedEnvelope]
    has_more: bool = False
    next_return: datetime | None = None


class _Leases:
    """What one try has leased. A script that is running is waited for, also when the caller goes away meanwhile."""

    def __init__(self) -> None:
        self._claims: list[asyncio.Future[Claims]] = []

    async def take(self, claim: Coroutine[None, None, Claims]) -> Claims:
        self._claims.append(claiming := asyncio.ensure_future(claim))
        return await asyncio.shield(claiming)

    async def tokens(self) -> list[LeaseToken]:
        done = await asyncio.gather(*self._claims, return_exceptions=True)
        return [one.token for got in done if isinstance(got, Claims) for one in got.messages]


class Delivery:
    """The recipient's side of mail."""

    def __init__(self, ledger: Ledger, hot: HotMail, wake: Wake, policy: Policy, failures: Failures) -> None:
        self._ledger = ledger
        self._hot = hot
        self._wake = wake
        self._policy = policy
        self._failures = failures

    async def receive(self, agent: AgentRow, wanted: ReceiveQuery, now: datetime) -> Batch:
        """Leases the next messages; waits for some when there are none."""
        got, wait = Batch([]), wanted.wait_timeout_seconds

        async def look(at: datetime) -> Batch:
            nonlocal got
            got = await self._next(agent, wanted, at)
            return got

        try:
            topics = [arrivals(agent.handle)]
            return await self._wake.poll(topics, look, lambda found: bool(found.messages), now, wait, _until_next_look)
        except BaseException:  # the caller went away between the lease and the answer
            await self._release(agent, [one.token for one in got.messages])
            raise

    async def stream(
        self, agent: AgentRow, lease_seconds: int, beat: float, now: datetime
    ) -> AsyncGenerator[LeasedEnvelope | tuple[str, bytes] | None, None]:
        """Messages as they come, and events that concern the agent; None every `beat` seconds, so that the line is not
        idle. At most a hundred messages are leased at a time."""
        clock, beaten = RequestTime(now), 0.0
        leased: dict[bytes, str] = {}
        unsaid: deque[LeasedEnvelope] = deque()
        try:
            async with self._wake.listening(arrivals(agent.handle), events(agent.handle)) as bell:
                while not self._wake.stopping:
                    at = clock.now()
                    for said in bell.words():
                        yield decode_event(said)
                    if len(leased) >= MOST_AT_ONCE:
                        leased = await self._still_leased(agent, leased, at)
                    room = MOST_AT_ONCE - len(leased)
                    wanted = ReceiveQuery(max_messages=room, lease_seconds=lease_seconds)
                    got = await self._next(agent, wanted, at) if room else Batch([], True)
                    leased |= [one.token for one in got.messages]
                    unsaid.extend(got.messages)
                    while unsaid:
                        yield unsaid.popleft()
                    if clock.passed() - beaten >= beat:
                        beaten = clock.passed()
                        yield None
                    if not got.has_more:
                        rest = max(0.0, beat - (clock.passed() - beaten))
                        await bell.wait(min(rest, _until_next_look(got, at)))
        finally:
            await self._release(agent, [one.token for one in unsaid])

    async def _next(self, agent: AgentRow, wanted: ReceiveQuery, now: datetime) -> Batch:
        """Leases the next messages that may be delivered; messages that may not do not stand in their way."""
        for _ in range(_ROUNDS):
            got = await self._try(agent, wanted, now)
            if got.messages or not got.has_more:
                break
        return got

    async def _try(self, agent: AgentRow, wanted: ReceiveQuery, now: datetime) -> Batch:
        """Leases, then asks the ledger: a copy of the hot tier is never delivered on its own account."""
        leases = _Leases()
        try:
            got = await leases.take(self._claim(agent, wanted, now))
            found, reach = await self._deliverable(agent, wanted, got, leases, now)
            page = _page(found, wanted.max_messages, reach)
            await self._release(agent, [one.token for one in found[len(page) :]])
        except BaseException:
            # No recipient got them, so none has to wait until the leases run out.
            await self._release(agent, await leases.tokens())
            raise
        if not got.messages:
            return Batch([], got.more, got.next_return)
        metrics.MAIL_HANDED_OUT.inc(len(page))
        # All of them may be gone from the ledger, with messages behind them.
        more = got.more or len(page) < len(found) or not page
        return Batch(page, more, got.next_return if page else now)

    async def _claim(self, agent: AgentRow, wanted: ReceiveQuery, now: datetime) -> Claims:
        until = now + timedelta(seconds=wanted.lease_seconds)
        if wanted.correlation_id is None and wanted.channel_id is None:
            return await self._hot.claim(agent.handle, wanted.max_messages, wanted.min_priority, now, until)
        claims: list[Claimed] = []
        last: QueuePlace | None = None
        while True:
            async with self._ledger.reading() as tx:
                found = await store.matching(
                    tx,
                    agent.handle,
                    now,
                    MOST_AT_ONCE,
                    correlation_id=wanted.correlation_id,
                    channel_id=wanted.channel_id,
                    min_priority=wanted.min_priority,
                    after=last,
                )
            room = wanted.max_messages - len(claims)
            claims += await self._hot.claim_these(agent.handle, found, now, until, room)
            end, full = len(found) < MOST_AT_ONCE, len(claims) == wanted.max_messages
            if end or full:
                reached = bool(found) and (not claims or claims[-1].mref == found[-1].mref)
                return Claims(claims, None, more=full and not (end and reached))
            last = found[-1]  # these are leased; there may be others behind them

    async def _claim_passed(self, agent: AgentRow, wanted: ReceiveQuery, got: Claims, now: datetime) -> Claims:
        """Leases what stands before a claim and is not in the index: a crash left it out, or it is on its way."""
        known = [*(claim.mref for claim in got.messages), *got.out]
        async with self._ledger.reading() as tx:
            found = await store.passed(tx, agent.handle, got.last, now, known, MOST_AT_ONCE)
        until = now + timedelta(seconds=wanted.lease_seconds)
        claims = await self._hot.claim_these(agent.handle, found, now, until, MOST_AT_ONCE)
        end = len(found) < MOST_AT_ONCE
        return Claims(claims, None, more=not end, last=last_score(0) if end else found[-1].score)

    async def _deliverable(
        self, agent: AgentRow, wanted: ReceiveQuery, got: Claims, leases: _Leases, now: datetime
    ) -> tuple[list[LeasedEnvelope], int]:
        """Which of these may be delivered, in the order of the queue, with those that they would have passed.

        The second value is the place in the queue up to which nothing is left out."""
        if not got.messages:
            return [], 0
        found, passes = await self._checked(agent, got, now)
        if not passes:
            return found, last_score(0)
        older = await leases.take(self._claim_passed(agent, wanted, got, now))
        if older.messages:
            found += (await self._checked(agent, older, now))[0]
        return sorted(found, key=lambda one: one.row.score), older.last

    async def _checked(self, agent: AgentRow, got: Claims, now: datetime) -> tuple[list[LeasedEnvelope], bool]:
        """Which of these the ledger, the rules and the keys let pass, in the order of the queue; and whether the ledger
        has a message before them that the hot tier has not."""
        by_mref = {claim.mref: claim for claim in got.messages}
        without_copy = [claim.mref for claim in got.messages if claim.copy is None]
        async with self._ledger.lookups() as tx:
            with asking_rules():
                claimed, passes = await store.claimable(
                    tx, agent.handle, list(by_mref), without_copy, now, got.last, got.out
                )
            if damaged := [mref for mref, one in claimed.items() if not _is_of(by_mref[mref].copy, one.row)]:
                claimed |= (await store.claimable(tx, agent.handle, damaged, damaged, now))[0]
            revoked, denied = await withheld(tx, self._policy, list(claimed.values()), now)
        rows = {mref: one.row for mref, one in claimed.items()}
        held_back = revoked | denied
        if gone := [mref for mref in by_mref if mref not in rows]:
            await self._hot.remove(agent.handle, gone)
        # What may not be delivered now may be allowed again, so it is held back and looked at now and then. Mail under
        # a revoked key too, though it only waits for its end: every claim would find it in the ledger otherwise.
        if held := [by_mref[mref].token for mref in rows if mref in held_back]:
            await self._hot.put_back(agent.handle, held, now + HOLD, uncounted=True, quietly=True)
        for mref, row in rows.items():
            if mref in denied - revoked:  # the tick that follows revoked keys tells of those
                await self._record_denied(row, now)
        found = [_leased(row, by_mref[mref]) for mref, row in rows.items() if mref not in held_back]
        return sorted(found, key=lambda one: one.row.score), passes

    async def _record_denied(self, row: EnvelopeRow, now: datetime) -> None:
        await self._failures.record(
            "message_delivery_denied",
            row.sender,
            now,
            object=row.recipient,
            message_id=row.message_id,
            replay_key=row.replay_key,
            detail={"at": "delivery"},
        )

    async def _release(self, agent: AgentRow, tokens: Sequence[LeaseToken]) -> None:
        """Gives back messages that no recipient got, all in one step: nothing newer may be leased between them. If the
        hot tier is away, their leases run out by themselves."""
        if tokens:
            with contextlib.suppress(Unavailable):
                await self._hot.put_back(agent.handle, tokens, AT_ONCE, uncounted=True)

    async def _still_leased(self, agent: AgentRow, leased: dict[bytes, str], now: datetime) -> dict[bytes, str]:
        """The leases that a stream still has, after one of them ended, or after a while."""
        async with self._wake.listening(departures(agent.handle), arrivals(agent.handle)) as bell:
            left = await self._living(agent, leased, now)
            if len(left) < MOST_AT_ONCE:
                return left
            await bell.wait(RECHECK_SECONDS)
            return await self._living(agent, left, now)

    async def _living(self, agent: AgentRow, leased: dict[bytes, str], now: datetime) -> dict[bytes, str]:
        known = await self._hot.leases(agent.handle, list(leased))
        return {
            mref: secret
            for (mref, secret), lease in zip(leased.items(), known, strict=True)
            if lease is not None and lease.secret == secret and lease.until is not None and lease.until > now
        }


def _leased(row: EnvelopeRow, claim: Claimed) -> LeasedEnvelope:
    wire = row.wire or claim.copy
    assert wire is not None, "asked for where there is no copy"
    return LeasedEnvelope(row, wire, claim.token, claim.attempt)


def _is_of(copy: bytes | None, row: EnvelopeRow) -> bool:
    """Whether a copy, where there is one, has the very bytes that the ledger has."""
    return copy is None or hashlib.sha256(copy).digest() == row.replay_key


def _page(found: list[LeasedEnvelope], most: int, reach: int) -> list[LeasedEnvelope]:
    """The first ones, as many as are wanted and an answer should carry; at least one, whatever its size."""
    size = 0
    for at, one in enumerate(found):
        size += len(one.wire)
        if at == most or one.row.score > reach or (at and size > _PAGE_BYTES):
            return found[:at]
    return found


def _until_next_look(got: Batch, at: datetime) -> float:
    """Seconds until the next lease runs out, but not longer than a lost wake-up may cost."""
    if got.next_return is None:
        return RECHECK_SECONDS
    return min(RECHECK_SECONDS, max(0.0, (got.next_return - at).total_seconds()))
