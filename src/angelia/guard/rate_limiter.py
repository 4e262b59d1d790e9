"""Nonces, rate limits and blocks. They are kept in the hot tier; while it is away, limits are counted in-process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from angelia import metrics
from angelia.api import Access, ClientAddress, Operation, Per, Rule
from angelia.envelope.times import unix_ms
from angelia.errors import Denied, RateLimited, ReplayRejected, Stale, Unavailable
from angelia.guard import store
from angelia.guard.blocks import AddressBlocks, automatic_block
from angelia.guard.model import (
    UNPROVEN,
    RateDecision,
    SlidingWindows,
    parse_networks,
    with_limits,
    within,
)
from angelia.guard.recent_failures import RecentFailures
from angelia.settings import Settings
from angelia.stores.valkey import HotTier, now_ms
from angelia.stores.wake import Wake

NONCE_LIFE_MS = 180_000


class RequestProof(msgspec.Struct, frozen=True):
    """A signed request whose signature is verified and whose nonce is not."""

    subject: UUID
    nonce: str
    signed_ms: int
    too_old: str = "the request was signed before the nonce memory began"


class RateLimiter:
    """Counts requests per rule: of an address before its signature is verified, of an agent afterwards."""

    def __init__(
        self, hot: HotTier, wake: Wake, blocks: AddressBlocks, settings: Settings, rules: Mapping[str, Rule]
    ) -> None:
        self._hot = hot
        self._blocks = blocks
        self._auto_block = settings.auto_block_enabled
        self._rules = with_limits([*rules.values(), UNPROVEN], settings.limits)
        self._unproven = self._rules[UNPROVEN.name]
        self._failures = RecentFailures(wake, self._unproven.window_ms / 1000)
        self._whitelist = parse_networks("rate_limit_whitelist", settings.rate_limit_whitelist)
        self._local = SlidingWindows()

    async def check_address(
        self, operation: Operation[Any] | None, client: ClientAddress, now: datetime
    ) -> dict[str, str]:
        """Refuses blocked addresses, and addresses over their limit. Returns the X-RateLimit headers.

        Where only failed credentials count, the hot tier is asked about addresses that had some a short while ago."""
        if self._exempt(client):
            return {}
        rule = self._rule(operation)
        if rule is not None and rule.per is Per.ADDRESS:
            decision = await self._spend_address(client, rule, now, charge=True)
            return decision.headers() if decision else {}
        if operation is None or operation.access is Access.ANYONE or not self._failures.may_include(client.subject):
            self._check_blocks(client, now)
        else:
            await self._spend_address(client, self._unproven, now, charge=False)
        return {}

    async def charge_unproven(self, client: ClientAddress, now: datetime) -> None:
        """Counts a failed credential against its address, and tells the other processes."""
        if self._exempt(client):
            return
        self._failures.note(client.subject)
        try:
            await self._spend_address(client, self._unproven, now, charge=True)
        except RateLimited:
            return  # this request is refused anyway; the next one gets 429

    async def admit(
        self, operation: Operation[Any], client: ClientAddress, agent: UUID | None, proof: RequestProof | None
    ) -> dict[str, str]:
        """Uses up the nonce of a signed request, and counts it for its agent. Returns the X-RateLimit headers."""
        rule = self._rule(operation)
        if rule and (rule.per is Per.ADDRESS or rule.limit == 0 or self._exempt(client)):
            rule = None
        if proof is not None:
            decision = await self.spend_nonce(proof, rule)
        elif rule is not None and agent is not None:
            decision = await self._spend_without_nonce(agent, rule)
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
        self, client: ClientAddress, rule: Rule, now: datetime, *, charge: bool
    ) -> RateDecision | None:
        self._check_blocks(client, now)
        if rule.limit == 0:
            return None  # where nothing is counted, the blocks that this process knows are enough
        subject, at = client.subject, unix_ms(now)
        failed = charge and rule is self._unproven
        block = automatic_block(subject, now) if self._auto_block and not client.address.is_loopback else None
        try:
            verdict = await store.spend(
                self._hot,
                subject,
                rule,
                at,
                charge=charge,
                if_counted=self._failures.publication(subject) if failed else store.NO_PUBLICATION,
                if_blocked=self._blocks.publication(block) if block else None,
            )
        except Unavailable:
            return _allowed(self._spend_locally(rule, subject, at, charge=charge), at)
        if verdict.blocked:
            raise _blocked()
        if block and verdict.blocked_now:
            metrics.ADDRESSES_BLOCKED.inc()
            await self._blocks.record_automatic(block)
        return _allowed(verdict.decision, at)

    def _check_blocks(self, client: ClientAddress, now: datetime) -> None:
        if self._blocks.includes(client.subject, now):
            raise _blocked()

    def _exempt(self, client: ClientAddress) -> bool:
        return bool(self._whitelist) and within(client.address, self._whitelist)

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
