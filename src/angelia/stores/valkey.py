"""The hot tier: Valkey or Redis. Runs scripts, and keeps the birth mark that tells when its memory began."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio
import structlog
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from angelia.errors import SettingsError, Unavailable
from angelia.stores.hot_line import HotLine, Word

BIRTH = "ang:birth"
# How far the clocks of two servers may be apart that share a hot tier (`doctor` warns at one second).
CLOCK_ALLOWANCE_MS = 1000
_NO_JOURNAL = ("CONFIG", "SET", "appendonly", "no")
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
_PUBLISH_SCRIPT = Script.read(__file__, "publish.lua")


log = structlog.get_logger(__name__)


def now_ms() -> int:
    """The process clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class HotTier:
    """One line for scripts, and a pool of connections for the rest. Each new connection renews the birth mark if the
    server's memory is another one."""

    def __init__(self, url: str, connections: int = 10, *, shared: bool = False) -> None:
        self._allowance_ms = CLOCK_ALLOWANCE_MS if shared else 0
        self._shared = shared
        self.run_id = ""
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=connections,
                timeout=2,
                socket_timeout=2,
                socket_connect_timeout=2,
                redis_connect_func=self._greet,
            )
        except ValueError as error:
            raise SettingsError(f"redis_url: {error}", hint="such as redis://localhost:6379/0") from error
        self._redis = redis.asyncio.Redis(connection_pool=pool)
        self._url = url
        self._line: HotLine | None = None
        self._connecting: asyncio.Task[HotLine] | None = None

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """Run a script, on the one line that all scripts share."""
        with _wrapped():
            line = self._line
            if line is None or not line.open:
                line = await self._connected()
            try:
                return await _ask(line, script, keys, args)
            except ResponseError as error:
                if self._shared or not _journal_fails(error):
                    raise
            # A disk that is full must not stop what needs no disk. What a restart forgets then, the ledger has.
            await line.ask(*_NO_JOURNAL)
            log.error("the hot tier cannot write its journal and goes on without", url=self._url.rpartition("@")[2])
            return await _ask(line, script, keys, args)

    async def keep_journal(self) -> None:
        """Let our own server write its journal again, if it had to give it up."""
        if self._shared:
            return
        with _wrapped():
            if "no" in (await self._redis.config_get("appendonly")).values():
                await self._redis.config_set("appendonly", "yes")
                log.warning("the hot tier writes its journal again")

    async def _connected(self) -> HotLine:
        """A new line. Whoever comes while it is made waits for the same one, and fails with it."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> HotLine:
        connection = self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        await connection.connect()
        self._line = HotLine(connection)
        return self._line

    async def ping(self) -> None:
        with _wrapped():
            await self._redis.ping()

    @asynccontextmanager
    async def pubsub(self) -> AsyncIterator[PubSub]:
        """A line that hears what is published; it waits as long as nothing is.

        It is not mended when it breaks: whoever reads it makes a new one, and knows that something was missed."""
        client = redis.asyncio.Redis.from_url(self._url, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0))
        try:
            async with client.pubsub() as line:
                yield line
        finally:
            await client.aclose()

    async def publish(self, topic: str, word: bytes) -> None:
        """By a script, so that it shares a round trip with the others."""
        await self.run(_PUBLISH_SCRIPT, [], [topic, word])

    async def set_mark(self, key: str, life_ms: int | None) -> None:
        with _wrapped():
            await self._redis.set(key, b"1", px=life_ms)

    async def forget(self, *keys: str) -> int:
        """Remove keys; how many there were."""
        with _wrapped():
            return int(await self._redis.delete(*keys))

    async def birth(self) -> int:
        """When this memory began, in Unix milliseconds; read now, not remembered."""
        return int((await self.birth_mark()).rpartition(":")[2])

    async def birth_mark(self) -> str:
        """What tells this memory from any other that was here before."""
        await self.ping()
        mark = await self.run(_BIRTH_SCRIPT, [BIRTH], [self.run_id, self.birth_ms(now_ms())])
        return bytes(mark).decode()

    def birth_ms(self, now: int) -> int:
        """What a birth mark made at that time says; servers that share a hot tier need not agree on the time."""
        return now + self._allowance_ms

    async def close(self) -> None:
        if self._line is not None:
            self._line.close()
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _greet(self, connection: AbstractConnection) -> None:
        """A connection never outlives its server, so looking at the run id once per connection is enough."""
        await connection.on_connect()
        found = _RUN_ID.search(bytes(await _told(connection, "INFO", "server")))
        if found is None:
            raise ConnectionError("this server does not tell its run id, so its memory cannot be trusted")
        self.run_id = found[1].decode()
        birth = ("EVAL", _BIRTH_SCRIPT.text, 1, BIRTH, self.run_id, self.birth_ms(now_ms()))
        try:
            await _told(connection, *birth)
        except ResponseError as error:
            if self._shared or not _journal_fails(error):
                raise
            await _told(connection, *_NO_JOURNAL)
            await _told(connection, *birth)


def _journal_fails(error: ResponseError) -> bool:
    """Whether a server refuses to write because it cannot write its journal; without one it would not mind."""
    return str(error).startswith("MISCONF")


async def _told(connection: AbstractConnection, *words: Word) -> Any:
    await connection.send_command(*words)
    return await connection.read_response()


async def _ask(line: HotLine, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
    try:
        return await line.ask("EVALSHA", script.sha, len(keys), *keys, *args)
    except NoScriptError:  # a server that was started anew has forgotten its scripts
        return await line.ask("EVAL", script.text, len(keys), *keys, *args)


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
