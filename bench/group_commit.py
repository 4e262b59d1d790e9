"""What group commit gains: 64 concurrent writers, each write durable before it is answered.

Both sides register the same number of agents with the same SQL on the same embedded PostgreSQL. The peer commits
every write by itself, over as many connections as a worker's pool has.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from angelia.agents.model import Registration
from angelia.agents.service import Registered, register_batch
from angelia.audit.service import Audit
from angelia.envelope.ids import KeyType, key_id
from angelia.settings import Settings
from angelia.stores import migrations
from angelia.stores.embedded import EmbeddedStores
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger
from harness import Result, interleaved

WRITERS = 64


def main(*, quick: bool) -> list[Result]:
    count, rounds = (1_500, 3) if quick else (6_000, 7)
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-", dir="/tmp"))
    directory.chmod(0o755)
    data_dir = DataDir(directory / "data")
    data_dir.prepare()
    data_dir.lock()
    stores = EmbeddedStores(Settings(data_dir=data_dir.path), data_dir)
    try:
        url, _ = stores.start()
        asyncio.run(_migrate(url))
        single, grouped = interleaved(
            rounds, lambda: asyncio.run(_single(url, count)), lambda: asyncio.run(_grouped(url, count))
        )
    finally:
        stores.stop()
        data_dir.remove_runtime()
        data_dir.release()
        shutil.rmtree(directory, ignore_errors=True)
    return [
        Result(
            "group commit / one commit a write",
            f"{grouped:,.0f} writes/s",
            f"{single:,.0f} writes/s",
            grouped / single,
            f"{WRITERS} writers, synchronous_commit on; higher is better",
        )
    ]


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    await migrations.migrate(connection)
    await connection.close()
    ledger = await Ledger.open(url)
    await Audit(ledger).make_partitions(datetime.now(UTC))
    await ledger.close()


async def _grouped(url: str, count: int) -> float:
    ledger = await Ledger.open(url)
    commits: GroupCommit[Registration, Registered] = GroupCommit(ledger, register_batch)
    rate = await _writers(count, commits.submit)
    await ledger.close()
    return rate


async def _single(url: str, count: int) -> float:
    ledger = await Ledger.open(url)

    async def write(item: Registration) -> object:
        async with ledger.transaction() as tx:
            return await register_batch(tx, [item])

    rate = await _writers(count, write)
    await ledger.close()
    return rate


async def _writers(count: int, write) -> float:  # type: ignore[no-untyped-def]
    items = iter([_registration() for _ in range(count)])
    await write(_registration())

    async def writer() -> None:
        for item in items:
            await write(item)

    began = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    return count / (time.perf_counter() - began)


def _registration() -> Registration:
    public = os.urandom(32)
    return Registration(uuid.uuid4(), public, key_id(KeyType.ED25519, public), "", "", datetime.now(UTC))
