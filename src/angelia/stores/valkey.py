"""The hot tier: Valkey or Redis. Runs scripts, and keeps the birth mark, which says since when its memory is
complete."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio
import structlog
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.exceptions import NoScriptError, RedisError, ResponseError

from angelia.errors import SettingsError, Unavailable
from angelia.stores.hot_line import HotLine, Word

BIRTH = "ang:birth"
# How far the clocks of servers that share a hot tier may differ (`doctor` warns at one second).
CLOCK_ALLOWANCE_MS = 1000
_FAULTS = (RedisError, OSError, TimeoutError)
_NO_JOURNAL = ("CONFIG", "SET", "appendonly", "no")
_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


_ALL_SCRIPTS: list[Script] = []


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the digest by which the server caches it."""

    text: str
    sha: str

    @classmethod
    def read(cls, beside: str, name: str) -> Script:
        text = (Path(beside).parent / name).read_text("utf-8")
        script = cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        _ALL_SCRIPTS.append(script)
        return script


_BIRTH_SCRIPT = Script.read(__file__, "birth.lua")

log = structlog.get_logger(__name__)


def now_ms() -> int:
    """This machine's time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class HotTier:
    """One pipelined connection for scripts, and a pool for the rest. Each new connection renews the birth mark if the
    server was restarted since."""

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
        """Runs a script on the pipelined connection, and returns its reply."""
        words = (len(keys), *keys, *args)
        try:
            line = self._line
            if line is None or not line.open:
                line = await self._connected()
            try:
                return await line.ask("EVALSHA", script.sha, *words)
            except ResponseError as error:
                return await self._run_again(line, script, words, error)
        except _FAULTS as error:
            raise _unavailable() from error

    async def _run_again(self, line: HotLine, script: Script, words: Sequence[Word], fault: ResponseError) -> Any:
        """Runs a script that the server refused to run, if the reason can be helped."""
        if isinstance(fault, NoScriptError):  # a restarted server has lost its script cache
            try:
                return await line.ask("EVAL", script.text, *words)
            except ResponseError as error:
                fault = error
        if self._shared or not _journal_fails(fault):
            raise fault
        # A full disk must not stop what needs no disk. What a restart loses without the journal, the ledger has.
        await line.ask(*_NO_JOURNAL)
        log.error("the hot tier cannot write its journal and goes on without", url=self._url.rpartition("@")[2])
        return await line.ask("EVAL", script.text, *words)

    async def keep_journal(self) -> None:
        """Turns the journal of our own server on again, if a full disk turned it off."""
        if self._shared:
            return
        with _wrapped():
            if "no" in (await self._redis.config_get("appendonly")).values():
                await self._redis.config_set("appendonly", "yes")
                log.warning("the hot tier writes its journal again")

    async def _connected(self) -> HotLine:
        """Returns a new connection. Concurrent callers share one attempt, and its failure."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> HotLine:
        line = HotLine(await self._new_connection())
        # Each server process has a script cache of its own. Callers rely on the order of their scripts, which one that
        # is sent again with its text would lose.
        loads = [line.ask("SCRIPT", "LOAD", script.text) for script in _ALL_SCRIPTS]
        await asyncio.gather(*loads, return_exceptions=True)  # where that is forbidden, texts are sent again
        self._line = line
        return line

    async def _new_connection(self) -> AbstractConnection:
        connection: AbstractConnection = self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        await connection.connect()  # type: ignore[no-untyped-call]
        return connection

    async def ping(self) -> None:
        with _wrapped():
            await self._redis.ping()

    async def subscriber(self) -> AbstractConnection:
        """Returns a new connection for wake-ups; its caller takes it over and closes it."""
        with _wrapped():
            return await self._new_connection()

    async def publish(self, topic: str, message: bytes) -> None:
        """Publishes on a topic, over the connection of the scripts, so that it shares a round trip with them."""
        with _wrapped():
            line = self._line
            if line is None or not line.open:
                line = await self._connected()
            await line.ask("PUBLISH", topic, message)

    async def set_mark(self, key: str, life_ms: int | None) -> None:
        with _wrapped():
            await self._redis.set(key, b"1", px=life_ms)

    async def forget(self, *keys: str) -> int:
        """Deletes keys. Returns how many existed."""
        with _wrapped():
            return int(await self._redis.delete(*keys))

    async def remove_member(self, key: str, member: str) -> None:
        """Removes a member of a sorted set."""
        with _wrapped():
            await self._redis.zrem(key, member)

    async def birth(self) -> int:
        """Since when the hot tier's memory is complete, in Unix milliseconds; read anew each time."""
        return int((await self.birth_mark()).rpartition(":")[2])

    async def birth_mark(self) -> str:
        """The birth mark: it differs after every restart of the server."""
        await self.ping()
        mark = await self.run(_BIRTH_SCRIPT, [BIRTH], [self.run_id, self.birth_ms(now_ms())])
        return bytes(mark).decode()

    def birth_ms(self, now: int) -> int:
        """The time in a birth mark that is made now: later by the clock difference allowed between servers that share
        it."""
        return now + self._allowance_ms

    async def close(self) -> None:
        if self._line is not None:
            self._line.close()
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _greet(self, connection: AbstractConnection) -> None:
        """Reads the run id and sets the birth mark. A connection never outlives its server, so once per connection is
        enough."""
        await connection.on_connect()
        found = _RUN_ID.search(bytes(await _reply(connection, "INFO", "server")))
        if found is None:
            raise ConnectionError("this server does not tell its run id, so its memory cannot be trusted")
        self.run_id = found[1].decode()
        birth = ("EVAL", _BIRTH_SCRIPT.text, 1, BIRTH, self.run_id, self.birth_ms(now_ms()))
        try:
            await _reply(connection, *birth)
        except ResponseError as error:
            if self._shared or not _journal_fails(error):
                raise
            await _reply(connection, *_NO_JOURNAL)
            await _reply(connection, *birth)


def _journal_fails(error: ResponseError) -> bool:
    """Whether the server refuses writes because it cannot write its journal."""
    return str(error).startswith("MISCONF")


async def _reply(connection: AbstractConnection, *words: Word) -> Any:
    await connection.send_command(*words)
    return await connection.read_response()


@contextmanager
def _wrapped() -> Iterator[None]:
    try:
        yield
    except _FAULTS as error:
        raise _unavailable() from error


def _unavailable() -> Unavailable:
    return Unavailable(
        "the hot tier is not reachable at the moment",
        hint="try again; it restarts by itself",
        retry_after=1,
    )
