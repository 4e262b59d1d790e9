"""The pipeline from ledger to archive: bulk reads, and a whole archive run.

The raw limit of reads is COPY BINARY of the same columns to a client that drops the rows. The peer of the archive run
is the least work possible: pyarrow writes the rows of one ADBC connection to one Parquet file, without a commit, a
check or a purge. Spark's session is warm unless a line says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pyarrow.parquet as pq

from angelia.pipeline.database import Database
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.pipeline.session import Where, session
from angelia.pipeline.sources import ledger
from angelia.settings import Settings
from angelia.stores.objects import Objects
from harness import Result, compared, interleaved, rate, stores
from ledger_rows import NOW, OLD, fill

ROUNDS = 5
SMALL = 75_000


def main(*, quick: bool) -> list[Result]:
    days, rows_a_day = (4, 250_000) if quick else (8, 625_000)
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-"))
    try:
        with stores() as (url, _), ExitStack() as stack:
            asyncio.run(fill(url, days, rows_a_day))
            work = JobContext(
                settings=Settings(), database_url=url, objects=Objects.at(f"{directory}/lake"), now=NOW, stack=stack
            )
            work.__dict__["spark"] = stack.enter_context(session(Where(), "bench"))
            return [
                *_read(work, days * rows_a_day),
                _archive(work, days * rows_a_day, directory / "raw.parquet"),
                _small(url, directory),
            ]
    finally:
        shutil.rmtree(directory)


def _read(work: JobContext, rows: int) -> list[Result]:
    projection = work.sql("mail")["receipts"]

    def spark() -> float:
        with ledger.one_snapshot(work.database_url) as (_, snapshot):
            frame = ledger.read(work, projection, RECEIPTS.schema, snapshot, {"sent_at": (OLD, NOW)})
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def copy() -> float:
        return asyncio.run(_copy(work.database_url, projection))

    def adbc() -> float:
        began = time.perf_counter()
        with Database.open(work.database_url) as database:
            assert sum(batch.num_rows for batch in database.batches(projection)) == rows
        return time.perf_counter() - began

    spark()
    ours, raw = interleaved(ROUNDS, spark, copy)
    _, alone = interleaved(ROUNDS, copy, adbc)
    note = f"{rows:,} rows, wall, warm; aim 0.5"
    return [
        compared("ledger read / raw COPY", _rates(rows, ours), _rates(rows, raw), rate, note),
        compared("ledger read / ADBC alone", _rates(rows, ours), _rates(rows, alone), rate, "one connection"),
    ]


async def _copy(url: str, query: str) -> float:
    async def nowhere(_: bytes) -> None:
        pass

    connection = await asyncpg.connect(url)
    began = time.perf_counter()
    await connection.copy_from_query(query, output=nowhere, format="binary")
    seconds = time.perf_counter() - began
    await connection.close()
    return seconds


def _archive(work: JobContext, rows: int, path: Path) -> Result:
    began = time.perf_counter()
    with (
        Database.open(work.database_url) as database,
        pq.ParquetWriter(path, RECEIPTS.schema, compression="zstd") as file,
    ):
        for batch in database.batches(work.sql("mail")["receipts"]):
            file.write_batch(batch.cast(RECEIPTS.schema))
    raw = time.perf_counter() - began
    began = time.perf_counter()
    assert archive_receipts(work).rows == rows
    ours = time.perf_counter() - began
    note = f"{rows:,} rows; ours reads, commits, verifies and purges"
    return Result("archive receipts / bare Parquet", _rate(rows, ours), _rate(rows, raw), raw / ours, note)


def _small(url: str, directory: Path) -> Result:
    """The time that an operator waits for a small run: process start, Spark start, one archive run."""
    asyncio.run(fill(url, 1, SMALL))
    environ = {**os.environ, "DATABASE_URL": url, "ANGELIA_LAKE": f"{directory}/small"}
    command = [str(Path(sys.executable).with_name("angelia")), "pipeline", "run", "archive", "receipts", "-q"]
    began = time.perf_counter()
    told = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    assert json.loads(told.stdout)["rows"] == SMALL
    note = f"{SMALL:,} rows; lower is better"
    return Result("small archive from nothing / 60 s", f"{seconds:.1f} s", "60.0 s", seconds / 60, note)


def _rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds:,.0f} rows/s"


def _rates(rows: int, seconds: Sequence[float]) -> list[float]:
    return [rows / one for one in seconds]
