"""The scripts of the hot tier by themselves: order, leases, and that the ledger has the last word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.ids import hot_tag
from angelia.envelope.wire import Priority
from angelia.errors import InvalidArgument
from angelia.mail import model
from angelia.mail.hot_store import HotMail, arrivals, departures
from angelia.mail.model import LeaseToken, QueuePlace
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from mail_agents import Correspondent
from mail_office import PostOffice

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
MS, SECOND, MINUTE = timedelta(milliseconds=1), timedelta(seconds=1), timedelta(minutes=1)
BEYOND = 1 << 47  # a number so high that scores of low priority pass 2^49


@pytest.fixture
def queues(hot: HotTier, wake: Wake) -> HotMail:
    return HotMail(hot, wake)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.aclose()


def mref(n: int) -> bytes:
    """Names fall as numbers rise: where scores are equal, the hot tier goes by names."""
    return ((1 << 100) - n).to_bytes(16, "big")


def number(name: bytes) -> int:
    return (1 << 100) - int.from_bytes(name, "big")


def place(n: int, priority: int = 1, seq: int | None = None, recipient: str = "bob") -> QueuePlace:
    return QueuePlace(
        recipient=recipient,
        mref=mref(n),
        replay_key=b"",
        priority=Priority(priority),
        seq=n if seq is None else seq,
        queued_at=NOW,
    )


async def claimed(queues: HotMail, at: datetime = NOW, most: int = 100, min_priority: int = 0) -> list[int]:
    got = await queues.claim("bob", most, min_priority, at, at + 30 * SECOND)
    return [number(one.mref) for one in got.messages]


# The order.


async def test_by_priority_then_by_number(queues: HotMail) -> None:
    for n, priority in enumerate((0, 3, 1, 3, 2, 0)):
        await queues.enqueue(place(n, priority))
    assert await claimed(queues) == [1, 3, 4, 2, 0, 5]


async def test_neighbours_keep_their_order_where_scores_have_fifteen_digits(
    queues: HotMail, client: redis.asyncio.Redis
) -> None:
    for n in (7, 3, 9, 1, 5, 2, 8):
        await queues.enqueue(place(n, 0, BEYOND + n))
    ready = f"ang:mail:{{{hot_tag('bob')}}}:ready"
    lowest = await client.zrange(ready, 0, 0, withscores=True)
    assert lowest[0][1] == 3 * 2**48 + BEYOND + 1 > 2**49
    for n in range(3):
        # Also after a lease: a score that went through Lua's numbers would have lost its last digits.
        assert await claimed(queues, NOW + n * MINUTE) == [1, 2, 3, 5, 7, 8, 9]
    later = NOW + 2 * MINUTE
    for n in (8, 7):
        (lease,) = await queues.leases("bob", [mref(n)])
        assert lease is not None
        await queues.put_back("bob", [LeaseToken(mref(n), lease.secret)], later)
    assert await claimed(queues, later) == [7, 8]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2**48 - 1)), min_size=1, max_size=50),
    st.integers(0, 3),
)
def test_a_score_is_exact_in_a_double_and_orders_as_the_contract_says(
    places: list[tuple[int, int]], least: int
) -> None:
    for priority, seq in places:
        value = model.score(priority, seq)
        assert int(float(value)) == value
        assert (value <= model.last_score(least)) == (priority >= least)
    by_score = sorted(places, key=lambda one: model.score(*one))
    assert by_score == sorted(places, key=lambda one: (-one[0], one[1]))


async def test_a_minimum_priority_stops_at_its_border(queues: HotMail) -> None:
    for n, (priority, seq) in enumerate([(2, 2**48 - 1), (1, 1), (1, 2**48 - 1), (0, 1)]):
        await queues.enqueue(place(n, priority, seq))
    assert await claimed(queues, min_priority=2) == [0]
    assert await claimed(queues, min_priority=1) == [1, 2]
    assert await claimed(queues) == [3]


# Into the queue.


async def test_enqueue_says_whether_it_is_new_and_wakes_only_then(queues: HotMail, wake: Wake, elsewhere: Wake) -> None:
    async with wake.listening(arrivals("bob")) as here, elsewhere.listening(arrivals("bob")) as there:
        assert await queues.enqueue(place(1))
        assert await here.wait(0)
        assert await there.wait(2)
        assert not await queues.enqueue(place(1))
        assert await claimed(queues) == [1]
        assert not await queues.enqueue(place(1))  # in somebody's hands
        await elsewhere.tell(arrivals("bob"), b"the last word")
        await there.wait(2)
        assert there.words() == [b"the last word"]
        assert not await there.wait(0)
        assert await here.wait(2)
        assert (here.words(), await here.wait(0)) == ([b"the last word"], False)
    assert await claimed(queues) == []


async def test_a_message_that_is_put_back_wakes_polls_of_all_processes_unless_quietly(
    queues: HotMail, wake: Wake, elsewhere: Wake
) -> None:
    for n in (1, 2):
        await queues.enqueue(place(n))
    first, second = (await queues.claim("bob", 2, 0, NOW, NOW + MINUTE)).messages
    async with wake.listening(arrivals("bob")) as here, elsewhere.listening(arrivals("bob")) as there:
        assert await queues.put_back("bob", [first.token], NOW, quietly=True) == 1
        assert not await here.wait(0)
        assert await queues.put_back("bob", [second.token], NOW) == 1
        assert await here.wait(0)
        assert await there.wait(2)
        assert await queues.put_back("bob", [second.token], NOW) == 0
        assert not await here.wait(0)


async def test_a_script_whose_answer_does_not_come_may_have_run_and_rings(
    queues: HotMail, wake: Wake, client: redis.asyncio.Redis
) -> None:
    await queues.enqueue(place(1))
    async with wake.listening(arrivals("bob")) as bell:
        await client.client_pause(2000, all=True)
        asking = asyncio.create_task(queues.enqueue(place(2)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await bell.wait(0)
        await client.client_unpause()


async def test_an_enqueue_does_not_move_what_is_there(queues: HotMail) -> None:
    for n in (1, 2):
        await queues.enqueue(place(n))
    await queues.enqueue(place(1, seq=99))
    assert await claimed(queues) == [1, 2]


async def test_recipients_have_queues_of_their_own(queues: HotMail, client: redis.asyncio.Redis) -> None:
    await queues.enqueue(place(1))
    await queues.enqueue(place(2, recipient="carol"))
    assert await claimed(queues) == [1]
    names = [name.decode() for name in await client.keys("*") if name != b"ang:birth"]
    # Names hold hashes of handles, never handles, and all of a recipient's share one tag.
    assert not any("bob" in name or "carol" in name for name in names)
    assert {name.split(":")[2] for name in names} == {f"{{{hot_tag(one)}}}" for one in ("bob", "carol")}


async def test_a_copy_lives_as_long_as_its_message_and_ten_minutes_at_most(
    queues: HotMail, client: redis.asyncio.Redis
) -> None:
    await queues.enqueue(place(1), b"short", 10 * SECOND)
    await queues.enqueue(place(2), b"long", timedelta(days=30))
    await queues.enqueue(place(3), b"over", timedelta(seconds=-5))
    short, long = (f"ang:mail:{{{hot_tag('bob')}}}:env:{mref(n).hex()}" for n in (1, 2))
    assert 9_000 < await client.pttl(short) <= 10_000
    assert 590_000 < await client.pttl(long) <= 600_000
    got = await queues.claim("bob", 10, 0, NOW, NOW + SECOND)
    assert [one.copy for one in got.messages][:2] == [b"short", b"long"]


async def test_bytes_of_a_copy_are_passed_on_as_they_are(queues: HotMail) -> None:
    wire = bytes(range(256)) * 8
    await queues.enqueue(place(1), wire)
    (got,) = (await queues.claim("bob", 1, 0, NOW, NOW + SECOND)).messages
    assert got.copy == wire


# Leases.


async def test_a_claim_counts_and_remembers_when_the_first_one_was(queues: HotMail) -> None:
    await queues.enqueue(place(1))
    seen = []
    for n in range(3):
        at = NOW + n * MINUTE
        (got,) = (await queues.claim("bob", 5, 0, at, at + 30 * SECOND)).messages
        seen.append((got.attempt, got.first_leased))
    assert seen == [(1, NOW), (2, NOW), (3, NOW)]


async def test_a_claim_tells_when_the_next_one_comes_back_and_whether_more_waits(queues: HotMail) -> None:
    for n in range(3):
        await queues.enqueue(place(n))
    first = await queues.claim("bob", 1, 0, NOW, NOW + 30 * SECOND)
    second = await queues.claim("bob", 1, 0, NOW, NOW + 10 * SECOND)
    third = await queues.claim("bob", 5, 0, NOW, NOW + 20 * SECOND)
    none = await queues.claim("bob", 5, 0, NOW, NOW + 5 * SECOND)
    assert [one.more for one in (first, second, third, none)] == [True, True, False, False]
    assert [one.next_return for one in (first, second, third, none)] == [
        NOW + 30 * SECOND,
        NOW + 10 * SECOND,
        NOW + 10 * SECOND,
        NOW + 10 * SECOND,
    ]


async def test_a_lease_ends_at_its_millisecond(queues: HotMail) -> None:
    await queues.enqueue(place(1))
    await queues.claim("bob", 1, 0, NOW, NOW + SECOND)
    assert await claimed(queues, NOW + SECOND - MS) == []
    assert await claimed(queues, NOW + SECOND) == [1]


async def test_only_whoever_has_the_lease_puts_back(queues: HotMail) -> None:
    await queues.enqueue(place(1))
    (old,) = (await queues.claim("bob", 1, 0, NOW, NOW + SECOND)).messages
    (new,) = (await queues.claim("bob", 1, 0, NOW + SECOND, NOW + MINUTE)).messages
    assert not await queues.put_back("bob", [LeaseToken(mref(1), old.token.secret)], NOW)
    assert not await queues.put_back("bob", [LeaseToken(mref(1), "")], NOW)
    assert not await queues.put_back("bob", [LeaseToken(mref(2), new.token.secret)], NOW)
    assert await queues.put_back("bob", [LeaseToken(mref(1), new.token.secret)], NOW + 10 * SECOND)
    assert not await queues.put_back("bob", [LeaseToken(mref(1), new.token.secret)], NOW)
    assert await claimed(queues, NOW + 10 * SECOND - MS) == []
    assert await claimed(queues, NOW + 10 * SECOND) == [1]


async def test_a_back_off_counts_also_for_a_message_whose_lease_ran_out(queues: HotMail) -> None:
    for n in (1, 2):
        await queues.enqueue(place(n))
    got = (await queues.claim("bob", 2, 0, NOW, NOW + SECOND)).messages
    # Both are back in the queue, and the first is somebody else's by now.
    assert await claimed(queues, NOW + SECOND, most=1) == [1]
    assert await queues.put_back("bob", [LeaseToken(mref(2), got[1].token.secret)], NOW + MINUTE)
    assert await claimed(queues, NOW + 2 * SECOND) == []
    assert await claimed(queues, NOW + MINUTE) == [1, 2]


async def test_what_is_put_back_uncounted_was_no_attempt(queues: HotMail) -> None:
    await queues.enqueue(place(1))
    for _ in range(3):
        (got,) = (await queues.claim("bob", 1, 0, NOW, NOW + SECOND)).messages
        assert got.attempt == 1
        await queues.put_back("bob", [LeaseToken(mref(1), got.token.secret)], NOW, uncounted=True)
    (later,) = (await queues.claim("bob", 1, 0, NOW + MINUTE, NOW + 2 * MINUTE)).messages
    assert (later.attempt, later.first_leased) == (1, NOW + MINUTE)


async def test_secrets_are_new_each_time_and_never_the_same_for_two(queues: HotMail) -> None:
    for n in range(50):
        await queues.enqueue(place(n))
    got = (await queues.claim("bob", 50, 0, NOW, NOW + SECOND)).messages
    again = (await queues.claim("bob", 50, 0, NOW + SECOND, NOW + MINUTE)).messages
    assert len({one.token.secret for one in (*got, *again)}) == 100
    assert all(len(one.token.secret) == 32 for one in got)


async def test_messages_are_claimed_by_name_if_nobody_has_them(queues: HotMail) -> None:
    for n in range(4):
        await queues.enqueue(place(n), str(n).encode())
    await queues.claim("bob", 1, 0, NOW, NOW + MINUTE)
    wanted = [place(n) for n in (0, 2, 7, 3)]
    got = await queues.claim_these("bob", wanted, NOW, NOW + MINUTE, 2)
    # Also one that the index has forgotten: the ledger named it.
    assert [number(one.mref) for one in got] == [2, 7]
    assert [one.copy for one in got] == [b"2", None]
    assert await claimed(queues) == [1, 3]
    assert [one.attempt for one in await queues.claim_these("bob", wanted, NOW + MINUTE, NOW, 9)] == [2, 2, 2, 2]


async def test_a_message_is_held_back_only_before_its_first_lease(queues: HotMail) -> None:
    for n in (1, 2):
        await queues.enqueue(place(n))
    assert await queues.hold(place(1), NOW, NOW + 10 * SECOND)
    assert await queues.hold(place(1), NOW, NOW + 10 * SECOND)  # who holds it may say so again
    assert await claimed(queues) == [2]
    assert not await queues.hold(place(2), NOW, NOW + 10 * SECOND)
    (got,) = (await queues.claim("bob", 5, 0, NOW + 10 * SECOND, NOW + 20 * SECOND)).messages
    assert (got.mref, got.attempt) == (mref(1), 1)
    assert await queues.hold(place(9), NOW, NOW + SECOND)  # not in the index: a crash
    assert not await queues.hold(place(1), NOW + MINUTE, NOW + 2 * MINUTE)


async def test_two_that_claim_at_once_get_different_messages(queues: HotMail) -> None:
    for n in range(40):
        await queues.enqueue(place(n))
    got = await asyncio.gather(*(claimed(queues, most=6) for _ in range(8)))
    assert sorted(n for one in got for n in one) == list(range(40))


# Out of it.


@pytest.mark.parametrize("process", ["this one", "another"])
async def test_remove_leaves_no_trace_and_tells_whoever_listens(
    queues: HotMail, wake: Wake, elsewhere: Wake, client: redis.asyncio.Redis, process: str
) -> None:
    ears = wake if process == "this one" else elsewhere
    for n in range(3):
        await queues.enqueue(place(n), b"copy")
    await queues.claim("bob", 2, 0, NOW, NOW + SECOND)
    async with ears.listening(departures("bob")) as room, ears.listening("said") as bell:
        await queues.remove("bob", [mref(n) for n in range(3)], [("said", b"one\0"), ("said", b"two")])
        assert await room.wait(2)
        words: list[bytes] = []
        while len(words) < 2:
            assert await bell.wait(2)
            words += bell.words()
        assert words == [b"one\0", b"two"]
    assert [name for name in await client.keys("*") if name != b"ang:birth"] == []


async def test_what_is_removed_is_not_put_back_by_an_old_lease(queues: HotMail) -> None:
    await queues.enqueue(place(1))
    (got,) = (await queues.claim("bob", 1, 0, NOW, NOW + SECOND)).messages
    await queues.remove("bob", [mref(1)])
    assert not await queues.put_back("bob", [LeaseToken(mref(1), got.token.secret)], NOW)
    assert await queues.leases("bob", [mref(1)]) == [None]
    assert await claimed(queues, NOW + MINUTE) == []


async def test_a_thousand_leases_end_in_one_claim_and_the_others_in_the_next(queues: HotMail) -> None:
    for n in range(1200):
        await queues.enqueue(place(n))
    for _ in range(12):
        await queues.claim("bob", 100, 0, NOW, NOW + SECOND)
    first = await queues.claim("bob", 100, 0, NOW + MINUTE, NOW + 2 * MINUTE)
    assert len(first.messages) == 100
    assert first.next_return is not None
    assert first.next_return <= NOW + MINUTE  # look again at once
    rest = [len(await claimed(queues, NOW + MINUTE)) for _ in range(12)]
    assert sum(rest) == 1100


# With the ledger.


async def test_an_enqueue_that_arrives_after_the_acknowledgment_delivers_nothing(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    await office.ack(bob, got, now)
    assert await office.queues.enqueue(got.row, got.wire)
    assert await office.poll(bob, now) == []
    assert await office.hot._redis.keys("ang:mail:*") == []


async def test_a_forgotten_index_comes_back_from_the_ledger_alone(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    sent = [await office.sent(alice, bob, now, ttl_seconds=600) for _ in range(3)]
    await office.forget_everything()
    assert await office.poll(bob, now) == []
    await office.rebuild(await office.hot.birth_mark())
    got = await office.poll(bob, now)
    assert [one.wire for one in got] == [one.wire for one in sent]


# Tokens.


@pytest.mark.parametrize(
    "token", ["", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", " " + "0" * 63, "g" * 64, "٠" * 64]
)
def test_a_token_has_one_spelling(token: str) -> None:
    with pytest.raises(InvalidArgument):
        LeaseToken.parse(token)


@given(st.binary(min_size=16, max_size=16))
def test_a_token_names_its_message_and_its_lease(raw: bytes) -> None:
    secret = model.new_secrets(1)
    assert LeaseToken.parse(str(LeaseToken(raw, secret))) == (raw, secret)
