"""Bounds: a queue has so many messages and bytes, one sender half of them, and nothing is ever evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg
import pytest

from angelia.envelope.times import unix_ms
from angelia.errors import AngeliaError, QueueFull
from angelia.mail import model, service
from angelia.mail.model import NewEnvelope
from http_agents import Server
from mail_agents import Correspondent
from mail_office import PostOffice, left

SECOND = timedelta(seconds=1)


@pytest.fixture
def six(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "QUEUE_MAX", 6)


async def refused(office: PostOffice, who: Correspondent, to: Correspondent, now: datetime, body: bytes = b"") -> bool:
    try:
        await office.sent(who, to, now, body)
    except QueueFull:
        return True
    return False


def test_the_bounds_are_those_of_the_contract() -> None:
    assert (model.QUEUE_MAX, model.QUEUE_BYTES_MAX, model.SENDER_SHARE) == (10_000, 64 << 20, 0.5)


async def test_one_sender_has_half_of_a_queue_and_all_of_them_the_whole(
    office: PostOffice, six: None, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    dave = Correspondent()
    await dave.enter(office, "dave", now)  # type: ignore[arg-type]
    assert [await refused(office, alice, bob, now) for _ in range(4)] == [False] * 3 + [True]
    assert [await refused(office, carol, bob, now) for _ in range(4)] == [False] * 3 + [True]
    assert await refused(office, dave, bob, now)
    # Each recipient has a queue of its own.
    assert not await refused(office, alice, carol, now)


async def test_a_full_queue_is_429_and_says_when_to_come_again(
    server: Server, six: None, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    first = [await alice.sent(server, bob, str(n).encode()) for n in range(3)]
    answer = await alice.mail(server, alice.seal(bob))
    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) > 0
    # What was refused left nothing, and what was there is still there.
    assert await left(connection) == {"envelopes": 3, "sent_ids": 3, "delivery_receipts": 3}
    assert [one.replay_key for one in await bob.poll(server)] == [one.replay_key for one in first]


async def test_the_same_bytes_again_are_no_new_message_in_a_full_queue(
    server: Server, six: None, alice: Correspondent, bob: Correspondent
) -> None:
    first = [await alice.sent(server, bob) for _ in range(3)]
    assert (await alice.mail(server, first[0])).status_code == 200


async def test_what_is_handed_out_still_counts_and_what_is_settled_makes_room(
    office: PostOffice, six: None, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for _ in range(3):
        await office.sent(alice, bob, now)
    got = await office.poll(bob, now)
    assert await refused(office, alice, bob, now)
    await office.ack(bob, got[0], now)
    assert not await refused(office, alice, bob, now)
    assert await refused(office, alice, bob, now)


async def test_a_refused_message_can_be_sent_when_there_is_room(
    office: PostOffice, six: None, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for _ in range(3):
        await office.sent(alice, bob, now)
    envelope = alice.seal(bob, created_at=unix_ms(now))
    with pytest.raises(QueueFull):
        await office.send(alice, envelope, now)
    (got, *_) = await office.poll(bob, now)
    await office.ack(bob, got, now)
    assert (await office.send(alice, envelope, now + SECOND)).new


async def test_bytes_are_bounded_too(
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    carol: Correspondent,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "QUEUE_BYTES_MAX", 40_000)
    assert [await refused(office, alice, bob, now, b"x" * 5000) for _ in range(3)] == [False, False, True]
    assert not await refused(office, carol, bob, now, b"x" * 12_000)
    assert await refused(office, carol, bob, now, b"x" * 12_000)
    assert [await refused(office, alice, bob, now), await refused(office, carol, bob, now)] == [True, True]


async def test_what_comes_at_once_in_one_process_passes_no_bound(
    office: PostOffice,
    six: None,
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    connection: asyncpg.Connection,
) -> None:
    outcomes = await asyncio.gather(*(refused(office, alice, bob, now) for _ in range(20)))
    assert outcomes.count(False) == 3
    assert (await left(connection))["envelopes"] == 3


async def test_the_same_bytes_at_once_are_one_message_also_where_there_is_room_for_one(
    office: PostOffice, another, six: None, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    elsewhere: PostOffice = await another()
    for _ in range(2):
        await office.sent(alice, bob, now)
    envelope = alice.seal(bob, created_at=unix_ms(now))
    sent = await asyncio.gather(*(place.send(alice, envelope, now) for place in (office, elsewhere) * 4))
    assert sorted(one.new for one in sent) == [False] * 7 + [True]
    assert await refused(office, alice, bob, now)


async def test_of_a_batch_as_many_are_taken_as_there_is_room_for(
    office: PostOffice, six: None, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    made = [alice.seal(to, created_at=unix_ms(now)) for to in (bob, bob, carol, bob, bob, carol)]
    outcomes = await office.mail.send_many(await office.agent(alice), made, now)
    assert [isinstance(one, QueueFull) for one in outcomes] == [False, False, False, False, True, False]


async def test_dead_letters_take_room_too_so_that_they_are_no_way_to_hold_more(
    office: PostOffice, six: None, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for _ in range(3):
        await office.dead(alice, bob, now)
    assert await refused(office, alice, bob, now)


def codes(outcomes: Sequence[object]) -> list[str]:
    return [one.code if isinstance(one, AngeliaError) else "stored" for one in outcomes]


async def test_what_finds_no_room_takes_none_from_others_of_its_batch(
    office: PostOffice, six: None, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    for _ in range(3):
        await office.sent(alice, bob, now)  # her half
    sealed = [
        who.seal(bob, created_at=unix_ms(now)) for who in (alice, alice, alice, alice, carol, carol, carol, carol)
    ]
    async with office.ledger.statement() as tx:
        outcomes = await service._write(tx, [NewEnvelope.offered(one, now) for one in sealed])
    assert codes(outcomes) == ["queue_full"] * 4 + ["stored"] * 3 + ["queue_full"]
    assert {str(one).splitlines()[0] for one in outcomes[:4]} == {"half of what bob can hold is yours already"}
    assert str(outcomes[7]).startswith("the queue of bob is full")


async def test_a_large_message_that_finds_no_room_keeps_no_small_one_out(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "QUEUE_BYTES_MAX", 40_000)
    made = [alice.seal(bob, body, created_at=unix_ms(now)) for body in (b"x" * 30_000, b"small")]
    outcomes = await office.mail.send_many(await office.agent(alice), made, now)
    assert codes(outcomes) == ["queue_full", "stored"]
