"""The partitions that may have messages for a consumer group, as far as this process knows. It says where a pop looks;
the ledger decides what it gets."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import islice

import msgspec

from angelia.queues.news import Told
from angelia.stores.wake import RECHECK_SECONDS

_LOOK_SHARE = 50  # a look at the ledger may take one part in so many of the time
_SCOPES = 10_000  # as many are remembered before all are gone through for idle ones
_IDLE_SECONDS = 60.0
_OUTDATED = 64  # entries of a heap, beside as many as are valid


class Scope(msgspec.Struct, frozen=True):
    """What a consumer reads: a queue, one partition of it, or all queues of a namespace and task."""

    group: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None

    def includes(self, told: Told) -> bool:
        if self.queue is not None:
            return told.queue == self.queue and self.partition in (None, told.partition)
        return self.namespace in (None, told.namespace) and self.task in (None, told.task)


class Place(msgspec.Struct, frozen=True):
    """A partition to look at."""

    queue: str
    priority: int


_NONE: Mapping[Scope, Ready] = {}


class Ready:
    """The partitions of one scope that may have messages, and the requests that wait for one."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.groups: dict[str, int] = {}  # the numbers of the consumer group, by queue
        self.mark: int | None = None  # where the news was when the ledger was looked at
        self.looking = asyncio.Lock()
        self.looked_at = 0.0  # when the last look began
        self.users = 0  # requests that are served
        self.used_at = 0.0  # when the last of them was
        self._now: dict[int, dict[int, Place]] = {}  # by priority and partition
        self._later: dict[int, tuple[datetime, Place]] = {}
        self._due: list[tuple[datetime, int]] = []  # a heap of these times; some of them are outdated
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._next_look = 0.0
        self._under_way = 0  # requests that have taken partitions
        self._returns: list[asyncio.Future[None]] = []

    @property
    def idle(self) -> bool:
        """Whether no request uses it, nor did for a while."""
        return not self.users and time.monotonic() - self.used_at > _IDLE_SECONDS

    def add(self, partition_no: int, place: Place, until: datetime | None = None) -> None:
        """A partition may have messages, now or at that time. One waiting request is told."""
        self._later.pop(partition_no, None)
        known = any(partition_no in places for places in self._now.values())
        if until is None:
            if known:
                self._forget(partition_no)  # its priority may be another one now
            self._now.setdefault(place.priority, {})[partition_no] = place
            self.wake_one()
        elif not known:
            self._later[partition_no] = (until, place)
            heapq.heappush(self._due, (until, partition_no))
            if len(self._due) > 2 * len(self._later) + _OUTDATED:
                self._due = [(due, number) for number, (due, _) in self._later.items()]
                heapq.heapify(self._due)

    def take(self, most: int, now: datetime) -> dict[int, Place]:
        """Takes partitions to look at, those of queues with higher priority first. A caller that got some calls
        `put_back` afterwards."""
        while (due := self._next_due()) is not None and due <= now:
            partition_no = heapq.heappop(self._due)[1]
            place = self._later.pop(partition_no)[1]
            self._now.setdefault(place.priority, {})[partition_no] = place
        taken: dict[int, Place] = {}
        for priority in sorted(self._now, reverse=True):
            taken |= islice(self._now[priority].items(), most - len(taken))
        for partition_no in taken:
            self._forget(partition_no)
        self._under_way += bool(taken)
        return taken

    def put_back(self, untouched: dict[int, Place]) -> None:
        """Ends a `take`, and returns what was not looked at."""
        self._under_way -= 1
        for partition_no, place in untouched.items():
            self.add(partition_no, place)
        for waiting in self._returns:
            if not waiting.done():
                waiting.set_result(None)
        self._returns.clear()

    async def come_back(self) -> bool:
        """Waits until a request that has taken partitions is done with them; False if none has."""
        if not self._under_way:
            return False
        waiting = asyncio.get_running_loop().create_future()
        self._returns.append(waiting)
        await waiting
        return True

    def looked(self, mark: int | None, began: float) -> None:
        """The ledger was looked at since then."""
        now = time.monotonic()
        self.mark, self.looked_at = mark, began
        self._next_look = now + max(RECHECK_SECONDS, (now - began) * _LOOK_SHARE)

    def look_is_due(self) -> bool:
        """Whether it is time to look at the ledger again: news may have been lost with a process. One caller is told
        so."""
        due = time.monotonic() >= self._next_look
        if due:
            self._next_look = time.monotonic() + RECHECK_SECONDS
        return due

    def doubt(self) -> None:
        """What is known may be outdated: requests look at the ledger again."""
        self.mark = None
        self.groups.clear()
        while self._waiters:
            self.wake_one()

    @contextmanager
    def waiting(self) -> Iterator[Waiter]:
        """A request that waits for a partition."""
        waiter = Waiter(self._waiters)
        try:
            yield waiter
        finally:
            waiter.leave()
            if self._now or self._later:  # it may have been told of one that it did not take, or watched for its time
                self.wake_one()

    def pause(self, now: datetime) -> float:
        """How long a request may wait before it looks again by itself."""
        due = self._next_due()
        seconds = max(0.0, self._next_look - time.monotonic())
        return seconds if due is None else min(seconds, max(0.001, (due - now).total_seconds()))

    def wake_one(self) -> None:
        """Tells the request that waits longest."""
        for waiter in self._waiters:
            del self._waiters[waiter]
            waiter.set_result(None)
            return

    def _forget(self, partition_no: int) -> None:
        for priority, places in list(self._now.items()):
            places.pop(partition_no, None)
            if not places:
                del self._now[priority]

    def _next_due(self) -> datetime | None:
        while self._due:
            until, partition_no = self._due[0]
            if self._later.get(partition_no, (None, None))[0] == until:
                return until
            heapq.heappop(self._due)
        return None


class Waiter:
    """One request's place in the line of those that wait."""

    def __init__(self, line: dict[asyncio.Future[None], None]) -> None:
        self._line = line
        self._enter()

    async def wait(self, seconds: float) -> None:
        """Waits until it is told, at most so long. Being told before the call counts."""
        if not self._mine.done():
            await asyncio.wait([self._mine], timeout=seconds)
        if self._mine.done():
            self._enter()

    def leave(self) -> None:
        self._line.pop(self._mine, None)

    def _enter(self) -> None:
        self._mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[self._mine] = None


class Readiness:
    """What this process knows about all scopes that its consumers read."""

    def __init__(self) -> None:
        self._ready: dict[Scope, Ready] = {}
        self._by_place: dict[tuple[str | None, str | None], dict[Scope, Ready]] = {}  # queue, partition; None for all
        self._most = _SCOPES

    @contextmanager
    def used(self, scope: Scope) -> Iterator[Ready]:
        """What is known about a scope, which is kept up to date while the block runs."""
        ready = self._of(scope)
        ready.users += 1
        try:
            yield ready
        finally:
            ready.users -= 1
            ready.used_at = time.monotonic()

    def _of(self, scope: Scope) -> Ready:
        known = self._ready.get(scope)
        if known is None:
            if len(self._ready) >= self._most:
                self._drop([one for one, ready in self._ready.items() if ready.idle])
                self._most = max(_SCOPES, 2 * len(self._ready))
            known = self._ready[scope] = Ready(scope)
            self._by_place.setdefault((scope.queue, scope.partition), {})[scope] = known
        return known

    def tell(self, told: Told) -> None:
        if told.partition_no is None:
            for ready in self._ready.values():
                if ready.scope.queue in (None, told.queue):
                    ready.doubt()
            return
        place = Place(told.queue, told.priority)
        idle: list[Scope] = []
        for where in ((told.queue, told.partition), (told.queue, None), (None, None)):
            for scope, ready in self._by_place.get(where, _NONE).items():
                if not scope.includes(told):
                    continue
                if ready.idle:  # it would gather partitions that no request asks for
                    idle.append(scope)
                else:
                    ready.add(told.partition_no, place)
        self._drop(idle)

    def doubt(self) -> None:
        for ready in self._ready.values():
            ready.doubt()

    def _drop(self, scopes: Iterable[Scope]) -> None:
        """Forgets scopes; the ledger is looked at when they are used again."""
        for scope in scopes:
            del self._ready[scope]
            others = self._by_place[scope.queue, scope.partition]
            del others[scope]
            if not others:
                del self._by_place[scope.queue, scope.partition]
