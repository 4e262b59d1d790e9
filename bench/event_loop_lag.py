"""How long an event loop is kept waiting while an asynchronous agent sends 200 messages, over what we allow it.

Everything of a message happens: keys are looked up, it is sealed and signed, stored durably, sent and marked as
accepted, ten at a time. Meanwhile a task of the same loop sleeps for a millisecond again and again; what it oversleeps
is the lag. A loop of another process does the same at the same time and has nothing else to do: its lag is what the
machine adds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from angelia import AsyncAgent
from fleet import server
from harness import Result

MESSAGES, AT_ONCE = 200, 10
ALLOWED = 0.020
BODY = bytes(1024)


def main(*, quick: bool) -> list[Result]:
    with server() as (runtime, data_dir), tempfile.TemporaryDirectory() as home:
        for name in ("alice", "bob"):
            _make(name, Path(home), data_dir)
        runs = [asyncio.run(_measure(runtime.url, Path(home))) for _ in range(3 if quick else 9)]
    ours, idle = (statistics.median(lags) for lags in zip(*runs, strict=True))
    return [
        Result(
            f"event loop lag of AsyncClient while sending {MESSAGES} messages / what we allow it",
            f"{ours * 1e3:.1f} ms",
            f"{ALLOWED * 1e3:.0f} ms",
            ours / ALLOWED,
            f"lower is better; p99; an idle loop of another process at the same time: {idle * 1e3:.1f} ms",
        )
    ]


def _make(name: str, home: Path, data_dir: Path) -> None:
    environ = {**os.environ, "ANGELIA_HOME": str(home), "ANGELIA_DATA_DIR": str(data_dir)}
    command = [Path(sys.executable).parent / "angelia", "agent", "new", name, "--register", "-q"]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)


async def _measure(url: str, home: Path) -> tuple[float, float]:
    """The lag of a loop that sends, and that of one that does nothing."""
    async with AsyncAgent.open("alice", home=home, url=url) as alice:
        await alice.mail.send("bob", BODY)  # what is done once is done now

        async def send(count: int) -> None:
            for _ in range(count):
                await alice.mail.send("bob", BODY)

        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        other = spawn.Process(target=_idle, args=(there,))
        other.start()
        await asyncio.to_thread(here.recv)  # it runs
        ours = await _lag(asyncio.gather(*(send(MESSAGES // AT_ONCE) for _ in range(AT_ONCE))))
        here.send(None)
        idle: float = await asyncio.to_thread(here.recv)
        other.join()
    return ours, idle


def _idle(pipe: Connection) -> None:
    """In another process: measures until it is told to stop."""

    async def until_told() -> float:
        pipe.send(None)
        return await _lag(asyncio.ensure_future(asyncio.to_thread(pipe.recv)))

    pipe.send(asyncio.run(until_told()))


async def _lag(work: asyncio.Future[Any]) -> float:
    """Returns how late a short sleep ends while the work is done, at the 99th percentile."""
    late = []
    while not work.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - began - 0.001)
    await work
    return statistics.quantiles(late, n=100)[-1]
