"""Decides what agents may do, by the operators' rules. What no rule allows is denied; so is everything while the rules
cannot be read."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import structlog

from angelia import metrics
from angelia.audit import service as audit
from angelia.audit.model import Event
from angelia.envelope.ids import MAX_HANDLE
from angelia.envelope.times import unix_ms
from angelia.errors import AngeliaError, Conflict, Denied, NotFound, RateLimited, Unavailable
from angelia.policy import store
from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect, PolicyRule, RuleSet, Wish, check_rule
from angelia.policy.store import HotRates
from angelia.stores.ledger import GONE, Ledger, StatementError, Tx

CACHE = timedelta(seconds=300)
MOST_CACHED = 10_000
MOST_RULES = 10_000  # every process keeps all of them in memory
STARTER = "angelia"  # `created_by` of the starter rules
_ENGINE_SECONDS = 2.0
_BELIEVED_SECONDS = 1.0
_DOING = {
    Action.SEND: "send to",
    Action.PUBLISH: "publish in",
    Action.SUBSCRIBE: "subscribe to",
    Action.READ_KEYS: "read the keys of",
}
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Held:
    """The rules of one version, and a cache of what they allowed: until when each answer may be given again."""

    version: int
    rules: RuleSet
    allowed: dict[Wish, datetime] = field(default_factory=dict)

    def allows(self, wish: Wish, now: datetime) -> bool:
        until = self.allowed.get(wish)
        if until is not None and now < until:
            return True
        rule = self.rules.decide(wish, now)
        if rule is None or rule.effect is Effect.DENY:
            return False
        if len(self.allowed) >= MOST_CACHED:
            self.allowed.clear()
        self.allowed[wish] = now + CACHE if rule.expires_at is None else min(now + CACHE, rule.expires_at)
        return True


class Policy:
    """The rules and their decisions. Other slices ask in their own transaction, about many wishes at a time."""

    def __init__(self, ledger: Ledger, hot: HotRates) -> None:
        self._ledger = ledger
        self._hot = hot
        self._held: _Held | None = None
        self._read_at = 0.0

    async def check(
        self, tx: Tx, wishes: Sequence[Wish], now: datetime, version: int | None = None
    ) -> list[AngeliaError | None]:
        """Returns one answer per wish: None if it is allowed, else the denial. Raises Unavailable if the rules cannot
        be read. The next check in any process sees a change of the rules. `version` is that of the rules, where the
        caller has just read it with something else."""
        if not wishes:
            return []
        held = await self._current(tx, version)
        return [None if held.allows(wish, now) else _counted_denial(wish) for wish in wishes]

    async def spend(self, wish: Wish, now: datetime) -> None:
        """Counts a wish against the rate of the rule that allows it, and raises RateLimited. Whether the rules deny the
        wish is for `check`.

        Callers run it before their transaction. A new rate may take effect a second late: the ledger is asked for the
        version only if no check has read it within a second. Raises Unavailable while the hot tier is away."""
        rules = (await self._recent()).rules
        rule = rules.decide(wish, now) if rules.rates else None
        if rule is None or rule.rule_id not in rules.rates:
            return
        now_ms = unix_ms(now)
        free_ms = await self._hot.spend(rule.rule_id, rules.rates[rule.rule_id], wish.subject, now_ms)
        if free_ms:
            raise _too_often(wish, max(1, -(-(free_ms - now_ms) // 1000)))

    async def version(self, tx: Tx) -> int:
        """The version of the rules, which rises with every change."""
        return await store.version(tx)

    async def decision(self, wish: Wish, now: datetime) -> PolicyRule | None:
        """The rule that decides about a wish, for operators; None denies."""
        async with self._ledger.reading() as tx:
            held = await self._current(tx)
        return held.rules.decide(wish, now)

    async def rules(self, after: tuple[datetime, UUID] | None, limit: int) -> tuple[list[PolicyRule], int]:
        """A page of rules in order of creation, and the number of all rules."""
        async with self._ledger.reading() as tx:
            return await store.page(tx, after, limit), await store.count(tx)

    async def add(self, by: str, wanted: PolicyRuleBody, now: datetime) -> PolicyRule:
        """Adds a rule, and returns it; it is in force in all processes from its commit on."""
        check_rule(wanted.effect, wanted.action, wanted.subject, wanted.object, wanted.rate)
        rule = _new_rule(by, wanted, now)
        async with self._ledger.transaction() as tx:
            await store.bump_version(tx)
            if await store.count(tx) >= MOST_RULES:
                raise Conflict(
                    f"there are {MOST_RULES:,} rules already", hint="a pattern such as bot-* stands for many"
                )
            await store.add(tx, rule)
            await audit.record(tx, [_changed(rule, "added", by, now)])
        self._read_at = 0.0
        return rule

    async def remove(self, by: str, rule_id: UUID, now: datetime) -> PolicyRule:
        """Removes a rule; what only it allowed is denied from now on."""
        async with self._ledger.transaction() as tx:
            await store.bump_version(tx)
            rule = await store.remove(tx, rule_id)
            if rule is None:
                raise NotFound(f"there is no rule {rule_id}", hint="angelia policy list")
            await audit.record(tx, [_changed(rule, "removed", by, now)])
        self._read_at = 0.0
        return rule

    async def start_with(self, now: datetime, *, loopback: bool) -> bool:
        """On the first start of a server that only this machine reaches, adds rules that allow every agent everything.
        Returns whether it did. It happens once: starter rules that an operator removed do not come back."""
        if not loopback:
            await self._warn_of_starter_rules()
        async with self._ledger.transaction() as tx:
            if await store.lock_version(tx) or await store.count(tx):
                return False
            await store.bump_version(tx)  # marks the first start as over
            if not loopback:
                return False
            starter = [_new_rule(STARTER, PolicyRuleBody(Effect.ALLOW, action, "*", "*"), now) for action in Action]
            for rule in starter:
                await store.add(tx, rule)
            await audit.record(tx, [_changed(rule, "added", STARTER, now) for rule in starter])
        actions = ", ".join(Action)
        log.info("a new server on loopback: everybody may do everything", actions=actions, see="angelia policy list")
        return True

    async def _warn_of_starter_rules(self) -> None:
        async with self._ledger.reading() as tx:
            left = await store.count_made_by(tx, STARTER)
        if left:
            log.warning("the starter rules of a loopback server are still there", rules=left, see="angelia policy list")

    async def _recent(self) -> _Held:
        if self._held is not None and time.monotonic() - self._read_at < _BELIEVED_SECONDS:
            return self._held
        async with self._ledger.reading() as tx:
            return await self._current(tx)

    async def _current(self, tx: Tx, version: int | None = None) -> _Held:
        """The present rules. Raises Unavailable for a fault of any kind, also in a stored rule."""
        held = self._held
        if held is not None and held.version == version:
            self._read_at = time.monotonic()
            return held
        try:
            async with asyncio.timeout(_ENGINE_SECONDS):
                # The version is read first: the rules read after it are never older than that version.
                version = await store.version(tx)
                held = self._held
                if held is None or held.version != version:
                    rules = await store.every_rule(tx)
                    held = self._held  # another task may have loaded them meanwhile; indexing takes a while
                    if held is None or held.version != version:
                        held = _Held(version, RuleSet(rules))
        except (*GONE, StatementError, AngeliaError, msgspec.ValidationError, TypeError, ValueError) as error:
            raise _unreadable() from error
        self._held, self._read_at = held, time.monotonic()
        return held


@contextmanager
def asking_rules() -> Iterator[None]:
    """Around a statement that asks the version of the rules with other things: if it fails, nothing is allowed."""
    try:
        yield
    except StatementError as error:
        raise _unreadable() from error


def denial(wish: Wish) -> Denied:
    """The error for the subject: it tells neither which rule denied, nor whether there was one."""
    return Denied(
        f"the rules do not let {wish.subject} {_DOING[wish.action]} {wish.object}",
        hint=f"operators see why: angelia policy check {wish.action} --subject {wish.subject} --object {wish.object}",
    )


def _unreadable() -> Unavailable:
    return Unavailable("the rules cannot be read at the moment, so nothing is allowed", hint="try again", retry_after=1)


def _counted_denial(wish: Wish) -> Denied:
    metrics.POLICY_DENIED.labels(wish.action.value).inc()
    return denial(wish)


def _too_often(wish: Wish, wait: int) -> RateLimited:
    metrics.RATE_LIMITED.labels("policy").inc()
    return RateLimited(
        f"{wish.subject} may not {_DOING[wish.action]} {wish.object} that often",
        hint=f"try again in {wait} s",
        retry_after=wait,
    )


def _new_rule(by: str, wanted: PolicyRuleBody, now: datetime) -> PolicyRule:
    members = msgspec.structs.asdict(wanted)
    seconds = members.pop("expires_in")
    expires_at = now + timedelta(seconds=seconds) if seconds else None
    return PolicyRule(
        rule_id=uuid.uuid4(), expires_at=expires_at, created_by=by[:MAX_HANDLE], created_at=now, **members
    )


def _changed(rule: PolicyRule, change: str, by: str, now: datetime) -> Event:
    detail = {
        "change": change,
        "rule_id": str(rule.rule_id),
        "effect": rule.effect.value,
        "action": rule.action.value,
        "subject": rule.subject,
        "object": rule.object,
        "priority": rule.priority,
        "rate": rule.rate,
        "expires_at": None if rule.expires_at is None else rule.expires_at.isoformat(),
    }
    return audit.event("policy_changed", now, actor=by, detail=detail)
