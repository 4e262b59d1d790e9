"""The hot tier: its birth mark tells when its memory began, and every fault of it is one and the same error."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from angelia.errors import Unavailable
from angelia.stores import hot_line
from angelia.stores.valkey import BIRTH, HotTier, Script, now_ms


def script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ECHO = script("return ARGV[1]")
BUSY = "for _ = 1, 3e6 do end"  # some tens of milliseconds; a script's clock stands still
PICKY = script("if ARGV[1] == 'bad' then return redis.error_reply('ERR no') end return ARGV[1]")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """The same server, without what Angelia makes of it."""
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def another(redis_url: str) -> AsyncIterator[Callable[[], HotTier]]:
    """Hot tiers as so many processes have them."""
    made: list[HotTier] = []

    def make() -> HotTier:
        made.append(HotTier(redis_url))
        return made[-1]

    yield make
    for hot in made:
        await hot.close()


async def run_id(client: redis.asyncio.Redis) -> str:
    return str((await client.info("server"))["run_id"])


# The birth mark.


async def mark(client: redis.asyncio.Redis, run: str, ms: int) -> None:
    await client.set(BIRTH, f"{run}:{ms}")


async def test_the_first_connection_sets_the_birth_mark(hot: HotTier, client: redis.asyncio.Redis) -> None:
    before = now_ms()
    await hot.ping()
    run, _, at = (await client.get(BIRTH)).decode().rpartition(":")
    assert (run, before <= int(at) <= now_ms()) == (await run_id(client), True)


async def test_a_mark_of_this_run_stays_whoever_comes_later(another, client: redis.asyncio.Redis) -> None:
    await mark(client, await run_id(client), 1000)
    assert [await another().birth() for _ in range(3)] == [1000, 1000, 1000]


async def test_of_many_that_come_at_once_one_sets_the_mark(another) -> None:
    births = await asyncio.gather(*(another().birth() for _ in range(8)))
    assert len(set(births)) == 1


async def test_a_memory_that_was_emptied_begins_anew_for_all(another, client: redis.asyncio.Redis) -> None:
    await mark(client, await run_id(client), 1000)
    early, late = another(), another()
    assert [await early.birth(), await late.birth()] == [1000, 1000]
    before = now_ms()
    await client.flushall()
    renewed = await late.birth()
    assert renewed >= before
    assert await early.birth() == renewed


async def test_a_mark_of_another_run_is_renewed(hot: HotTier, client: redis.asyncio.Redis) -> None:
    before = now_ms()
    await mark(client, "0" * 40, 1000)
    assert await hot.birth() >= before
    assert (await client.get(BIRTH)).decode().startswith(await run_id(client))


async def test_a_run_id_that_only_begins_like_ours_is_another(hot: HotTier, client: redis.asyncio.Redis) -> None:
    before = now_ms()
    await mark(client, await run_id(client) + "0", 1000)
    assert await hot.birth() >= before


async def test_the_mark_never_expires(hot: HotTier, client: redis.asyncio.Redis) -> None:
    await hot.ping()
    assert await client.ttl(BIRTH) == -1


async def test_each_process_knows_the_run_that_it_talks_to(hot: HotTier, client: redis.asyncio.Redis) -> None:
    await hot.ping()
    assert hot.run_id == await run_id(client)


# Scripts.


async def test_a_script_that_was_forgotten_is_taught_again(hot: HotTier, client: redis.asyncio.Redis) -> None:
    for word in (b"first", b"again"):
        await client.script_flush()
        assert await hot.run(ECHO, [], [word]) == word
        assert await hot.run(ECHO, [], [word]) == word


async def test_keys_and_arguments_arrive_in_their_places(hot: HotTier) -> None:
    told = script("return {KEYS[1], KEYS[2], ARGV[1], ARGV[2], #KEYS, #ARGV}")
    assert await hot.run(told, ["{a}1", "{a}2"], [b"\x00\xff", 7]) == [b"{a}1", b"{a}2", b"\x00\xff", b"7", 2, 2]


async def test_a_thousand_calls_at_once_get_each_their_own_answer(hot: HotTier) -> None:
    answers = await asyncio.gather(*(hot.run(ECHO, [], [n]) for n in range(1000)))
    assert answers == [str(n).encode() for n in range(1000)]


async def test_calls_after_a_flush_of_scripts_get_each_their_own_answer(
    hot: HotTier, client: redis.asyncio.Redis
) -> None:
    await client.script_flush()
    answers = await asyncio.gather(*(hot.run(ECHO, [], [n]) for n in range(300)))
    assert answers == [str(n).encode() for n in range(300)]


async def test_a_script_that_fails_fails_for_its_own_caller_only(hot: HotTier) -> None:
    words = ["a", "bad", "b", "bad", "c"]
    answers = await asyncio.gather(*(hot.run(PICKY, [], [word]) for word in words), return_exceptions=True)
    assert [answer if isinstance(answer, bytes) else type(answer) for answer in answers] == [
        b"a",
        Unavailable,
        b"b",
        Unavailable,
        b"c",
    ]


async def test_a_caller_that_leaves_disturbs_nobody(hot: HotTier) -> None:
    calls = [asyncio.create_task(hot.run(ECHO, [], [n])) for n in range(20)]
    await asyncio.sleep(0)
    for gone in calls[::2]:
        gone.cancel()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*calls[1::2]) == [str(n).encode() for n in range(1, 20, 2)]


async def test_calls_that_come_while_the_server_is_busy_are_answered_in_their_order(
    hot: HotTier, client: redis.asyncio.Redis
) -> None:
    order: list[int] = []

    async def call(number: int) -> None:
        assert await hot.run(ECHO, [], [number]) == str(number).encode()
        order.append(number)

    busy = asyncio.create_task(client.eval(BUSY, 0))
    async with asyncio.timeout(5):
        await asyncio.gather(busy, *(call(number) for number in range(50)))
    assert order == list(range(50))


async def test_many_who_come_first_at_once_share_one_connection(another, client: redis.asyncio.Redis) -> None:
    hot = another()
    before = {one["id"] for one in await client.client_list()}
    await asyncio.gather(*(hot.run(ECHO, [], [n]) for n in range(20)))
    assert len({one["id"] for one in await client.client_list()} - before) == 1


async def test_a_server_that_says_nothing_is_unavailable_for_all_who_wait_and_the_next_call_begins_anew(
    hot: HotTier, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_line, "ANSWER_SECONDS", 0.2)
    await hot.run(ECHO, [], [0])
    await client.client_pause(1500, all=True)
    async with asyncio.timeout(1):
        told = await asyncio.gather(*(hot.run(ECHO, [], [n]) for n in range(5)), return_exceptions=True)
    assert [type(one) for one in told] == [Unavailable] * 5
    monkeypatch.undo()
    await client.client_unpause()
    assert await hot.run(ECHO, [], ["after"]) == b"after"


async def test_a_line_that_breaks_is_told_to_all_who_wait(hot: HotTier, client: redis.asyncio.Redis) -> None:
    await hot.run(ECHO, [], [0])
    await client.client_pause(1000, all=True)
    waiting = [asyncio.create_task(hot.run(ECHO, [], [n])) for n in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    hot._line._transport.abort()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    await client.client_unpause()
    assert [type(one) for one in told] == [Unavailable] * 5
    assert await hot.run(ECHO, [], ["after"]) == b"after"


# Marks.


async def test_a_mark_lives_as_long_as_it_is_told(hot: HotTier, client: redis.asyncio.Redis) -> None:
    await hot.set_mark("mortal", 60_000)
    await hot.set_mark("immortal", None)
    assert 50_000 < await client.pttl("mortal") <= 60_000
    assert await client.pttl("immortal") == -1
    await hot.forget("mortal", "immortal", "never there")
    assert await client.exists("mortal", "immortal") == 0


# Faults.

ACTS: dict[str, Callable[[HotTier], Awaitable[Any]]] = {
    "ping": lambda hot: hot.ping(),
    "run": lambda hot: hot.run(ECHO, [], [1]),
    "birth": lambda hot: hot.birth(),
    "set_mark": lambda hot: hot.set_mark("a", 1),
    "forget": lambda hot: hot.forget("a"),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_a_hot_tier_that_is_away_is_unavailable_and_says_when_to_try_again(act) -> None:
    hot = HotTier("unix:///nonexistent/valkey.sock")
    async with asyncio.timeout(3):
        with pytest.raises(Unavailable) as caught:
            await act(hot)
    await hot.close()
    assert caught.value.retry_after == 1
    assert caught.value.__cause__ is not None
    assert "nonexistent" not in caught.value.message + caught.value.hint


async def test_a_wrong_password_is_unavailable(redis_url: str) -> None:
    mark = "&" if "?" in redis_url else "?"
    hot = HotTier(f"{redis_url}{mark}username=nobody&password=wrong")
    with pytest.raises(Unavailable):
        await hot.ping()
    await hot.close()


async def test_connections_that_the_server_closed_are_replaced(hot: HotTier, client: redis.asyncio.Redis) -> None:
    await asyncio.gather(*(hot.run(ECHO, [], [n]) for n in range(10)))
    own = await client.client_id()
    for other in await client.client_list():
        if int(other["id"]) != own:
            await client.client_kill_filter(_id=other["id"])
    answers = await asyncio.gather(*(hot.run(ECHO, [], [n]) for n in range(3)), return_exceptions=True)
    assert all(isinstance(answer, bytes | Unavailable) for answer in answers)
    assert await hot.run(ECHO, [], ["after"]) == b"after"
