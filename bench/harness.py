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
    """Returns the medians of two measurements that run in turn, so that a slow minute of the machine hits both."""
    pairs = [(first(), second()) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def show(results: Sequence[Result]) -> None:
    print(f"{'WHAT':<36}  {'OURS':>16}  {'PEER':>16}  {'RATIO':>6}  NOTE")
    for result in results:
        print(f"{result.what:<36}  {result.ours:>16}  {result.peer:>16}  {result.ratio:>6.2f}  {result.note}")
