"""The life of a channel: made once by name, seen by those who may, changed and deleted by its owner only."""

from __future__ import annotations

import re
from datetime import datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect
from channels.conftest import ChannelSlice
from channels.members import Member, code
from http_agents import Server


async def test_a_channel_is_made_with_the_defaults_of_the_contract(alice: Member) -> None:
    made = await alice.call("POST", "/v1/channels", {"channel_name": "news", "policy": "open"}, status=201)
    values = {name: made[name] for name in ("owner_nhi", "channel_name", "policy", "epoch", "epoch_key_id")}
    assert values == {
        "owner_nhi": "alice",
        "channel_name": "news",
        "policy": "open",
        "epoch": 0,
        "epoch_key_id": None,
    }
    limits = (made["retention_seconds"], made["max_message_size_bytes"], made["max_subscribers"])
    assert limits == (604_800, 1_048_576, 10_000)
    assert (made["first_offset"], made["next_offset"], made["total_messages"], made["total_subscribers"]) == (
        1,
        1,
        0,
        0,
    )


async def test_an_owner_has_a_name_once_and_others_have_it_too(alice: Member, bob: Member) -> None:
    await alice.makes("news")
    again = await alice.raw("POST", "/v1/channels", {"channel_name": "news", "policy": "private"})
    assert code(again) == (409, "already_exists")
    await bob.makes("news")


@pytest.mark.parametrize(
    "values",
    [
        {"channel_name": ""},
        {"channel_name": "News"},
        {"channel_name": "new\n"},
        {"channel_name": "/news"},
        {"channel_name": "n" * 65},
        {"channel_name": "näws"},
        {"policy": "everybody"},
        {"retention_seconds": 60},
        {"retention_seconds": 2_592_001},
        {"max_message_size_bytes": 100},
        {"max_message_size_bytes": 1 << 21},
        {"max_subscribers": 0},
        {"max_subscribers": 100_001},
        {"max_subscribers": 1 << 40},
        {"epoch": 3},
        {"allowlist_nhis": ["bob"] * 101},
    ],
)
async def test_what_no_channel_can_be_is_refused(alice: Member, values: dict[str, object]) -> None:
    answer = await alice.raw("POST", "/v1/channels", {"channel_name": "news", "policy": "open", **values})
    assert code(answer) == (400, "invalid_argument")


async def test_a_listed_agent_must_exist(alice: Member) -> None:
    body = {"channel_name": "news", "policy": "allowlist", "allowlist_nhis": ["nobody"]}
    assert code(await alice.raw("POST", "/v1/channels", body)) == (404, "not_found")


async def test_who_has_no_keys_has_no_channel(server: Server) -> None:
    keyless = Member()
    keyless.server = server
    await keyless.claim(server, "keyless")
    answer = await keyless.raw("POST", "/v1/channels", {"channel_name": "news", "policy": "open"})
    assert code(answer) == (404, "key_not_found")


async def test_channels_that_rules_decide_about_are_listed_for_whom_they_allow(
    slices: ChannelSlice, alice: Member, bob: Member, carol: Member, now: datetime
) -> None:
    await alice.makes("ruled", "authz_required")
    for who in ("bob", "alice"):
        for action in (Action.SUBSCRIBE, Action.PUBLISH):
            await slices.policy.add(
                "operator", PolicyRuleBody(Effect.DENY, action, who, "alice/ruled", priority=9), now
            )
    assert [await names(one) for one in (alice, bob, carol)] == [["ruled"], [], ["ruled"]]


async def test_everybody_sees_what_it_may_use_and_to_others_there_is_nothing(
    alice: Member, bob: Member, carol: Member
) -> None:
    opened = await alice.makes("open")
    private = await alice.makes("private", "private")
    listed = await alice.makes("listed", "allowlist", allowlist_nhis=["bob"])
    assert await names(alice) == ["open", "private", "listed"]
    assert await names(bob) == ["open", "listed"]
    assert await names(carol) == ["open"]
    for channel, seen in ((opened, 200), (private, 404), (listed, 404)):
        await carol.shows(channel, status=seen)
    await bob.shows(listed)
    assert await names(bob, "?owner=alice&name=listed") == ["listed"]
    assert await names(carol, "?owner=alice&name=listed") == []
    await bob.subscribes(listed)
    assert await names(bob, "?subscribed=true") == ["listed"]


async def test_a_list_comes_in_pages(alice: Member) -> None:
    for number in range(5):
        await alice.makes(f"c{number}")
    seen, cursor = [], ""
    while True:
        page = await alice.call("GET", f"/v1/channels?limit=2{cursor}")
        seen += [one["channel_name"] for one in page["channels"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == [f"c{number}" for number in range(5)]


async def test_what_a_channel_allows_is_told_to_each(alice: Member, bob: Member) -> None:
    channel = await alice.makes(policy="allowlist", allowlist_nhis=["bob"])
    shown = await bob.shows(channel)
    assert (shown["may_subscribe"], shown["may_publish"], shown["subscription"]) == (True, False, None)
    assert shown["without_key"] is None
    shown = await alice.shows(channel)
    assert (shown["may_subscribe"], shown["may_publish"], shown["without_key"]) == (True, True, 0)


async def test_only_its_owner_changes_and_deletes_a_channel(alice: Member, bob: Member) -> None:
    channel = await alice.makes()
    for method, path, body in (
        ("PATCH", "", {"max_subscribers": 1}),
        ("DELETE", "", None),
        ("PUT", "/allowlist/bob", {}),
        ("DELETE", "/allowlist/bob", None),
        ("GET", "/allowlist", None),
    ):
        answer = await bob.raw(method, f"/v1/channels/{channel}{path}", body)
        assert code(answer) == (403, "authorization_denied"), path
    changed = await alice.call("PATCH", f"/v1/channels/{channel}", {"max_subscribers": 7, "retention_seconds": 3600})
    assert (changed["max_subscribers"], changed["retention_seconds"], changed["policy"]) == (7, 3600, "open")


async def test_to_outsiders_there_is_no_channel_whatever_they_try(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed("secret", "private")
    url, large = f"/v1/channels/{channel}", bob.seals(channel, key, b"x" * 5000)
    late = bob.seals(channel, key, created_at=1_000_000)
    answers = [
        await bob.raw("GET", url),
        await bob.raw("PATCH", url, {"retention_seconds": 3600}),
        await bob.raw("DELETE", url),
        await bob.raw("GET", f"{url}/allowlist"),
        await bob.raw("PUT", f"{url}/allowlist/bob", {}),
        await bob.raw("DELETE", f"{url}/allowlist/bob"),
        *[await bob.raw("POST", f"{url}/{verb}") for verb in ("subscribe", "unsubscribe", "pause", "resume")],
        *[await bob.publishes(one) for one in (bob.seals(channel, key), large, late)],
        await bob.raw("GET", f"{url}/messages"),
        await bob.raw("GET", f"{url}/stream"),
        await bob.raw("POST", f"{url}/commit", {"offset": 999}),
        await bob.raw("POST", f"{url}/epoch", {"epoch": 2, "epoch_key_id": str(key.key_id)}),
        await bob.raw("POST", f"{url}/keys", {"epoch": 1, "subscribers": []}),
        await bob.raw("POST", f"{url}/key", {"epoch": 1}),
        await bob.raw("GET", f"{url}/subscribers"),
        await bob.raw("GET", f"{url}/publishers/alice"),
        await bob.raw("GET", f"{url}/epochs/1"),
    ]
    for answer in answers:
        assert code(answer) == (404, "not_found"), answer.request.url
        assert not {"alice", "secret"} & set(re.split(r"\W+", f"{answer.json()['title']} {answer.json().get('hint')}"))


@pytest.mark.parametrize(
    "bad", ["x", "2B9A7BD4-1FBB-4E82-A361-D3ADDCBFB838", "78921cac99f94ad09250e058198d81d5", "%00", "..%2f"]
)
async def test_a_channel_is_named_by_its_id_in_one_spelling(alice: Member, bad: str) -> None:
    answer = await alice.raw("GET", f"/v1/channels/{bad}")
    assert answer.status_code == 400


async def test_there_is_nothing_in_a_channel_that_is_not(alice: Member) -> None:
    nowhere = f"/v1/channels/{uuid4()}"
    for method, path, body in (
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("POST", "/subscribe", None),
        ("POST", "/unsubscribe", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/commit", {"offset": 0}),
        ("GET", "/messages", None),
        ("GET", "/stream", None),
        ("POST", "/epoch", {"epoch": 1, "epoch_key_id": str(uuid4())}),
        ("POST", "/keys", {"epoch": 1, "subscribers": []}),
        ("POST", "/key", {"epoch": 1}),
        ("GET", "/epochs/1", None),
        ("GET", "/subscribers", None),
        ("GET", "/publishers/alice", None),
        ("GET", "/allowlist", None),
        ("PUT", "/allowlist/alice", {}),
        ("DELETE", "/allowlist/alice", None),
    ):
        answer = await alice.raw(method, nowhere + path, body)
        assert code(answer) == (404, "not_found"), path


async def test_a_refusal_names_the_next_step(alice: Member, bob: Member, carol: Member) -> None:
    channel, key = await alice.keyed(max_subscribers=1, max_message_size_bytes=8192)
    url, once = f"/v1/channels/{channel}", uuid4()
    await carol.subscribes(channel)
    await carol.says(channel, key, message_id=once)
    other, _ = await alice.keyed("other")
    refusals = [
        await bob.raw("POST", f"{url}/subscribe"),
        await bob.raw("DELETE", url),
        await bob.raw("GET", f"{url}/subscribers"),
        await alice.raw("DELETE", f"{url}/allowlist/bob"),
        await alice.raw("PATCH", url, {"retention_seconds": 1}),
        await carol.raw("POST", f"{url}/commit", {"offset": 9}),
        await carol.publishes(carol.seals(channel, key, b"x" * 9000)),
        await carol.publishes(carol.seals(channel, key), other),
        await carol.publishes(carol.seals(channel, key, b"another", message_id=once)),
        await alice.raw("POST", "/v1/channels", {"channel_name": "news", "policy": "open"}),
    ]
    for refusal in refusals:
        assert refusal.status_code >= 400
        assert refusal.json().get("hint"), refusal.text


async def test_a_deleted_channel_is_gone_at_once_and_its_rows_soon(
    slices: ChannelSlice,
    alice: Member,
    bob: Member,
    now: datetime,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("angelia.channels.service.BATCH", 2)
    channel, key = await alice.keyed(policy="allowlist", allowlist_nhis=["bob"])
    kept, kept_key = await alice.keyed("kept")
    await alice.says(kept, kept_key)
    await bob.subscribes(channel)
    for _ in range(3):
        await alice.says(channel, key)
    await alice.call("DELETE", f"/v1/channels/{channel}", status=204)
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/messages")) == (404, "not_found")
    assert code(await alice.publishes(alice.seals(channel, key))) == (404, "not_found")
    await alice.call("DELETE", f"/v1/channels/{channel}", status=404)
    await alice.makes("news", "open")  # the name is free again
    while await slices.channels.tidy(now):
        pass
    tables = ("channel_messages", "channel_subscriptions", "channel_allowlist", "channel_epochs", "channel_rosters")
    for table in tables:
        assert await connection.fetchval(f"SELECT count(*) FROM {table} WHERE channel_id = $1", channel) == 0  # noqa: S608
    assert await connection.fetchval("SELECT count(*) FROM channel_remains") == 0
    assert (await alice.shows(kept))["total_messages"] == 1
    assert await connection.fetchval("SELECT count(*) FROM channel_messages") == 1


async def test_every_act_is_in_the_audit(alice: Member, bob: Member, connection: asyncpg.Connection) -> None:
    channel = await alice.makes()
    await bob.subscribes(channel)
    await bob.call("POST", f"/v1/channels/{channel}/unsubscribe")
    await bob.subscribes(channel)
    await alice.call("PATCH", f"/v1/channels/{channel}", {"policy": "private"})
    await alice.call("DELETE", f"/v1/channels/{channel}", status=204)
    rows = await connection.fetch(
        "SELECT event_type, actor_nhi, detail->>'channel_id' AS id FROM audit_events"
        " WHERE event_type ~ '^(channel|.*subscribed)' ORDER BY xid, occurred_at"
    )
    assert [(row["event_type"], row["actor_nhi"]) for row in rows] == [
        ("channel_created", "alice"),
        ("subscribed", "bob"),
        ("unsubscribed", "bob"),
        ("subscribed", "bob"),
        ("channel_policy_changed", "alice"),
        ("unsubscribed", "alice"),
        ("channel_deleted", "alice"),
    ]
    assert {UUID(row["id"]) for row in rows} == {channel}


async def test_strangers_are_told_nothing_without_a_credential(alice: Member) -> None:
    channel = await alice.makes()
    for path in ("/v1/channels", f"/v1/channels/{channel}", f"/v1/channels/{channel}/messages"):
        assert (await alice.server.get(path)).status_code == 401


async def names(member: Member, query: str = "") -> list[str]:
    return [one["channel_name"] for one in (await member.call("GET", f"/v1/channels{query}"))["channels"]]
