"""Nothing older is passed: a message that the hot tier missed or lost is handed out before what came after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from angelia.envelope.ids import hot_tag
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope, Priority
from angelia.errors import DiskFull
from angelia.mail import store
from angelia.mail.api import ReceiveQuery
from angelia.mail.delivery import LeasedEnvelope
from angelia.stores.ledger import Tx
from mail_agents import Correspondent
from mail_office import PostOffice, open_office

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
async def cut_off(database_url: str, office: PostOffice, tmp_path: Path) -> AsyncIterator[PostOffice]:
    """Another web process on the same ledger that cannot reach the hot tier."""
    async with open_office(database_url, "unix:///none", tmp_path) as office:
        yield office


def wires(got: Sequence[LeasedEnvelope]) -> list[bytes]:
    return [one.wire for one in got]


def sent_wires(sent: Sequence[Envelope]) -> list[bytes]:
    return [one.wire for one in sent]


async def test_a_message_that_another_process_could_not_enqueue_is_not_overtaken(
    office: PostOffice, cut_off: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    sent = [await cut_off.sent(alice, bob, now), await office.sent(alice, bob, now)]
    assert wires(await office.poll(bob, now)) == sent_wires(sent)


async def test_what_the_hot_tier_forgot_is_not_overtaken_before_it_is_rebuilt(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    sent = [await office.sent(alice, bob, now) for _ in range(3)]
    await office.forget_everything()
    sent.append(await office.sent(alice, bob, now))
    assert wires(await office.poll(bob, now, max_messages=2)) == sent_wires(sent[:2])
    assert wires(await office.poll(bob, now)) == sent_wires(sent[2:])
    assert await office.poll(bob, now) == []


async def test_more_than_one_page_of_forgotten_messages_comes_in_its_order(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    agent = await office.agent(alice)
    sent = [alice.seal(bob, b"", created_at=unix_ms(now)) for _ in range(130)]
    for at in (0, 65):
        await office.mail.send_many(agent, sent[at : at + 65], now)
    await office.forget_everything()
    sent.append(await office.sent(alice, bob, now))
    first, second = [wires(await office.poll(bob, now, max_messages=100)) for _ in range(2)]
    assert first == sent_wires(sent[:100])
    # The hot tier knows one more, the newest; what stands before it is found again.
    assert second == sent_wires(sent[100:])


async def test_what_is_in_somebodys_hands_does_not_stand_in_the_way_and_does_not_come_twice(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    first = await office.sent(alice, bob, now)
    (held,) = await office.poll(bob, now)
    second = await office.sent(alice, bob, now)
    assert wires(await office.poll(bob, now)) == [second.wire]
    # Its lease runs out: it comes back, before what is newer and was never handed out.
    third = await office.sent(alice, bob, now + MINUTE)
    back = await office.poll(bob, now + MINUTE, max_messages=3)
    assert wires(back) == [first.wire, second.wire, third.wire]
    assert [one.attempt for one in back] == [2, 2, 1]
    assert held.attempt == 1


async def test_a_forgotten_message_of_another_priority_keeps_its_place(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    low = await office.sent(alice, bob, now, priority=Priority.LOW)
    high = await office.sent(alice, bob, now, priority=Priority.HIGH)
    await office.forget_everything()
    critical = await office.sent(alice, bob, now, priority=Priority.CRITICAL)
    normal = await office.sent(alice, bob, now)
    assert wires(await office.poll(bob, now, min_priority=3)) == [critical.wire]
    assert wires(await office.poll(bob, now)) == [high.wire, normal.wire]
    await office.rebuild("new")
    assert wires(await office.poll(bob, now + MINUTE, min_priority=0))[-1] == low.wire


async def test_a_stream_does_not_pass_a_forgotten_message(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    first = await office.sent(alice, bob, now)
    await office.forget_everything()
    second = await office.sent(alice, bob, now)
    agent = await office.agent(bob)
    async with aclosing(office.delivery.stream(agent, 60, 15, now)) as coming:
        told = [await anext(coming) for _ in range(2)]
    assert [one.wire for one in told if isinstance(one, LeasedEnvelope)] == [first.wire, second.wire]


async def test_what_was_lost_and_has_ended_is_not_waited_for(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now, ttl_seconds=30)
    withdrawn = await office.sent(alice, bob, now)
    await office.forget_everything()
    await office.withdraw(alice, withdrawn, now)
    last = await office.sent(alice, bob, now + MINUTE)
    assert wires(await office.poll(bob, now + MINUTE)) == [last.wire]


@pytest.mark.parametrize("last_step", ["lock", "remove"])
async def test_a_withdrawal_that_the_ledger_refuses_lets_nothing_newer_pass(
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    last_step: str,
) -> None:
    sent = [await office.sent(alice, bob, now) for _ in range(2)]
    step = getattr(store, last_step)

    async def full(tx: Tx, *args: Any) -> Any:
        await step(tx, *args)
        await tx.execute("DO $$ BEGIN RAISE disk_full; END $$")

    with monkeypatch.context() as filled:
        filled.setattr(store, last_step, full)
        with pytest.raises(DiskFull):
            await office.withdraw(alice, sent[0], now)
    got = await office.poll(bob, now)
    assert wires(got) == sent_wires(sent)
    assert [one.attempt for one in got] == [1, 1]


async def test_a_claim_that_is_given_up_gives_back_what_it_found_in_the_ledger_too(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [await office.sent(alice, bob, now)]
    await office.forget_everything()
    sent.append(await office.sent(alice, bob, now))
    claim, begun = office.queues.claim_these, asyncio.Event()

    async def slow(*args: object) -> object:
        begun.set()
        return await claim(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as watched:
        watched.setattr(office.queues, "claim_these", slow)
        polling = asyncio.create_task(office.delivery.receive(await office.agent(bob), ReceiveQuery(), now))
        async with asyncio.timeout(10):
            await begun.wait()
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
    # Also for one whose request began a little earlier.
    got = await office.poll(bob, now - timedelta(milliseconds=5))
    assert wires(got) == sent_wires(sent)
    assert [one.attempt for one in got] == [1, 1]


async def test_more_than_one_page_under_a_revoked_key_hides_nothing_and_is_not_looked_at_without_end(
    office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    agent = await office.agent(alice)
    sent = [alice.seal(bob, b"", created_at=unix_ms(now)) for _ in range(110)]
    for first in (0, 55):
        await office.mail.send_many(agent, sent[first : first + 55], now)
    await office.revoke(alice, now + MINUTE, now, signer=True)
    at = now + MINUTE
    good = await office.sent(carol, bob, at)
    # No tick has failed them, as on a full disk.
    assert wires(await office.poll(bob, at)) == [good.wire]
    nothing = await office.delivery.receive(await office.agent(bob), ReceiveQuery(), at + SECOND)
    assert (nothing.messages, nothing.has_more) == ([], False)
    assert nothing.next_return is not None
    assert nothing.next_return > at + SECOND
    # Withdrawn or failed, they are gone for good.
    await office.withdraw(alice, sent[0], at + SECOND)
    await office.background.fail_revoked(at + SECOND)
    assert await office.hot._redis.zcard(f"ang:mail:{{{hot_tag('bob')}}}:lease") == 1


async def test_two_processes_that_find_the_same_lost_message_hand_it_out_once(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    other = await another()
    for _ in range(5):
        sent = [await office.sent(alice, bob, now) for _ in range(3)]
        await office.forget_everything()
        sent += [await office.sent(alice, bob, now) for _ in range(2)]
        both = await asyncio.gather(office.poll(bob, now, max_messages=1), other.poll(bob, now, max_messages=1))
        got = [*both[0], *both[1], *await office.poll(bob, now)]
        assert sorted(wires(got)) == sorted(sent_wires(sent))
        for one in got:
            await office.ack(bob, one, now)


async def test_a_late_enqueue_of_what_was_found_meanwhile_delivers_nothing_again(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    await office.forget_everything()
    await office.sent(alice, bob, now)
    first, _ = await office.poll(bob, now)
    assert not await office.queues.enqueue(first.row, first.wire)
    assert await office.poll(bob, now) == []
