"""Who may subscribe and publish, by each of the four policies, and what happens when that changes."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import asyncpg
import pytest

from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect
from channels.conftest import ChannelSlice
from channels.members import Member, code

DENIED = (403, "authorization_denied")


@pytest.mark.parametrize(
    ("policy", "subscribes", "publishes"),
    [("open", True, True), ("private", False, False), ("allowlist", False, False), ("authz_required", True, True)],
)
async def test_a_stranger_may_what_the_policy_says(
    alice: Member, bob: Member, policy: str, subscribes: bool, publishes: bool
) -> None:
    """The rules of a new server on loopback allow everything, so `authz_required` does. To whom a channel is none of
    its business, there is none."""
    channel, key = await alice.keyed(policy=policy)
    await alice.subscribes(channel)
    assert (await bob.raw("POST", f"/v1/channels/{channel}/subscribe")).status_code == (201 if subscribes else 404)
    assert (await bob.publishes(bob.seals(channel, key))).status_code == (201 if publishes else 404)
    assert (await alice.publishes(alice.seals(channel, key))).status_code == 201


async def test_a_listed_agent_may_what_it_is_listed_for(alice: Member, bob: Member, carol: Member) -> None:
    channel, key = await alice.keyed(policy="allowlist")
    assert await alice.allows(channel, "bob") == {
        "nhi": "bob",
        "may_subscribe": True,
        "may_publish": False,
        "added_at": (await alice.call("GET", f"/v1/channels/{channel}/allowlist"))["allowlist"][0]["added_at"],
    }
    await alice.allows(channel, carol.id, may_subscribe=False, may_publish=True)  # by its id
    await bob.subscribes(channel)
    assert code(await bob.publishes(bob.seals(channel, key))) == DENIED
    await carol.subscribes(channel, status=403)
    assert await carol.says(channel, key) == 1
    assert await bob.hears(channel, key) == [(1, b"hello")]


async def test_an_allowlist_is_shown_in_pages_by_name(alice: Member, bob: Member, carol: Member) -> None:
    channel = await alice.makes(policy="allowlist", allowlist_nhis=["carol", bob.id])
    first = await alice.call("GET", f"/v1/channels/{channel}/allowlist?limit=1")
    assert ([one["nhi"] for one in first["allowlist"]], first["next"]) == (["bob"], "bob")
    rest = await alice.call("GET", f"/v1/channels/{channel}/allowlist?limit=1&cursor=bob")
    assert ([one["nhi"] for one in rest["allowlist"]], rest["next"]) == (["carol"], None)


async def test_rules_decide_and_a_withdrawn_one_counts_at_the_next_delivery(
    slices: ChannelSlice, alice: Member, bob: Member, now: datetime
) -> None:
    channel, key = await alice.keyed(policy="authz_required")
    await bob.subscribes(channel)
    await alice.says(channel, key)
    assert await bob.hears(channel, key) == [(1, b"hello")]
    deny = await slices.policy.add(
        "operator", PolicyRuleBody(Effect.DENY, Action.SUBSCRIBE, "bob", "alice/news", priority=9), now
    )
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/messages")) == DENIED
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/stream")) == DENIED
    await slices.policy.remove("operator", deny.rule_id, now)
    await bob.reads(channel)
    await slices.policy.add("operator", PolicyRuleBody(Effect.DENY, Action.PUBLISH, "bob", "alice/*", priority=9), now)
    assert code(await bob.publishes(bob.seals(channel, key))) == DENIED
    await bob.reads(channel)


async def test_a_withdrawn_rule_drops_whom_it_let_in_at_the_next_tick_and_closes_the_epoch(
    slices: ChannelSlice, alice: Member, bob: Member, carol: Member, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.channels.service._RECHECKED_TOGETHER", 1)
    channel, key = await alice.keyed(policy="authz_required")
    other, other_key = await alice.keyed("other", "authz_required")
    for one in (bob, carol):
        await one.subscribes(channel)
        await one.subscribes(other)
    await settled(slices, now)
    assert (await alice.shows(channel))["epoch_key_id"] == str(key.key_id)
    await slices.policy.add(
        "operator", PolicyRuleBody(Effect.DENY, Action.SUBSCRIBE, "bob", "alice/news", priority=9), now
    )
    await settled(slices, now)
    shown = await alice.shows(channel)
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (1, None)
    shown = await alice.shows(other)
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (2, str(other_key.key_id))
    assert not await slices.channels.tidy(now)  # nobody is looked at again while the rules stay


async def test_a_publisher_whom_the_rules_refuse_is_dropped_and_the_owner_keeps_its_place(
    slices: ChannelSlice, alice: Member, bob: Member, now: datetime
) -> None:
    channel, _ = await alice.keyed(policy="authz_required")
    await bob.rekeys(channel, 2)
    for who in ("alice", "bob"):
        await slices.policy.add(
            "operator", PolicyRuleBody(Effect.DENY, Action.PUBLISH, who, "alice/news", priority=9), now
        )
    await settled(slices, now)
    assert (await alice.shows(channel))["epoch_key_id"] is None
    assert ((await alice.shows(channel))["key_epoch"], (await bob.shows(channel))["key_epoch"]) == (1, None)


async def settled(slices: ChannelSlice, now: datetime) -> None:
    while await slices.channels.tidy(now):
        pass


async def test_who_waits_is_refused_when_its_permission_goes(
    slices: ChannelSlice, alice: Member, bob: Member, now: datetime, waits: asyncio.Queue[float]
) -> None:
    channel, key = await alice.keyed(policy="authz_required")
    await bob.subscribes(channel)
    waiting = asyncio.create_task(bob.raw("GET", f"/v1/channels/{channel}/messages?wait_timeout_seconds=20"))
    await asyncio.wait_for(waits.get(), 10)
    await slices.policy.add(
        "operator", PolicyRuleBody(Effect.DENY, Action.SUBSCRIBE, "bob", "alice/news", priority=9), now
    )
    async with asyncio.timeout(3):
        await alice.says(channel, key, b"not for bob")
        assert code(await waiting) == DENIED


async def test_rules_also_limit_how_often(slices: ChannelSlice, alice: Member, bob: Member, now: datetime) -> None:
    channel, key = await alice.keyed(policy="authz_required")
    await slices.policy.add(
        "operator", PolicyRuleBody(Effect.ALLOW, Action.PUBLISH, "bob", "alice/news", priority=9, rate="1/1h"), now
    )
    assert await bob.says(channel, key) == 1
    assert code(await bob.publishes(bob.seals(channel, key))) == (429, "rate_limited")


async def test_the_owner_sets_keys_also_where_rules_do_not_let_it_publish(
    slices: ChannelSlice, alice: Member, now: datetime
) -> None:
    await slices.policy.add("operator", PolicyRuleBody(Effect.DENY, Action.PUBLISH, "alice", "*", priority=9), now)
    channel, key = await alice.keyed(policy="authz_required")
    assert code(await alice.publishes(alice.seals(channel, key))) == DENIED


async def test_another_policy_drops_whom_it_does_not_allow_and_closes_the_epoch(
    alice: Member, bob: Member, carol: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.channels.member_removal.BATCH", 1)
    channel, key = await alice.keyed()
    for one in (alice, bob, carol):
        await one.subscribes(channel)
    await alice.allows(channel, "carol")
    changed = await alice.call("PATCH", f"/v1/channels/{channel}", {"policy": "allowlist"})
    assert (changed["total_subscribers"], changed["epoch"], changed["epoch_key_id"]) == (2, 1, None)
    assert code(await alice.publishes(alice.seals(channel, key))) == (409, "epoch_stale")
    await alice.rekeys(channel, 2)
    await bob.reads(channel, status=403)
    await carol.reads(channel)
    assert [one["subscriber_nhi"] for one in await subscribers(alice, channel)] == ["alice", "carol"]


async def test_a_channel_that_opens_gets_a_new_key_so_that_its_past_stays_closed(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed(policy="private")
    await alice.says(channel, key, b"private")
    changed = await alice.call("PATCH", f"/v1/channels/{channel}", {"policy": "open"})
    assert changed["epoch_key_id"] is None
    await bob.subscribes(channel)
    assert code(await bob.publishes(bob.seals(channel, key))) == (409, "epoch_stale")
    new = await alice.rekeys(channel, 2)
    assert await bob.says(channel, new) == 2


async def test_the_same_policy_again_looks_at_everybody_and_keeps_the_key_if_all_may_stay(
    slices: ChannelSlice, alice: Member, bob: Member, now: datetime
) -> None:
    channel, key = await alice.keyed(policy="authz_required")
    await bob.subscribes(channel)
    changed = await alice.call("PATCH", f"/v1/channels/{channel}", {"policy": "authz_required"})
    assert (changed["total_subscribers"], changed["epoch_key_id"]) == (1, str(key.key_id))
    await slices.policy.add(
        "operator", PolicyRuleBody(Effect.DENY, Action.SUBSCRIBE, "bob", "alice/news", priority=9), now
    )
    changed = await alice.call("PATCH", f"/v1/channels/{channel}", {"policy": "authz_required"})
    assert (changed["total_subscribers"], changed["epoch_key_id"]) == (0, None)


async def test_a_check_that_a_crash_interrupted_is_finished_by_the_tick(
    slices: ChannelSlice, alice: Member, bob: Member, now: datetime, connection: asyncpg.Connection
) -> None:
    channel, _ = await alice.keyed()
    await bob.subscribes(channel)
    await connection.execute("UPDATE channels SET policy = 'private', recheck_after = ''")
    await bob.reads(channel, status=403)  # whatever the check has come to
    await alice.rekeys(channel, 2)
    while await slices.channels.tidy(now):
        pass
    shown = await alice.shows(channel)
    # A key that was made before everybody was looked at may have gone to those who are dropped now.
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (0, None)


async def test_taking_a_right_away_removes_at_once(alice: Member, bob: Member, carol: Member) -> None:
    channel, key = await alice.keyed(policy="allowlist")
    await alice.allows(channel, "bob", may_publish=True)
    await alice.allows(channel, "carol")
    await bob.subscribes(channel)
    await carol.subscribes(channel)
    await alice.allows(channel, "bob", may_publish=False)
    shown = await alice.shows(channel)
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (2, None)  # bob may still read, under the next key
    new = await alice.rekeys(channel, 2)
    assert code(await bob.publishes(bob.seals(channel, new))) == DENIED
    await alice.allows(channel, "carol", may_subscribe=False)
    shown = await alice.shows(channel)
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (1, None)
    await carol.reads(channel, status=403)
    assert code(await alice.publishes(alice.seals(channel, key))) == (409, "epoch_stale")


async def test_listing_and_unlisting_who_never_had_the_key_changes_no_key(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed(policy="allowlist")
    await alice.allows(channel, "bob")
    await alice.call("DELETE", f"/v1/channels/{channel}/allowlist/bob", status=204)
    assert await alice.says(channel, key) == 1
    await alice.call("DELETE", f"/v1/channels/{channel}/allowlist/bob", status=404)


async def test_the_list_of_a_channel_with_another_policy_decides_nothing(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed(policy="open")
    await bob.subscribes(channel)
    await alice.allows(channel, "bob", may_publish=True)
    await alice.call("DELETE", f"/v1/channels/{channel}/allowlist/bob", status=204)
    assert await bob.says(channel, key) == 1
    await bob.reads(channel)


async def subscribers(member: Member, channel: UUID) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await member.call("GET", f"/v1/channels/{channel}/subscribers"))["subscribers"]
    return found
