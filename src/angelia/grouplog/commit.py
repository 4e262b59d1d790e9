"""The commit section of a node: one thread that checks, writes, syncs and publishes, so the event loop never waits for
a sync. (RocksDB gives up the interpreter's lock while it writes, not while it seeks.)

Works that came while the last sync ran share the next one. A work is staged (its checks, and its writes into the
batch), then all are synced at once, then each is finished: its result is handed out, and what it stored is published.
No other work runs in between, so a subscription that begins as a work of its own sees each message either stored or
published later.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from angelia import metrics
from angelia.errors import AngeliaError, RateLimited, Unavailable
from angelia.stores.rocks import Rocks, RocksBatch

MOST_MESSAGES = 256
MOST_BYTES = 4 << 20
MOST_WAITING = 64 << 20  # bytes of works that wait
T = TypeVar("T")
Done = TypeVar("Done", covariant=True)
log = structlog.get_logger(__name__)


class Work(Protocol[Done]):
    """Something that happens in the commit section."""

    messages: int
    size: int  # in bytes
    alone: bool  # it reads what earlier works wrote, so it shares no batch with them

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        """Checks, and puts its writes into the batch. If it raises, it has put nothing there."""

    def finish(self) -> Done:
        """Called when the batch is synced. Returns the result; it cannot fail."""

    def undo(self) -> None:
        """Called if the batch could not be written: brings what is in memory back to what is stored."""


class _Waiting(Generic[T]):
    """A work with the future of its caller."""

    __slots__ = ("_loop", "error", "future", "result", "work")

    def __init__(self, work: Work[T], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self._loop = loop
        self.future: asyncio.Future[T] = loop.create_future()
        self.result: T | None = None
        self.error: AngeliaError | None = None

    def settle(self) -> None:
        if self.future.done():  # its caller has gone
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class CommitThread:
    """Runs works, one commit after another."""

    def __init__(self, rocks: Rocks, after: Callable[[], None]) -> None:
        """`after` is called in the event loop after each commit."""
        self._rocks = rocks
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Waiting[object] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._thread = threading.Thread(target=self._run, name="group-log-writer", daemon=True)
        self._closing = False
        self.failure: BaseException | None = None  # why the thread has ended

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        """Ends the thread after the works that wait."""
        self._closing = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    async def run(self, work: Work[T]) -> T:
        """Runs a work, and returns its result once it is synced."""
        if self._closing:
            raise Unavailable("the node is stopping", retry_after=1)
        if self.failure is not None:
            raise Unavailable("the node's writer has failed", hint="restart the node") from self.failure
        if self._waiting_bytes and self._waiting_bytes + work.size > MOST_WAITING:
            raise RateLimited("the node has too much to write", hint="send it again in a moment", retry_after=1)
        waiting = _Waiting(work, self._loop)
        self._waiting_bytes += work.size
        self._queue.put(waiting)  # type: ignore[arg-type]
        return await waiting.future  # a caller that hangs up cancels this, and takes nothing back of what is written

    def _run(self) -> None:
        try:
            self._commit_all()
        except BaseException as error:
            self.failure = error
            log.exception("the writer of the log has failed")
            while (one := self._queue.get()) is not None:  # what came meanwhile, until the node stops
                one.error = Unavailable("the node's writer has failed", hint="restart the node")
                self._tell([one])

    def _commit_all(self) -> None:
        held: _Waiting[object] | None = None
        while True:
            first = held or self._queue.get()
            held = None
            if first is None:
                return
            group = [first]
            if not first.work.alone:
                held = self._gather(group)
            try:
                self._commit(group)
            except BaseException as error:
                log.exception("a commit failed")
                for one in group:
                    one.error = one.error or Unavailable(f"the node failed: {error}")
                    with contextlib.suppress(AngeliaError):
                        one.work.undo()
                if not isinstance(error, Exception):  # such as a panic of RocksDB's binding
                    self.failure = error
                    for one in (*group, *filter(None, [held])):
                        one.error = one.error or Unavailable("the node's writer has failed")
                    self._tell([*group, *filter(None, [held])])
                    raise
            self._tell(group)

    def _gather(self, group: list[_Waiting[object]]) -> _Waiting[object] | None:
        """Takes what waits, as far as it may share a commit. Returns a work that must wait for the next one."""
        messages, size = group[0].work.messages, group[0].work.size
        while messages < MOST_MESSAGES and size < MOST_BYTES:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                return None
            if one is None:
                self._queue.put(None)
                return None
            messages, size = messages + one.work.messages, size + one.work.size
            if one.work.alone or messages > MOST_MESSAGES or size > MOST_BYTES:
                return one
            group.append(one)
        return None

    def _commit(self, group: list[_Waiting[object]]) -> None:
        batch, staged = self._rocks.batch(), []
        for one in group:
            try:
                one.work.stage(self._rocks, batch)
                staged.append(one)
            except AngeliaError as error:
                one.error = error
        try:
            began = time.perf_counter()
            self._rocks.write(batch)
        except AngeliaError as error:
            for one in staged:
                one.error = error
            for one in reversed(staged):
                one.work.undo()
            return
        if batch.operations:
            metrics.LOG_SYNC_SECONDS.observe(time.perf_counter() - began)
            metrics.LOG_COMMIT_MESSAGES.observe(sum(one.work.messages for one in staged))
        for one in staged:
            one.result = one.work.finish()

    def _tell(self, group: list[_Waiting[object]]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, group)
        except RuntimeError:  # the loop is closed, and with it all callers
            log.debug("nobody waits for a commit any more")

    def _settle(self, group: list[_Waiting[object]]) -> None:
        for one in group:
            self._waiting_bytes -= one.work.size
            one.settle()
        self._after()
