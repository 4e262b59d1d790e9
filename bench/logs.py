"""The group log of a spool node in process, beside what its seed document does on the same RocksDB. Values have 1 KiB
and cannot be compressed; 100 senders are interleaved; all writes are synced, but for the seed's deletion.

append       Through the service, with its checks: requests of one message, which share commits, and of a hundred. The
             peers are one synced write for each message, and bare synced batches of a hundred. How much a commit group
             can gain depends on what a sync takes: the target was set where that is 1.6 ms, so it is also measured with
             1.5 ms added to every write, of ours and of the peer.
subscribers  From an append to its frame at a subscriber, at 500 a second; the quantiles are those of slices, which
             alternate with bare synced writes at the same pace.
backfill     Devices lack a hundredth of the log, the newest of each sender. In pages of 500, the default, and of 2,000,
             as our client asks for them. The peer scans the group once, and does not cut what it finds into pages.
deletion     Of the older nine tenths, up to a watermark, but for 4,500 snapshots. The peers are the seed's scan with
             single deletes, and a scan below the watermark with batches; and ours in a log of a tenth of the rows, with
             as many snapshots (H). Then a backfill right after it, and the disk when the node's maintenance is done.
             The proof that a snapshot is durable is not part of it.

Each deletion begins with a log that was just opened. A filled log is compacted first, so that its scans are fast. It
has a million messages in the full effort, for which the targets of scans are set, and a tenth in the quick one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import uvloop

from angelia.grouplog import store
from angelia.grouplog.deleting import Deletion
from angelia.grouplog.model import frames
from angelia.grouplog.model.frames import Hello, LogMessage, Type
from harness import Result, compared, milliseconds, rate
from log_open import SENDERS, VALUE, OpenLog, Request, bytes_on_disk, cloned, filled, message, opened, workspace
from log_seed import SeedLog
from log_targets import at_least, at_most, compared_small, with_load

SECTIONS = ("append", "subscribers", "backfill", "deletion")
CALLERS, BATCH = 512, 100
SLOWER = 0.0015  # seconds
PACE, ALLOWED = 500, 0.010  # messages a second; seconds to a subscriber at p50
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    deletions: int  # rounds of deletions
    singles: int
    hundreds: int  # messages of a round, in batches of a hundred
    slice_seconds: int
    each: int  # messages of each sender in a filled log


QUICK = Effort(5, 3, 4_000, 20_000, 2, 1_000)
FULL = Effort(7, 5, 20_000, 100_000, 4, 10_000)


def main(*, quick: bool, only: Sequence[str] = SECTIONS) -> list[Result]:
    effort, results = QUICK if quick else FULL, list[Result]()
    with workspace() as directory:
        if "append" in only:
            results += with_load(uvloop.run(_append(directory, effort)))
        if "subscribers" in only:
            results += with_load(uvloop.run(_subscribers(directory, effort)))
        if "backfill" in only or "deletion" in only:
            uvloop.run(filled(directory / "filled", effort.each))
        if "backfill" in only:
            results += with_load(uvloop.run(_backfill(directory, effort)))
        if "deletion" in only:
            results += with_load(uvloop.run(_deletion(directory, effort)))
    return results


async def _append(directory: Path, effort: Effort) -> list[Result]:
    return await _append_all(directory, effort, 0.0) + await _append_all(directory, effort, SLOWER)


async def _append_all(directory: Path, effort: Effort, slower: float) -> list[Result]:
    rates: Samples = {}
    name = f"append {slower}"
    async with opened(directory / name) as log, opened(directory / f"{name} seed") as other:
        if slower:
            log.slow_down(slower)
            other.slow_down(slower)
            effort = replace(effort, singles=effort.singles // 4)
        seed = SeedLog(other.rocks, other.group.ordinal)
        for number in range(effort.rounds + 1):
            alone, hundreds = log.requests(effort.singles, 1), log.requests(effort.hundreds, BATCH)
            one_by_one = log.requests(effort.singles // 4, 1)
            bare = [messages for _, messages in other.requests(effort.hundreds, BATCH)]
            single = [messages for _, messages in other.requests(effort.singles // 4, 1)]
            measured = {
                "alone": await append_all(log, alone, CALLERS),
                "single-sync": _write_all(seed, single),
                "hundreds": await append_all(log, hundreds, 4),
                "bare batches": _write_all(seed, bare),
                "one caller": await append_all(log, one_by_one, 1),
            }
            if number:  # the first round warms up
                for name, value in measured.items():
                    rates.setdefault(name, []).append(value)
        stored = (effort.rounds + 1) * (effort.singles + effort.singles // 4 + effort.hundreds)
        log.rocks.flush(store.MSG)
        size = log.rocks.bytes_of(store.MSG) / stored
    took = f"{1e3 / statistics.median(rates['single-sync']):.2f} ms"
    sync = f"a bare synced write takes {took}, and 1.6 ms where the target was set"
    against = partial(_faster, rates, peer="single-sync")
    if slower:
        more = f", {1e3 * slower:.1f} ms added to each sync"
        return [
            at_least(against(f"single messages in commit groups / single-sync{more}", "alone", sync), 20),
            at_least(against(f"batches of 100 / single-sync{more}", "hundreds", sync), 20),
        ]
    return [
        at_least(against("single messages in commit groups / single-sync", "alone", f"{CALLERS} callers; {sync}"), 20),
        at_least(against("batches of 100 / single-sync", "hundreds", f"4 callers; {sync}"), 20),
        against("bare synced batches of 100 / single-sync", "bare batches", "what a batch can gain on this disk"),
        against("single messages of one caller / single-sync", "one caller", "each waits for its sync"),
        _faster(rates, "batches of 100 / bare synced batches of 100", "hundreds", "4 callers", peer="bare batches"),
        Result("bytes on disk of a message / its value", f"{size:,.0f} bytes", f"{VALUE:,} bytes", size / VALUE),
    ]


def _faster(rates: Samples, what: str, ours: str, note: str, *, peer: str) -> Result:
    return compared(f"append: {what}", rates[ours], rates[peer], rate, f"higher is better; {note}")


async def append_all(log: OpenLog, requests: Sequence[Request], callers: int) -> float:
    """Appends by so many callers, each of which waits for its answer. Returns the rate of messages."""
    left = iter(requests)

    async def caller() -> None:
        for member, messages in left:
            await log.service.append(log.group, member, messages)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return sum(len(messages) for _, messages in requests) / (time.perf_counter() - began)


def _write_all(seed: SeedLog, batches: Sequence[Sequence[LogMessage]]) -> float:
    began = time.perf_counter()
    for batch in batches:
        seed.append_all(batch)
    return sum(map(len, batches)) / (time.perf_counter() - began)


async def _subscribers(directory: Path, effort: Effort) -> list[Result]:
    count = PACE * effort.slice_seconds
    quantiles: Samples = {}
    async with opened(directory / "subscribed") as log, opened(directory / "written") as other:
        seed = SeedLog(other.rocks, other.group.ordinal)
        for number in range(effort.rounds + 1):
            measured = {
                "one": await append_to_subscribers(log, count, 1),
                "twenty": await append_to_subscribers(log, count, 20),
                "write": await _write_paced(seed, count),
            }
            for name, latencies in measured.items() if number else ():
                for quantile in (50, 99):
                    found = statistics.quantiles(latencies, n=100)[quantile - 1]
                    quantiles.setdefault(f"{name} {quantile}", []).append(found)
    allowed = [ALLOWED] * effort.rounds
    note = f"lower is better; {PACE} a second"
    results = []
    for name, who in (("one", "a subscriber"), ("twenty", "each of 20 subscribers")):
        for quantile in (50, 99):
            what = f"append to {who}, in process, p{quantile}"
            ours = quantiles[f"{name} {quantile}"]
            beside = compared(f"{what} / a bare synced write", ours, quantiles[f"write {quantile}"], milliseconds, note)
            results.append(beside)
            if quantile == 50:
                results.append(at_most(compared(f"{what} / what we allow it", ours, allowed, milliseconds, note), 1))
    return results


async def append_to_subscribers(log: OpenLog, count: int, subscribers: int) -> list[float]:
    """Appends single messages at a steady pace. Returns the seconds until each subscriber had each."""
    held = await _all_held(log)
    latencies, left = list[float](), dict[tuple[bytes, int], float]()

    async def subscriber(number: int) -> None:
        stream = await log.service.subscribe(log.group, log.members[number], held)
        reader, got = frames.FrameReader(), 0
        try:
            async for part in stream:
                now = time.perf_counter()
                for type_, body in reader.feed(part):
                    if type_ == Type.CAUGHT_UP:
                        ready.release()
                    elif type_ == Type.MESSAGE:
                        found = LogMessage.decode(body)
                        latencies.append(now - left[found.sender, found.seq])
                        got += 1
                if got == count:
                    return
        finally:
            await stream.aclose()

    ready = asyncio.Semaphore(0)
    requests = log.requests(count, 1)
    waiting = [asyncio.create_task(subscriber(number)) for number in range(subscribers)]
    for _ in range(subscribers):
        await ready.acquire()

    async def append(member_and_message: Request) -> None:
        member, (one,) = member_and_message
        left[one.sender, one.seq] = time.perf_counter()
        await log.service.append(log.group, member, [one])

    await paced([partial(append, request) for request in requests])
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    return latencies


async def _all_held(log: OpenLog) -> Hello:
    return Hello(await log.spool.read(lambda: dict(store.held(log.rocks, log.group.ordinal))), {})


async def paced(steps: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Starts steps at a steady pace, whether those before are done or not, and waits for all."""
    began, started = time.perf_counter(), list[asyncio.Future[object]]()
    for number, step in enumerate(steps):
        await asyncio.sleep(max(0.0, began + number / PACE - time.perf_counter()))
        started.append(asyncio.ensure_future(step()))
    await asyncio.gather(*started)


async def _write_paced(seed: SeedLog, count: int) -> list[float]:
    made = [message(b"\0" * 8, seq) for seq in range(1, count + 1)]
    latencies: list[float] = []

    async def write(one: LogMessage) -> None:
        began = time.perf_counter()
        await asyncio.to_thread(seed.append, one)
        latencies.append(time.perf_counter() - began)

    await paced([partial(write, one) for one in made])
    return latencies


async def _backfill(directory: Path, effort: Effort) -> list[Result]:
    newest = effort.each // 100
    seconds: Samples = {}
    async with cloned(directory / "filled") as log:
        seed, vector = SeedLog(log.rocks, log.group.ordinal), log.vector(effort.each - newest)
        wanted = {limit: await log.pages(Hello(vector, {}), limit) for limit in (500, 2_000)}
        assert {messages for _, messages in wanted.values()} == {SENDERS * newest}
        pages = wanted[500][0]
        for _ in range(effort.rounds):
            measured = {
                "scan": _timed(lambda: seed.backfill(vector)),
                "500": await _backfilled(log, pages),
                "2000": await _backfilled(log, wanted[2_000][0]),
                "page": await _backfilled(log, pages[:1]),
            }
            for name, value in measured.items():
                seconds.setdefault(name, []).append(value)
    what = f"backfill of {SENDERS * newest:,} of {SENDERS * effort.each:,}"
    note = "lower is better; digests are checked"
    results = []
    for key, name in (("500", "pages of 500"), ("2000", "pages of 2,000"), ("page", "the first page of 500")):
        beside = compared_small(f"{what}, {name} / full scan", seconds[key], seconds["scan"], milliseconds, note)
        results.append(_at_a_million(beside, effort, 1 / 50))
    return results


def _at_a_million(result: Result, effort: Effort, most: float) -> Result:
    """The targets of scans are those of a million rows: in a tenth of that a scan takes a tenth."""
    return at_most(result, most) if SENDERS * effort.each >= 1_000_000 else result


async def _backfilled(log: OpenLog, pages: Sequence[frames.Backfill]) -> float:
    began = time.perf_counter()
    for page in pages:
        await log.service.backfill(log.group, page)
    return time.perf_counter() - began


@dataclass
class _Deletions:
    """What rounds of one kind of deletion took, each on a clone of its own."""

    source: Path
    each: int
    seconds: list[float]
    after: list[float]  # a backfill of the newest hundredth, right after it

    async def add(self, delete: Callable[[OpenLog, dict[bytes, int]], Awaitable[object]]) -> None:
        async with cloned(self.source) as log:
            watermark, vector = log.vector(self.each * 9 // 10), log.vector(self.each - self.each // 100)
            began = time.perf_counter()
            await delete(log, watermark)
            self.seconds.append(time.perf_counter() - began)
            pages, _ = await log.pages(Hello(vector, {}), 2_000)
            self.after.append(await _backfilled(log, pages))


async def _deletion(directory: Path, effort: Effort) -> list[Result]:
    await filled(directory / "smaller", effort.each // 10)
    large = partial(_Deletions, directory / "filled", effort.each)
    ours, single, batched = large([], []), large([], []), large([], [])
    smaller = _Deletions(directory / "smaller", effort.each // 10, [], [])
    for _ in range(effort.deletions):
        await ours.add(_delete)
        await single.add(_delete_seed_style)
        await smaller.add(_delete)
        await batched.add(_delete_batched)
    rows = SENDERS * effort.each
    what, note = f"deletion in {rows:,}", "lower is better"
    before, after, seconds = await _space(directory / "filled", effort)
    return [
        _at_a_million(
            compared_small(f"{what} / seed style", ours.seconds, single.seconds, milliseconds, note), effort, 1 / 100
        ),
        compared_small(f"{what} / bounded scan, batches", ours.seconds, batched.seconds, milliseconds, note),
        at_most(
            compared(f"{what} / in {rows // 10:,}", ours.seconds, smaller.seconds, milliseconds, f"{note}; equal H"), 2
        ),
        compared("backfill right after it / after seed style", ours.after, single.after, milliseconds, note),
        Result(
            "bytes on disk when its maintenance is done / before",
            f"{after >> 20:,} MiB",
            f"{before >> 20:,} MiB",
            after / before,
            f"{note}; in the background, it takes {milliseconds(seconds)}",
        ),
    ]


async def _delete(log: OpenLog, watermark: dict[bytes, int]) -> None:
    await log.spool.run(Deletion(log.group, 1, watermark, log.spool.subscriptions))


async def _delete_seed_style(log: OpenLog, watermark: dict[bytes, int]) -> None:
    SeedLog(log.rocks, log.group.ordinal).delete(1, watermark)


async def _delete_batched(log: OpenLog, watermark: dict[bytes, int]) -> None:
    SeedLog(log.rocks, log.group.ordinal).delete_batched(1, watermark)


async def _space(source: Path, effort: Effort) -> tuple[int, int, float]:
    """The bytes on disk before a deletion and after its maintenance, and how long that took."""
    async with cloned(source) as log:
        clone = source.with_name(f"{source.name}-clone")
        before = bytes_on_disk(clone)
        await _delete(log, log.vector(effort.each * 9 // 10))
        began = time.perf_counter()
        await log.maintenance.settle(log.group)
        took = time.perf_counter() - began
        return before, bytes_on_disk(clone), took


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
