"""What happens in queues is counted in process, and added to the minute's counts in the ledger by a tick."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from angelia.queues import activity_store as store
from angelia.stores.ledger import Ledger

# The bounds of the counts of waiting times.
WAITED_SECONDS = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 86_400.0)
KEPT = timedelta(days=8)  # a week, and the day that is not over
_AT_ONCE = 10_000


@dataclass(slots=True)
class _Counts:
    """What happened in one queue since the last flush."""

    pushed: int = 0
    pushed_bytes: int = 0
    popped: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    evicted: int = 0
    waited: list[int] = field(default_factory=lambda: [0] * (len(WAITED_SECONDS) + 1))
    waited_ms: int = 0
    waited_most_ms: int = 0


class Activity:
    """The counts of this process. What was not flushed when it dies is lost: they are figures to look at."""

    def __init__(self, ledger: Ledger, worker: int = 0) -> None:
        self._ledger = ledger
        self._worker = worker
        self._server = socket.gethostname()
        self._counts: dict[int, _Counts] = {}
        self._used = _processor_ms()

    def pushed(self, queue_no: int, messages: int, size: int) -> None:
        counts = self._of(queue_no)
        counts.pushed += messages
        counts.pushed_bytes += size

    def popped(self, queue_no: int, messages: int, waited: float) -> None:
        """Messages were delivered so many seconds after their push."""
        counts = self._of(queue_no)
        counts.popped += messages
        counts.waited[bisect_left(WAITED_SECONDS, waited)] += messages
        waited_ms = max(0, int(waited * 1000))
        counts.waited_ms += waited_ms * messages
        counts.waited_most_ms = max(counts.waited_most_ms, waited_ms)

    def settled(self, queue_no: int, completed: int, failed: int, dead: int) -> None:
        counts = self._of(queue_no)
        counts.completed += completed
        counts.failed += failed
        counts.dead += dead

    def evicted(self, queue_no: int, messages: int) -> None:
        self._of(queue_no).evicted += messages

    async def flush(self, now: datetime) -> None:
        """Adds what was counted to the ledger, and a sample of what this process uses."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(0)
        turn_ms = (loop.time() - began) * 1000
        counts, self._counts = self._counts, {}
        before, self._used = self._used, _processor_ms()
        try:
            await self._add(counts, now.replace(second=0, microsecond=0), before, turn_ms)
        except BaseException:
            self._take_back(counts)
            self._used = before
            raise

    async def delete_old(self, now: datetime) -> bool:
        """Deletes old counts. Returns whether more may be left."""
        async with self._ledger.transaction() as tx:
            return await store.delete_before(tx, now - KEPT, _AT_ONCE) == _AT_ONCE

    async def _add(self, counts: dict[int, _Counts], minute: datetime, used: tuple[int, int], turn_ms: float) -> None:
        all_ = list(counts.values())
        async with self._ledger.transaction() as tx:
            if counts:
                await store.add_minutes(
                    tx,
                    minute,
                    list(counts),
                    [one.pushed for one in all_],
                    [one.pushed_bytes for one in all_],
                    [one.popped for one in all_],
                    [one.completed for one in all_],
                    [one.failed for one in all_],
                    [one.dead for one in all_],
                    [one.evicted for one in all_],
                    [count for one in all_ for count in one.waited],
                    [one.waited_ms for one in all_],
                    [one.waited_most_ms for one in all_],
                )
            await store.add_worker(
                tx,
                minute,
                self._server,
                self._worker,
                os.getpid(),
                sum(one.pushed for one in all_),
                sum(one.popped for one in all_),
                sum(one.completed for one in all_),
                sum(one.failed for one in all_),
                sum(one.dead for one in all_),
                self._used[0] - used[0],
                self._used[1] - used[1],
                _memory_bytes(),
                turn_ms,
            )

    def _take_back(self, counts: dict[int, _Counts]) -> None:
        """Keeps for the next flush what could not be added."""
        for queue_no, old in counts.items():
            new = self._of(queue_no)
            new.pushed += old.pushed
            new.pushed_bytes += old.pushed_bytes
            new.popped += old.popped
            new.completed += old.completed
            new.failed += old.failed
            new.dead += old.dead
            new.evicted += old.evicted
            new.waited = [a + b for a, b in zip(new.waited, old.waited, strict=True)]
            new.waited_ms += old.waited_ms
            new.waited_most_ms = max(new.waited_most_ms, old.waited_most_ms)

    def _of(self, queue_no: int) -> _Counts:
        counts = self._counts.get(queue_no)
        if counts is None:
            counts = self._counts[queue_no] = _Counts()
        return counts


def _processor_ms() -> tuple[int, int]:
    """The processor time of this process so far, for itself and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int(used.ru_utime * 1000), int(used.ru_stime * 1000)


def _memory_bytes() -> int:
    """The memory that this process has at present; where the system does not tell, the most that it ever had."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - read at every sample
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
