"""News of partitions that may have messages to deliver: told directly in the own process, to others over the hot tier.

A pop that begins after a push was answered must see its message, also in another process, which the news may not
have reached yet. So news is numbered, and a pop that knows of no message asks for the newest number: if this process
has heard all news up to it, no message waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

import msgspec
import structlog

from angelia.errors import Unavailable
from angelia.queues.hot_store import HotNews, parse
from angelia.queues.model import Partition, Queue
from angelia.stores.wake import Wake, wake_topic

TOPIC = wake_topic("queues", "all")
_CATCH_UP_SECONDS = 0.05
_RETRY_SECONDS = 0.5
log = structlog.get_logger(__name__)


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A partition that may have messages to deliver; or, without a partition, a queue that was changed."""

    queue: str
    namespace: str
    task: str
    priority: int
    partition: str = ""
    partition_no: int | None = None


_decode = msgspec.msgpack.Decoder(list[Told]).decode


class Listener(Protocol):
    """What is told of news in this process."""

    def tell(self, told: Told) -> None: ...
    def doubt(self) -> None:
        """News may have been missed."""


class News:
    """The news that this process tells and hears."""

    def __init__(self, hot: HotNews, wake: Wake) -> None:
        self._hot = hot
        self._wake = wake
        self._listeners: list[Listener] = []
        self._epoch = ""
        self._begun = 0  # how often this process began to follow the news
        self._heard = -1  # all news of the epoch up to this number
        self._beyond: set[int] = set()  # news that is known beyond that
        self._arrived = asyncio.Event()
        self._unpublished: dict[Told, None] = {}
        self._publishing: asyncio.Task[None] | None = None
        self._away_until = 0.0
        self._retry: asyncio.TimerHandle | None = None

    def follow(self, listener: Listener) -> None:
        """Tells a listener of all news from now on."""
        if not self._listeners:
            self._wake.follow(TOPIC, self)
        self._listeners.append(listener)

    @property
    def stopping(self) -> bool:
        return self._wake.stopping

    async def tell(self, partitions: Iterable[Partition]) -> None:
        """Tells that these partitions may have messages to deliver. News that comes while other news is published is
        published together after it. If the hot tier is away, it is published when it is back."""
        await self._spread([_told(partition.queue, partition) for partition in partitions])

    async def changed(self, queue: Queue) -> None:
        """Tells that options or consumer groups of a queue were changed: what is known about it is looked up again."""
        await self._spread([_told(queue)])

    async def _spread(self, news: Iterable[Told]) -> None:
        told = dict.fromkeys(news)
        if not told:
            return
        for one in told:
            self._tell(one)
        self._unpublished |= told
        if self._away():
            return  # it is published when the hot tier is back
        if self._publishing is not None:
            await asyncio.wait([self._publishing])
        if self._unpublished:
            if self._publishing is None or self._publishing.done():
                self._publishing = asyncio.create_task(self._publish())
            await asyncio.wait([self._publishing])

    async def _publish(self) -> None:
        news, self._unpublished = list(self._unpublished), {}
        try:
            mark = await self._hot.publish(TOPIC, self._wake.tagged(), msgspec.msgpack.encode(news))
        except Exception as error:  # what was told of is committed: no fault of the news may change an answer
            if not isinstance(error, Unavailable):
                log.exception("news of queues could not be published")
            self._epoch = ""  # it may have been published: its number is not known
            self._away_until = time.monotonic() + _RETRY_SECONDS
            self._unpublished = dict.fromkeys(news) | self._unpublished
            if self._retry is None and not self._wake.stopping:
                self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._publish_again)
            return
        self._note(*mark)

    def _publish_again(self) -> None:
        self._retry = None
        if self._unpublished and (self._publishing is None or self._publishing.done()):
            self._publishing = asyncio.create_task(self._publish())

    async def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._publishing is not None:
            await asyncio.wait([self._publishing])

    def _away(self) -> bool:
        """Whether the hot tier failed a moment ago: nothing waits for it then."""
        return time.monotonic() < self._away_until

    async def caught_up(self) -> bool:
        """Whether this process has heard all news that was told before this call."""
        if not self._epoch or self._away():
            return False
        try:
            epoch, number = await self._hot.newest()
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while epoch == self._epoch and self._heard < number:
                    self._arrived.clear()
                    await self._arrived.wait()
        except Unavailable:
            return False
        except TimeoutError:
            self._epoch = ""  # some of it never comes, such as own news whose number was lost: begin anew
            return False
        if epoch != self._epoch:
            self._epoch = ""  # the hot tier lost its data; the next look begins with what it has now
        return bool(self._epoch)

    async def mark(self) -> int | None:
        """Where this process is in the news: what the ledger has after this call, and news from then on, is complete.
        None while news may be missed."""
        if self._wake.heard_since(TOPIC) is None or self._away():
            return None
        if not self._epoch:
            try:
                epoch, number = await self._hot.newest()
            except Unavailable:
                return None
            if self._wake.heard_since(TOPIC) is None:
                return None
            self._epoch, self._heard = epoch, number
            self._beyond.clear()
            self._begun += 1  # news before that may have been missed: earlier marks hold no more
        return self._begun

    def holds(self, mark: int | None) -> bool:
        """Whether no news was missed since a mark."""
        return bool(self._epoch) and mark == self._begun

    def ring(self, message: bytes = b"") -> None:
        """News of another process; an empty message says that some may have been missed."""
        if not message:
            self._epoch = ""
            for listener in self._listeners:
                listener.doubt()
            return
        mark, _, news = message.partition(b" ")
        epoch, number = parse(mark)
        for one in _decode(news):
            self._tell(one)
        self._note(epoch, number)

    def _tell(self, told: Told) -> None:
        for listener in self._listeners:
            listener.tell(told)

    def _note(self, epoch: str, number: int) -> None:
        """News comes in the order of its numbers; only the own may be known before that of others."""
        if epoch != self._epoch or number <= self._heard:
            return
        self._beyond.add(number)
        while self._heard + 1 in self._beyond:
            self._heard += 1
            self._beyond.discard(self._heard)
        self._arrived.set()


def _told(queue: Queue, partition: Partition | None = None) -> Told:
    about = (queue.name, queue.namespace, queue.task, queue.options.priority)
    return Told(*about) if partition is None else Told(*about, partition.name, partition.partition_no)
