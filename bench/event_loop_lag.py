"""The lag of an event loop while an asynchronous agent sends 200 messages on it, compared with the allowed 20 ms.

Each message goes all the way, ten at a time: keys are looked up, it is sealed, signed, stored durably, sent and marked
as accepted. Meanwhile a task of the same loop sleeps for a millisecond again and again; the time that it oversleeps is
the lag. An idle loop in another process is measured at the same time: its lag is the machine's share.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from angelia import AsyncAgent
from harness import Result
from served import ANGELIA, server

MESSAGES, AT_ONCE = 200, 10
ALLOWED = 0.020
BODY = bytes(1024)


def main(*, quick: bool) -> list[Result]:
    with server() as served, tempfile.TemporaryDirectory() as home:
        for name in ("alice", "bob"):
            _make(name, Path(home), served.data_dir)
        runs = [asyncio.run(_measure(served.runtime.url, Path(home))) for _ in range(3 if quick else 9)]
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
    command = [ANGELIA, "agent", "new", name, "--register", "-q"]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)


async def _measure(url: str, home: Path) -> tuple[float, float]:
    """Returns the lag of the loop that sends, and that of an idle loop."""
    async with AsyncAgent.open("alice", home=home, url=url) as alice:
        await alice.mail.send("bob", BODY)  # work that is done only once, such as key look-ups, is done now

        async def send(count: int) -> None:
            for _ in range(count):
                await alice.mail.send("bob", BODY)

        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        other = spawn.Process(target=_idle, args=(there,))
        other.start()
        await asyncio.to_thread(here.recv)  # until it runs
        ours = await _lag(asyncio.gather(*(send(MESSAGES // AT_ONCE) for _ in range(AT_ONCE))))
        here.send(None)
        idle: float = await asyncio.to_thread(here.recv)
        other.join()
    return ours, idle


def _idle(pipe: Connection) -> None:
    """Runs in another process: measures until the pipe gets a message, and sends the lag back."""

    async def until_told() -> float:
        pipe.send(None)
        return await _lag(asyncio.ensure_future(asyncio.to_thread(pipe.recv)))

    pipe.send(asyncio.run(until_told()))


async def _lag(work: asyncio.Future[Any]) -> float:
    """Returns the 99th percentile of how late a short sleep ends while the work is done."""
    late = []
    while not work.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - began - 0.001)
    await work
    return statistics.quantiles(late, n=100)[-1]
