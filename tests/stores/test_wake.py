"""Wake-ups: everybody who listens hears, nobody who comes in time misses, and a line that is lost is made anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest
import redis.asyncio

from angelia.stores import wake as wake_module
from angelia.stores import wake_line
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Bell, Wake, decode_event, encode_event, on_wait, wake_topic


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def gone() -> AsyncIterator[Wake]:
    """The bells of a process whose hot tier is away."""
    hot = HotTier("unix:///nonexistent/valkey.sock")
    wake = Wake(hot)
    yield wake
    await wake.close()
    await hot.close()


async def cut(client: redis.asyncio.Redis) -> int:
    """Cut every line that listens; how many there were."""
    lines = [one for one in await client.client_list() if int(one["sub"]) > 0]
    for one in lines:
        await client.client_kill_filter(_id=one["id"])
    return len(lines)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# A bell.


async def test_a_ring_that_came_before_counts_once() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert await bell.wait(0)
    assert not await bell.wait(0)


async def test_a_bell_keeps_the_newest_words_for_whoever_comes_late() -> None:
    bell = Bell()
    for n in range(300):
        bell.ring(str(n).encode())
    assert bell.words() == [str(n).encode() for n in range(44, 300)]
    assert bell.words() == []


async def test_an_empty_word_only_wakes() -> None:
    bell = Bell()
    bell.ring(b"")
    assert bell.words() == []
    assert await bell.wait(0)


@pytest.mark.parametrize("data", [b"", b"{}", b"a\nb", b"\0\xff"])
def test_a_word_carries_its_event_and_its_data(data: bytes) -> None:
    assert decode_event(encode_event("receipt", data)) == ("receipt", data)


def test_a_topic_has_a_tag_and_so_a_slot() -> None:
    assert wake_topic("mail", "abc") == "ang:wake:mail:{abc}"


# Listening.


async def test_whoever_listens_hears_from_whatever_process(wake: Wake, elsewhere: Wake) -> None:
    async with wake.listening("a", "b") as bell:
        await elsewhere.tell("a", b"one")
        await elsewhere.tell("b", b"two")
        await elsewhere.tell("c", b"three")
        began = time.monotonic()
        assert await bell.wait(3)
        await until(lambda: len(bell._words) == 2)
        assert time.monotonic() - began < 1
        assert bell.words() == [b"one", b"two"]


async def test_the_own_process_is_rung_at_once_and_not_again_by_its_echo(wake: Wake, elsewhere: Wake) -> None:
    async with wake.listening("a") as own, elsewhere.listening("a") as other:
        telling = asyncio.create_task(wake.tell("a", b"word"))
        await asyncio.sleep(0)
        assert own.words() == [b"word"], "before the hot tier could answer"
        await telling
        assert await other.wait(2)
        assert other.words() == [b"word"]
        # What the other process says comes after the echo, on the same line.
        await elsewhere.tell("a", b"reply")
        await until(lambda: bool(own._words))
        assert own.words() == [b"reply"]


async def test_an_empty_message_rings_in_both_processes_and_carries_no_word(wake: Wake, elsewhere: Wake) -> None:
    async with wake.listening("a") as own, elsewhere.listening("a") as other:
        await wake.tell("a", b"")
        assert await own.wait(0)
        assert await other.wait(2)
        assert (own.words(), other.words()) == ([], [])


async def test_nothing_that_is_said_after_listening_began_is_missed(wake: Wake, elsewhere: Wake) -> None:
    for n in range(30):
        async with wake.listening(f"topic {n % 3}") as bell:
            await elsewhere.tell(f"topic {n % 3}", b"now")
            assert await bell.wait(2), n


async def test_several_that_wait_for_one_thing_all_hear_it_over_one_line(
    wake: Wake, elsewhere: Wake, client: redis.asyncio.Redis
) -> None:
    heard: list[int] = []
    ready = asyncio.Barrier(21)

    async def wait(n: int) -> None:
        async with wake.listening("shared", f"own {n}") as bell:
            await ready.wait()
            if await bell.wait(3):
                heard.append(n)

    waiters = [asyncio.create_task(wait(n)) for n in range(20)]
    await ready.wait()
    assert len([one for one in await client.client_list() if int(one["sub"]) > 0]) == 1
    await elsewhere.tell("shared", b"")
    await asyncio.gather(*waiters)
    assert sorted(heard) == list(range(20))


async def test_one_that_leaves_does_not_make_the_others_deaf(wake: Wake, elsewhere: Wake) -> None:
    async with wake.listening("shared") as stays:
        async with wake.listening("shared"):
            pass
        await elsewhere.tell("shared", b"still")
        assert await stays.wait(2)
        assert stays.words() == [b"still"]


async def test_a_topic_that_nobody_waits_for_is_left(wake: Wake, client: redis.asyncio.Redis) -> None:
    async with wake.listening("a", "b"):
        assert {b"a", b"b"} <= set(await client.pubsub_channels())
        async with wake.listening("b"):
            pass
        assert b"b" in await client.pubsub_channels()
    async with asyncio.timeout(5):
        while {b"a", b"b"} & set(await client.pubsub_channels()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert wake._topics == {}


async def test_leaving_and_coming_again_at_once_hears_all_the_same(wake: Wake, elsewhere: Wake) -> None:
    """The word that a topic is left and the word that it is wanted again are on their way together."""

    async def come_and_go(n: int) -> None:
        for _ in range(10):
            async with wake.listening("busy") as bell:
                await elsewhere.tell("busy", str(n).encode())
                assert await bell.wait(3)

    await asyncio.gather(*(come_and_go(n) for n in range(6)))
    assert "busy" not in wake._topics


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind(wake: Wake) -> None:
    async def wait() -> None:
        async with wake.listening("a") as bell:
            await bell.wait(60)

    for steps in range(0, 40, 3):
        waiting = asyncio.create_task(wait())
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert wake._topics == {}


# A lost line.


async def test_a_line_that_was_cut_is_made_anew_and_hears_again(
    wake: Wake, elsewhere: Wake, client: redis.asyncio.Redis
) -> None:
    async with wake.listening("a") as bell, wake.listening("b") as other:
        assert await cut(client) == 1
        async with asyncio.timeout(5):
            while {b"a", b"b"} - set(await client.pubsub_channels()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        bell.words(), other.words()
        await elsewhere.tell("a", b"again")
        await elsewhere.tell("b", b"again")
        await until(lambda: bool(bell._words and other._words))
        assert (bell.words(), other.words()) == ([b"again"], [b"again"])


async def test_whoever_comes_while_the_line_is_down_is_served_when_it_is_up(
    wake: Wake, elsewhere: Wake, client: redis.asyncio.Redis
) -> None:
    async with wake.listening("a"):
        await cut(client)
        async with wake.listening("late") as bell:
            async with asyncio.timeout(5):
                while b"late" not in await client.pubsub_channels():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await elsewhere.tell("late", b"there")
            async with asyncio.timeout(3):
                while not bell._words:
                    await bell.wait(1)
            assert bell.words() == [b"there"]


async def test_whoever_comes_or_goes_just_as_the_line_breaks_is_not_hurt(
    wake: Wake, elsewhere: Wake, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_module, "_RECONNECT_SECONDS", 0.01)

    async def come(n: int) -> None:
        async with wake.listening(f"late {n}"):
            await asyncio.sleep(0)

    for _ in range(12):
        async with wake.listening("a"):
            await asyncio.gather(cut(client), *(come(n) for n in range(8)), cut(client))
    async with wake.listening("b") as bell:
        await elsewhere.tell("b", b"there")
        await until(lambda: bool(bell._words))
        assert bell.words() == [b"there"]


async def test_a_hot_tier_that_is_away_keeps_nobody_waiting_for_long(gone: Wake) -> None:
    began = time.monotonic()
    async with gone.listening("a") as bell:
        assert time.monotonic() - began < 2
        gone.ring_all()
        assert await bell.wait(1)
    await gone.tell("a", b"nobody hears this, and that is no failure")


async def test_a_lost_line_wakes_everybody_since_nobody_knows_what_was_missed(
    gone: Wake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_module, "_RECONNECT_SECONDS", 0.01)
    async with gone.listening("a") as bell:
        assert await bell.wait(2)
        assert await bell.wait(2)


async def test_a_server_that_says_nothing_any_more_is_a_lost_line(
    wake: Wake, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_line, "PING_SECONDS", 0.1)
    async with wake.listening("a") as bell:
        await client.client_pause(1000, all=True)
        assert await bell.wait(0.9), "rung because something may be missed"
        assert wake.heard_since("a") is None
        await client.client_unpause()
        await until(lambda: wake.heard_since("a") is not None)


async def test_a_quiet_line_stays(wake: Wake, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_line, "PING_SECONDS", 0.02)
    async with wake.listening("a") as bell:
        since = wake.heard_since("a")
        assert not await bell.wait(0.3)
        assert (wake.heard_since("a"), since is None) == (since, False)


# Following.


class Ear:
    """Notes each ring."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def ring(self, message: bytes = b"") -> None:
        self.heard.append(message)


async def test_a_follower_hears_all_and_knows_since_when(wake: Wake, elsewhere: Wake) -> None:
    noted = Ear()
    assert wake.heard_since("news") is None
    wake.follow("news", noted)
    assert wake.heard_since("news") is None, "the server has not confirmed it"
    await until(lambda: wake.heard_since("news") is not None)
    await elsewhere.tell("news", b"one")
    await until(lambda: noted.heard == [b"one"])
    await wake.tell("news", b"two")
    assert noted.heard == [b"one", b"two"]


async def test_a_message_that_a_follower_cannot_read_does_not_end_the_wake_ups(wake: Wake, elsewhere: Wake) -> None:
    class Strict:
        def ring(self, message: bytes = b"") -> None:
            message.decode("ascii")

    wake.follow("news", Strict())
    async with wake.listening("news", "other") as bell:
        since = wake.heard_since("news") or 0
        await elsewhere.tell("news", b"\xff")
        await elsewhere.tell("other", b"next")
        assert await bell.wait(5)
        await until(lambda: b"next" in bell.words())
        assert (wake.heard_since("news") or 0) > since > 0, "what the message said is missing"


async def test_a_follower_whose_line_broke_is_told_and_counts_from_anew(
    wake: Wake, elsewhere: Wake, client: redis.asyncio.Redis
) -> None:
    noted = Ear()
    wake.follow("news", noted)
    await until(lambda: wake.heard_since("news") is not None)
    first = wake.heard_since("news")
    assert await cut(client) == 1
    await until(lambda: noted.heard == [b""])
    await until(lambda: wake.heard_since("news") is not None)
    assert wake.heard_since("news") > first
    await elsewhere.tell("news", b"again")
    await until(lambda: noted.heard == [b"", b"again"])


# The moment of waiting.


async def test_a_poll_that_finds_something_at_once_does_not_begin_to_wait(wake: Wake) -> None:
    begun: list[str] = []
    before = on_wait.set(lambda: begun.append("waits"))
    now = datetime.now(UTC)

    async def look(at: datetime) -> int:
        looks.append(at)
        return len(looks)

    for wanted, expected in ((1, []), (2, ["waits"])):
        looks: list[datetime] = []
        assert await wake.poll(["a"], look, lambda found, wanted=wanted: found == wanted, now, 5) == wanted
        assert begun == expected
    on_wait.reset(before)


# The end.


async def test_stopping_wakes_everybody(wake: Wake) -> None:
    async with wake.listening("a") as one, wake.listening("b") as other:
        waits = [asyncio.create_task(bell.wait(30)) for bell in (one, other)]
        await asyncio.sleep(0)
        wake.stop()
        async with asyncio.timeout(1):
            assert await asyncio.gather(*waits) == [True, True]
    assert wake.stopping


async def test_closing_twice_or_without_a_line_is_no_error(hot: HotTier) -> None:
    wake = Wake(hot)
    await wake.close()
    async with wake.listening("a"):
        pass
    await wake.close()
    await wake.close()


async def test_closing_at_any_step_of_a_connection_ends(redis_url: str) -> None:
    for steps in range(40):
        hot = HotTier(redis_url)
        wake = Wake(hot)
        wake.follow("a", Ear())
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await wake.close()
        await hot.close()


async def test_the_look_is_five_seconds() -> None:
    assert wake_module.RECHECK_SECONDS == 5.0
