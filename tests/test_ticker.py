"""Background ticks: one process at a time where a lock says so, tried again when they fail, ended when told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY

from angelia.api import Tick
from angelia.errors import Unavailable
from angelia.stores.ledger import Ledger
from angelia.ticker import Ticker


class Work:
    """What a tick does, with a record of who did it and how many at once."""

    def __init__(self, *faults: Exception | None, more: int = 0) -> None:
        self.at_once = self.most_at_once = self.rounds = 0
        self.done_by: list[int] = []
        self._faults = list(faults)
        self._more = more
        self._enough: dict[int, asyncio.Event] = {}

    def of(self, process: int) -> Any:
        async def run(now: datetime) -> bool:
            assert abs((now - datetime.now(UTC)).total_seconds()) < 5
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0.002)
            self.at_once -= 1
            self.rounds += 1
            self.done_by.append(process)
            for wanted, event in self._enough.items():
                if self.rounds >= wanted:
                    event.set()
            fault = self._faults.pop(0) if self._faults else None
            if fault is not None:
                raise fault
            self._more -= 1
            return self._more >= 0

        return run

    async def rounds_reach(self, count: int) -> None:
        event = self._enough.setdefault(count, asyncio.Event())
        if self.rounds < count:
            async with asyncio.timeout(10):
                await event.wait()


@pytest.fixture
async def ledger(stores: Any) -> AsyncIterator[Ledger]:
    """Locks need a database, but nothing in it."""
    ledger = await Ledger.open(stores.database_url)
    yield ledger
    await ledger.close()


@pytest.fixture
async def started(stores: Any) -> AsyncIterator[Any]:
    """Starts ticks as in so many processes, each with a pool of its own. `aclose` of what it returns ends a process."""
    running: list[AsyncExitStack] = []

    async def start(work: Work, *, processes: int = 1, every: float = 0.001, **how: Any) -> list[AsyncExitStack]:
        for number in range(processes):
            process = AsyncExitStack()
            running.append(process)
            ledger = await Ledger.open(stores.database_url, 2)
            process.push_async_callback(ledger.close)
            await process.enter_async_context(Ticker(ledger, [Tick("probe", every, work.of(number), **how)]))
        return running

    with structlog.testing.capture_logs():
        yield start
        for process in running:
            await process.aclose()


def failures() -> float:
    return REGISTRY.get_sample_value("angelia_tick_failures_total", {"tick": "probe"}) or 0


async def test_of_many_processes_one_runs_a_tick_at_a_time(started) -> None:
    work = Work()
    await started(work, processes=5)
    await work.rounds_reach(30)
    assert work.most_at_once == 1


async def test_when_the_one_stops_another_goes_on(started) -> None:
    work = Work()
    processes = await started(work, processes=2)
    await work.rounds_reach(3)
    await processes[0].aclose()
    before = work.rounds
    await work.rounds_reach(before + 5)
    assert set(work.done_by[before + 1 :]) == {1}


async def test_different_ticks_do_not_wait_for_each_other(ledger: Ledger) -> None:
    meeting = asyncio.Barrier(3)

    async def meet(now: datetime) -> bool:
        await meeting.wait()
        return False

    async with Ticker(ledger, [Tick("one", 60, meet), Tick("two", 60, meet)]), asyncio.timeout(5):
        await meeting.wait()


async def test_a_tick_that_runs_everywhere_runs_in_each_process(started) -> None:
    work = Work()
    await started(work, processes=3, everywhere=True)
    await work.rounds_reach(12)
    assert set(work.done_by) == {0, 1, 2}
    assert work.most_at_once > 1


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("fault", [Unavailable("away"), OSError("gone"), ValueError("a bug")], ids=repr)
async def test_a_tick_that_fails_is_counted_and_tried_again(started, fault: Exception, everywhere: bool) -> None:
    before = failures()
    work = Work(fault, fault)
    await started(work, everywhere=everywhere)
    await work.rounds_reach(4)
    assert failures() == before + 2


async def test_a_ledger_that_is_away_is_a_failure_and_no_end() -> None:
    ledger = await Ledger.open("postgresql://nobody@/nothing?host=/nonexistent")
    before, work = failures(), Work()
    with structlog.testing.capture_logs() as lines:
        async with Ticker(ledger, [Tick("probe", 0.001, work.of(0))]), asyncio.timeout(5):
            while failures() < before + 3:  # noqa: ASYNC110 - a counter wakes nobody
                await asyncio.sleep(0.005)
    await ledger.close()
    assert work.rounds == 0
    assert {line["tick"] for line in lines} == {"probe"}


async def test_a_tick_with_more_to_do_does_not_wait(started) -> None:
    work = Work(more=5)
    await started(work, every=3600)
    await work.rounds_reach(6)


async def test_a_tick_without_more_to_do_waits_its_time(started, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, sleep = asyncio.Event(), asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds == 3600:
            waits.set()
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", noted)
    work = Work()
    await started(work, every=3600)
    await asyncio.wait_for(waits.wait(), 10)
    assert work.rounds == 1


async def test_stop_ends_ticks_even_in_mid_work_and_frees_the_lock(started, ledger: Ledger) -> None:
    entered = asyncio.Event()

    async def never_ending(now: datetime) -> bool:
        entered.set()
        await asyncio.Event().wait()
        return False

    async with asyncio.timeout(5):
        async with Ticker(ledger, [Tick("probe", 0.001, never_ending)]):
            await entered.wait()
        work = Work()
        await started(work)
        await work.rounds_reach(1)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "tick probe" and task.cancelling()]


async def test_a_tick_that_always_has_more_to_do_holds_up_no_other(ledger: Ledger) -> None:
    rounds: list[str] = []
    enough = asyncio.Event()

    def work(name: str) -> Callable[[datetime], Awaitable[bool]]:
        async def run(now: datetime) -> bool:
            rounds.append(name)
            if rounds.count("rare") == 3:
                enough.set()
            return name != "rare"  # the busy ones are never done

        return run

    async with ledger.transaction(), ledger.transaction():
        pass  # two connections are open: a tick that had to open one would be slower than the others
    names = ["busy 1", "busy 2", "busy 3", "rare"]
    async with Ticker(ledger, [Tick(name, 0.001, work(name)) for name in names]), asyncio.timeout(10):
        await enough.wait()
    between = [rounds[at] for at in range(rounds.index("rare") + 1, len(rounds))]
    assert all(between.count(name) > 0 for name in names)
    # Of those that are due, each has its turn before another has a third one.
    assert max(between.count(name) for name in names[:3]) <= 3 * (min(between.count(name) for name in names[:3]) + 1)
