"""Nonces, rate limits and blocks. They are kept in the hot tier; while it is away, limits are counted in-process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from angelia import metrics
from angelia.api import Access, Address, Caller, Operation, Per, Rule
from angelia.envelope.times import unix_ms
from angelia.errors import Denied, RateLimited, ReplayRejected, Stale, Unavailable
from angelia.guard import store
from angelia.guard.blocks import AddressBlocks
from angelia.guard.model import UNPROVEN, RateDecision, SlidingWindows, parse_networks, subject_of, with_limits, within
from angelia.settings import Settings
from angelia.stores.valkey import HotTier, now_ms

NONCE_LIFE_MS = 180_000


@dataclass(frozen=True, slots=True)
class RequestProof:
    """A signed request whose signature is verified and whose nonce is not."""

    subject: UUID
    nonce: str
    signed_ms: int
    too_old: str = "the request was signed before the nonce memory began"


class RateLimiter:
    """Counts requests per rule: of an address before its signature is verified, of an agent afterwards."""

    def __init__(self, hot: HotTier, blocks: AddressBlocks, settings: Settings, rules: Mapping[str, Rule]) -> None:
        self._hot = hot
        self._blocks = blocks
        self._auto_block = settings.auto_block_enabled
        self._rules = with_limits([*rules.values(), UNPROVEN], settings.limits)
        self._whitelist = parse_networks("rate_limit_whitelist", settings.rate_limit_whitelist)
        self._local = SlidingWindows()

    async def check_address(self, operation: Operation[Any] | None, address: Address, now: datetime) -> dict[str, str]:
        """Refuses blocked addresses, and addresses over their limit. Returns the X-RateLimit headers."""
        if within(address, self._whitelist):
            return {}
        rule = self._rule(operation)
        counted = rule is not None and rule.per is Per.ADDRESS
        if not counted:
            rule = self._rules[UNPROVEN.name] if operation and operation.access is not Access.ANYONE else None
        decision = await self._spend_address(address, rule, now, charge=counted)
        return decision.headers() if decision and counted else {}

    async def charge_unproven(self, address: Address, now: datetime) -> None:
        """Counts a failed credential against its address."""
        if within(address, self._whitelist):
            return
        try:
            await self._spend_address(address, self._rules[UNPROVEN.name], now, charge=True)
        except RateLimited:
            return  # this request is refused anyway; the next one gets 429

    async def admit(self, operation: Operation[Any], caller: Caller, proof: RequestProof | None) -> dict[str, str]:
        """Uses up the nonce of a signed request, and counts it for its agent. Returns the X-RateLimit headers."""
        rule = self._rule(operation)
        if rule and (rule.per is Per.ADDRESS or rule.limit == 0 or within(caller.address, self._whitelist)):
            rule = None
        if proof is not None:
            decision = await self.spend_nonce(proof, rule)
        elif rule is not None and caller.agent is not None:
            decision = await self._spend_without_nonce(caller.agent.id, rule)
        else:
            decision = None
        return decision.headers() if decision else {}

    async def spend_nonce(self, proof: RequestProof, rule: Rule | None = None) -> RateDecision | None:
        # A request signed slightly ahead of our clock waits for its own time: if the hot tier lost its nonce a moment
        # later, the birth mark alone could not show that the request was accepted before.
        early_ms = proof.signed_ms - now_ms()
        if early_ms > 1:
            await asyncio.sleep(early_ms / 1000)
        at = now_ms()
        verdict = await store.spend_nonce(
            self._hot, proof.subject, proof.nonce, proof.signed_ms, NONCE_LIFE_MS, rule, at
        )
        if verdict.before_birth:
            raise Stale(proof.too_old, hint="sign it again")
        if verdict.nonce_used:
            raise ReplayRejected("nonce already used", hint="each request needs a nonce of its own")
        return _allowed(verdict.decision, at)

    async def _spend_without_nonce(self, agent: UUID, rule: Rule) -> RateDecision | None:
        at = now_ms()
        try:
            decision = (await store.spend(self._hot, str(agent), rule, at)).decision
        except Unavailable:
            decision = self._spend_locally(rule, str(agent), at, charge=True)
        return _allowed(decision, at)

    async def _spend_address(
        self, address: Address, rule: Rule | None, now: datetime, *, charge: bool
    ) -> RateDecision | None:
        if self._blocks.includes(address, now):
            raise _blocked()
        if rule is None or rule.limit == 0:
            return None  # where nothing is counted, the blocks that this process knows are enough
        subject, at = subject_of(address), unix_ms(now)
        auto_block = self._auto_block and not address.is_loopback
        try:
            verdict = await store.spend(self._hot, subject, rule, at, charge=charge, auto_block=auto_block)
        except Unavailable:
            return _allowed(self._spend_locally(rule, subject, at, charge=charge), at)
        if verdict.blocked:
            raise _blocked()
        if verdict.blocked_now:
            metrics.ADDRESSES_BLOCKED.inc()
            await self._blocks.record_automatic(address, now, timedelta(milliseconds=store.BLOCK_MS))
        return _allowed(verdict.decision, at)

    def _spend_locally(self, rule: Rule, subject: str, at: int, *, charge: bool) -> RateDecision:
        metrics.LIMITER_FALLBACK.inc()
        return self._local.spend(rule, subject, at, charge=charge)

    def _rule(self, operation: Operation[Any] | None) -> Rule | None:
        return self._rules[operation.rule.name] if operation and operation.rule else None


def _allowed(decision: RateDecision | None, at_ms: int) -> RateDecision | None:
    if decision is None or decision.allowed:
        return decision
    metrics.RATE_LIMITED.labels(decision.rule.name).inc()
    wait = decision.retry_after(at_ms)
    error = RateLimited("rate limit exceeded", hint=f"try again in {wait} s", retry_after=wait)
    error.headers = decision.headers()
    raise error


def _blocked() -> Denied:
    metrics.BLOCKED.inc()
    return Denied("temporarily blocked", hint="operators see blocks with `angelia guard blocks`")
