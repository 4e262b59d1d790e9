"""Queues through the whole server, as it is served with one web process: CPU time of a message, its latency, and what
encryption, retention and eviction cost.

http        CPU time of a message, of server and stores together, beside the bars that are set for them; and the rates
            beside the same calls of the service layer, in process on the same stores.
latency     From the first byte of a push to the answer of a pop that waited for it, at a hundred messages a second,
            beside bare inserts at the same pace, one at a time, in alternating slices.
encryption  CPU time of a message through push, pop and acknowledgment, in batches of a hundred, in a queue with
            encryption beside one without. Pairs of windows, in alternating order; the ratio is the median of the pairs.
retention   The same for a queue whose messages are removed a second after they were consumed. Each window has the
            work that hides them, and that which removes their ids; their chunks go with the table of their day.
eviction    The same for a queue whose messages may wait for an hour at most; and round trips to PostgreSQL.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import asyncpg
import uvloop

from angelia.api import clock
from harness import Result, compared, cpu_us, milliseconds, rate
from queue_http import QueueUrl, push_http, take_http, wait_paced
from queue_load import Load, push_all, take_all
from queue_peers import BareInsert, payloads
from queue_service import OurQueue, opened, service
from served import Cost, Served, server

SECTIONS = ("http", "latency", "encryption", "retention", "eviction")
PACE, WAITING, PARTITIONS = 100, 4, 8
STEADY_SECONDS = 66.0  # a new server asks the hot tier for a minute whether an address had failed credentials
RETENTION_SETTLE = 3.0  # seconds: messages are a second old, and the tick runs every second


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    pairs: int
    hundreds: int  # messages of a round, in batches of a hundred
    singles: int
    slice_seconds: int


QUICK = Effort(5, 10, 10_000, 2_000, 4)
FULL = Effort(9, 20, 40_000, 10_000, 10)


def main(*, quick: bool, only: Sequence[str] = SECTIONS) -> list[Result]:
    effort, results = QUICK if quick else FULL, list[Result]()
    with server(retention_interval="1000", eviction_interval="1000") as served:
        time.sleep(STEADY_SECONDS)
        for name, section in _MEASURED.items():
            if name in only:
                results += uvloop.run(section(served, effort))
    return results


async def _http(served: Served, effort: Effort) -> list[Result]:
    runtime = served.runtime
    hundreds, takers = Load(effort.hundreds, 4, 100), Load(effort.hundreds, 8, 100)
    singles = Load(effort.singles, 16, 1)
    idle = await _idle(served)
    async with service((runtime.database_url, runtime.redis_url)) as queues:
        partitions = 2 * takers.callers
        many, ours = await QueueUrl.made(runtime, partitions), await OurQueue.made(queues, partitions)
        one, our_one = await QueueUrl.made(runtime, 1), await OurQueue.made(queues, 1)
        # In this order, so that consumers find the messages of the step before.
        steps = [
            _Step(
                "push of 100",
                25e-6,
                hundreds.count,
                lambda: push_http(many, hundreds),
                lambda: push_all(ours, hundreds),
            ),
            _Step(
                "pop of 100 + ack, 8 consumers",
                40e-6,
                takers.count,
                lambda: take_http(many, takers),
                lambda: take_all(ours, takers),
            ),
            _Step(
                "push of 1, 16 connections",
                300e-6,
                singles.count,
                lambda: push_http(many, singles),
                lambda: push_all(ours, singles),
            ),
            _Step(
                "push of 1, all to one partition",
                300e-6,
                singles.count,
                lambda: push_http(one, singles),
                lambda: push_all(our_one, singles),
            ),
        ]
        for number in range(effort.rounds + 1):
            for step in steps:
                await step.run(served)
            for queue in (many, one):
                await take_http(queue, takers.fewer(singles.count))
            for side in (ours, our_one):
                await take_all(side, takers.fewer(singles.count))
            if not number:  # the first round warms up
                for step in steps:
                    step.forget()
    return [
        *(step.barred(f"an idle server takes {idle.server:.3f} CPU-s/s") for step in steps),
        *(step.beside() for step in steps),
    ]


@dataclass
class _Step:
    """One kind of work, over HTTP and in process, round by round."""

    name: str
    bar: float  # CPU seconds of a message
    count: int
    over_http: Callable[[], Awaitable[float]]
    in_process: Callable[[], Awaitable[float]]
    costs: list[Cost] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    rates_in_process: list[float] = field(default_factory=list)

    async def run(self, served: Served) -> None:
        before = served.cost()
        self.rates.append(await self.over_http())
        self.costs.append((served.cost() - before) / self.count)
        self.rates_in_process.append(await self.in_process())

    def forget(self) -> None:
        for values in (self.costs, self.rates, self.rates_in_process):
            values.clear()

    def barred(self, note: str) -> Result:
        spent = [one.server for one in self.costs]
        ranges = f"{len(spent)} rounds: {cpu_us(min(spent))} to {cpu_us(max(spent))}"
        told = "; ".join(("lower is better", ranges, str(_middle(self.costs)), note))
        spread = f"{min(spent) / self.bar:.2f} to {max(spent) / self.bar:.2f}"
        middle, what = statistics.median(spent), f"server CPU a message, {self.name} / bar"
        return Result(what, cpu_us(middle), cpu_us(self.bar), middle / self.bar, told, spread)

    def beside(self) -> Result:
        note = "higher is better; the client's work shares the cores"
        return compared(f"{self.name}, HTTP / in process", self.rates, self.rates_in_process, rate, note)


async def _latency(served: Served, effort: Effort) -> list[Result]:
    queue = await QueueUrl.made(served.runtime, PARTITIONS)
    count = PACE * effort.slice_seconds
    ours, bare = list[list[float]](), list[list[float]]()
    async with BareInsert.opened(served.runtime.database_url) as table:
        await wait_paced(queue, WAITING, PACE, PACE)
        for _ in range(effort.rounds):
            bare.append(await _insert_paced(table, count // 2))
            ours.append(await wait_paced(queue, WAITING, count, PACE))
    note = f"lower is better; {count} messages a round, {WAITING} consumers wait and acknowledge"
    return [_quantile(part, ours, bare, note) for part in (0.50, 0.99)]


def _quantile(part: float, ours: Sequence[list[float]], bare: Sequence[list[float]], note: str) -> Result:
    """A line of the quantiles of all slices together: one alone has too few messages. Ranges are those of slices."""
    what = f"push to waiting pop p{part * 100:.0f} at {PACE}/s / bare insert"
    by_slice = ([sorted(one)[int(len(one) * part)] for one in side] for side in (ours, bare))
    together = (sorted(itertools.chain.from_iterable(side)) for side in (ours, bare))
    mine, beside = (one[int(len(one) * part)] for one in together)
    line = compared(what, *by_slice, milliseconds, note)
    return replace(line, ours=milliseconds(mine), peer=milliseconds(beside), ratio=mine / beside)


async def _insert_paced(table: BareInsert, count: int) -> list[float]:
    batches = [table.batch([one]) for one in payloads(count)]
    began, times = time.perf_counter(), []
    for number, batch in enumerate(batches):
        await asyncio.sleep(max(0.0, began + number / PACE - time.perf_counter()))
        start = time.perf_counter()
        await table.push(batch)
        times.append(time.perf_counter() - start)
    return sorted(times)


async def _encryption(served: Served, effort: Effort) -> list[Result]:
    queue = await QueueUrl.made(served.runtime, PARTITIONS, encryptionEnabled=True)
    return await _paired(served, effort, "encryption", queue)


async def _retention(served: Served, effort: Effort) -> list[Result]:
    runtime = served.runtime
    queue = await QueueUrl.made(runtime, PARTITIONS, retentionEnabled=True, completedRetentionSeconds=1)
    async with opened((runtime.database_url, runtime.redis_url)) as (_, queues):

        async def prune() -> None:
            """What the server does every five minutes."""
            while await queues.upkeep.prune_ids(clock()):
                pass

        lines = await _paired(served, effort, "retention", queue, settle=RETENTION_SETTLE, upkeep=prune)
    assert await _left(runtime.database_url, queue.name) == 0, "all messages and their ids were to be removed"
    return lines


async def _left(url: str, queue: str) -> int:
    """How many messages of a queue, or ids of messages, are still there."""
    connection = await asyncpg.connect(url)
    left = await connection.fetchval(_LEFT, queue)
    await connection.close()
    return int(left)


_LEFT = """
WITH p AS (SELECT partition_no, floor FROM queue_partitions JOIN queues AS q USING (queue_no) WHERE q.name = $1)
SELECT (SELECT count(*) FROM queue_ids JOIN p USING (partition_no))
  + (SELECT count(*) FROM queue_chunks AS c JOIN p USING (partition_no) WHERE c.end_position > p.floor)
"""


async def _eviction(served: Served, effort: Effort) -> list[Result]:
    lines = await _paired(
        served, effort, "eviction", await QueueUrl.made(served.runtime, PARTITIONS, maxWaitTimeSeconds=3600)
    )
    load, trips = Load(4_000, 1, 10), []
    with served.statement_log():
        for wait in (3600, 0):
            queue = await QueueUrl.made(served.runtime, 1, maxWaitTimeSeconds=wait)
            await push_http(queue, load)
            before = served.round_trips()
            await take_http(queue, load)
            trips.append((served.round_trips() - before) * load.batch / load.count)
    note = f"lower is better; {load.count // load.batch} pops of {load.batch}, with the background work meanwhile"
    what = "round trips of pop + ack, with eviction / without"
    return [*lines, Result(what, f"{trips[0]:.2f}", f"{trips[1]:.2f}", trips[0] / trips[1], note)]


async def _analyze(url: str) -> None:
    """Takes statistics before each window, when the queues are empty: their worst moment, which autovacuum may choose
    too. Otherwise it depends on autovacuum's timing with which plans a window runs."""
    connection = await asyncpg.connect(url)
    await connection.execute("ANALYZE")
    await connection.close()


async def _nothing() -> None:
    pass


async def _paired(
    served: Served,
    effort: Effort,
    what: str,
    queue: QueueUrl,
    *,
    settle: float = 0.0,
    upkeep: Callable[[], Awaitable[None]] = _nothing,
) -> list[Result]:
    """CPU time of a message in a queue with a feature and in one without, in pairs of windows. `upkeep` runs in this
    process, and counts as the server's."""
    load = Load(effort.hundreds, 4, 100)
    queues = {"with": queue, "without": await QueueUrl.made(served.runtime, PARTITIONS)}
    pushes: dict[str, list[float]] = {"with": [], "without": []}
    wholes: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(effort.pairs + 1):
        for name in ("with", "without") if number % 2 else ("without", "with"):
            await _analyze(served.runtime.database_url)
            before = served.cost()
            await push_http(queues[name], load)
            pushed = served.cost()
            await take_http(queues[name], load)
            await asyncio.sleep(settle)
            began = time.process_time()
            await upkeep()
            kept = time.process_time() - began
            after = served.cost()
            if number:  # the first pair warms up
                pushes[name].append(_server_and_postgres(pushed - before) / load.count)
                wholes[name].append((_server_and_postgres(after - before) + kept) / load.count)
    note = "lower is better; server and PostgreSQL; ratio: median of the pairs"
    return [
        _by_pairs(f"CPU of push, pop and ack, with {what} / without", wholes["with"], wholes["without"], note),
        _by_pairs(f"CPU of push, with {what} / without", pushes["with"], pushes["without"], note),
    ]


def _by_pairs(what: str, ours: Sequence[float], peer: Sequence[float], note: str) -> Result:
    ratio = statistics.median(a / b for a, b in zip(ours, peer, strict=True))
    return replace(compared(what, ours, peer, _tenths, note), ratio=ratio)


def _tenths(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} CPU-µs"


def _server_and_postgres(cost: Cost) -> float:
    return cost.web + cost.main + cost.postgres


async def _idle(served: Served, seconds: float = 5.0) -> Cost:
    """What the server's background work costs in a second."""
    before = served.cost()
    await asyncio.sleep(seconds)
    return (served.cost() - before) / seconds


def _middle(costs: Sequence[Cost]) -> Cost:
    parts = ("web", "postgres", "valkey", "main", "client")
    return Cost(*(statistics.median(getattr(one, part) for one in costs) for part in parts))


_MEASURED: dict[str, Callable[[Served, Effort], Awaitable[list[Result]]]] = {
    "http": _http,
    "latency": _latency,
    "encryption": _encryption,
    "retention": _retention,
    "eviction": _eviction,
}
