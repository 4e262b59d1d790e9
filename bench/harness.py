"""What the benchmarks share: a server of their own, a load generator that costs little, and how results are shown."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from angelia.stores.embedded.datadir import Runtime, read_runtime


@dataclass(frozen=True)
class Result:
    """One line of the table: us and the peer or raw limit beside us, measured in the same run."""

    what: str
    ours: str
    peer: str
    ratio: float
    note: str = ""


@contextmanager
def server(**environ: str) -> Iterator[Runtime]:
    """`angelia serve` on a fresh data directory, with limits lifted."""
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-", dir="/tmp"))
    directory.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
    environment |= {"ANGELIA_LIMITS": "register=off,unproven=off,who=off,identity=off", "ANGELIA_LOG_LEVEL": "warning"}
    process = subprocess.Popen(
        [Path(sys.executable).parent / "angelia", "serve", "--data-dir", directory / "data", "--port", "0"],
        env=environment | environ,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _ready(process, directory / "data")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(40)
        shutil.rmtree(directory, ignore_errors=True)


def _ready(process: subprocess.Popen[bytes], data_dir: Path) -> Runtime:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        runtime = read_runtime(data_dir)
        if runtime is not None:
            return runtime
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def worker_cpu(runtime: Runtime) -> float:
    """CPU seconds that the web processes have used; neighbours on the machine do not count in it."""
    workers = [p for p in psutil.Process(runtime.pid).children() if "angelia.worker" in p.cmdline()]
    return sum(sum(p.cpu_times()[:2]) for p in workers)


async def send(port: int, requests: Sequence[bytes], connections: int = 16) -> list[int]:
    """Send ready-made HTTP/1.1 requests over kept connections, one at a time on each; the statuses."""
    statuses: list[int] = []
    queue = iter(requests)

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in queue:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            statuses.append(int(head[9:12]))
        writer.close()

    await asyncio.gather(*(connection() for _ in range(connections)))
    return statuses


def interleaved(rounds: int, first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """Medians of two measurements taken in turn, so that a slow minute of the machine hits both."""
    pairs = [(first(), second()) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def show(results: Sequence[Result]) -> None:
    print(f"{'WHAT':<46}  {'OURS':>22}  {'PEER':>22}  {'RATIO':>6}  NOTE")
    for result in results:
        print(f"{result.what:<46}  {result.ours:>22}  {result.peer:>22}  {result.ratio:>6.2f}  {result.note}")
