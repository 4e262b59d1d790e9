"""Wake-ups between processes, over the hot tier's pub/sub. One connection per process serves all who wait in it.

A wake-up may be lost (a hot tier that restarts forgets who listens), so whoever waits also looks by itself: `LOOK`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from angelia.errors import Unavailable
from angelia.stores.valkey import HotTier

T = TypeVar("T")

LOOK = 5.0
_MOST_UNHEARD = 256
_AGAIN = 0.2
_NOTHING = "ang:wake"
# What comes of using a line that breaks at this moment: the driver takes it apart under our hands.
_BROKEN = (RedisError, OSError, AttributeError, RuntimeError)
log = structlog.get_logger(__name__)


def topic(kind: str, tag: str) -> str:
    """What is said about one thing; `tag` is what stands for it in the hot tier's names."""
    return f"ang:wake:{kind}:{{{tag}}}"


def news(event: str, data: bytes) -> bytes:
    """A word that a stream passes on as an event."""
    return event.encode() + b"\n" + data


def told(word: bytes) -> tuple[str, bytes]:
    """The event and the data of such a word."""
    event, _, data = word.partition(b"\n")
    return event.decode(), data


class RequestTime:
    """The time of a request that goes on: the edge's clock, and how long ago that was."""

    def __init__(self, now: datetime) -> None:
        self._began = now
        self._since = time.monotonic()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.passed())

    def passed(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self._since


class Bell:
    """What one waiter hears. Words that nobody takes are kept, the newest ones; an empty word only wakes."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._words: deque[bytes] = deque(maxlen=_MOST_UNHEARD)

    def ring(self, word: bytes = b"") -> None:
        if word:
            self._words.append(word)
        self._rung.set()

    def words(self) -> list[bytes]:
        """What was said since the last time."""
        taken = list(self._words)
        self._words.clear()
        return taken

    async def wait(self, seconds: float) -> bool:
        """Until the next ring, or so long; a ring that came before counts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        rung = self._rung.is_set()
        self._rung.clear()
        return rung


class Wake:
    """The bells of one process, by topic."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot
        self._bells: dict[str, set[Bell]] = {}
        self._heard: dict[str, asyncio.Event] = {}  # set once the server tells us of the topic
        self._line: PubSub | None = None
        self._reader: asyncio.Task[None] | None = None
        self.stopping = False

    @asynccontextmanager
    async def listening(self, *topics: str) -> AsyncIterator[Bell]:
        """A bell for these topics. Whoever looks only after this has begun misses nothing that comes later."""
        bell = Bell()
        new = [topic for topic in topics if topic not in self._bells]
        for topic in topics:
            self._bells.setdefault(topic, set()).add(bell)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="wake-ups")
        try:
            await self._ask(new)
            await self._confirmed(topics)
            yield bell
        finally:
            await self._leave(bell, topics)

    async def poll(
        self,
        topics: Sequence[str],
        look: Callable[[datetime], Awaitable[T]],
        found: Callable[[T], bool],
        now: datetime,
        wait: float,
        pause: Callable[[T, datetime], float] = lambda _, __: LOOK,
    ) -> T:
        """The long poll: looks until something is found, `wait` seconds are over or the process is about to end. A
        wake-up on a topic cuts the pause before the next look short. Returns what the last look gave."""
        time_ = RequestTime(now)
        got = await look(now)
        if found(got) or wait <= 0 or self.stopping:
            return got
        async with self.listening(*topics) as bell:
            while True:
                at = time_.now()
                got = await look(at)
                left = wait - time_.passed()
                if found(got) or left <= 0 or self.stopping:
                    return got
                await bell.wait(min(left, LOOK, pause(got, at)))

    async def tell(self, topic: str, word: bytes) -> None:
        """Say something to whoever listens; that nobody hears it is no failure."""
        with suppress(Unavailable):
            await self._hot.publish(topic, word)

    def stop(self) -> None:
        """The process is about to end: whoever waits answers with what there is."""
        self.stopping = True
        self.ring_all()

    def ring_all(self) -> None:
        """Everybody looks now: what was missed is not known."""
        for bell in {bell for bells in self._bells.values() for bell in bells}:
            bell.ring()

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _leave(self, bell: Bell, topics: Sequence[str]) -> None:
        for topic in topics:
            self._bells[topic].discard(bell)
        deserted = [topic for topic in topics if not self._bells[topic]]
        for topic in deserted:
            del self._bells[topic]
            self._heard.pop(topic, None)
        if deserted and self._line is not None:
            with suppress(*_BROKEN):
                await self._line.unsubscribe(*deserted)

    async def _ask(self, topics: Sequence[str]) -> None:
        """A line that is down, or breaks now, asks for everything when it is up again."""
        if topics and self._line is not None:
            with suppress(*_BROKEN):
                await self._line.subscribe(*topics)

    async def _confirmed(self, topics: Sequence[str]) -> None:
        # A hot tier that is away is no reason to wait: the look finds what it will not tell.
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                for topic in topics:
                    await self._heard.setdefault(topic, asyncio.Event()).wait()

    async def _read(self) -> None:
        while True:
            try:
                async with self._hot.pubsub() as line:
                    # A line that listens to nothing cannot be read, so there is one topic of which nobody speaks.
                    asked = {_NOTHING, *self._bells}
                    await line.subscribe(*asked)
                    self._line = line  # from here on whoever comes asks by itself; before, some came in vain
                    if missed := self._bells.keys() - asked:
                        await line.subscribe(*missed)
                    while True:
                        self._hear(await line.get_message(timeout=None))
            except (*_BROKEN, TimeoutError) as error:
                log.info("wake-ups are interrupted", error=str(error) or type(error).__name__)
            self._line = None
            for heard in self._heard.values():
                heard.clear()  # the same events again, since somebody may be waiting for them
            self.ring_all()
            await asyncio.sleep(_AGAIN)

    def _hear(self, message: Mapping[str, Any] | None) -> None:
        if message is None:
            return
        topic = message["channel"].decode()
        if message["type"] == "message":
            for bell in self._bells.get(topic, ()):
                bell.ring(message["data"])
        elif message["type"] == "subscribe" and topic in self._bells:
            self._heard.setdefault(topic, asyncio.Event()).set()
