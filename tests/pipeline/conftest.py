"""One Spark for all tests of a process, on the Java that came with us; a lake for each test."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession

from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.session import session
from angelia.settings import Settings
from angelia.stores import migrations
from angelia.stores.objects import Objects
from quick_spark import QUICK
from receipt_rows import NOW, OwnLedger

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file stay in one process: each that has some starts a Spark of its own."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session(QUICK, "tests") as spark:
        yield spark


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(str(tmp_path / "lake"))


@pytest.fixture
async def work(database_url: str, objects: Objects, spark: SparkSession) -> AsyncIterator[Callable[..., JobContext]]:
    with ExitStack() as stack:

        def begun(**values: Any) -> JobContext:
            given = {
                "settings": Settings(),
                "database_url": database_url,
                "objects": objects,
                "now": NOW,
                "stack": stack,
            }
            made = JobContext(**{**given, **values})
            made.__dict__["spark"] = spark
            return made

        yield begun


@pytest.fixture
def own_ledger(disk_directory: Path) -> Iterator[OwnLedger]:
    """A ledger of the newest schema that a test may kill."""
    own = OwnLedger(Path(tempfile.mkdtemp(dir=disk_directory)))

    async def migrate() -> None:
        connection = await asyncpg.connect(own.url)
        await migrations.migrate(connection)
        await connection.close()

    asyncio.run(migrate())
    yield own
    own.stop()
