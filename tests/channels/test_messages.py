"""Publishing and reading: every message once, at a dense offset, in one order, for those who may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from angelia.channels import reading
from angelia.channels.api import ChannelReadQuery
from angelia.envelope import json_form, wire
from angelia.envelope.ids import KeyType
from angelia.envelope.refusals import OpenFailed
from angelia.envelope.sealing import EpochKey, Letter, seal, unseal_post
from angelia.envelope.wire import Envelope
from angelia.errors import OffsetGone
from channels.conftest import ChannelSlice
from channels.members import Member, code
from http_agents import HOST, Server
from keyholder import KeyHolder, now_ms
from probe_edge import listening
from store_probes import until_blocked

STALE = (409, "epoch_stale")


async def test_what_one_publishes_the_others_read_in_order_and_commit(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed()
    await bob.subscribes(channel)
    assert [await alice.says(channel, key, b"%d" % number) for number in range(3)] == [1, 2, 3]
    assert await bob.hears(channel, key) == [(1, b"0"), (2, b"1"), (3, b"2")]
    assert (await bob.commits(channel, 2))["last_offset"] == 2
    assert await bob.hears(channel, key) == [(3, b"2")]
    shown = await bob.shows(channel)
    assert (shown["total_messages"], shown["first_offset"], shown["next_offset"]) == (3, 1, 4)
    assert shown["subscription"]["last_consumed_at"] is not None


async def test_an_envelope_may_come_as_bytes(alice: Member) -> None:
    channel, key = await alice.keyed()
    await alice.subscribes(channel)
    answer = await alice.publishes_bytes(alice.seals(channel, key, b"bytes"))
    assert answer.status_code == 201, answer.text
    assert await alice.hears(channel, key) == [(1, b"bytes")]


async def test_a_subscriber_begins_at_the_end_and_may_look_further_back(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed()
    await alice.says(channel, key, b"before")
    assert (await bob.subscribes(channel))["last_offset"] == 1
    await alice.says(channel, key, b"after")
    assert await bob.hears(channel, key) == [(2, b"after")]
    assert await bob.hears(channel, key, "?after_offset=0") == [(1, b"before"), (2, b"after")]


async def test_the_same_bytes_twice_are_one_message_and_get_the_first_answer(alice: Member) -> None:
    channel, key = await alice.keyed()
    envelope = alice.seals(channel, key)
    first, second = await alice.publishes(envelope), await alice.publishes(envelope)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert (await alice.shows(channel))["total_messages"] == 1


async def test_the_same_bytes_many_times_at_once_are_one_message(alice: Member) -> None:
    channel, key = await alice.keyed()
    envelope = alice.seals(channel, key)
    answers = await asyncio.gather(*(alice.publishes(envelope) for _ in range(12)))
    assert sorted(answer.status_code for answer in answers) == [200] * 11 + [201]
    assert {answer.json()["offset"] for answer in answers} == {1}
    assert (await alice.shows(channel))["next_offset"] == 2


async def test_another_message_under_a_used_id_is_refused_and_the_first_stands(
    alice: Member, bob: Member, connection: asyncpg.Connection
) -> None:
    channel, key = await alice.keyed()
    await alice.subscribes(channel)
    used = uuid4()
    await alice.says(channel, key, b"first", message_id=used)
    answer = await alice.publishes(alice.seals(channel, key, b"second", message_id=used))
    assert code(answer) == (409, "message_id_conflict")
    assert await alice.hears(channel, key) == [(1, b"first")]
    # An id is its sender's own: another may use the same one.
    assert await bob.says(channel, key, message_id=used) == 2
    assert "message_id_conflict" in await audited(connection)


async def test_two_publishers_at_once_give_dense_offsets_and_lose_nothing(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed()
    other, other_key = await alice.keyed("other")
    await alice.subscribes(channel)

    async def burst(who: Member, number: int) -> tuple[int, int]:
        mine = await who.says(channel, key, b"%s %d" % (who.handle.encode(), number))
        return mine, await who.says(other, other_key)

    both = await asyncio.gather(*(burst(who, number) for number in range(20) for who in (alice, bob)))
    assert sorted(mine for mine, _ in both) == list(range(1, 41))
    assert sorted(others for _, others in both) == list(range(1, 41))
    heard = await alice.hears(channel, key)
    assert [offset for offset, _ in heard] == list(range(1, 41))
    assert len({body for _, body in heard}) == 40
    assert (await alice.shows(channel))["total_messages"] == 40


async def test_a_message_of_one_channel_is_refused_in_another(alice: Member) -> None:
    one, key = await alice.keyed("one")
    other, _ = await alice.keyed("other")
    answer = await alice.publishes(alice.seals(one, key), channel=other)
    assert code(answer) == (400, "invalid_argument")
    # Also when the same key serves both: the channel is in what was signed.
    await alice.call("POST", f"/v1/channels/{other}/epoch", {"epoch": 2, "epoch_key_id": key.key_id})
    assert code(await alice.publishes(alice.seals(one, key), channel=other)) == (400, "invalid_argument")


async def test_mail_is_no_message_for_a_channel(alice: Member, bob: Member) -> None:
    channel, _ = await alice.keyed()
    letter = Letter(
        recipient="bob",
        key=bob.kem[KeyType.XWING].public,
        body=b"",
        message_id=uuid4(),
        created_at=now_ms(),
        channel_id=channel,
    )
    assert code(await alice.publishes(seal(letter, "alice", alice.pair))) == (400, "suite_refused")


async def test_nobody_publishes_in_anothers_name(alice: Member, bob: Member, connection: asyncpg.Connection) -> None:
    channel, key = await alice.keyed()
    # Bob has the key and his own pair, and says that he is Alice.
    assert code(await bob.publishes(bob.seals(channel, key, sender="alice"))) == (403, "authorization_denied")
    assert "message_delivery_denied" in await audited(connection)
    # Alice's own envelope does not become his either.
    assert code(await bob.publishes(alice.seals(channel, key))) == (403, "authorization_denied")


async def test_signatures_are_checked_before_anything_is_written(
    alice: Member, bob: Member, connection: asyncpg.Connection
) -> None:
    channel, key = await alice.keyed()
    envelope = bob.seals(channel, key)
    half = seal_again(envelope, ml_dsa=bytes(len(envelope.signatures.ml_dsa)))
    assert code(await bob.publishes(half)) == (400, "signature_verification_failed")
    half = seal_again(envelope, ed25519=bytes(64))
    assert code(await bob.publishes(half)) == (400, "signature_verification_failed")
    stranger = KeyHolder()
    stranger.handle = "bob"
    unknown = Member.seals(stranger, channel, key)  # type: ignore[arg-type]
    assert code(await bob.publishes(unknown)) == (404, "key_not_found")
    assert (await alice.shows(channel))["next_offset"] == 1
    assert "signature_verification_failed" in await audited(connection)


async def test_an_old_or_unknown_epoch_is_refused_and_the_answer_names_the_present_one(
    alice: Member,
) -> None:
    channel = await alice.makes(policy="private")
    early = await alice.publishes(alice.seals(channel, EpochKey.generate()))
    assert code(early) == STALE
    assert (early.json()["epoch"], early.json()["epoch_key_id"]) == (0, None)
    old = await alice.rekeys(channel, 1)
    await alice.says(channel, old)
    new = await alice.rekeys(channel, 2)
    refused = await alice.publishes(alice.seals(channel, old))
    assert code(refused) == STALE
    assert (refused.json()["epoch"], refused.json()["epoch_key_id"]) == (2, str(new.key_id))
    assert await alice.says(channel, new) == 2


async def test_a_retry_after_the_epoch_moved_still_gets_its_first_answer(alice: Member) -> None:
    channel, key = await alice.keyed(policy="private")
    envelope = alice.seals(channel, key)
    first = await alice.publishes(envelope)
    await alice.rekeys(channel, 2)
    again = await alice.publishes(envelope)
    assert (again.status_code, again.json()) == (200, first.json())


@pytest.mark.parametrize(("seconds", "expected"), [(-301, 400), (301, 400), (-298, 201), (298, 201)])
async def test_a_message_is_made_when_it_is_published(alice: Member, seconds: int, expected: int) -> None:
    channel, key = await alice.keyed()
    answer = await alice.publishes(alice.seals(channel, key, created_at=now_ms() + seconds * 1000))
    assert answer.status_code == expected, answer.text
    if expected == 400:
        assert answer.json()["code"] == "clock_skew"


async def test_an_honest_repeat_is_answered_also_when_its_time_is_long_over(
    slices: ChannelSlice, alice: Member, now: datetime
) -> None:
    channel, key = await alice.keyed()
    agent, envelope = await slices.agents.named("alice"), alice.seals(channel, key)
    published, new = await slices.publishing.publish(agent, channel, envelope, now)
    assert new
    again = await slices.publishing.publish(agent, channel, envelope, now + timedelta(hours=1))
    assert again == (published, False)


async def test_an_expired_message_is_refused(alice: Member) -> None:
    channel, key = await alice.keyed()
    answer = await alice.publishes(alice.seals(channel, key, created_at=now_ms() - 60_000, ttl_seconds=30))
    assert code(answer) == (410, "message_expired")


async def test_a_channel_bounds_the_size_of_its_messages(alice: Member) -> None:
    channel, key = await alice.keyed(max_message_size_bytes=8_192)
    assert code(await alice.publishes(alice.seals(channel, key, bytes(8_192)))) == (413, "too_large")
    assert await alice.says(channel, key, bytes(1_024)) == 1


async def test_a_large_message_goes_through_and_a_page_is_bounded_in_bytes(alice: Member) -> None:
    channel, key = await alice.keyed(max_message_size_bytes=1_122_304)
    await alice.subscribes(channel)
    for _ in range(5):
        await alice.says(channel, key, bytes(1 << 20))
    page = await alice.reads(channel, "?max_messages=100")
    assert [one["offset"] for one in page["messages"]] == [1, 2, 3, 4]
    assert page["has_more"]
    assert len((await alice.reads(channel, "?after_offset=4"))["messages"]) == 1


async def test_commits_move_forward_only_and_never_past_the_end(alice: Member) -> None:
    channel, key = await alice.keyed()
    await alice.subscribes(channel)
    for _ in range(3):
        await alice.says(channel, key)
    await alice.commits(channel, 4, status=400)
    assert (await alice.commits(channel, 3))["last_offset"] == 3
    assert (await alice.commits(channel, 1))["last_offset"] == 3
    assert (await alice.commits(channel, 0))["last_offset"] == 3


async def test_many_commits_at_once_end_at_the_highest(alice: Member) -> None:
    channel, key = await alice.keyed()
    await alice.subscribes(channel)
    for _ in range(8):
        await alice.says(channel, key)
    await asyncio.gather(*(alice.commits(channel, offset) for offset in (3, 8, 1, 7, 2, 8, 5)))
    assert (await alice.shows(channel))["subscription"]["last_offset"] == 8


async def test_a_paused_subscription_reads_nothing_and_goes_on_where_it_was(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed()
    await bob.subscribes(channel)
    assert (await bob.call("POST", f"/v1/channels/{channel}/pause"))["status"] == "paused"
    await alice.says(channel, key, b"meanwhile")
    paused = await bob.raw("GET", f"/v1/channels/{channel}/messages")
    assert code(paused) == (409, "conflict")
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/stream")) == (409, "conflict")
    assert (await bob.call("POST", f"/v1/channels/{channel}/resume"))["status"] == "active"
    assert await bob.hears(channel, key) == [(1, b"meanwhile")]


async def test_who_is_not_subscribed_reads_and_commits_nothing(alice: Member, bob: Member) -> None:
    channel, key = await alice.keyed()
    await alice.says(channel, key)
    for answer in (
        await bob.raw("GET", f"/v1/channels/{channel}/messages"),
        await bob.raw("GET", f"/v1/channels/{channel}/stream"),
        await bob.raw("POST", f"/v1/channels/{channel}/commit", {"offset": 1}),
        await alice.raw("GET", f"/v1/channels/{channel}/messages"),
    ):
        assert code(answer) == (403, "authorization_denied")


# Retention.


async def test_messages_leave_at_their_own_time_or_the_channels_and_offsets_below_are_gone(
    slices: ChannelSlice, alice: Member, now: datetime
) -> None:
    channel, key = await alice.keyed(retention_seconds=3_600)
    await alice.subscribes(channel)
    await alice.says(channel, key, b"kept for an hour")
    await alice.says(channel, key, b"kept for a minute", ttl_seconds=60)
    await alice.says(channel, key, b"kept for an hour too")
    agent = await slices.agents.named("alice")

    async def offsets(after: int, at: datetime) -> list[int]:
        reading = await slices.readers.read(agent, channel, ChannelReadQuery(after_offset=after), at)
        return [one.offset for one in reading.messages]

    later = now + timedelta(minutes=2)
    assert await offsets(0, later) == [1, 3]  # what has expired is not delivered, whether a tick ran or not
    assert not await slices.channels.tidy(later)
    shown = await alice.shows(channel)
    assert (shown["first_offset"], shown["next_offset"], shown["total_messages"]) == (1, 4, 3)
    much_later = now + timedelta(hours=2)
    await slices.channels.tidy(much_later)
    shown = await alice.shows(channel)
    assert (shown["first_offset"], shown["next_offset"]) == (4, 4)
    with pytest.raises(OffsetGone) as gone:
        await offsets(2, much_later)
    assert gone.value.members == {"offset": 3, "first_offset": 4}
    assert await offsets(3, much_later) == []
    answer = await alice.raw("GET", f"/v1/channels/{channel}/messages?after_offset=0")
    assert code(answer) == (410, "offset_gone")
    assert answer.json()["first_offset"] == 4
    assert await alice.says(channel, key) == 4  # offsets go on


async def test_the_first_offset_never_goes_back(slices: ChannelSlice, alice: Member, now: datetime) -> None:
    channel, key = await alice.keyed()
    await alice.says(channel, key, ttl_seconds=60)
    await slices.channels.tidy(now + timedelta(hours=1))
    assert (await alice.shows(channel))["first_offset"] == 2
    await alice.says(channel, key)
    await slices.channels.tidy(now)
    assert (await alice.shows(channel))["first_offset"] == 2


async def test_a_tick_takes_small_batches_and_says_when_more_wait(
    slices: ChannelSlice, alice: Member, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.channels.service.BATCH", 2)
    channel, key = await alice.keyed()
    for _ in range(5):
        await alice.says(channel, key, ttl_seconds=60)
    at = now + timedelta(hours=1)
    assert [await slices.channels.tidy(at) for _ in range(3)] == [True, True, False]
    assert (await alice.shows(channel))["first_offset"] == 6


async def test_a_channel_that_is_published_in_without_a_pause_still_loses_what_expired(
    slices: ChannelSlice, alice: Member, now: datetime, connection: asyncpg.Connection
) -> None:
    """A publisher holds the channel's lock when the tick comes: the tick waits its turn."""
    channel, key = await alice.keyed()
    await alice.says(channel, key, ttl_seconds=60)
    publishing = connection.transaction()
    await publishing.start()
    await connection.execute("SELECT 1 FROM channels FOR UPDATE")
    tick = asyncio.create_task(slices.channels.tidy(now + timedelta(hours=1)))
    await until_blocked(connection)
    assert not tick.done()
    await publishing.rollback()
    await tick
    assert (await alice.shows(channel))["first_offset"] == 2


async def test_a_tick_takes_a_few_channels_at_a_time_and_comes_back_for_the_others(
    slices: ChannelSlice, alice: Member, now: datetime
) -> None:
    made = [await alice.keyed(f"channel-{number}") for number in range(6)]
    for channel, key in made:
        await alice.says(channel, key, ttl_seconds=60)
    at = now + timedelta(hours=1)
    assert [await slices.channels.tidy(at) for _ in range(2)] == [True, False]
    assert {(await alice.shows(channel))["first_offset"] for channel, _ in made} == {2}


async def test_many_who_read_at_once_share_pages_and_the_later_ones_are_short_but_never_empty(
    slices: ChannelSlice, alice: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, key = await alice.keyed()
    await alice.subscribes(channel)
    for _ in range(4):
        await alice.says(channel, key)
    agent, at = await slices.agents.named("alice"), datetime.now(UTC)

    async def read() -> list[tuple[int, bool]]:
        queries = [ChannelReadQuery(after_offset=after % 4) for after in range(64)]
        reads = [slices.readers.read(agent, channel, query, at) for query in queries]
        return [(len(page.messages), page.has_more) for page in await asyncio.gather(*reads)]

    assert set(await read()) == {(4, False), (3, False), (2, False), (1, False)}
    monkeypatch.setattr(reading, "TOGETHER_BYTES", 1)
    assert set(await read()) == {(1, True), (1, False)}


async def test_a_slow_subscriber_holds_nothing_back(slices: ChannelSlice, alice: Member, now: datetime) -> None:
    channel, key = await alice.keyed(retention_seconds=3_600)
    await alice.subscribes(channel)
    await alice.says(channel, key)
    await slices.channels.tidy(now + timedelta(hours=2))
    assert code(await alice.raw("GET", f"/v1/channels/{channel}/messages")) == (410, "offset_gone")
    await alice.commits(channel, 1)
    assert (await alice.reads(channel))["messages"] == []


# Waiting.


async def test_a_long_poll_is_woken_by_the_message_it_waits_for(
    alice: Member, bob: Member, waits: asyncio.Queue[float]
) -> None:
    channel, key = await alice.keyed()
    await bob.subscribes(channel)
    waiting = asyncio.create_task(bob.hears(channel, key, "?wait_timeout_seconds=20"))
    await asyncio.wait_for(waits.get(), 10)
    async with asyncio.timeout(2):
        await alice.says(channel, key, b"wake up")
        assert await waiting == [(1, b"wake up")]


async def test_a_lost_wake_up_costs_no_more_than_a_look(
    alice: Member, bob: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_hears(*_: object) -> None: ...

    monkeypatch.setattr("angelia.stores.wake.Wake.tell", nobody_hears)
    monkeypatch.setattr("angelia.stores.wake.RECHECK_SECONDS", 0.3)
    channel, key = await alice.keyed()
    await bob.subscribes(channel)
    waiting = asyncio.create_task(bob.hears(channel, key, "?wait_timeout_seconds=20"))
    await alice.says(channel, key, b"quietly")
    async with asyncio.timeout(3):
        assert await waiting == [(1, b"quietly")]


async def test_a_long_poll_ends_empty_when_nothing_comes(alice: Member) -> None:
    channel, _ = await alice.keyed()
    await alice.subscribes(channel)
    assert (await alice.reads(channel, "?wait_timeout_seconds=1"))["messages"] == []


async def test_a_server_that_stops_lets_nobody_wait(
    slices: ChannelSlice, alice: Member, waits: asyncio.Queue[float]
) -> None:
    channel, _ = await alice.keyed()
    await alice.subscribes(channel)
    waiting = asyncio.create_task(alice.reads(channel, "?wait_timeout_seconds=20"))
    await asyncio.wait_for(waits.get(), 10)
    slices.wake.stop()
    async with asyncio.timeout(2):
        assert (await waiting)["messages"] == []


async def test_whoever_is_removed_while_it_waits_is_told_so(
    alice: Member, bob: Member, waits: asyncio.Queue[float]
) -> None:
    channel, _ = await alice.keyed(policy="allowlist", allowlist_nhis=["bob"])
    await bob.subscribes(channel)
    waiting = asyncio.create_task(bob.raw("GET", f"/v1/channels/{channel}/messages?wait_timeout_seconds=20"))
    await asyncio.wait_for(waits.get(), 10)
    await alice.call("DELETE", f"/v1/channels/{channel}/allowlist/bob", status=204)
    async with asyncio.timeout(2):
        assert code(await waiting) == (403, "authorization_denied")


async def test_a_stream_brings_messages_as_they_come_and_ends_with_the_reason(
    server: Server, alice: Member, bob: Member
) -> None:
    channel, key = await alice.keyed(policy="allowlist", allowlist_nhis=["bob"])
    await bob.subscribes(channel)
    await alice.says(channel, key, b"waiting already")
    async with listening(server.application) as port, httpx.AsyncClient(timeout=10) as client:
        url = f"/v1/channels/{channel}/stream?after_offset=0"
        headers = bob.signed("GET", url) | {"host": HOST}
        async with client.stream("GET", f"http://127.0.0.1:{port}{url}", headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream"
            lines = answer.aiter_lines()
            assert await event(lines, channel, key) == ("1", b"waiting already")
            await alice.says(channel, key, b"just now")
            assert await event(lines, channel, key) == ("2", b"just now")
            await alice.call("DELETE", f"/v1/channels/{channel}/allowlist/bob", status=204)
            rest = [line async for line in lines]
    assert "event: error" in rest
    assert any("authorization_denied" in line for line in rest)


async def event(lines: AsyncIterator[str], channel: UUID, key: EpochKey) -> tuple[str, bytes]:
    """The next message of a stream, opened."""
    id_ = ""
    async for line in lines:
        if line.startswith("id: "):
            id_ = line[4:]
        if line.startswith("data: "):
            said = json.loads(line[6:])
            return id_, unseal_post(json_form.from_fields(said["envelope"]), channel, key)
    raise AssertionError("the stream ended")


async def test_the_old_key_does_not_open_what_comes_after_a_removal(alice: Member, bob: Member, carol: Member) -> None:
    channel, old = await alice.keyed(policy="allowlist", allowlist_nhis=["bob", "carol"])
    await bob.subscribes(channel)
    await carol.subscribes(channel)
    await alice.call("DELETE", f"/v1/channels/{channel}/allowlist/bob", status=204)
    assert code(await alice.publishes(alice.seals(channel, old))) == STALE
    new = await alice.rekeys(channel, 2)
    await alice.says(channel, new, b"without bob")
    assert await carol.hears(channel, new) == [(1, b"without bob")]
    await bob.reads(channel, status=403)
    # Even with the bytes in hand.
    found = (await carol.reads(channel))["messages"][0]["envelope"]
    with pytest.raises(OpenFailed):
        unseal_post(json_form.from_fields(found), channel, old)


def seal_again(envelope: Envelope, **halves: bytes) -> Envelope:
    """The same envelope with another half of its signatures."""
    signatures = replace(envelope.signatures, **halves)
    return wire.assemble(envelope.header, envelope.head, envelope.ciphertext, envelope.tag, signatures)


async def audited(connection: asyncpg.Connection) -> list[str]:
    return [row["event_type"] for row in await connection.fetch("SELECT event_type FROM audit_events")]
