"""Requests that read a queue without a lease and wait for its next message. They are rung by the news of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from angelia.queues.news import Told


class WaitingTail:
    """One request that waits."""

    def __init__(self, partition: str | None) -> None:
        self._partition = partition
        self._told: set[int] = set()
        self._rung = asyncio.Event()

    def tell(self, told: Told) -> None:
        if told.partition_no is not None and self._partition in (None, told.partition):
            self._told.add(told.partition_no)
            self._rung.set()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, seconds: float) -> list[int]:
        """Waits until it is rung, at most so long. News before the call counts. Returns the partitions that may have
        messages by now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()
        told = list(self._told)
        self._told.clear()
        return told


class WaitingTails:
    """All such requests of this process; it follows the news."""

    def __init__(self) -> None:
        self._tails: dict[str, set[WaitingTail]] = {}  # by queue

    @contextmanager
    def waiting(self, queue: str, partition: str | None) -> Iterator[WaitingTail]:
        """A request that looks at the ledger within the block misses no later news."""
        tail = WaitingTail(partition)
        others = self._tails.setdefault(queue, set())
        others.add(tail)
        try:
            yield tail
        finally:
            others.discard(tail)
            if not others:
                self._tails.pop(queue, None)

    def tell(self, told: Told) -> None:
        for tail in self._tails.get(told.queue, ()):
            tail.tell(told)

    def doubt(self) -> None:
        """The server is about to stop, or news was missed. A request that is not to end looks at the ledger every few
        seconds anyhow: while the hot tier is away, this is called several times a second."""
        for tails in self._tails.values():
            for tail in tails:
                tail.ring()
