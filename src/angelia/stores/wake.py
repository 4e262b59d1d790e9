"""Wake-ups: in the own process directly, and between processes over the hot tier's pub/sub. One connection per process
serves all requests that wait.

A wake-up may be lost, because a hot tier that restarts drops its subscribers. So a waiter also checks its store every
`RECHECK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

import structlog

from angelia.errors import Unavailable
from angelia.stores.valkey import HotTier
from angelia.stores.wake_line import WakeLine

T = TypeVar("T")

RECHECK_SECONDS = 5.0
_MOST_UNREAD = 256
_RECONNECT_SECONDS = 0.2
_CONFIRM_SECONDS = 1.0
_TAG_BYTES = 16
log = structlog.get_logger(__name__)

# What the edge wants to be told when the request of the present task begins to wait.
on_wait: ContextVar[Callable[[], None] | None] = ContextVar("on_wait", default=None)


def about_to_wait() -> None:
    """Says that the present request begins to wait: until then it costs no more than any other. RateLimited if its
    caller waits in too many requests already."""
    begins = on_wait.get()
    if begins is not None:
        begins()


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


class Ear(Protocol):
    """What is rung for the messages of a topic. An empty message says that something may have happened."""

    def ring(self, message: bytes = b"") -> None: ...


@dataclass(slots=True)
class _Topic:
    """A topic that this process listens to. `since`: since when all its messages come, by the monotonic clock."""

    ears: set[Ear] = field(default_factory=set)
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    since: float | None = None


class Wake:
    """Rings the bells of this process, and those of the others over the hot tier."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot
        self._tag = secrets.token_hex(_TAG_BYTES // 2).encode()
        self._topics: dict[str, _Topic] = {}
        self._line: WakeLine | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self.stopping = False

    @asynccontextmanager
    async def listening(self, *topics: str) -> AsyncIterator[Bell]:
        """Returns a bell for these topics. A caller that reads its store after this misses no later wake-up."""
        about_to_wait()
        bell = Bell()
        try:
            self._join(bell, topics)
            await self._until_confirmed(topics)
            yield bell
        finally:
            self._leave(bell, topics)

    def follow(self, topic: str, ear: Ear) -> None:
        """Rings `ear` for each message of a topic, until the process ends."""
        self._join(ear, [topic])

    def heard_since(self, topic: str) -> float | None:
        """Since when this process hears all messages of a topic, by the monotonic clock; None while it may miss
        some."""
        known = self._topics.get(topic)
        return None if known is None else known.since

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
        """Rings all waiters of a topic: those of this process at once, the others over the hot tier. A hot tier that is
        away is no error."""
        self.ring(topic, message)
        with suppress(Unavailable):
            await self._hot.publish(topic, self.tagged(message))

    def ring(self, topic: str, message: bytes = b"") -> None:
        """Rings the waiters of this process. A caller whose script publishes a tagged message rings here as well."""
        known = self._topics.get(topic)
        if known is not None:
            for ear in known.ears:
                ear.ring(message)

    def tagged(self, message: bytes = b"") -> bytes:
        """Returns a message as it is published: with the sign of this process, which ignores its own echo."""
        return self._tag + message

    def stop(self) -> None:
        """The process is about to stop: long polls return what they have."""
        self.stopping = True
        self.ring_all()

    def ring_all(self) -> None:
        """Wakes all waiters, because some of them may have missed a wake-up."""
        for ear in {ear for known in self._topics.values() for ear in known.ears}:
            ear.ring()

    async def close(self) -> None:
        self._closed.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def _join(self, ear: Ear, topics: Sequence[str]) -> None:
        new = [topic for topic in topics if topic not in self._topics]
        for topic in topics:
            self._topics.setdefault(topic, _Topic()).ears.add(ear)
        if self._line is not None:  # else a new connection subscribes to all topics
            self._line.subscribe(*new)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep_line(), name="wake-ups")

    def _leave(self, ear: Ear, topics: Sequence[str]) -> None:
        for topic in topics:
            self._topics[topic].ears.discard(ear)
        deserted = [topic for topic in topics if not self._topics[topic].ears]
        for topic in deserted:
            del self._topics[topic]
        if self._line is not None:
            self._line.unsubscribe(*deserted)

    async def _until_confirmed(self, topics: Sequence[str]) -> None:
        # No longer than a second: while the hot tier is away, the caller's own checks have to do.
        waiting = [known.confirmed for topic in topics if (known := self._topics[topic]).since is None]
        if waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONFIRM_SECONDS):
                    for confirmed in waiting:
                        await confirmed.wait()

    async def _keep_line(self) -> None:
        while not self._closed.is_set():
            try:
                self._line = WakeLine(await self._hot.subscriber(), self._heard, self._confirmed)
                if self._closed.is_set():  # the client library may swallow a cancellation while it connects
                    return
                self._line.subscribe(*self._topics)
                await self._line.lost
                error = "the connection broke"
            except Unavailable as away:
                error = str(away.__cause__)
            finally:
                if self._line is not None:
                    self._line.close()
                self._line = None
                for known in self._topics.values():
                    known.since = None
                    known.confirmed.clear()
            log.info("wake-ups are interrupted", error=error)
            self.ring_all()
            await asyncio.sleep(_RECONNECT_SECONDS)

    def _heard(self, topic: str, text: bytes) -> None:
        if text.startswith(self._tag):
            return  # its own waiters were rung before
        try:
            self.ring(topic, text[_TAG_BYTES:])
        except Exception:  # one message that cannot be read does not end the wake-ups, but what it said is missing
            log.exception("a wake-up could not be read", topic=topic)
            self._topics[topic].since = time.monotonic()
            self.ring(topic)

    def _confirmed(self, topic: str) -> None:
        known = self._topics.get(topic)
        if known is not None and known.since is None:
            known.since = time.monotonic()
            known.confirmed.set()
