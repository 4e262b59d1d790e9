"""The hot tier: Valkey or Redis. Runs scripts, and keeps the birth mark that tells when its memory began."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.exceptions import NoScriptError, RedisError

from angelia.errors import Unavailable

BIRTH = "ang:birth"
_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest under which the server keeps it."""

    text: str
    sha: str

    @classmethod
    def read(cls, beside: str, name: str) -> Script:
        text = (Path(beside).parent / name).read_text("utf-8")
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_BIRTH_SCRIPT = Script.read(__file__, "birth.lua")


def now_ms() -> int:
    """The process clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class HotTier:
    """One pool of connections. Each new connection renews the birth mark if the server's memory is another one."""

    def __init__(self, url: str, connections: int = 10, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self.run_id = ""
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=2,
            socket_timeout=2,
            socket_connect_timeout=2,
            redis_connect_func=self._greet,
        )
        self._redis = redis.asyncio.Redis(connection_pool=pool)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[str | int | bytes]) -> Any:
        """Run a script; a server that forgot it is taught again."""
        with _wrapped():
            try:
                return await self._redis.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await self._redis.eval(script.text, len(keys), *keys, *args)

    async def ping(self) -> None:
        with _wrapped():
            await self._redis.ping()

    async def set_mark(self, key: str, life_ms: int | None) -> None:
        with _wrapped():
            await self._redis.set(key, b"1", px=life_ms)

    async def forget(self, *keys: str) -> None:
        with _wrapped():
            await self._redis.delete(*keys)

    async def birth(self) -> int:
        """When this memory began, in Unix milliseconds; read now, not remembered."""
        await self.ping()
        mark = await self.run(_BIRTH_SCRIPT, [BIRTH], [self.run_id, self._clock()])
        return int(bytes(mark).rpartition(b":")[2])

    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _greet(self, connection: AbstractConnection) -> None:
        """A connection never outlives its server, so looking at the run id once per connection is enough."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        found = _RUN_ID.search(bytes(await connection.read_response()))
        self.run_id = found[1].decode() if found else "unknown"
        await connection.send_command("EVAL", _BIRTH_SCRIPT.text, 1, BIRTH, self.run_id, self._clock())
        await connection.read_response()


@contextmanager
def _wrapped() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable(
            "the hot tier is not reachable at the moment",
            hint="try again; it restarts by itself",
            retry_after=1,
        ) from error
