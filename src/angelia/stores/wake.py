"""Wake-ups between processes, over the hot tier's pub/sub. One connection per process serves all requests that wait.

A wake-up may be lost, because a hot tier that restarts drops its subscribers. So a waiter also checks its store every
`RECHECK_SECONDS`.
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

RECHECK_SECONDS = 5.0
_MOST_UNREAD = 256
_RECONNECT_SECONDS = 0.2
_UNUSED_TOPIC = "ang:wake"
# What a call on a connection raises while the driver is taking it apart.
_BROKEN = (RedisError, OSError, AttributeError, RuntimeError)
log = structlog.get_logger(__name__)


def wake_topic(kind: str, tag: str) -> str:
    """The topic of wake-ups about one thing; `tag` is its part of the hot tier's key names."""
    return f"ang:wake:{kind}:{{{tag}}}"


def encode_event(event: str, data: bytes) -> bytes:
    """A message that a stream passes on as a server-sent event."""
    return event.encode() + b"\n" + data


def decode_event(message: bytes) -> tuple[str, bytes]:
    """The event's name and data."""
    event, _, data = message.partition(b"\n")
    return event.decode(), data


class RequestTime:
    """The present time of a long request: the time at which the edge received it, plus what has passed since."""

    def __init__(self, now: datetime) -> None:
        self._began = now
        self._since = time.monotonic()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.passed())

    def passed(self) -> float:
        """Seconds since the request was received."""
        return time.monotonic() - self._since


class Bell:
    """The wake-ups of one waiter. Keeps the newest messages until the waiter takes them; an empty message only
    wakes."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._words: deque[bytes] = deque(maxlen=_MOST_UNREAD)

    def ring(self, message: bytes = b"") -> None:
        if message:
            self._words.append(message)
        self._rung.set()

    def words(self) -> list[bytes]:
        """Returns the messages since the last call."""
        taken = list(self._words)
        self._words.clear()
        return taken

    async def wait(self, seconds: float) -> bool:
        """Waits for a ring, at most so long; returns whether there was one. A ring before the call counts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        rung = self._rung.is_set()
        self._rung.clear()
        return rung


class Wake:
    """Subscribes to topics for the waiters of one process, and rings their bells."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot
        self._bells: dict[str, set[Bell]] = {}
        self._subscribed: dict[str, asyncio.Event] = {}  # by topic: set once the server has confirmed the subscription
        self._line: PubSub | None = None
        self._reader: asyncio.Task[None] | None = None
        self.stopping = False

    @asynccontextmanager
    async def listening(self, *topics: str) -> AsyncIterator[Bell]:
        """Returns a bell for these topics. A caller that reads its store after this misses no later wake-up."""
        bell = Bell()
        new = [topic for topic in topics if topic not in self._bells]
        for topic in topics:
            self._bells.setdefault(topic, set()).add(bell)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="wake-ups")
        try:
            await self._subscribe(new)
            await self._until_confirmed(topics)
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
        pause: Callable[[T, datetime], float] = lambda _, __: RECHECK_SECONDS,
    ) -> T:
        """The long poll: calls `look` until something is found, `wait` seconds are over or the process is about to
        stop. A wake-up on a topic cuts the pause before the next look short. Returns what the last look returned."""
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
                await bell.wait(min(left, RECHECK_SECONDS, pause(got, at)))

    async def tell(self, topic: str, message: bytes) -> None:
        """Publishes a message to all waiters of a topic. A hot tier that is away is no error."""
        with suppress(Unavailable):
            await self._hot.publish(topic, message)

    def stop(self) -> None:
        """The process is about to stop: long polls return what they have."""
        self.stopping = True
        self.ring_all()

    def ring_all(self) -> None:
        """Wakes all waiters, because some of them may have missed a wake-up."""
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
            self._subscribed.pop(topic, None)
        if deserted and self._line is not None:
            with suppress(*_BROKEN):
                await self._line.unsubscribe(*deserted)

    async def _subscribe(self, topics: Sequence[str]) -> None:
        """Without a connection there is nothing to do: a new one subscribes to all topics."""
        if topics and self._line is not None:
            with suppress(*_BROKEN):
                await self._line.subscribe(*topics)

    async def _until_confirmed(self, topics: Sequence[str]) -> None:
        # No longer than a second: while the hot tier is away, the caller's own checks have to do.
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                for topic in topics:
                    await self._subscribed.setdefault(topic, asyncio.Event()).wait()

    async def _read(self) -> None:
        while True:
            try:
                async with self._hot.pubsub() as line:
                    # A connection without subscriptions cannot be read, so there is always one topic, which is never
                    # used.
                    asked = {_UNUSED_TOPIC, *self._bells}
                    await line.subscribe(*asked)
                    self._line = line  # from here on new waiters subscribe themselves; earlier ones are in `missed`
                    if missed := self._bells.keys() - asked:
                        await line.subscribe(*missed)
                    while True:
                        self._receive(await line.get_message(timeout=None))
            except (*_BROKEN, TimeoutError) as error:
                log.info("wake-ups are interrupted", error=str(error) or type(error).__name__)
            self._line = None
            for subscribed in self._subscribed.values():
                subscribed.clear()  # not replaced, since a waiter may hold the same event
            self.ring_all()
            await asyncio.sleep(_RECONNECT_SECONDS)

    def _receive(self, message: Mapping[str, Any] | None) -> None:
        if message is None:
            return
        topic = message["channel"].decode()
        if message["type"] == "message":
            for bell in self._bells.get(topic, ()):
                bell.ring(message["data"])
        elif message["type"] == "subscribe" and topic in self._bells:
            self._subscribed.setdefault(topic, asyncio.Event()).set()
