"""The group log over HTTP, on a running `angelia spool serve` with its defaults, beside the same calls of its service
in this process. Values have 1 KiB; 100 members append in turn; requests are signed before the clock starts.

append   Requests of one message and of a hundred over 64 connections. The peer has as many callers. The CPU time is
         that of the node's process; in process that of ours, which has the callers too.
latency  From the first byte of an append to its frame at a subscriber, at 500 a second, beside the 10 ms that we allow
         it and beside the same in process, in alternating slices.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import msgspec
import uvloop

import cpu_time
from angelia.envelope.json_form import to_text
from angelia.grouplog.model import frames
from angelia.grouplog.model.frames import MEDIA, Hello, LogMessage, Status, Type
from angelia.grouplog.model.frames import Result as Appended
from angelia.grouplog.model.ids import base58, sender_id
from fleet import Line, Member
from harness import Result, compared, cpu_us, milliseconds, rate, send
from log_open import SENDERS, OpenLog, message, opened, workspace
from log_targets import at_most, with_load
from logs import ALLOWED, PACE, append_all, append_to_subscribers, paced
from served import ANGELIA

SECTIONS = ("append", "latency")
CONNECTIONS = 64
_START_SECONDS = 30.0
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    singles: int
    hundreds: int  # messages of a round, in batches of a hundred
    slice_seconds: int


QUICK = Effort(5, 2_000, 20_000, 3)
FULL = Effort(7, 5_000, 50_000, 5)


def main(*, quick: bool, only: Sequence[str] = SECTIONS) -> list[Result]:
    effort, results = QUICK if quick else FULL, list[Result]()
    members = [Member(f"member-{number}") for number in range(SENDERS)]
    with workspace() as directory, _node(directory) as node:
        for name, section in (("append", _append), ("latency", _latency)):
            if name in only:
                results += with_load(uvloop.run(section(node, members, directory / name, effort)))
    return results


@dataclass(frozen=True)
class Node:
    """A running spool node."""

    pid: int
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)


@dataclass(frozen=True)
class GroupOfNode:
    """A group on a node, all of its members admins."""

    node: Node
    id: bytes
    members: Sequence[Member]

    @classmethod
    def made(cls, node: Node, members: Sequence[Member]) -> GroupOfNode:
        """Creates a new group, so that no member has used any of its rate."""
        group = cls(node, secrets.token_bytes(32), members)
        public = [to_text(member.pair.public.ed25519) for member in members]
        body = {
            "group": base58(group.id),
            "roster": [{"binding": at, "public_key": key, "admin": True} for at, key in enumerate(public, 1)],
            "nodes": [{"id": httpx.get(f"{node.url}/v1/node").json()["id"], "url": node.url}],
            "config": {"min_copies": 1},
        }
        request = members[0].request(node.url, "POST", "/v1/groups", msgspec.json.encode(body))
        assert uvloop.run(send(node.address[1], [request], 1)) == [201]
        return group

    @property
    def path(self) -> str:
        return f"/v1/groups/{base58(self.id)}"

    def appends(self, count: int, batch: int) -> list[tuple[list[LogMessage], bytes]]:
        """So many messages in requests of one member after the other; each member's seqs begin with 1."""
        made = []
        for number in range(count // batch):
            at, first = number % SENDERS, number // SENDERS * batch + 1
            member = self.members[at]
            sender = sender_id(self.id, member.pair.public.ed25519, at + 1)
            messages = [message(sender, seq) for seq in range(first, first + batch)]
            body = b"".join(one.encode() for one in messages)
            made.append((messages, member.request(self.node.url, "POST", f"{self.path}/messages", body, MEDIA)))
        return made

    @asynccontextmanager
    async def subscribed(self, member: Member) -> AsyncIterator[AsyncIterator[tuple[int, bytes]]]:
        """The frames of a member's subscription, as they come."""
        line = await self.line()
        body = Hello({}, {}).encode()
        line.writer.write(member.request(self.node.url, "POST", f"{self.path}/subscribe", body, MEDIA))
        head = await line.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        assert b"transfer-encoding: chunked" in head.lower(), head
        try:
            yield _frames(line.reader)
        finally:
            line.writer.close()

    async def line(self) -> Line:
        return Line(*await asyncio.open_connection(*self.node.address))


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    found = frames.FrameReader()
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size + 2)
        for frame in found.feed(chunk[:-2]):
            yield frame


async def _append(node: Node, members: Sequence[Member], directory: Path, effort: Effort) -> list[Result]:
    figures: Samples = {}
    async with opened(directory) as log:
        for number in range(effort.rounds + 1):
            for batch, count in ((1, effort.singles), (100, effort.hundreds)):
                group = await asyncio.to_thread(GroupOfNode.made, node, members)
                measured = dict(
                    zip(
                        ("http rate", "http cost", "rate", "cost"),
                        (
                            *await _append_http(group, count, batch),
                            *await _append_in_process(log, count, batch),
                        ),
                        strict=True,
                    )
                )
                for name, value in measured.items() if number else ():  # the first round warms up
                    figures.setdefault(f"{name} {batch}", []).append(value)
    results = []
    for batch, what in ((1, "of one message"), (100, "of a hundred")):
        name = f"appends {what}, HTTP / in process"
        note = f"higher is better; {CONNECTIONS} connections, {CONNECTIONS} callers"
        results.append(compared(name, figures[f"http rate {batch}"], figures[f"rate {batch}"], rate, note))
        costs = figures[f"http cost {batch}"], figures[f"cost {batch}"]
        results.append(compared(f"CPU of a message, {name}", *costs, cpu_us, "lower is better"))
    return results


async def _append_http(group: GroupOfNode, count: int, batch: int) -> tuple[float, float]:
    """Returns the rate of messages, and the CPU seconds of the node for one."""
    requests = [request for _, request in group.appends(count, batch)]
    before, began = cpu_time.of_process(group.node.pid), time.perf_counter()
    statuses = await send(group.node.address[1], requests, CONNECTIONS)
    took = time.perf_counter() - began
    assert set(statuses) == {200}, set(statuses)
    return count / took, (cpu_time.of_process(group.node.pid) - before) / count


async def _append_in_process(log: OpenLog, count: int, batch: int) -> tuple[float, float]:
    requests = log.requests(count, batch)
    before = time.process_time()
    found = await append_all(log, requests, CONNECTIONS)
    return found, (time.process_time() - before) / count


async def _latency(node: Node, members: Sequence[Member], directory: Path, effort: Effort) -> list[Result]:
    count, quantiles, costs = PACE * effort.slice_seconds, Samples(), list[float]()
    async with opened(directory) as log:
        for number in range(effort.rounds + 1):
            group = await asyncio.to_thread(GroupOfNode.made, node, members)
            before = cpu_time.of_process(node.pid)
            over_http = await _append_to_subscriber(group, count)
            cost = (cpu_time.of_process(node.pid) - before) / count
            in_process = await append_to_subscribers(log, count, 1)
            if number == 0:
                continue
            costs.append(cost)
            for name, latencies in (("http", over_http), ("process", in_process)):
                for quantile in (50, 99):
                    found = statistics.quantiles(latencies, n=100)[quantile - 1]
                    quantiles.setdefault(f"{name} {quantile}", []).append(found)
    note = f"lower is better; {PACE} a second; the node takes {cpu_us(statistics.median(costs))} for each"
    allowed = [ALLOWED] * effort.rounds
    results = []
    for quantile in (50, 99):
        what, ours = f"append to a subscriber over HTTP, p{quantile}", quantiles[f"http {quantile}"]
        beside = compared(f"{what} / what we allow it", ours, allowed, milliseconds, note)
        results.append(at_most(beside, 1) if quantile == 50 else beside)
        peer = quantiles[f"process {quantile}"]
        results.append(compared(f"{what} / in process", ours, peer, milliseconds, note))
    return results


async def _append_to_subscriber(group: GroupOfNode, count: int) -> list[float]:
    """Appends single messages at a steady pace. Returns the seconds until a subscriber had each."""
    appends = group.appends(count, 1)
    left, latencies, idle = dict[tuple[bytes, int], float](), list[float](), list[Line]()
    ready = asyncio.Event()

    async def subscriber() -> None:
        async with group.subscribed(group.members[0]) as found:
            async for type_, body in found:
                if type_ == Type.CAUGHT_UP:
                    ready.set()
                elif type_ == Type.MESSAGE:
                    got = LogMessage.decode(body)
                    latencies.append(time.perf_counter() - left[got.sender, got.seq])
                    if len(latencies) == count:
                        return

    async def append(one: LogMessage, request: bytes) -> None:
        line = idle.pop() if idle else await group.line()
        left[one.sender, one.seq] = time.perf_counter()
        status, answer = await line.ask(request)
        assert status == 200, answer
        (body,) = frames.split(answer, Type.RESULT, 1)
        assert Appended.decode(body).status is Status.STORED
        idle.append(line)

    waiting = asyncio.create_task(subscriber())
    await ready.wait()
    steps: list[Callable[[], Awaitable[object]]] = [partial(append, one, request) for (one,), request in appends]
    await paced(steps)
    async with asyncio.timeout(30):
        await waiting
    for line in idle:
        line.writer.close()
    return latencies


@contextmanager
def _node(directory: Path) -> Iterator[Node]:
    """Runs `angelia spool serve` on a fresh data directory, until it takes requests that are signed now."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
    log = directory / "node.log"
    with log.open("wb") as output:
        command = [ANGELIA, "spool", "serve", "--data-dir", str(directory / "node"), "--port", "0"]
        child = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (ready := re.search(rb"is ready   (http\S+)", log.read_bytes())):
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the node did not start"
            time.sleep(0.05)
        time.sleep(1.1)  # requests signed in the second of its start, or before, are refused
        yield Node(child.pid, ready[1].decode())
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)
