"""The stream of the audit: every sealed event once, whoever commits out of order and whatever is killed where."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from deltalake import DeltaTable

from angelia.audit import service
from angelia.audit.service import Audit
from angelia.keys.node_key import load_or_make
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.stream_audit import stream_audit
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.objects import Objects
from audit_chains import chained, positions
from receipt_rows import NOW

PATIENCE = 120
PROGRAM = Path(__file__).with_name("streaming.py")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


async def produce(database_url: str, data_dir: Path, producers: int, each: int) -> int:
    """Producers whose transactions end in another order than they began, beside a sealer; the last position."""
    ledger = await Ledger.open(database_url)
    node, audit, done = load_or_make(data_dir / "node.key"), Audit(ledger), asyncio.Event()

    async def one(number: int) -> None:
        chance = random.Random(number)
        for at in range(each):
            async with ledger.transaction() as tx:
                await service.record(tx, [service.event("message_sent", NOW, actor=f"p{number}", detail={"n": at})])
                await tx.execute("SELECT pg_sleep($1)", chance.random() * 0.03)

    async def seal() -> None:
        while not done.is_set():
            await audit.seal(node, NOW)
            await asyncio.sleep(0.01)

    sealing = asyncio.create_task(seal())
    await asyncio.gather(*(one(number) for number in range(producers)))
    done.set()
    await sealing
    while (sealed := await audit.seal(node, NOW)).entries:
        pass
    await ledger.close()
    return sealed.position


def stream_beside(begun: JobContext, objects: Objects, producing: Callable[[], Coroutine[None, None, int]]) -> int:
    """Stream until everything that is produced meanwhile has come; the last position."""
    found: list[int] = []

    async def produced() -> None:
        try:
            found.append(await producing())
            await until(lambda: len(positions(objects)) >= found[0])
        finally:
            begun.options["stop"].set()

    thread = threading.Thread(target=lambda: asyncio.run(produced()))
    thread.start()
    stream_audit(begun)
    thread.join()
    return found[0]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def test_producers_that_commit_out_of_order_are_all_there_once_and_a_new_checkpoint_changes_nothing(
    work: Callable[..., JobContext], database_url: str, objects: Objects, data_dir: Path, tmp_path: Path
) -> None:
    def begun(checkpoint: str) -> JobContext:
        options = {
            "stop": threading.Event(),
            "checkpoint": tmp_path / checkpoint,
            "rows": 40,
            "every": "50 milliseconds",
        }
        return work(settings=Settings(data_dir=data_dir), options=options)

    last = stream_beside(begun("first"), objects, lambda: produce(database_url, data_dir, 6, 25))
    assert positions(objects) == list(range(1, last + 1)) == list(range(1, 151))
    stream_beside(begun("second"), objects, lambda: produce(database_url, data_dir, 3, 10))
    # The first checkpoint lags behind the archive by now.
    stream_beside(begun("first"), objects, lambda: produce(database_url, data_dir, 3, 10))
    assert positions(objects) == list(range(1, 211))


async def test_a_stream_whose_lock_was_lost_takes_it_again_and_goes_on(
    work: Callable[..., JobContext], database_url: str, objects: Objects, data_dir: Path, tmp_path: Path
) -> None:
    async def produced() -> int:
        await until(lambda: len(positions(objects)) == 20)
        connection = await asyncpg.connect(database_url)
        held = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        assert [row[0] for row in await connection.fetch(held)] == [True]
        for _ in range(10 * PATIENCE):
            if await connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"):
                break
            await asyncio.sleep(0.1)
        await connection.close()
        return await chained(database_url, data_dir, NOW, 20)

    await chained(database_url, data_dir, NOW - timedelta(hours=1), 20)
    options = {"stop": threading.Event(), "checkpoint": tmp_path / "checkpoint", "every": "50 milliseconds"}
    stream_beside(work(settings=Settings(data_dir=data_dir), options=options), objects, produced)
    assert positions(objects) == list(range(1, 41))


async def test_killed_while_a_batch_writes_its_files_the_next_stream_goes_on_and_nothing_is_twice_or_nowhere(
    work: Callable[..., JobContext], database_url: str, objects: Objects, data_dir: Path, tmp_path: Path
) -> None:
    last = await chained(database_url, data_dir, datetime.now(UTC) - timedelta(hours=1), 1_500)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(PROGRAM), database_url, objects.root, str(data_dir), str(tmp_path / "first")),
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])},
        start_new_session=True,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await until(lambda: bool(positions(objects)) and bool(uncommitted(objects)))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
    now = positions(objects)
    assert now == list(range(1, len(now) + 1)), "dense, and each once"

    async def produced() -> int:
        return last

    options = {"stop": threading.Event(), "checkpoint": tmp_path / "second", "every": "50 milliseconds"}
    stream_beside(work(settings=Settings(data_dir=data_dir), options=options), objects, produced)
    assert positions(objects) == list(range(1, last + 1))


def uncommitted(objects: Objects) -> set[str]:
    """Files that are there and do not count yet."""
    root = Path(objects.table("audit_events"))
    written = {str(path.relative_to(root)) for path in root.glob("day=*/*.parquet")}
    counted = DeltaTable(str(root)).get_add_actions(flatten=True).column("path").to_pylist()
    return written - set(counted)
