"""Rules of access: which subject may do which action to which object, and how a set of rules decides. No I/O, no
clock."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from angelia.envelope.ids import valid_handle
from angelia.errors import InvalidArgument

MOST_IN_WINDOW = 100_000  # the hot tier has an entry for each act in a window
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE = re.compile(r"([0-9]{1,9})/([0-9]{1,6})?([smhd])")
_CHANNEL_NAME = re.compile(r"\A[a-z0-9][a-z0-9_./-]{0,63}\Z")


class Action(StrEnum):
    """What an agent may do, or may not."""

    SEND = "send"
    PUBLISH = "channel.publish"
    SUBSCRIBE = "channel.subscribe"
    READ_KEYS = "keys.read"


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `limit` acts of one subject in any window of that length."""

    limit: int
    window_ms: int


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. `subject` and `object` are patterns: a whole name, or the beginning of one and a `*`."""

    rule_id: UUID
    priority: int
    effect: Effect
    action: Action
    subject: str
    object: str
    expires_at: datetime | None
    rate: str | None
    created_by: str
    created_at: datetime

    def applies(self, now: datetime) -> bool:
        return self.expires_at is None or self.expires_at > now


@dataclass(frozen=True, slots=True)
class Wish:
    """An act to be allowed or denied: the subject does the action to the object. Both are names, never patterns."""

    subject: str
    action: Action
    object: str


def precedence(rule: PolicyRule) -> tuple[int, bool, float, datetime, UUID]:
    """The sort key of a rule; the lowest decides. Higher priority comes first, and of equals the stricter rule: deny
    before allow, a lower rate before a higher one or none."""
    allows = rule.effect is Effect.ALLOW
    per_ms = math.inf
    if rule.rate is not None:
        rate = parse_rate(rule.rate)
        per_ms = rate.limit / rate.window_ms
    return -rule.priority, allows, per_ms, rule.created_at, rule.rule_id


class RuleSet:
    """All rules of one version, indexed by their patterns, so that a decision looks only at rules that can match, in a
    time that does not grow with the number of rules."""

    def __init__(self, rules: Iterable[PolicyRule]) -> None:
        self._placed: dict[tuple[Action, str, str], list[tuple[int, PolicyRule]]] = {}
        self._subjects: set[int] = set()  # the lengths of the prefixes before a *
        self._objects: set[int] = set()
        self.rates: dict[UUID, Rate] = {}
        for place, rule in enumerate(sorted(rules, key=precedence)):
            self._placed.setdefault((rule.action, rule.subject, rule.object), []).append((place, rule))
            for pattern, lengths in ((rule.subject, self._subjects), (rule.object, self._objects)):
                if pattern.endswith("*"):
                    lengths.add(len(pattern) - 1)
            if rule.rate is not None and rule.effect is Effect.ALLOW:
                self.rates[rule.rule_id] = parse_rate(rule.rate)

    def decide(self, wish: Wish, now: datetime) -> PolicyRule | None:
        """The rule that decides: of those that match, the first in order of precedence. None denies."""
        found: list[tuple[int, PolicyRule]] = []
        objects = _patterns_of(wish.object, self._objects)
        for subject in _patterns_of(wish.subject, self._subjects):
            for object_ in objects:
                placed = self._placed.get((wish.action, subject, object_), ())
                found += [one for one in placed if one[1].applies(now)][:1]
        return min(found, key=lambda one: one[0])[1] if found else None


def _patterns_of(name: str, lengths: Iterable[int]) -> list[str]:
    """Every pattern that matches a name: the name itself, and its prefixes of these lengths with a *."""
    return [name, *(f"{name[:length]}*" for length in lengths if length <= len(name))]


def parse_rate(text: str) -> Rate:
    """`100/1m`: a hundred in any minute."""
    found = _RATE.fullmatch(text)
    if found is None or int(found[1]) == 0 or int(found[2] or 1) == 0:
        raise InvalidArgument(f"the rate {text[:60]!r} cannot be read", hint="write it as 100/1m")
    if int(found[1]) > MOST_IN_WINDOW:
        raise InvalidArgument(f"a rate has at most {MOST_IN_WINDOW:,} in a window", hint="take a shorter window")
    return Rate(int(found[1]), int(found[2] or 1) * _UNITS[found[3]])


def check_rule(effect: Effect, action: Action, subject: str, object: str, rate: str | None) -> None:
    """Raises InvalidArgument, with what is wrong, for a rule that cannot be added."""
    _check_pattern("subject", subject, _AGENTS)
    _check_pattern("object", object, _objects(action))
    if rate is not None:
        if effect is Effect.DENY:
            raise InvalidArgument("a deny rule has no rate", hint="deny means never; a rate goes with allow")
        parse_rate(rate)


def check_wish(wish: Wish) -> None:
    """Raises InvalidArgument unless subject and object are names: only rules have patterns."""
    for what, text, names in (("subject", wish.subject, _AGENTS), ("object", wish.object, _objects(wish.action))):
        if not names.valid(text):
            raise InvalidArgument(f"{what}: {text[:60]!r} names nobody", hint=f"it is {names.described}")


def _check_pattern(what: str, text: str, names: _Names) -> None:
    beginning = text.removesuffix("*")
    # A prefix may end where no whole name does: in a dot, within an owner, or right after the slash of a channel.
    whole = [text] if beginning == text else [beginning, beginning + "0", beginning + "0/0", beginning + "/0"]
    if any(names.valid(one) for one in whole):
        return
    hint = f"it is {names.described}, or the beginning of one and a *, and nothing else"
    raise InvalidArgument(f"{what}: {text[:60]!r} is no pattern", hint=hint)


def _valid_channel(text: str) -> bool:
    owner, slash, name = text.partition("/")
    return valid_handle(owner) and bool(slash) and _CHANNEL_NAME.match(name) is not None


@dataclass(frozen=True, slots=True)
class _Names:
    """Which names a part of a rule may have, and how an error message describes them."""

    valid: Callable[[str], bool]
    described: str


_AGENTS = _Names(valid_handle, "a handle, such as alice")
_CHANNELS = _Names(_valid_channel, "a channel as owner/name")


def _objects(action: Action) -> _Names:
    return _CHANNELS if action in (Action.PUBLISH, Action.SUBSCRIBE) else _AGENTS
