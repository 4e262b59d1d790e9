"""How rules decide, and what can be a rule at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.ids import valid_handle
from angelia.errors import InvalidArgument
from angelia.policy.model import (
    Action,
    Effect,
    PolicyRule,
    Rate,
    RuleSet,
    Wish,
    check_rule,
    check_wish,
    parse_rate,
    precedence,
)

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = 86_400_000
HANDLES = ("a", "ab", "abc", "b", "b.c")
NAMES = (*HANDLES, "a/x", "ab/x.y")
PATTERNS = ("*", "a*", "ab*", "abc*", "b*", "b.*", *HANDLES)


def rule(number: int = 1, **values: object) -> PolicyRule:
    plain = {
        "rule_id": UUID(int=number),
        "priority": 0,
        "effect": Effect.ALLOW,
        "action": Action.SEND,
        "subject": "*",
        "object": "*",
        "expires_at": None,
        "rate": None,
        "created_by": "operator",
        "created_at": NOW - timedelta(days=1),
    }
    return PolicyRule(**{**plain, **values})  # type: ignore[arg-type]


def wish(subject: str = "alice", object: str = "bob", action: Action = Action.SEND) -> Wish:
    return Wish(subject, action, object)


def decide(rules: list[PolicyRule], wish: Wish, now: datetime) -> PolicyRule | None:
    return RuleSet(rules).decide(wish, now)


def allowed(rules: list[PolicyRule], wish: Wish, now: datetime = NOW) -> bool:
    decided = decide(rules, wish, now)
    return decided is not None and decided.effect is Effect.ALLOW


rules_strategy = st.lists(
    st.builds(
        lambda number, priority, effect, action, subject, about, seconds, rate: rule(
            number,
            priority=priority,
            effect=effect,
            action=action,
            subject=subject,
            object=about,
            expires_at=None if seconds is None else NOW + timedelta(seconds=seconds),
            rate=rate if effect is Effect.ALLOW else None,
        ),
        st.integers(0, 1 << 64),
        st.integers(-2, 2),
        st.sampled_from(Effect),
        st.sampled_from(Action),
        st.sampled_from(PATTERNS),
        st.sampled_from((*PATTERNS, "a/*", "a/x", "ab/x*")),
        st.none() | st.integers(-2, 2),
        st.sampled_from((None, "1/1m", "5/s", "100/1d")),
    ),
    max_size=12,
    unique_by=lambda made: made.rule_id,
)
wishes_strategy = st.builds(Wish, st.sampled_from(HANDLES), st.sampled_from(Action), st.sampled_from(NAMES))


def fits(pattern: str, name: str) -> bool:
    return pattern == name or (pattern[-1:] == "*" and name[: len(pattern) - 1] == pattern[:-1])


def speaks(rule: PolicyRule, wish: Wish, now: datetime) -> bool:
    in_time = rule.expires_at is None or now < rule.expires_at
    return (
        in_time and rule.action == wish.action and fits(rule.subject, wish.subject) and fits(rule.object, wish.object)
    )


def plainly(rules: list[PolicyRule], wish: Wish, now: datetime) -> bool:
    """The contract, word by word: among the rules of the highest priority that speak, one deny is enough."""
    speaking = [one for one in rules if speaks(one, wish, now)]
    if not speaking:
        return False
    highest = max(one.priority for one in speaking)
    return all(one.effect is Effect.ALLOW for one in speaking if one.priority == highest)


@given(rules_strategy, wishes_strategy, st.integers(-3, 3))
def test_a_decision_is_what_the_contract_says(rules: list[PolicyRule], wish: Wish, seconds: int) -> None:
    now = NOW + timedelta(seconds=seconds)
    assert allowed(rules, wish, now) is plainly(rules, wish, now)


@given(rules_strategy, wishes_strategy, st.integers(-3, 3))
def test_arranged_rules_decide_as_a_plain_list_of_them_does(rules: list[PolicyRule], wish: Wish, seconds: int) -> None:
    now = NOW + timedelta(seconds=seconds)
    speaking = [one for one in rules if speaks(one, wish, now)]
    assert decide(rules, wish, now) == min(speaking, key=precedence, default=None)


@given(rules_strategy, wishes_strategy, st.randoms())
def test_the_order_in_which_rules_come_does_not_matter(rules: list[PolicyRule], wish: Wish, random: object) -> None:
    shuffled = list(rules)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decide(rules, wish, NOW) == decide(shuffled, wish, NOW)


def test_no_rule_means_no() -> None:
    assert decide([], wish(), NOW) is None
    assert not allowed([rule(object="carol"), rule(2, action=Action.READ_KEYS)], wish())


def test_deny_beats_allow_at_equal_priority_and_a_higher_priority_beats_both() -> None:
    deny = rule(2, effect=Effect.DENY, object="bob")
    assert not allowed([rule(), deny], wish())
    assert allowed([rule(priority=1), deny], wish())
    assert not allowed([rule(priority=1), deny, rule(3, effect=Effect.DENY, priority=2)], wish())


def test_an_expired_rule_does_not_count_from_the_very_moment_on() -> None:
    short = rule(expires_at=NOW)
    assert allowed([short], wish(), NOW - timedelta(microseconds=1))
    assert not allowed([short], wish(), NOW)
    denied_until = rule(2, effect=Effect.DENY, expires_at=NOW)
    assert allowed([rule(), denied_until], wish(), NOW)


def test_of_two_allows_with_equal_priority_the_lower_rate_counts() -> None:
    free, fast, slow = rule(1), rule(2, rate="10/1s"), rule(3, rate="100/1m")
    assert decide([free, fast, slow], wish(), NOW) == slow
    assert decide([free, fast], wish(), NOW) == fast
    assert decide([rule(4, priority=1), slow], wish(), NOW) == rule(4, priority=1)


# Patterns.


@pytest.mark.parametrize("pattern", ["*", "alice", "a*", "a.*", "a-*", "team.a*", "x" * 255, "x" * 255 + "*", "0*"])
def test_a_handle_or_the_beginning_of_one_and_a_star_is_a_pattern(pattern: str) -> None:
    check_rule(Effect.ALLOW, Action.SEND, pattern, pattern, None)


@pytest.mark.parametrize(
    "pattern",
    ["", "**", "a**", "*a", "a*b", "A*", "Alice", "a b", "a..*", "..", ".*", "-*", "a.", "a/b", "a/*", "^a.*$", "a?",
     "[ab]", "ä*", "a\n", "a*\n", "a\x00", "x" * 256, "x" * 256 + "*", "a.b|c"],
)  # fmt: skip
def test_nothing_else_is_a_pattern_and_the_error_says_what_is(pattern: str) -> None:
    for subject, object_ in ((pattern, "bob"), ("alice", pattern)):
        with pytest.raises(InvalidArgument, match="is no pattern") as refused:
            check_rule(Effect.ALLOW, Action.SEND, subject, object_, None)
        assert "a handle, such as alice, or the beginning of one and a *" in refused.value.hint


@pytest.mark.parametrize("action", [Action.PUBLISH, Action.SUBSCRIBE])
def test_a_channel_is_named_by_its_owner_and_its_name(action: Action) -> None:
    for pattern in ("alice/news", "alice/*", "alice/ne*", "alice/a/b.c_d-e", "alice*", "ali*", "*", "a/" + "n" * 64):
        check_rule(Effect.ALLOW, action, "*", pattern, None)
    for pattern in (
        "alice",
        "/news",
        "alice/",
        "alice//",
        "alice/N*",
        "alice/-x",
        "alice/*x",
        "a../x",
        "a./x",
        "a/" + "n" * 65,
    ):
        with pytest.raises(InvalidArgument):
            check_rule(Effect.ALLOW, action, "*", pattern, None)
    with pytest.raises(InvalidArgument):
        check_rule(Effect.ALLOW, action, "alice/news", "bob", None)


@given(st.text(alphabet="ab0.-_*/A", max_size=6))
def test_a_pattern_is_accepted_only_if_some_handle_fits_it(text: str) -> None:
    try:
        check_rule(Effect.ALLOW, Action.SEND, text, "*", None)
    except InvalidArgument:
        return
    beginning = text.removesuffix("*")
    assert any(fits(text, name) and valid_handle(name) for name in (beginning, beginning + "0"))


def test_a_wish_names_one_agent_never_a_pattern() -> None:
    check_wish(wish())
    check_wish(wish(object="bob/news", action=Action.PUBLISH))
    for bad in (wish(subject="*"), wish(subject="a*"), wish(object="*"), wish(object="bob/news"), wish(object="")):
        with pytest.raises(InvalidArgument, match="names nobody"):
            check_wish(bad)


# Rates.


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/1m", Rate(100, 60_000)),
        ("1/s", Rate(1, 1_000)),
        ("5/12h", Rate(5, 43_200_000)),
        ("7/2d", Rate(7, 2 * DAY)),
    ],
)
def test_a_rate_is_so_many_in_a_window(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "100", "0/1m", "1/0s", "1/00m", "-1/m", "1/1w", "1 / m", "١/m", "off", "1/m\n", "100001/1m"]
)
def test_another_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        check_rule(Effect.ALLOW, Action.SEND, "*", "*", text)


def test_a_deny_has_no_rate() -> None:
    with pytest.raises(InvalidArgument, match="no rate"):
        check_rule(Effect.DENY, Action.SEND, "*", "*", "1/1m")
