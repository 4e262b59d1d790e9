"""Load for queues in process: producers and consumers that call a side at once, and what rounds of them measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness import Result, compared, rate
from queue_peers import Producing, Side, payloads

_EMPTY_SECONDS = 0.001  # before a consumer that found nothing asks again


@dataclass(frozen=True)
class Load:
    """How many messages go through in a round, by how many callers at once, and how many in a call."""

    count: int
    callers: int
    batch: int

    def fewer(self, count: int) -> Load:
        return Load(count, self.callers, self.batch)


@dataclass
class Rounds:
    """The rates of one side, round by round."""

    pushes: list[float] = field(default_factory=list)
    takes: list[float] = field(default_factory=list)

    @property
    def cycles(self) -> list[float]:
        """Messages that go through push, pop and acknowledgment in a second."""
        return [1 / (1 / push + 1 / take) for push, take in zip(self.pushes, self.takes, strict=True)]


async def rounds(
    count: int,
    sides: Mapping[str, tuple[Side[Any], Load]],
    *,
    groups: int = 1,
    bare: Mapping[str, tuple[Producing[Any], Load]] | None = None,
) -> dict[str, Rounds]:
    """Runs rounds of all sides in turn, after one that warms up: producers first, then consumers until nothing is left.
    What is bare is only pushed to."""
    producing = {**(bare or {}), **sides}
    measured = {name: Rounds() for name in producing}
    for number in range(count + 1):
        for name, (side, load) in producing.items():
            pushed = await push_all(side, load)
            taken = await take_all(sides[name][0], load, groups) if name in sides else 0.0
            if number:
                measured[name].pushes.append(pushed)
                measured[name].takes.append(taken)
    return measured


async def push_all(side: Producing[Any], load: Load) -> float:
    """Pushes in batches, by several callers at once. Returns the rate of messages."""
    made = payloads(load.count)
    batches = iter([side.batch(made[at : at + load.batch]) for at in range(0, load.count, load.batch)])

    async def producer() -> None:
        for batch in batches:
            await side.push(batch)

    began = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(load.callers)))
    return load.count / (time.perf_counter() - began)


async def take_all(side: Side[Any], load: Load, groups: int = 1) -> float:
    """Pops and acknowledges until every consumer group has had every message. Returns the rate of messages."""
    left = [load.count] * groups

    async def consumer(group: int) -> None:
        while left[group] > 0:
            if taken := await side.take(load.batch, group):
                left[group] -= taken
            else:
                await asyncio.sleep(_EMPTY_SECONDS)

    began = time.perf_counter()
    async with asyncio.timeout(600):
        await asyncio.gather(*(consumer(number % groups) for number in range(max(load.callers, groups))))
    assert not any(left), f"{load.count} messages were pushed, and {left} are missing"
    return load.count / (time.perf_counter() - began)


def against(what: str, ours: Rounds, peers: Mapping[str, Rounds], note: str) -> list[Result]:
    """Lines for push, for pop with acknowledgment, and for a message through all of it, beside each peer."""
    told = f"higher is better; {note}"
    lines = []
    for name, peer in peers.items():
        lines += [
            compared(f"{what}: push / {name}", ours.pushes, peer.pushes, rate, told),
            compared(f"{what}: pop + ack / {name}", ours.takes, peer.takes, rate, told),
            compared(f"{what}: whole cycle / {name}", ours.cycles, peer.cycles, rate, told),
        ]
    return lines
