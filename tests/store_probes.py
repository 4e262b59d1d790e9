"""Queries to embedded stores, waiting for a condition, and a parent process of stores that a test can kill."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PARENT = """
import json, sys, time
from pathlib import Path
from angelia import settings
from angelia.stores.embedded import EmbeddedStores
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.process import ParentDeath
path, notice = Path(sys.argv[1]), ParentDeath[sys.argv[2]]
data_dir = DataDir(path)
data_dir.prepare()
data_dir.lock()
stores = EmbeddedStores(settings.load({"data_dir": path}, environ={}).settings, data_dir, notice=notice)
urls = stores.start()
print(json.dumps({"urls": urls, "pids": stores.pids}), flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


async def until_blocked(connection: asyncpg.Connection) -> None:
    """Waits until a transaction waits for the lock of another one."""
    async with asyncio.timeout(15):
        while not await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def ask(url: str, statement: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url, timeout=5)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def hot(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=5, decode_responses=True)


def answers(url: str) -> bool:
    try:
        return bool(ask(url, "SELECT true"))
    except (OSError, asyncpg.PostgresError):
        return False


def remembers(client: redis.Redis, key: str) -> bool:
    try:
        return client.get(key) is not None
    except redis.ConnectionError:
        return False


def spawn_parent(path: Path, notice: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, path, notice], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, json.loads(parent.stdout.readline())
