"""What the ticks do: mail expires, fails under revoked keys, and returns to queues that lost it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from angelia.envelope.ids import bucket_of
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Priority
from angelia.errors import Unavailable
from angelia.mail import ticks
from angelia.mail.acknowledgement import Acknowledged
from angelia.mail.hot_store import events
from angelia.mail.model import DeliveryStatus, QueuePlace
from angelia.mail.ticks import RECONCILED, REVOKED
from angelia.stores.wake import decode_event as heard
from mail_agents import Correspondent
from mail_office import PostOffice, left, told
from store_probes import until_blocked

MS, SECOND, MINUTE, DAY = timedelta(milliseconds=1), timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
NOTHING_WAITS = {"envelopes": 0, "sent_ids": 1, "delivery_receipts": 1}


@contextmanager
def crashing(office: PostOffice) -> Iterator[None]:
    """A process that dies after each commit, before its script."""

    async def lost(*args: object) -> bool:
        raise Unavailable

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(office.queues, "enqueue", lost)
        patched.setattr(office.queues, "enqueue_all", lost)
        yield


async def mark(connection: asyncpg.Connection, name: str) -> str | None:
    found: str | None = await connection.fetchval("SELECT value FROM mail_marks WHERE name = $1", name)
    return found


async def everything(office: PostOffice, who: Correspondent, now: datetime) -> set[bytes]:
    return {one.row.replay_key for one in await office.poll(who, now, max_messages=100)}


# Expiry.


async def test_what_is_past_its_time_goes_and_its_sender_is_told(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = await office.sent(alice, bob, now, ttl_seconds=60)
    await office.background.expire(now + MINUTE - MS)
    assert (await office.receipt(alice, envelope)).status is DeliveryStatus.PENDING
    async with office.wake.listening(events("alice")) as bell:
        await office.background.expire(now + MINUTE)
        assert await bell.wait(2)
        (word,) = bell.words()
    assert heard(word)[0] == "receipt"
    assert b'"status":"expired"' in word
    assert await left(connection) == NOTHING_WAITS
    receipt = await office.receipt(alice, envelope)
    assert (receipt.status, receipt.attested_by) == (DeliveryStatus.EXPIRED, "relay")
    assert await told(connection, "message_expired") == [("message_expired", "angelia", "bob")]
    assert await office.hot._redis.keys("ang:mail:*") == []


async def test_expiry_works_in_small_batches_and_says_whether_more_waits(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "_BATCH", 4)
    for n in range(10):
        await office.sent(alice, bob, now, ttl_seconds=60 + n)
    seen = []
    while await office.background.expire(now + 2 * MINUTE):
        seen.append(1)
    assert len(seen) == 2
    assert await everything(office, bob, now) == set()


async def test_two_ticks_at_once_expire_each_message_once(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    elsewhere: PostOffice = await another()
    for _ in range(20):
        await office.sent(alice, bob, now, ttl_seconds=60)
    await asyncio.gather(*(place.background.expire(now + MINUTE) for place in (office, elsewhere) * 2))
    assert len(await told(connection, "message_expired")) == 20


async def test_a_dead_letter_goes_with_its_time_and_stays_failed_without_another_word(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    dead, died = await office.dead(alice, bob, now, ttl_seconds=600)
    requeued, _ = await office.dead(alice, bob, now, ttl_seconds=600)
    await office.requeue(bob, requeued, died)
    async with office.wake.listening(events("alice")) as bell:
        await office.background.expire(now + 10 * MINUTE)
        assert not await bell.wait(0.1)
    assert [(await office.receipt(alice, one)).status for one in (dead, requeued)] == [DeliveryStatus.FAILED] * 2
    assert (await left(connection))["envelopes"] == 0


async def test_of_expiry_and_acknowledgment_at_once_exactly_one_happens(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    elsewhere: PostOffice = await another()
    for _ in range(6):
        envelope = await office.sent(alice, bob, now, ttl_seconds=60)
        (got,) = await office.poll(bob, now)
        acked, _ = await asyncio.gather(office.ack(bob, got, now + MINUTE), elsewhere.background.expire(now + MINUTE))
        status = (await office.receipt(alice, envelope)).status
        assert status is (DeliveryStatus.DELIVERED if isinstance(acked, Acknowledged) else DeliveryStatus.EXPIRED)


# Ids.


async def test_an_id_is_known_until_five_minutes_after_its_messages_time(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = await office.sent(alice, bob, now, ttl_seconds=60)
    await office.background.expire(now + MINUTE)
    end = now + MINUTE + 300 * SECOND
    await office.background.forget_ids(end - MS)
    assert not (await office.send(alice, envelope, end - MS)).new
    await office.background.forget_ids(end)
    assert (await left(connection))["sent_ids"] == 0


async def test_ids_are_forgotten_in_small_batches(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "_BATCH", 4)
    for _ in range(9):
        await office.sent(alice, bob, now, ttl_seconds=60)
    later = now + 10 * MINUTE
    assert [await office.background.forget_ids(later) for _ in range(3)] == [True, True, False]


# Revoked keys.


async def test_mail_to_a_revoked_key_fails_and_its_sender_is_told_to_seal_again(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = await office.sent(alice, bob, now)
    await office.revoke(bob, now + SECOND, now + SECOND)
    assert await office.poll(bob, now + 2 * SECOND) == []
    async with office.wake.listening(events("alice")) as bell:
        await office.background.fail_revoked(now + 5 * SECOND)
        assert await bell.wait(2)
        (word,) = bell.words()
    assert b'"reason":"key_revoked"' in word
    receipt = await office.receipt(alice, envelope)
    assert (receipt.status, receipt.failure_reason) == (DeliveryStatus.FAILED, "key_revoked")
    assert await left(connection) == {**NOTHING_WAITS, "sent_ids": 0}  # it is sealed again under the same id
    assert await told(connection, "message_failed") == [("message_failed", "angelia", "bob")]


async def test_mail_that_a_stolen_pair_signed_fails_and_what_it_signed_before_arrives(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    before = await office.sent(alice, bob, now)
    after = await office.sent(alice, bob, now + 10 * SECOND)
    await office.revoke(alice, now + MINUTE, now + 10 * SECOND, signer=True)
    await office.background.fail_revoked(now + MINUTE)
    assert (await office.receipt(alice, before)).status is DeliveryStatus.PENDING
    assert (await office.receipt(alice, after)).failure_reason == "key_revoked"
    assert await everything(office, bob, now + MINUTE) == {bytes.fromhex(before.replay_key)}


async def test_a_revocation_that_commits_late_is_found_all_the_same(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = await office.sent(alice, bob, now)
    await office.background.fail_revoked(now + 100 * SECOND)
    assert await mark(connection, REVOKED) == (now + 100 * SECOND).isoformat()
    await office.revoke(bob, now + SECOND, now + SECOND)
    await office.background.fail_revoked(now + 105 * SECOND)
    assert (await office.receipt(alice, envelope)).status is DeliveryStatus.FAILED


async def test_many_messages_under_one_key_fail_in_small_batches(
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticks, "_BATCH", 4)
    sent = [await office.sent(alice, bob, now) for _ in range(9)]
    await office.revoke(bob, now + SECOND, now + SECOND)
    assert [await office.background.fail_revoked(now + MINUTE) for _ in range(3)] == [True, True, False]
    assert await mark(connection, REVOKED) == (now + MINUTE).isoformat()
    assert {(await office.receipt(alice, one)).status for one in sent} == {DeliveryStatus.FAILED}


async def test_mail_under_other_keys_is_left_alone(
    office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    await office.revoke(carol, now + SECOND, now + SECOND, signer=True)
    sent = [await office.sent(alice, bob, now + MINUTE), await office.sent(alice, carol, now + MINUTE)]
    await office.background.fail_revoked(now + 2 * MINUTE)
    assert {(await office.receipt(alice, one)).status for one in sent} == {DeliveryStatus.PENDING}


# Queues that lost something.


async def test_what_a_crash_left_out_of_its_queue_is_put_there(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    with crashing(office):
        envelope = await office.sent(alice, bob, now)
    assert await office.poll(bob, now) == []
    await office.background.reconcile(now + 4 * SECOND)  # its script may still be on its way
    assert await office.poll(bob, now + 4 * SECOND) == []
    await office.background.reconcile(now + 6 * SECOND)
    assert await everything(office, bob, now + 6 * SECOND) == {bytes.fromhex(envelope.replay_key)}


async def test_a_server_that_was_away_for_an_hour_reconciles_from_where_it_was(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    await office.background.reconcile(now)
    assert await mark(connection, RECONCILED) == (now - 5 * SECOND).isoformat()
    with crashing(office):
        await office.sent(alice, bob, now + SECOND)
    await office.background.reconcile(now + 60 * MINUTE)
    assert len(await office.poll(bob, now + 60 * MINUTE)) == 1


async def test_reconciling_looks_two_minutes_back_each_time(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    """A commit may come later than the time that it carries."""
    await office.background.reconcile(now + 100 * SECOND)
    with crashing(office):
        await office.sent(alice, bob, now)
    await office.background.reconcile(now + 110 * SECOND)
    assert len(await office.poll(bob, now + 110 * SECOND)) == 1


async def test_reconciling_changes_nothing_for_what_is_there_or_in_hands(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    waiting = await office.sent(alice, bob, now)
    await office.sent(alice, bob, now, priority=Priority.HIGH)
    (held,) = await office.poll(bob, now, min_priority=2)
    await office.background.reconcile(now + 10 * SECOND)
    assert await everything(office, bob, now + 10 * SECOND) == {bytes.fromhex(waiting.replay_key)}
    assert isinstance(await office.ack(bob, held, now + 10 * SECOND), Acknowledged)


async def test_a_hot_tier_that_is_away_leaves_the_mark_where_it_was(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    with crashing(office):
        await office.sent(alice, bob, now)
        with pytest.raises(Unavailable):
            await office.background.reconcile(now + 10 * SECOND)
        with pytest.raises(Unavailable):
            await office.rebuild("memory")
    assert await mark(connection, RECONCILED) is None
    await office.background.reconcile(now + 10 * SECOND)
    assert len(await office.poll(bob, now + 10 * SECOND)) == 1


async def test_reconciling_that_has_much_to_do_takes_turns_and_sets_its_mark_at_the_end(
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticks, "_BATCH", 2)
    monkeypatch.setattr(ticks, "_PAGES_A_RUN", 1)
    with crashing(office):
        sent = {bytes.fromhex((await office.sent(alice, bob, now)).replay_key) for _ in range(5)}
    assert [await office.background.reconcile(now + n * MINUTE) for n in (1, 2)] == [True, True]
    assert await mark(connection, RECONCILED) is None
    assert await office.background.reconcile(now + 3 * MINUTE) is False
    assert await mark(connection, RECONCILED) == (now + 55 * SECOND).isoformat()
    assert await everything(office, bob, now + 3 * MINUTE) == sent


async def test_reconciling_goes_on_over_more_than_one_batch(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "_BATCH", 4)
    with crashing(office):
        for n in range(11):
            await office.sent(alice, bob, now + (n // 6) * MS)  # several at one time
    await office.background.reconcile(now + MINUTE)
    assert len(await office.poll(bob, now + MINUTE, max_messages=100)) == 11


async def test_a_hot_tier_that_lost_its_memory_is_filled_again_once(
    office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime, monkeypatch
) -> None:
    monkeypatch.setattr(ticks, "_BATCH", 4)
    memory = await office.hot.birth_mark()
    assert await office.rebuild(memory) == 8
    assert await office.rebuild(memory) == 0
    dead, died = await office.dead(alice, bob, now, priority=Priority.CRITICAL)
    sent = [
        await office.sent(alice, to, now, priority=priority)
        for to in (bob, carol)
        for priority in (Priority.LOW, Priority.CRITICAL, Priority.NORMAL, Priority.LOW, Priority.HIGH)
    ]
    (leased,) = await office.poll(bob, now, max_messages=1)
    await office.forget_everything()
    assert await office.rebuild(await office.hot.birth_mark())
    got = await office.poll(bob, died, max_messages=100)
    # By priority and arrival as before; attempts are forgotten, and so is whose hands it was in.
    assert [int(one.row.priority) for one in got] == [3, 2, 1, 0, 0]
    assert [one.attempt for one in got] == [1] * 5
    assert {one.row.replay_key.hex() for one in got} == {one.replay_key for one in sent[:5]}
    assert dead.replay_key not in {one.row.replay_key.hex() for one in got}
    assert leased.row.replay_key in {one.row.replay_key for one in got}
    assert len(await office.poll(carol, died, max_messages=100)) == 5


async def test_every_bucket_is_rebuilt(
    office: PostOffice, alice: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    ends: dict[int, str] = {}
    for n in range(3000):
        bucket = bucket_of(f"agent-{n}")
        if bucket in (0, 63, 64, 127, 128, 255):
            ends.setdefault(bucket, f"agent-{n}")
    assert len(ends) == 6
    for handle in ends.values():
        agent = Correspondent()
        await agent.enter(office, handle, now)  # type: ignore[arg-type]
        await office.sent(alice, agent, now)
    await office.forget_everything()
    await office.rebuild("another memory")
    assert len(await office.hot._redis.keys("ang:mail:*:ready")) == 6


async def test_what_is_acknowledged_while_its_row_is_being_enqueued_is_not_delivered(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    elsewhere: PostOffice = await another()
    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    await office.forget_everything()
    enqueue, acking = elsewhere.queues.enqueue, []

    async def slow(place: QueuePlace, *rest: Any) -> bool:
        acking.append(asyncio.create_task(office.ack(bob, got, now)))
        await until_blocked(connection)  # it waits for the row
        assert not acking[0].done()
        return await enqueue(place, *rest)

    elsewhere.queues.enqueue = slow  # type: ignore[method-assign]
    await elsewhere.background.reconcile(now + MINUTE)
    assert isinstance(await acking[0], Acknowledged)
    assert await office.poll(bob, now + MINUTE) == []
    assert await office.hot._redis.keys("ang:mail:*") == []


# Partitions.


async def test_receipts_have_a_partition_for_each_day_and_none_in_the_default(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    assert await office.receipts.make_partitions(now) == 0
    names = {
        row["relname"]
        for row in await connection.fetch(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'delivery_receipts'::regclass"
        )
    }
    days = {f"delivery_receipts_{now + n * DAY:%Y%m%d}" for n in range(-1, 8)}
    assert days <= names
    envelope = await office.sent(alice, bob, now, created_at=unix_ms(now) - 250_000)
    where = await connection.fetchval("SELECT tableoid::regclass::text FROM delivery_receipts")
    assert where == f"delivery_receipts_{now - timedelta(milliseconds=250_000):%Y%m%d}"
    # Which day that is depends on what was signed, so a retry hits the same row.
    assert (await office.receipt(alice, envelope)).sent_at == now - timedelta(milliseconds=250_000)
