"""The keys of a channel: who sets the next one, who is told who lacks it, and who may hand it out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from angelia.channels.model import KEY_LIFE, Channel, ChannelPolicy
from channels.conftest import ChannelSlice
from channels.members import Member, code

DENIED = (403, "authorization_denied")


async def test_of_several_who_set_the_next_key_at_once_one_is_right(alice: Member, bob: Member) -> None:
    channel = await alice.makes(policy="allowlist")
    await alice.allows(channel, "bob", may_publish=True)
    tries = [(who, str(uuid4())) for who in (alice, bob, alice, bob)]
    answers = await asyncio.gather(
        *(who.raw("POST", f"/v1/channels/{channel}/epoch", {"epoch": 1, "epoch_key_id": key}) for who, key in tries)
    )
    won = [key for (_, key), answer in zip(tries, answers, strict=True) if answer.status_code == 200]
    assert len(won) == 1
    for answer in answers:
        if answer.status_code != 200:
            assert code(answer) == (409, "version_conflict")
            assert (answer.json()["epoch"], answer.json()["epoch_key_id"]) == (1, won[0])


async def test_an_epoch_follows_the_one_before_and_saying_it_again_is_no_error(alice: Member) -> None:
    channel, key = await alice.keyed(policy="private")
    url = f"/v1/channels/{channel}/epoch"
    again = await alice.call("POST", url, {"epoch": 1, "epoch_key_id": str(key.key_id)})
    assert again["epoch_key_id"] == str(key.key_id)
    for epoch in (1, 3, 4):
        assert code(await alice.raw("POST", url, {"epoch": epoch, "epoch_key_id": str(uuid4())}))[0] == 409
    for bad in ({"epoch": 0, "epoch_key_id": str(uuid4())}, {"epoch": 2}, {"epoch": 2, "epoch_key_id": "x"}):
        assert code(await alice.raw("POST", url, bad))[0] == 400


async def test_an_absent_owner_stops_nobody_who_may_publish(alice: Member, bob: Member, carol: Member) -> None:
    channel, _ = await alice.keyed(policy="allowlist", allowlist_nhis=["carol"])
    await alice.allows(channel, "bob", may_publish=True)
    await carol.subscribes(channel)
    await alice.call("DELETE", f"/v1/channels/{channel}/allowlist/carol", status=204)
    new = await bob.rekeys(channel, 2)
    assert await bob.says(channel, new) == 1


async def test_who_may_not_publish_sets_no_key_and_learns_no_names(alice: Member, bob: Member) -> None:
    channel, _ = await alice.keyed(policy="allowlist", allowlist_nhis=["bob"])
    await bob.subscribes(channel)
    body = {"epoch": 2, "epoch_key_id": str(uuid4())}
    assert code(await bob.raw("POST", f"/v1/channels/{channel}/epoch", body)) == DENIED
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/subscribers")) == DENIED
    sent = {"epoch": 1, "subscribers": ["bob"]}
    assert code(await bob.raw("POST", f"/v1/channels/{channel}/keys", sent)) == DENIED


async def test_in_an_open_channel_only_the_owner_sets_keys(alice: Member, bob: Member) -> None:
    """Anybody may publish in it, so anybody could make all others take new keys."""
    channel, key = await alice.keyed()
    await bob.subscribes(channel)
    body = {"epoch": 2, "epoch_key_id": str(uuid4())}
    assert code(await bob.raw("POST", f"/v1/channels/{channel}/epoch", body)) == DENIED
    assert (await bob.shows(channel))["epoch_key_id"] == str(key.key_id)
    # To hand out the present key is everybody's who listens.
    await bob.call("GET", f"/v1/channels/{channel}/subscribers")


async def test_strangers_do_not_learn_who_listens_to_an_open_channel(alice: Member, bob: Member) -> None:
    channel, _ = await alice.keyed()
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/subscribers")) == DENIED


async def test_a_joiner_lacks_the_key_until_somebody_says_that_it_was_sent(
    alice: Member, bob: Member, carol: Member
) -> None:
    channel, _ = await alice.keyed()
    await bob.subscribes(channel)
    await carol.subscribes(channel)
    assert await lacking(alice, channel) == ["bob", "carol"]
    assert (await alice.shows(channel))["without_key"] == 2
    noted = {"epoch": 1, "subscribers": ["bob", "nobody"]}
    assert await alice.call("POST", f"/v1/channels/{channel}/keys", noted) == {"noted": 1}
    assert await lacking(alice, channel) == ["carol"]
    late = {"epoch": 2, "subscribers": ["carol"]}
    assert code(await alice.raw("POST", f"/v1/channels/{channel}/keys", late)) == (409, "version_conflict")
    await alice.rekeys(channel, 2)
    assert await lacking(alice, channel) == ["bob", "carol"]


async def test_whoever_sets_a_key_has_it(alice: Member) -> None:
    channel = await alice.makes(policy="private")
    await alice.subscribes(channel)
    await alice.rekeys(channel, 1)
    assert await lacking(alice, channel) == []


async def test_subscribers_come_in_pages_by_name(alice: Member, bob: Member, carol: Member) -> None:
    channel, _ = await alice.keyed()
    for one in (carol, bob, alice):
        await one.subscribes(channel)
    first = await alice.call("GET", f"/v1/channels/{channel}/subscribers?limit=2")
    assert ([one["subscriber_nhi"] for one in first["subscribers"]], first["next"]) == (["alice", "bob"], "bob")
    rest = await alice.call("GET", f"/v1/channels/{channel}/subscribers?limit=2&cursor=bob")
    assert ([one["subscriber_nhi"] for one in rest["subscribers"]], rest["next"]) == (["carol"], None)


async def test_a_subscriber_can_ask_from_whom_a_key_may_come(alice: Member, bob: Member, carol: Member) -> None:
    channel, _ = await alice.keyed(policy="allowlist", allowlist_nhis=["carol"])
    await alice.allows(channel, "bob", may_publish=True)
    url = f"/v1/channels/{channel}/publishers"
    told = {name: (await carol.call("GET", f"{url}/{name}"))["may_give_key"] for name in ("alice", "bob", "carol")}
    assert told == {"alice": True, "bob": True, "carol": False}
    assert (await carol.call("GET", f"{url}/{bob.id}"))["nhi"] == "bob"
    private, _ = await alice.keyed("private", "private")
    assert code(await carol.raw("GET", f"/v1/channels/{private}/publishers/alice")) == (404, "not_found")


# Who holds keys without listening.


async def test_the_owner_and_whoever_makes_a_key_are_offered_the_next_without_listening(
    alice: Member, bob: Member, carol: Member
) -> None:
    channel, _ = await alice.keyed(policy="allowlist", allowlist_nhis=["carol"])
    await alice.allows(channel, "bob", may_subscribe=False, may_publish=True)
    assert (await bob.shows(channel))["key_epoch"] is None
    await bob.rekeys(channel, 2)
    assert ((await bob.shows(channel))["key_epoch"], (await bob.shows(channel))["subscription"]) == (2, None)
    assert await lacking(bob, channel) == ["alice"]
    await alice.rekeys(channel, 3)
    assert await lacking(alice, channel) == ["bob"]
    assert ((await alice.shows(channel))["without_key"], (await bob.shows(channel))["without_key"]) == (1, 1)
    noted = {"epoch": 3, "subscribers": ["bob"]}
    assert await alice.call("POST", f"/v1/channels/{channel}/keys", noted) == {"noted": 1}
    # Neither of them listens.
    shown = await alice.shows(channel)
    assert (shown["total_subscribers"], shown["subscription"]) == (0, None)
    assert (await alice.call("GET", f"/v1/channels/{channel}/subscribers"))["subscribers"] == []
    for one in (alice, bob):
        await one.reads(channel, status=403)
        await one.commits(channel, 0, status=403)
        for verb in ("pause", "resume"):
            assert code(await one.raw("POST", f"/v1/channels/{channel}/{verb}")) == (404, "not_found")
        listed = await one.call("GET", "/v1/channels?subscribed=true")
        assert listed["channels"] == []


async def test_who_may_publish_is_told_how_many_lack_the_key_whether_it_listens_or_not(
    alice: Member, bob: Member, carol: Member
) -> None:
    channel, _ = await alice.keyed(policy="allowlist", allowlist_nhis=["carol"])
    await alice.allows(channel, "bob", may_subscribe=False, may_publish=True)
    await carol.subscribes(channel)
    assert [(await one.shows(channel))["without_key"] for one in (alice, bob, carol)] == [1, 1, None]
    opened, _ = await alice.keyed("open", "open")
    await carol.subscribes(opened)
    assert [(await one.shows(opened))["without_key"] for one in (alice, bob, carol)] == [1, None, 1]


async def test_to_subscribe_makes_a_publisher_a_listener_and_an_owner_who_leaves_is_still_sent_the_keys(
    alice: Member, bob: Member
) -> None:
    channel, _ = await alice.keyed(policy="allowlist")
    await alice.allows(channel, "bob", may_publish=True)
    await bob.rekeys(channel, 2)
    for one in (alice, bob):
        assert (await one.subscribes(channel))["status"] == "active"
    assert (await alice.shows(channel))["total_subscribers"] == 2
    left = [(await one.call("POST", f"/v1/channels/{channel}/unsubscribe"))["status"] for one in (alice, bob)]
    assert left == ["publishing", "deleted"]
    assert (await alice.shows(channel))["total_subscribers"] == 0
    await bob.rekeys(channel, 3)
    assert await lacking(bob, channel) == ["alice"]


async def test_a_publisher_without_its_right_is_offered_nothing_and_the_epoch_closes(
    alice: Member, bob: Member
) -> None:
    channel, _ = await alice.keyed(policy="allowlist")
    await alice.allows(channel, "bob", may_subscribe=False, may_publish=True)
    await bob.rekeys(channel, 2)
    await alice.allows(channel, "bob", may_subscribe=True, may_publish=False)
    assert (await alice.shows(channel))["epoch_key_id"] is None
    await alice.rekeys(channel, 3)
    assert await lacking(alice, channel) == []
    assert (await bob.shows(channel))["key_epoch"] is None


async def test_another_policy_drops_publishers_too(alice: Member, bob: Member) -> None:
    channel, _ = await alice.keyed(policy="allowlist")
    await alice.allows(channel, "bob", may_subscribe=False, may_publish=True)
    await bob.rekeys(channel, 2)
    await alice.call("PATCH", f"/v1/channels/{channel}", {"policy": "private"})
    await alice.rekeys(channel, 3)
    assert await lacking(alice, channel) == []
    await bob.shows(channel, status=404)


async def test_who_may_no_longer_listen_but_publish_goes_on_as_a_publisher(alice: Member, bob: Member) -> None:
    channel, _ = await alice.keyed(policy="allowlist")
    await alice.allows(channel, "bob", may_publish=True)
    await bob.subscribes(channel)
    await alice.allows(channel, "bob", may_subscribe=False, may_publish=True)
    shown = await alice.shows(channel)
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (0, None)
    await bob.reads(channel, status=403)
    await alice.rekeys(channel, 2)
    assert await lacking(alice, channel) == ["bob"]


# What a subscriber says of its own key.


async def test_in_an_open_channel_a_key_that_its_subscriber_confirms_is_offered_no_more(
    alice: Member, bob: Member, carol: Member
) -> None:
    channel, _ = await alice.keyed()
    await bob.subscribes(channel)
    await carol.subscribes(channel)
    own, sent = f"/v1/channels/{channel}/key", {"epoch": 1, "subscribers": ["bob"]}
    assert (await bob.call("POST", own, {"epoch": 0}))["key_epoch"] == 0
    await carol.call("POST", f"/v1/channels/{channel}/keys", sent)
    assert await lacking(carol, channel) == ["bob", "carol"]
    assert (await bob.call("POST", own, {"epoch": 1}))["key_epoch"] == 1
    assert await lacking(carol, channel) == ["carol"]
    # From then on the word of others counts again, and to confirm is no way to ask the oftener.
    await alice.rekeys(channel, 2)
    assert await carol.call("POST", f"/v1/channels/{channel}/keys", {**sent, "epoch": 2}) == {"noted": 1}
    assert (await bob.call("POST", own, {"epoch": 0}))["key_epoch"] == 2


async def test_only_the_present_key_is_confirmed_and_only_by_who_holds_it(alice: Member, bob: Member) -> None:
    channel, _ = await alice.keyed()
    own = f"/v1/channels/{channel}/key"
    assert code(await bob.raw("POST", own, {"epoch": 1})) == (404, "not_found")
    await bob.subscribes(channel)
    assert code(await bob.raw("POST", own, {"epoch": 2})) == (409, "version_conflict")
    assert code(await bob.raw("POST", own, {"epoch": -1}))[0] == 400


async def test_a_publisher_asks_for_the_key_without_becoming_a_listener(alice: Member, bob: Member) -> None:
    channel, _ = await alice.keyed(policy="allowlist")
    await alice.allows(channel, "bob", may_publish=True)
    await bob.rekeys(channel, 2)
    assert (await bob.call("POST", f"/v1/channels/{channel}/key", {"epoch": 0}))["status"] == "publishing"
    assert await lacking(alice, channel) == ["alice", "bob"]


# Keys of before.


async def test_the_ids_of_earlier_keys_are_told_to_who_may_see_the_channel(
    alice: Member, bob: Member, carol: Member
) -> None:
    channel, first = await alice.keyed(policy="allowlist", allowlist_nhis=["carol"])
    await alice.allows(channel, "bob", may_publish=True)
    second = await bob.rekeys(channel, 2)
    url = f"/v1/channels/{channel}/epochs"
    told = [await carol.call("GET", f"{url}/{number}") for number in (1, 2)]
    assert [(one["epoch"], one["key_id"], one["made_by"]) for one in told] == [
        (1, str(first.key_id), "alice"),
        (2, str(second.key_id), "bob"),
    ]
    assert code(await carol.raw("GET", f"{url}/3")) == (404, "not_found")
    for bad in ("0", "-1", "x", "01", "9" * 20):
        assert code(await carol.raw("GET", f"{url}/{bad}"))[0] == 400
    private, _ = await alice.keyed("private", "private")
    assert code(await carol.raw("GET", f"/v1/channels/{private}/epochs/1")) == (404, "not_found")


async def test_ids_of_keys_are_forgotten_when_nothing_under_them_can_be_read(
    slices: ChannelSlice, alice: Member, now: datetime
) -> None:
    channel, _ = await alice.keyed(policy="private")
    await alice.rekeys(channel, 2)
    url = f"/v1/channels/{channel}/epochs"
    await slices.channels.tidy(now + timedelta(days=30))
    await alice.call("GET", f"{url}/1")
    await slices.channels.tidy(now + timedelta(days=31, hours=1))
    await alice.call("GET", f"{url}/1", status=404)
    await alice.call("GET", f"{url}/2")


NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ({"epoch_key_id": None, "epoch_at": None}, True),
        ({}, False),
        ({"left_at": NOON}, False),
        ({"left_at": NOON, "epoch_at": NOON - KEY_LIFE}, True),
        ({"left_at": NOON, "epoch_at": NOON - KEY_LIFE + timedelta(seconds=1)}, False),
        ({"epoch_at": NOON - timedelta(days=300)}, False),
        ({"left_at": NOON, "epoch_at": NOON - KEY_LIFE, "policy": ChannelPolicy.OPEN}, False),
        ({"policy": ChannelPolicy.OPEN, "epoch_key_id": None}, True),
    ],
)
def test_a_key_is_due_when_there_is_none_or_when_somebody_left_and_it_is_a_day_old(
    values: dict[str, object], due: bool
) -> None:
    fields: dict[str, object] = {
        "channel_id": uuid4(),
        "owner_nhi": "alice",
        "channel_name": "news",
        "policy": ChannelPolicy.ALLOWLIST,
        "retention_seconds": 3600,
        "max_message_size_bytes": 8192,
        "max_subscribers": 10,
        "epoch": 1,
        "epoch_key_id": uuid4(),
        "epoch_at": NOON,
        "left_at": None,
        "first_offset": 1,
        "next_offset": 1,
        "total_messages": 0,
        "total_subscribers": 0,
        "created_at": NOON,
        "updated_at": NOON,
    }
    assert Channel(**(fields | values)).key_is_due(NOON) is due  # type: ignore[arg-type]


async def lacking(member: Member, channel: UUID) -> list[str]:
    found = await member.call("GET", f"/v1/channels/{channel}/subscribers?without_key=true")
    return [one["subscriber_nhi"] for one in found["subscribers"]]
