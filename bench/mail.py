"""Mail through the whole server, as it is served, compared with bare durable inserts of the same rows.

round-trips  100 messages that come alone: send, poll or event on a stream, acknowledgment with a signed receipt. Each
             recipient takes part every 1.14 s, no sender twice within the ten seconds for which the server remembers
             a request key. Round trips to PostgreSQL are counted in its statement log, with those that seal the audit;
             scripts in Valkey's statistics; what an idle window of the same length has is subtracted.
latency      From the first byte of a send to its event on the recipient's stream, at a steady pace, with signed
             acknowledgments; and the CPU time of a message, from the send until its audit event is sealed, with the
             server's background work. The peer inserts at the same pace, one at a time, in alternating slices. The
             quantiles are those of all slices together, their ranges those of single slices.
sends        64 senders, each on a connection of its own, as fast as the server answers; then 16 recipients that poll a
             hundred at a time and acknowledge with signed receipts. The peer is 64 writers on 10 connections.
batches      The senders of `sends`, but 64 messages a request, sealed under one pair of signatures.

The first two run on a server with the default of one web process, the others with one for each core. Messages have
1 KiB. Our CPU time is that of all processes of the server, with its background work, until a little after the load, so
that sealing the audit is counted too; the CPU time of a bare insert is PostgreSQL's alone, at a steady
pace without its background.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace

import uvloop

import bare_insert
from angelia.envelope.media_type import MEDIA_TYPE
from fleet import Line, Member, enroll
from harness import Result, compared, cpu_us, milliseconds, rate
from mail_load import (
    BATCH,
    BODY,
    JSON,
    RECIPIENTS,
    SENDERS,
    Lines,
    Post,
    Stream,
    batch_request,
    poll,
    posts,
    receive_all,
    send_all,
    stream_paced,
)
from served import Cost, Served, server

SECTIONS = ("round-trips", "latency", "sends", "batches")
WORKERS = os.cpu_count() or 1
ALONE, ALONE_A_SECOND = 100, 14  # 16 recipients at this pace: each every 1.14 s
WINDOW = 10.0  # seconds: the periods of most background work fit into it
PACES = (20, 100)
SETTLE = 1.2  # seconds: the sealer works every second


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    slice_seconds: int
    idle_seconds: int
    sends: int
    batches: int


def main(*, quick: bool, only: Sequence[str] = SECTIONS) -> list[Result]:
    effort = Effort(5, 4, 8, 640, 24) if quick else Effort(9, 10, 30, 4_096, 64)
    results: list[Result] = []
    if {"round-trips", "latency"} & set(only):
        with server() as served:
            senders = enroll(served.runtime, [f"sender-{n}" for n in range(ALONE)])
            recipients = enroll(served.runtime, [f"recipient-{n}" for n in range(RECIPIENTS)])
            if "round-trips" in only:
                results += uvloop.run(_round_trips(served, senders, recipients))
            if "latency" in only:
                idle = _idle(served, effort.idle_seconds)
                for pace in PACES:
                    results += uvloop.run(_paced(served, senders[0], recipients[0], pace, effort, idle))
    if {"sends", "batches"} & set(only):
        with server(WORKERS) as served:
            senders = enroll(served.runtime, [f"sender-{n}" for n in range(SENDERS)])
            recipients = enroll(served.runtime, [f"recipient-{n}" for n in range(RECIPIENTS)])
            if "sends" in only:
                results += _sends(served, senders, recipients, effort)
            if "batches" in only:
                results += _batches(served, senders, recipients, effort, both_forms=not quick)
    return results


async def _round_trips(served: Served, senders: list[Member], recipients: list[Member]) -> list[Result]:
    runtime = served.runtime
    line = await Line.open(runtime)

    async def fetched(post: Post) -> str:
        ((key, token),) = await poll(line, runtime, post.recipient)
        assert key == post.key
        return token

    async def streamed(post: Post) -> str:
        key, token = await streams[post.recipient.handle].next()
        assert key == post.key
        return token

    async def alone(arrival: Callable[[Post], Awaitable[str]], sent: list[Post]) -> None:
        began = time.perf_counter()
        for number, post in enumerate(sent):
            await asyncio.sleep(max(0.0, began + number / ALONE_A_SECOND - time.perf_counter()))
            status, body = await line.ask(post.request(runtime.url))
            assert status == 201, body
            status, body = await line.ask(post.acknowledgement(runtime.url, await arrival(post)))
            assert status == 200, body
            assert b'"problem"' not in body, body

    async def nothing() -> None:
        pass

    async def counted(work: Awaitable[None]) -> tuple[int, int]:
        trips, scripts, until = served.round_trips(), served.scripts(), time.perf_counter() + WINDOW
        await work
        await asyncio.sleep(until - time.perf_counter())
        return served.round_trips() - trips, served.scripts() - scripts

    def result(by: str, mail: tuple[int, int], idle: tuple[int, int]) -> list[Result]:
        trips, scripts = ((a - b) / ALONE for a, b in zip(mail, idle, strict=True))
        note = f"lower is better; {ALONE} messages alone, signed acks; an idle window had {idle[0]} and {idle[1]}"
        return [
            Result(f"round trips to PostgreSQL, {by} / one", f"{trips:.1f}", "1", trips, note),
            Result(f"scripts in Valkey, {by} / one", f"{scripts:.1f}", "1", scripts, note),
        ]

    with served.statement_log():
        await alone(fetched, posts(senders, recipients, ALONE))
        sent = posts(senders, recipients, ALONE)
        idle, mail = await counted(nothing()), await counted(alone(fetched, sent))
        results = result("poll", mail, idle)
        streams = {member.handle: await Stream.open(runtime, member) for member in recipients}
        await alone(streamed, posts(senders, recipients, RECIPIENTS))
        sent = posts(senders, recipients, ALONE)
        idle, mail = await counted(nothing()), await counted(alone(streamed, sent))
        results += result("stream", mail, idle)
    return results


def _idle(served: Served, seconds: int) -> Cost:
    """What the server's background work costs in a second."""
    time.sleep(SETTLE)
    before = served.cost()
    time.sleep(seconds)
    return (served.cost() - before) / seconds


@dataclass
class _Slices:
    """What alternating slices measured, of one side."""

    latencies: list[list[float]] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    async def add(self, served: Served, work: Awaitable[list[float]], settle: float = 0.0) -> None:
        before = served.cost()
        latencies = await work
        await asyncio.sleep(settle)
        self.costs.append((served.cost() - before) / len(latencies))
        self.latencies.append(latencies)

    def of_all(self, part: float) -> float:
        """The quantile of all slices together: a slice alone has too few messages for its 99th percentile."""
        return _quantile(sorted(itertools.chain.from_iterable(self.latencies)), part)

    def of_each(self, part: float) -> list[float]:
        return [_quantile(one, part) for one in self.latencies]


async def _paced(
    served: Served, sender: Member, recipient: Member, pace: int, effort: Effort, idle: Cost
) -> list[Result]:
    ours, bare = _Slices(), _Slices()
    count, url = pace * effort.slice_seconds, served.runtime.database_url
    stream, lines = await Stream.open(served.runtime, recipient), Lines(served.runtime)
    size = len(sender.seal(recipient, BODY).wire)
    await stream_paced(lines, stream, posts([sender], [recipient], pace), pace)
    async with bare_insert.connections(url, 1) as pool:
        await bare_insert.insert_paced(pool, pace, pace, size)
        for _ in range(effort.rounds):
            await bare.add(served, bare_insert.insert_paced(pool, pace, count // 2, size))
            sent = posts([sender], [recipient], count)
            await ours.add(served, stream_paced(lines, stream, sent, pace), SETTLE)
    stream.close()
    at = f"at {pace}/s"
    note = f"lower is better; {count} messages a round"
    cost = f"lower is better; {_median(ours.costs)}; an idle server takes {idle.server / pace * 1e6:,.0f} of it"
    mine, beside = [one.server for one in ours.costs], [(one - idle / pace).postgres for one in bare.costs]
    return [
        _latency(f"send to delivery p50 {at} / bare insert p50", ours, bare, 0.50, note),
        _latency(f"send to delivery p99 {at} / bare insert p99", ours, bare, 0.99, note),
        compared(f"server CPU a message {at} / bare insert", mine, beside, cpu_us, cost),
    ]


def _latency(what: str, ours: _Slices, bare: _Slices, part: float, note: str) -> Result:
    mine, beside = ours.of_all(part), bare.of_all(part)
    by_round = compared(what, ours.of_each(part), bare.of_each(part), milliseconds, note)
    return replace(by_round, ours=milliseconds(mine), peer=milliseconds(beside), ratio=mine / beside)


def _quantile(values: Sequence[float], part: float) -> float:
    return values[int(len(values) * part)]


def _sends(served: Served, senders: list[Member], recipients: list[Member], effort: Effort) -> list[Result]:
    runtime, count = served.runtime, effort.sends
    bare, sends, receives = _Rounds(served), _Rounds(served), _Rounds(served)
    for number in range(effort.rounds + 1):
        made = posts(senders, recipients, count)
        bare.add_bare(count, len(made[0].envelope.wire))
        requests = [[post.request(runtime.url) for post in made[at::SENDERS]] for at in range(SENDERS)]
        sends.add(count, send_all(runtime, requests, count))
        receives.add(count, receive_all(runtime, recipients, {post.key: post.receipt for post in made}))
        if number == 0:  # the first round warms up
            for one in (bare, sends, receives):
                one.forget()
    return [
        *sends.against(bare, "single sends", f"{SENDERS} senders, {WORKERS} web processes"),
        *receives.against(bare, "receives", "polls of 100, signed receipts"),
    ]


def _batches(
    served: Served, senders: list[Member], recipients: list[Member], effort: Effort, *, both_forms: bool
) -> list[Result]:
    results = []
    to, count = [recipients[n % RECIPIENTS] for n in range(BATCH)], effort.batches * BATCH
    for name, content_type in _forms(served, senders[0], recipients[0], both_forms=both_forms).items():
        bare, sends = _Rounds(served), _Rounds(served)
        for _ in range(effort.rounds):
            made = [senders[n % SENDERS].seal_batch(to, BODY) for n in range(effort.batches)]
            bare.add_bare(effort.sends, len(made[0][0].wire))
            requests = [
                [batch_request(served.runtime.url, senders[n % SENDERS], one, content_type)]
                for n, one in enumerate(made)
            ]
            sends.add(count, send_all(served.runtime, requests, count))
            uvloop.run(receive_all(served.runtime, recipients, {}))
        note = f"{effort.batches} batches at once, {WORKERS} web processes"
        results += sends.against(bare, f"sends in batches of {BATCH}, {name}", note)
    return results


def _forms(served: Served, sender: Member, recipient: Member, *, both_forms: bool) -> dict[str, str]:
    """The forms of a batch that this server reads; the binary one alone if that is enough."""
    probe = batch_request(served.runtime.url, sender, sender.seal_batch([recipient], BODY), MEDIA_TYPE)

    async def answer() -> tuple[int, bytes]:
        return await (await Line.open(served.runtime)).ask(probe)

    status, body = asyncio.run(answer())
    if status == 415:
        return {"JSON": JSON}
    assert status == 200, body
    asyncio.run(receive_all(served.runtime, [recipient], {}))
    return {"binary": MEDIA_TYPE} | ({"JSON": JSON} if both_forms else {})


class _Rounds:
    """The rates and CPU costs of one kind of work, round by round."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._rates: list[float] = []
        self._costs: list[Cost] = []

    def add(self, count: int, work: Coroutine[None, None, float]) -> None:
        """Runs work that returns a rate."""
        before = self._served.cost()
        self._rates.append(uvloop.run(work))
        time.sleep(SETTLE)
        self._costs.append((self._served.cost() - before) / count)

    def add_bare(self, count: int, wire_bytes: int) -> None:
        """Inserts rows. Neither opening the connections nor emptying the table is counted."""

        async def insert() -> None:
            async with bare_insert.connections(self._served.runtime.database_url) as pool:
                before = self._served.cost()
                self._rates.append(await bare_insert.insert_all(pool, SENDERS, count, wire_bytes))
                self._costs.append((self._served.cost() - before) / count)

        uvloop.run(insert())

    def forget(self) -> None:
        self._rates.clear()
        self._costs.clear()

    def against(self, bare: _Rounds, what: str, note: str) -> list[Result]:
        mine, beside = [one.server for one in self._costs], [one.postgres for one in bare._costs]
        cost = f"lower is better; {_median(self._costs)}"
        return [
            compared(f"{what} / bare inserts", self._rates, bare._rates, rate, f"higher is better; {note}"),
            compared(f"server CPU of {what} / bare insert", mine, beside, cpu_us, cost),
        ]


def _median(costs: Sequence[Cost]) -> Cost:
    parts = ("web", "postgres", "valkey", "main", "client")
    return Cost(*(statistics.median(getattr(one, part) for one in costs) for part in parts))
