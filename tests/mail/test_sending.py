"""Sending: what is taken is durable, and taken once; what is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import asyncpg
import httpx
import pytest
import redis.asyncio

from angelia.envelope import json_form, media_type, sealing
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPublicKey
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.sealing import EpochKey, Letter
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import MAX_ENVELOPE, Compression, Envelope, Priority
from angelia.errors import AngeliaError, ClockSkew, KeyNotFound, KeyRevoked, KeyStale, MessageExpired, Unavailable
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import Reason
from angelia.mail import model
from angelia.mail.service import SendResult
from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect
from angelia.stores import hot_line
from http_agents import Server
from keyholder import now_ms
from mail_agents import NO_LIMITS, Correspondent
from mail_office import PostOffice, left, told

MS, SECOND, HOUR = timedelta(milliseconds=1), timedelta(seconds=1), timedelta(hours=1)
MIB = 1 << 20
NOTHING = {"envelopes": 0, "sent_ids": 0, "delivery_receipts": 0}


async def attempt(office: PostOffice, who: Correspondent, envelope: Envelope, at: datetime) -> str:
    """How a send ends: new, known, or the code of its refusal."""
    try:
        return "new" if (await office.send(who, envelope, at)).new else "known"
    except AngeliaError as error:
        return error.code


async def test_a_message_is_taken_handed_over_acknowledged_and_gone(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob, b"the server cannot read this")
    (got,) = await bob.poll(server)
    assert bob.opened(got) == b"the server cannot read this"
    assert got.attempt == 1
    assert await bob.poll(server) == []
    receipt = bob.receipt(envelope)
    (done,) = await bob.ack(server, got, receipts=[receipt])
    assert done["acknowledged"], done
    told = await alice.receipt_of(server, envelope.replay_key)
    assert told["status"] == "delivered"
    assert told["attested_by"] == "recipient"
    assert told["receipt"]["signer_id"] == str(bob.pair.public.signer_id)
    assert await bob.poll(server) == []


# What a sender is told.


async def test_the_sender_is_told_what_was_queued_and_until_when(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = alice.seal(bob, ttl_seconds=60)
    answer = await alice.mail(server, envelope)
    body = answer.json()
    assert answer.status_code == 201
    assert body.keys() == {"message_id", "replay_key", "status", "enqueued_at", "expires_at"}
    assert body["message_id"] == str(envelope.header.message_id)
    assert (body["replay_key"], body["status"]) == (envelope.replay_key, "queued")
    assert unix_ms(datetime.fromisoformat(body["expires_at"])) == envelope.header.expires_at


async def test_the_same_bytes_again_get_the_first_answer_in_either_form(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    envelope = alice.seal(bob)
    first = await alice.mail(server, envelope)
    again = [await alice.mail(server, envelope), await alice.mail_binary(server, envelope.wire)]
    assert first.status_code == 201
    assert [(one.status_code, one.content) for one in again] == [(200, first.content)] * 2
    assert await left(connection) == {"envelopes": 1, "sent_ids": 1, "delivery_receipts": 1}
    assert len(await bob.poll(server)) == 1


async def test_a_retry_after_five_minutes_gets_the_first_answer_not_a_word_about_the_clock(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = alice.seal(bob, created_at=unix_ms(now))
    first = await office.send(alice, envelope, now)
    assert await office.send(alice, envelope, now + timedelta(days=3)) == SendResult(first.answer, new=False)


async def test_a_retry_after_the_message_is_gone_gets_the_first_answer_and_delivers_nothing(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = alice.seal(bob, created_at=unix_ms(now))
    first = await office.send(alice, envelope, now)
    (got,) = await office.poll(bob, now)
    await office.ack(bob, got, now)
    assert await office.send(alice, envelope, now + HOUR) == SendResult(first.answer, new=False)
    assert await office.poll(bob, now + HOUR) == []


async def test_two_senders_may_use_one_message_id(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    id_ = uuid4()
    await alice.sent(server, bob, b"from alice", message_id=id_)
    await carol.sent(server, bob, b"from carol", message_id=id_)
    assert {bob.opened(one) for one in await bob.poll(server)} == {b"from alice", b"from carol"}


async def test_an_agent_may_write_to_itself(server: Server, alice: Correspondent) -> None:
    await alice.sent(server, alice, b"do not forget")
    (got,) = await alice.poll(server)
    assert alice.opened(got) == b"do not forget"


async def test_one_transaction_has_the_envelope_its_id_its_receipt_and_the_audits_event(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    await office.sent(alice, bob, now)
    rows = [
        await connection.fetchval(f"SELECT xmin::text FROM {table} {which}")  # noqa: S608
        for table, which in [
            ("envelopes", ""),
            ("sent_ids", ""),
            ("delivery_receipts", "WHERE status = 'pending'"),
            ("audit_events", "WHERE event_type = 'message_sent'"),
        ]
    ]
    assert rows[0] is not None
    assert len(set(rows)) == 1
    assert await told(connection, "message_sent") == [("message_sent", "alice", "bob")]


async def test_a_hot_tier_that_fails_after_the_commit_does_not_change_the_answer(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> bool:
        raise Unavailable

    monkeypatch.setattr(office.queues, "enqueue_all", fail)
    assert await attempt(office, alice, alice.seal(bob, created_at=unix_ms(now)), now) == "new"


# A hot tier that hangs: it takes scripts and does not answer.


@pytest.fixture
async def hanging(
    office: PostOffice, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[], AbstractAsyncContextManager[None]]]:
    """`async with hanging():` is a while in which the hot tier hangs."""
    monkeypatch.setattr(hot_line, "ANSWER_SECONDS", 0.5)
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.ping()
    await office.hot.birth()  # it is connected before

    @asynccontextmanager
    async def hang() -> AsyncIterator[None]:
        await client.client_pause(60_000, all=False)  # scripts and writes: a pause of all commands could not be ended
        try:
            yield
        finally:
            await client.client_unpause()

    yield hang
    await client.aclose()


async def test_a_hot_tier_that_hangs_in_mid_batch_is_waited_for_once_and_what_came_before_is_accepted(
    office: PostOffice,
    hanging: Callable[[], AbstractAsyncContextManager[None]],
    alice: Correspondent,
    bob: Correspondent,
    carol: Correspondent,
    now: datetime,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = PolicyRuleBody(Effect.ALLOW, Action.SEND, "alice", "*", priority=5, rate="100/1m")
    await office.policy.add("op", rule, now)
    spend, spent = office.policy._hot.spend, 0

    async def hang_at_the_third(*args: object) -> int:
        nonlocal spent
        spent += 1
        if spent != 3:
            return await spend(*args)  # type: ignore[arg-type]
        async with hanging():
            return await spend(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(office.policy._hot, "spend", hang_at_the_third)
    sealed = [alice.seal(to, created_at=unix_ms(now)) for to in (bob, carol) * 4]
    outcomes = await office.mail.send_many(await office.agent(alice), sealed, now)
    assert [getattr(one, "code", "stored") for one in outcomes] == ["stored"] * 2 + ["unavailable"] * 6
    assert spent == 3, "the hot tier was waited for once"
    assert await left(connection) == {"envelopes": 2, "sent_ids": 2, "delivery_receipts": 2}
    assert [len(await office.poll(who, now)) for who in (bob, carol)] == [1, 1]


async def test_a_hot_tier_that_hangs_after_the_commit_is_asked_for_all_recipients_at_once_and_all_are_accepted(
    office: PostOffice,
    hanging: Callable[[], AbstractAsyncContextManager[None]],
    alice: Correspondent,
    bob: Correspondent,
    carol: Correspondent,
    now: datetime,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue_all, steps = office.queues.enqueue_all, []

    async def noted(*args: object) -> int:
        steps.append("asked")
        try:
            return await enqueue_all(*args)  # type: ignore[arg-type]
        except Unavailable:
            steps.append("no answer")
            raise

    monkeypatch.setattr(office.queues, "enqueue_all", noted)
    sealed = [alice.seal(to, created_at=unix_ms(now)) for to in (bob, carol, alice) * 2]
    async with hanging():
        outcomes = await office.mail.send_many(await office.agent(alice), sealed, now)
    assert steps == ["asked"] * 3 + ["no answer"] * 3
    assert [isinstance(one, SendResult) and one.new for one in outcomes] == [True] * 6
    assert await left(connection) == {"envelopes": 6, "sent_ids": 6, "delivery_receipts": 6}
    later = now + 10 * SECOND
    await office.background.reconcile(later)
    assert [len(await office.poll(who, later)) for who in (bob, carol, alice)] == [2, 2, 2]


# The clock.


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (timedelta(seconds=-300), "new"),
        (timedelta(seconds=300), "new"),
        (timedelta(seconds=-300) - MS, "clock_skew"),
        (timedelta(seconds=300) + MS, "clock_skew"),
    ],
)
async def test_an_envelope_is_sent_within_five_minutes_of_its_making(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, made: timedelta, outcome: str
) -> None:
    assert await attempt(office, alice, alice.seal(bob, created_at=unix_ms(now + made)), now) == outcome


async def test_skew_names_the_offset(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    with pytest.raises(ClockSkew, match="400 s behind"):
        await office.send(alice, alice.seal(bob, created_at=unix_ms(now - 400 * SECOND)), now)


async def test_a_message_that_expired_on_its_way_is_refused(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = alice.seal(bob, created_at=unix_ms(now), ttl_seconds=10)
    with pytest.raises(MessageExpired):
        await office.send(alice, envelope, now + 10 * SECOND)
    assert await attempt(office, alice, envelope, now + 10 * SECOND - MS) == "new"


# The keys.


async def test_mail_to_nobody_and_to_an_agent_without_keys_is_not_taken(
    office: PostOffice, alice: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    dave, nobody = Correspondent(), Correspondent()
    await dave.exist(office, "dave", now)  # type: ignore[arg-type]
    nobody.handle = "nobody"
    for recipient in (dave, nobody):
        with pytest.raises(KeyNotFound):
            await office.send(alice, alice.seal(recipient, created_at=unix_ms(now)), now)
    assert await left(connection) == NOTHING


async def test_a_replaced_key_serves_for_an_hour_and_then_brings_the_present_bundle(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    old = bob.kem[KeyType.XWING].public
    await bob.rotated(office, now + SECOND)  # type: ignore[arg-type]
    late = now + SECOND + HOUR
    assert await attempt(office, alice, alice.seal(bob, key=old, created_at=unix_ms(late)), late) == "new"
    with pytest.raises(KeyStale) as refused:
        await office.send(alice, alice.seal(bob, key=old, created_at=unix_ms(late + MS)), late + MS)
    bundle = refused.value.members["bundle"]
    assert bundle["bundle_version"] == 2  # type: ignore[index]
    assert await attempt(office, alice, alice.seal(bob, created_at=unix_ms(late + MS)), late + MS) == "new"


async def test_a_stale_key_is_told_over_http_with_the_bundle(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    other = Correspondent()
    answer = await alice.mail(server, alice.seal(bob, key=other.kem[KeyType.XWING].public))
    assert (answer.status_code, answer.json()["code"]) == (409, "key_stale")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["bundle"]["agent_nhi"] == "bob"


async def test_a_stale_key_is_told_without_the_bundle_to_a_sender_who_may_not_read_keys(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.policy.add("op", PolicyRuleBody(Effect.DENY, Action.READ_KEYS, "alice", "bob", priority=9), now)
    other = Correspondent().kem[KeyType.XWING].public
    with pytest.raises(KeyStale) as refused:
        await office.send(alice, alice.seal(bob, key=other, created_at=unix_ms(now)), now)
    assert refused.value.members == {}


async def test_a_revoked_key_is_gone_for_good(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    old = bob.kem[KeyType.XWING].public
    link = bob.rotation(at=unix_ms(now + SECOND), grace=False)
    await bob.accepted(  # type: ignore[arg-type]
        office, link, reason=Reason.EMERGENCY, emergency=Emergency("stolen", now, None)
    )
    with pytest.raises(KeyRevoked):
        await office.send(alice, alice.seal(bob, key=old, created_at=unix_ms(now)), now + 2 * SECOND)


async def test_a_signing_pair_that_was_replaced_signs_for_five_more_minutes(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    old = alice.pair
    await alice.rotated(office, now + SECOND, kem=False, signer=True)  # type: ignore[arg-type]
    outcomes = []
    for at in (now + 301 * SECOND, now + 301 * SECOND + MS):
        envelope = sealing.seal(alice.letter(bob, created_at=unix_ms(at)), "alice", old)
        outcomes.append(await attempt(office, alice, envelope, at))
    assert outcomes == ["new", "key_stale"]


async def test_a_suite_that_the_recipient_does_not_take_is_refused(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    other = Correspondent(KeyType.ML_KEM_768)
    answer = await alice.mail(server, alice.seal(bob, key=other.kem[KeyType.ML_KEM_768].public))
    assert (answer.status_code, answer.json()["code"]) == (400, "suite_refused")


async def test_an_envelope_for_a_channel_is_no_mail(server: Server, alice: Correspondent) -> None:
    post = Letter(channel_id=uuid4(), key=EpochKey.generate(), body=b"all", message_id=uuid4(), created_at=now_ms())
    answer = await alice.mail(server, sealing.seal(post, "alice", alice.pair))
    assert (answer.status_code, answer.json()["code"]) == (400, "suite_refused")


# One-time keys.


async def one_time_key(office: PostOffice, bob: Correspondent, alice: Correspondent, now: datetime) -> KemPublicKey:
    """A one-time key of bob's that alice was given."""
    keys = bob.one_time_keys(1, at=unix_ms(now))
    await office.keys.add_one_time_keys(await office.agent(bob), keys, now)
    answer = await office.keys.bundle_with_one_time_key("bob", await office.agent(alice), now)
    assert answer.one_time
    return keys[0].key


async def test_a_one_time_key_serves_one_message_and_the_second_keeps_its_id(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    key, id_ = await one_time_key(office, bob, alice, now), uuid4()
    first = alice.seal(bob, key=key, created_at=unix_ms(now))
    second = alice.seal(bob, key=key, created_at=unix_ms(now), message_id=id_)
    assert await attempt(office, alice, first, now) == "new"
    assert await attempt(office, alice, second, now) == "key_stale"
    resealed = alice.seal(bob, created_at=unix_ms(now), message_id=id_)
    assert await attempt(office, alice, resealed, now) == "new"
    assert await attempt(office, alice, first, now) == "known"


async def test_a_one_time_key_that_the_first_message_could_not_use_serves_the_second(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "QUEUE_BYTES_MAX", 40_000)
    key = await one_time_key(office, bob, alice, now)
    made = [alice.seal(bob, body, key=key, created_at=unix_ms(now)) for body in (b"x" * 30_000, b"small", b"late")]
    outcomes = await office.mail.send_many(await office.agent(alice), made, now)
    assert [getattr(one, "code", "stored") for one in outcomes] == ["queue_full", "stored", "key_stale"]


async def test_a_one_time_key_serves_only_whom_it_was_given(
    office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    key = await one_time_key(office, bob, alice, now)
    assert await attempt(office, carol, carol.seal(bob, key=key, created_at=unix_ms(now)), now) == "key_stale"
    late = now + timedelta(seconds=3901)
    assert await attempt(office, alice, alice.seal(bob, key=key, created_at=unix_ms(late)), late) == "key_stale"
    assert await attempt(office, alice, alice.seal(bob, key=key, created_at=unix_ms(now)), now) == "new"


async def test_of_two_messages_for_one_one_time_key_one_is_taken_and_the_other_can_be_sealed_again(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    elsewhere: PostOffice = await another()
    for _ in range(4):
        key = await one_time_key(office, bob, alice, now)
        pair = [alice.seal(bob, key=key, created_at=unix_ms(now)) for _ in range(2)]
        outcomes = await asyncio.gather(attempt(office, alice, pair[0], now), attempt(elsewhere, alice, pair[1], now))
        assert sorted(outcomes) == ["key_stale", "new"]
        refused = pair[outcomes.index("key_stale")]
        resealed = alice.seal(bob, created_at=unix_ms(now), message_id=refused.header.message_id)
        assert await attempt(elsewhere, alice, resealed, now) == "new"
    assert await left(connection) == {"envelopes": 8, "sent_ids": 8, "delivery_receipts": 8}


async def test_nobody_is_told_yes_for_a_copy_of_a_message_that_lost_its_one_time_key(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    """All of them in one commit: a copy of what is refused must not get an answer that nobody ever gave."""
    key = await one_time_key(office, bob, alice, now)
    one, other = (alice.seal(bob, key=key, created_at=unix_ms(now)) for _ in range(2))
    given = [one, other, other, one, other]
    outcomes = await asyncio.gather(*(attempt(office, alice, envelope, now) for envelope in given))
    taken = (await connection.fetchval("SELECT replay_key FROM envelopes")).hex()
    for envelope, outcome in zip(given, outcomes, strict=True):
        assert outcome in (("new", "known") if envelope.replay_key == taken else ("key_stale",))
    assert outcomes.count("new") == 1


# At once.


async def test_one_envelope_sent_sixteen_times_at_once_over_two_servers_is_one_message(
    start, connection: asyncpg.Connection
) -> None:
    servers: list[Server] = [await start(limits=NO_LIMITS) for _ in range(2)]
    alice, bob = Correspondent(), Correspondent()
    await alice.join(servers[0], "alice")
    await bob.join(servers[1], "bob")
    envelope = alice.seal(bob)
    answers = await asyncio.gather(*(alice.mail(servers[n % 2], envelope) for n in range(16)))
    assert sorted(one.status_code for one in answers) == [200] * 15 + [201]
    assert len({one.content for one in answers}) == 1
    assert await left(connection) == {"envelopes": 1, "sent_ids": 1, "delivery_receipts": 1}
    polls = await asyncio.gather(*(bob.poll(servers[n % 2]) for n in range(4)))
    assert sum(len(got) for got in polls) == 1


async def test_of_two_envelopes_with_one_id_at_once_one_is_taken(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    elsewhere: PostOffice = await another()
    for places in ((office, elsewhere), (office, office)) * 3:
        id_ = uuid4()
        pair = [alice.seal(bob, body, created_at=unix_ms(now), message_id=id_) for body in (b"one", b"two")]
        outcomes = await asyncio.gather(
            *(attempt(place, alice, one, now) for place, one in zip(places, pair, strict=True))
        )
        assert sorted(outcomes) == ["message_id_conflict", "new"]
    assert len(await office.poll(bob, now)) == 6


# Many in one request.


async def batch(server: Server, who: Correspondent, documents: list[object]) -> httpx.Response:
    return await who.post(server, "/v1/messages/batch", {"messages": documents})


async def test_a_batch_answers_each_message_for_itself(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    good = [alice.seal(bob, str(n).encode()) for n in range(90)]
    documents: list[object] = [json_form.to_fields(one) for one in good]
    known = await alice.sent(server, bob, b"known")
    tampered = json_form.to_fields(alice.seal(bob)) | {"priority": 3}
    bad = {
        "signature_verification_failed": tampered,
        "authorization_denied": json_form.to_fields(carol.seal(bob)),
        "clock_skew": json_form.to_fields(alice.seal(bob, created_at=now_ms() - 400_000)),
        "message_id_conflict": json_form.to_fields(alice.seal(bob, message_id=known.header.message_id)),
        "key_stale": json_form.to_fields(alice.seal(bob, key=Correspondent().kem[KeyType.XWING].public)),
        "invalid_argument": {"not": "an envelope"},
    }
    documents[10:10] = bad.values()
    documents += [json_form.to_fields(known), json_form.to_fields(good[0]), 7, None]
    answer = await batch(server, alice, documents)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert len(results) == len(documents) == 100
    assert [one["problem"]["code"] for one in results[10:16]] == list(bad)
    assert all(one["new"] and "problem" not in one for one in results[:10] + results[16:96])
    assert "new" not in results[96]
    assert results[96]["message"]["replay_key"] == known.replay_key
    assert sorted("new" in results[at] for at in (0, 97)) == [False, True]
    assert [one["problem"]["code"] for one in results[98:]] == ["invalid_argument"] * 2
    arrived = [bob.opened(one) for one in await bob.poll(server, max_messages=100)]
    assert arrived == [b"known", *(str(n).encode() for n in range(90))]


@pytest.mark.parametrize("count", [0, 101])
async def test_a_batch_has_one_to_a_hundred_messages(server: Server, alice: Correspondent, count: int) -> None:
    answer = await batch(server, alice, [{}] * count)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


async def binary_batch(server: Server, who: Correspondent, body: bytes) -> httpx.Response:
    headers = {**who.signed("POST", "/v1/messages/batch", body), "content-type": MEDIA_TYPE}
    return await server.request("POST", "/v1/messages/batch", content=body, headers=headers)


async def test_a_binary_batch_is_answered_as_one_in_json(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    good = [alice.seal(bob, str(n).encode()) for n in range(3)]
    tampered = alice.seal(bob)
    tampered = replace(tampered, wire=tampered.wire[:-1] + bytes([tampered.wire[-1] ^ 1]))
    damaged = replace(good[0], wire=b"no envelope")
    body = media_type.write_batch([good[0], damaged, carol.seal(bob), tampered, *good[1:], good[0]])
    answer = await binary_batch(server, alice, body)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [one["message"]["replay_key"] for one in (results[0], *results[4:6])] == [one.replay_key for one in good]
    refused = ["invalid_argument", "authorization_denied", "signature_verification_failed"]
    assert [one["problem"]["code"] for one in results[1:4]] == refused
    assert "new" not in results[6]
    assert [bob.opened(one) for one in await bob.poll(server)] == [b"0", b"1", b"2"]


async def test_a_binary_batch_that_cannot_be_split_is_refused_as_a_whole(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    whole = media_type.write_batch([alice.seal(bob)])
    many = media_type.write_batch([replace(alice.seal(bob), wire=b"")] * 101)
    for body in (whole[:3], whole[:-1], whole + b"\0", whole + b"\0\0\0\x01", many):
        answer = await binary_batch(server, alice, body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), body[:8]
    assert await bob.poll(server) == []


async def test_a_binary_batch_without_an_envelope_is_refused(
    server: Server, alice: Correspondent, connection: asyncpg.Connection
) -> None:
    answer = await binary_batch(server, alice, b"")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert answer.json()["title"] == "a batch has 1 to 100 messages"
    assert await left(connection) == NOTHING


async def test_a_binary_batch_over_16_mib_is_413_whether_or_not_it_tells_its_length(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    body = media_type.write_batch([alice.seal(bob)]).ljust(16 * MIB + 1, b"\0")

    async def in_parts() -> AsyncIterator[bytes]:
        for at in range(0, len(body), MIB):
            yield body[at : at + MIB]

    headers = {**alice.signed("POST", "/v1/messages/batch", body), "content-type": MEDIA_TYPE}
    undeclared = await server.request("POST", "/v1/messages/batch", content=in_parts(), headers=headers)
    for answer in (await binary_batch(server, alice, body), undeclared):
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert answer.json()["hint"] == "this path takes at most 16,777,216 bytes"
    within = await binary_batch(server, alice, body[:-1])
    assert (within.status_code, within.json()["code"]) == (400, "invalid_argument"), "it was read, and is no batch"
    assert await left(connection) == NOTHING


async def test_an_envelope_that_is_too_large_is_refused_beside_others_of_its_binary_batch(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    before, large, after = (alice.seal(bob, str(n).encode()) for n in range(3))
    large = replace(large, wire=large.wire.ljust(MAX_ENVELOPE + 1, b"\0"))
    answer = await binary_batch(server, alice, media_type.write_batch([before, large, after]))
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [one.get("new", False) for one in results] == [True, False, True]
    assert results[1]["problem"]["code"] == "invalid_argument"
    assert results[1]["problem"]["title"] == "an envelope has at most 1,122,304 bytes, this has 1,122,305"
    assert await left(connection) == {"envelopes": 2, "sent_ids": 2, "delivery_receipts": 2}
    assert [bob.opened(one) for one in await bob.poll(server)] == [b"0", b"2"]


async def test_a_fault_of_the_ledger_in_mid_batch_hits_the_message_that_caused_it(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "CREATE FUNCTION choke() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.priority = 3 THEN RAISE 'no'; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER choke BEFORE INSERT ON envelopes FOR EACH ROW EXECUTE FUNCTION choke()"
    )
    sealed = [alice.seal(bob, priority=Priority.CRITICAL if n == 4 else Priority.NORMAL) for n in range(9)]
    answer = await batch(server, alice, [json_form.to_fields(one) for one in sealed])
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [one["problem"]["code"] if "problem" in one else "taken" for one in results] == [
        *["taken"] * 4,
        "internal",
        *["taken"] * 4,
    ]
    assert await left(connection) == {"envelopes": 8, "sent_ids": 8, "delivery_receipts": 8}


@pytest.fixture
async def unreadable(office: PostOffice, now: datetime, connection: asyncpg.Connection) -> AsyncIterator[Correspondent]:
    """An agent whose keys cannot be read: a statement that looks for them fails."""
    dave = Correspondent()
    await dave.enter(office, "dave", now)  # type: ignore[arg-type]
    await connection.execute(
        "CREATE FUNCTION choke(agent varchar) RETURNS boolean LANGUAGE plpgsql AS"
        " $$ BEGIN IF agent = 'dave' THEN RAISE 'no'; END IF; RETURN true; END $$;"
        "CREATE POLICY choke ON key_records USING (choke(agent_nhi));"
        "ALTER TABLE key_records ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
    )
    yield dave
    await connection.execute(
        "ALTER TABLE key_records DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;"
        "DROP POLICY choke ON key_records"
    )


async def test_a_message_that_the_ledger_cannot_check_leaves_the_others_of_its_batch_accepted(
    server: Server,
    alice: Correspondent,
    bob: Correspondent,
    unreadable: Correspondent,
    connection: asyncpg.Connection,
) -> None:
    sealed = [alice.seal(unreadable if n == 4 else bob) for n in range(9)]
    answer = await batch(server, alice, [json_form.to_fields(one) for one in sealed])
    assert answer.status_code == 200, answer.text
    problems = [one["problem"]["code"] if "problem" in one else "taken" for one in answer.json()["results"]]
    assert problems == [*["taken"] * 4, "unavailable", *["taken"] * 4]
    alone = await alice.mail(server, sealed[4])
    assert (alone.status_code, alone.json()["code"], alone.json()["hint"]) == (503, "unavailable", "try again")
    assert await left(connection) == {"envelopes": 8, "sent_ids": 8, "delivery_receipts": 8}


async def test_a_message_that_the_ledger_cannot_check_holds_up_no_other_sender_in_its_group(
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    carol: Correspondent,
    unreadable: Correspondent,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check, groups = office.mail._checks._batch, list[int]()

    async def noted(tx: object, offers: list[object]) -> object:
        groups.append(len(offers))
        return await check(tx, offers)  # type: ignore[arg-type]

    monkeypatch.setattr(office.mail._checks, "_batch", noted)
    for who in (alice, carol):
        await office.agent(who)  # known before, so that all three come at once
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(
            attempt(office, carol, carol.seal(bob, created_at=unix_ms(now)), now),
            attempt(office, alice, alice.seal(unreadable, created_at=unix_ms(now)), now),
            attempt(office, alice, alice.seal(bob, created_at=unix_ms(now)), now),
        )
        assert groups == [3, 1, 1, 1], "one group, and then one by one"
        assert outcomes == ["new", "unavailable", "new"]
        assert await attempt(office, carol, carol.seal(bob, created_at=unix_ms(now)), now) == "new"


async def test_messages_of_one_batch_keep_their_order(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    sealed = [json_form.to_fields(alice.seal(bob, str(n).encode())) for n in range(30)]
    await batch(server, alice, sealed)
    assert [bob.opened(one) for one in await bob.poll(server, max_messages=30)] == [str(n).encode() for n in range(30)]


async def test_messages_under_one_pair_of_signatures_are_taken_each_for_itself(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    letters = [alice.letter(to, str(n).encode()) for n, to in enumerate((bob, carol, bob, bob))]
    sealed = sealing.seal_batch(letters, "alice", alice.pair)
    assert (await alice.mail(server, sealed[3])).status_code == 201
    answer = await batch(server, alice, [json_form.to_fields(one) for one in sealed])
    assert ["new" in one for one in answer.json()["results"]] == [True, True, True, False]
    assert {bob.opened(one) for one in await bob.poll(server)} == {b"0", b"2", b"3"}
    # A path of one batch proves nothing in another.
    other = json_form.to_fields(sealing.seal_batch(letters[:2], "alice", alice.pair)[0])
    moved = json_form.to_fields(alice.seal(bob)) | {"batch": other["batch"]}
    assert (await batch(server, alice, [moved])).json()["results"][0]["problem"]["code"] == (
        "signature_verification_failed"
    )


# Sizes.


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_a_megabyte_goes_through_and_has_no_copy_in_the_hot_tier(
    server: Server, alice: Correspondent, bob: Correspondent, office: PostOffice, binary: bool
) -> None:
    body = os.urandom(MIB)
    envelope = alice.seal(bob, body)
    answer = await (alice.mail_binary(server, envelope.wire) if binary else alice.mail(server, envelope))
    assert answer.status_code == 201, answer.text
    assert await office.hot._redis.keys("ang:mail:*:env:*") == []
    (got,) = await bob.poll(server)
    assert bob.opened(got) == body


async def test_a_small_message_has_a_copy_that_dies_with_it(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now, ttl_seconds=100)
    (name,) = await office.hot._redis.keys("ang:mail:*:env:*")
    assert await office.hot._redis.get(name) == envelope.wire
    assert 90_000 < await office.hot._redis.pttl(name) <= 100_000


async def test_64_kib_is_the_largest_copy(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    room = 65_536 - len(alice.seal(bob, b"").wire)
    for extra, copies in ((1, 0), (0, 1)):
        envelope = await office.sent(alice, bob, now, b"x" * (room + extra))
        assert len(envelope.wire) == 65_536 + extra
        assert len(await office.hot._redis.keys("ang:mail:*:env:*")) == copies


async def test_a_body_beyond_the_limits_is_413(server: Server, alice: Correspondent) -> None:
    binary = await alice.mail_binary(server, bytes(MAX_ENVELOPE + 1))
    text = await server.send_signed(alice, "POST", "/v1/messages", b" " * (json_form.MAX_JSON + 1))
    many = await server.send_signed(alice, "POST", "/v1/messages/batch", b" " * (16 * MIB + 1))
    for answer in (binary, text, many):
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


OTHER_TYPES = ["text/plain", "application/octet-stream", ""]


async def test_a_body_is_json_or_an_envelope(server: Server, alice: Correspondent) -> None:
    for content_type in OTHER_TYPES:
        headers = alice.signed("POST", "/v1/messages", b"{}") | {"content-type": content_type}
        answer = await server.request("POST", "/v1/messages", content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_a_compressed_message_and_one_of_a_conversation_arrive_as_they_were_sent(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    how = {"compression": Compression.ZSTD, "channel_id": uuid4(), "correlation_id": uuid4(), "priority": Priority.HIGH}
    envelope = await alice.sent(server, bob, b"again " * 1000, **how)
    (got,) = await bob.poll(server)
    assert got.envelope.wire == envelope.wire
    assert bob.opened(got) == b"again " * 1000


# Who may.


async def test_a_blocked_sender_is_refused_until_it_is_heard_again(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    assert (await bob.put(server, "/v1/blocks/alice", None)).status_code == 204
    refused = await alice.mail(server, alice.seal(bob))
    assert (refused.status_code, refused.json()["code"]) == (403, "authorization_denied")
    assert (await bob.delete(server, "/v1/blocks/alice")).status_code == 204
    await alice.sent(server, bob)


async def test_a_rule_with_a_rate_stops_what_is_too_much(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    rule = {"effect": "allow", "action": "send", "subject": "alice", "object": "*", "priority": 5, "rate": "2/1m"}
    made = await server.post("/v1/policies", json=rule, headers=server.admin)
    assert made.status_code == 201, made.text
    envelopes = [alice.seal(bob) for _ in range(3)]
    answers = [await alice.mail(server, one) for one in envelopes]
    assert [one.status_code for one in answers] == [201, 201, 429]
    assert answers[2].json()["code"] == "rate_limited"
    assert 0 < int(answers[2].headers["retry-after"]) <= 60
    # What was taken before is no new message.
    assert (await alice.mail(server, envelopes[0])).status_code == 200


async def test_the_binary_form_is_asked_for_by_its_name_however_it_is_written(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    wire = alice.seal(bob).wire
    headers = alice.signed("POST", "/v1/messages", wire) | {"content-type": f"{MEDIA_TYPE.upper()}; v=1"}
    answer = await server.request("POST", "/v1/messages", content=wire, headers=headers)
    assert answer.status_code == 201, answer.text
