"""What a process remembers of partitions that may have messages: bounded by what is used."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from angelia.queues import readiness
from angelia.queues.news import Told
from angelia.queues.readiness import Place, Readiness, Ready, Scope

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
PLACE = Place("orders", 0)


def scope(group: str = "g", queue: str | None = "orders") -> Scope:
    return Scope(group, queue, None, None, None)


def told(partition_no: int, priority: int = 0, queue: str = "orders") -> Told:
    return Told(queue, "", "", priority, f"p{partition_no}", partition_no)


async def test_waits_that_ended_leave_nothing_behind() -> None:
    ready = Ready(scope())
    for _ in range(100):
        with ready.waiting() as waiter:
            await waiter.wait(0)
    assert not ready._waiters


async def test_a_partition_wakes_the_request_that_waits_longest() -> None:
    ready = Ready(scope())
    woken: list[str] = []

    async def request(name: str) -> None:
        with ready.waiting() as waiter:
            await waiter.wait(30)
            woken.append(name)
            ready.take(1, NOW)

    waiting = [asyncio.create_task(request(name)) for name in ("first", "second")]
    for count in (1, 2):
        await asyncio.sleep(0)
        ready.add(count, PLACE)
        async with asyncio.timeout(5):
            await waiting[count - 1]
    assert woken == ["first", "second"]


async def test_a_request_that_leaves_hands_on_what_it_watched_for() -> None:
    """Only the first one knows when the partition is due; it hangs up before."""
    ready = Ready(scope())
    ready.looked(None, 0.0)
    with ready.waiting() as other:
        with ready.waiting() as first:
            ready.add(1, PLACE, NOW + timedelta(seconds=1))
            await first.wait(0)
        async with asyncio.timeout(5):
            await other.wait(30)
        assert ready.pause(NOW) <= 1


def test_times_that_do_not_count_any_more_are_forgotten() -> None:
    ready = Ready(scope())
    ready.add(1, PLACE, NOW + timedelta(days=1))
    for second in range(10_000):
        ready.add(2, PLACE, NOW + timedelta(days=2, seconds=second))
    assert len(ready._due) < 100
    assert ready.take(10, NOW + timedelta(days=3)) == {1: PLACE, 2: PLACE}


def test_higher_priorities_are_taken_first_also_after_a_priority_changed() -> None:
    ready = Ready(scope(queue=None))
    for partition_no, priority in ((1, 0), (2, 5), (3, 1), (4, 5)):
        ready.add(partition_no, Place("q", priority))
    ready.add(1, Place("q", 9))
    ready.add(2, Place("q", 0))
    assert [list(ready.take(2, NOW)) for _ in range(3)] == [[1, 4], [3, 2], []]


async def test_scopes_that_no_request_uses_are_forgotten_and_gather_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_IDLE_SECONDS", -1.0)
    known = Readiness()
    with known.used(scope("used")) as used:
        for number in range(50):
            with known.used(scope(f"idle {number}")):
                pass
        for partition_no in range(20):
            known.tell(told(partition_no))
        assert len(used.take(100, NOW)) == 20
        assert list(known._ready) == [scope("used")]
        assert list(known._by_place) == [("orders", None)]
    known.tell(told(1))
    assert not known._ready
    assert not known._by_place


async def test_a_request_that_waits_for_long_stays_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_IDLE_SECONDS", -1.0)
    known = Readiness()
    with known.used(scope()) as ready:
        known.tell(told(1))  # while it is between two waits
        with ready.waiting() as waiter:
            ready.take(1, NOW)
            known.tell(told(2))
            async with asyncio.timeout(5):
                await waiter.wait(30)
        assert list(ready.take(1, NOW)) == [2]
