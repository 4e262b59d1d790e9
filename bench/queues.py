"""Queues in process: our service layer beside a pgmq-style table, procrastinate, and bare inserts of the same messages,
all in one PostgreSQL, durable, with payloads of about 300 bytes.

shallow     Queues that are filled and drained in each round: batches of a hundred by 4 callers, and single messages by
            32. The rates are those of push, of pop with acknowledgment, and of a message through all three.
in-flight   The same with 20,000 other messages of the queue leased and not acknowledged.
held        The same while another connection holds a transaction open, after it saw so many messages of each side.
groups      Ten consumer groups read every message. The peers have no consumer groups: each has a table or queue of its
            own, and a push sends to all ten.
partitions  Our queue with 10,000 partitions beside one with a single partition; one producer, then one consumer.
held-cost   Our queue while another connection holds a transaction open, beside one in a PostgreSQL where none does.
history     Our queue after so many messages were pushed and consumed, beside a fresh one in another PostgreSQL.
storage     Bytes on disk for each message, with indexes, after pushes in batches of a hundred and of one.
temporary   Bytes on disk after a week of traffic, of which half is consumed, with eviction and a retention of an hour
            beside neither. The days pass on a clock of the benchmark, and with them the background work.

Our queues have twice as many partitions as there are consumers, since a partition is leased to one consumer at a time.
Procrastinate fetches and finishes job by job; it gets fewer messages a round, so that a round does not take minutes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import asyncpg
import uvloop

from angelia.api import clock
from angelia.queues.slice import QueuesSlice
from harness import Result, compared, rate, stores
from queue_load import Load, against, push_all, rounds, take_all
from queue_peers import BareCopy, BareInsert, PgmqTable, Procrastinate, held_transaction, payloads
from queue_service import OurQueue, SpreadQueue, fill, opened, service

OURS, PGMQ, PROCRASTINATE, INSERT, COPY = "ours", "pgmq-style table", "procrastinate", "bare INSERT", "bare COPY"
IN_FLIGHT, GROUPS, PARTITIONS = 20_000, 10, 10_000
DAYS = 7
TEMPORARY = {
    "maxWaitTimeSeconds": 3600,
    "retentionEnabled": True,
    "retentionSeconds": 3600,
    "completedRetentionSeconds": 600,
}
Urls = tuple[str, str]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    hundreds: Load
    singles: Load
    jobs: int  # messages of procrastinate in a round
    held: int  # messages that the held transaction sees before the first round
    history: int


QUICK = Effort(5, Load(10_000, 4, 100), Load(2_000, 32, 1), 400, 10_000, 1_000_000)
FULL = Effort(9, Load(40_000, 4, 100), Load(10_000, 32, 1), 2_000, 50_000, 10_000_000)


async def _shallow(url: str, queues: QueuesSlice, effort: Effort) -> list[Result]:
    results = []
    async with (
        PgmqTable.opened(url, "shallow") as pgmq,
        Procrastinate.opened(url) as jobs,
        BareInsert.opened(url) as insert,
        BareCopy.opened(url) as copy,
    ):
        for load in (effort.hundreds, effort.singles):
            ours = await OurQueue.made(queues, 2 * load.callers)
            measured = await rounds(
                effort.rounds,
                {OURS: (ours, load), PGMQ: (pgmq, load), PROCRASTINATE: (jobs, load.fewer(effort.jobs))},
                bare={INSERT: (insert, load), COPY: (copy, load)},
            )
            mine, inserts, copies = (measured.pop(name) for name in (OURS, INSERT, COPY))
            what, note = f"batches of {load.batch}", f"{load.callers} callers"
            results += against(what, mine, measured, note)
            for name, bare in ((INSERT, inserts), (COPY, copies)):
                told = f"higher is better; {note}"
                results.append(compared(f"{what}: push / {name}", mine.pushes, bare.pushes, rate, told))
    return results


async def _in_flight(url: str, queues: QueuesSlice, effort: Effort) -> list[Result]:
    load = effort.hundreds
    async with PgmqTable.opened(url, "in_flight") as pgmq, Procrastinate.opened(url) as jobs:
        ours = await OurQueue.made(queues, 2 * load.callers)
        for side in (ours, pgmq, jobs):
            await side.lease(IN_FLIGHT)
        measured = await rounds(
            effort.rounds, {OURS: (ours, load), PGMQ: (pgmq, load), PROCRASTINATE: (jobs, load.fewer(effort.jobs))}
        )
    note = f"{load.callers} callers, {load.batch} a call"
    return against(f"{IN_FLIGHT:,} in flight", measured.pop(OURS), measured, note)


async def _held(url: str, queues: QueuesSlice, effort: Effort) -> list[Result]:
    load = effort.hundreds
    async with PgmqTable.opened(url, "held") as pgmq, Procrastinate.opened(url) as jobs, held_transaction(url):
        ours = await OurQueue.made(queues, 2 * load.callers)
        for side in (ours, pgmq, jobs):
            await push_all(side, load.fewer(effort.held))
            await take_all(side, load.fewer(effort.held))
        measured = await rounds(
            effort.rounds, {OURS: (ours, load), PGMQ: (pgmq, load), PROCRASTINATE: (jobs, load.fewer(effort.jobs))}
        )
    note = f"{load.callers} callers, {load.batch} a call; it saw {effort.held:,} messages of each before"
    return against("held transaction", measured.pop(OURS), measured, note)


async def _groups(url: str, queues: QueuesSlice, effort: Effort) -> list[Result]:
    load = effort.hundreds.fewer(effort.hundreds.count // 5)
    async with PgmqTable.opened(url, "groups", GROUPS) as pgmq, Procrastinate.opened(url, GROUPS) as jobs:
        ours = await OurQueue.made(queues, 2 * load.callers, GROUPS)
        few = load.fewer(effort.jobs // GROUPS)
        measured = await rounds(
            effort.rounds, {OURS: (ours, load), PGMQ: (pgmq, load), PROCRASTINATE: (jobs, few)}, groups=GROUPS
        )
    note = f"{load.callers} producers, then a consumer for each group, {load.batch} a call"
    return against(f"{GROUPS} consumer groups", measured.pop(OURS), measured, note)


async def _partitions(url: str, queues: QueuesSlice, effort: Effort) -> list[Result]:
    load = Load(effort.hundreds.count, 1, 100)
    one, many = await OurQueue.made(queues, 1), await OurQueue.made(queues, PARTITIONS)
    spread = await SpreadQueue.made(queues, PARTITIONS)
    all_of_them = Load(PARTITIONS, 1, 100)
    for side in (SpreadQueue(queues, many.name, PARTITIONS), spread):
        await push_all(side, all_of_them)
        await take_all(side, all_of_them)
    measured = await rounds(effort.rounds, {"one": (one, load), "many": (many, load), "spread": (spread, load)})
    peer = {"one partition": measured["one"]}
    return [
        *against(f"{PARTITIONS:,} partitions, a batch to one", measured["many"], peer, "one caller, 100 a call"),
        *against(f"{PARTITIONS:,} partitions, a batch to 100", measured["spread"], peer, "one caller, 100 a call"),
    ]


async def _storage(url: str, queues: QueuesSlice, effort: Effort) -> list[Result]:
    results = []
    for load in (effort.hundreds, effort.singles):
        async with PgmqTable.opened(url, "storage") as pgmq, Procrastinate.opened(url) as jobs:
            ours = await OurQueue.made(queues, 2 * load.callers)
            before = await _queue_bytes(url)
            await push_all(ours, load)
            mine = (await _queue_bytes(url) - before) / load.count
            few = load.fewer(effort.jobs * 10)
            await push_all(pgmq, load)
            await push_all(jobs, few)
            wire = sum(map(len, payloads(load.count))) / load.count
            beside = {
                "its payload": wire,
                PGMQ: await pgmq.bytes_on_disk() / load.count,
                PROCRASTINATE: await jobs.bytes_on_disk() / few.count,
            }
        for name, peer in beside.items():
            what = f"bytes of a message, batches of {load.batch} / {name}"
            note = f"lower is better; {load.count:,} messages that wait, with indexes"
            results.append(Result(what, f"{mine:,.0f} bytes", f"{peer:,.0f} bytes", mine / peer, note))
    return results


async def _history(urls: Urls, fresh_urls: Urls, effort: Effort) -> list[Result]:
    load = effort.hundreds
    async with service(urls) as queues, service(fresh_urls) as fresh_queues:
        old = await OurQueue.made(queues, 2 * load.callers)
        fresh = await OurQueue.made(fresh_queues, 2 * load.callers)
        await fill(old, effort.history)
        measured = await rounds(effort.rounds, {"old": (old, load), "a fresh queue": (fresh, load)})
    what, note = f"after {effort.history:,} messages", f"{load.callers} callers, {load.batch} a call"
    return against(what, measured.pop("old"), measured, note)


async def _held_cost(urls: Urls, free_urls: Urls, effort: Effort) -> list[Result]:
    load = effort.hundreds
    async with service(urls) as queues, service(free_urls) as free_queues, held_transaction(urls[0]):
        held, free = [await OurQueue.made(side, 2 * load.callers) for side in (queues, free_queues)]
        for side in (held, free):
            await push_all(side, load.fewer(effort.held))
            await take_all(side, load.fewer(effort.held))
        measured = await rounds(effort.rounds, {"held": (held, load), "none held": (free, load)})
    note = f"{load.callers} callers, {load.batch} a call; it saw {effort.held:,} messages before"
    return against("held transaction", measured.pop("held"), measured, note)


async def _temporary_bytes(urls: Urls, effort: Effort, options: Mapping[str, object]) -> int:
    """Sends a week's traffic through a queue. Returns by how many bytes its tables grew."""
    load = effort.hundreds
    async with opened(urls) as (_, queues):
        queue = await OurQueue.made(queues, 2 * load.callers, options=options)
        before, start = await _queue_bytes(urls[0]), clock()
        for half_day in range(2 * DAYS):
            now = start + half_day * timedelta(hours=12)
            queue.clock = partial(_same, now)
            await push_all(queue, load)
            await take_all(queue, Load(load.count // 2, 1, load.batch))
            await _work_in_background(queues, now + timedelta(hours=2))
        return await _queue_bytes(urls[0]) - before


async def _work_in_background(queues: QueuesSlice, now: datetime) -> None:
    for tick in queues.ticks():
        while await tick.run(now):
            pass


def _same(now: datetime) -> datetime:
    return now


_IN_ONE: dict[str, Callable[[str, QueuesSlice, Effort], Awaitable[list[Result]]]] = {
    "shallow": _shallow,
    "in-flight": _in_flight,
    "held": _held,
    "groups": _groups,
    "partitions": _partitions,
    "storage": _storage,
}
_IN_TWO: dict[str, Callable[[Urls, Urls, Effort], Awaitable[list[Result]]]] = {
    "held-cost": _held_cost,
    "history": _history,
}
SECTIONS = (*_IN_ONE, *_IN_TWO, "temporary")


def main(*, quick: bool, only: Sequence[str] = SECTIONS) -> list[Result]:
    effort = QUICK if quick else FULL
    results: list[Result] = []
    with stores() as urls:
        for name, section in _IN_ONE.items():
            if name in only:
                results += uvloop.run(_measured(urls, section, effort))
        for name, in_two in _IN_TWO.items():
            if name in only:
                with stores() as fresh:
                    results += uvloop.run(in_two(urls, fresh, effort))
    if "temporary" in only:
        results.append(_temporary(effort))
    return results


def _temporary(effort: Effort) -> Result:
    sizes = []
    for options in (TEMPORARY, {}):
        with stores() as urls:
            sizes.append(uvloop.run(_temporary_bytes(urls, effort, options)))
    ours, peer = sizes
    note = f"lower is better; {DAYS} days, {2 * DAYS * effort.hundreds.count:,} messages, half of them consumed"
    what = "bytes of a queue with eviction and short retention / without"
    return Result(what, f"{ours:,} bytes", f"{peer:,} bytes", ours / peer, note)


async def _measured(
    urls: Urls, section: Callable[[str, QueuesSlice, Effort], Awaitable[list[Result]]], effort: Effort
) -> list[Result]:
    async with service(urls) as queues:
        return await section(urls[0], queues, effort)


async def _queue_bytes(url: str) -> int:
    """Bytes of all tables of the queues, with what they store apart and their indexes."""
    connection = await asyncpg.connect(url)
    size = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname ~ '^queue'"
    found = await connection.fetchval(size)
    await connection.close()
    return int(found)
