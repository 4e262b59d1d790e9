"""Hands mail to recipients: leases from the hot tier, the ledger's word on each, and what recipients say to them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit.failures import Failures
from angelia.errors import Unavailable
from angelia.mail import store
from angelia.mail.delivery_checks import withheld
from angelia.mail.hot_store import AT_ONCE, Claimed, Claims, HotMail, arrivals, departures, events
from angelia.mail.model import (
    HOLD,
    MOST_AT_ONCE,
    Match,
    Queued,
    last_score,
    lease_token,
    parse_token,
    score,
)
from angelia.policy.service import Policy
from angelia.stores.ledger import Ledger
from angelia.stores.wake import LOOK, Wake, told

log = structlog.get_logger(__name__)


_ROUNDS = 50
_PAGE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a recipient asks for."""

    most: int = 10
    min_priority: int = 0
    channel_id: UUID | None = None
    correlation_id: UUID | None = None
    lease: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Handed:
    """One message in its recipient's hands, until the lease runs out."""

    row: Queued
    wire: bytes = field(repr=False)
    token: str = field(repr=False)
    attempt: int

    @property
    def held(self) -> tuple[bytes, str]:
        """What names the lease."""
        return parse_token(self.token)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a poll got; `next_return` is when another message comes back by itself."""

    messages: list[Handed]
    has_more: bool = False
    next_return: datetime | None = None


class _Leases:
    """What one try has leased. A script that is on its way is waited for, also by a caller that goes away meanwhile."""

    def __init__(self) -> None:
        self._claims: list[asyncio.Future[Claims]] = []

    async def take(self, claim: Coroutine[None, None, Claims]) -> Claims:
        self._claims.append(claiming := asyncio.ensure_future(claim))
        return await asyncio.shield(claiming)

    async def held(self) -> list[tuple[bytes, str]]:
        """What names each lease."""
        done = await asyncio.gather(*self._claims, return_exceptions=True)
        return [(one.mref, one.secret) for got in done if isinstance(got, Claims) for one in got.messages]


class Delivery:
    """The recipient's side of mail."""

    def __init__(self, ledger: Ledger, hot: HotMail, wake: Wake, policy: Policy, failures: Failures) -> None:
        self._ledger = ledger
        self._hot = hot
        self._wake = wake
        self._policy = policy
        self._failures = failures

    async def receive(self, agent: AgentRow, wanted: Wanted, wait: float, now: datetime) -> Batch:
        """The next messages; when there are none, they are waited for."""
        got = await self._next(agent, wanted, now)
        if got.messages or wait <= 0:
            return got
        began = time.monotonic()
        try:
            async with self._wake.listening(arrivals(agent.handle)) as bell:
                while True:
                    at = _later(now, began)
                    got = await self._next(agent, wanted, at)
                    left = wait - (time.monotonic() - began)
                    if got.messages or left <= 0 or self._wake.stopping:
                        break
                    await bell.wait(min(left, _until_next_look(got, at)))
        except BaseException:
            await self._release(agent, [one.held for one in got.messages])
            raise
        return got

    async def stream(
        self, agent: AgentRow, lease: timedelta, beat: float, now: datetime
    ) -> AsyncGenerator[Handed | tuple[str, bytes] | None, None]:
        """Messages as they come, and events that concern the agent; None now and then, so that the line is not idle.

        At most a hundred messages are unsettled at a time."""
        began, beaten = time.monotonic(), time.monotonic()
        unsettled: dict[bytes, str] = {}
        unsaid: deque[Handed] = deque()
        try:
            async with self._wake.listening(arrivals(agent.handle), events(agent.handle)) as bell:
                while not self._wake.stopping:
                    at = _later(now, began)
                    for said in bell.words():
                        yield told(said)
                    if len(unsettled) >= MOST_AT_ONCE:
                        unsettled = await self._settled_some(agent, unsettled, at, LOOK)
                    room = MOST_AT_ONCE - len(unsettled)
                    got = await self._next(agent, Wanted(most=room, lease=lease), at) if room else Batch([], True)
                    unsettled |= [one.held for one in got.messages]
                    unsaid.extend(got.messages)
                    while unsaid:
                        yield unsaid.popleft()
                    if time.monotonic() - beaten >= beat:
                        beaten = time.monotonic()
                        yield None
                    if not got.has_more:
                        rest = max(0.0, beat - (time.monotonic() - beaten))
                        await bell.wait(min(rest, _until_next_look(got, at)))
        finally:
            await self._release(agent, [one.held for one in unsaid])

    async def _next(self, agent: AgentRow, wanted: Wanted, now: datetime) -> Batch:
        """The next messages that may be handed over; what may not must not stand in their way."""
        for _ in range(_ROUNDS):
            got = await self._try(agent, wanted, now)
            if got.messages or not got.has_more:
                break
        return got

    async def _try(self, agent: AgentRow, wanted: Wanted, now: datetime) -> Batch:
        """Lease, then ask the ledger: a hot copy is never handed over on its own word."""
        leases = _Leases()
        try:
            got = await leases.take(self._claim(agent, wanted, now))
            handed, reach = await self._handed(agent, wanted, got, leases, now)
            page = _page(handed, wanted.most, reach)
            await self._release(agent, [one.held for one in handed[len(page) :]])
        except BaseException:
            # Nobody got them, so nobody has to wait until the leases run out.
            await self._release(agent, await leases.held())
            raise
        if not got.messages:
            return Batch([], got.more, got.next_return)
        metrics.MAIL_HANDED_OUT.inc(len(page))
        # All of them may have been ghosts, with messages behind them.
        more = got.more or len(page) < len(handed) or not page
        return Batch(page, more, got.next_return if page else now)

    async def _claim(self, agent: AgentRow, wanted: Wanted, now: datetime) -> Claims:
        until = now + wanted.lease
        if wanted.correlation_id is None and wanted.channel_id is None:
            return await self._hot.claim(agent.handle, wanted.most, wanted.min_priority, now, until)
        claims: list[Claimed] = []
        last: Match | None = None
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
            places = [(one.mref, score(one.priority, one.seq)) for one in found]
            room = wanted.most - len(claims)
            claims += await self._hot.claim_these(agent.handle, places, now, until, room) if places else []
            end = len(found) < MOST_AT_ONCE
            if end or len(claims) == wanted.most:
                reached = bool(found) and (not claims or claims[-1].mref == found[-1].mref)
                return Claims(claims, None, more=len(claims) == wanted.most and not (end and reached))
            last = found[-1]  # these are in somebody's hands; there may be others behind them

    async def _claim_passed(self, agent: AgentRow, wanted: Wanted, got: Claims, now: datetime) -> Claims:
        """Lease what stands before a claim and is not in the index: a crash left it out, or it is just on its way."""
        known = [*(claim.mref for claim in got.messages), *got.out]
        async with self._ledger.reading() as tx:
            found = await store.passed(tx, agent.handle, got.last, now, known, MOST_AT_ONCE)
        places = [(one.mref, score(one.priority, one.seq)) for one in found]
        until = now + wanted.lease
        claims = await self._hot.claim_these(agent.handle, places, now, until, MOST_AT_ONCE) if places else []
        end = len(found) < MOST_AT_ONCE
        return Claims(claims, None, more=not end, last=last_score(0) if end else places[-1][1])

    async def _handed(
        self, agent: AgentRow, wanted: Wanted, got: Claims, leases: _Leases, now: datetime
    ) -> tuple[list[Handed], int]:
        """What of these may be handed over, in the order of the queue, with what they would have passed.

        The second value is the place up to which nothing is left out."""
        if not got.messages:
            return [], 0
        handed, passes = await self._judged(agent, got, now)
        if not passes:
            return handed, last_score(0)
        older = await leases.take(self._claim_passed(agent, wanted, got, now))
        if older.messages:
            handed += (await self._judged(agent, older, now))[0]
        return sorted(handed, key=lambda one: one.row.score), older.last

    async def _judged(self, agent: AgentRow, got: Claims, now: datetime) -> tuple[list[Handed], bool]:
        """What of these the ledger, the rules and the keys let pass, in order; and whether the ledger has something
        before them that the hot tier has not."""
        by_mref = {claim.mref: claim for claim in got.messages}
        without_copy = [claim.mref for claim in got.messages if claim.copy is None]
        async with self._ledger.reading() as tx:
            rows, passes = await store.claimable_in_order(
                tx, agent.handle, list(by_mref), without_copy, now, got.last, got.out
            )
            if damaged := [mref for mref, row in rows.items() if not _is_of(by_mref[mref].copy, row)]:
                rows |= await store.claimable(tx, agent.handle, damaged, damaged, now)
            held_back = await withheld(tx, self._policy, list(rows.values()), now)
        handed = []
        for row in rows.values():
            if row.mref not in held_back:
                claim = by_mref[row.mref]
                wire = row.wire or claim.copy
                assert wire is not None, "asked for where there is no copy"
                handed.append(Handed(row, wire, lease_token(row.mref, claim.secret), claim.attempt))
        if gone := [mref for mref in by_mref if mref not in rows]:
            await self._hot.remove(agent.handle, gone)
        await self._leave_alone(agent, [by_mref[mref] for mref in rows if mref in held_back], now)
        for mref, row in rows.items():
            if mref in held_back.denied - held_back.fallen:  # the tick that follows revoked keys tells of those
                await self._record_denied(row, now)
        return sorted(handed, key=lambda one: one.row.score), passes

    async def _leave_alone(self, agent: AgentRow, claims: Sequence[Claimed], now: datetime) -> None:
        """What may not be handed over now may be allowed again; until then it is looked at now and then.

        Mail under a revoked key too, though it only waits for its end: the ledger has it until then, and what is not in
        the index would be found there by every claim."""
        if held := [(one.mref, one.secret) for one in claims]:
            await self._hot.put_back(agent.handle, held, now + HOLD, uncounted=True, quietly=True)

    async def _record_denied(self, row: Queued, now: datetime) -> None:
        await self._failures.record(
            "message_delivery_denied",
            row.sender,
            now,
            object=row.recipient,
            message_id=row.message_id,
            replay_key=row.replay_key,
            detail={"at": "delivery"},
        )

    async def _release(self, agent: AgentRow, held: Sequence[tuple[bytes, str]]) -> None:
        """Give back messages that no recipient got, all in one step: nothing newer may be handed out between them.

        If the hot tier is away, their leases end by themselves."""
        if held:
            with contextlib.suppress(Unavailable):
                await self._hot.put_back(agent.handle, held, AT_ONCE, uncounted=True)

    async def _settled_some(
        self, agent: AgentRow, unsettled: dict[bytes, str], now: datetime, wait: float
    ) -> dict[bytes, str]:
        """What a stream that is full still has out, after something was settled or ran out, or after a while."""
        async with self._wake.listening(departures(agent.handle), arrivals(agent.handle)) as bell:
            left = await self._still_held(agent, unsettled, now)
            if len(left) < MOST_AT_ONCE:
                return left
            await bell.wait(wait)
            return await self._still_held(agent, left, now)

    async def _still_held(self, agent: AgentRow, unsettled: dict[bytes, str], now: datetime) -> dict[bytes, str]:
        if not unsettled:
            return {}
        leases = await self._hot.leases(agent.handle, list(unsettled))
        return {
            mref: secret
            for (mref, secret), lease in zip(unsettled.items(), leases, strict=True)
            if lease is not None and lease.secret == secret and lease.until is not None and lease.until > now
        }


def _is_of(copy: bytes | None, row: Queued) -> bool:
    """Whether a copy, where there is one, has the very bytes that the ledger has."""
    return copy is None or hashlib.sha256(copy).digest() == row.replay_key


def _page(handed: list[Handed], most: int, reach: int) -> list[Handed]:
    """The first ones, as many as are wanted and an answer should carry; one of any size."""
    size = 0
    for at, one in enumerate(handed):
        size += len(one.wire)
        if at == most or one.row.score > reach or (at and size > _PAGE_BYTES):
            return handed[:at]
    return handed


def _later(now: datetime, began: float) -> datetime:
    """The time of a request that has been waiting: its own, and how long that is ago."""
    return now + timedelta(seconds=time.monotonic() - began)


def _until_next_look(got: Batch, at: datetime) -> float:
    """Until a message comes back by itself, but not longer than a lost wake-up may cost."""
    if got.next_return is None:
        return LOOK
    return min(LOOK, max(0.0, (got.next_return - at).total_seconds()))
