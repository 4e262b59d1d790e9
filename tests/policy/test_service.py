"""What the rules promise on real stores: at once, in every process, and closed when anything fails."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
import structlog

from angelia.errors import Conflict, Denied, NotFound, RateLimited, Unavailable
from angelia.policy import service
from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect, PolicyRule, Wish
from angelia.policy.service import CACHE, Policy
from angelia.policy.store import HotRates
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier

ALICE_TO_BOB = Wish("alice", Action.SEND, "bob")
SECOND = timedelta(seconds=1)


async def allow(policy: Policy, now: datetime, subject: str = "*", object: str = "*", **how: object) -> PolicyRule:
    action = how.pop("action", Action.SEND)
    return await policy.add("op", PolicyRuleBody(Effect.ALLOW, action, subject, object, **how), now)  # type: ignore[arg-type]


async def deny(policy: Policy, now: datetime, subject: str = "*", object: str = "*", **how: object) -> PolicyRule:
    return await policy.add("op", PolicyRuleBody(Effect.DENY, Action.SEND, subject, object, **how), now)  # type: ignore[arg-type]


async def asked(policy: Policy, wish: Wish, now: datetime) -> None:
    """Checks a single wish in a transaction of its own; raises the denial."""
    async with policy._ledger.reading() as tx:
        [refusal] = await policy.check(tx, [wish], now)
    if refusal is not None:
        raise refusal


async def may(policy: Policy, now: datetime, wish: Wish = ALICE_TO_BOB) -> bool:
    try:
        await asked(policy, wish, now)
    except Denied:
        return False
    return True


async def checked(policy: Policy, ledger: Ledger, wishes: list[Wish], now: datetime) -> list[str | None]:
    async with ledger.transaction() as tx:
        answers = await policy.check(tx, wishes, now)
    return [None if answer is None else answer.code for answer in answers]


# Decisions.


async def test_no_rule_means_no(policy: Policy, now: datetime) -> None:
    with pytest.raises(Denied, match="the rules do not let alice send to bob"):
        await asked(policy, ALICE_TO_BOB, now)


async def test_each_wish_gets_its_own_answer_in_its_place(policy: Policy, ledger: Ledger, now: datetime) -> None:
    await allow(policy, now, "alice", "b*")
    await deny(policy, now, "alice", "bad")
    wishes = [Wish("alice", Action.SEND, name) for name in ("bob", "bad", "carol", "ben")]
    wishes.append(Wish("alice", Action.READ_KEYS, "bob"))
    denied = "authorization_denied"
    assert await checked(policy, ledger, wishes, now) == [None, denied, denied, None, denied]
    assert await checked(policy, ledger, [], now) == []


async def test_a_refusal_does_not_tell_which_rule_it_was(policy: Policy, now: datetime) -> None:
    with pytest.raises(Denied) as by_nobody:
        await asked(policy, ALICE_TO_BOB, now)
    rule = await deny(policy, now)
    with pytest.raises(Denied) as by_rule:
        await asked(policy, ALICE_TO_BOB, now)
    assert (by_rule.value.message, by_rule.value.hint) == (by_nobody.value.message, by_nobody.value.hint)
    assert str(rule.rule_id) not in by_rule.value.message + by_rule.value.hint


async def test_a_thousand_wishes_cost_one_query(policy: Policy, ledger: Ledger, now: datetime) -> None:
    await allow(policy, now)
    await may(policy, now)
    async with ledger.transaction() as tx:
        asked: list[str] = []

        class Counting:
            async def fetchval(self, query: str, *args: object) -> object:
                asked.append(query)
                return await tx.fetchval(query, *args)

        wishes = [Wish(f"agent-{n}", Action.SEND, "bob") for n in range(1000)]
        assert await policy.check(Counting(), wishes, now) == [None] * 1000  # type: ignore[arg-type]
    assert len(asked) == 1


# The memory of what was allowed.


async def test_a_new_deny_works_at_once_although_an_allow_is_cached(policy: Policy, now: datetime) -> None:
    await allow(policy, now)
    assert await may(policy, now)
    await deny(policy, now, "alice")
    assert not await may(policy, now)


async def test_two_processes_see_a_change_at_once(policy: Policy, other_process: Policy, now: datetime) -> None:
    rule = await allow(policy, now)
    assert await may(other_process, now)
    await policy.remove("op", rule.rule_id, now)
    assert not await may(other_process, now)
    await allow(policy, now)
    assert await may(other_process, now)


async def test_a_rule_that_expires_is_not_outlived_by_the_cache(policy: Policy, now: datetime) -> None:
    await allow(policy, now, expires_in=10)
    assert await may(policy, now)
    assert await may(policy, now + 9 * SECOND)
    assert not await may(policy, now + 10 * SECOND)


async def test_an_allow_is_remembered_for_300_seconds_and_no_longer(
    policy: Policy, connection: asyncpg.Connection, now: datetime
) -> None:
    await allow(policy, now)
    assert await may(policy, now)
    # Behind our back, so that the version stays: only the memory can still say yes.
    await connection.execute("DELETE FROM policies")
    policy._held.rules = service.RuleSet([])  # type: ignore[union-attr]
    assert await may(policy, now + CACHE - SECOND)
    assert not await may(policy, now + CACHE)


async def test_an_allow_of_one_action_or_direction_is_not_one_of_another(policy: Policy, now: datetime) -> None:
    await allow(policy, now, "alice", "bob")
    assert await may(policy, now)
    for wish in (
        Wish("bob", Action.SEND, "alice"),
        Wish("alice", Action.READ_KEYS, "bob"),
        Wish("alice", Action.PUBLISH, "bob"),
    ):
        assert not await may(policy, now, wish)


async def test_denials_are_never_cached(policy: Policy, ledger: Ledger, now: datetime) -> None:
    await deny(policy, now, "alice", expires_in=10)
    await allow(policy, now)
    for _ in range(3):
        assert not await may(policy, now)
    assert policy._held is not None
    assert policy._held.allowed == {}
    assert await may(policy, now + 10 * SECOND)


async def test_the_memory_is_bounded(
    policy: Policy, ledger: Ledger, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_CACHED", 10)
    await allow(policy, now)
    wishes = [Wish(f"agent-{n}", Action.SEND, "bob") for n in range(35)]
    assert await checked(policy, ledger, wishes, now) == [None] * 35
    assert policy._held is not None
    assert len(policy._held.allowed) <= 10


# Fail closed.


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE policy_version",
        "DELETE FROM policy_version",
        "UPDATE policy_version SET version = version + 1; ALTER TABLE policies RENAME TO gone",
        "UPDATE policies SET rate = 'often'; UPDATE policy_version SET version = version + 1",
        "ALTER TABLE policies DROP CONSTRAINT policies_action_check;"
        " UPDATE policies SET action = 'fly'; UPDATE policy_version SET version = version + 1",
    ],
)
async def test_an_engine_that_fails_denies(
    policy: Policy, ledger: Ledger, connection: asyncpg.Connection, now: datetime, damage: str
) -> None:
    await allow(policy, now)
    assert await may(policy, now)
    await connection.execute(damage)
    for ask in (asked(policy, ALICE_TO_BOB, now), checked(policy, ledger, [ALICE_TO_BOB], now)):
        with pytest.raises(Unavailable):
            await ask


async def test_an_engine_that_takes_too_long_denies_and_the_connection_goes_on(
    policy: Policy, ledger: Ledger, connection: asyncpg.Connection, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_ENGINE_SECONDS", 0.2)
    await allow(policy, now)
    async with connection.transaction():
        await connection.execute("LOCK TABLE policies, policy_version IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable):
            await asked(policy, ALICE_TO_BOB, now)
    assert await may(policy, now)


async def test_a_ledger_that_is_away_denies(hot: HotTier, now: datetime) -> None:
    ledger = await Ledger.open("postgresql://nobody@/nothing?host=/nonexistent", 2)
    policy = Policy(ledger, HotRates(hot))
    with pytest.raises(Unavailable):
        await asked(policy, ALICE_TO_BOB, now)
    with pytest.raises(Unavailable):
        await policy.spend(ALICE_TO_BOB, now)
    await ledger.close()


# Rates.


async def spent(policy: Policy, now: datetime, *wishes: Wish) -> list[str | None]:
    answers: list[str | None] = []
    for wish in wishes or (ALICE_TO_BOB,):
        try:
            await policy.spend(wish, now)
        except RateLimited as refusal:
            answers.append(refusal.code)
        else:
            answers.append(None)
    return answers


async def test_a_rate_is_a_true_sliding_window(policy: Policy, now: datetime) -> None:
    await allow(policy, now, rate="3/10s")
    for second in (0, 4, 8):
        assert await spent(policy, now + second * SECOND) == [None]
    assert await spent(policy, now + 9 * SECOND) == ["rate_limited"]
    with pytest.raises(RateLimited) as refused:
        await policy.spend(ALICE_TO_BOB, now + 9 * SECOND)
    assert refused.value.retry_after == 1
    assert await spent(policy, now + 10 * SECOND) == [None]
    assert await spent(policy, now + 13 * SECOND) == ["rate_limited"]
    assert await spent(policy, now + 14 * SECOND) == [None]


async def test_a_rate_is_counted_per_subject_and_per_rule(policy: Policy, now: datetime) -> None:
    await allow(policy, now, "a*", rate="1/1m")
    await allow(policy, now, "a*", "carol", rate="1/1m", priority=1)
    carol = Wish("alice", Action.SEND, "carol")
    anna = Wish("anna", Action.SEND, "bob")
    assert await spent(policy, now, ALICE_TO_BOB, ALICE_TO_BOB, carol, anna) == [None, "rate_limited", None, None]
    assert await spent(policy, now, Wish("alice", Action.SEND, "ben"), carol, anna) == ["rate_limited"] * 3


async def test_parallel_wishes_never_pass_a_rate(policy: Policy, other_process: Policy, now: datetime) -> None:
    await allow(policy, now, rate="20/1m")
    answers = await asyncio.gather(*(spent(each, now) for each in (policy, other_process) * 30))
    assert answers.count([None]) == 20


async def test_looking_spends_nothing_and_a_denied_wish_neither(policy: Policy, hot: HotTier, now: datetime) -> None:
    await allow(policy, now, rate="1/1m")
    await deny(policy, now, "mallory")
    for _ in range(3):
        assert await may(policy, now)
        assert await spent(policy, now, Wish("mallory", Action.SEND, "bob")) == [None]
    assert await hot._redis.keys("ang:rl:*") == []
    assert await spent(policy, now) == [None]


async def test_the_count_has_its_subjects_hash_for_a_tag_and_goes_by_itself(
    policy: Policy, hot: HotTier, now: datetime
) -> None:
    rule = await allow(policy, now, rate="5/30s")
    await spent(policy, now)
    [key] = await hot._redis.keys("ang:rl:*")
    assert key == f"ang:rl:{{{service.store.hot_tag('alice')}}}:policy:{rule.rule_id}".encode()
    assert 0 < await hot._redis.pttl(key) <= 30_000


async def test_a_hot_tier_that_is_away_denies_only_what_has_a_rate(
    policy: Policy, ledger: Ledger, now: datetime
) -> None:
    away = HotTier("redis://127.0.0.1:1/0")
    lonely = Policy(ledger, HotRates(away))
    await allow(policy, now)
    assert await spent(lonely, now) == [None]
    await allow(policy, now, "alice", rate="100/1s")
    assert await may(lonely, now)  # which reads the new rules
    with pytest.raises(Unavailable):
        await spent(lonely, now)
    assert await spent(lonely, now, Wish("bob", Action.SEND, "alice")) == [None]
    await away.close()


async def test_a_new_rate_counts_at_once_where_it_was_made(policy: Policy, now: datetime) -> None:
    await allow(policy, now)
    assert await spent(policy, now) == [None]
    await allow(policy, now, rate="1/1m")
    assert await spent(policy, now, ALICE_TO_BOB, ALICE_TO_BOB) == [None, "rate_limited"]


async def test_a_new_rate_counts_from_the_next_check_on_or_a_second_later(
    policy: Policy, other_process: Policy, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await allow(policy, now)
    assert await spent(other_process, now) == [None]
    await allow(policy, now, rate="1/1m")
    assert await may(other_process, now)
    assert await spent(other_process, now, ALICE_TO_BOB, ALICE_TO_BOB) == [None, "rate_limited"]
    monkeypatch.setattr(service, "_BELIEVED_SECONDS", 0.0)
    await deny(policy, now, "alice")
    assert await spent(other_process, now) == [None]  # denied, so it is not counted any more


# Changes.


async def test_every_change_is_audited_with_what_changed(
    policy: Policy, connection: asyncpg.Connection, now: datetime
) -> None:
    rule = await policy.add(
        "op", PolicyRuleBody(Effect.ALLOW, Action.SEND, "team-*", "bob", priority=5, rate="9/1h"), now
    )
    await policy.remove("chief", rule.rule_id, now)
    rows = await connection.fetch(
        "SELECT actor_nhi, detail FROM audit_events WHERE event_type = 'policy_changed' ORDER BY xid"
    )
    [(adder, added), (remover, removed)] = [tuple(row) for row in rows]
    assert (adder, remover) == ("op", "chief")
    for word in ("team-*", "bob", "send", "allow", str(rule.rule_id), "9/1h"):
        assert word in str(added)
        assert word in str(removed)
    assert ("added" in str(added), "removed" in str(removed)) == (True, True)


async def test_what_is_refused_changes_neither_rules_nor_version(
    policy: Policy, connection: asyncpg.Connection, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = await allow(policy, now)
    with pytest.raises(NotFound):
        await policy.remove("op", uuid4(), now)
    monkeypatch.setattr(service, "MOST_RULES", 1)
    with pytest.raises(Conflict):
        await allow(policy, now)
    assert await connection.fetchval("SELECT version FROM policy_version") == 1
    assert (await policy.rules(None, 10)) == ([rule], 1)
    assert await connection.fetchval("SELECT count(*) FROM audit_events WHERE event_type = 'policy_changed'") == 1


async def test_parallel_changes_each_make_the_version_another_one(
    policy: Policy, other_process: Policy, connection: asyncpg.Connection, now: datetime
) -> None:
    await asyncio.gather(*(allow(each, now) for each in (policy, other_process) * 10))
    assert await connection.fetchval("SELECT version FROM policy_version") == 20


async def test_rules_are_listed_in_pages_in_the_order_in_which_they_were_made(policy: Policy, now: datetime) -> None:
    made = [await allow(policy, now + n * SECOND, f"agent-{n}") for n in range(5)]
    first, total = await policy.rules(None, 3)
    assert (first, total) == (made[:3], 5)
    assert (await policy.rules((first[-1].created_at, first[-1].rule_id), 3))[0] == made[3:]


# Starter rules.


async def starters(connection: asyncpg.Connection) -> list[tuple[str, str, str, str, int, str]]:
    rows = await connection.fetch("SELECT effect, action, subject, object, priority, created_by FROM policies")
    return sorted(tuple(row) for row in rows)


async def test_a_new_server_on_loopback_lets_everybody_do_everything(
    policy: Policy, connection: asyncpg.Connection, now: datetime
) -> None:
    with structlog.testing.capture_logs() as lines:
        assert await policy.start_with(now, loopback=True)
    assert [line["log_level"] for line in lines] == ["info"]
    assert await starters(connection) == [("allow", action, "*", "*", 0, "angelia") for action in sorted(Action)]
    for action in Action:
        assert await may(policy, now, Wish("alice", action, "bob"))
    actors = "SELECT actor_nhi FROM audit_events WHERE event_type = 'policy_changed'"
    assert [row[0] for row in await connection.fetch(actors)] == ["angelia"] * 4


async def test_a_server_that_others_reach_starts_with_no_rule(
    policy: Policy, connection: asyncpg.Connection, now: datetime
) -> None:
    assert not await policy.start_with(now, loopback=False)
    assert await starters(connection) == []
    assert not await may(policy, now)


async def test_starter_rules_come_once_even_if_two_servers_start_together(
    policy: Policy, other_process: Policy, connection: asyncpg.Connection, now: datetime
) -> None:
    begun = await asyncio.gather(*(each.start_with(now, loopback=True) for each in (policy, other_process) * 5))
    assert begun.count(True) == 1
    assert len(await starters(connection)) == 4


async def test_rules_that_an_operator_removed_do_not_come_back(
    policy: Policy, connection: asyncpg.Connection, now: datetime
) -> None:
    await policy.start_with(now, loopback=True)
    for rule in (await policy.rules(None, 10))[0]:
        await policy.remove("op", rule.rule_id, now)
    assert not await policy.start_with(now, loopback=True)
    assert await starters(connection) == []


async def test_a_server_with_a_rule_of_its_own_gets_no_starter_rules(policy: Policy, now: datetime) -> None:
    own = await deny(policy, now, "mallory")
    assert not await policy.start_with(now, loopback=True)
    assert (await policy.rules(None, 10))[0] == [own]


async def test_a_server_that_began_in_public_gets_no_starter_rules_on_loopback_later(
    policy: Policy, now: datetime
) -> None:
    assert not await policy.start_with(now, loopback=False)
    assert not await policy.start_with(now, loopback=True)
    assert await policy.rules(None, 10) == ([], 0)


async def test_whoever_takes_the_starter_rules_beyond_loopback_is_warned(policy: Policy, now: datetime) -> None:
    await policy.start_with(now, loopback=True)
    with structlog.testing.capture_logs() as lines:
        await policy.start_with(now, loopback=False)
    assert [(line["log_level"], line["rules"]) for line in lines] == [("warning", 4)]


# Plans.


async def test_a_page_of_many_rules_reads_an_index(connection: asyncpg.Connection, now: datetime) -> None:
    await connection.execute(
        "INSERT INTO policies SELECT gen_random_uuid(), 0, 'allow', 'send', 'agent-' || n, '*', NULL, NULL, 'op',"
        " $1::timestamptz + n * interval '1 second' FROM generate_series(1, 10000) AS n",
        now,
    )
    await connection.execute("ANALYZE policies")
    for name, values in {"page": [now, UUID(int=1), 51], "remove": [UUID(int=1)]}.items():
        statement = service.store.SQL[name]
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {statement}", *values))
        assert "Index" in plan, plan
        assert "Seq Scan" not in plan, plan
