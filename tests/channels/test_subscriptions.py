"""Joining and leaving: counted exactly, bounded, repeatable, and no way to make others work."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import asyncpg
import pytest

from channels.conftest import ChannelSlice
from channels.members import Member, code
from http_agents import Server


async def test_subscribing_twice_is_one_subscription(alice: Member, bob: Member) -> None:
    channel = await alice.makes()
    first = await bob.subscribes(channel)
    assert await bob.subscribes(channel, status=200) == first
    assert (await alice.shows(channel))["total_subscribers"] == 1


async def test_whoever_leaves_may_come_back_and_begins_at_the_end(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed()
    first = await bob.subscribes(channel)
    left = await bob.call("POST", f"/v1/channels/{channel}/unsubscribe")
    assert left["status"] == "deleted"
    assert (await bob.call("POST", f"/v1/channels/{channel}/unsubscribe"))["status"] == "deleted"
    assert (await alice.shows(channel))["total_subscribers"] == 0
    await bob.reads(channel, status=403)
    await alice.says(channel, key)
    again = await bob.subscribes(channel)
    assert (again["subscription_id"], again["last_offset"]) == (first["subscription_id"], 1)
    assert (await alice.shows(channel))["total_subscribers"] == 1


async def test_there_is_nothing_to_leave_pause_or_resume_for_others(alice: Member, bob: Member) -> None:
    channel = await alice.makes()
    for verb in ("unsubscribe", "pause", "resume"):
        assert code(await bob.raw("POST", f"/v1/channels/{channel}/{verb}")) == (404, "not_found")
    await bob.subscribes(channel)
    await bob.call("POST", f"/v1/channels/{channel}/unsubscribe")
    for verb in ("pause", "resume"):  # neither brings it back
        assert code(await bob.raw("POST", f"/v1/channels/{channel}/{verb}")) == (404, "not_found")


async def test_who_has_no_keys_cannot_be_given_one_and_so_cannot_subscribe(server: Server, alice: Member) -> None:
    channel = await alice.makes()
    keyless = Member()
    keyless.server = server
    await keyless.claim(server, "keyless")
    assert code(await keyless.raw("POST", f"/v1/channels/{channel}/subscribe")) == (404, "key_not_found")


async def test_a_channel_takes_so_many_and_no_more_however_they_race(server: Server, alice: Member) -> None:
    channel = await alice.makes(max_subscribers=3)
    members = [await Member.joined(server, f"m{number}") for number in range(8)]
    answers = await asyncio.gather(*(one.raw("POST", f"/v1/channels/{channel}/subscribe") for one in members))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [409] * 5
    assert (await alice.shows(channel))["total_subscribers"] == 3
    inside = members[[answer.status_code for answer in answers].index(201)]
    outside = members[[answer.status_code for answer in answers].index(409)]
    await inside.call("POST", f"/v1/channels/{channel}/unsubscribe")
    await outside.subscribes(channel)


async def test_joining_and_leaving_at_once_keeps_the_count(
    alice: Member, bob: Member, carol: Member, connection: asyncpg.Connection
) -> None:
    channel = await alice.makes()

    async def restless(who: Member) -> None:
        for verb in ("subscribe", "unsubscribe") * 4:
            await who.raw("POST", f"/v1/channels/{channel}/{verb}")

    await asyncio.gather(*(restless(who) for who in (bob, carol, bob, carol)))
    real = await connection.fetchval("SELECT count(*) FROM channel_subscriptions WHERE status IN ('active', 'paused')")
    assert (await alice.shows(channel))["total_subscribers"] == real


async def test_joining_and_leaving_in_a_loop_changes_no_key_and_asks_for_none(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed(policy="allowlist", allowlist_nhis=["bob"])
    await bob.subscribes(channel)
    await alice.call("POST", f"/v1/channels/{channel}/keys", {"epoch": 1, "subscribers": ["bob"]})
    for _ in range(5):
        await bob.call("POST", f"/v1/channels/{channel}/unsubscribe")
        await bob.subscribes(channel)
    shown = await alice.shows(channel)
    assert (shown["epoch"], shown["epoch_key_id"], shown["without_key"]) == (1, str(key.key_id), 0)
    assert shown["left_at"] is not None  # the next key comes when this one is a day old
    await alice.rekeys(channel, 2)
    assert (await alice.shows(channel))["left_at"] is None


@pytest.mark.parametrize(("policy", "noted"), [("open", False), ("allowlist", True)])
async def test_a_leave_is_noted_where_a_key_could_keep_somebody_out(
    alice: Member, bob: Member, policy: str, noted: bool
) -> None:
    channel, _ = await alice.keyed(policy=policy, allowlist_nhis=["bob"])
    await bob.subscribes(channel)
    await bob.call("POST", f"/v1/channels/{channel}/unsubscribe")
    assert ((await alice.shows(channel))["left_at"] is not None) is noted


async def test_a_lost_key_may_be_asked_for_once_an_hour(
    slices: ChannelSlice, alice: Member, bob: Member, now: datetime
) -> None:
    channel, _ = await alice.keyed()
    await bob.subscribes(channel)
    agent, sent = await slices.agents.named("bob"), {"epoch": 1, "subscribers": ["bob"]}

    async def asked(later: timedelta) -> int:
        await alice.call("POST", f"/v1/channels/{channel}/keys", sent)
        held, _ = await slices.channels.subscribe(agent, channel, now + later, needs_key=True)
        return held.key_epoch

    assert await asked(timedelta(0)) == 0
    assert (await alice.shows(channel))["without_key"] == 1
    assert await asked(timedelta(minutes=59)) == 1
    assert await asked(timedelta(minutes=61)) == 0


async def test_in_an_open_channel_a_stranger_cannot_keep_the_key_from_others(
    alice: Member, bob: Member, carol: Member
) -> None:
    channel, _ = await alice.keyed()
    await bob.subscribes(channel)
    await carol.subscribes(channel)
    lie = {"epoch": 1, "subscribers": ["bob"]}
    assert await carol.call("POST", f"/v1/channels/{channel}/keys", lie) == {"noted": 1}
    assert (await bob.subscribes(channel, status=200, needs_key=True))["key_epoch"] == 0
    assert await carol.call("POST", f"/v1/channels/{channel}/keys", lie) == {"noted": 0}
    assert (await alice.shows(channel))["without_key"] == 2
    assert await alice.call("POST", f"/v1/channels/{channel}/keys", lie) == {"noted": 1}
