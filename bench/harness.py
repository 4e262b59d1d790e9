"""Shared by the benchmarks: embedded stores, a cheap load generator, and the table of results."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import asyncpg

from angelia.audit.service import Audit
from angelia.settings import Settings
from angelia.stores import migrations
from angelia.stores.embedded import EmbeddedStores
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.ledger import Ledger


@dataclass(frozen=True)
class Result:
    """One line of the table: Angelia and its peer or raw limit, measured in the same run."""

    what: str
    ours: str
    peer: str
    ratio: float
    note: str = ""
    spread: str = ""


@contextmanager
def stores() -> Iterator[tuple[str, str]]:
    """Runs a fresh, migrated PostgreSQL and a fresh Valkey as the server does. Yields their URLs."""
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-", dir="/tmp"))
    directory.chmod(0o755)
    data_dir = DataDir(directory / "data")
    data_dir.prepare()
    data_dir.lock()
    running = EmbeddedStores(Settings(data_dir=data_dir.path), data_dir)
    try:
        database_url, redis_url = running.start()
        asyncio.run(_migrate(database_url))
        yield database_url, redis_url
    finally:
        running.stop()
        data_dir.remove_runtime()
        data_dir.release()
        shutil.rmtree(directory, ignore_errors=True)


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    await migrations.migrate(connection)
    await connection.close()
    ledger = await Ledger.open(url)
    await Audit(ledger).make_partitions(datetime.now(UTC))
    await ledger.close()


async def send(port: int, requests: Sequence[bytes], connections: int = 16) -> list[int]:
    """Sends prepared HTTP/1.1 requests over kept connections, one at a time on each. Returns the statuses."""
    loop, queue, statuses = asyncio.get_running_loop(), iter(requests), list[int]()
    clients = [_Connection(queue, statuses, loop.create_future()) for _ in range(connections)]
    await asyncio.gather(*(loop.create_connection(one.itself, "127.0.0.1", port) for one in clients))
    async with asyncio.timeout(300):
        await asyncio.gather(*(one.ended for one in clients))
    return statuses


class _Connection(asyncio.Protocol):
    """Sends the next request when the answer before is complete. A protocol without streams costs the client least, so
    that the server is what is busy."""

    def __init__(self, queue: Iterator[bytes], statuses: list[int], ended: asyncio.Future[None]) -> None:
        self._queue = queue
        self._statuses = statuses
        self.ended = ended
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if end and len(body) == int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            self._statuses.append(int(head[9:12]))
            self._got = b""
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("the server hung up"))

    def itself(self) -> _Connection:
        return self

    def _ask(self) -> None:
        request = next(self._queue, None)
        if request is not None:
            self._transport.write(request)
        else:
            self.ended.set_result(None)
            self._transport.close()


def interleaved(
    rounds: int, first: Callable[[], float], second: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Returns two measurements that run in turn, so that a slow minute of the machine hits both."""
    pairs = [(first(), second()) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def compared(
    what: str, ours: Sequence[float], peer: Sequence[float], shown: Callable[[float], str], note: str = ""
) -> Result:
    """A line of medians. `spread` is the smallest and the largest ratio of a round; the note has both sides' ranges."""
    middle, beside = statistics.median(ours), statistics.median(peer)
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    ranges = f"{len(ours)} rounds: {_range(ours, shown)} over {_range(peer, shown)}"
    return Result(
        what,
        shown(middle),
        shown(beside),
        middle / beside,
        "; ".join(filter(None, (note, ranges))),
        _range(ratios, "{:.2f}".format),
    )


def rate(value: float) -> str:
    return f"{value:,.0f} /s"


def cpu_us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} CPU-µs"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    return f"{shown(min(values))} to {shown(max(values))}"


def show(results: Sequence[Result]) -> None:
    rows = [("WHAT", "OURS", "PEER", "RATIO", "RANGE", "NOTE")]
    rows += [(one.what, one.ours, one.peer, f"{one.ratio:.2f}", one.spread, one.note) for one in results]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for what, *figures, note in rows:
        aligned = [cell.rjust(width) for cell, width in zip(figures, widths[1:-1], strict=True)]
        print("  ".join([what.ljust(widths[0]), *aligned, note]))
